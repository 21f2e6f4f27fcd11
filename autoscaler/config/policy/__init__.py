"""Policies: their schema, how files of them are read and followed, and their columns for the tick."""
