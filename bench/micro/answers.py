"""A server that answers every query of the Prometheus source, for `whole_tick.py`."""

from __future__ import annotations

import asyncio
import resource
import time
from multiprocessing.connection import Connection

import numpy as np
from aiohttp import web

from autoscaler.adapters.prometheus.promql.conventions import convention_query
from autoscaler.adapters.prometheus.promql.engines import SampleQuery, engine_queries
from autoscaler.adapters.prometheus.promql.expressions import QuantileQuery
from autoscaler.adapters.prometheus.promql.gpus import gpu_queries
from autoscaler.adapters.prometheus.promql.labels import POD
from autoscaler.adapters.prometheus.promql.pod_groups import GROUP
from autoscaler.catalog.engines import ENGINES
from autoscaler.catalog.spellings import all_spellings
from autoscaler.core.model.fleet import Fleet
from autoscaler.core.model.types import TickInput
from bench.micro import fleets

WINDOW_S = 120.0
# bounds around the objectives of the shipped policies
BOUNDS = ("0.05", "0.1", "0.25", "1.0", "640.0", "2560.0", "+Inf")
PAIRS = (("namespace", "pod"),)  # labels of a pod
VERSIONS = 3  # alternating answers to one query


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


def answers(inp: TickInput, time_s: float) -> dict[str, bytes]:
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
        made[query.expression] = vector(names, values, time_s, np.arange(len(values)))
    return made


def serve(workloads: int, pipe: Connection) -> None:
    """Answer queries until the pipe closes; send the port first."""
    fleet = fleets.fleet(workloads)
    order = np.arange(len(fleet.pods))
    versions = [answers(inp, time.time()) for inp in fleets.inputs(fleet, VERSIONS)]
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
