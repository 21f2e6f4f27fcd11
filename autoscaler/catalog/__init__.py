"""Tables of other people's metrics and hardware: names, labels, prices. Rows, no behaviour."""
