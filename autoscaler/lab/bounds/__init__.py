"""Bounds of what any policy can reach on a trace."""
