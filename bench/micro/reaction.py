"""Measure the time from a queue's appearance to the scale patch accepted by a real kube-apiserver.

    python bench/micro/reaction.py [--workloads 10] [--rounds 20] [--json]

The installed command runs in its own process, `run --mode direct --scrape --period 1s`, under the shipped Role. Each
workload's pod serves a recorded body. At a random time, independent of the daemon's ticks, the body becomes the one
recorded with 30 waiting requests. The clock stops when a watch shows the new count; then load and count go back. With
one pod per workload and ten workloads this measures the reaction; `scrape.py` measures the fan-out.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import time
from contextlib import AsyncExitStack, suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from kubernetes_asyncio.client import AppsV1Api
from kubernetes_asyncio.client.exceptions import ApiException
from kubernetes_asyncio.watch import Watch

from autoscaler.adapters.kubernetes.api.client import FIELD_MANAGER
from bench.micro.cluster import site
from bench.micro.result import machine, show
from tests.harness.exposition import ExpositionServer, exposition_server
from tests.integration.site import Site, recording

TARGET_P99_S = 2.0
PERIOD_S = 1.0
WANTED = 4  # replicas for 4 running and 30 waiting requests, at ten per replica


class Counts:
    """The replica counts of all workloads, as a watch shows them."""

    def __init__(self) -> None:
        self._now: dict[str, int] = {}
        self._changed = asyncio.Condition()

    async def follow(self, where: Site) -> None:
        """Watch until cancelled, and retry when a server's cache is behind its store."""
        while True:
            with suppress(ApiException):
                await self._follow(where)

    async def _follow(self, where: Site) -> None:
        async with where.api.client() as client, Watch() as watch:
            async for event in watch.stream(AppsV1Api(client).list_namespaced_deployment, where.namespace):
                async with self._changed:
                    self._now[event["object"].metadata.name] = event["object"].spec.replicas
                    self._changed.notify_all()

    async def until(self, name: str, count: int) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self._now.get(name) == count)


async def react(where: Site, counts: Counts, name: str, server: ExpositionServer, rounds: int) -> list[float]:
    """Let a queue appear several times; return the seconds until each reaction."""
    took = []
    for _ in range(rounds):
        await asyncio.sleep(
            random.uniform(1.5, 1.5 + PERIOD_S)
        )  # wait until the last round is over; the phase is random
        server.serve("/metrics", recording("saturated"))
        began_s = time.monotonic()
        async with asyncio.timeout(30):
            await counts.until(name, WANTED)
        took.append(time.monotonic() - began_s)
        server.serve("/metrics", recording("idle"))
        await where.scale(name, 1, by=FIELD_MANAGER)
        await counts.until(name, 1)
    return took


async def measure(workloads: int, rounds: int) -> list[float]:
    async with AsyncExitStack() as stack:
        where = await stack.enter_async_context(site())
        counts = Counts()
        servers = {}
        for number in range(workloads):
            server = await stack.enter_async_context(exposition_server())
            server.serve("/metrics", recording("idle"))
            servers[f"model-{number}"] = server
            await where.workload(f"model-{number}", metrics_port=server.address.rpartition(":")[2])
        following = asyncio.create_task(counts.follow(where))
        try:
            user = await where.user("direct")
            async with where.daemon(user, "direct", "--scrape", period=f"{PERIOD_S:g}s"):
                each = [react(where, counts, name, server, rounds) for name, server in servers.items()]
                return [took for one in await asyncio.gather(*each) for took in one]
        finally:
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--workloads", type=int, default=10, help="number of workloads")
    options.add_argument("--rounds", type=int, default=20, help="rounds for each workload")
    options.add_argument("--json", action="store_true", help="print JSON instead of text")
    given = options.parse_args()
    random.seed(1)
    took = asyncio.run(measure(given.workloads, given.rounds))
    cuts = statistics.quantiles(took, n=100, method="inclusive")
    result = {
        "reactions": len(took),
        "period_s": PERIOD_S,
        "p50_s": round(cuts[49], 3),
        "p99_s": round(cuts[98], 3),
        "max_s": round(max(took), 3),
        "target_p99_s": TARGET_P99_S,
        "met": cuts[98] <= TARGET_P99_S,
        "machine": machine(),
    }
    show(result, given.json)
    return 0 if result["met"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
