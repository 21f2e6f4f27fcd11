"""Checks of other people's workloads and autoscalers, before they hurt: pure functions of objects and of answers."""
