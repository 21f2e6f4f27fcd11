"""Measure the start of the command: `--help`, and from the start of the process to the first decision.

    python bench/micro/start.py [--rounds 9] [--json]

The API is polled every 5 ms for the first decision. `run` is in direct mode with a real kube-apiserver under the
shipped Role and a pod to scrape; leader election is included, and the run before gave its lease back. `demo` is
measured too. Figures are median wall seconds; files are in the page cache, as after any earlier start.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.micro.cluster import site
from bench.micro.result import machine, show
from tests.integration.command import COMMAND, Daemon, daemon

TARGET_HELP_S = 0.5
TARGET_RUN_S = 3.0


def help_s() -> float:
    began_s = time.perf_counter()
    subprocess.run([COMMAND, "--help"], check=True, capture_output=True)
    return time.perf_counter() - began_s


async def first_decision_s(start: Callable[[], AbstractAsyncContextManager[Daemon]]) -> float:
    """Return the seconds from the start of the process to its first tick, and end it cleanly."""
    async with start() as running:
        deadline_s = time.monotonic() + 60
        while (await running.json("/api/v1/workloads")).get("tick") is None:
            if running.code is not None or time.monotonic() > deadline_s:
                raise SystemExit(f"no decision came: {running.err[-2000:]}")
            await asyncio.sleep(0.005)
        took_s = time.monotonic() - running.started_s
        running.signal(signal.SIGTERM)
        await running.ended()
        return took_s


async def measure(rounds: int) -> dict[str, list[float]]:
    took: dict[str, list[float]] = {"help": [help_s() for _ in range(rounds)]}
    async with site() as where:
        await where.workload()
        user = await where.user("direct")
        starts: dict[str, Callable[[], AbstractAsyncContextManager[Daemon]]] = {
            "run": lambda: where.daemon(user, "direct", "--scrape", period="5s", ready=False),
            "demo": lambda: daemon(where.directory, "demo", ready=False),
        }
        for name, start in starts.items():
            took[name] = [await first_decision_s(start) for _ in range(rounds)]
    return took


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=9, help="number of starts to measure")
    options.add_argument("--json", action="store_true", help="print JSON instead of text")
    given = options.parse_args()
    took = asyncio.run(measure(given.rounds))
    medians = {name: statistics.median(times) for name, times in took.items()}
    result: dict[str, Any] = {
        "rounds": given.rounds,
        **{f"{name}_s": round(median, 3) for name, median in medians.items()},
        **{f"{name}_max_s": round(max(times), 3) for name, times in took.items()},
        "target_help_s": TARGET_HELP_S,
        "target_run_s": TARGET_RUN_S,
        "met": medians["help"] <= TARGET_HELP_S and medians["run"] <= TARGET_RUN_S,
        "machine": machine(),
    }
    show(result, given.json)
    return 0 if result["met"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
