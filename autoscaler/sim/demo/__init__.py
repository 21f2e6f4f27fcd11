"""The demo: a simulated cluster whose replicas serve real metrics over HTTP."""
