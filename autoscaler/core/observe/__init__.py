"""From readings to the state of each workload."""
