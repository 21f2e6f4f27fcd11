"""The live loop: when a tick happens, what it is made of, and what is told about it."""
