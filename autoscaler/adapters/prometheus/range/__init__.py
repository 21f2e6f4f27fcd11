"""Reads the past: range queries for `replay` and for a daemon that starts without state."""
