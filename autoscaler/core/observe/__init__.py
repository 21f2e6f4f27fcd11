"""Observation: from samples of pods and gateways to the state of each workload."""
