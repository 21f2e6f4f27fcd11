"""What was measured lately of some workloads: readings at even steps up to now, as ticks would have had them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autoscaler.core.table.columns import FloatColumn, IntColumn


@dataclass(frozen=True)
class Recent:
    """Readings of T moments, of P pods that were there at some of them. Rows of workloads and pods are a fleet's."""

    time_s: FloatColumn  # float64[T], ascending, on the clock of the tick
    pod_workload: IntColumn  # int64[P], row of the workload
    pod: IntColumn  # int64[P], row of the pod in the fleet; -1: it is gone
    columns: Mapping[
        str, FloatColumn
    ]  # float64[T, P], by column of `PodSamples`, or `PROCESS_START`; NaN: unknown then
    problem: str = ""  # why no more was read, in words; "": all was that was to be
