"""The quotas of one workload in words: how many GPUs they allow, what is borrowed, and what goes back to whom."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from autoscaler.core.explain.claims import NOTHING, Words, tell
from autoscaler.core.explain.format import Told, listed, number, seconds
from autoscaler.core.explain.row import TickRow
from autoscaler.core.model.quotas import Quotas
from autoscaler.core.model.types import Stage
from autoscaler.core.observe.pending import has_full_quota
from autoscaler.core.supply.tenants import find_tenants, place_tenants
from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn, or_zero

MOST_NAMED = 4
"""The sentence names at most this many quotas."""


class _Use(NamedTuple):
    """The quotas of the workload's tenant, of one kind, and what they are charged for."""

    quotas: Quotas
    own: IntColumn  # rows of the tenant's quotas
    now: float  # GPUs that tenants of these quotas use now; NaN: unknown
    decided: float  # likewise after the decision

    @property
    def nominal(self) -> float:
        return float(np.fmax(self.quotas.nominal[self.own], 0.0).sum())

    @property
    def others(self) -> float:
        return float(or_zero(np.fmax(self.quotas.used_by_others[self.own], 0.0)).sum())

    @property
    def borrowed(self) -> float:
        return float(np.maximum(self.decided + self.others - self.nominal, 0.0))

    @property
    def given_back(self) -> float:
        return float(np.maximum(self.now + self.others - self.nominal, 0.0)) - self.borrowed

    @property
    def cohorts(self) -> list[str]:
        return list(dict.fromkeys(self.quotas.quotas[quota].cohort for quota in self.own.tolist()))


class QuotaLimit(NamedTuple):
    """A quota that has no GPUs for one more replica, in words."""

    name: Words
    why: Words  # what is not lent, and what goes back to whom; nothing, or with a comma in front


def limit(row: TickRow) -> QuotaLimit | None:
    """Name the quota that has no GPUs for one more replica; None if there is none."""
    fleet = row.inp.fleet
    gpus = _gpus(row, count_allocated(row))
    one_more = np.where(np.arange(len(gpus)) == row.row, _gpus(row, np.ones(len(gpus))), 0.0)
    for quotas in fleet.quotas:
        for kind, each in enumerate(place_tenants((quotas,))):
            if each.copy_with(gpus)[0].copy_with(one_more)[1][row.row]:
                return _limit(row, quotas, kind > 0)
    return None


def _limit(row: TickRow, quotas: Quotas, by_borrowing: bool) -> QuotaLimit:
    use = _use(row, quotas)
    resource = quotas.quotas[use.own[0]].resource
    cohorts = listed([f"cohort {name}" for name in use.cohorts if name])
    lent = tell(" with {borrowed_gpus} borrowed from {lender}", borrowed_gpus=number(use.borrowed), lender=cohorts)
    others = tell(", {others_gpus} of them for pods of others", others_gpus=number(use.others))
    why = tell(", {full_cohort} lends no more", full_cohort=cohorts) if cohorts else NOTHING
    if by_borrowing:
        most = float(np.fmax(quotas.borrowing_limit[use.own], 0.0).sum())
        why = tell(", no more than {borrowing_limit} may be borrowed", borrowing_limit=number(most))
    takers = _sources(quotas, _grows(row, quotas, use.own)) if use.given_back > 0 else ""
    if takers:
        why += tell(", {given_back_gpus} go back to {takers}", given_back_gpus=number(use.given_back), takers=takers)
    name = tell(
        "the quota of {nominal_gpus} {resource} ({quota}{others}){borrowed}",
        nominal_gpus=number(use.nominal),
        resource=resource,
        quota=_sources(quotas, use.own),
        others=others if use.others > 0 else NOTHING,
        borrowed=lent if cohorts and use.borrowed > 0 else NOTHING,
    )
    return QuotaLimit(name, why)


def count_allocated(row: TickRow) -> FloatColumn:
    """Return the replicas that pools and quotas allocate, before the sides of a pair are cut together; float64[W]."""
    stages = row.decision.stages
    is_cut = stages[Stage.PARTNER] < stages[Stage.ALLOCATION]
    return np.asarray(np.where(is_cut, stages[Stage.ALLOCATION], stages[Stage.OWNER]))


