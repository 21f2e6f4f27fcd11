"""manifests/keda fits the daemon, a real API server accepts it, and its Role is exactly enough."""

import shutil
import subprocess
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import grpc
import pytest
import yaml

from autoscaler.adapters.clock import SystemClock
from autoscaler.adapters.keda.answers import Answers
from autoscaler.adapters.keda.proto import externalscaler_pb2 as pb
from autoscaler.adapters.keda.proto.externalscaler_pb2_grpc import ExternalScalerStub
from autoscaler.adapters.keda.server import CALL_BYTES, MAX_CALLS, KedaServer
from autoscaler.adapters.keda.service import KedaService
from autoscaler.adapters.kubernetes.api.client import Kube
from autoscaler.adapters.kubernetes.events import EventRecorder
from autoscaler.adapters.kubernetes.fleet import KubeFleet
from autoscaler.adapters.kubernetes.stores import Scope
from autoscaler.config.policy.parse import load
from autoscaler.config.settings import KedaSettings, Mode
from autoscaler.daemon.loop import Loop, Parts
from tests.adapters.keda.world import Lease
from tests.adapters.kubernetes.world import KEDA, World, running, synced, until
from tests.harness.kube_api import KubeApi, granted, load_manifests
from tests.harness.process import PATIENCE_S, eventually
from tests.kustomize import render

MANIFESTS = Path(__file__).parents[3] / "manifests" / "keda"
EXAMPLE = yaml.safe_load((MANIFESTS / "scaledobject.yaml").read_text())
FILES = MANIFESTS / "rbac.yaml", MANIFESTS.parent / "status-reader" / "rbac.yaml"
ROLES = [document for document in load_manifests(*FILES) if document["kind"] in ("ClusterRole", "Role")]
BOOK = load()
FLEET_BYTES = 400 << 20  # of the daemon with 10,000 workloads; the target in README


