"""The clairvoyant bound: replica-seconds below which nobody meets the goal of a case, whatever they know.

The larger of two: `fluid` holds for every router and scheduler but knows no neighbours, `served` for the case's own
router, whose requests disturb each other.
"""

from __future__ import annotations

from dataclasses import dataclass

from autoscaler.sim.proof.fluid import fluid
from autoscaler.sim.proof.served import served
from autoscaler.sim.study.case import Case


@dataclass(frozen=True)
class Bound:
    """No schedule of replicas that meets the goal costs less than `replica_s`, where starts take their mean time."""

    replica_s: float
    gpu_hours: float


def bound(case: Case) -> Bound:
    """Compute the bound. Requests that nobody can serve in time are taken as missed, and count as allowed misses."""
    replica_s = max(fluid(case).replica_s, served(case))
    return Bound(replica_s, replica_s * case.gpus_per_replica / 3600)
