"""A real KEDA, its admission webhooks included, with a real API server and the controllers that KEDA needs.

The HPA controller looks every second instead of every 15, so that the tests are quick. There is no scheduler and no
kubelet: `kubelet` stands in for both and says that each pod runs and is ready.
"""

import asyncio
import base64
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from tests.harness.certificates import Certificates
from tests.harness.kube_api import ApiError, KubeApi, load_manifests
from tests.harness.process import Process, answers, eventually, free_port, repeated, require_binary, where

CONTROLLERS = ("deployment-controller", "replicaset-controller", "horizontal-pod-autoscaler-controller")
SYNC_S = 1
STOP_S = 1  # the operator waits for open calls
NAMESPACE = "keda"
EXTERNAL_METRICS = "/apis/external.metrics.k8s.io/v1beta1"


def _built(path: Path) -> Path:
    return require_binary(path.name, "make keda", path)


@asynccontextmanager
async def keda(api: KubeApi, directory: Path) -> AsyncIterator[None]:
    """Install KEDA into the API server's cluster: run its operator, adapter, webhooks and the controllers."""
    folder, manager = where("keda.sh"), where("envtest.sh", "kube-controller-manager")
    binaries = {name: _built(folder / name) for name in ("operator", "adapter", "webhooks")}
    crds = await api.apply(*load_manifests(*sorted((folder / "crds").glob("*.yaml"))))
    await api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})

    await eventually(
        lambda: _are_discovered(api, crds), "discovery names KEDA's kinds, which its webhooks look up once"
    )

    kubeconfig = api.kubeconfig()
    environment = {"KUBECONFIG": str(kubeconfig), "WATCH_NAMESPACE": "", "POD_NAMESPACE": NAMESPACE}
    environment["KEDA_CLUSTER_OBJECT_NAMESPACE"] = NAMESPACE
    environment["KEDA_HTTP_DEFAULT_TIMEOUT"] = "60000"  # ms: two late answers of a busy Prometheus would be a fallback
    certificates = _certificates(directory)
    ca = (certificates / "ca.crt").read_bytes()
    probe, metrics, adapter, webhooks, webhooks_probe = (free_port() for _ in range(5))
    async with AsyncExitStack() as stack:
        controllers = free_port()
        for process in (
            _process(
                "kube-controller-manager",
                _built(manager),
                directory,
                lambda: _is_listening(controllers),
                {},
                kubeconfig=kubeconfig,
                controllers=",".join(CONTROLLERS),
                secure_port=controllers,
                cert_dir=directory,
                leader_elect="false",
                horizontal_pod_autoscaler_sync_period=f"{SYNC_S}s",
            ),
            _process(
                "keda-operator",
                binaries["operator"],
                directory,
                lambda: answers(f"http://127.0.0.1:{probe}/readyz"),
                environment,
                cert_dir=certificates,
                enable_prometheus_metrics="false",
                health_probe_bind_address=f"127.0.0.1:{probe}",
                metrics_service_bind_address=f"127.0.0.1:{metrics}",
            ),
            _process(
                "keda-adapter",
                binaries["adapter"],
                directory,
                lambda: _is_listening(adapter),
                environment,
                cert_dir=certificates,
                tls_cert_file=certificates / "tls.crt",
                tls_private_key_file=certificates / "tls.key",
                secure_port=adapter,
                port=free_port(),
                metrics_service_address=f"localhost:{metrics}",
                authentication_kubeconfig=kubeconfig,
                authorization_kubeconfig=kubeconfig,
                lister_kubeconfig=kubeconfig,
            ),
            _process(
                "keda-webhooks",
                binaries["webhooks"],
                directory,
                lambda: answers(f"http://127.0.0.1:{webhooks_probe}/readyz"),
                environment,
                cert_dir=certificates,
                port=webhooks,
                metrics_bind_address="0",
                health_probe_bind_address=f"127.0.0.1:{webhooks_probe}",
            ),
        ):
            stack.push_async_callback(process.stop, STOP_S)
            await process.start()
        await _serve_external_metrics(api, adapter)
        await _ask_webhooks(api, folder / "validation_webhooks.yaml", webhooks, ca)
        yield


