"""Comparisons of policies with each other and with the bounds, from many replay runs."""
