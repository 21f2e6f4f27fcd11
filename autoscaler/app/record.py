"""The record: written beside the loop, and read by `explain --record` and `replay --record --at`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path

import numpy as np

from autoscaler.adapters.record.reader import ComputedTick, Record, RecordedTick, moment, printable
from autoscaler.adapters.record.recorder import RecordWriter
from autoscaler.adapters.record.rows import PolicyLoad
from autoscaler.adapters.standard_output import printing
from autoscaler.config.findings import one_of
from autoscaler.config.policy.differences import as_texts, find_differences
from autoscaler.config.policy.parse import PolicyBook
from autoscaler.config.settings import RecordSettings
from autoscaler.core.explain.format import count, number
from autoscaler.core.explain.sentence import explain
from autoscaler.core.model.types import Stage
from autoscaler.ports import Clock, Unavailable

LOOK_BACK_S = 86_400.0
"""How far before a moment changes, policies and owners are told."""

GAP_S = 300.0
"""Seconds without a tick that are told; ticks are at most some minutes apart."""

MAX_TOLD = 10
"""Changes and policies that are told, the last ones."""


class PolicyWatch:
    """Hands policies to the record when they come into force, with their differences."""

    def __init__(self, writer: RecordWriter, clock: Clock, book: PolicyBook) -> None:
        self._writer, self._clock = writer, clock
        self._texts = writer.policies_before or as_texts(book)
        self.loaded(book)

    def loaded(self, book: PolicyBook) -> None:
        before, self._texts = self._texts, as_texts(book)
        self._writer.loaded(PolicyLoad(self._texts, find_differences(before, self._texts)), self._clock.wall_s())


async def open_writer(stack: AsyncExitStack, settings: RecordSettings, on_lost: Callable[[int], None]) -> RecordWriter:
    """Begin to record. Raises Unavailable if the folder cannot be used."""
    writer = RecordWriter(settings.folder, settings.max_mb, settings.max_days, on_lost=on_lost)
    return await stack.enter_async_context(writer)


def explain_at(folder: Path, at_s: float, namespace: str, name: str) -> int:
    """Print who changed the count of a workload before a moment, and what held then. Returns the exit code."""
    with Record(folder) as record:
        tick = record.tick(at_s)
        row = _find_row(tick, f"{namespace}/{name}")
        until_s = min(at_s, tick.at_s + 1)  # moments of changes are rounded
        lines = [*_tell_changes(record, until_s, namespace, name), *_tell_gap(tick, at_s), *_tell_tick(tick, row)]
        try:
            computed = record.compute(at_s)
        except Unavailable as error:
            lines.append(f"  {error}")
        else:
            lines.append(f"  {_sentence(computed, row)}")
        lines += _tell_context(record, until_s, namespace, name)
        return _print(record, lines)


def replay_at(folder: Path, at_s: float, workload: tuple[str, str] | None) -> int:
    """Compute a tick again and print it, compared with what was recorded. Returns 1 if they differ."""
    with Record(folder) as record:
        computed = record.compute(at_s)
        recorded = computed.recorded
        name = "/".join(workload) if workload is not None else ""
        rows = [_find_row(recorded, name)] if name else range(len(recorded.workloads))
        lines = [
            f"tick {recorded.number} of {moment(recorded.at_s)}, recorded by version {computed.version}, computed "
            f"again from {count(computed.computed, 'tick')} by version {version('vllm-autoscaler')}"
        ]
        lines += _tell_gap(recorded, at_s)
        for row in rows:
            lines += ["", *_tell_computed(computed, row)]
        differing = find_difference(computed)
        same = "the same counts and stages, bit for bit, as recorded"
        lines += ["", f"differs from what was recorded: {differing}" if differing else same]
        return _print(record, lines) or bool(differing)


def find_difference(computed: ComputedTick) -> str:
    """Return the first difference between a tick that was computed again and what was recorded; "": none."""
    recorded, decision = computed.recorded.decided, computed.decision
    if recorded.stages.shape != decision.stages.shape:
        return f"{len(decision.stages)} stages, recorded {len(recorded.stages)}"
    for stage in Stage:
        now, then = decision.stages[stage], recorded.stages[stage]
        rows = np.flatnonzero((now != then) & ~(np.isnan(now) & np.isnan(then)))
        if len(rows):
            where = ", ".join(str(computed.recorded.workloads[row]) for row in rows[:MAX_TOLD].tolist())
            row = rows[0]
            return (
                f"stage {stage.published} gives {number(now[row])}, recorded {number(then[row])}, for "
                f"{count(len(rows), 'workload')}: {where}"
            )
    if not np.array_equal(recorded.replicas, decision.replicas):
        return "the counts differ, though no stage does"
    return ""


def _find_row(tick: RecordedTick, name: str) -> int:
    names = [printable(str(ref)) for ref in tick.workloads]
    if name not in names:
        raise Unavailable(f"{name} is not in the record at {moment(tick.at_s)}; it has {one_of(names, name)}")
    return names.index(name)


def _tell_changes(record: Record, at_s: float, namespace: str, name: str) -> list[str]:
    changes = record.changes((namespace, name), at_s - LOOK_BACK_S, at_s)
    if not changes:
        since_s = max(at_s - LOOK_BACK_S, record.span()[0])
        return [f"{namespace}/{name}: no change is recorded from {moment(since_s)} to {moment(at_s)}"]
    return [
        f"{moment(each.at_s)}  {each.before} -> {each.after} ({each.outcome})  {each.sentence}"
        + (f" {each.detail}" if each.detail else "")
        for each in changes[-MAX_TOLD:]
    ]


def _tell_gap(tick: RecordedTick, at_s: float) -> list[str]:
    """Say that the tick is not the one that was asked for, but the last one before it."""
    if at_s - tick.at_s <= GAP_S:
        return []
    return [f"no tick can be read between {moment(tick.at_s)} and {moment(at_s)}: this is the last one before"]


def _tell_tick(tick: RecordedTick, row: int) -> list[str]:
    """Word what was recorded of one row of a tick."""
    decided = tick.decided
    stages = decided.stages[:, row].tolist()
    changed = [True, *(now != was and not (np.isnan(now) and np.isnan(was)) for was, now in pairwise(stages))]
    steps = [f"{tick.name('stage', stage)} {_replicas(stages[stage])}" for stage, does in enumerate(changed) if does]
    signal = decided.signal[row]
    asks = f", signal {tick.name('signal', signal)}" if signal >= 0 else ""
    unknown = "" if decided.trusted[row] else "; its inputs were missing or stale"
    return [
        f"at {moment(tick.at_s)}: {_replicas(decided.current[row])} replicas ({_replicas(decided.ready[row])} ready, "
        f"{_replicas(decided.starting[row])} starting), decided {_replicas(decided.replicas[row])}; recommender "
        f"{tick.name('recommender', decided.recommender[row])}{asks}; {' > '.join(steps)}{unknown}"
    ]


def _tell_computed(computed: ComputedTick, row: int) -> list[str]:
    told = explain(computed.inp, computed.decision, computed.policies, {}, row)
    known = {name: value for name, value in told.inputs.items() if not np.isnan(value)}
    return [
        f"{told.workload}, policy {told.policy}",
        f"  inputs   {', '.join(f'{name} {value:g}' for name, value in known.items())}",
        *(f"  {step.stage:<16}{_replicas(step.replicas):>5}  {step.reason}".rstrip() for step in told.steps),
        f"  {told.sentence}",
    ]


def _tell_context(record: Record, at_s: float, namespace: str, name: str) -> list[str]:
    """Word the owners of a workload, its policy, and the policies that came into force, within a day before."""
    owners = (
        "SELECT at_s, owner, count FROM owners JOIN workloads ON id = workload "
        "WHERE namespace = ? AND name = ? AND at_s BETWEEN ? AND ? ORDER BY tick"
    )
    policies = (
        "SELECT at_s, name, difference FROM policies WHERE difference != '' AND at_s BETWEEN ? AND ? ORDER BY tick"
    )
    facts = (
        "SELECT at_s, policy FROM facts JOIN workloads ON id = workload WHERE namespace = ? AND name = ? AND at_s <= ? "
        "ORDER BY tick"
    )
    since_s = at_s - LOOK_BACK_S
    named = [row for _, row in record.query(facts, namespace, name, at_s)]
    lines = [
        f"{moment(when)}  its policy is now {policy or 'none'}; before: {was or 'none'}"
        for (_, was), (when, policy) in pairwise(named)
        if policy != was and when >= since_s
    ]
    lines += [
        f"{moment(when)}  its count, {replicas}, " + (f"is held by {owner}" if owner else "is the daemon's again")
        for _, (when, owner, replicas) in record.query(owners, namespace, name, since_s, at_s)
    ]
    for _, (when, policy, difference) in record.query(policies, since_s, at_s):
        lines += [f"{moment(when)}  policy {policy} changed:", *(f"  {line}" for line in difference.splitlines())]
    return lines[-10 * MAX_TOLD :]


def _sentence(computed: ComputedTick, row: int) -> str:
    return explain(computed.inp, computed.decision, computed.policies, {}, row).sentence


def _replicas(value: float) -> str:
    return "?" if np.isnan(value) else f"{value:g}"


def _print(record: Record, lines: list[str]) -> int:
    with printing():
        print(*map(printable, lines), sep="\n")
    for problem in record.problems:
        print(f"warning: {problem}", file=sys.stderr)
    return 0
