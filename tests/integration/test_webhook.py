"""`vllm-autoscaler webhook` as it is deployed: it makes its certificate, is trusted, changes pods, and renews."""

from __future__ import annotations

import base64
import re
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.adapters.kubernetes.conftest import in_namespace
from tests.adapters.kubernetes.test_serving_certificate import SECRET, trust_roles, webhook_roles
from tests.adapters.webhook.test_patch import pod_of
from tests.adapters.webhook.test_server import MANIFEST, configuration_of
from tests.harness.certificates import Certificates
from tests.harness.kube_api import KubeApi, load_manifests
from tests.harness.process import eventually, free_port
from tests.integration.command import FORKED, Command

pytestmark = pytest.mark.integration


async def mount(api: KubeApi, namespace: str, folder: Path) -> Mapping[str, Any]:
    """Write the files of the Secret, as the kubelet does some time after it has changed."""
    data: Mapping[str, Any] = (await api.get("v1", "Secret", namespace, SECRET)).get("data", {})
    for name, value in data.items():
        aside = folder / f".{name}"
        aside.write_bytes(base64.b64decode(value))
        aside.rename(folder / name)
    return {name: data[name] for name in ("tls.crt",) if name in data}


@asynccontextmanager
async def deployed(api: KubeApi, namespace: str, files: Path) -> AsyncIterator[tuple[Command, int]]:
    """Run the command with the shipped rights. Yields it with the port of its probes."""
    port, http = free_port(), free_port()
    configuration, service = configuration_of(namespace, namespace, port)
    (secret,) = [each for each in load_manifests(MANIFEST) if each["kind"] == "Secret"]
    del secret["metadata"]["namespace"]
    await api.apply(configuration)
    await api.apply(service, secret, namespace=namespace)
    user = await api.service_account(namespace, "webhook", *in_namespace(webhook_roles(), namespace))
    job = await api.service_account(namespace, "trust", *in_namespace(trust_roles(namespace), namespace))
    options = {
        "cert": files / "tls.crt",
        "key": files / "tls.key",
        "secret": SECRET,
        "namespace": namespace,
        "configuration": namespace,
        "host-path": "/mnt/disks/ssd0/weights",
        "image": "vllm-autoscaler:test",
        "host": "127.0.0.1",
        "port": port,
        "http-host": "127.0.0.1",
        "http-port": http,
    }
    arguments = [f"--{name}={value}" for name, value in options.items()]
    environment = {"KUBECONFIG": str(api.kubeconfig(user, namespace))}
    command = Command(files, FORKED, "webhook", *arguments, environment=environment)
    own = [f"--{name}={options[name]}" for name in ("secret", "namespace", "configuration")]
    environment = {"KUBECONFIG": str(api.kubeconfig(job, namespace))}
    trusting = Command(files, FORKED, "webhook", "--trust", *own, environment=environment)
    try:
        yield command, http
    finally:
        trusting.kill()
        command.kill()
        await api.delete("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration", None, namespace)


async def test_webhook_makes_its_certificate_and_changes_pods(kube_api: KubeApi, tmp_path: Path) -> None:
    namespace = await kube_api.namespace(labels={"vllm-autoscaler.io/weights": "enabled"})

    async def get(path: str, port: int) -> tuple[int, str]:
        try:
            async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as answered:
                return answered.status, await answered.text()
        except aiohttp.ClientError:
            return 0, ""

    asked = 0

    async def is_patched() -> bool:
        nonlocal asked
        asked += 1
        created = await kube_api.request("POST", f"/api/v1/namespaces/{namespace}/pods", pod_of())
        return "affinity" in created["spec"]

    async with deployed(kube_api, namespace, tmp_path) as (command, port):
        await eventually(lambda: is_status(get("/readyz", port), 503), "it says that it has no certificate")
        assert not await is_patched()
        await eventually(lambda: mount(kube_api, namespace, tmp_path), "it makes a certificate")
        await eventually(lambda: is_status(get("/readyz", port), 200), "it is ready")
        asked = 0
        await eventually(is_patched, "pods are changed")
        assert (await get("/healthz", port))[0] == 200
        metrics = (await get("/metrics", port))[1]
        patched = re.search(r'(?m)^vllm_autoscaler_webhook_reviews_total\{result="patched"\} (.+)$', metrics)
        assert patched is not None and 1 <= float(patched[1]) <= asked  # the server may give up waiting for the first
        assert "vllm_autoscaler_webhook_certificate_expiry_timestamp_seconds 1" in metrics
        assert not kube_api.refused(await kube_api.service_account(namespace, "webhook"))
        for huge in huge_pods():
            created = await kube_api.request("POST", f"/api/v1/namespaces/{namespace}/pods", huge)
            assert created["kind"] == "Pod"
            await eventually(is_patched, "pods are still changed")  # not the one for which a busy machine takes 2 s
        assert command.code is None


def huge_pods() -> Iterator[dict[str, Any]]:
    """Yield pods of up to a megabyte, as etcd takes them, with long command lines and many parts."""
    for field, value in (
        ("args", ["vllm", "serve", "org/chat", *["--x"] * 100_000]),
        ("args", ["vllm", "serve", "org/" + "a" * 900_000]),
        ("env", [{"name": f"V{number}", "value": "x"} for number in range(20_000)]),
    ):
        pod = pod_of()
        pod["spec"]["containers"][0][field] = value
        yield pod
    pod = pod_of()
    pod["spec"]["containers"] += [{"name": f"c{number}", "image": "vllm", "args": ["serve"]} for number in range(3_000)]
    yield pod
    pod = pod_of()
    pod["metadata"].setdefault("annotations", {}).update({f"example.com/{number}": "x" * 10 for number in range(8_000)})
    yield pod


async def is_status(answer: Any, status: int) -> bool:
    found, _ = await answer
    return bool(found == status)


async def test_port_in_use_ends_it_with_one_line(certificates: Certificates, tmp_path: Path) -> None:
    pair = certificates.issue("localhost")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for name in ("port", "http-port"):
            arguments = [f"--cert={pair.certificate}", f"--key={pair.key}", "--host=127.0.0.1", "--http-host=127.0.0.1"]
            ports = {"port": 0, "http-port": 0} | {name: port}
            arguments += [f"--{each}={number}" for each, number in ports.items()]
            command = Command(tmp_path, FORKED, "webhook", *arguments)
            assert await command.ended() == 2
            (line,) = [line for line in command.err.splitlines() if line.startswith("error: ")]
            assert f"port {port} on 127.0.0.1 is in use" in line
            assert "Traceback" not in command.err
