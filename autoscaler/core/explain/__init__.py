"""Decisions in words."""
