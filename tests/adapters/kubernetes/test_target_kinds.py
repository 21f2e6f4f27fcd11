"""Custom kinds of scale targets on a real API server: found, read, scaled through their scale subresource, refused."""

from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from autoscaler.adapters.clock import SystemClock
from autoscaler.adapters.kubernetes.api.client import Kube
from autoscaler.adapters.kubernetes.fleet import KubeFleet
from autoscaler.adapters.kubernetes.own_writes import OwnWrites
from autoscaler.adapters.kubernetes.stores import Scope
from autoscaler.catalog.scale_targets import BY_KIND
from autoscaler.config.settings import Mode
from autoscaler.core.model.fleet import Fleet, WorkloadRef
from autoscaler.ports import Change, ChangeStatus
from tests.adapters.kubernetes.conftest import Connect, in_namespace
from tests.adapters.kubernetes.test_fleet import EXTERNAL, FAST
from tests.adapters.kubernetes.world import (
    READY_STATUS,
    RUNNING_STATUS,
    World,
    annotated,
    names,
    patient_actuator,
    row,
    running,
    shipped_roles,
    shipped_target_roles,
    synced,
    template,
    until,
)
from tests.harness.kube_api import CRDS, ApiError, KubeApi, load_manifests
from tests.harness.process import PATIENCE_S, eventually

pytestmark = pytest.mark.integration

INSTALLED = sorted(f"targets/{path.stem}" for path in (CRDS / "targets").glob("*.yaml"))
POD = template({}, 2)
LWS = "leaderworkerset.sigs.k8s.io/"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def served(shared_kube_api: KubeApi) -> AsyncIterator[None]:
    """A cluster that serves the custom kinds."""
    await shared_kube_api.install_crds(*INSTALLED)
    yield
    await shared_kube_api.remove_crds(*INSTALLED)


@pytest_asyncio.fixture
async def kube(kube_api: KubeApi, namespace: str, connect: Connect, served: None) -> AsyncIterator[Kube]:
    """The daemon's connection, with exactly the shipped rights for all kinds, which suffice."""
    roles = [*in_namespace(shipped_roles("direct"), namespace), *shipped_target_roles()]
    user = await kube_api.service_account(namespace, "wide", *roles)
    yield await connect(user)
    assert kube_api.refused(user) == set()


def watching(kube: Kube, clock: SystemClock, world: World, mode: Mode = Mode.DIRECT, *kinds: str) -> KubeFleet:
    return KubeFleet(kube, clock, Scope(mode, [world.namespace], times=FAST, target_kinds=kinds))


def change(view: Fleet, name: str, after: int) -> Change:
    index = row(view, name)
    workload = view.workloads[index]
    return Change(workload.ref, workload.uid, int(view.replicas[index]), after, "because", 1e12)


def scale_of(kind: str) -> tuple[str, str]:
    return kind, BY_KIND[kind].api_version


SPECS: dict[str, tuple[dict[str, Any], dict[str, str], float]] = {
    # kind: (spec, labels of a pod that serves, GPUs of a replica)
    "Rollout": ({"replicas": 1, "template": POD}, {"app": "x"}, 2.0),
    "VLLMRuntime": ({"deploymentConfig": {"replicas": 1}}, {"app": "x"}, 1.0),
    "DynamoGraphDeploymentScalingAdapter": (
        {"replicas": 1, "dgdRef": {"name": "g", "serviceName": "decode"}},
        {"nvidia.com/dynamo-component": "decode"},
        1.0,
    ),
    "DisaggregatedSetRoleScaler": (
        {"replicas": 1},
        {"disaggregatedset.x-k8s.io/role": "decode", f"{LWS}name": "l", f"{LWS}group-index": "0"}
        | {f"{LWS}worker-index": "0"},
        1.0,
    ),
    "ModelServing": (
        {
            "replicas": 1,
            "template": {"roles": [{"name": "r", "entryTemplate": POD, "workerTemplate": POD, "workerReplicas": 0}]},
        },
        {"modelserving.volcano.sh/entry": "true"},
        2.0,
    ),
    "ModelServingRoleReplica": ({"replicas": 1, "roleName": "decode"}, {"modelserving.volcano.sh/role": "d"}, 1.0),
    "StormService": (
        {"replicas": 1, "template": {"spec": {"roles": [{"name": "r", "replicas": 1, "template": POD}]}}},
        {"storm-service-name": "x"},
        2.0,
    ),
    "RayClusterFleet": (
        {
            "replicas": 1,
            "template": {
                "spec": {
                    "headGroupSpec": {"template": POD},
                    "workerGroupSpecs": [{"replicas": 0, "numOfHosts": 1, "template": POD}],
                }
            },
        },
        {"ray.io/cluster": "c", "ray.io/node-type": "head"},
        2.0,
    ),
    "NodeSet": ({"replicas": 1, "slurmd": {}}, {"app.kubernetes.io/name": "slurmd"}, 1.0),
    "PodClique": ({"replicas": 1, "podSpec": POD["spec"]}, {"grove.io/podclique": "x"}, 2.0),
}


