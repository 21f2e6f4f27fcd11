"""Measure the cost of the daemon in KEDA mode: 219 ScaledObjects of one pod each, scraped every five seconds.

    python bench/micro/keda_cost.py [--workloads 219] [--seconds 10] [--rounds 3] [--json]

The real loop reads pods that another process serves, decides, and records as in a cluster; the real server answers.
This process makes the calls of KEDA's poll and of the HPA's query, each every 15 s. That is GetMetricSpec, GetMetrics
and IsActive in a row, twice in 15 s for each workload.

A round has three parts: no calls, these calls, and the same calls to a servicer without work, with the same options in
its own process. Figures are CPU milliseconds (user and system) of the answering process, per workload and minute,
medians of the rounds:

* `all_ms`: the daemon while it is called; `all_ms_each`: in each round.
* `follower_ms`: a replica that follows: reading, deciding and recording, less often, and no calls.
* `ticks_ms`: reading, deciding and recording, without calls.
* `calls_ms`: the extra cost of calls; `empty_calls_ms`: their cost in the servicer without work.
* `ratio`: the former over the latter, in the same rounds.
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

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import grpc
import structlog

from autoscaler.adapters.clock import SystemClock
from autoscaler.adapters.in_memory import AlwaysLeading
from autoscaler.adapters.keda.answers import Answers
from autoscaler.adapters.keda.proto import externalscaler_pb2 as pb
from autoscaler.adapters.keda.proto.externalscaler_pb2_grpc import (
    ExternalScalerStub,
    add_ExternalScalerServicer_to_server,
)
from autoscaler.adapters.keda.server import MAX_CALLS, KedaServer, server_options
from autoscaler.adapters.keda.service import KedaService
from autoscaler.adapters.scrape.pods import PodScraper
from autoscaler.adapters.web.dashboard import Dashboard
from autoscaler.adapters.web.metrics import Metrics
from autoscaler.adapters.web.readiness import Readiness
from autoscaler.config.policy.parse import load
from autoscaler.config.settings import KedaSettings, ScrapeSettings
from autoscaler.core.explain.sentence import explain
from autoscaler.core.model.fleet import Fleet
from autoscaler.daemon.log import LogRecorder
from autoscaler.daemon.loop import Loop, Parts
from autoscaler.ports import Leadership
from bench.micro import fleets, keda, scrape
from bench.micro.result import show
from bench.micro.whole_tick import Cluster
from tests.adapters.keda.world import METADATA, scaled_object
from tests.adapters.keda.world import Cluster as ScaledObjects

PERIOD_S = 5.0
PARTS = 3  # of a round, for all of which the follower is measured
EVERY_S = 7.5  # KEDA polls every 15 s, and the HPA queries every 15 s


async def answer_for_cpu(pipe: Connection) -> None:
    """Send the CPU seconds so far on each request, until the pipe says stop."""
    loop = asyncio.get_running_loop()
    while await loop.run_in_executor(None, pipe.recv) == "cpu":
        pipe.send(scrape.cpu_s())


class Following:
    """Leadership of another process."""

    leading = False
    has_other_leader = True


async def run_daemon(ports: list[int], pipe: Connection, leading: Leadership) -> None:
    fleets.PODS_PER_WORKLOAD = 1
    clock, book = SystemClock(), load()
    cluster, objects = Cluster(scrape.fleet_of(ports), clock), ScaledObjects()
    for workload in cluster.fleet().workloads:
        found = scaled_object(workload.ref.name)
        objects.add(replace(found, namespace=workload.ref.namespace, target=workload.ref))
    answers = Answers(clock, leading)
    service = KedaService(answers, objects, lambda: book)
    async with (
        PodScraper(ScrapeSettings(), clock) as scraper,
        KedaServer(KedaSettings(host="127.0.0.1", port=0), service, leading) as server,
    ):
        loop = Loop(
            Parts(
                clock=clock,
                workloads=cluster,
                sources=[scraper],
                actuator=answers,
                recorders=[answers, Dashboard(explain), Metrics("keda"), Readiness(clock, 60.0), LogRecorder()],
                leadership=leading,
            ),
            policies=lambda: book,
            period_s=PERIOD_S,
            deadline_s=30.0,
        )
        ticking = asyncio.create_task(loop.run())
        pipe.send(server.port)
        await answer_for_cpu(pipe)
        ticking.cancel()


async def run_empty(pipe: Connection) -> None:
    server = grpc.aio.server(options=server_options(), maximum_concurrent_rpcs=MAX_CALLS)
    add_ExternalScalerServicer_to_server(keda.Empty(), server)  # type: ignore[no-untyped-call]
    pipe.send(server.add_insecure_port("127.0.0.1:0"))
    await server.start()
    await answer_for_cpu(pipe)
    await server.stop(0)


def in_process(pipe: Connection, ports: list[int] | None, leads: bool) -> None:
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(io.StringIO()))
    leading = AlwaysLeading() if leads else Following()
    asyncio.run(run_empty(pipe) if ports is None else run_daemon(ports, pipe, leading))


class Called:
    """A server in its own process, and a connection to it."""

    def __init__(self, ports: list[int] | None = None, leads: bool = True) -> None:
        self._pipe, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(target=in_process, args=(theirs, ports, leads), daemon=True)
        self._process.start()
        theirs.close()
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{self._pipe.recv()}")
        self._stub = ExternalScalerStub(self._channel)

    def cpu_s(self) -> float:
        self._pipe.send("cpu")
        used: float = self._pipe.recv()
        return used

    async def call(self, reference: pb.ScaledObjectRef) -> None:
        """Make the calls of one poll of KEDA, or of one query of the HPA."""
        await self._stub.GetMetricSpec(reference)
        request = pb.GetMetricsRequest(scaledObjectRef=reference, metricName="replicas")
        await self._stub.GetMetrics(request)
        await self._stub.IsActive(reference)

    async def call_all(self, references: list[pb.ScaledObjectRef], seconds: float) -> None:
        """Make calls at KEDA's rate for some seconds."""
        pause_s = EVERY_S / len(references)
        loop = asyncio.get_running_loop()
        began_s, calls = loop.time(), []
        for number in range(round(seconds / pause_s)):
            calls.append(asyncio.create_task(self.call(references[number % len(references)])))
            await asyncio.sleep(max(began_s + number * pause_s - loop.time(), 0.0))
        await asyncio.gather(*calls)

    async def close(self) -> None:
        await self._channel.close()
        self._pipe.send("stop")
        self._process.join(10)
        self._process.kill()


