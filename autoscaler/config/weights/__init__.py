"""What the daemon and the agents of nodes say to each other about weights, through the API server."""
