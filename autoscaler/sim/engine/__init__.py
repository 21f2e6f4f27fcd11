"""What the world and the studies share: one vLLM engine in plain Python, its profiles, its cold starts, its traffic."""
