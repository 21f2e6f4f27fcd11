"""Simulated vLLM replicas: `engine` is one replica, `demo` a cluster of them that serves real metrics."""