@pytest.mark.parametrize("kind", SPECS)
async def test_kind_is_found_with_its_pods_and_scaled(kube: Kube, clock: SystemClock, world: World, kind: str):
    spec, labels, gpus = SPECS[kind]
    selector = ",".join(f"{key}={value}" for key, value in labels.items())
    await world.target(kind, "x", spec, selector)
    await world.owned_pod("serving", f"{kind}/x", labels, READY_STATUS)
    await world.owned_pod("other", "Thing/y", {"app": "other"}, READY_STATUS)
    fleet = watching(kube, clock, world)
    async with running(fleet):
        view = await synced(fleet)
        view = await until(fleet, "its GPUs are known", lambda view: not np.isnan(view.gpus_per_replica).any())
        assert names(view) == ["x"]
        assert view.workloads[0].ref == WorkloadRef(world.namespace, "x", *scale_of(kind))
        assert [pod.name for pod in view.pods] == ["serving"]
        assert view.gpus_per_replica.tolist() == [gpus]
        assert view.workloads[0].model == "m"
        assert view.obstacles.listed.tolist() == [True]
        assert fleet.problems() == {}
        actuator = patient_actuator(kube, OwnWrites(clock), kinds=fleet.kinds)
        for after in (3, 0, 2):
            (outcome,) = await actuator.apply([change(view, "x", after)], PATIENCE_S)
            assert outcome.status is ChangeStatus.APPLIED, outcome.detail
            view = await until(fleet, f"{after} replicas are seen", lambda view, n=after: view.replicas.tolist() == [n])
            assert await world.replicas("x", *scale_of(kind)) == after


async def test_count_that_was_never_set_can_be_written(kube: Kube, clock: SystemClock, world: World):
    await world.target("DisaggregatedSetRoleScaler", "x", {"roleName": "decode"}, "role=decode")
    fleet = watching(kube, clock, world)
    async with running(fleet):
        view = await synced(fleet)
        assert view.replicas.tolist() == [0.0]
        actuator = patient_actuator(kube, OwnWrites(clock), kinds=fleet.kinds)
        (outcome,) = await actuator.apply([change(view, "x", 2)], PATIENCE_S)
        assert outcome.status is ChangeStatus.APPLIED, outcome.detail
        await until(fleet, "2 replicas are seen", lambda view: view.replicas.tolist() == [2.0])


@pytest.mark.parametrize("replicas", [0, 2])
async def test_template_of_a_rollout_is_left_alone(kube: Kube, clock: SystemClock, world: World, replicas: int):
    await world.deployment("template", replicas, gpus=4)
    reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "template"}
    await world.target("Rollout", "llama", {"replicas": 3, "workloadRef": reference}, "app=template,hash=a")
    await world.owned_pod("llama-a-1", "ReplicaSet/llama-a", {"app": "template", "hash": "a"}, READY_STATUS)
    fleet = watching(kube, clock, world)
    async with running(fleet):
        await synced(fleet)
        view = await until(fleet, "its GPUs are known", lambda view: not np.isnan(view.gpus_per_replica).any())
        assert view.other_owner[row(view, "template")] == "Rollout/llama"
        assert view.other_owner[row(view, "llama")] == ""
        assert view.gpus_per_replica[row(view, "llama")] == 4.0
        assert [view.workloads[each].ref.name for each in view.pod_workload] == ["llama"]
        assert fleet.problems() == {}
        off = {"metadata": {"annotations": {"vllm-autoscaler.io/policy": None}}}
        await world.patch("Rollout", "llama", off, "argoproj.io/v1alpha1")
        view = await until(fleet, "the Rollout is not managed", lambda view: names(view) == ["template"])
        problem = fleet.problems()[view.workloads[0].ref]
        assert problem == "Rollout/llama sets its count; allowed: the policy on Rollout/llama"
        await world.delete("Rollout", "llama", "argoproj.io/v1alpha1")
        await until(fleet, "the Deployment is free", lambda view: view.other_owner == ("",))


