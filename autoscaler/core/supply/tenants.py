"""Place the GPUs that tenants request within their quotas: a maximum flow from tenants to what each may use.

Two placements limit the tenants of one kind of source, and a replica needs a place in both:

* Within the cohort: a tenant uses what its quotas do not lend, and what all quotas of their cohorts lend together.
* Within the borrowing limits: a tenant uses the nominal GPUs of its quotas and what these may borrow.

A tenant with several quotas may have its place with one of them here and with another there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from autoscaler.core.model.quotas import Quotas
from autoscaler.core.supply.placement import ROUNDING_GPUS, Placement
from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn


class TenantLimit(NamedTuple):
    """A placement of tenants, in which pods of no managed workload already have their GPUs."""

    row: IntColumn  # int64[W], of each workload's tenant in the placement; -1: this does not limit it
    placement: Placement

    def sum_gpus(self, gpus: FloatColumn) -> FloatColumn:
        """Return the GPUs by row of the placement. gpus: float64[W]."""
        return np.bincount(self.row + 1, gpus, 1 + self.placement.pools)[1:].astype(np.float64)

    def copy_with(self, gpus: FloatColumn) -> tuple[TenantLimit, BoolColumn]:
        """Return a copy in which these GPUs have their places, and the workloads of tenants that are short then.

        gpus: float64[W]. Returns bool[W].
        """
        placement = self.placement.copy()
        short = placement.place(self.sum_gpus(gpus))
        return self._replace(placement=placement), np.append(short, False)[self.row]

    def free(self) -> FloatColumn:
        """Return the GPUs that are free for the tenant of each workload, float64[W]; infinity: it is not limited."""
        tenants = range(1 + int(self.row.max(initial=-1)))
        return np.array([*(self.placement.free(tenant) for tenant in tenants), np.inf])[self.row]


class Nominal(NamedTuple):
    """The nominal GPUs that some workloads have together."""

    owner: IntColumn  # int64[W], of each workload; -1: none
    gpus: FloatColumn  # float64[O], of each owner, without those that pods of no managed workload use


def place_tenants(kinds: Sequence[Quotas]) -> tuple[TenantLimit, ...]:
    """Return what limits the tenants of each kind, where pods of no managed workload have their GPUs already.

    A nominal quota that is unknown (NaN) or infinite limits nothing. Limits of borrowing and lending that are unknown
    do not limit either. Negative GPUs count as 0, and so does an unknown use by others.
    """
    return tuple(limit for quotas in kinds for limit in _place_kind(quotas))


def _place_kind(quotas: Quotas) -> list[TenantLimit]:
    known = _Known.of(quotas)
    count = len(quotas.quotas)
    lent: dict[tuple[str, str, str], float] = {}
    for key, gpus in zip(known.cohort, known.lending.tolist(), strict=True):
        if key is not None:
            lent[key] = lent.get(key, 0.0) + gpus
    bucket = {key: count + place for place, key in enumerate(lent)}
    shares = [[quota] if key is None else [quota, bucket[key]] for quota, key in enumerate(known.cohort)]
    limits = [_limit(quotas, known, [*known.kept.tolist(), *lent.values()], shares)]
    if np.isfinite(known.borrowing[known.in_cohort]).any():
        most = known.nominal + known.borrowing
        limits.append(_limit(quotas, known, most.tolist(), [[quota] for quota in range(count)]))
    return limits


def fit_replicas(limits: Sequence[TenantLimit], gpus_each: FloatColumn) -> FloatColumn:
    """Return for how many more replicas of each workload there are GPUs within the limits; float64[W].

    Infinity: nothing limits it, or the GPUs of its replicas are unknown.
    """
    known = (gpus_each > 0) & np.isfinite(gpus_each)
    free = np.fmin.reduce([limit.free() for limit in limits], axis=0, initial=np.inf)
    return np.where(known, np.floor(free / np.where(known, gpus_each, 1.0) + ROUNDING_GPUS), np.inf)


def find_tenants(quotas: Quotas) -> IntColumn:
    """Return the tenant of each workload, int64[W]; -1: no quota charges it."""
    known = (quotas.tenant >= 0) & (quotas.tenant < len(quotas.charged))
    tenant = np.where(known, quotas.tenant, -1)
    return np.where(np.append(quotas.charged.any(axis=1), False)[tenant], tenant, -1)


def nominal_gpus(quotas: Quotas) -> tuple[Nominal, ...]:
    """Return the nominal GPUs of each tenant, and those of tenants that share quotas.

    A replica is within the nominal GPUs if it is by all of these.
    """
    known = _Known.of(quotas)
    own = np.fmax(known.nominal - known.used_by_others, 0.0)
    tenant, quota = np.nonzero(quotas.charged)
    count, of_workload = len(quotas.charged), find_tenants(quotas)
    tenants = Nominal(of_workload, np.bincount(tenant, own[quota], count).astype(np.float64))
    owner, owner_of_quota = _link(quotas.charged)
    if (owner == np.arange(count)).all():
        return (tenants,)
    charged = np.flatnonzero(owner_of_quota < count)
    together = np.bincount(owner_of_quota[charged], own[charged], count).astype(np.float64)
    return tenants, Nominal(np.append(owner, -1)[of_workload], together)


class _Known(NamedTuple):
    """The amounts of each quota, without those that are unknown or negative; float64[Q]."""

    nominal: FloatColumn
    kept: FloatColumn  # nominal GPUs that are not lent
    lending: FloatColumn
    borrowing: FloatColumn
    used_by_others: FloatColumn
    cohort: list[tuple[str, str, str] | None]  # cohort, resource, flavor
    in_cohort: BoolColumn

    @classmethod
    def of(cls, quotas: Quotas) -> _Known:
        in_cohort = np.array([bool(quota.cohort) for quota in quotas.quotas], dtype=bool)
        nominal, borrowing, lending = (
            np.where(np.isnan(gpus), np.inf, np.fmax(gpus, 0.0))
            for gpus in (quotas.nominal, quotas.borrowing_limit, quotas.lending_limit)
        )
        lending = np.where(in_cohort, np.fmin(lending, nominal), 0.0)
        return cls(
            nominal=nominal,
            kept=np.subtract(nominal, lending, out=np.full(len(nominal), np.inf), where=np.isfinite(nominal)),
            lending=lending,
            borrowing=np.where(in_cohort, borrowing, 0.0),
            used_by_others=np.where(np.isfinite(quotas.used_by_others), np.fmax(quotas.used_by_others, 0.0), 0.0),
            cohort=[(q.cohort, q.resource, q.flavor) if q.cohort else None for q in quotas.quotas],
            in_cohort=in_cohort,
        )


def _limit(quotas: Quotas, known: _Known, buckets: Sequence[float], of_quota: Sequence[Sequence[int]]) -> TenantLimit:
    """Return a limit by GPUs in buckets. of_quota: the buckets that each quota opens to its tenants."""
    limited = [math.isfinite(gpus) for gpus in buckets]
    opened_to: list[set[int]] = [set() for _ in quotas.charged]
    for tenant, quota in np.argwhere(quotas.charged).tolist():
        opened_to[tenant].update(of_quota[quota])
    of_tenant = [sorted(opened) for opened in opened_to]
    is_limited = [bool(opened) and all(limited[bucket] for bucket in opened) for opened in of_tenant]
    used = np.flatnonzero(known.used_by_others)
    opened_to_others = [of_quota[quota] for quota in used.tolist()]
    of_others = [opened if all(limited[bucket] for bucket in opened) else [] for opened in opened_to_others]
    placement = Placement(np.where(limited, buckets, 0.0)[None], [*of_tenant, *of_others])
    placement.place(np.concatenate([np.zeros(len(of_tenant)), known.used_by_others[used]]))
    of_workload = find_tenants(quotas)
    return TenantLimit(np.where(np.array([*is_limited, False])[of_workload], of_workload, -1), placement)


def _link(charged: BoolColumn) -> tuple[IntColumn, IntColumn]:
    """Return for each tenant and each quota the first tenant with which quotas link it; int64[T] and int64[Q].

    A quota that no tenant has gets the number of tenants.
    """
    tenant, quota = np.nonzero(charged)
    owner = np.arange(len(charged))
    while True:
        of_quota, linked = np.full(charged.shape[1], len(owner)), owner.copy()
        np.minimum.at(of_quota, quota, owner[tenant])
        np.minimum.at(linked, tenant, of_quota[quota])
        if (linked == owner).all():
            return owner, of_quota
        owner = linked
