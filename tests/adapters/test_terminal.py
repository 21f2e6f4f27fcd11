"""Decisions on a terminal, made by the real loop over a fleet in memory."""

import io
import json
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from autoscaler.adapters.memory import AlwaysLeading, LoopClock, MemorySamples, RecordingActuator
from autoscaler.adapters.terminal import ROWS, JsonLines, LiveTable
from autoscaler.config.policy import load
from autoscaler.core.fleet import Fleet
from autoscaler.daemon.loop import Loop
from autoscaler.ports import Recorder, TickRecord, Unavailable
from tests.core.world import fleet, samples

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


async def recorded(seen: Fleet, *recorders: Recorder, running: float = 0.0) -> TickRecord:
    """Tick once over a fleet and tell the recorders."""

    class Cluster:
        def fleet(self) -> Fleet:
            return seen

    loop = Loop(
        clock=LoopClock(),
        workloads=Cluster(),
        sources=[MemorySamples(lambda now: samples(now, 0.0, running=running, waiting=0.0))],
        policies=lambda: load(()),
        actuator=RecordingActuator(),
        recorders=recorders,
        leadership=AlwaysLeading(),
        period_s=5.0,
        deadline_s=5.0,
    )
    record = await loop.attempt()
    assert record is not None
    return record


def named(seen: Fleet, name: str) -> Fleet:
    workloads = tuple(each._replace(ref=each.ref._replace(name=name)) for each in seen.workloads)
    return replace(seen, workloads=workloads)


async def test_each_decision_is_one_line_of_json_and_unknown_is_null():
    out = io.StringIO()
    await recorded(replace(fleet([2, 2]), gpus_per_replica=np.array([2.0, np.nan])), JsonLines(out), running=200.0)
    first, second = (json.loads(line) for line in out.getvalue().splitlines())
    assert (first["kind"], first["policy"], first["current"]) == ("Deployment", "interactive", 2)
    assert first["wanted"] > 2
    assert first["would_add_gpus"] == 2 * (first["wanted"] - 2)
    assert first["would_save_gpus"] == 0
    assert first["reason"].startswith("Scales up from 2 to")
    assert first["inputs"]["ttft_s"] is None
    assert (second["would_add_gpus"], second["would_save_gpus"]) == (None, None)


async def test_a_reading_without_end_is_null_too():
    out = io.StringIO()
    record = await recorded(fleet([2]))
    endless = replace(record.decision.observation, queue_wait_s=record.decision.observation.replicas * float("inf"))
    JsonLines(out).record(replace(record, decision=replace(record.decision, observation=endless)))
    assert json.loads(out.getvalue())["inputs"]["queue_wait_s"] is None


async def test_a_failed_tick_is_a_line_with_its_reason():
    out = io.StringIO()
    JsonLines(out).failed(0.0, Unavailable("no workloads found"))
    assert json.loads(out.getvalue()) == {"time": "1970-01-01T00:00:00Z", "error": "no workloads found"}


async def test_a_failed_tick_without_words_is_told_by_its_kind():
    out, console = io.StringIO(), Console(file=io.StringIO(), width=160)
    for recorder in (JsonLines(out), LiveTable(console, once=True)):
        recorder.failed(0.0, TimeoutError())
    assert json.loads(out.getvalue())["error"] == "TimeoutError"
    assert "no recommendation: TimeoutError" in console.file.getvalue()


async def test_the_table_shows_what_would_be_added_and_a_hostile_name_as_it_is_written():
    console = Console(file=io.StringIO(), width=160)
    record = await recorded(named(fleet([2]), "[red]llama[/red]"), running=200.0)
    with LiveTable(console, once=True) as table:
        table.record(record)
    text = console.file.getvalue()
    assert "[red]llama[/red]" in text
    assert "Scales up from 2 to" in text
    assert "would add" in text


async def test_of_many_workloads_the_first_are_shown_and_the_rest_is_counted():
    console = Console(file=io.StringIO(), width=160)
    record = await recorded(fleet([1] * (ROWS + 7)))
    with LiveTable(console, once=True) as table:
        table.record(record)
    assert f"{ROWS + 7} workloads, 7 more not shown" in console.file.getvalue()