def comes_back(row: TickRow) -> Words:
    """Word which GPUs come back while replicas wait for their quota, and until when; nothing if none waits."""
    fleet, observed = row.inp.fleet, row.decision.observation
    waiting = np.fmax(or_zero(row.decision.replicas) - observed.ready - observed.asleep - observed.starting, 0.0)
    waiting = np.where(np.arange(len(waiting)) == row.row, waiting, 0.0)
    if not has_full_quota(fleet, waiting > 0)[row.row]:
        return NOTHING
    leaving = observed.terminating + np.fmax(fleet.replicas - or_zero(row.decision.replicas), 0.0)
    needed = float(_gpus(row, waiting)[row.row])
    for quotas in fleet.quotas:
        lends = _of_cohort(quotas, row) & (leaving > 0) & (np.arange(len(leaving)) != row.row)
        gpus = float(_gpus(row, leaving)[lends].sum())
        if not gpus > 0:
            continue
        sources = _sources(quotas, np.flatnonzero(quotas.charged[find_tenants(quotas)[lends]].any(axis=0)))
        drain_s = float(fleet.drain_s[lends].max()) if fleet.drain_s is not None else math.nan
        return tell(
            "{returning_gpus} GPUs come back from {lenders}{until} as replicas there drain",
            returning_gpus=number(min(gpus, needed)),
            lenders=sources,
            until=tell(" within {drain_s}", drain_s=seconds(drain_s)) if drain_s > 0 else NOTHING,
        )
    return NOTHING


def not_limited(row: TickRow) -> str:
    """Word that quotas do not limit the workload, because the GPUs of a replica are unknown; "" if they are known."""
    if not math.isnan(row.inp.fleet.gpus_per_replica[row.row]):
        return ""
    sources = [
        _sources(quotas, np.flatnonzero(quotas.charged[tenant]))
        for quotas in row.inp.fleet.quotas
        if (tenant := find_tenants(quotas)[row.row]) >= 0
    ]
    return f"{listed(sources)} cannot limit it, because the GPUs of a replica are unknown" if sources else ""


def _use(row: TickRow, quotas: Quotas) -> _Use:
    tenant = find_tenants(quotas)
    own = quotas.charged[tenant[row.row]]
    linked = quotas.charged[:, own].any(axis=1)
    if quotas.charged[linked][:, ~own].any():  # they may use other quotas instead
        return _Use(quotas, np.flatnonzero(own), math.nan, math.nan)
    counts = (row.inp.fleet.replicas, row.decision.stages[Stage.OWNER])
    now, decided = (float(_gpus(row, replicas)[np.append(linked, False)[tenant]].sum()) for replicas in counts)
    return _Use(quotas, np.flatnonzero(own), now, decided)


def _grows(row: TickRow, quotas: Quotas, own: IntColumn) -> IntColumn:
    """Return the other quotas of the cohort whose tenants get more GPUs than they have now."""
    more = _gpus(row, row.decision.stages[Stage.OWNER]) - _gpus(row, row.inp.fleet.replicas)
    more = np.where(_of_cohort(quotas, row), more, 0.0)
    by_tenant = np.bincount(find_tenants(quotas) + 1, more, 1 + len(quotas.charged))[1:]
    grows = quotas.charged[by_tenant > 0].any(axis=0)
    return np.array([quota for quota in np.flatnonzero(grows).tolist() if quota not in own], dtype=np.int64)


def _of_cohort(quotas: Quotas, row: TickRow) -> BoolColumn:
    """Return the workloads whose quotas are those of this one, or in a cohort with one of them; bool[W]."""
    tenant = find_tenants(quotas)
    if tenant[row.row] < 0:
        return np.zeros(len(tenant), dtype=bool)
    own = np.flatnonzero(quotas.charged[tenant[row.row]]).tolist()
    pools = {quotas.quotas[quota][1:] for quota in own if quotas.quotas[quota].cohort}
    linked = [number in own or quota[1:] in pools for number, quota in enumerate(quotas.quotas)]
    return np.append(quotas.charged[:, linked].any(axis=1), False)[tenant]


def _gpus(row: TickRow, replicas: FloatColumn) -> FloatColumn:
    """Return the GPUs of this many replicas, float64[W]; 0 where unknown."""
    each = row.inp.fleet.gpus_per_replica
    return or_zero(replicas) * np.where(np.isfinite(each), each, 0.0)


def _sources(quotas: Quotas, rows: IntColumn) -> Told:
    named = [quotas.quotas[index] for index in rows[:MOST_NAMED].tolist()]
    return listed([f"{quota.source} {quota.flavor}".rstrip() for quota in named], len(rows))
