"""One metric that a process exports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from autoscaler.core.table.columns import BoolColumn, FloatColumn
from autoscaler.ports import TickRecord

Column = Callable[[TickRecord], FloatColumn | BoolColumn]
PREFIX = "vllm_autoscaler_"
WORKLOAD_LABELS = ("namespace", "workload", "kind")
POOL_LABELS = ("resource", "product", "nodes")


@dataclass(frozen=True)
class Family:
    """One metric. `column` returns its values if it has one value per workload and no further labels."""

    name: str  # without PREFIX
    type: Literal["gauge", "counter", "histogram"]
    meaning: str
    labels: tuple[str, ...] = ()
    column: Column | None = None

    @property
    def full_name(self) -> str:
        return PREFIX + self.name
