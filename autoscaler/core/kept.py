"""What outlives a process: what was learned of each workload, and how it comes onto the rows and clock of another one.

Kept is what was learned over long, such as capacity, cold starts, lengths, and what became of
each rule on paper. What follows the present begins anew (`memory.PRESENT`,
`rules.RULES_PRESENT`, `zero.ZERO_PRESENT`). Pods are not kept:
their counters give a rate again with the second reading, and one over the pause would be no rate of now.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from autoscaler.core.columns import moments
from autoscaler.core.fleet import Fleet, Workload
from autoscaler.core.memory import PRESENT, Memory, WorkloadMemory, align
from autoscaler.core.rules import RULES_OF_FAMILY, RULES_PRESENT, Rules
from autoscaler.core.zero import ZERO_PRESENT, Zero

Key = tuple[str, str, str, str]  # namespace, kind, name, uid: an object made again under its name is another one
Column = npt.NDArray[np.floating[Any]]
Table = TypeVar("Table")

_PRESENT_OF: Mapping[type, frozenset[str]] = {
    WorkloadMemory: PRESENT,
    Rules: RULES_PRESENT,
    Zero: ZERO_PRESENT,
}

_OF_FAMILY = frozenset(f"rules.{name}" for name in ("family", *RULES_OF_FAMILY))


@dataclass(frozen=True)
class Kept:
    """What was learned of some workloads up to one moment. It knows no clock but the wall's."""

    workloads: tuple[Key, ...]  # [W]
    wall_s: float  # that moment, Unix time
    columns: Mapping[
        str, Column
    ]  # [..., W] by place in memory, "workloads.concurrency"; of a moment, its age in seconds


def key_of(workload: Workload) -> Key:
    """Return by what a workload is known again."""
    ref = workload.ref
    return ref.namespace, ref.kind, ref.name, workload.uid


def keep(memory: Memory, workloads: Sequence[Workload], now_s: float, wall_s: float) -> Kept:
    """Take what is to be kept out of memory.

    workloads: those of the tick that gave this memory. now_s, wall_s: its time, on both clocks.
    """
    columns = {
        place: now_s - column if is_moment else column
        for name, table in _tables(memory).items()
        for place, column, is_moment in _columns(name, table)
    }
    # Requests by load are many times as large as all else: what they missed is kept as it is judged now.
    columns["rules.queued"] = columns["rules.missed"]
    return Kept(tuple(map(key_of, workloads)), wall_s, columns)


def blank() -> Mapping[str, Column]:
    """Return every column that is kept, of no workload: its shape but for the last axis, and its type."""
    return keep(Memory.empty(), (), 0.0, 0.0).columns


def recall(kept: Kept, memory: Memory, fleet: Fleet, now_s: float, wall_s: float) -> tuple[Memory, int]:
    """Lay what was kept over the memory of the workloads of `fleet` that are known again; also says how many those are.

    Columns that are not in `kept` stay as they are, and so does paper about another family of rules. Pods that were
    ready by then count as learned from.
    """
    memory = align(memory, fleet)
    if not kept.workloads:
        return memory, 0
    row_of = {key: row for row, key in enumerate(kept.workloads)}
    row = np.array([row_of.get(key_of(workload), -1) for workload in fleet.workloads], dtype=np.int64)
    known = row >= 0
    kept_s = now_s - max(wall_s - kept.wall_s, 0.0)  # of a wall clock that was set back nothing is in the future

    nothing = np.full(len(kept.workloads), np.nan)
    paper_known = known & (kept.columns.get("rules.family", nothing)[row] == memory.all_rules().family)
    paper_known &= all(f"rules.{name}" in kept.columns for name in RULES_OF_FAMILY)

    def filled(place: str, table: Table) -> Table:
        columns: dict[str, Any] = {}
        moving = moments(type(table))
        for field in fields(table):  # type: ignore[arg-type]
            old, there = getattr(table, field.name), f"{place}.{field.name}"
            if is_dataclass(old):
                columns[field.name] = filled(there, old)
            elif there in kept.columns:
                new = kept.columns[there][..., row]
                lasts = paper_known if there in _OF_FAMILY else known
                columns[field.name] = np.where(lasts, kept_s - new if field.name in moving else new, old)
        return replace(table, **columns)  # type: ignore[type-var]

    tables = {name: filled(name, table) for name, table in _tables(memory).items()}
    learned_from = known[fleet.pod_workload] & (fleet.pod_ready_s <= kept_s)
    pods = replace(memory.pods, seen_ready=np.where(learned_from, 1.0, memory.pods.seen_ready))
    memory = replace(memory, pods=pods, workloads=tables["workloads"]).with_rules(tables["rules"])
    return memory, int(np.count_nonzero(known))


def _tables(memory: Memory) -> dict[str, Any]:
    """Return the tables whose rows are workloads, by the name of their field."""
    return {"workloads": memory.workloads, "rules": memory.all_rules()}


def _columns(place: str, table: Any) -> Iterator[tuple[str, Column, bool]]:
    """Yield place and values of each column that is kept, and whether it holds moments."""
    passing = _PRESENT_OF.get(type(table), frozenset())
    moving = moments(type(table))
    for field in fields(table):
        if field.name in passing:
            continue
        value, there = getattr(table, field.name), f"{place}.{field.name}"
        if is_dataclass(value):
            yield from _columns(there, value)
        else:
            yield there, value, field.name in moving
