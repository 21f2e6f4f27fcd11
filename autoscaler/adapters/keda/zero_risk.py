"""Finds workloads that KEDA may scale to zero although their policies never do."""

from __future__ import annotations

import numpy as np

from autoscaler.core.model.fleet import HpaLimits
from autoscaler.core.model.spec import Spec

ZERO_RISK = (
    "KEDA goes to zero if it takes a call that hangs or fails for an idle workload, though the policy never does"
)
ALLOWED = "minReplicaCount: 1 in the ScaledObject, or scaleToZero.enabled: true"


def find_zero_risks(limits: HpaLimits | None, spec: Spec) -> dict[int, str]:
    """Return a problem by row, for workloads that KEDA alone may scale to zero. limits: None without KEDA."""
    if limits is None or limits.delays is None:
        return {}
    never = np.isnan(spec.idle_after_s) & ~np.isnan(spec.max_input_age_s)  # without a valid policy nothing is decided
    at_risk = np.isfinite(limits.delays.zero_s) & never
    return dict.fromkeys(np.flatnonzero(at_risk).tolist(), f"{ZERO_RISK}; allowed: {ALLOWED}")
