"""Measure what a record takes on disk: the demo's ticks, put together to a large fleet, and extrapolated to days.

The demo runs in this process for some thousand simulated ticks. Copies of its six services, each from another hour,
make a fleet of about `--services`; it is decided on, and written as `run --record` does, a minute at a time.

    python bench/micro/record.py --ticks 2000 --services 200
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from autoscaler.adapters.clock import SystemClock
from autoscaler.adapters.in_memory import AlwaysLeading
from autoscaler.adapters.record import folder as folders
from autoscaler.adapters.record.file import PAGE_BYTES, TABLES, RecordFile
from autoscaler.adapters.record.writer import FolderWriter
from autoscaler.app.demo import DEMO_PERIOD_S, HELD_PERIODS
from autoscaler.app.wiring import LoopParts, build_loop, open_sources, run_loop
from autoscaler.config.policy.parse import shipped
from autoscaler.config.policy.reload import PolicyFiles
from autoscaler.config.settings import Mode, ScrapeSettings, Settings
from autoscaler.core.model.fleet import NodeGroups, Obstacles
from autoscaler.core.model.samples import GatewaySamples, PodSamples, Samples
from autoscaler.core.model.spec import Schedule, Spec
from autoscaler.core.model.types import TickInput
from autoscaler.core.state import Memory
from autoscaler.core.tick import tick
from autoscaler.ports import Change, ChangeStatus, Outcome, TickRecord
from autoscaler.sim.demo.clock import CompressedClock, Pace
from autoscaler.sim.demo.scenario import POLICIES, demo_scenario
from autoscaler.sim.demo.serve import SimulatedFleet
from bench.micro.result import machine, show

BLOCK = 4  # ticks of a minute
FIRST = 40  # ticks of the demo that are left out: its services start
WEEK_TICKS = 7 * 86_400 / DEMO_PERIOD_S
SENTENCE = "Scales up from 2 to 3: the planner recommends 3 for a load of 1.4 busy replicas, held for 592 s. " * 2


class Enough(Exception):
    """As many ticks as were wanted."""


class Keeper:
    """Recorder that keeps the inputs of the demo's ticks."""

    def __init__(self, wanted: int) -> None:
        self.inputs: list[TickInput] = []
        self._wanted, self._enough = wanted, asyncio.Event()

    def record(self, tick: TickRecord) -> None:
        self.inputs.append(tick.input)
        if len(self.inputs) >= self._wanted:
            self._enough.set()

    def failed(self, wall_s: float, error: BaseException) -> None:
        pass

    async def wait(self) -> None:
        await self._enough.wait()
        raise Enough


async def run_demo(ticks: int, speed: float) -> list[TickInput]:
    clock = CompressedClock(speed)
    pace, keeper = Pace(clock, HELD_PERIODS * DEMO_PERIOD_S), Keeper(ticks)
    async with AsyncExitStack() as stack:
        fleet = await stack.enter_async_context(SimulatedFleet(demo_scenario(1), clock, pace.simulated))
        scrape = ScrapeSettings(dcgm=(fleet.dcgm_url,), gateways=(fleet.gateway_url,))
        settings = Settings(mode=Mode.DIRECT, period_s=DEMO_PERIOD_S, scrape=scrape, http=None)
        policies = PolicyFiles((shipped(), POLICIES), SystemClock())
        sources = await open_sources(stack, settings, clock, policies)
        background = [("world", fleet.run), ("enough", keeper.wait)]
        parts = LoopParts(
            clock=clock,
            workloads=fleet,
            sources=sources,
            actuator=fleet,
            leadership=AlwaysLeading(),
            policies=policies,
            background=background,
        )
        parts.recorders += [pace, keeper]
        try:
            await run_loop(await build_loop(stack, parts, settings, mode="demo"), parts)
        except* Enough:
            pass
    return keeper.inputs


def join(inputs: Sequence[TickInput], offsets_s: Sequence[float], pods_each: int = 1_000_000) -> TickInput:
    """Put the fleets of several ticks together to one; each copy has its own names, ids and pools, without limit.

    offsets_s: of the clock of each copy.
    """
    now_s, first = inputs[0].now_s, inputs[0]
    rows = [len(each.fleet.workloads) for each in inputs]
    before, pools = np.cumsum([0, *rows[:-1]]), len(first.fleet.pools)

    def stacked(name: str, axis: int = -1) -> Any:
        return np.concatenate([getattr(each.fleet, name) for each in inputs], axis=axis)

    def moved(table: Any, each: TickInput) -> Any:
        """Put times of a copy onto the clock of the first one."""
        times = {name: getattr(table, name) - each.now_s + now_s for name in vars(table) if name.endswith("time_s")}
        return replace(table, **times)

    names = {name: stacked(name) for name in ("replicas", "paused", "gpus_per_replica", "pod_ready", "pod_terminating")}
    times = {
        name: np.concatenate(
            [getattr(each.fleet, name) - past_s for each, past_s in zip(inputs, offsets_s, strict=True)]
        )
        for name in ("pod_created_s", "pod_scheduled_s", "pod_started_s", "pod_ready_s")
    }
    every_pool = tuple(pool for each in inputs for pool in each.fleet.pools)
    fleet = replace(
        first.fleet,
        **names,
        **times,
        time_s=now_s,
        workloads=tuple(
            workload._replace(ref=workload.ref._replace(namespace=f"{workload.ref.namespace}-{copy}"))
            for copy, each in enumerate(inputs)
            for workload in each.fleet.workloads
        ),
        workload_id=np.arange(sum(rows)),
        other_owner=("",) * sum(rows),
        pool=np.concatenate([each.fleet.pool + pools * copy for copy, each in enumerate(inputs)]),
        obstacles=Obstacles.none(sum(rows)),
        pods=tuple(pod for each in inputs for pod in each.fleet.pods),
        pod_id=np.concatenate([each.fleet.pod_id + pods_each * copy for copy, each in enumerate(inputs)]),
        pod_workload=np.concatenate(
            [each.fleet.pod_workload + past for each, past in zip(inputs, before, strict=True)]
        ),
        pod_pending=stacked("pod_pending"),
        pod_slots=stacked("pod_slots"),
        pools=every_pool,
        groups=NodeGroups.of_pools(every_pool, np.full(len(every_pool), np.nan)),
    )
    schedules = [each.schedule for each in inputs]
    columns = ("start_s", "until_s", "replicas", "lead_s")
    schedule = Schedule(*(np.concatenate([getattr(each, name) for each in schedules]) for name in columns))
    samples = Samples(
        PodSamples.stack([moved(each.samples.pods, each) for each in inputs]),
        GatewaySamples.stack([moved(each.samples.gateways, each) for each in inputs]),
    )
    return TickInput(now_s, fleet, Spec.stack([each.spec for each in inputs]), schedule, samples.rounded())


