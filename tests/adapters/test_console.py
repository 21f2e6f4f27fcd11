"""Decisions on a terminal, made by the real loop over a fleet in memory."""

import io
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from autoscaler.adapters.console import MAX_ROWS, ChangeLines, JsonLines, LiveTable
from autoscaler.adapters.in_memory import AlwaysLeading, RecordingActuator
from autoscaler.config.policy.parse import load
from autoscaler.core.model.fleet import Fleet
from autoscaler.core.model.published import VERSION
from autoscaler.core.model.samples import SourceReport
from autoscaler.daemon.loop import Loop, Parts
from autoscaler.ports import Recorder, TickRecord, Unavailable
from tests.core.world import fleet, samples
from tests.harness.in_memory import LoopClock, MemorySamples

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


async def recorded(seen: Fleet, *recorders: Recorder, running: float = 0.0) -> TickRecord:
    """Tick once over a fleet and tell the recorders."""

    class Cluster:
        def fleet(self) -> Fleet:
            return seen

    loop = Loop(
        Parts(
            clock=LoopClock(),
            workloads=Cluster(),
            sources=[MemorySamples(lambda now: samples(now, 0.0, running=running, waiting=0.0))],
            actuator=RecordingActuator(),
            recorders=recorders,
            leadership=AlwaysLeading(),
        ),
        policies=lambda: load(()),
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


async def test_no_change_is_zero_without_a_sign():
    out = io.StringIO()
    await recorded(fleet([2]), JsonLines(out))
    line = json.loads(out.getvalue())
    assert line["wanted"] == line["current"]
    assert (str(line["would_add_gpus"]), str(line["would_save_gpus"])) == ("0.0", "0.0")


async def test_a_reading_without_end_is_null_too():
    out = io.StringIO()
    record = await recorded(fleet([2]))
    endless = replace(record.decision.observation, queue_wait_s=record.decision.observation.replicas * float("inf"))
    JsonLines(out).record(replace(record, decision=replace(record.decision, observation=endless)))
    assert json.loads(out.getvalue())["inputs"]["queue_wait_s"] is None


async def test_a_failed_tick_is_a_line_with_its_reason():
    out = io.StringIO()
    JsonLines(out).failed(0.0, Unavailable("no workloads found"))
    assert json.loads(out.getvalue()) == {
        "version": VERSION,
        "time": "1970-01-01T00:00:00Z",
        "error": "no workloads found",
    }


async def test_a_failed_tick_without_words_is_told_by_its_kind():
    out, console = io.StringIO(), Console(file=io.StringIO(), width=160)
    for recorder in (JsonLines(out), LiveTable(console, once=True)):
        recorder.failed(0.0, TimeoutError())
    assert json.loads(out.getvalue())["error"] == "TimeoutError"
    assert "no recommendation: TimeoutError" in console.file.getvalue()


async def test_table_shows_gpus_to_add_and_escapes_hostile_names():
    console = Console(file=io.StringIO(), width=160)
    record = await recorded(named(fleet([2]), "[red]llama[/red]"), running=200.0)
    with LiveTable(console, once=True) as table:
        table.record(record)
    text = console.file.getvalue()
    assert "[red]llama[/red]" in text
    assert "Scales up from 2 to" in text
    assert "would add" in text


async def troubled() -> tuple[TickRecord, TickRecord]:
    """A tick, and the same with trouble at a source."""
    record = await recorded(fleet([2]))
    report = SourceReport("prometheus", queries=1, failed=1, problems=("running: [b]no\nanswer",))
    samples_then = replace(record.input.samples, reports=(report,))
    return record, replace(record, input=replace(record.input, samples=samples_then))


async def test_source_problems_are_printed_when_they_change_and_end():
    console, out = Console(file=io.StringIO(), width=160), io.StringIO()
    record, broken = await troubled()
    LiveTable(console, once=True).record(broken)
    lines = ChangeLines(out)
    for each in (record, broken, broken, record, record, broken):
        lines.record(each)
    assert "prometheus: running: [b]no answer" in console.file.getvalue()
    assert [line.partition("  ")[2] for line in out.getvalue().splitlines()[1:]] == [
        "prometheus: running: [b]no answer",
        "no source reports a problem any more",
        "prometheus: running: [b]no answer",
    ]


async def test_json_lines_repeat_source_problems_on_every_tick():
    out = io.StringIO()
    record, broken = await troubled()
    lines = JsonLines(out, nothing="no workload was found")
    for each in (record, broken, broken):
        lines.record(each)
    told = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line.get("workload", line.get("problem")) for line in told] == [
        "ns/w0",
        "ns/w0",
        "prometheus: running: [b]no answer",
        "ns/w0",
        "prometheus: running: [b]no answer",
    ]
    assert told[2].keys() == {"version", "time", "problem"}


async def test_json_lines_say_that_there_is_no_workload():
    out = io.StringIO()
    JsonLines(out, nothing="no workload was found").record(await recorded(fleet([])))
    assert json.loads(out.getvalue())["problem"] == "no workload was found"


async def test_sentences_move_below_the_table_when_it_is_narrow():
    narrow, wide = (Console(file=io.StringIO(), width=width) for width in (80, 120))
    record = await recorded(named(fleet([2]), "assistant-70b-instruct"), running=200.0)
    for console in (narrow, wide):
        LiveTable(console, once=True).record(record)
    below, beside = (console.file.getvalue() for console in (narrow, wide))
    assert max(map(len, below.splitlines())) <= 80
    assert f"{record.input.fleet.workloads[0].ref}: Scales up from 2 to" in below
    assert len(below.splitlines()) < 12
    assert "reason" in beside and "reason" not in below


