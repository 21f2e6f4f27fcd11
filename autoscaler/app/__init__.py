"""Wiring: one module per command puts its parts together; log and signals of the process."""
