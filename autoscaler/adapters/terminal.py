"""Decisions on a terminal: a live table for people, one JSON line per decision for programs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, TextIO

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from autoscaler.core.explain import Explanation, explain
from autoscaler.ports import TickRecord

ROWS = 40
"""Rows of the live table; workloads that would change come first, the rest is counted."""


class LiveTable:
    """A table that follows the ticks: workload, policy, ready, wanted, reason, GPUs saved or added."""

    def __init__(self, console: Console, *, once: bool = False) -> None:
        self._console = console
        self._live = None if once else Live(console=console, auto_refresh=False, transient=False)

    def __enter__(self) -> LiveTable:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live:
            self._live.stop()

    def record(self, tick: TickRecord) -> None:
        table = _table(tick)
        if self._live:
            self._live.update(table, refresh=True)
        else:
            self._console.print(table)

    def failed(self, wall_s: float, error: BaseException) -> None:
        line = Text(f"{_time(wall_s)}  no recommendation: {_reason(error)}", style="red")
        if self._live:
            self._live.update(line, refresh=True)
        else:
            self._console.print(line)


class JsonLines:
    """One line per decision and tick. Raises BrokenPipeError when nobody reads the output any more."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def record(self, tick: TickRecord) -> None:
        for row, explanation in _explanations(tick):
            self._out.write(json.dumps(_line(tick, row, explanation), allow_nan=False) + "\n")
        self._out.flush()

    def failed(self, wall_s: float, error: BaseException) -> None:
        failure = {"time": _time(wall_s), "error": _reason(error)}
        self._out.write(json.dumps(failure) + "\n")
        self._out.flush()


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _explanations(tick: TickRecord) -> Iterator[tuple[int, Explanation]]:
    for row in range(len(tick.policies)):
        yield row, explain(tick.input, tick.decision, tick.policies, tick.problems, row)


def _line(tick: TickRecord, row: int, explanation: Explanation) -> dict[str, Any]:
    gpus = _gpus(tick, row, explanation)
    return {
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
        "would_add_gpus": None if gpus is None else max(gpus, 0.0),
        "would_save_gpus": None if gpus is None else max(-gpus, 0.0),
        "inputs": {name: value if math.isfinite(value) else None for name, value in explanation.inputs.items()},
    }


def _gpus(tick: TickRecord, row: int, explanation: Explanation) -> float | None:
    """GPUs the decision would add, negative if it would save them; None where a replica's GPUs are not known."""
    each = float(tick.input.fleet.gpus_per_replica[row])
    return None if math.isnan(each) else (explanation.wanted - explanation.current) * each


def _table(tick: TickRecord) -> Table:
    rows = sorted(_explanations(tick), key=lambda item: (item[1].wanted == item[1].current, item[1].workload))
    gpus = [(_gpus(tick, row, explanation) or 0.0) for row, explanation in rows]
    added, saved = sum(g for g in gpus if g > 0), -sum(g for g in gpus if g < 0)
    hidden = f", {len(rows) - ROWS} more not shown" if len(rows) > ROWS else ""
    table = Table(
        title=f"{_time(tick.wall_s)}  {len(rows)} workloads{hidden}",
        caption=f"would add {added:g} GPUs, would save {saved:g} GPUs",
        title_justify="left",
        caption_justify="left",
        expand=True,
    )
    for name, right in (("workload", False), ("policy", False), ("ready", True), ("current", True), ("wanted", True)):
        table.add_column(name, justify="right" if right else "left", no_wrap=True)
    table.add_column("reason", ratio=1)
    table.add_column("GPUs", justify="right", no_wrap=True)
    for row, explanation in rows[:ROWS]:
        change = explanation.wanted - explanation.current
        style = "green" if change < 0 else "yellow" if change > 0 else ""
        each = _gpus(tick, row, explanation)
        table.add_row(
            Text(explanation.workload),
            Text(explanation.policy),
            str(explanation.ready),
            str(explanation.current),
            Text(str(explanation.wanted), style=style),
            Text(explanation.sentence),
            "?" if each is None else f"{each:+g}" if each else "0",
        )
    return table


def _time(wall_s: float) -> str:
    return datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
