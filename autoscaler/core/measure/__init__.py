"""Measurements of a workload: the speed of a replica, the offered load, and the share of misses at a load."""
