"""Files checked before they are applied: policies, manifests of workloads, ScaledObjects, triggers."""
