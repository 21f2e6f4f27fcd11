"""Time the cost of a restart: save, load and restore the learned state of many workloads.

Wall time, medians, on a real file. Saving and loading run in a thread. `held_ms` is the longest block of the event loop
meanwhile, that is, the largest delay of a due tick. Restoring is part of the first tick.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

sys.path.insert(0, str(Path(__file__).parents[2]))

from autoscaler.adapters.state_file import StateFile
from autoscaler.core.snapshot import restore, take
from autoscaler.core.state import Memory
from autoscaler.core.tick import tick
from bench.micro import fleets

ROUNDS = 7
WALL_S = 1_800_000_000.0
BREATH_S = 0.001
Result = TypeVar("Result")


async def timed(work: Callable[[], Awaitable[Result]]) -> tuple[float, float, Result]:
    """Return the duration of work, the longest block of the loop, and the result; seconds."""
    held_s = [0.0]

    async def breathe() -> None:
        while True:
            slept_s = time.perf_counter()
            await asyncio.sleep(BREATH_S)
            held_s.append(time.perf_counter() - slept_s - BREATH_S)

    breathing = asyncio.create_task(breathe())
    await asyncio.sleep(5 * BREATH_S)
    held_s.clear()
    began_s = time.perf_counter()
    result = await work()
    took_s = time.perf_counter() - began_s
    breathing.cancel()
    return took_s, max(held_s, default=0.0), result


async def measure(workloads: int) -> dict[str, float]:
    cluster, memory = fleets.fleet(workloads), Memory.empty()
    for inp in fleets.inputs(cluster, 3):
        _, memory = tick(inp, memory)
    snapshot = take(memory, cluster.workloads, inp.now_s, WALL_S)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.npz"
        file = StateFile(path)
        saved = [await timed(lambda: file.save(snapshot)) for _ in range(ROUNDS)]
        loaded = [await timed(file.load) for _ in range(ROUNDS)]
        size = path.stat().st_size
    restored_s = []
    for *_, found in loaded:
        assert found is not None
        began_s = time.perf_counter()
        _, known = restore(found, Memory.empty(), cluster, inp.now_s, WALL_S)
        restored_s.append(time.perf_counter() - began_s)
        assert known == workloads
    return {
        "workloads": workloads,
        "bytes_per_workload": round(size / workloads),
        "save_ms": round(1e3 * statistics.median(took_s for took_s, *_ in saved), 1),
        "load_ms": round(1e3 * statistics.median(took_s for took_s, *_ in loaded), 1),
        "restore_ms": round(1e3 * statistics.median(restored_s), 1),
        "held_ms": round(1e3 * max(held_s for _, held_s, _ in (*saved, *loaded)), 1),
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--workloads", type=int, default=10_000, help="number of workloads")
    options.add_argument("--json", action="store_true", help="print JSON instead of text")
    args = options.parse_args()
    result = asyncio.run(measure(args.workloads))
    if args.json:
        print(json.dumps(result))
    else:
        print(f"{result['workloads']} workloads, {result['bytes_per_workload']} bytes each: saved in")
        print(f"{result['save_ms']} ms, loaded in {result['load_ms']} ms, restored in {result['restore_ms']} ms,")
        print(f"while the event loop was held for {result['held_ms']} ms at most")


if __name__ == "__main__":
    main()
