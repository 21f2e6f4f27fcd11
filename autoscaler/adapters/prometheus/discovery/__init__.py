"""Finds workloads from the labels of metrics, for a dry run without access to the cluster."""
