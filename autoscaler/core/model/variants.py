"""Variants of a service: workloads that serve the same model behind one router."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from autoscaler.core.model.fleet import Workload, last_part
from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn


@dataclass(frozen=True)
class Variants:
    """Which workloads serve together, and what one replica of each costs."""

    service: IntColumn  # int64[W], equal for the variants of one service; -1: the workload has no other variant
    cost: FloatColumn  # float64[W], of one replica, in any currency per hour; NaN: unknown, such a variant grows last
    may_be_spot: BoolColumn | None = None  # bool[W], its nodes may be taken away at any time; None: none of them
    why: tuple[str, ...] = ()  # [W], why the cost is unknown or may be too high; "": it is known, (): it is for all

    @classmethod
    def none(cls, rows: int) -> Variants:
        """Return workloads of which none is a variant, or has a price."""
        return cls(np.full(rows, -1), np.full(rows, np.nan), why=("no prices are read",) * rows)

    def reasons(self) -> tuple[str, ...]:
        """Return `why` of each workload."""
        return self.why or ("",) * len(self.cost)


def models_of_services(workloads: Iterable[Workload]) -> dict[tuple[str, str], dict[str, str]]:
    """Return the known models of each service, by the namespace and name of the service. Sides of pairs are left out.

    A model is found by its name without path and case, and has the first spelling that was read.
    """
    models: dict[tuple[str, str], dict[str, str]] = {}
    for each in workloads:
        if each.service and not each.role:
            known = models.setdefault((each.ref.namespace, each.service), {})
            if each.model:
                known.setdefault(last_part(each.model), each.model)
    return models


def service_of(workload: Workload, models: dict[tuple[str, str], dict[str, str]]) -> tuple[str, str, str] | None:
    """Return a key that the variants of one service have in common; None: the workload is no variant.

    If a service names several models, only variants of one model take over load from each other. The sides of a
    prefill and decode pair do different work, so neither takes over load from the other.
    """
    if not workload.service or workload.role:
        return None
    name = workload.ref.namespace, workload.service
    return *name, last_part(workload.model) if len(models[name]) > 1 else ""
