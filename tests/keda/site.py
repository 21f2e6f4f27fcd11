"""One workload that KEDA scales, and its daemons."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from tests.harness.exposition import exposition_server
from tests.harness.keda import kubelet
from tests.harness.kube_api import ApiError, KubeApi, User
from tests.harness.process import free_port
from tests.integration.command import COMMAND, Command, Daemon
from tests.integration.site import POLICY
from tests.integration.site import Site as Plain

SHIPPED = yaml.safe_load((Path(__file__).parents[2] / "manifests" / "keda" / "scaledobject.yaml").read_text())["spec"]
KEDA, HPA = "keda.sh/v1alpha1", "autoscaling/v2"


class Site(Plain):
    """`workload` creates only a Deployment; controllers create its ReplicaSet and pods."""

    async def workload(self, name: str = "llama", replicas: int = 1, **annotations: str) -> None:
        notes = {"vllm-autoscaler.io/metrics-port": self.port}
        labels = {"app": name}
        containers = [{"name": "vllm", "image": "vllm", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]
        spec = {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": containers}},
        }
        metadata = {"name": name, "annotations": notes}
        await self._apply({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec})

    def exactly(self, count: int) -> None:
        """Set the policy so that the daemon decides on this count from its next tick on."""
        self.policy.write_text(
            POLICY.replace("replicas: {min: 1, max: 8}", f"replicas: {{min: {count}, max: {count}}}")
        )

    async def scale_by_keda(
        self, address: str, *more_triggers: Mapping[str, Any], trigger: Mapping[str, Any] | None = None, **spec: Any
    ) -> None:
        """Create the shipped ScaledObject for `llama`, with short intervals and this address of the daemon."""
        first = {
            **SHIPPED["triggers"][0],
            "metadata": {"scalerAddress": address, "policy": "quick"},
            **(trigger or {}),
        }
        rest = {key: value for key, value in SHIPPED.items() if key not in ("scaleTargetRef", "triggers")}
        quick = {"pollingInterval": 1, "maxReplicaCount": 50}
        await self.scaled_object("llama", "llama", first, *more_triggers, **{**rest, **quick, **spec})

    def keda_daemon(
        self, user: User, port: int, *arguments: str | Path, ready: bool = True
    ) -> AbstractAsyncContextManager[Daemon]:
        more = ("--scrape", "--grpc-host", "127.0.0.1", "--grpc-port", str(port))
        return self.daemon(user, "keda", *more, *arguments, ready=ready)

    @contextmanager
    def keda_stand_in(self, daemon_url: str, port: int) -> Iterator[Command]:
        """Run the stand-in of a daemon within the block."""
        address = ("--grpc-host", "127.0.0.1", "--grpc-port", str(port))
        command = Command(self.directory, COMMAND, "keda-stand-in", "--daemon", daemon_url, *address)
        try:
            yield command
        finally:
            command.kill()

    async def conditions(self) -> dict[str, str]:
        """Return the conditions of the ScaledObject by type."""
        found = await self.api.get(KEDA, "ScaledObject", self.namespace, "llama")
        return {one["type"]: one["status"] for one in found.get("status", {}).get("conditions", ())}

    async def hpa_metrics(self) -> list[str]:
        """Return the names of the metrics that KEDA wrote into the HPA; none before the HPA exists."""
        try:
            found = await self.api.get(HPA, "HorizontalPodAutoscaler", self.namespace, "keda-hpa-llama")
        except ApiError:
            return []
        return [metric["external"]["metric"]["name"] for metric in found["spec"]["metrics"]]

    async def secret(self, name: str, **values: str) -> None:
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": values}
        await self._apply(secret)


@asynccontextmanager
async def opened(api: KubeApi, directory: Path) -> AsyncIterator[Site]:
    """Make a namespace in a cluster with KEDA, with a metrics server beside it; its pods become ready."""
    namespace = await api.namespace("keda-site")
    async with exposition_server() as metrics, kubelet(api, namespace):
        made = Site(api, namespace, directory, metrics)
        made.load("running")
        yield made


@asynccontextmanager
async def service(ports: list[int]) -> AsyncIterator[int]:
    """Act as a Service of several pods: each connection to the port goes to a random one of `ports`.

    Take a port out of the list when its pod is to end, as Kubernetes does.
    """

    tasks: list[asyncio.Task[None]] = []
    writers: list[asyncio.StreamWriter] = []

    def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        tasks.append(asyncio.create_task(forward(reader, writer)))

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError), closing(writer):
            there, back = await asyncio.open_connection("127.0.0.1", secrets.choice(ports))
            writers.append(back)
            with closing(back):
                async with asyncio.TaskGroup() as group:
                    group.create_task(_copy(reader, back))
                    group.create_task(_copy(there, writer))

    port = free_port()
    server = await asyncio.start_server(connect, "127.0.0.1", port)
    try:
        yield port
    finally:
        for socket in server.sockets:
            asyncio.get_running_loop().remove_reader(socket.fileno())
        await asyncio.sleep(0.05)  # until `connect` has every accepted connection: a closed server would leave it open
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for writer in writers:  # a task that never began has closed nothing, and a peer may leave data unread
            writer.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()
