"""Inputs of a replay run: traces and recordings from files, and traces rebuilt from history."""
