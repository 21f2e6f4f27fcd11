"""Builds the text of queries from the tables of the catalog. Nothing here sends them."""
