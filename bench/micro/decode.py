"""Measure a tick from raw Prometheus answers: 10,000 workloads x 8 pods, every query of the fixed list.

    python bench/micro/decode.py [--workloads 10000] [--ticks 5] [--json]

A server in another process answers over loopback. Each query gets one series per pod; quantiles get one per workload.
The figures are CPU seconds (user and system, `getrusage`) of this process, in the role of the daemon:

* `decode_join`: from bytes to columns, for the queries of every tick. All answers have one order of series, except
  quantiles, as with Prometheus 2.42. VictoriaMetrics keeps the order there too.
* `decode_join_shuffled`: the same with each answer in its own order, the worst case.
* `slow_queries`: the extra cost of the queries asked every 30 s (GPUs), in the tick that asks them.
* `sample`: the whole source, including HTTP. `whole`: sample, observe, decide, and explain changes.
* `peak_rss`: the largest resident memory up to the end of the whole ticks.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import resource
import statistics
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from aiohttp import web

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from autoscaler.adapters.clock import SystemClock
from autoscaler.adapters.prometheus.decode import LabelLists, decode_vector
from autoscaler.adapters.prometheus.instant.group_join import GroupJoin
from autoscaler.adapters.prometheus.instant.pod_join import PodJoin
from autoscaler.adapters.prometheus.instant.source import PrometheusSource
from autoscaler.adapters.prometheus.promql.conventions import convention_query
from autoscaler.adapters.prometheus.promql.engines import SampleQuery, engine_queries
from autoscaler.adapters.prometheus.promql.expressions import QuantileQuery
from autoscaler.adapters.prometheus.promql.gpus import gpu_queries
from autoscaler.adapters.prometheus.promql.labels import POD
from autoscaler.adapters.prometheus.promql.pod_groups import GROUP
from autoscaler.catalog.engines import ENGINES
from autoscaler.catalog.spellings import all_spellings
from autoscaler.config.settings import PrometheusSettings
from autoscaler.core.explain.sentence import explain
from autoscaler.core.model.fleet import Fleet
from autoscaler.core.model.types import TickInput
from autoscaler.core.state import Memory
from autoscaler.core.tick import tick
from bench.micro import fleets
from bench.micro.result import machine, show

WINDOW_S = 120.0
# bounds around the objectives of the shipped policies
BOUNDS = ("0.05", "0.1", "0.25", "1.0", "640.0", "2560.0", "+Inf")
PAIRS = (("namespace", "pod"),)  # labels of a pod
VERSIONS = 3  # alternating answers to one query
TARGET_CPU_S = 1.0
TARGET_RSS_MIB = 400.0


def queries() -> list[SampleQuery]:
    return [*engine_queries(ENGINES["vllm"], POD, QuantileQuery(WINDOW_S, PAIRS)), *gpu_queries(POD)]


def of_pods(fleet: Fleet) -> list[tuple[str, str]]:
    """Return the namespace and name label of each pod."""
    return [(pod.namespace, f'"pod":"{pod.name}"') for pod in fleet.pods]


def of_workloads(fleet: Fleet) -> list[tuple[str, str]]:
    """Return the namespace of each workload, and the label of the group of its pods."""
    return [(each.ref.namespace, f'"{GROUP}":"{each.ref.name}"') for each in fleet.workloads]


def vector(names: list[tuple[str, str]], values: np.ndarray, time_s: float, order: np.ndarray) -> bytes:
    """Write an answer as Prometheus does, with one series per name."""
    rows = (
        f'{{"metric":{{"namespace":"{names[row][0]}",{names[row][1]}}},"value":[{time_s:.3f},"{values[row]:.10g}"]}}'
        for row in order
    )
    body = f'{{"status":"success","data":{{"resultType":"vector","result":[{",".join(rows)}]}}}}'
    return body.replace('"nan"', '"NaN"').encode()


def answers(inp: TickInput, order: Callable[[], np.ndarray], time_s: float) -> dict[str, bytes]:
    """Answer every query of the list from one synthetic input, with times of the server."""
    made = {}
    names = of_pods(inp.fleet)
    for query in queries():
        values = np.nan_to_num(getattr(inp.samples.pods, query.column), nan=0.0)
        if query.grouped:
            values = getattr(inp.samples.pods, query.column)[:: fleets.PODS_PER_WORKLOAD]  # NaN: no request
            made[query.expression] = vector(of_workloads(inp.fleet), values, time_s, np.random.permutation(len(values)))
            continue
        if query.column in ("time_s", "gpu_time_s"):
            values = np.full(len(values), time_s - 3.0)
        made[query.expression] = vector(names, values, time_s, order())
    return made


def serve(workloads: int, pipe: Connection) -> None:
    """Answer queries until the pipe closes; send the port first."""
    fleet = fleets.fleet(workloads)
    order = np.arange(len(fleet.pods))
    versions = [answers(inp, lambda: order, time.time()) for inp in fleets.inputs(fleet, VERSIONS)]
    asked: dict[str, int] = {}
    conventions = convention_query(all_spellings())
    names = of_pods(fleet)
    counted = [vector(names, np.arange(len(order)) + 100.0 * number, time.time(), order) for number in range(VERSIONS)]
    empty = b'{"status":"success","data":{"resultType":"vector","result":[]}}'

    async def answer(request: web.Request) -> web.Response:
        query = str((await request.post())["query"])
        if query == conventions:
            found = [{"metric": {"metric": kind}, "value": [time.time(), "1"]} for kind in ("engine/pod", "gpu/pod")]
            return web.json_response({"status": "success", "data": {"resultType": "vector", "result": found}})
        if query.startswith("topk"):
            bounds = [{"metric": {"le": le}, "value": [time.time(), str(len(order))]} for le in BOUNDS]
            return web.json_response({"status": "success", "data": {"resultType": "vector", "result": bounds}})
        asked[query] = asked.get(query, -1) + 1
        if "le=" in query:
            return web.Response(body=counted[asked[query] % VERSIONS], content_type="application/json")
        return web.Response(body=versions[asked[query] % VERSIONS].get(query, empty), content_type="application/json")

    async def run() -> None:
        application = web.Application()
        application.router.add_post("/api/v1/query", answer)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        pipe.send(runner.addresses[0][1])
        await asyncio.to_thread(pipe.poll, None)
        await runner.cleanup()

    asyncio.run(run())


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def whole_ticks(url: str, workloads: int, ticks: int) -> dict[str, float]:
    """Sample, decide and explain as the daemon does. The first ticks, in which all series are new, are separate
    figures.
    """
    fleet = fleets.fleet(workloads)
    plain = next(fleets.inputs(fleet, 1))
    objectives = plain.spec.objectives
    names = ("interactive",) * workloads
    memory, clock = Memory.empty(), SystemClock()
    sampled, whole = [], []
    async with PrometheusSource(PrometheusSettings(url=url, timeout_s=60, rate_window_s=WINDOW_S), clock) as source:
        for _ in range(ticks + 2):
            began = cpu_s()
            samples = await source.sample(fleet, objectives, 60)
            sampled.append(cpu_s() - began)
            assert all(report.failed == 0 for report in samples.reports), samples.reports
            inp = TickInput(clock.now_s(), fleet, plain.spec, plain.schedule, samples)
            decision, memory = tick(inp, memory)
            for row in np.flatnonzero(decision.replicas != fleet.replicas):
                explain(inp, decision, names, {}, int(row))
            whole.append(cpu_s() - began)
    return {
        "first_tick_cpu_s": whole[0],
        "sample_cpu_s": statistics.median(sampled[2:]),
        "whole_cpu_s": statistics.median(whole[2:]),
        "changed": int(np.sum(decision.replicas != fleet.replicas)),
    }


def decode_and_join(workloads: int, shuffled: bool) -> tuple[float, float]:
    """Return median CPU seconds of decoding and joining: the queries of every tick, and the slow ones."""
    fleet = fleets.fleet(workloads)
    random = np.random.default_rng(7)
    pods = len(fleet.pods)
    order = (lambda: random.permutation(pods)) if shuffled else (lambda: np.arange(pods))
    versions = [answers(inp, order, 1_800_000_000.123) for inp in fleets.inputs(fleet, VERSIONS)]
    join, lists = PodJoin(), LabelLists()
    join.align(fleet)
    groups = GroupJoin(join, POD, PAIRS)
    took: dict[bool, list[float]] = {False: [], True: []}
    for number in range(2 * VERSIONS):
        for slow in (False, True):
            began = cpu_s()
            for query in queries():
                if query.slow is slow:
                    found = decode_vector(versions[number % VERSIONS][query.expression], lists)
                    if query.column == "time_s":
                        groups.update(found.labels, fleet)
                    groups.column(found) if query.grouped else join.column(found)
            took[slow].append(cpu_s() - began)
    return statistics.median(took[False][1:]), statistics.median(took[True][1:])


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--workloads", type=int, default=10_000, help="number of workloads")
    options.add_argument("--ticks", type=int, default=5, help="number of ticks to measure")
    options.add_argument("--json", action="store_true", help="print JSON instead of text")
    args = options.parse_args()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    server = context.Process(target=serve, args=(args.workloads, theirs), daemon=True)
    server.start()
    port = ours.recv()
    measured = asyncio.run(whole_ticks(f"http://127.0.0.1:{port}", args.workloads, args.ticks))
    peak_rss_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    ours.close()
    server.join(10)
    same_s, slow_s = decode_and_join(args.workloads, shuffled=False)
    shuffled_s, _ = decode_and_join(args.workloads, shuffled=True)
    result = {
        "workloads": args.workloads,
        "pods_per_workload": fleets.PODS_PER_WORKLOAD,
        "queries_each_tick": sum(not query.slow for query in queries()),
        "queries_slow": sum(query.slow for query in queries()),
        "decode_join_cpu_s": round(same_s, 3),
        "decode_join_shuffled_cpu_s": round(shuffled_s, 3),
        "slow_queries_cpu_s": round(slow_s, 3),
        **{name: round(value, 3) for name, value in measured.items()},
        "peak_rss_mib": round(peak_rss_mib, 1),
        "target_whole_cpu_s": TARGET_CPU_S,
        "target_rss_mib": TARGET_RSS_MIB,
        "machine": machine(),
    }
    show(result, args.json)


if __name__ == "__main__":
    main()
