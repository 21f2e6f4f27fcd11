"""The compiled engine model, and the replicas, GPUs and cold starts around it."""
