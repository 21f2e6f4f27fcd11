"""One package per outside system. Adapters implement the ports and do not know each other."""
