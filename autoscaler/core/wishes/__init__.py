"""Which nodes should hold the weights of which models. Pure; outside of the tick, which never waits for it."""
