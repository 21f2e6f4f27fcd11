"""Scale targets: the kinds that are served, their objects, and the owners of pods."""
