"""The world of the demo: a cluster whose replicas serve real metrics over HTTP. It knows no study."""
