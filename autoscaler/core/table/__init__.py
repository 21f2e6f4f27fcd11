"""Columns and what every table of them can do: group, average, slide, count."""
