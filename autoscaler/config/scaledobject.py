"""What a ScaledObject may hold where the daemon looks: it and `check` read the same by these names and kinds."""

from __future__ import annotations

from autoscaler.config.values import Quantity, Whole

PUSH, POLL = "external-push", "external"  # types of a trigger that may be ours
POLICY = "policy"  # key of the metadata of our trigger
DEFAULT_MIN, DEFAULT_MAX = 0, 100  # as KEDA reads counts that are absent
LEAST, MOST = Whole(0, 100_000), Whole(1, 100_000)  # an HPA has a maximum of 1 at least
TOLERANCE = Quantity(10)