@pytest.fixture(scope="module")
def overlay() -> list[dict]:
    """The objects that `kubectl apply -k manifests/keda` applies."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:  # our own part of kustomize; tests/test_manifests.py holds the two together
        return render(MANIFESTS)
    built = subprocess.run([kubectl, "kustomize", MANIFESTS], capture_output=True, check=True, timeout=PATIENCE_S)
    return [document for document in yaml.safe_load_all(built.stdout) if document]


def one(overlay: Sequence[dict], kind: str, name: str) -> dict:
    (found,) = [item for item in overlay if item["kind"] == kind and item["metadata"]["name"] == name]
    return found


def test_daemon_runs_in_keda_mode_with_a_named_port(overlay: list[dict]):
    pod = one(overlay, "Deployment", "vllm-autoscaler")["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    assert container["args"][:2] == ["run", "--mode=keda"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports["grpc"] == KedaSettings().port


def test_memory_is_enough_when_all_calls_are_open(overlay: list[dict]):
    (container,) = one(overlay, "Deployment", "vllm-autoscaler")["spec"]["template"]["spec"]["containers"]
    limit = container["resources"]["limits"]["memory"]
    assert int(limit.removesuffix("Mi")) << 20 > FLEET_BYTES + MAX_CALLS * CALL_BYTES


def test_service_network_policy_and_example_agree(overlay: list[dict]):
    service = one(overlay, "Service", "vllm-autoscaler-keda")
    (port,) = service["spec"]["ports"]
    namespace = service["metadata"]["namespace"]
    address = f"{service['metadata']['name']}.{namespace}:{port['port']}"
    assert EXAMPLE["spec"]["triggers"][0]["metadata"]["scalerAddress"] == address
    assert port["targetPort"] == "grpc"
    policy = one(overlay, "NetworkPolicy", "vllm-autoscaler-keda")["spec"]
    assert policy["ingress"][0]["ports"] == [{"port": "grpc", "protocol": "TCP"}]
    labels = one(overlay, "Deployment", "vllm-autoscaler")["spec"]["template"]["metadata"]["labels"]
    for selector in (service["spec"]["selector"], policy["podSelector"]["matchLabels"]):
        assert selector.items() <= labels.items()


def test_role_writes_only_events():
    writes = {permission for permission in granted(*ROLES) if permission.verb not in ("list", "watch", "get")}
    assert {(permission.resource, permission.verb) for permission in writes} == {
        ("events", "create"),
        ("events", "patch"),
    }


@pytest.mark.integration
async def test_real_api_server_accepts_overlay_and_example(kube_api: KubeApi, overlay: list[dict], namespace: str):
    await kube_api.install_crds()
    await kube_api.apply(*[item for item in overlay if item["kind"] == "Namespace"])
    applied = await kube_api.apply(*[item for item in overlay if item["kind"] != "Namespace"], dry_run=True)
    assert len(applied) == len(overlay) - 1
    await kube_api.apply(EXAMPLE, namespace=namespace, dry_run=True)


@pytest.mark.integration
async def test_daemon_uses_exactly_the_shipped_role(kube_api: KubeApi, namespace: str):
    """The daemon's parts, from the ScaledObject in the cluster to the value over gRPC."""
    await kube_api.install_crds()
    world, clock, lease = World(kube_api, namespace), SystemClock(), Lease()
    await world.deployment("llama", replicas=1, annotations={})
    trigger = EXAMPLE["spec"]["triggers"][0]
    user = await kube_api.service_account(namespace, "daemon", *ROLES)
    async with AsyncExitStack() as stack:
        kube = await stack.enter_async_context(Kube.using(kube_api.configuration(user), PATIENCE_S))
        fleet, answers, events = (
            KubeFleet(kube, clock, Scope(Mode.KEDA)),
            Answers(clock, lease),
            EventRecorder(kube, clock),
        )
        service = KedaService(answers, fleet, lambda: BOOK)
        await stack.enter_async_context(running(fleet, events))
        server = await stack.enter_async_context(KedaServer(KedaSettings(host="127.0.0.1", port=0), service, lease))
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(f"127.0.0.1:{server.port}"))
        stub = ExternalScalerStub(channel)
        loop = Loop(
            Parts(
                clock=clock,
                workloads=fleet,
                sources=[],
                actuator=answers,
                recorders=[answers, events],
                leadership=lease,
            ),
            policies=lambda: BOOK,
            period_s=1,
            deadline_s=PATIENCE_S,
        )
        asked = pb.ScaledObjectRef(namespace=namespace, name="llama-so", scalerMetadata=trigger["metadata"])
        await synced(fleet)

        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.IsActive(asked, timeout=PATIENCE_S)
        assert caught.value.code() == grpc.StatusCode.NOT_FOUND

        for least in (3, 4, 3):  # the same recommendation twice is one event, seen twice
            spec = {**EXAMPLE["spec"], "minReplicaCount": least}
            del spec["triggers"], spec["scaleTargetRef"]
            await world.scaled_object("llama-so", "llama", trigger, **spec)

            async def answered(least: int = least) -> bool:
                await loop.attempt()
                try:
                    value = await stub.GetMetrics(
                        pb.GetMetricsRequest(scaledObjectRef=asked, metricName="replicas"), timeout=5
                    )
                except grpc.aio.AioRpcError:
                    return False
                return value.metricValues[0].metricValue == least

            await eventually(answered, f"{least} replicas are published")
        assert (await stub.IsActive(asked, timeout=PATIENCE_S)).result

        async def everything_used() -> bool:
            return kube_api.used(user) >= granted(*ROLES)

        await eventually(everything_used, "every verb of the role has been used")
        assert kube_api.used(user) == granted(*ROLES)
        assert kube_api.refused(user) == set()
        assert await world.replicas("llama") == 1  # the count is KEDA's to change

        await world.delete("ScaledObject", "llama-so", KEDA)
        ours = (namespace, "llama")  # other tests' workloads are in view as well
        await until(fleet, "it is not managed", lambda view: ours not in {w.ref[:2] for w in view.workloads})
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.IsActive(asked, timeout=PATIENCE_S)
        assert caught.value.code() == grpc.StatusCode.NOT_FOUND
