"""Workloads together: variants of one service, and pools of GPUs that are too small for all."""
