"""Measure the direct scrape: 1,000 pods that serve recorded bodies (about 50 KB each) from another process.

    python bench/micro/scrape.py [--pods 1000] [--rounds 5] [--json]

Reports CPU seconds of the scraping process (user and system, `getrusage`) and the wall time of one scrape of all pods.
The CPU time divides into getting the bodies, finding the samples in them, and folding them into columns.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import resource
import statistics
import sys
import time
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from autoscaler.adapters.clock import SystemClock
from autoscaler.adapters.scrape import pod_columns
from autoscaler.adapters.scrape.exposition import parse
from autoscaler.adapters.scrape.pods import PodScraper
from autoscaler.catalog.engines import ENGINES
from autoscaler.config.settings import ScrapeSettings
from autoscaler.core.model.fleet import Fleet
from autoscaler.core.model.samples import Objectives
from bench.micro import fleets
from bench.micro.result import machine, show

RECORDINGS = Path(__file__).resolve().parents[2] / "tests" / "data" / "vllm"
BODIES = ("running.prom", "saturated.prom", "drained.prom", "kv-bound.prom", "admission-limit.prom")
TARGET_CPU_S = 3.0
OBJECTIVES_S = {"ttft_s": 0.15, "itl_s": 0.05, "max_age_s": 40.0}


def allow_files(count: int) -> None:
    """Raise the soft limit of open files to `count`, within the hard limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(count, hard), hard))


class Pods(asyncio.Protocol):
    """Answers each request for /metrics with the body of its pod, at the least cost, since the scraper is measured."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._request = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._request += data
        while b"\r\n\r\n" in self._request:
            _, _, self._request = self._request.partition(b"\r\n\r\n")
            self._transport.write(self._answer)


def serve(pods: int, pipe: Connection) -> None:
    """Serve `pods` endpoints on their own ports; send the ports; end when the pipe closes."""
    allow_files(4 * pods + 256)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        bodies = [(RECORDINGS / name).read_bytes() for name in BODIES]
        answers = [
            b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=1.0.0; charset=utf-8\r\nContent-Length: "
            + str(len(body)).encode()
            + b"\r\n\r\n"
            + body
            for body in bodies
        ]
        ports = []
        for index in range(pods):
            answer = answers[index % len(answers)]
            server = await loop.create_server(lambda answer=answer: Pods(answer), "127.0.0.1", 0)  # type: ignore[misc]
            ports.append(server.sockets[0].getsockname()[1])
        pipe.send(ports)
        await loop.run_in_executor(None, pipe.poll, None)

    asyncio.run(run())


def fleet_of(ports: list[int]) -> Fleet:
    """Return a fleet of ready pods on loopback, one per port."""
    cluster = fleets.fleet(len(ports) // fleets.PODS_PER_WORKLOAD)
    pods = tuple(pod._replace(ip="127.0.0.1", metrics_port=port) for pod, port in zip(cluster.pods, ports, strict=True))
    return replace(cluster, pods=pods, pod_ready=np.ones(len(pods), dtype=bool))


def cpu_s() -> float:
    """Return the CPU seconds of this process, user and system."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def measure(ports: list[int], rounds: int) -> dict[str, list[float]]:
    """Scrape all pods `rounds` times, and once before to open the connections; return the costs of each round."""
    fleet = fleet_of(ports)
    objectives = Objectives(**{name: np.full(len(fleet.workloads), value) for name, value in OBJECTIVES_S.items()})
    settings = ScrapeSettings(timeout_s=10.0)
    costs: dict[str, list[float]] = {"cpu_s": [], "wall_s": []}
    async with PodScraper(settings, SystemClock()) as scraper:
        for _ in range(rounds + 1):
            cpu, wall = cpu_s(), time.perf_counter()
            samples = await scraper.sample(fleet, objectives, deadline_s=60.0)
            costs["cpu_s"].append(cpu_s() - cpu)
            costs["wall_s"].append(time.perf_counter() - wall)
            answered = int(np.isfinite(samples.pods.running).sum())
            if answered != len(ports):
                raise SystemExit(f"only {answered} of {len(ports)} pods answered: {samples.reports[0].problems}")
            await asyncio.sleep(0.2)  # so that the rate windows advance
    return costs


def share_of(pods: int) -> dict[str, float]:
    """Return the CPU seconds of parsing and folding alone for `pods` bodies."""
    engine = ENGINES["vllm"]
    wanted = pod_columns.sample_names(engine)
    bodies = [(RECORDINGS / name).read_bytes() for name in BODIES]
    begin = cpu_s()
    parsed = [parse(bodies[index % len(bodies)], wanted) for index in range(pods)]
    middle = cpu_s()
    for exposition in parsed:
        pod_columns.gauges_and_counters(engine, exposition)
        pod_columns.count_within_objectives(pod_columns.histograms(engine, exposition), OBJECTIVES_S)
    return {"parse_cpu_s": middle - begin, "fold_cpu_s": cpu_s() - middle}


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--pods", type=int, default=1000, help="number of pods, rounded up to workloads of eight")
    options.add_argument("--rounds", type=int, default=5, help="number of rounds")
    options.add_argument("--json", action="store_true", help="print one JSON object")
    given = options.parse_args()
    pods = -(-given.pods // fleets.PODS_PER_WORKLOAD) * fleets.PODS_PER_WORKLOAD
    allow_files(4 * pods + 256)
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(pods, theirs), daemon=True)
    server.start()
    try:
        costs = asyncio.run(measure(ours.recv(), given.rounds))
    finally:
        ours.close()
        server.terminate()
        server.join()
    cpu = statistics.median(costs["cpu_s"][1:])
    result = {
        "pods": pods,
        "body_bytes": round(statistics.mean((RECORDINGS / name).stat().st_size for name in BODIES)),
        "first_cpu_s": costs["cpu_s"][0],
        "cpu_s": cpu,
        "cpu_s_each": costs["cpu_s"][1:],
        "wall_s": round(statistics.median(costs["wall_s"][1:]), 3),
        **share_of(pods),
        "target_cpu_s": TARGET_CPU_S,
        "met": cpu <= TARGET_CPU_S,
        "peak_rss_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        "machine": machine(),
    }
    show(result, given.json)
    return 0 if result["met"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
