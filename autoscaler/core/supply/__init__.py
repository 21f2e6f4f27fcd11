"""GPUs that replicas can have: room on nodes, in pools and quotas, and which replicas get it in which order."""
