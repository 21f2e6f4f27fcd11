"""What outlives a process: what was learned of each workload, and how it comes onto the rows and clock of another one.

Beside it, whose changes of counts are being respected; that is no memory of the tick, and is only carried here.

Kept is what was learned over long, such as capacity, cold starts, lengths, and what became of each rule on paper. What
follows the present begins anew: columns say so themselves (`columns.Present`). Pods are not kept: their counters give a
rate again with the second reading, and one over the pause would be no rate of now.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from autoscaler.core.columns import MOMENT, OF_FAMILY, PRESENT, Columns, replace
from autoscaler.core.fleet import Fleet, Workload
from autoscaler.core.memory import Memory, align

Key = tuple[str, str, str, str]  # namespace, kind, name, uid: an object made again under its name is another one
Column = npt.NDArray[np.floating[Any]]


class Hold(NamedTuple):
    """A workload that is left alone since somebody else changed its count."""

    uid: str
    owner: str  # whose change, in words
    until_s: float  # Unix time
    length_s: float  # a further change within this time after the end is one of the same hand


@dataclass(frozen=True)
class Kept:
    """What was learned of some workloads up to one moment. It knows no clock but the wall's."""

    workloads: tuple[Key, ...]  # [W]
    wall_s: float  # that moment, Unix time
    columns: Mapping[
        str, Column
    ]  # [..., W] by place in memory, "workloads.concurrency"; of a moment, its age in seconds
    holds: tuple[Hold, ...] = ()


def key_of(workload: Workload) -> Key:
    """Return by what a workload is known again."""
    ref = workload.ref
    return ref.namespace, ref.kind, ref.name, workload.uid


def keep(memory: Memory, workloads: Sequence[Workload], now_s: float, wall_s: float) -> Kept:
    """Take what is to be kept out of memory.

    workloads: those of the tick that gave this memory. now_s, wall_s: its time, on both clocks.
    """
    columns = {place: now_s - column if MOMENT in its else column for place, column, its in _columns(memory)}
    # Requests by load are many times as large as all else: what they missed is kept as it is judged now.
    columns["rules.paper.queued"] = columns["rules.paper.missed"]
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

    rules, columns = memory.all_rules(), list(_columns(memory))
    nothing = np.full(len(kept.workloads), np.nan)
    paper_known = known & (kept.columns.get("rules.family", nothing)[row] == rules.family)
    paper_known &= all(place in kept.columns for place, _, its in columns if OF_FAMILY in its)
    laid = {}
    for place, old, its in columns:
        if place in kept.columns:
            new = kept.columns[place][..., row]
            lasts = paper_known if OF_FAMILY in its else known
            laid[place] = np.where(lasts, kept_s - new if MOMENT in its else new, old)
    workloads, rules = memory.workloads.changed(laid, "workloads."), rules.changed(laid, "rules.")
    learned_from = known[fleet.pod_workload] & (fleet.pod_ready_s <= kept_s)
    pods = replace(memory.pods, seen_ready=np.where(learned_from, 1.0, memory.pods.seen_ready))
    return replace(memory, pods=pods, workloads=workloads).with_rules(rules), int(np.count_nonzero(known))


def _columns(memory: Memory) -> Iterator[tuple[str, Column, frozenset[str]]]:
    """Yield place and values of each column that is kept, and how it is marked."""
    tables: dict[str, Columns] = {"workloads": memory.workloads, "rules": memory.all_rules()}
    for name, table in tables.items():
        marks = table.marks()
        for place, column in table.columns().items():
            if PRESENT not in marks[place]:
                yield f"{name}.{place}", column, marks[place]
