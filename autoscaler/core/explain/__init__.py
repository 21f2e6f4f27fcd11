"""Decisions in words: one sentence for each workload, and the lines about its planner."""
