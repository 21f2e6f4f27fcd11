"""Variants of a service: workloads that serve the same model behind one router."""

from __future__ import annotations

from dataclasses import dataclass

from autoscaler.core.table.columns import FloatColumn, IntColumn


@dataclass(frozen=True)
class Variants:
    """Which workloads serve together, and what one replica of each costs."""

    service: IntColumn  # int64[W], equal for the variants of one service; -1: the workload has no other variant
    cost: FloatColumn  # float64[W], of one replica, in any currency per hour; NaN: unknown, such a variant grows last
