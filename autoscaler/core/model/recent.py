"""The past that a backend knows: readings of the last hours as ticks would have had them, and tokens of a week."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autoscaler.core.table.columns import FloatColumn, IntColumn


@dataclass(frozen=True)
class RecentReadings:
    """Readings at T times of P pods that existed at some of them. Workloads and pods are rows of a fleet."""

    time_s: FloatColumn  # float64[T], ascending, on the clock of the tick
    pod_workload: IntColumn  # int64[P], row of the workload
    pod: IntColumn  # int64[P], row of the pod in the fleet; -1: it no longer exists
    columns: Mapping[str, FloatColumn]  # float64[T, P], by column of `PodSamples`, or `PROCESS_START`; NaN: unknown
    problem: str = ""  # why the readings are incomplete, in words; "": they are complete


@dataclass(frozen=True)
class PastTokens:
    """Tokens of each workload of a fleet in T even steps, the last step first; float64[T, W], NaN: unknown."""

    until_wall_s: float  # Unix time, end of the last step
    prompt: FloatColumn  # prompt tokens that the engines computed
    generated: FloatColumn
    problem: str = ""  # why they are incomplete, in words; "": they are complete
