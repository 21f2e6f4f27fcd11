"""Quotas of GPUs: ResourceQuota objects, Kueue's queues, and those that the operator states in a file."""
