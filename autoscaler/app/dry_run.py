"""`dry-run`: decisions from live metrics, printed and not carried out."""

from __future__ import annotations

import asyncio
import math
import sys
from contextlib import AsyncExitStack

from rich.console import Console

from autoscaler.adapters.clock import SystemClock
from autoscaler.adapters.console import ChangeLines, JsonLines, LiveTable
from autoscaler.adapters.in_memory import RecordingActuator
from autoscaler.adapters.kubernetes.managed import NEEDED
from autoscaler.adapters.prometheus.discovery.discovered_fleet import DiscoveredFleet
from autoscaler.adapters.prometheus.promql.gpus import GPU_PRESENCE
from autoscaler.adapters.web.metrics import Metrics
from autoscaler.app.wiring import LoopParts, build_loop, connect_cluster, open_sources, restore_memory, run_loop
from autoscaler.config.policy.reload import PolicyFiles
from autoscaler.config.settings import Settings
from autoscaler.daemon.loop import Loop
from autoscaler.daemon.totals import HourlyTotals
from autoscaler.ports import Unavailable, WorkloadSource

LISTED_S, POLL_S = 15.0, 0.1
"""How long `dry-run --once` waits for the cluster to be listed, and how often it checks."""


UNKNOWN_GPUS = f"no series of {', '.join(GPU_PRESENCE)} names pods of some; state --gpus-per-replica"


async def dry_run(settings: Settings, *, as_json: bool, once: bool, gpus_per_replica: float = math.nan) -> int:
    """Print decisions from live metrics, with cluster access for the real objects. Changes nothing.

    gpus_per_replica: of workloads whose GPUs no metric tells; without cluster access.
    """
    async with AsyncExitStack() as stack:
        clock = SystemClock()
        policies = PolicyFiles(settings.policies, clock, settings.default_policy)
        sources = await open_sources(stack, settings, clock, policies)
        if settings.kube:
            parts = await connect_cluster(stack, settings, clock, policies, sources, Metrics())
        else:
            assert settings.prometheus  # the command line requires it
            discovery = DiscoveredFleet(settings.prometheus, clock, settings.namespaces, gpus_per_replica)
            discovered = await stack.enter_async_context(discovery)
            parts = LoopParts(
                clock=clock,
                workloads=discovered,
                sources=[*sources, discovered],
                actuator=RecordingActuator(),
                policies=policies,
            )
        console = Console()
        unknown_gpus = "" if settings.kube else UNKNOWN_GPUS
        nothing = f"no workload was found; needed: {NEEDED[settings.mode]}"
        shows_table = console.is_terminal and not as_json

        def say(line: str) -> None:
            # Standard output has the decisions. A table is drawn again below what its console prints.
            console.print(line) if shows_table else print(line, file=sys.stderr)

        totals = HourlyTotals(say, acts=False)
        if not once:
            stack.callback(totals.say_last)
            parts.recorders.append(totals)
        if as_json:
            parts.recorders.append(JsonLines(sys.stdout, nothing))
        elif shows_table:
            table = LiveTable(console, once=once, nothing=nothing, unknown_gpus=unknown_gpus)
            parts.recorders.append(stack.enter_context(table))
        else:
            parts.recorders.append(ChangeLines(sys.stdout, nothing, once=once, unknown_gpus=unknown_gpus))
        loop = await build_loop(stack, parts, settings)
        if not once:
            print(f"The page: {parts.page}", file=sys.stderr)
            await restore_memory(loop, parts, settings)
            await run_loop(loop, parts)
        return await _once(loop, parts)


async def _once(loop: Loop, parts: LoopParts) -> int:
    """Tick once when the workloads are known, or after `LISTED_S`. Returns 1 if the tick failed."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(work(), name=name) for name, work in parts.background]
        until_s = parts.clock.now_s() + LISTED_S
        while tasks and not _known(parts.workloads) and parts.clock.now_s() < until_s:
            await parts.clock.sleep(POLL_S)
        record = await loop.attempt()
        for task in tasks:
            task.cancel()
    return 0 if record else 1


def _known(workloads: WorkloadSource) -> bool:
    try:
        workloads.fleet()
    except Unavailable:
        return False
    return True
