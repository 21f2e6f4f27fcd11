"""Reads each tick: instant queries, and their series joined to the pods of the fleet."""
