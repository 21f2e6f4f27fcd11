"""Kubernetes: the fleet from list and watch, the scale subresource, Events and leader election.

`app` wires the parts `fleet`, `scale`, `events` and `leader_election`. Only this package knows API objects; its callers
see the types of `core.model` and `ports`.
"""