def ticks(inputs: Sequence[TickInput], copies: int, count: int) -> Iterator[TickRecord]:
    step, memory = (len(inputs) - count) // copies, Memory.empty()
    offsets_s = [inputs[step * copy].now_s - inputs[0].now_s for copy in range(copies)]
    held: dict[Any, float] = {}  # in the demo, where decisions are followed
    for number in range(count):
        inp = join([inputs[number + step * copy] for copy in range(copies)], offsets_s)
        decision, after = tick(inp, memory)
        counts = dict(zip((each.ref for each in inp.fleet.workloads), inp.fleet.replicas.tolist(), strict=True))
        changed = [(ref, count) for ref, count in counts.items() if held.get(ref, count) != count]
        held = counts
        outcomes = tuple(Outcome(Change(ref, "", 2, int(to), SENTENCE), ChangeStatus.APPLIED) for ref, to in changed)
        policies = ("interactive",) * len(inp.fleet.workloads)
        wall_s = 1.8e9 + DEMO_PERIOD_S * number
        record = TickRecord(number, inp.now_s, wall_s, 0.1, inp, decision, policies, outcomes, leading=True)
        yield replace(record, memories=(memory, after))
        memory = after


def measure(records: Iterator[TickRecord], folder: Path) -> tuple[int, int, int, float]:
    """Write the ticks; return services, pods and ticks, and the CPU seconds of a tick."""
    folders.prepare(folder)
    writer, took, count = FolderWriter(folder, 10**12, 7), 0.0, 0
    writer.begin()
    for record in records:
        began = time.thread_time()
        writer.take(record)
        count += 1
        if count % BLOCK == 0:
            writer.flush()
        took += time.thread_time() - began
    writer.close()
    return len(record.policies), len(record.input.fleet.pods), count, took / count


def sizes(folder: Path) -> dict[str, float]:
    """Return the bytes of each part of the record."""
    found: dict[str, float] = {}
    for path in folders.files(folder):
        file = RecordFile.open(path)
        for decided, inputs, memory in file.rows(
            "SELECT sum(length(decided)), sum(length(inputs)), sum(length(memory)) FROM blocks"
        ):
            found = {"decided": decided, "inputs": inputs, "memory": memory}
        found["file"] = path.stat().st_size - PAGE_BYTES * (len(TABLES) + 1)  # less what an empty one takes
        file.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ticks", type=int, default=2000, help="ticks of the demo")
    parser.add_argument("--written", type=int, default=480, help="ticks of the large fleet")
    parser.add_argument("--services", type=int, default=200)
    parser.add_argument("--speed", type=float, default=600.0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.ticks < given.written + FIRST:
        parser.error(f"--ticks is {given.ticks}; allowed: at least {FIRST} more than --written, {given.written}")
    inputs = asyncio.run(run_demo(given.ticks, given.speed))[FIRST:]
    copies = max(round(given.services / len(inputs[0].fleet.workloads)), 1)
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "record"
        services, pods, count, took = measure(ticks(inputs, copies, given.written), folder)
        found = sizes(folder)
    week = WEEK_TICKS / count
    inputs_day = found["inputs"] * week / 7
    memories = 28 * found["memory"]
    others = (found["file"] - found["inputs"] - found["memory"]) * week
    kept = (100e6 - others) / (inputs_day + memories / 7)
    show(
        {
            "machine": machine(),
            "services": services,
            "pods": pods,
            "ticks": count,
            "cpu_ms_a_tick": round(took * 1e3, 2),
            **{f"{name}_bytes_a_service_and_tick": round(size / count / services, 2) for name, size in found.items()},
            "decisions_mb_a_week": round(others / 1e6, 1),
            "inputs_mb_a_day": round(inputs_day / 1e6, 1),
            "days_computed_again_in_100_mb": round(kept, 1),
        },
        given.json,
    )


if __name__ == "__main__":
    main()
