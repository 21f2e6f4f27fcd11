"""Kubernetes: the fleet from list+watch, the scale subresource, events and the leader's lease.

Nothing outside this folder knows of API objects; what leaves it are the types of `core.fleet` and `ports`.
"""
