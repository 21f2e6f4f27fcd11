"""Tables of columns, and operations on them: group by, averages, sliding windows, histograms."""
