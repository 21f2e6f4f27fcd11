"""`demo`: the real daemon on a simulated fleet. Only this module imports the simulator."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

from rich.console import Console

from autoscaler.adapters.clock import SystemClock
from autoscaler.adapters.engine_sleep import EngineSleep
from autoscaler.adapters.standard_output import printing
from autoscaler.app.report import make_report, record_options, write_report
from autoscaler.app.wiring import LoopParts, build_loop, open_sources, run_loop
from autoscaler.config.policy.parse import shipped
from autoscaler.config.policy.reload import PolicyFiles
from autoscaler.config.settings import HttpSettings, Mode, RecordSettings, ScrapeSettings, Settings
from autoscaler.daemon.log import LogRecorder
from autoscaler.ports import Unavailable
from autoscaler.sim.demo.clock import CompressedClock, Pace
from autoscaler.sim.demo.scenario import POLICIES as DEMO_POLICIES
from autoscaler.sim.demo.scenario import demo_scenario
from autoscaler.sim.demo.serve import SimulatedFleet

DEMO_PERIOD_S = 15.0
"""Simulated seconds between ticks: a quarter of a real second at the default speed."""

WEEK_S = 7 * 86_400.0
HELD_PERIODS = 2
"""The clock waits for a tick that takes longer."""


async def demo(
    *,
    duration_s: float | None,
    speed: float,
    seed: int,
    as_json: bool,
    record: Path | None = None,
    http_port: int = 0,
) -> int:
    """Run the real daemon on a simulated fleet that serves real metrics over loopback."""
    clock = CompressedClock(speed)
    pace = Pace(clock, HELD_PERIODS * DEMO_PERIOD_S)
    policies = PolicyFiles((shipped(), DEMO_POLICIES), SystemClock())
    http = HttpSettings(host="127.0.0.1", port=http_port)
    recorded = RecordSettings(folder=record) if record is not None else None
    with ExitStack() as after:
        async with AsyncExitStack() as stack:
            fleet = await stack.enter_async_context(SimulatedFleet(demo_scenario(seed), clock, pace.simulated))
            scrape = ScrapeSettings(dcgm=(fleet.dcgm_url,), gateways=(fleet.gateway_url,))
            settings = Settings(mode=Mode.DIRECT, period_s=DEMO_PERIOD_S, scrape=scrape, http=http, record=recorded)
            sources = await open_sources(stack, settings, clock, policies)
            parts = LoopParts(
                clock=clock,
                workloads=fleet,
                sources=sources,
                actuator=fleet,
                policies=policies,
                background=[("world", fleet.run)],
            )
            parts.sleeper = sleeper = await stack.enter_async_context(EngineSleep(scrape, clock, parts.leadership))
            parts.problems = sleeper.problems
            parts.recorders += [pace, LogRecorder()]
            loop = await build_loop(stack, parts, settings, mode="demo")
            if record is not None:
                after.callback(_report, record)
            if not as_json:
                print(f"The page: {parts.page}   (seed {seed}, {speed:g} times real time, Ctrl-C ends it)", flush=True)
            try:
                async with asyncio.timeout(duration_s):
                    await run_loop(loop, parts)
            except TimeoutError:
                pass
            finally:
                summary = fleet.summary()
                with printing():
                    print(json.dumps(summary.as_json()) if as_json else f"\n{summary.sentence()}", flush=True)
    return 0


def _report(record: Path) -> None:
    """Write the report of a record into its folder; a record of less than an hour has none."""
    options = record_options(record, WEEK_S, html=record / "report.html", json=record / "report.json")
    try:
        write_report(make_report(options, Console(quiet=True)), options)
    except Unavailable as error:
        print(f"no report: {error}", file=sys.stderr)
    else:
        print(f"The record: {record}; its report: {(record / 'report.html').resolve()}", file=sys.stderr)
