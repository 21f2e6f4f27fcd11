"""Requests for nodes before the replicas of a pre-warm window: objects for which autoscalers of nodes create some."""
