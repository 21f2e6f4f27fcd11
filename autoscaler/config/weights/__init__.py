"""Documents about weights: the daemon and the agents of nodes exchange them through the API server."""
