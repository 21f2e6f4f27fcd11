"""Scale targets: Deployments, StatefulSets and LeaderWorkerSets, and the owners of pods."""