async def test_deployment_of_a_runtime_is_left_alone(kube: Kube, clock: SystemClock, world: World):
    created = await world.target("VLLMRuntime", "llama", {"deploymentConfig": {"replicas": 1}}, "app=llama")
    await world.deployment("llama")
    owner = {"apiVersion": created["apiVersion"], "kind": "VLLMRuntime", "name": "llama", "controller": True}
    owners = [owner | {"uid": created["metadata"]["uid"]}]
    await world.patch("Deployment", "llama", {"metadata": {"ownerReferences": owners}}, "apps/v1")
    await world.pod("llama", "llama-a", READY_STATUS)
    fleet = watching(kube, clock, world)
    async with running(fleet):
        view = await synced(fleet)
    owner_of = {workload.ref.kind: owner for workload, owner in zip(view.workloads, view.other_owner, strict=True)}
    assert owner_of == {"VLLMRuntime": "", "Deployment": "VLLMRuntime/llama"}
    assert [view.workloads[each].ref.kind for each in view.pod_workload] == ["VLLMRuntime"]


async def test_group_is_ready_when_all_its_pods_are(kube: Kube, clock: SystemClock, world: World):
    """A Ray cluster of a head and two workers, of which the template tells."""
    spec = {
        "replicas": 1,
        "template": {
            "spec": {
                "headGroupSpec": {"template": template({}, 0)},
                "workerGroupSpecs": [{"replicas": 2, "template": template({}, 8)}],
            }
        },
    }
    await world.target("RayClusterFleet", "x", spec, "fleet=x,ray.io/node-type=head")
    labels = {"fleet": "x", "ray.io/cluster": "c"}
    await world.owned_pod("head", "RayCluster/c", labels | {"ray.io/node-type": "head"}, READY_STATUS)
    await world.owned_pod("worker-0", "RayCluster/c", labels | {"ray.io/node-type": "worker"}, READY_STATUS)
    fleet = watching(kube, clock, world)
    async with running(fleet):
        view = await synced(fleet)
        assert view.gpus_per_replica.tolist() == [16.0]
        assert [pod.name for pod in view.pods] == ["head"]
        assert view.pod_ready.tolist() == [False], "a worker does not exist yet"
        await world.owned_pod("worker-1", "RayCluster/c", labels | {"ray.io/node-type": "worker"}, RUNNING_STATUS)
        await world.status("worker-1", READY_STATUS)
        await until(fleet, "the cluster is ready", lambda view: view.pod_ready.tolist() == [True])


async def test_group_of_a_leader_worker_set_is_learned_from_pods(kube: Kube, clock: SystemClock, world: World):
    await world.target("DisaggregatedSetRoleScaler", "x", {"replicas": 1}, "role=decode")
    labels = {"role": "decode", f"{LWS}name": "x-decode", f"{LWS}group-index": "0"}
    for index in range(3):
        name, of = f"x-decode-0-{index}", labels | {f"{LWS}worker-index": str(index)}
        await world.owned_pod(name, "StatefulSet/x-decode", of, READY_STATUS, gpus=8)
        size = {"metadata": {"annotations": {f"{LWS}size": "3"}}}
        await world.patch("Pod", name, size, "v1")
    fleet = watching(kube, clock, world)
    async with running(fleet):
        await synced(fleet)
        view = await until(fleet, "all are seen", lambda view: view.gpus_per_replica.tolist() == [24.0])
        assert len(view.pods) == 1
        view = await until(fleet, "the group is ready", lambda view: view.pod_ready.tolist() == [True])
        await world.delete("Pod", "x-decode-0-2", "v1")
        await until(fleet, "the group is not ready", lambda view: view.pod_ready.tolist() == [False])


