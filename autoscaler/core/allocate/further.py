"""Replicas beyond those that are decided, for which something is requested ahead: nodes, weights.

Nobody has asked for their pods yet, so no API server and no queue has refused them. What is requested for them counts
against the quotas of their workloads all the same, together with all that is decided.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from autoscaler.core.model.fleet import Fleet
from autoscaler.core.model.spec import Spec
from autoscaler.core.supply.placement import Placement
from autoscaler.core.supply.placing import Limit, take
from autoscaler.core.supply.tenants import TenantLimit, fit_replicas, place_tenants
from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn, or_zero


class Further(NamedTuple):
    """Further replicas, in the order in which they get places; every field [R]."""

    row: IntColumn  # int64[R], workload
    number: IntColumn  # int64[R], further replicas of the workload before it

    @classmethod
    def of(cls, wanted: FloatColumn, due_s: FloatColumn, spec: Spec) -> Further:
        """List the replicas that needs want, the earliest first, and then those of the highest priority.

        wanted, due_s: float64[W, K]. A workload needs each replica once, for its first need that wants this many.
        """
        most = wanted.max(axis=1, initial=0.0).astype(np.int64)
        row = np.repeat(np.arange(len(wanted)), most)
        number = np.arange(len(row)) - np.repeat(np.cumsum(most) - most, most)
        due = np.where(wanted[row] > number[:, None], due_s[row], np.inf).min(axis=1, initial=np.inf)
        order = np.lexsort((number, row, -or_zero(spec.priority)[row], due))
        return cls(row[order], number[order])

    def keep(self, kept: BoolColumn) -> Further:
        """Return some of them. kept: bool[R]."""
        return Further(self.row[kept], self.number[kept])


def admit(fleet: Fleet, decided: FloatColumn, replicas: Further) -> Further:
    """Return the replicas within the quotas, in addition to those that are decided. decided: float64[W]."""
    limits, row = _limits(fleet, decided), replicas.row
    if not limits or not len(row):
        return replicas
    return replicas.keep(take([Limit(limit.row[row], each[row], limit.placement) for limit, each in limits]))


def limit_by_quotas(fleet: Fleet, spec: Spec, decided: FloatColumn, wanted: FloatColumn) -> FloatColumn:
    """Return as many of the wanted replicas as quotas allow, those of the highest priority first; float64[W].

    decided: float64[W], replicas that count before all others, and stay even beyond a quota.
    wanted: float64[W]. Unknown numbers (NaN) and workloads without a quota are left as they are.
    """
    limits = _limits(fleet, decided)
    if not limits:
        return wanted
    fits = np.fmin.reduce([fit_replicas([limit], each) for limit, each in limits])
    more = np.ceil(np.fmax(or_zero(wanted) - decided, 0.0))
    asked = np.where(np.isfinite(fits), np.fmin(more, fits), 0.0)
    admitted = admit(fleet, decided, Further.of(asked[:, None], np.zeros((len(asked), 1)), spec))
    count = np.bincount(admitted.row, minlength=len(asked))
    return np.where(np.isfinite(fits), np.fmin(wanted, decided + count), wanted)


def _limits(fleet: Fleet, decided: FloatColumn) -> list[tuple[TenantLimit, FloatColumn]]:
    """Return what quotas leave after the decided replicas, and what each charges for a replica; float64[W].

    GPUs that are unknown count as 0, so that no quota limits their workload.
    """
    if not fleet.quotas and not fleet.allowances:
        return []
    gpus = np.where(np.isfinite(fleet.gpus_per_replica), np.fmax(fleet.gpus_per_replica, 0.0), 0.0)
    decided = np.fmax(or_zero(decided), 0.0)
    limits = [(limit.copy_with(decided * gpus)[0], gpus) for limit in place_tenants(fleet.quotas)]
    coming = np.fmax(decided - np.bincount(fleet.pod_workload, minlength=len(decided)), 0.0)
    for quota, each, left in fleet.allowances:
        placement = Placement(np.fmax(left, 0.0)[None], [[place] for place in range(len(left))])
        limit = TenantLimit(quota, placement)
        limits.append((limit.copy_with(coming * each)[0], each))
    return limits
