"""A simulated world: vLLM replicas, a cluster with cold starts, and traffic. Nothing here decides about replicas."""
