"""The API server as the agent of a node needs it: wishes and pods of its node, and the agents of other nodes."""
