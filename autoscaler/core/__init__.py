"""The decision, pure: columns in, columns out. No I/O, no clock, no log, no randomness, no Kubernetes."""
