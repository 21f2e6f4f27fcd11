"""Measure what the webhook adds to the creation of a pod on a real kube-apiserver.

    python bench/micro/webhook.py [--pods 500] [--json]

The installed command runs in its own process with the shipped configuration. One client creates the pods of a vLLM
Deployment one after the other, over one connection. Namespaces take turns: one opts in, the other does not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import ssl
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import aiohttp
import pytest

from bench.micro.result import machine, show
from tests.adapters.webhook.test_patch import engine, pod_of
from tests.adapters.webhook.test_server import configuration_of
from tests.harness.certificates import Certificates
from tests.harness.kube_api import KubeApi
from tests.harness.process import answers, eventually, free_port
from tests.integration.command import COMMAND, Command

TARGET_ADDED_S = 0.01
WARM = 20  # pods before the measurement


async def measure(pods: int, directory: Path) -> dict[str, object]:
    certificates = Certificates(directory / "certificates")
    async with KubeApi.running(directory) as api:
        steered = await api.namespace(labels={"vllm-autoscaler.io/weights": "enabled"})
        plain = await api.namespace()
        port, http = free_port(), free_port()
        configuration, service = configuration_of(steered, steered, port, certificates.ca)
        pair = certificates.issue(f"{service['metadata']['name']}.{steered}.svc")
        await api.apply(service, namespace=steered)
        await api.apply(configuration)
        options = [f"--cert={pair.certificate}", f"--key={pair.key}", f"--port={port}", "--host=127.0.0.1"]
        options += ["--host-path=/ssd", "--image=i", f"--http-port={http}", "--http-host=127.0.0.1"]
        command = Command(directory, COMMAND, "webhook", *options)
        try:
            await eventually(lambda: answers(f"http://127.0.0.1:{http}/readyz"), "the webhook is ready")
            body = json.dumps(pod_of(engine(resources={"limits": {"nvidia.com/gpu": "1", "memory": "64Gi"}})))
            headers = {"Authorization": f"Bearer {api.admin.token}", "Content-Type": "application/json"}
            trust = ssl.create_default_context(cafile=api.ca)
            async with aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(ssl=trust)) as session:

                async def create(namespace: str) -> tuple[float, bool]:
                    began_s = time.perf_counter()
                    url = f"{api.url}/api/v1/namespaces/{namespace}/pods"
                    async with session.post(url, data=body) as response:
                        created = await response.json()
                    return time.perf_counter() - began_s, "affinity" in created["spec"]

                async def is_called() -> bool:
                    return (await create(steered))[1]

                await eventually(is_called, "the API server calls the webhook")
                for _ in range(WARM):
                    await create(steered)
                    await create(plain)
                began_s = await _cpu_s(http)
                taken = [(await create(steered), await create(plain)) for _ in range(pods)]
                cpu_s = await _cpu_s(http) - began_s
        finally:
            command.kill()
    with_s, without_s = [a[0] for a, _ in taken], [b[0] for _, b in taken]
    median_s, plain_s = statistics.median(with_s), statistics.median(without_s)
    return {
        "pods": pods,
        "patched": sum(a[1] for a, _ in taken),
        "create_median_s": round(plain_s, 5),
        "create_with_webhook_median_s": round(median_s, 5),
        "added_median_s": round(median_s - plain_s, 5),
        "added_p99_s": round(_p99(with_s) - _p99(without_s), 5),
        "ratio": round(median_s / plain_s, 2),
        "webhook_cpu_s_per_pod": round(cpu_s / pods, 6),
        "target_added_median_s": TARGET_ADDED_S,
        "met": median_s - plain_s <= TARGET_ADDED_S,
        "machine": machine(),
    }


async def _cpu_s(port: int) -> float:
    """Return the processor time of the webhook so far."""
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/metrics") as response:
        lines = (await response.text()).splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("process_cpu_seconds_total "))


def _p99(taken: list[float]) -> float:
    return statistics.quantiles(taken, n=100, method="inclusive")[98]


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--pods", type=int, default=500, help="pods in each of the two namespaces")
    options.add_argument("--json", action="store_true", help="print JSON instead of text")
    given = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        try:
            result = asyncio.run(measure(given.pods, Path(folder)))
        except pytest.skip.Exception as missing:
            raise SystemExit(f"this needs a real API server: {missing}") from None
    show(result, given.json)
    return 0 if result["met"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
