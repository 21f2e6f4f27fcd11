"""Readings of pods: growth since the last ones, rates, requests without progress, counters that fell."""