def _process(
    name: str,
    binary: Path,
    directory: Path,
    ready: Callable[[], Awaitable[bool]],
    environment: dict[str, str],
    **flags: object,
) -> Process:
    command = [str(binary), *(f"--{flag.replace('_', '-')}={value}" for flag, value in flags.items())]
    return Process(name, command, directory, ready=ready, environment=environment)


def _certificates(directory: Path) -> Path:
    """Return the directory of certificates that KEDA's parts share, under the three names that they expect."""
    folder = directory / "keda-certificates"
    certificates = Certificates(folder)
    pair = certificates.issue("localhost")
    shutil.copy(certificates.ca, folder / "ca.crt")
    shutil.copy(pair.certificate, folder / "tls.crt")
    shutil.copy(pair.key, folder / "tls.key")
    return folder


async def _are_discovered(api: KubeApi, crds: list[dict[str, Any]]) -> bool:
    for spec in (crd["spec"] for crd in crds):
        try:
            found = await api.request("GET", f"/apis/{spec['group']}/{spec['versions'][0]['name']}")
        except ApiError:
            return False
        if spec["names"]["plural"] not in {resource["name"] for resource in found["resources"]}:
            return False
    return True


async def _is_listening(port: int) -> bool:
    with suppress(OSError):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()
        return True
    return False


async def _serve_external_metrics(api: KubeApi, port: int) -> None:
    """Let the API server proxy external metrics to KEDA's adapter, like KEDA's manifests."""
    service = {"name": "keda-metrics-apiserver", "namespace": NAMESPACE}
    await api.apply(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": service,
            "spec": {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]},
        },
        {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": "v1beta1.external.metrics.k8s.io"},
            "spec": {
                "group": "external.metrics.k8s.io",
                "version": "v1beta1",
                "service": {**service, "port": port},
                "insecureSkipTLSVerify": True,
                "groupPriorityMinimum": 100,
                "versionPriority": 100,
            },
        },
    )

    async def served() -> bool:
        with suppress(ApiError):
            return bool(await api.request("GET", EXTERNAL_METRICS))
        return False

    await eventually(served, "the API server passes external metrics on", 60, every_s=0.2)


async def _ask_webhooks(api: KubeApi, manifest: Path, port: int, ca: bytes) -> None:
    """Let the API server ask KEDA's webhooks, like KEDA's manifests; refuse objects if it cannot reach them."""
    (configuration,) = load_manifests(manifest)
    bundle = base64.b64encode(ca).decode()
    for webhook in configuration["webhooks"]:
        path = webhook["clientConfig"]["service"]["path"]
        webhook["clientConfig"] = {"url": f"https://localhost:{port}{path}", "caBundle": bundle}
        webhook["failurePolicy"] = "Fail"
    await api.apply(configuration)


@asynccontextmanager
async def kubelet(api: KubeApi, namespace: str) -> AsyncIterator[None]:
    """Set each new pod of a namespace to running and ready on 127.0.0.1."""
    path = f"/api/v1/namespaces/{namespace}/pods"

    async def look() -> None:
        for pod in (await api.request("GET", path, fieldSelector="status.phase=Pending"))["items"]:
            with suppress(ApiError):  # it is gone
                await api.set_status("v1", "Pod", namespace, pod["metadata"]["name"], _ready(pod))

    async with repeated(look, every_s=0.2):
        yield


def _ready(pod: dict[str, object]) -> dict[str, object]:
    at = pod["metadata"]["creationTimestamp"]  # type: ignore[index]
    conditions = [{"type": kind, "status": "True", "lastTransitionTime": at} for kind in ("PodScheduled", "Ready")]
    containers = [
        {"name": container["name"], "image": "i", "imageID": "", "ready": True, "restartCount": 0}
        | {"state": {"running": {"startedAt": at}}}
        for container in pod["spec"]["containers"]  # type: ignore[index]
    ]
    address = {"podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]}
    return {"phase": "Running", "conditions": conditions, "containerStatuses": containers, **address}
