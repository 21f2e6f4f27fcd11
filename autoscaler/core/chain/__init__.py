"""The chain of pre-warming: node, weights, replica, each started by its own lead before a window begins."""
