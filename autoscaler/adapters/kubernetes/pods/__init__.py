"""Pods and pod templates: state, devices, and the engine that a container starts."""
