"""Measure GetMetrics with 32 calls in flight, against a servicer that does nothing on the same server.

    python bench/micro/keda.py [--json] [--workloads 1000] [--rounds 41] [--seconds 0.15]

Both servers run in one process with the same options. The client is another process, so its work does not count. Short
rounds alternate between the two servers, and the ratio is the median over rounds, so other load on the machine affects
both. Rates are calls per second of wall time, and of the server's CPU time.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import resource
import statistics
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for the tick of the tests

import grpc
import structlog

from autoscaler.adapters.clock import SystemClock
from autoscaler.adapters.keda.answers import Answers
from autoscaler.adapters.keda.proto import externalscaler_pb2 as pb
from autoscaler.adapters.keda.proto.externalscaler_pb2_grpc import (
    ExternalScalerServicer,
    ExternalScalerStub,
    add_ExternalScalerServicer_to_server,
)
from autoscaler.adapters.keda.server import MAX_CALLS, KedaServer, server_options
from autoscaler.adapters.keda.service import KedaService
from autoscaler.config.settings import KedaSettings
from bench.micro.result import machine, show
from tests.adapters.keda.world import METADATA, Row, World, scaled_object

IN_FLIGHT = 32
TARGET_RATIO = 0.85


class Empty(ExternalScalerServicer):
    """Answers without work, to measure the cost of gRPC itself."""

    def __init__(self) -> None:
        value = pb.MetricValue(metricName="replicas", metricValue=3, metricValueFloat=3.0)
        self._answer = pb.GetMetricsResponse(metricValues=[value])
        spec = pb.MetricSpec(metricName="replicas", targetSize=1, targetSizeFloat=1.0)
        self._spec = pb.GetMetricSpecResponse(metricSpecs=[spec])
        self._active = pb.IsActiveResponse(result=True)

    async def GetMetrics(self, request: Any, context: Any) -> pb.GetMetricsResponse:
        return self._answer

    async def GetMetricSpec(self, request: Any, context: Any) -> pb.GetMetricSpecResponse:
        return self._spec

    async def IsActive(self, request: Any, context: Any) -> pb.IsActiveResponse:
        return self._active


async def serve(workloads: int, pipe: Connection) -> None:
    """Serve both until the pipe says stop. Send the ports, then the CPU seconds so far on request."""
    world = World()
    names = [f"model-{i}" for i in range(workloads)]
    world.answers = Answers(SystemClock(), world.lease)
    world.service = KedaService(world.answers, world.cluster, lambda: world.book)
    for name in names:
        world.cluster.add(scaled_object(name))
    world.clock.time_s = time.monotonic()
    world.decide(*(Row(name, i % 50, current=1 + i % 7, id=i, max_age_s=3600) for i, name in enumerate(names)))

    empty = grpc.aio.server(options=server_options(), maximum_concurrent_rpcs=MAX_CALLS)
    add_ExternalScalerServicer_to_server(Empty(), empty)  # type: ignore[no-untyped-call]
    empty_port = empty.add_insecure_port("127.0.0.1:0")
    await empty.start()
    async with KedaServer(KedaSettings(host="127.0.0.1", port=0), world.service, world.lease) as server:
        pipe.send((server.port, empty_port))
        loop = asyncio.get_running_loop()
        while await loop.run_in_executor(None, pipe.recv) == "cpu":
            used = resource.getrusage(resource.RUSAGE_SELF)
            pipe.send(used.ru_utime + used.ru_stime)
    await empty.stop(0)


def serve_in_process(workloads: int, pipe: Connection) -> None:
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))  # the output holds figures only
    asyncio.run(serve(workloads, pipe))


async def load(stub: Any, requests: list[pb.GetMetricsRequest], seconds: float) -> int:
    """Keep 32 calls in flight for some seconds; return the number of answers."""
    end, calls = time.monotonic() + seconds, 0

    async def caller(number: int) -> None:
        nonlocal calls
        while time.monotonic() < end:
            await stub.GetMetrics(requests[(calls + number) % len(requests)])
            calls += 1

    await asyncio.gather(*map(caller, range(IN_FLIGHT)))
    return calls


async def measure(workloads: int, rounds: int, seconds: float) -> dict[str, Any]:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=serve_in_process, args=(workloads, theirs), name="keda-bench-server", daemon=True
    )
    process.start()
    theirs.close()
    ports = ours.recv()
    requests = [
        pb.GetMetricsRequest(
            scaledObjectRef=pb.ScaledObjectRef(namespace="prod", name=f"model-{i}", scalerMetadata=METADATA),
            metricName="replicas",
        )
        for i in range(workloads)
    ]

    def cpu_s() -> float:
        ours.send("cpu")
        used: float = ours.recv()
        return used

    per_wall: dict[str, list[float]] = {"service": [], "empty": []}
    per_cpu: dict[str, list[float]] = {"service": [], "empty": []}
    channels = [grpc.aio.insecure_channel(f"127.0.0.1:{port}") for port in ports]
    stubs = dict(zip(per_wall, map(ExternalScalerStub, channels), strict=True))
    for stub in stubs.values():
        await load(stub, requests, min(seconds, 0.5))  # warm up connections and caches
    for number in range(rounds):
        for name in sorted(stubs, reverse=bool(number % 2)):
            started_s, cpu_before_s = time.monotonic(), cpu_s()
            calls = await load(stubs[name], requests, seconds)
            per_wall[name].append(calls / (time.monotonic() - started_s))
            per_cpu[name].append(calls / (cpu_s() - cpu_before_s))
    for channel in channels:
        await channel.close()
    ours.send("stop")
    process.join(10)

    def ratio(rates: dict[str, list[float]]) -> float:
        return statistics.median(a / b for a, b in zip(rates["service"], rates["empty"], strict=True))

    return {
        "in_flight": IN_FLIGHT,
        "workloads": workloads,
        "service_calls_per_s": round(statistics.median(per_wall["service"])),
        "empty_calls_per_s": round(statistics.median(per_wall["empty"])),
        "ratio": round(ratio(per_wall), 3),
        "service_calls_per_cpu_s": round(statistics.median(per_cpu["service"])),
        "empty_calls_per_cpu_s": round(statistics.median(per_cpu["empty"])),
        "ratio_of_cpu": round(ratio(per_cpu), 3),
        "target_ratio": TARGET_RATIO,
        "machine": f"{machine()}, grpcio {grpc.__version__}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--workloads", type=int, default=1000, help="number of workloads")
    parser.add_argument("--rounds", type=int, default=41, help="number of rounds")
    parser.add_argument("--seconds", type=float, default=0.15, help="length of a round, for each server")
    options = parser.parse_args()
    result = asyncio.run(measure(options.workloads, options.rounds, options.seconds))
    show(result, options.json)


if __name__ == "__main__":
    main()
