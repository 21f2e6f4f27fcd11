"""Many replay runs at once, on the cores of one machine or on a Ray cluster."""
