"""The snapshot: the memory that outlives a process, under names of its own, for the rows of another process.

A snapshot has what was learned over a long time: capacity, cold starts, lengths, the record of each strategy. Columns
that follow the present start over (`columns.Transient`). Pods are left out, because their counters give a rate again
with the second reading. Manual overrides are carried with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from autoscaler.core.model.fleet import Fleet, Workload
from autoscaler.core.planner.scale_to_zero import IdleTimeouts
from autoscaler.core.planner.select import StrategyState
from autoscaler.core.state import Memory, WorkloadState, align
from autoscaler.core.table.columns import PER_STRATEGY_SET, TIMESTAMP, Columns, replace

Key = tuple[str, str, str, str]  # namespace, kind, name, uid: an object made again under its name is another one
Column = npt.NDArray[np.floating[Any]]

SCHEMA: Mapping[str, str] = MappingProxyType(
    {
        "gateway.age_s": "workloads.observe.last_gateway_s",
        "answers.generated_tokens": "workloads.observe.lengths.written_tokens",
        "answers.requests": "workloads.observe.lengths.served_requests",
        "cold_start.mean_s": "workloads.observe.cold_start.mean_s",
        "cold_start.deviation_s": "workloads.observe.cold_start.deviation_s",
        "cold_start.node_wait_s": "workloads.observe.cold_start.node_wait_s",
        "cold_start.phases_s": "workloads.observe.ledger.took_s",
        "cold_start.weights_on_node": "workloads.observe.ledger.cache",
        "cold_start.weights_prior_s": "workloads.observe.ledger.weights_prior_s",
        "cold_start.loader": "workloads.observe.ledger.loader",
        "cold_start.node_group": "workloads.observe.ledger.group",
        "cold_start.image_absent": "workloads.observe.ledger.bare",
        "wake_up.mean_s": "workloads.observe.wake_ups.mean_s",
        "wake_up.deviation_s": "workloads.observe.wake_ups.deviation_s",
        "capacity.requests_per_replica": "workloads.capacity.concurrency",
        "capacity.decode_tokens_per_s": "workloads.capacity.decode_tokens_per_s",
        "capacity.observed_s": "workloads.capacity.learned_s",
        "gpu.loaded_idle_replica_s": "workloads.observe.loaded_idle_s",
        "changes.flaps": "workloads.observe.flaps.count",
        "scale_to_zero.delayed_requests": "idle_timeouts.delayed",
        "scale_to_zero.wake_ups": "idle_timeouts.wake_ups",
        "scale_to_zero.unpaid_start_s": "idle_timeouts.unpaid_s",
        "scale_to_zero.arrivals_at_zero": "idle_timeouts.arrivals_at_zero",
        "scale_to_zero.late_arrivals_at_zero": "idle_timeouts.late_arrivals",
        "scale_to_zero.requests": "idle_timeouts.requests",
        "scale_to_zero.observed_s": "idle_timeouts.observed_s",
        "chain.places": "workloads.chain.places",
        "chain.until_age_s": "workloads.chain.until_s",
        "strategies.signature": "strategies.signature",
        "strategies.warm_up_s": "strategies.warm_up_s",
        "objective.first_token_limit_s": "strategies.first_token_limit_s",
        "objective.itl_s": "strategies.itl_objective_s",
        "replica.step_time_sums": "strategies.speed.step_sums",
        "replica.readings": "strategies.speed.readings",
        "replica.shortest_token_gap_s": "strategies.speed.shortest_gap_s",
        "replica.peak_running": "strategies.speed.peak_running",
        "replica.slots": "strategies.speed.slots",
        "replica.prompt_tokens": "strategies.speed.prompt_tokens",
        "replica.prompt_busy_s": "strategies.speed.prompt_busy_s",
        "offered_load.busy_replica_s": "strategies.offered_load.busy_s",
        "offered_load.requests": "strategies.offered_load.requests",
        "season.load": "strategies.season.load",
        "season.bin_age_s": "strategies.season.bin_since_s",
        "season.busy_replica_s": "strategies.season.busy_s",
        "season.observed_s": "strategies.season.observed_s",
        "miss_curve.missed": "strategies.miss_counts.missed",
        "miss_curve.judged": "strategies.miss_counts.counted",
        "miss_curve.prefill_judged": "strategies.miss_counts.prefill_counted",
        "miss_curve.prefill_late": "strategies.miss_counts.prefill_late",
        "miss_curve.unavoidable_share": "strategies.miss_counts.unavoidable",
        "error_budget.missed": "strategies.budget.missed",
        "error_budget.judged": "strategies.budget.counted",
        "error_budget.served": "strategies.budget.served",
        "error_budget.served_s": "strategies.budget.served_s",
        "error_budget.surge_missed": "strategies.surges.really_missed",
        "error_budget.shown_missed": "strategies.surges.missed",
        "error_budget.surge_overspent": "strategies.surges.overspent",
        "shadow_fleets.observed_s": "strategies.shadow.observed_s",
        "shadow_fleets.counts": "strategies.shadow.counts",
        "shadow_fleets.replica_s": "strategies.shadow.cost",
        "shadow_fleets.missed": "strategies.shadow.missed",
        "shadow_fleets.arrived": "strategies.shadow.arrived",
    }
)
"""Name of each column in a snapshot, and its place in memory: a column that is renamed in the code keeps its name here.

