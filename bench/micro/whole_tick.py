"""Measure the daemon's whole tick from raw Prometheus answers: 10,000 workloads x 8 pods, and a tenth.

    python bench/micro/whole_tick.py [--workloads 10000] [--ticks 9] [--period 5] [--json]

The real loop (`daemon.loop.Loop`) runs over the real Prometheus source: queries (five of them for the objectives of the
policies), decode, join, policies and schedule, observe, decide, explain changes. A server in another process
(`answers.py`) answers over loopback. Each size runs in its own process, so that memory is separate.

All figures are CPU seconds (user and system) of that process, medians over ticks after the first two, in which all
series are new. Ticks come every five seconds, so that each evaluates the strategies of a sixth of the workloads:

* `whole_cpu_s`: the tick, up to the changes passed to a recording actuator. Every sixth tick asks the slow queries as
  well.
* `shown_cpu_s`: the extra cost of the recorders: metrics, API and page, readiness, log.
* `peak_rss_mib`: the largest resident memory, including recorders (VmHWM).
"""

from __future__ import annotations

import argparse
import asyncio
import io
import multiprocessing
import statistics
import sys
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import structlog

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from autoscaler.adapters.clock import SystemClock
from autoscaler.adapters.in_memory import AlwaysLeading, RecordingActuator
from autoscaler.adapters.prometheus.instant.source import PrometheusSource
from autoscaler.adapters.web.dashboard import Dashboard
from autoscaler.adapters.web.metrics import Metrics
from autoscaler.adapters.web.readiness import Readiness
from autoscaler.config.policy.parse import load
from autoscaler.config.settings import PrometheusSettings
from autoscaler.core.explain.sentence import explain
from autoscaler.core.model.fleet import Fleet
from autoscaler.daemon.log import LogRecorder
from autoscaler.daemon.loop import Loop, Parts
from bench.micro import answers, fleets
from bench.micro.result import machine, show

TARGET_CPU_S = 1.0
TARGET_RSS_MIB = 400.0
TARGET_GROWTH = 11.0
WARM_UP_TICKS = 2
PERIOD_S = 5.0


class Cluster:
    """A WorkloadSource that is always fresh, under the shipped policies."""

    def __init__(self, fleet: Fleet, clock: SystemClock) -> None:
        names = ("realtime", "interactive", "batch")  # policies that allow eight replicas
        workloads = tuple(
            workload._replace(policy=names[row % len(names)]) for row, workload in enumerate(fleet.workloads)
        )
        self._fleet = replace(fleet, workloads=workloads)
        self._clock = clock

    def fleet(self) -> Fleet:
        return replace(self._fleet, time_s=self._clock.now_s())


async def ticks(url: str, workloads: int, count: int, period_s: float) -> dict[str, float]:
    clock, book = SystemClock(), load()
    recorders = [Dashboard(explain), Metrics("bench"), Readiness(clock, 60.0), LogRecorder()]
    settings = PrometheusSettings(url=url, timeout_s=60, rate_window_s=answers.WINDOW_S)
    whole, shown, changed = [], [], []
    async with PrometheusSource(settings, clock) as source:
        loop = Loop(
            Parts(
                clock=clock,
                workloads=Cluster(fleets.fleet(workloads), clock),
                sources=[source],
                actuator=RecordingActuator(),
                recorders=recorders,
                leadership=AlwaysLeading(),
            ),
            policies=lambda: book,
            period_s=period_s,
            deadline_s=120.0,
        )
        for _ in range(WARM_UP_TICKS + count):
            due_s, began_s = clock.now_s() + period_s, answers.cpu_s()
            record = await loop.tick()
            ticked_s = answers.cpu_s()
            for recorder in recorders:
                recorder.record(record)
            (report,) = record.input.samples.reports
            if report.failed:
                raise SystemExit(f"queries failed: {report.problems}")
            whole.append(ticked_s - began_s)
            shown.append(answers.cpu_s() - ticked_s)
            changed.append(len(record.outcomes))
            await clock.sleep(max(due_s - clock.now_s(), 0.0))
    return {
        "first_cpu_s": whole[0],
        "whole_cpu_s": statistics.median(whole[WARM_UP_TICKS:]),
        "whole_max_cpu_s": max(whole[WARM_UP_TICKS:]),
        "shown_cpu_s": statistics.median(shown[WARM_UP_TICKS:]),
        "changed": statistics.median(changed[WARM_UP_TICKS:]),
        "peak_rss_mib": peak_rss_mib(),
    }


def peak_rss_mib() -> float:
    """Return the peak memory of this process alone; that of getrusage includes the parent's."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def run(workloads: int, count: int, period_s: float, pipe: Connection) -> None:
    """Measure one size and send the figures."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(io.StringIO()))
    pipe.send(asyncio.run(ticks(pipe.recv(), workloads, count, period_s)))


def measure(workloads: int, count: int, period_s: float) -> dict[str, float]:
    """Serve and run one size, each in its own process."""
    context = multiprocessing.get_context("spawn")
    to_server, server_end = context.Pipe()
    to_daemon, daemon_end = context.Pipe()
    server = context.Process(target=answers.serve, args=(workloads, server_end), daemon=True)
    daemon = context.Process(target=run, args=(workloads, count, period_s, daemon_end), daemon=True)
    server.start()
    server_end.close()
    port = to_server.recv()
    daemon.start()
    daemon_end.close()  # otherwise a crash of the daemon process would not be noticed
    to_daemon.send(f"http://127.0.0.1:{port}")
    try:
        figures: dict[str, float] = to_daemon.recv()
    finally:
        to_server.close()
        for process in (daemon, server):
            process.join(10)
            process.kill()
    return figures


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--workloads", type=int, default=10_000, help="number of workloads")
    options.add_argument("--ticks", type=int, default=9, help="number of ticks to measure")
    options.add_argument("--period", type=float, default=PERIOD_S, metavar="SECONDS", help="time between ticks")
    options.add_argument("--json", action="store_true", help="print JSON instead of text")
    given = options.parse_args()
    sizes = given.workloads // 10, given.workloads
    tenth, whole = (measure(workloads, given.ticks, given.period) for workloads in sizes)
    growth = whole["whole_cpu_s"] / tenth["whole_cpu_s"]
    result: dict[str, Any] = {
        "workloads": given.workloads,
        "pods_per_workload": fleets.PODS_PER_WORKLOAD,
        **{name: round(value, 4) for name, value in whole.items()},
        **{f"tenth_{name}": round(value, 4) for name, value in tenth.items()},
        "growth": round(growth, 2),
        "target_whole_cpu_s": TARGET_CPU_S,
        "target_peak_rss_mib": TARGET_RSS_MIB,
        "target_growth": TARGET_GROWTH,
        "met": whole["whole_cpu_s"] <= TARGET_CPU_S
        and whole["peak_rss_mib"] <= TARGET_RSS_MIB
        and growth <= TARGET_GROWTH,
        "machine": machine(),
    }
    show(result, given.json)
    return 0 if result["met"] or given.workloads != 10_000 else 1


if __name__ == "__main__":
    raise SystemExit(main())
