"""Decisions on standard output.

A live table on a terminal, one line per change in a file or a pipe, or one JSON line per decision for programs.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, TextIO

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from autoscaler.adapters.standard_output import raising_unwritable
from autoscaler.core.explain.format import count
from autoscaler.core.explain.sentence import Explanation, explain
from autoscaler.core.model.fleet import WorkloadRef
from autoscaler.core.model.published import VERSION
from autoscaler.core.table.columns import FloatColumn
from autoscaler.ports import TickRecord

MAX_ROWS = 40
"""Rows of the table. Workloads that would change come first; the rest is only counted."""

MIN_REASON_WIDTH = 40
"""Characters. If the reason column would be narrower, the sentences are printed below the table."""


MAX_PROBLEMS = 3
"""Problems printed per tick, of all sources together."""

RECOVERED = "no source reports a problem any more"


class LiveTable:
    """Table that is redrawn on each tick: workload, policy, replicas, reason, GPUs saved or added."""

    def __init__(self, console: Console, *, once: bool = False, nothing: str = "", unknown_gpus: str = "") -> None:
        """nothing: message if there is no workload. unknown_gpus: why GPUs per replica may be unknown."""
        self._console = console
        self._nothing = nothing
        self._unknown_gpus = unknown_gpus
        self._live = None if once else Live(console=console, auto_refresh=False, transient=False)

    def __enter__(self) -> LiveTable:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live:
            self._live.stop()

    def record(self, tick: TickRecord) -> None:
        view = _view(tick, self._console, self._nothing, self._unknown_gpus, fit=self._live is not None)
        self._show(view)

    def failed(self, wall_s: float, error: BaseException) -> None:
        self._show(_text(f"{_time(wall_s)}  no recommendation: {_reason(error)}", "red"))

    def _show(self, view: RenderableType) -> None:
        with raising_unwritable():
            if self._live:
                self._live.update(view, refresh=True)
            else:
                self._console.print(view)


class _Lines(ABC):
    """Base of recorders that write lines. A repeated failure is printed once. Raises like `raising_unwritable`."""

    def __init__(self, out: TextIO, nothing: str = "") -> None:
        """nothing: message if there is no workload."""
        self._out = out
        self._nothing = nothing
        self._failure = ""  # "": the last tick succeeded

    def record(self, tick: TickRecord) -> None:
        with raising_unwritable():
            self._out.writelines(f"{line}\n" for line in self._lines(tick))
            self._out.flush()
        self._failure = ""

    def failed(self, wall_s: float, error: BaseException) -> None:
        reason = _reason(error)
        if reason != self._failure:
            with raising_unwritable():
                self._out.write(f"{self._failure_line(_time(wall_s), reason)}\n")
                self._out.flush()
        self._failure = reason

    @abstractmethod
    def _lines(self, tick: TickRecord) -> Iterator[str]: ...

    @abstractmethod
    def _failure_line(self, time: str, reason: str) -> str: ...


class ChangeLines(_Lines):
    """One line per workload at first and after a failure, then whenever its current or desired count changes.

    Problems of sources are printed whenever they change, and once when they end.
    """

    def __init__(self, out: TextIO, nothing: str = "", *, once: bool = False, unknown_gpus: str = "") -> None:
        """once: the first tick is the last, so the total of GPUs follows. unknown_gpus: as for the table."""
        super().__init__(out, nothing)
        self._once = once
        self._unknown_gpus = unknown_gpus
        self._counts: dict[WorkloadRef, tuple[float, float]] = {}  # current and desired
        self._notes: tuple[str, ...] = ()

    def _lines(self, tick: TickRecord) -> Iterator[str]:
        fleet, before = tick.input.fleet, {} if self._failure else self._counts
        refs = (workload.ref for workload in fleet.workloads)
        counts = zip(fleet.replicas.tolist(), tick.decision.replicas.tolist(), strict=True)
        self._counts = dict(zip(refs, counts, strict=True))
        for row, (ref, counts_now) in enumerate(self._counts.items()):
            if before.get(ref) != counts_now:
                yield _printable(f"{_time(tick.wall_s)}  {ref.label}: {_explained(tick, row).sentence}")
        if self._once:
            yield f"{_time(tick.wall_s)}  {_summary(tick, self._unknown_gpus)}"
        printed, self._notes = self._notes, _notes(tick, self._nothing)
        if self._notes != printed:
            yield from (f"{_time(tick.wall_s)}  {note}" for note in self._notes or (RECOVERED,))

    def _failure_line(self, time: str, reason: str) -> str:
        return _printable(f"{time}  no recommendation: {reason}")


class JsonLines(_Lines):
    """One line per decision and tick, and one per problem. Nothing depends on earlier lines."""

    def _lines(self, tick: TickRecord) -> Iterator[str]:
        for row, explanation in _explanations(tick):
            yield json.dumps(_line(tick, row, explanation), allow_nan=False)
        for note in _notes(tick, self._nothing):
            yield json.dumps({"version": VERSION, "time": _time(tick.wall_s), "problem": note})

    def _failure_line(self, time: str, reason: str) -> str:
        return json.dumps({"version": VERSION, "time": time, "error": reason})


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _explanations(tick: TickRecord) -> Iterator[tuple[int, Explanation]]:
    for row in range(len(tick.policies)):
        yield row, _explained(tick, row)


def _explained(tick: TickRecord, row: int) -> Explanation:
    return explain(tick.input, tick.decision, tick.policies, tick.problems, row)


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)


def _text(text: str, style: str = "") -> Text:
    """Return a cell or line of the table. Names and reasons come from outside and must not control the terminal."""
    return Text(_printable(text), style=style)


def _line(tick: TickRecord, row: int, explanation: Explanation) -> dict[str, Any]:
    gpus = _gpus(tick, row, explanation)
    return {
        "version": VERSION,
        "time": _time(tick.wall_s),
        "workload": explanation.workload,
        "kind": tick.input.fleet.workloads[row].ref.kind,
        "policy": explanation.policy,
        "ready": explanation.ready,
        "current": explanation.current,
        "wanted": explanation.wanted,
        "signal": explanation.signal or None,
        "bound": explanation.bound or None,
        "reason": explanation.sentence,
        # `max(0.0, -0.0)` returns the first one, without a sign.
        "would_add_gpus": None if gpus is None else max(0.0, gpus),
        "would_save_gpus": None if gpus is None else max(0.0, -gpus),
        "inputs": {name: value if math.isfinite(value) else None for name, value in explanation.inputs.items()},
    }


def _growth(tick: TickRecord) -> FloatColumn:
    """Return the replicas that the decisions would add, negative where they save some; float64[W]."""
    return np.asarray(tick.decision.replicas - tick.input.fleet.present_replicas)


def _gpus(tick: TickRecord, row: int, explanation: Explanation) -> float | None:
    """Return the GPUs that the decision would add, negative if it saves them; None if GPUs per replica are unknown."""
    each = float(tick.input.fleet.gpus_per_replica[row])
    return None if math.isnan(each) else (explanation.wanted - explanation.current) * each


def _summary(tick: TickRecord, unknown_gpus: str) -> str:
    """Return how many GPUs the decisions would add and save. unknown_gpus: said where some are unknown."""
    growth = _growth(tick)
    gpus = growth * tick.input.fleet.gpus_per_replica
    text = f"would add {_total(gpus[growth > 0])}, would save {_total(-gpus[growth < 0])}"
    return f"{text} ({unknown_gpus})" if unknown_gpus and np.isnan(gpus[growth != 0]).any() else text


def _total(gpus: FloatColumn) -> str:
    known = float(np.nansum(gpus))
    if not np.isnan(gpus).any():
        return count(known, "GPU")
    return f"at least {count(known, 'GPU')}" if known else count(math.nan, "GPU")


def _notes(tick: TickRecord, nothing: str) -> tuple[str, ...]:
    """Return problems of sources, and a note if there is no workload."""
    reports = tick.input.samples.reports
    problems = [f"{report.source}: {problem}" for report in reports for problem in report.problems][:MAX_PROBLEMS]
    return tuple(map(_printable, [*([] if tick.policies or not nothing else [nothing]), *problems]))


def _view(tick: TickRecord, console: Console, nothing: str, unknown_gpus: str, *, fit: bool) -> RenderableType:
    """Return the table with its notes. fit: limit its rows to the height of the terminal."""
    notes = [_text(note, "red") for note in _notes(tick, nothing)]
    workloads, growth = tick.input.fleet.workloads, _growth(tick)
    order = sorted(range(len(workloads)), key=lambda row: (not growth[row], str(workloads[row].ref)))
    rows = [(row, _explained(tick, row)) for row in order[:MAX_ROWS]]
    most = len(rows)
    summary = _summary(tick, unknown_gpus)
    has_room = console.width - console.measure(_table(tick, rows, most, "")).maximum >= MIN_REASON_WIDTH

    def view(shown: int) -> Group:
        table = _table(tick, rows, shown, summary, reasons=has_room)
        if has_room:
            return Group(table, *notes)
        sentences = [_text(f"{explanation.workload}: {explanation.sentence}") for _, explanation in rows[:shown]]
        return Group(table, *([""] if sentences else []), *sentences, *notes)

    def is_too_high(shown: int) -> bool:
        return len(console.render_lines(view(shown), pad=False)) > console.height

    return view(bisect_left(range(1, most), True, key=is_too_high) if fit and is_too_high(most) else most)


def _table(
    tick: TickRecord, rows: list[tuple[int, Explanation]], shown: int, summary: str, *, reasons: bool = False
) -> Table:
    number = len(tick.input.fleet.workloads)
    hidden = f", {number - shown} more not shown" if number > shown else ""
    table = Table(
        title=f"{_time(tick.wall_s)}  {count(number, 'workload')}{hidden}",
        caption=summary,
        title_justify="left",
        caption_justify="left",
        expand=reasons,
    )
    for name, right in (("workload", False), ("policy", False), ("ready", True), ("current", True), ("desired", True)):
        table.add_column(name, justify="right" if right else "left", no_wrap=True)
    if reasons:
        table.add_column("reason", ratio=1)
    table.add_column("GPUs", justify="right", no_wrap=True)
    for row, explanation in rows[:shown]:
        change = explanation.wanted - explanation.current
        style = "green" if change < 0 else "yellow" if change > 0 else ""
        each = _gpus(tick, row, explanation)
        table.add_row(
            _text(explanation.workload),
            _text(explanation.policy),
            str(explanation.ready),
            str(explanation.current),
            Text(str(explanation.wanted), style=style),
            *([_text(explanation.sentence)] if reasons else []),
            ("?" if each is None else f"{each:+g}") if change else "0",
        )
    return table


def _time(wall_s: float) -> str:
    return datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