Shapes are those of the columns in memory, [..., W]. Unless a name says otherwise the unit is requests. A moment is
stored as its age in seconds.
"""

TABLES: Mapping[str, type[Columns]] = MappingProxyType(
    {"workloads": WorkloadState, "idle_timeouts": IdleTimeouts, "strategies": StrategyState}
)
"""Tables of memory that belong to workloads and may have lasting columns, by the first part of a place."""

QUEUED, MISSED = "strategies.shadow.queue_missed", "strategies.shadow.missed"
"""Misses in queues are one part of what a shadow fleet missed; the other, by load, is many times as large as all else.
So a snapshot has the sum alone, and after it has been restored all past misses count as misses in queues."""

SIGNATURE, STRATEGIES = (
    "strategies.signature",
    tuple(
        name
        for name, place in SCHEMA.items()
        if place.startswith("strategies.")
        and PER_STRATEGY_SET in StrategyState.marks()[place.removeprefix("strategies.")]
    ),
)
"""Columns about the strategies: they mean something only together, and only with the same strategies."""


class ManualOverride(NamedTuple):
    """The last change of a count by someone else, for which the workload is not scaled for a while."""

    uid: str
    owner: str  # the source of the change, in words
    until_s: float  # Unix time
    duration_s: float  # a change within this time after the end extends the override
    writer: str = ""  # field manager; "": unknown
    replicas: int = -1  # its count; -1: unknown
    at_s: float = 0.0  # when it was noticed, Unix time
    times: int = 1  # in a row by this writer
    lasts: bool = False  # until somebody raises the count, which is zero


@dataclass(frozen=True)
class Snapshot:
    """The lasting columns of some workloads at one moment. It uses wall-clock time alone."""

    workloads: tuple[Key, ...]  # [W]
    wall_s: float  # that moment, Unix time
    columns: Mapping[str, Column]  # [..., W], by their names in SCHEMA
    manual_overrides: tuple[ManualOverride, ...] = ()


def key_of(workload: Workload) -> Key:
    """Return what identifies a workload in another process."""
    ref = workload.ref
    return ref.namespace, ref.kind, ref.name, workload.uid


def take(memory: Memory, workloads: Sequence[Workload], now_s: float, wall_s: float) -> Snapshot:
    """Take a snapshot of memory, with its workloads in the order of the planner's blocks.

    workloads: those of the tick that gave this memory. now_s, wall_s: its time, on both clocks.
    """
    blocks, moments = memory.planner.by_phase, _marked(TIMESTAMP)
    order = blocks.by_block(np.arange(len(workloads)))
    own = {"workloads": memory.workloads.columns(), "idle_timeouts": memory.planner.idle_timeouts.columns()}
    of_block = [table.columns() for table in blocks.tables]
    stored = {}
    for name, place in SCHEMA.items():
        table, _, path = place.partition(".")
        if table in own:
            column = own[table][path].take(order, axis=-1)
        else:
            column = np.concatenate([columns[path] for columns in of_block], axis=-1)
        stored[name] = now_s - column if place in moments else column
    return Snapshot(tuple(key_of(workloads[row]) for row in order.tolist()), wall_s, stored)


def blank() -> Mapping[str, Column]:
    """Return every column of a snapshot, of no workload: its shape but for the last axis, and its type."""
    return take(Memory.empty(), (), 0.0, 0.0).columns


def restore(snapshot: Snapshot, memory: Memory, fleet: Fleet, now_s: float, wall_s: float) -> tuple[Memory, int]:
    """Put a snapshot into the memory of the workloads of `fleet` that it has; also returns how many those are.

    Columns that the snapshot lacks stay as they are, and so do those about other strategies. The cold starts of pods
    that were ready by then count as learned.
    """
    memory = align(memory, fleet)
    if not snapshot.workloads:
        return memory, 0
    row_of = {key: row for row, key in enumerate(snapshot.workloads)}
    row = np.array([row_of.get(key_of(workload), -1) for workload in fleet.workloads], dtype=np.int64)
    known = row >= 0
    then_s = now_s - max(wall_s - snapshot.wall_s, 0.0)  # a wall clock that was set back puts nothing into the future

    stored, moments, columns = snapshot.columns, _marked(TIMESTAMP), _columns(memory)
    if SIGNATURE in stored and all(name in stored for name in STRATEGIES):
        same_strategies = known & (stored[SIGNATURE][row] == columns[SCHEMA[SIGNATURE]])
    else:
        same_strategies = np.zeros(len(row), np.bool_)
    restored = {}
    for name in SCHEMA.keys() & stored.keys():
        place, values = SCHEMA[name], stored[name][..., row]
        rows = same_strategies if name in STRATEGIES else known
        restored[place] = np.where(rows, then_s - values if place in moments else values, columns[place])
    if MISSED in restored:
        restored[QUEUED] = np.where(same_strategies, restored[MISSED], columns[QUEUED])
    learned_from = known[fleet.pod_workload] & (fleet.pod_ready_s <= then_s)
    pods = replace(memory.pods, seen_ready=np.where(learned_from, 1.0, memory.pods.seen_ready))
    tables = {name: table.with_columns(restored, f"{name}.") for name, table in _tables(memory).items()}
    planner = replace(memory.planner, idle_timeouts=tables["idle_timeouts"]).with_strategies(tables["strategies"])
    return replace(memory, pods=pods, workloads=tables["workloads"], planner=planner), int(np.count_nonzero(known))


def _tables(memory: Memory) -> dict[str, Any]:
    return {
        "workloads": memory.workloads,
        "idle_timeouts": memory.planner.idle_timeouts,
        "strategies": memory.planner.strategies,
    }


def _columns(memory: Memory) -> dict[str, Column]:
    """Return the columns of memory that belong to a workload, by place."""
    return {
        f"{name}.{place}": column
        for name, table in _tables(memory).items()
        for place, column in table.columns().items()
    }


def _marked(mark: str) -> frozenset[str]:
    """Return the places of the columns that have a mark."""
    return frozenset(
        f"{name}.{place}" for name, table in TABLES.items() for place, its in table.marks().items() if mark in its
    )
