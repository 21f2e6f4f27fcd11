"""Bounds on what any policy can reach on a trace."""