async def test_kind_without_scale_subresource_is_refused(kube: Kube, clock: SystemClock, world: World):
    await world.target("RayService", "ray", {"replicas": 1})
    await world.target("LLMInferenceService", "kserve", {"replicas": 1})
    await world.target("RayService", "quiet", {}, annotations={})
    fleet = watching(kube, clock, world)
    async with running(fleet):
        view = await synced(fleet)
    assert view.workloads == ()
    problems = {ref.name: problem for ref, problem in fleet.problems().items()}
    assert problems["ray"].startswith("RayService cannot be scaled: it has no scale subresource; allowed: a RayCluster")
    assert "the Deployment or LeaderWorkerSet that KServe creates" in problems["kserve"]
    assert problems.keys() == {"ray", "kserve"}


@pytest.mark.parametrize(
    ("kind", "spec", "reason"),
    [
        ("NodeSet", {"replicas": 1, "scalingMode": "DaemonSet"}, "which ignores spec.replicas; allowed: StatefulSet"),
        ("StormService", {"replicas": 1, "mode": "Pooled"}, "spec.mode is Pooled"),
        (
            "ModelServing",
            {"replicas": 1, "template": {"roles": [{"name": "prefill"}, {"name": "decode"}]}},
            "spec.template.roles has several engines, which have no speed in common",
        ),
        ("StormService", {"template": {"spec": {"roles": [{"replicas": 4}]}}}, "several engines"),
    ],
)
async def test_object_that_its_replicas_do_not_scale_is_refused(
    kube: Kube, clock: SystemClock, world: World, kind: str, spec: dict[str, Any], reason: str
):
    await world.target(kind, "x", spec, "app=x")
    fleet = watching(kube, clock, world)
    async with running(fleet):
        assert (await synced(fleet)).workloads == ()
    assert reason in fleet.problems()[WorkloadRef(world.namespace, "x", *scale_of(kind))]


async def test_target_without_selector_has_no_missing_replicas(kube: Kube, clock: SystemClock, world: World):
    await world.target("Rollout", "x", {"replicas": 2, "template": POD})
    fleet = watching(kube, clock, world)
    async with running(fleet):
        view = await synced(fleet)
        assert view.obstacles.listed.tolist() == [False]
        assert "has no label selector yet" in fleet.problems()[view.workloads[0].ref]


async def test_targets_that_select_the_same_pods_are_reported(kube: Kube, clock: SystemClock, world: World):
    for name in ("one", "two"):
        await world.target("Rollout", name, {"replicas": 1, "template": POD}, "app=x")
    await world.owned_pod("x", "ReplicaSet/x", {"app": "x"}, READY_STATUS)
    fleet = watching(kube, clock, world)
    async with running(fleet):
        view = await synced(fleet)
        assert len(view.pods) == 1
        problem = fleet.problems()[view.workloads[row(view, "one")].ref]
    assert problem == "its label selector matches pods of Rollout/two as well; allowed: pods of its own"


async def test_kind_may_vanish_and_come_back(kube_api: KubeApi, kube: Kube, clock: SystemClock, world: World):
    await world.deployment("stays")
    await world.target("PodClique", "x", {"replicas": 1, "podSpec": POD["spec"]}, "app=x")
    fleet = watching(kube, clock, world)
    async with running(fleet):
        assert sorted(names(await synced(fleet))) == ["stays", "x"]
        await kube_api.remove_crds("targets/podcliques")
        await until(fleet, "the kind is gone", lambda view: names(view) == ["stays"])
        await kube_api.install_crds("targets/podcliques")
        await world.target("PodClique", "again", {"replicas": 1, "podSpec": POD["spec"]}, "app=x")
        view = await until(fleet, "the kind is back", lambda view: "again" in names(view))
        assert view.gpus_per_replica[row(view, "again")] == 2.0


async def test_kind_that_may_not_be_listed_is_named(
    kube_api: KubeApi, namespace: str, connect: Connect, clock: SystemClock, world: World, served: None
):
    narrow = await kube_api.service_account(namespace, "narrow", *in_namespace(shipped_roles("direct"), namespace))
    await world.deployment("a")
    fleet = watching(await connect(narrow), clock, world)
    async with running(fleet):
        assert names(await synced(fleet)) == ["a"]
        assert "rollouts.argoproj.io is forbidden" in fleet.unlisted_kinds()["rollouts.argoproj.io"]
        assert fleet.watch_problems() == []


