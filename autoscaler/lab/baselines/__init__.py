"""Scaling rules of other projects, each with its documented formula and timing.

`docs/reference/baselines.md` lists formulas, sources, and the defects that were fixed to be fair.
"""

from collections.abc import Mapping

from autoscaler.lab.baselines.base import Axis, Baseline, Params
from autoscaler.lab.baselines.default_rules import HPA_INFLIGHT, KEDA_QUEUE, KEDA_RPS, KNATIVE_KPA
from autoscaler.lab.baselines.llmd import LLMD_SLO
from autoscaler.lab.baselines.static import STATIC

BASELINES: Mapping[str, Baseline] = {
    baseline.name: baseline
    for baseline in (
        KEDA_QUEUE,
        KEDA_RPS,
        HPA_INFLIGHT,
        KNATIVE_KPA,
        LLMD_SLO,
        STATIC,
    )
}

__all__ = ["BASELINES", "Axis", "Baseline", "Params"]
