"""Weights of models on a node's local disk: fetched once, verified, and shared by all pods of the node."""