@pytest.mark.parametrize(
    ("gpus_per_replica", "caption"),
    [
        ([2.0, 1.0], "would add {both} GPUs, would save 0 GPUs"),
        ([2.0, np.nan], "would add at least {first} GPUs, would save 0 GPUs (no series tells)"),
        ([np.nan, np.nan], "would add an unknown number of GPUs, would save 0 GPUs (no series tells)"),
    ],
)
async def test_gpus_that_are_not_known_are_not_counted_as_none(gpus_per_replica: list[float], caption: str):
    console, out = Console(file=io.StringIO(), width=160), io.StringIO()
    seen = replace(fleet([2, 2]), gpus_per_replica=np.array(gpus_per_replica))
    table = LiveTable(console, once=True, unknown_gpus="no series tells")
    lines = ChangeLines(out, once=True, unknown_gpus="no series tells")
    record = await recorded(seen, table, lines, running=200.0)
    first, second = (int(each) - 2 for each in record.decision.replicas)
    assert first > 0 < second
    total = caption.format(first=2 * first, both=2 * first + second)
    assert f"{total}\n" in re.sub(" +\n", "\n", console.file.getvalue())
    assert out.getvalue().splitlines()[-1].endswith(f"Z  {total}")


async def test_gpus_are_null_in_json_when_unknown():
    console, out = Console(file=io.StringIO(), width=160), io.StringIO()
    seen = replace(fleet([2]), gpus_per_replica=np.array([np.nan]))
    await recorded(seen, LiveTable(console, once=True), JsonLines(out))
    assert "  1 workload  " in console.file.getvalue()
    assert "would add 0 GPUs, would save 0 GPUs" in console.file.getvalue()
    line = json.loads(out.getvalue())
    assert (line["would_add_gpus"], line["would_save_gpus"]) == (None, None)


@pytest.mark.parametrize("width", [300, 70])
async def test_the_table_is_printable_when_names_are_hostile(width: int):
    console = Console(file=io.StringIO(), width=width)
    hostile = "evil\x1b]0;title\x07\x1b[2J\u202e\x9b1m"
    await recorded(named(fleet([2]), hostile), LiveTable(console, once=True))
    shown = console.file.getvalue()
    assert "evil" in shown
    assert all(line.isprintable() for line in shown.splitlines())


async def test_lines_repeat_a_workload_when_its_desired_count_changes():
    out = io.StringIO()
    lines = ChangeLines(out)
    quiet, busy = await recorded(fleet([2, 2])), await recorded(fleet([2, 2]), running=200.0)
    for record in (quiet, quiet, busy, busy):
        lines.record(record)
    assert out.getvalue().endswith("\n")
    told = out.getvalue().splitlines()
    assert len(told) == 4
    assert f"{quiet.input.fleet.workloads[0].ref.name}: Keeps 2 replicas" in told[0]
    assert ": Scales up from 2 to" in told[3]


async def test_lines_of_a_hostile_name_are_one_line():
    out = io.StringIO()
    await recorded(named(fleet([2]), "llama\n\x1b[2J"), ChangeLines(out))
    assert len(out.getvalue().splitlines()) == 1
    assert "\x1b" not in out.getvalue()


@pytest.mark.parametrize("kind", [JsonLines, ChangeLines])
async def test_repeated_failure_is_printed_once(kind: type[JsonLines | ChangeLines]):
    out = io.StringIO()
    lines, record = kind(out), await recorded(fleet([2]))
    for reason in ("no connection", "no connection", "HTTP 401", "HTTP 401"):
        lines.failed(0.0, Unavailable(reason))
    lines.record(record)
    lines.failed(0.0, Unavailable("HTTP 401"))
    lines.record(record)
    told = out.getvalue().splitlines()
    assert ["no connection" in line for line in told] == [True, False, False, False, False]
    assert ["HTTP 401" in line for line in told] == [False, True, False, True, False]


@pytest.mark.parametrize("width", [80, 160])
async def test_low_terminal_drops_rows_but_not_sums_and_problems(width: int):
    console = Console(file=io.StringIO(), width=width, height=24, force_terminal=True, color_system=None)
    seen = replace(fleet([2] * 30), gpus_per_replica=np.full(30, 1.0))
    record = await recorded(seen, running=200.0)
    report = SourceReport("prometheus", queries=9, failed=1, duration_s=0.1, problems=("running: HTTP 500",))
    samples = replace(record.input.samples, reports=(report,))
    with LiveTable(console) as table:
        table.record(replace(record, input=replace(record.input, samples=samples)))
        shown = console.file.getvalue()
    assert "would add 30 GPUs, would save 0 GPUs" in shown
    assert "prometheus: running: HTTP 500" in shown
    assert "Scales up from 2 to 3" in shown
    assert re.search(r"30 workloads, \d+ more not shown", shown)
    assert len(shown.splitlines()) <= 24


async def test_table_shows_the_first_workloads_and_counts_the_rest():
    console = Console(file=io.StringIO(), width=160)
    record = await recorded(fleet([1] * (MAX_ROWS + 7)))
    with LiveTable(console, once=True) as table:
        table.record(record)
    assert f"{MAX_ROWS + 7} workloads, 7 more not shown" in console.file.getvalue()
