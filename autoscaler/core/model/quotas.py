"""Quotas of GPUs: how many of a resource each owner may use, and what owners lend to each other.

The words are Kueue's. An owner may use its nominal GPUs at any time. Owners of one cohort lend each other what they do
not use. Each lends up to its lending limit, and borrows up to its borrowing limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn


class Quota(NamedTuple):
    """The GPUs of one resource that one owner may use."""

    source: str  # what states it: "ClusterQueue/research", "ResourceQuota models/gpus", "quota research"
    resource: str  # "nvidia.com/gpu"
    flavor: str = ""  # name of the kind of nodes to which it applies; "": all nodes
    cohort: str = ""  # owners of one cohort lend each other GPUs of one resource and flavor; "": no cohort


class Allowance(NamedTuple):
    """What quotas leave of something else that pods are charged for: their number, CPU or memory.

    The API server refuses pods beyond them, so they bound only what is requested before there are pods.
    """

    quota: IntColumn  # int64[W], index into `left`; -1: none applies
    each: FloatColumn  # float64[W], of one replica
    left: FloatColumn  # float64[Q], beside all present pods


@dataclass(frozen=True)
class Quotas:
    """Quotas of one kind of source, or of one scope of ResourceQuotas. A replica must be within each such set.

    A tenant is a set of workloads that the same quotas charge. A replica of it is within one of these quotas.
    """

    quotas: tuple[Quota, ...]  # [Q]
    nominal: FloatColumn  # float64[Q], devices
    borrowing_limit: FloatColumn  # float64[Q], devices beyond the nominal ones; infinity: no limit; without cohort: 0
    lending_limit: FloatColumn  # float64[Q], at most this many of the nominal devices are lent; without cohort: 0
    used_by_others: FloatColumn  # float64[Q], devices charged for pods of no managed workload
    tenant: IntColumn  # int64[W], row of `charged`; -1: no quota applies
    charged: BoolColumn  # bool[T, Q], quotas of each tenant
    used: FloatColumn | None = None  # float64[Q], devices charged for pods of managed workloads; None: unknown