async def measure(workloads: int, seconds: float, rounds: int) -> dict[str, Any]:
    scrape.allow_files(4 * workloads + 256)
    fleets.PODS_PER_WORKLOAD = 1
    pods, served = multiprocessing.Pipe()
    serving = multiprocessing.get_context("spawn").Process(target=scrape.serve, args=(workloads, served), daemon=True)
    serving.start()
    ports = pods.recv()
    daemon, follower, empty = Called(ports), Called(ports, leads=False), Called()
    fleet: Fleet = scrape.fleet_of(ports)
    references = [
        pb.ScaledObjectRef(namespace=found.ref.namespace, name=found.ref.name, scalerMetadata=METADATA)
        for found in fleet.workloads
    ]
    await asyncio.sleep(seconds)  # warm up connections, caches and the first tick
    per_minute = 60_000 / seconds / workloads
    names = ("all_ms", "ticks_ms", "calls_ms", "empty_calls_ms", "follower_ms")
    costs: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds):
        follower_s = follower.cpu_s()
        before_s = daemon.cpu_s()
        await asyncio.sleep(seconds)
        quiet_s = daemon.cpu_s() - before_s
        before_s = daemon.cpu_s()
        await daemon.call_all(references, seconds)
        busy_s = daemon.cpu_s() - before_s
        before_s = empty.cpu_s()
        await empty.call_all(references, seconds)
        costs["all_ms"].append(busy_s * per_minute)
        costs["ticks_ms"].append(quiet_s * per_minute)
        costs["calls_ms"].append((busy_s - quiet_s) * per_minute)
        costs["empty_calls_ms"].append((empty.cpu_s() - before_s) * per_minute)
        costs["follower_ms"].append((follower.cpu_s() - follower_s) * per_minute / PARTS)
    for called in (daemon, follower, empty):
        await called.close()
    pods.close()
    serving.kill()
    ratios = (ours / theirs for ours, theirs in zip(costs["calls_ms"], costs["empty_calls_ms"], strict=True))
    return {
        "workloads": workloads,
        **{name: round(statistics.median(values), 1) for name, values in costs.items()},
        "ratio": round(statistics.median(ratios), 2),
        "all_ms_each": [round(value, 1) for value in costs["all_ms"]],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", type=int, default=219, help="number of workloads")
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="length of a part of a round; whole periods are best"
    )
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    result = asyncio.run(measure(options.workloads, options.seconds, options.rounds))
    show(result, options.json)


if __name__ == "__main__":
    main()
