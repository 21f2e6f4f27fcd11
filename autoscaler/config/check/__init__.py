"""Checks of files before they are applied: policies, manifests of workloads, ScaledObjects, triggers."""
