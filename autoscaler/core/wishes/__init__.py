"""Which nodes should hold the weights of which models. Pure; beside the tick, which never waits for it."""
