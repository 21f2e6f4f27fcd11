"""The accelerators of the cluster by node group: what there is, and what fits where."""
