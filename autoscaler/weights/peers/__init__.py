"""Agents serve verified files to each other, so that the source sends a model a few times and not once per node."""