async def test_only_wanted_kinds_are_watched(kube: Kube, clock: SystemClock, world: World):
    await world.target("Rollout", "rollout", {"replicas": 1, "template": POD}, "app=x")
    await world.target("NodeSet", "nodes", {"replicas": 1}, "app=y")
    for kinds, expected in ((("nodesets.slinky.slurm.net",), ["nodes"]), (("none",), [])):
        fleet = watching(kube, clock, world, Mode.DIRECT, *kinds)
        async with running(fleet):
            assert names(await synced(fleet)) == expected


async def test_keda_scales_custom_kinds_by_reference(kube: Kube, clock: SystemClock, world: World):
    spec = SPECS["DynamoGraphDeploymentScalingAdapter"][0]
    await world.target("DynamoGraphDeploymentScalingAdapter", "decode", spec, "app=x", annotations={})
    await world.owned_pod("x", "PodClique/x", {"app": "x"}, READY_STATUS)
    for name, version, kind in (
        ("decode", "nvidia.com/v1beta1", "DynamoGraphDeploymentScalingAdapter"),
        ("ray", "ray.io/v1", "RayService"),
        ("absent", "argoproj.io/v1alpha1", "Rollout"),
        ("unknown", "example.com/v1", "Model"),
    ):
        # Those that cannot be scaled have one name, and no problem hides another.
        target = {"apiVersion": version, "kind": kind, "name": "decode" if name == "decode" else "llama"}
        await world.scaled_object(name, name, EXTERNAL, scaleTargetRef=target)
    fleet = watching(kube, clock, world, Mode.KEDA)
    async with running(fleet):
        view = await synced(fleet)
        assert names(view) == ["decode"]
        assert [pod.name for pod in view.pods] == ["x"]
        scaled_object = fleet.scaled_object(world.namespace, "decode")
        assert scaled_object is not None
        assert scaled_object.target == view.workloads[0].ref
    problems = {ref.kind: problem for ref, problem in fleet.problems().items()}
    refused = "cannot be scaled: it has no scale subresource, found 'RayService'; allowed: a RayCluster"
    assert refused in problems["RayService"]
    assert problems["Rollout"] == "the target does not exist"
    assert problems["Model"] == "Model of example.com is not watched; allowed: --target-kind=<plural>.example.com"


async def test_kind_that_no_table_knows_is_scaled_if_named(
    kube_api: KubeApi, namespace: str, connect: Connect, clock: SystemClock, world: World
):
    (crd,) = load_manifests(CRDS / "targets" / "nodesets.yaml")
    crd["metadata"]["name"], crd["spec"]["group"] = "models.example.com", "example.com"
    crd["spec"]["names"] = {"kind": "Model", "listKind": "ModelList", "plural": "models", "singular": "model"}
    rule = {"apiGroups": ["example.com"], "resources": ["models", "models/scale"], "verbs": ["list", "watch", "get"]}
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": f"m-{namespace}"}}
    role |= {"rules": [rule | {"verbs": [*rule["verbs"], "patch"]}]}
    roles = [*in_namespace(shipped_roles("direct"), namespace), role]
    kube = await connect(await kube_api.service_account(namespace, "wide", *roles))
    fleet = watching(kube, clock, world, Mode.DIRECT, "models.example.com")
    async with running(fleet):
        await synced(fleet)
        await kube_api.apply(crd)
        made = {"apiVersion": "example.com/v1beta1", "kind": "Model", "spec": {"replicas": 1}}
        made |= {"metadata": {"name": "x", "annotations": annotated(policy="realtime")}}

        async def apply() -> bool:
            try:
                await kube_api.apply(made, namespace=namespace)
            except (ApiError, KeyError):
                return False
            return True

        await eventually(apply, "the kind is served")
        await kube_api.set_status("example.com/v1beta1", "Model", namespace, "x", {"selector": "app=x"})
        await world.owned_pod("serving", "Thing/x", {"app": "x"}, READY_STATUS, gpus=4)
        view = await until(fleet, "its pod is seen", lambda view: len(view.pods) == 1)
        view = await until(fleet, "its GPUs are known", lambda view: view.gpus_per_replica.tolist() == [4.0])
        actuator = patient_actuator(kube, OwnWrites(clock), kinds=fleet.kinds)
        (outcome,) = await actuator.apply([change(view, "x", 2)], PATIENCE_S)
        assert outcome.status is ChangeStatus.APPLIED, outcome.detail
    await kube_api.delete("apiextensions.k8s.io/v1", "CustomResourceDefinition", None, "models.example.com")
