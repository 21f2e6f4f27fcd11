"""Starts of replicas: which begin and end, how long each phase takes, and what is expected of the next one."""
