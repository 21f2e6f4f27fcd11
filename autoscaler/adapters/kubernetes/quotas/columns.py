"""Quotas of one kind of source as columns, and how much of each is used by pods of no managed workload."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np

from autoscaler.adapters.kubernetes.pods.needs import Needs
from autoscaler.config.findings import shown
from autoscaler.config.quantities import Quantity, read_quantity
from autoscaler.core.model.quotas import Allowance, Quota, Quotas
from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn

Source = TypeVar("Source", bound=Hashable)
MAX_DEVICES = 10_000_000  # of one quota; no cluster has this many
SETTLE_S = 10.0
"""Use by others that has grown is believed after this time. The report of a source and the pods come by two watches. So
a managed pod that was just created or deleted could count as one of others for a moment."""


class Applicant(NamedTuple):
    """A managed workload, as far as quotas depend on it."""

    namespace: str
    resource: str  # "": no devices, or of several resources
    needs: Needs
    labels: Mapping[str, str]
    priority_class: str


class QuotaRow(NamedTuple):
    """One quota."""

    quota: Quota
    nominal: float
    borrowing_limit: float = 0.0
    lending_limit: float = 0.0
    key: Hashable = None  # of its use, in the mapping of `Count`; None: only managed workloads count
    keeps: bool = False  # its nominal devices are those that pods of its tenants hold now


@dataclass(frozen=True)
class QuotaLayout:
    """The quotas of one kind of source, and which of them charge each workload."""

    rows: tuple[QuotaRow, ...]  # [Q]
    tenant: IntColumn  # int64[W]
    charged: BoolColumn  # bool[T, Q]


def lay_out(rows: Sequence[QuotaRow], charging: Sequence[Sequence[int]]) -> QuotaLayout | None:
    """Return the quotas that matter: those that charge a workload, or share a cohort with one. None: there are none.

    charging: places in `rows` of the quotas that charge each workload; (): none does.
    """
    tenants: dict[tuple[int, ...], int] = {}
    tenant = [tenants.setdefault(tuple(places), len(tenants)) if places else -1 for places in charging]
    if not tenants:
        return None
    direct = {place for places in tenants for place in places}
    shared = {share_of(rows[place].quota) for place in direct if rows[place].quota.cohort}
    kept = [place for place, row in enumerate(rows) if place in direct or share_of(row.quota) in shared]
    charged = np.zeros((len(tenants), len(kept)), dtype=bool)
    new_place = {place: number for number, place in enumerate(kept)}
    for places, number in tenants.items():
        charged[number, [new_place[place] for place in places]] = True
    return QuotaLayout(tuple(rows[place] for place in kept), np.array(tenant, dtype=np.int64), charged)


def allow(
    workloads: Sequence[Applicant], resource: str, chosen: Sequence[Source | None], left: Mapping[Source, float]
) -> Allowance:
    """Return what quotas leave of pods, CPU or memory. chosen: the quota of each workload; left: what each leaves."""
    place = {key: index for index, key in enumerate(left)}
    quota = np.array([-1 if key is None else place[key] for key in chosen], dtype=np.int64)
    each = np.array([_charge(workload.needs, resource) for workload in workloads])
    return Allowance(quota, each, np.array(list(left.values())))


def _charge(needs: Needs, resource: str) -> float:
    """Return what a replica is charged for; those of its pods without devices are not counted."""
    pods = math.ceil(needs.total / needs.largest - 1e-9) if needs.total > needs.largest > 0 else 1
    return pods * {"pods": 1.0, "cpu": needs.cpu, "memory": needs.memory}[resource]


def share_of(quota: Quota) -> tuple[str, str, str]:
    return quota.cohort, quota.resource, quota.flavor


def count_ours(layout: QuotaLayout, held: FloatColumn, used: FloatColumn) -> FloatColumn:
    """Return how much of each quota the pods of managed workloads use, float64[Q].

    held: float64[W], devices of the pods of each workload. used: float64[Q], as the source reports. No source says by
    which of several flavors a pod is charged. So tenants with the fewest flavors come first, and each takes reported
    use of its flavors in their order.
    """
    charged = layout.tenant >= 0
    of_tenant = np.bincount(layout.tenant[charged], held[charged], len(layout.charged)).astype(np.float64)
    choices = layout.charged.sum(axis=1)
    single = choices == 1
    found: FloatColumn = of_tenant[single] @ layout.charged[single]
    for tenant in sorted(np.flatnonzero(~single).tolist(), key=lambda tenant: int(choices[tenant])):
        left = float(of_tenant[tenant])
        for place in np.flatnonzero(layout.charged[tenant]).tolist():
            taken = min(left, max(float(used[place] - found[place]), 0.0))
            found[place] += taken
            left -= taken
    return found


class Count:
    """Fills in the devices that pods of no managed workload use, as of each tick."""

    def __init__(self) -> None:
        self._layout: QuotaLayout | None = None
        self._believed, self._lowest, self._since_s = np.empty(0), np.empty(0), np.empty(0)

    def quotas(self, layout: QuotaLayout, held: FloatColumn, used: Mapping[Hashable, float], now_s: float) -> Quotas:
        """Return the quotas. used: devices that all pods use, by key; absent: unknown, which counts as 0."""
        reported = np.array([used.get(row.key, 0.0) for row in layout.rows])
        by_ours = count_ours(layout, held, reported)
        nominal = np.array([row.nominal for row in layout.rows])
        keeps = np.array([row.keeps for row in layout.rows])
        return Quotas(
            quotas=tuple(row.quota for row in layout.rows),
            nominal=np.where(keeps, by_ours, nominal),
            borrowing_limit=np.array([row.borrowing_limit for row in layout.rows]),
            lending_limit=np.array([row.lending_limit for row in layout.rows]),
            used_by_others=self._settle(layout, np.maximum(reported - by_ours, 0.0), now_s),
            tenant=layout.tenant,
            charged=layout.charged,
            used=by_ours,
        )

    def _settle(self, layout: QuotaLayout, others: FloatColumn, now_s: float) -> FloatColumn:
        """Return the devices of others: the least reading since they grew, until `SETTLE_S` have passed."""
        if self._layout is not layout:
            known = {row.quota: place for place, row in enumerate(self._layout.rows)} if self._layout else {}
            places = [known.get(row.quota, -1) for row in layout.rows]
            is_known = np.array(places, dtype=np.int64) >= 0
            for name, fresh in (("_believed", others), ("_lowest", others), ("_since_s", np.full(len(others), np.nan))):
                before = np.append(getattr(self, name), np.nan)[places]
                setattr(self, name, np.where(is_known, before, fresh))
            self._layout = layout
        grown = others > self._believed
        begins = grown & np.isnan(self._since_s)
        self._since_s = np.where(grown, np.where(begins, now_s, self._since_s), np.nan)
        self._lowest = np.where(grown & ~begins, np.minimum(self._lowest, others), others)
        settled = grown & (now_s - self._since_s >= SETTLE_S)
        self._believed = np.where(settled, self._lowest, np.minimum(others, self._believed))
        self._since_s = np.where(settled, np.nan, self._since_s)
        return self._believed


def read_amount(stated: Quantity | None, absent: float, invalid: float) -> tuple[float, str]:
    """Parse devices of a quota. Return them, and what is wrong with them.

    More than `MAX_DEVICES` are no limit, so infinity.
    """
    if stated is None:
        return absent, ""
    text = str(stated)
    amount = read_quantity(text) if len(text) <= 64 else math.nan
    if amount > MAX_DEVICES:
        return math.inf, f"{shown(text)} devices are no limit; allowed: up to {MAX_DEVICES:,}"
    if not amount.is_integer() or amount < 0:
        return invalid, f"{shown(text)} is no number of devices; allowed: a whole number up to {MAX_DEVICES:,}"
    return amount, ""
