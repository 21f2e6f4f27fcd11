"""Measure `preflight` on 500 workloads with 2,000 pods: a real Prometheus, manifests of all objects.

    python bench/micro/preflight.py [--workloads 500] [--json]

Reports wall time and peak memory of the command, the queries that it sent, and the most that were open at once (counted
by a proxy before the server). Targets: 60 s, 300 MiB, 4 at once.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

import aiohttp
import yaml
from aiohttp import web

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.micro.result import machine, show
from tests.config.preflight.scene import BUDGET, CHAT, GOOD, MONITOR, SCALER
from tools.preflight_cases import COMMAND, server

TARGETS = {"wall_s": 60.0, "peak_mib": 300.0, "open_at_once": 4}
PODS_EACH = 4
BOUNDS = ("0.3", "0.5", "1.0", "2.5", "5.0", "10.0", "20.0", "30.0", "60.0", "120.0", "+Inf")


def write_manifests(folder: Path, workloads: int) -> None:
    """Write the good manifests again and again, with other names; 60 documents in a file."""
    documents = []
    for number in range(workloads):
        for index in (CHAT, SCALER, BUDGET, MONITOR):
            text = yaml.safe_dump(GOOD[index]).replace("chat", f"chat-{number}")
            space = f"web-{number % 40}"
            documents.append(text.replace("namespace: web", f"namespace: {space}").replace('"web"', f'"{space}"'))
    for first in range(0, len(documents), 60):
        (folder / f"{first:05}.yaml").write_text("---\n".join(documents[first : first + 60]))


def metrics(workloads: int) -> str:
    """Return the series of the pods, now and at their start."""
    lines = ["# NOW", "# EVERY 900s"]
    for number in range(workloads):
        space, name = f"web-{number % 40}", f"chat-{number}"
        for pod in range(PODS_EACH):
            labels = f'namespace="{space}",pod="{name}-5d5f9c7d66-8wq2{pod}"'
            engine = f'model_name="{name}",engine="0",{labels}'
            lines += ["# EVERY 900s", f"vllm:num_requests_running{{{engine}}} 20"]
            lines += ["# EVERY 900s", f"vllm:num_requests_waiting{{{engine}}} 1"]
            lines += ["# EVERY 900s", f"kube_pod_created{{{labels}}} @-20m"]
            lines += ["# EVERY 900s", f'kube_pod_container_state_started{{{labels},container="vllm"}} @-20m+4s']
            lines += ["# EVERY 900s", f"kube_pod_status_ready_time{{{labels}}} @-20m+200s"]
            for bound in BOUNDS:
                lines += ["# EVERY 900s", f'vllm:e2e_request_latency_seconds_bucket{{{engine},le="{bound}"}} 500']
        lines += ["# EVERY 900s", f'kube_deployment_spec_replicas{{namespace="{space}",deployment="{name}"}} 4']
    return "\n".join(lines) + "\n"


class CountingProxy:
    """Passes requests on to a server, and counts them."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.total = self.open = self.most = 0

    async def __call__(self, request: web.Request) -> web.Response:
        self.total += 1
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            body = await request.read()
            headers = {"Content-Type": request.headers.get("Content-Type", "")} if body else {}
            async with (
                aiohttp.ClientSession() as session,
                session.request(request.method, self._url + request.path_qs, data=body, headers=headers) as answer,
            ):
                return web.Response(body=await answer.read(), status=answer.status, content_type="application/json")
        finally:
            self.open -= 1


async def measure(folder: Path, url: str) -> dict[str, float]:
    proxy = CountingProxy(url)
    application = web.Application()
    application.router.add_route("*", "/{rest:.*}", proxy)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    command = [COMMAND, "preflight", folder, "--prometheus", f"http://127.0.0.1:{port}", "--json", "--fail-on", "never"]
    start = time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True); "
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)",
        *map(str, command),
        stdout=asyncio.subprocess.PIPE,
    )
    told, _ = await process.communicate()
    wall_s = time.perf_counter() - start
    await runner.cleanup()
    return {"wall_s": wall_s, "peak_mib": int(told) / 1024, "queries": proxy.total, "open_at_once": proxy.most}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", type=int, default=500)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, "manifests")
        folder.mkdir()
        write_manifests(folder, given.workloads)
        series = Path(temporary, "metrics.txt")
        series.write_text(metrics(given.workloads))
        with server(series) as url:
            found = asyncio.run(measure(folder, url))
    show(
        {
            "machine": machine(),
            "workloads": given.workloads,
            "pods": given.workloads * PODS_EACH,
            **found,
            "targets": TARGETS,
        },
        given.json,
    )


if __name__ == "__main__":
    main()
