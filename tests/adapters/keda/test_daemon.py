"""Two complete daemons in KEDA mode with a real API server: one answers, and the other takes over."""

import os
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

import grpc
import pytest

from autoscaler.adapters.keda.proto import externalscaler_pb2 as pb
from autoscaler.adapters.keda.proto.externalscaler_pb2_grpc import ExternalScalerStub
from tests.adapters.keda.test_manifests import EXAMPLE, MANIFESTS, ROLES
from tests.adapters.kubernetes.world import World
from tests.harness.kube_api import KubeApi, User, load_manifests
from tests.harness.process import Process, answers, eventually, free_port

pytestmark = pytest.mark.integration

COMMAND = [sys.executable, "-c", "from autoscaler.cli.main import main; main()", "run", "--mode=keda", "--period=1s"]
NO_PROMETHEUS = "http://127.0.0.1:9"  # nothing listens there: no pod is ready, so there is nothing to read


class Daemon(NamedTuple):
    process: Process
    grpc_port: int


def daemon(api: KubeApi, user: User, namespace: str, directory: Path) -> Daemon:
    """Return a daemon that is not yet started, with the shipped Roles and its own ports."""
    (directory / ".kube").mkdir(parents=True)
    (directory / ".kube" / "config").write_bytes(api.kubeconfig(user, namespace).read_bytes())
    grpc_port, http_port = free_port(), free_port()
    flags = {
        "namespace": namespace,
        "lease-namespace": namespace,
        "prometheus": NO_PROMETHEUS,
        "grpc-host": "127.0.0.1",
        "grpc-port": grpc_port,
        "http-port": http_port,
    }
    command = [*COMMAND, *(f"--{name}={value}" for name, value in flags.items())]
    ready = f"http://127.0.0.1:{http_port}/readyz"
    return Daemon(Process("daemon", command, directory, ready=lambda: answers(ready)), grpc_port)


async def ask(port: int, namespace: str) -> int | grpc.StatusCode:
    """Make KEDA's call on a new connection; return the value or the status."""
    metadata = EXAMPLE["spec"]["triggers"][0]["metadata"]
    reference = pb.ScaledObjectRef(namespace=namespace, name="llama", scalerMetadata=metadata)
    request = pb.GetMetricsRequest(scaledObjectRef=reference, metricName="replicas")
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
        try:
            (value,) = (await ExternalScalerStub(channel).GetMetrics(request, timeout=2)).metricValues
        except grpc.aio.AioRpcError as error:
            return error.code()
        return value.metricValue


async def test_follower_answers_when_the_leader_is_gone(kube_api: KubeApi, namespace: str, tmp_path: Path):
    await kube_api.install_crds()
    world = World(kube_api, namespace)
    await world.deployment("llama", replicas=1, annotations={})
    trigger = EXAMPLE["spec"]["triggers"][0]
    await world.scaled_object("llama", "llama", trigger, minReplicaCount=2, maxReplicaCount=8)
    (lease,) = [role for role in load_manifests(MANIFESTS.parent / "lease" / "role.yaml") if role["kind"] == "Role"]
    lease["metadata"]["namespace"] = namespace
    user = await kube_api.service_account(namespace, "daemon", *ROLES, lease)
    leader, follower = (daemon(kube_api, user, namespace, tmp_path / name) for name in ("leader", "follower"))
    async with AsyncExitStack() as stack:

        async def answers_with_the_minimum(port: int) -> bool:
            return await ask(port, namespace) == 2

        for one in (leader, follower):
            stack.push_async_callback(one.process.stop)
            await one.process.start()
            await eventually(lambda: answers_with_the_minimum(leader.grpc_port), "the leader answers")

        async def follower_keeps_calls_waiting() -> bool:
            return await ask(follower.grpc_port, namespace) is grpc.StatusCode.DEADLINE_EXCEEDED

        await eventually(follower_keeps_calls_waiting, "the follower sends connections on")
        await eventually(lambda: answers_with_the_minimum(leader.grpc_port), "the leader goes on to answer")

        os.kill(leader.process.pid, signal.SIGTERM)
        await eventually(lambda: answers_with_the_minimum(follower.grpc_port), "the follower has taken over")
    assert await world.replicas("llama") == 1  # the count is KEDA's to change
    assert kube_api.refused(user) == set()
