"""Presentations of a comparison: the table on the terminal, the JSON document, the HTML page."""
