"""The fleet, read from a real API server by the daemon's own user."""

import asyncio
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from autoscaler.adapters.clock import SystemClock
from autoscaler.adapters.kubernetes.api.client import Kube
from autoscaler.adapters.kubernetes.api.reflector import WatchTimes
from autoscaler.adapters.kubernetes.fleet import KubeFleet
from autoscaler.adapters.kubernetes.own_writes import OwnWrites
from autoscaler.adapters.kubernetes.stores import Scope
from autoscaler.config.pairs import find_pairs
from autoscaler.config.policy.compile import stated_weights_gb
from autoscaler.config.policy.parse import load
from autoscaler.config.settings import Mode
from autoscaler.config.system_namespaces import SystemNamespaces
from autoscaler.core.model.fleet import Fleet, PendingCause, PodPart, WorkloadRef
from autoscaler.ports import Change, ChangeStatus, Unavailable
from tests.adapters.kubernetes.conftest import Connect, in_namespace
from tests.adapters.kubernetes.world import (
    KEDA,
    LATER,
    LATEST,
    READY_STATUS,
    RUNNING_STATUS,
    World,
    annotated,
    condition,
    names,
    patient_actuator,
    pod_row,
    row,
    running,
    shipped_roles,
    synced,
    template,
    until,
    waiting_status,
)
from tests.core.world import spec
from tests.harness.kube_api import KubeApi, User
from tests.harness.process import PATIENCE_S, eventually

pytestmark = pytest.mark.integration

EXTERNAL = {"type": "external-push", "metadata": {"scalerAddress": "a:6000", "policy": "batch"}}
RBAC = "rbac.authorization.k8s.io/v1"
FAST = WatchTimes(silence_s=5.0, backoff_s=0.05, backoff_cap_s=0.2, absent_s=0.2, heartbeat_s=0.2)


POLICY_OF_LARGE_MODELS = """
apiVersion: vllm-autoscaler.io/v1
kind: Policy
metadata: {name: large-models}
spec:
  objective: {ttft: 1s}
  capacity: {weightsGb: 30}
"""


def direct(kube: Kube, clock: SystemClock, world: World, writes: OwnWrites | None = None) -> KubeFleet:
    return KubeFleet(kube, clock, Scope(Mode.DIRECT, [world.namespace], times=FAST), writes=writes)


async def test_fleet_is_unavailable_until_everything_was_listed(kube: Kube, clock: SystemClock, world: World):
    fleet = direct(kube, clock, world)
    with pytest.raises(Unavailable, match=r"deployments in test-.*: its first list is not complete yet"):
        fleet.fleet()


async def test_loop_is_woken_when_the_cluster_is_known(kube: Kube, clock: SystemClock, world: World):
    woken = asyncio.Event()
    fleet = KubeFleet(kube, clock, Scope(Mode.DIRECT, [world.namespace], times=FAST), wakeup=woken)
    async with running(fleet):
        async with asyncio.timeout(PATIENCE_S):
            await woken.wait()
        assert fleet.fleet().workloads == ()


async def test_missing_permission_is_the_reason(
    kube_api: KubeApi, namespace: str, connect: Connect, clock: SystemClock, world: World
):
    unprivileged = await kube_api.service_account(namespace, "unprivileged")
    fleet = direct(await connect(unprivileged), clock, world)
    async with running(fleet):

        async def is_named() -> bool:
            with pytest.raises(Unavailable) as refused:
                fleet.fleet()
            return re.search(r"403: deployments.apps is forbidden: User .*cannot list", str(refused.value)) is not None

        await eventually(is_named, "the permission is named")


async def test_namespace_without_rights_stops_no_other(
    kube_api: KubeApi, connect: Connect, clock: SystemClock, world: World
):
    """One team's RoleBinding is missing at first, then there, then gone again."""
    other = World(kube_api, await kube_api.namespace())
    await world.deployment("llama")
    await other.deployment("qwen")
    rules = [rule for role in shipped_roles("direct") if role["kind"] == "ClusterRole" for rule in role["rules"]]

    async def allow(namespace: str) -> User:
        metadata = {"name": "narrow", "namespace": namespace}
        role = {"apiVersion": RBAC, "kind": "Role", "metadata": metadata, "rules": rules}
        return await kube_api.service_account(world.namespace, "narrow", role)

    kube = await connect(await allow(world.namespace))
    fleet = KubeFleet(kube, clock, Scope(Mode.DIRECT, [world.namespace, other.namespace], times=FAST))
    async with running(fleet):
        assert names(await synced(fleet)) == ["llama"]
        await until(fleet, "teams are not read", lambda _: "forbidden" in fleet.unlisted_kinds().get("namespaces", ""))
        told = f"workloads of namespace {other.namespace} are not managed: "
        assert [line.partition("GET")[0] for line in fleet.watch_problems()] == [told]
        await allow(other.namespace)
        await until(fleet, "both are managed", lambda view: names(view) == ["llama", "qwen"])
        assert fleet.watch_problems() == []
        await kube_api.delete(RBAC, "RoleBinding", other.namespace, f"{world.namespace}-narrow-narrow")
        async with kube_api.outage():  # an open watch is not refused
            pass
        view = await until(fleet, "the other is left out", lambda view: names(view) == ["llama"])
        await until(fleet, "the view stays true", lambda later: later.time_s > view.time_s)


async def test_annotated_deployments_are_managed_with_their_pods(kube: Kube, clock: SystemClock, world: World):
    await world.deployment("llama", replicas=3, gpus=2)
    await world.deployment("other", annotations={})
    await world.pod("llama", "llama-a", READY_STATUS)
    await world.pod("other", "other-a", READY_STATUS)
    scope = Scope(Mode.DIRECT, [world.namespace], times=FAST, team_label="app")
    fleet = KubeFleet(kube, clock, scope)
    async with running(fleet):
        view = await synced(fleet)
    assert names(view) == ["llama"]
    assert view.workloads[0].team == "llama"
    assert view.replicas.tolist() == [3.0]
    assert view.gpus_per_replica.tolist() == [2.0]
    assert view.workloads[0].policy == "realtime"
    assert view.workloads[0].model == "m"
    assert [(pod.name, pod.ip, pod.node) for pod in view.pods] == [("llama-a", "10.1.2.3", "node-1")]
    assert view.pod_workload.tolist() == [0]
    assert view.pod_ready.tolist() == [True]
    assert view.pod_slots is not None and view.pod_slots.tolist() == [24.0]


async def test_labels_of_a_namespace_name_the_team_while_it_is_watched(
    kube_api: KubeApi, connect: Connect, clock: SystemClock, world: World
):
    """With the rights of the chart for some namespaces: to list those alone, by their names."""

    async def label(**labels: str) -> None:
        metadata = {"name": world.namespace, "labels": labels}
        await kube_api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})

    await world.deployment("llama")
    await label(team="search")
    narrow = {
        "apiVersion": RBAC,
        "kind": "ClusterRole",
        "metadata": {"name": f"own-{world.namespace}"},
        "rules": [
            rule | ({"resourceNames": [world.namespace]} if rule["resources"] == ["namespaces"] else {})
            for role in shipped_roles("direct")
            if role["kind"] == "ClusterRole"
            for rule in role["rules"]
        ],
    }
    user = await kube_api.service_account(world.namespace, "narrow", narrow)
    fleet = direct(await connect(user), clock, world)
    async with running(fleet):
        view = await synced(fleet)
        assert view.workloads[0].team == "search"
        await label(team="ads")
        await until(fleet, "it is another team's", lambda view: view.workloads[0].team == "ads")
        await label(other="x")
        await until(fleet, "it is nobody's", lambda view: view.workloads[0].team == "")
    assert {used.resource for used in kube_api.refused(user)} == {"configmaps"}  # a Role of kube-system has that


async def test_cold_start_times_are_read_from_pod_conditions(kube: Kube, clock: SystemClock, world: World):
    await world.deployment("llama")
    await world.pod("llama", "llama-a", RUNNING_STATUS)
    fleet = direct(kube, clock, world)
    async with running(fleet):
        view = await synced(fleet)
        assert (view.pod_started_s - view.pod_scheduled_s).tolist() == [pytest.approx(50.0)]
        assert np.isnan(view.pod_ready_s[0])
        assert clock.now_s() - 60 < view.pod_created_s[0] < clock.now_s() + 1
        await world.status("llama-a", READY_STATUS)
        view = await until(fleet, "the pod is ready", lambda view: view.pod_ready.all())
        assert (view.pod_ready_s - view.pod_started_s).tolist() == [pytest.approx(120.0)]


async def test_phases_of_a_start_are_read_from_the_cluster(
    kube_api: KubeApi, kube: Kube, clock: SystemClock, world: World
):
    node = f"{world.namespace}-a"
    await kube_api.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}})
    await world.deployment("llama")
    await world.pod("llama", "phased-a", fetching_status(), node=node)
    # The rights of a test end at its namespace, and nodes are in none.
    fleet = KubeFleet(kube, clock, Scope(Mode.DIRECT, times=FAST))
    try:
        async with running(fleet):
            await synced(fleet)
            await until(fleet, "the pod is known", lambda view: "phased-a" in [pod.name for pod in view.pods])
            fetches = "its init container runs"
            view = await until(fleet, fetches, lambda view: not np.isnan(start_of(view, "fetching_since_s")))
            since_s = view.pod_scheduled_s[pod_row(view, "phased-a")] + 50
            assert start_of(view, "fetching_since_s") == pytest.approx(since_s)
            await until(fleet, "its node is known", lambda view: start_of(view, "node_created_s") <= clock.now_s() + 1)
            await kubelet_says(world, "phased-a", "Pulling", 'Pulling image "vllm"')
            await until(fleet, "an image is pulled", lambda view: not np.isnan(start_of(view, "pulling_since_s")))
            took = 'Successfully pulled image "vllm" in 41s (1m1.5s including waiting). Image size: 9 bytes.'
            await kubelet_says(world, "phased-a", "Pulled", took)
            await until(fleet, "its image is there", lambda view: start_of(view, "image_s") == 61.5)
            await world.status("phased-a", fetching_status(ended=True))
            await until(fleet, "its weights are there", lambda view: start_of(view, "weights_s") == 120.0)
    finally:
        await kube_api.delete("v1", "Node", None, node)


def start_of(view: Fleet, column: str) -> float:
    """Return a column of the start of the pod phased-a."""
    return float(getattr(view.starts, column)[pod_row(view, "phased-a")])


def fetching_status(ended: bool = False) -> dict[str, Any]:
    """Return the status of a pod whose init container fetches weights, or has fetched them."""
    times = {"startedAt": LATER, "finishedAt": LATEST}
    state = {"terminated": {"exitCode": 0, **times}} if ended else {"running": {"startedAt": LATER}}
    container = {"name": "storage-initializer", "image": "i", "imageID": "", "ready": ended, "restartCount": 0}
    return {
        "phase": "Pending",
        "conditions": [condition("PodScheduled")],
        "initContainerStatuses": [container | {"state": state}],
    }


async def kubelet_says(world: World, pod: str, reason: str, message: str) -> None:
    """Write an Event about a pod like the kubelet."""
    at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    about = {"apiVersion": "v1", "kind": "Pod", "namespace": world.namespace, "name": pod}
    body = {"apiVersion": "v1", "kind": "Event", "type": "Normal", "reason": reason, "message": message, "count": 1}
    body |= {"involvedObject": about, "source": {"component": "kubelet"}, "firstTimestamp": at, "lastTimestamp": at}
    await world.api.apply(body | {"metadata": {"name": f"{pod}.{reason.lower()}", "namespace": world.namespace}})


@pytest.mark.parametrize(
    ("status", "blocked"),
    [
        ({"conditions": [condition("PodScheduled", "False", reason="Unschedulable")]}, PendingCause.UNSCHEDULABLE),
        ({"conditions": [condition("PodScheduled", "False", reason="SchedulingGated")]}, PendingCause.SCHEDULING_GATED),
        (waiting_status("ImagePullBackOff"), PendingCause.IMAGE_PULL),
        (waiting_status("CrashLoopBackOff"), PendingCause.CRASH_LOOP),
        (waiting_status("CreateContainerConfigError"), PendingCause.CONFIG_ERROR),
        (waiting_status("ContainerCreating"), PendingCause.NONE),
    ],
)
async def test_blocked_pod_has_its_cause(
    kube: Kube, clock: SystemClock, world: World, status: dict, blocked: PendingCause
):
    await world.deployment("llama")
    await world.pod("llama", "llama-a", status)
    fleet = direct(kube, clock, world)
    async with running(fleet):
        assert (await synced(fleet)).pod_pending.tolist() == [blocked]


async def test_evicted_pod_is_terminating_and_finished_one_gone(kube: Kube, clock: SystemClock, world: World):
    await world.deployment("llama")
    leaving = [*READY_STATUS["conditions"], condition("DisruptionTarget", reason="PreemptionByScheduler")]
    await world.pod("llama", "leaving", READY_STATUS | {"conditions": leaving})
    await world.pod("llama", "evicted", {"phase": "Failed", "reason": "Evicted"})
    fleet = direct(kube, clock, world)
    async with running(fleet):
        view = await synced(fleet)
    assert [pod.name for pod in view.pods] == ["leaving"]
    assert view.pod_terminating.tolist() == [True]


async def test_owner_in_another_namespace_is_ignored(kube: Kube, clock: SystemClock, world: World, kube_api: KubeApi):
    """The API server does not check that an owner exists, so a tenant could add pods to another one's workload."""
    created = await world.deployment("llama")
    await world.pod("llama", "llama-0")
    mine = await kube_api.get("apps/v1", "ReplicaSet", world.namespace, "llama-1")
    other = World(kube_api, await kube_api.namespace())

    def owned(kind: str, owner: dict) -> list[dict]:
        name, uid = owner["metadata"]["name"], owner["metadata"]["uid"]
        return [{"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": uid, "controller": True}]

    spec = {"selector": {"matchLabels": {"app": "x"}}, "template": template({"app": "x"})}
    metadata = {"name": "llama-1", "ownerReferences": owned("Deployment", created)}
    replica_set = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": metadata, "spec": spec}
    (theirs,) = await kube_api.apply(replica_set, namespace=other.namespace)
    for name, owner in (("direct", mine), ("through", theirs)):
        metadata = {"name": name, "ownerReferences": owned("ReplicaSet", owner)}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template({})["spec"]}
        await kube_api.apply(pod, namespace=other.namespace)
    fleet = KubeFleet(kube, clock, Scope(Mode.DIRECT, [world.namespace, other.namespace]))
    async with running(fleet):
        view = await synced(fleet)
    assert [pod.name for pod in view.pods] == ["llama-0"]


async def test_stateful_set_owns_its_pods_directly(kube: Kube, clock: SystemClock, world: World):
    await world.stateful_set("llama", replicas=2)
    await world.pod("llama", "llama-0", READY_STATUS, kind="StatefulSet")
    fleet = direct(kube, clock, world)
    async with running(fleet):
        view = await synced(fleet)
    assert view.workloads[0].ref == WorkloadRef(world.namespace, "llama", "StatefulSet")
    assert [pod.name for pod in view.pods] == ["llama-0"]


async def test_leader_worker_set_counts_groups(kube: Kube, clock: SystemClock, world: World):
    await world.leader_worker_set("deepseek", replicas=2, size=4, gpus=8)
    lws = "leaderworkerset.sigs.k8s.io/"
    for index in range(4):
        labels = {f"{lws}name": "deepseek", f"{lws}group-index": "0", f"{lws}worker-index": str(index)}
        name = f"deepseek-0-{index}" if index else "deepseek-0"
        await world.pod("deepseek", name, RUNNING_STATUS, kind="LeaderWorkerSet", labels=labels, node=f"n{index}")
    fleet = direct(kube, clock, world)
    async with running(fleet):
        view = await synced(fleet)
        assert view.replicas.tolist() == [2.0]
        assert view.parts == tuple(PodPart(0, f"n{index}", 1.0) for index in range(4))
        assert view.gpus_per_replica.tolist() == [32.0]
        assert [pod.name for pod in view.pods] == ["deepseek-0"]
        assert view.pod_pending.tolist() == [PendingCause.NONE]
        await world.status("deepseek-0-3", waiting_status("CrashLoopBackOff"))
        await until(
            fleet, "a crashing worker blocks its group", lambda v: v.pod_pending.tolist() == [PendingCause.CRASH_LOOP]
        )
        await world.delete("Pod", "deepseek-0-3", "v1")
        await until(fleet, "its replacement may help", lambda v: v.pod_pending.tolist() == [PendingCause.NONE])


async def test_columns_are_reused_when_nothing_has_changed(kube: Kube, clock: SystemClock, world: World):
    await world.deployment("llama")
    await world.pod("llama", "llama-a", READY_STATUS)
    fleet = direct(kube, clock, world)
    async with running(fleet):
        await synced(fleet)
        await asyncio.sleep(0.3)
        before, after = fleet.fleet(), fleet.fleet()
        assert after.workloads is before.workloads
        assert after.pods is before.pods
        assert after.pod_ready is before.pod_ready
        await world.status("llama-a", RUNNING_STATUS)
        view = await until(fleet, "the pod is not ready", lambda view: not view.pod_ready.any())
    assert view.pods is before.pods
    assert view.workloads is before.workloads
    assert before.pod_ready.tolist() == [True]


async def test_ids_ascend_and_are_never_reused(kube: Kube, clock: SystemClock, world: World):
    await world.deployment("a")
    await world.deployment("b")
    await world.pod("a", "a-1", READY_STATUS)
    fleet = direct(kube, clock, world)
    async with running(fleet):
        first = await synced(fleet)
        await world.delete("Deployment", "a")
        await world.delete("ReplicaSet", "a-1")
        await until(fleet, "a is gone", lambda view: names(view) == ["b"])
        await world.deployment("a")
        await world.pod("a", "a-2", READY_STATUS)
        again = await until(fleet, "a is back", lambda view: len(view.workloads) == 2 and len(view.pods) == 1)
    assert again.workload_id[row(again, "b")] == first.workload_id[row(first, "b")]
    assert again.workload_id[row(again, "a")] > first.workload_id.max()
    assert again.pod_id[pod_row(again, "a-2")] > first.pod_id.max()
    assert (np.diff(again.workload_id) > 0).all()


async def test_workload_is_managed_while_it_has_the_annotation(kube: Kube, clock: SystemClock, world: World):
    await world.deployment("llama", annotations={})
    await world.pod("llama", "llama-a", READY_STATUS)
    await world.deployment("other")
    fleet = direct(kube, clock, world)
    async with running(fleet):
        assert names(await synced(fleet)) == ["other"]
        await world.deployment("llama", annotations=annotated(policy="batch", paused="true"))
        view = await until(fleet, "llama is managed", lambda view: len(view.workloads) == 2)
        assert view.paused[row(view, "llama")]
        assert [pod.name for pod in view.pods] == ["llama-a"]
        await world.deployment("llama", annotations={})
        view = await until(fleet, "llama is not managed any more", lambda view: len(view.workloads) == 1)
        assert view.pods == ()


@pytest.mark.parametrize("mode", [Mode.DIRECT, Mode.KEDA])
async def test_annotation_is_named_when_a_misspelling_hides_the_policy(
    kube: Kube, clock: SystemClock, world: World, mode: Mode
):
    await world.deployment("llama", annotations={"vllm-autoscaler.io/polcy": "batch"})
    fleet = KubeFleet(kube, clock, Scope(mode, [world.namespace], times=FAST))
    async with running(fleet):
        view = await synced(fleet)
        ((_, problem),) = fleet.problems().items()
    assert names(view) == []
    assert problem.startswith("did you mean policy? vllm-autoscaler.io/'polcy' is not known")


async def test_workload_is_gone_while_it_is_being_deleted(
    kube_api: KubeApi, kube: Kube, clock: SystemClock, world: World
):
    await world.deployment("leaving")
    await world.pod("leaving", "leaving-a", READY_STATUS)
    await world.deployment("staying")
    path = await kube_api.path("apps/v1", "Deployment", world.namespace, "leaving")
    fleet = direct(kube, clock, world)
    async with running(fleet):
        first = await synced(fleet)
        await kube_api.request("DELETE", path, propagationPolicy="Foreground")  # no controller completes it here
        view = await until(fleet, "it has left", lambda view: names(view) == ["staying"])
        assert view.pods == ()
        finalizers = {"metadata": {"finalizers": []}}
        await kube_api.request("PATCH", path, finalizers, content_type="application/merge-patch+json")
        await world.deployment("leaving")
        again = await until(fleet, "another of this name", lambda view: len(view.workloads) == 2)
    assert again.workload_id[row(again, "leaving")] > first.workload_id.max()


async def test_invalid_annotations_are_reported_for_one_workload(kube: Kube, clock: SystemClock, world: World):
    bad = annotated(policy="no/such", max_replicas="-3", paused="perhaps", metrics_port="99999", max_replcas="3")
    await world.deployment("bad", annotations=bad)
    await world.deployment("good", annotations=annotated(policy="batch", max_replicas="3"))
    fleet = direct(kube, clock, world)
    with capture_logs() as lines:
        async with running(fleet):
            view = await synced(fleet)
            await world.deployment("good", annotations=annotated(policy="batch", max_replicas="4"))
            await until(fleet, "a new view", lambda view: ("replicas.max", "4") in view.workloads[1].overrides)
            await world.deployment("bad", annotations=annotated(policy="batch"))
            await until(fleet, "nothing is wrong", lambda _: not fleet.problems())
    workload = view.workloads[row(view, "bad")]
    assert (workload.policy, workload.overrides, workload.metrics_port) == (
        "(invalid)",
        (("replicas.max", "-3"),),
        8000,
    )
    assert view.paused[row(view, "bad")]
    problem = lines[0]["problem"]
    for part in ("found 'no/such'", "'-3'", "'perhaps'", "1 to 65,535", "'max-replcas' is not known"):
        assert part in problem
    assert view.workloads[row(view, "good")].overrides == (("replicas.max", "3"),)
    assert [(line["event"], line["workload"]) for line in lines] == [
        ("declaration of a workload has a problem", str(workload.ref)),
        ("declaration of a workload has no problem any more", str(workload.ref)),
    ]


async def test_log_says_what_is_needed_when_no_workload_is_managed(kube: Kube, clock: SystemClock, world: World):
    await world.deployment("llama", annotations={})
    fleet = direct(kube, clock, world)
    with capture_logs() as lines:
        async with running(fleet):
            await synced(fleet)
            await world.deployment("llama")
            await until(fleet, "a workload", lambda view: len(view.workloads) == 1)
            await world.deployment("llama", annotations={})
            await until(fleet, "no workload", lambda view: not view.workloads)
    expected = {
        "event": "no workload is managed",
        "needed": "the annotation vllm-autoscaler.io/policy on a Deployment, StatefulSet or another scale target",
        "namespaces": [world.namespace],
        "log_level": "warning",
    }
    assert lines == [expected, expected]


async def test_hpa_is_the_other_owner_until_it_is_deleted(kube: Kube, clock: SystemClock, world: World):
    await world.deployment("llama")
    await world.deployment("other")
    await world.hpa("theirs", "llama")
    fleet = direct(kube, clock, world)
    async with running(fleet):
        view = await synced(fleet)
        assert view.other_owner[row(view, "llama")] == "HorizontalPodAutoscaler/theirs"
        assert view.other_owner[row(view, "other")] == ""
        await world.delete("HorizontalPodAutoscaler", "theirs", "autoscaling/v2")
        await until(fleet, "no other owner is left", lambda view: view.other_owner == ("", ""))


async def test_write_of_an_hpa_is_no_manual_override(kube: Kube, clock: SystemClock, world: World):
    await world.deployment("llama")
    await world.deployment("other")
    await world.hpa("theirs", "llama")
    fleet = direct(kube, clock, world)
    async with running(fleet):
        await synced(fleet)
        for name, count in (("llama", 5), ("other", 6)):
            await world.scale(name, count, by="kube-controller-manager")
        view = await until(fleet, "both counts", lambda view: sorted(view.replicas.tolist()) == [5, 6])
        assert view.other_owner[row(view, "llama")] == "HorizontalPodAutoscaler/theirs"
        assert view.other_owner[row(view, "other")] == "the controller kube-controller-manager"
        await world.delete("HorizontalPodAutoscaler", "theirs", "autoscaling/v2")
        await until(fleet, "no other owner is left", lambda view: view.other_owner[row(view, "llama")] == "")


async def test_scaled_object_is_named_instead_of_its_hpa(kube: Kube, clock: SystemClock, world: World):
    await world.deployment("llama")
    await world.scaled_object("theirs", "llama", {"type": "prometheus", "metadata": {}})
    await world.hpa("keda-hpa-theirs", "llama", scaled_object="theirs")
    fleet = direct(kube, clock, world)
    async with running(fleet):
        assert (await synced(fleet)).other_owner == ("ScaledObject/theirs",)


async def test_manual_change_after_our_write_is_an_override(kube: Kube, clock: SystemClock, world: World):
    created = await world.deployment("llama", replicas=2)
    writes = OwnWrites(clock)
    fleet, actuator = direct(kube, clock, world, writes), patient_actuator(kube, writes)
    ref = WorkloadRef(world.namespace, "llama")
    async with running(fleet):
        await synced(fleet)
        outcomes = await actuator.apply([Change(ref, created["metadata"]["uid"], 2, 4, "more")], PATIENCE_S)
        assert outcomes[0].status is ChangeStatus.APPLIED
        view = await until(fleet, "our change is seen", lambda view: view.replicas.tolist() == [4.0])
        assert view.other_owner == ("",)
        await world.scale("llama", 7, by="kubectl-scale")
        view = await until(fleet, "their change is seen", lambda view: view.replicas.tolist() == [7.0])
    assert view.other_owner == ("a manual change by kubectl-scale",)


async def test_two_installations_respect_each_other(kube: Kube, clock: SystemClock, world: World):
    created = await world.deployment("llama", replicas=2)
    ours, theirs = (OwnWrites(clock, f"{name}/vllm-autoscaler") for name in ("ours", "theirs"))
    fleet, their_fleet = direct(kube, clock, world, ours), direct(kube, clock, world, theirs)
    ref, uid = WorkloadRef(world.namespace, "llama"), created["metadata"]["uid"]
    async with running(fleet, their_fleet):
        await synced(fleet)
        await synced(their_fleet)
        await patient_actuator(kube, ours).apply([Change(ref, uid, 2, 4, "more")], PATIENCE_S)
        view = await until(their_fleet, "the change is seen", lambda view: view.replicas.tolist() == [4.0])
        assert view.other_owner == ("another installation, vllm-autoscaler/ours/vllm-autoscaler",)
        await patient_actuator(kube, theirs).apply([Change(ref, uid, 4, 3, "less")], PATIENCE_S)
        view = await until(fleet, "the change is seen", lambda view: view.replicas.tolist() == [3.0])
    assert view.other_owner == ("another installation, vllm-autoscaler/theirs/vllm-autoscaler",)


async def test_manual_change_before_any_write_is_an_override(kube: Kube, clock: SystemClock, world: World):
    await world.deployment("llama", replicas=2)
    await world.deployment("mistral", replicas=2, annotations={})
    fleet = direct(kube, clock, world)
    async with running(fleet):
        await synced(fleet)
        for name in ("llama", "mistral"):
            await world.scale(name, 5, by="kubectl-scale")
        await until(fleet, "the change is seen", lambda view: view.replicas.tolist() == [5.0])
        await world.deployment("mistral", replicas=5, annotations=annotated(policy="batch"))
        view = await until(fleet, "both are ours", lambda view: view.replicas.tolist() == [5.0, 5.0])
    assert [workload.ref.name for workload in view.workloads] == ["llama", "mistral"]
    assert view.other_owner == ("a manual change by kubectl-scale", "")


async def test_gpus_are_pooled_by_resource_and_product(kube_api: KubeApi, kube: Kube, clock: SystemClock, world: World):
    product = f"H100-{world.namespace}"
    for name, count in (("one", 8), ("two", 4)):
        node = {"metadata": {"name": f"{name}-{world.namespace}", "labels": {"nvidia.com/gpu.product": product}}}
        await kube_api.apply({"apiVersion": "v1", "kind": "Node", **node})
        status = {"allocatable": {"nvidia.com/gpu": str(count), "cpu": "8"}}
        await kube_api.set_status("v1", "Node", None, f"{name}-{world.namespace}", status)
    await world.deployment("llama", nodeSelector={"nvidia.com/gpu.product": product})
    fleet = direct(kube, clock, world)
    async with running(fleet):
        view = await synced(fleet)
    assert [(pool.resource, pool.product) for pool in view.pools] == [("nvidia.com/gpu", product)]
    assert view.pool_gpus.tolist() == [12.0]
    assert view.pool.tolist() == [0]


async def test_stray_pods_keep_their_gpus(kube_api: KubeApi, kube: Kube, clock: SystemClock, world: World):
    """A pod of team a's workload was scheduled on team b's node before it got its selector."""
    product = f"L4-{world.namespace}"
    for team, count in (("a", 4), ("b", 8)):
        labels = {"nvidia.com/gpu.product": product, "team": team}
        name = "node-1" if team == "b" else f"a-{world.namespace}"
        await kube_api.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}})
        await kube_api.set_status("v1", "Node", None, name, {"allocatable": {"nvidia.com/gpu": str(count)}})
    selector = {"nvidia.com/gpu.product": product, "team": "a"}
    await world.deployment("llama", replicas=3, nodeSelector=selector)
    await world.pod("llama", "llama-a", READY_STATUS)  # on node-1
    fleet = direct(kube, clock, world)
    async with running(fleet):
        view = await synced(fleet)
        assert view.pool_gpus.tolist() == [5.0]
        assert view.obstacles.fits.tolist() == [5.0]
        assert view.pools[0].nodes == f"nvidia.com/gpu.product={product}, team=a"
    await kube_api.delete("v1", "Node", None, "node-1")


async def test_obstacles_are_read_from_controllers_and_pods(
    kube_api: KubeApi, kube: Kube, clock: SystemClock, world: World
):
    for name in ("quota", "waits", "image", "fine"):
        await world.deployment(name, replicas=2)
    condition_ = condition("ReplicaFailure", "True", reason="FailedCreate")
    failed = condition_ | {"message": "exceeded\nquota: gpus", "lastUpdateTime": condition_["lastTransitionTime"]}
    await kube_api.set_status("apps/v1", "Deployment", world.namespace, "quota", {"conditions": [failed]})
    unplaced = condition("PodScheduled", "False", reason="Unschedulable") | {
        "message": "0/2 nodes are available. " * 99
    }
    await world.pod("waits", "waits-a", {"phase": "Pending", "conditions": [unplaced]})
    await world.pod("image", "image-a", waiting_status("ImagePullBackOff"))
    await world.pod("fine", "fine-a", READY_STATUS)
    fleet = direct(kube, clock, world)
    async with running(fleet):
        view = await synced(fleet)
    messages = dict(zip(names(view), view.obstacles.messages, strict=True))
    assert messages["quota"] == "FailedCreate: exceeded quota: gpus"
    assert messages["waits"].startswith("Unschedulable: 0/2 nodes are available.")
    assert len(messages["waits"]) == 240
    assert (messages["image"], messages["fine"]) == ("ImagePullBackOff", "")
    assert view.obstacles.creation_failed.tolist() == [name == "quota" for name in names(view)]
    assert {ref.name for ref in fleet.obstructed()} == {"quota", "waits", "image"}


async def test_refused_count_is_forgotten_when_the_workload_changes(kube: Kube, clock: SystemClock, world: World):
    created = await world.deployment("llama")
    writes = OwnWrites(clock)
    writes.add_refusal(created["metadata"]["uid"], 4, 1, "denied")
    fleet = direct(kube, clock, world, writes)
    async with running(fleet):
        view = await synced(fleet)
        assert (view.obstacles.refused_replicas.tolist(), view.obstacles.messages) == ([4.0], ("denied",))
        await world.deployment("llama", gpus=2)
        await until(fleet, "it is forgotten", lambda view: np.isnan(view.obstacles.refused_replicas).all())


async def test_gpus_are_unknown_without_permission_for_nodes(
    kube_api: KubeApi, namespace: str, connect: Connect, clock: SystemClock, world: World
):
    roles = in_namespace(shipped_roles("direct"), namespace)
    cluster_role = next(role for role in roles if role["kind"] == "ClusterRole")
    rules = [rule for rule in cluster_role["rules"] if rule["resources"] != ["nodes"]]
    blind = cluster_role | {"metadata": {"name": f"blind-{namespace}"}, "rules": rules}
    user = await kube_api.service_account(namespace, "blind", blind)
    await world.deployment("llama")
    fleet = direct(await connect(user), clock, world)
    async with running(fleet):
        view = await synced(fleet)
    assert names(view) == ["llama"]
    assert np.isnan(view.pool_gpus).all()


async def test_roles_of_a_pair_are_read_from_annotations(kube: Kube, clock: SystemClock, world: World):
    await world.deployment("m-prefill", annotations=annotated(policy="", service="m", role="prefill"))
    await world.deployment("m-decode", annotations=annotated(policy="", service="m", role="decode"))
    await world.deployment("odd", annotations=annotated(policy="", service="m", role="both"))
    fleet = direct(kube, clock, world)
    async with running(fleet):
        view = await synced(fleet)
    roles = {workload.ref.name: workload.role for workload in view.workloads}
    assert roles == {"m-prefill": "prefill", "m-decode": "decode", "odd": ""}
    pairs = find_pairs(view.workloads, spec(3))
    assert {
        (view.workloads[row].role, view.workloads[pairs.partner[row]].role)
        for row in range(3)
        if pairs.partner[row] >= 0
    } == {
        ("prefill", "decode"),
        ("decode", "prefill"),
    }
    (problem,) = fleet.problems().values()
    assert "role: unknown, found 'both'; allowed: prefill, decode" in problem


async def test_keda_workloads_are_the_targets_of_triggers(kube: Kube, clock: SystemClock, world: World):
    await world.deployment("llama", annotations=annotated(service="chat"))
    await world.deployment("other")
    overrides = {"type": "external", "metadata": EXTERNAL["metadata"] | {"objective.ttft": "200ms"}}
    await world.scaled_object("ours", "llama", overrides, minReplicaCount=1, maxReplicaCount=6)
    await world.hpa("keda-hpa-ours", "llama", scaled_object="ours")
    fleet = KubeFleet(kube, clock, Scope(Mode.KEDA, [world.namespace], times=FAST))
    async with running(fleet):
        view = await synced(fleet)
    assert names(view) == ["llama"]
    workload = view.workloads[0]
    assert (workload.policy, workload.service) == ("batch", "chat")
    assert (workload.overrides, workload.bounds) == ((("objective.ttft", "200ms"),), (1, 6))
    assert view.other_owner == ("",)
    assert fleet.problems() == {}
    assert view.hpa_limits is not None and view.hpa_limits.min_replicas.tolist() == [1]
    scaled = fleet.scaled_object(world.namespace, "ours")
    assert scaled is not None
    assert (scaled.target, scaled.min_replicas, scaled.max_replicas, scaled.problem) == (workload.ref, 1, 6, "")
    assert fleet.scaled_object(world.namespace, "unknown") is None


async def test_windows_of_a_target_count_in_keda_mode(kube: Kube, clock: SystemClock, world: World):
    windows = '[{"from": "0 9 * * *", "until": "0 18 * * *", "replicas": 3}]'
    await world.deployment("llama", annotations={"vllm-autoscaler.io/windows": windows})
    await world.scaled_object("ours", "llama", EXTERNAL)
    fleet = KubeFleet(kube, clock, Scope(Mode.KEDA, [world.namespace], times=FAST))
    async with running(fleet):
        (workload,) = (await synced(fleet)).workloads
    assert workload.overrides == (("prewarm", windows),)
    assert fleet.problems() == {}


async def test_override_annotations_are_reported_in_keda_mode(kube: Kube, clock: SystemClock, world: World):
    await world.deployment("llama", annotations=annotated(policy="batch", max_replicas="8"))
    await world.scaled_object("ours", "llama", EXTERNAL)
    fleet = KubeFleet(kube, clock, Scope(Mode.KEDA, [world.namespace], times=FAST))
    async with running(fleet):
        (workload,) = (await synced(fleet)).workloads
    assert workload.overrides == ()
    problem = "replicas.max: an annotation has no effect in KEDA mode; allowed: the metadata of the trigger"
    assert fleet.problems() == {workload.ref: problem}


async def test_other_scaled_objects_and_hpas_are_owners_in_keda_mode(kube: Kube, clock: SystemClock, world: World):
    for name in ("a", "b"):
        await world.deployment(name, annotations={})
        await world.scaled_object(f"ours-{name}", name, EXTERNAL)
    await world.scaled_object("theirs", "a", {"type": "cron", "metadata": {}})
    await world.hpa("by-hand", "b")
    fleet = KubeFleet(kube, clock, Scope(Mode.KEDA, [world.namespace], times=FAST))
    async with running(fleet):
        view = await synced(fleet)
    assert view.other_owner[row(view, "a")] == "ScaledObject/theirs"
    assert view.other_owner[row(view, "b")] == "HorizontalPodAutoscaler/by-hand"


async def test_invalid_scaled_object_is_reported(kube: Kube, clock: SystemClock, world: World):
    await world.deployment("twice", annotations={})
    await world.scaled_object("twice", "twice", EXTERNAL, EXTERNAL)
    await world.scaled_object("absurd", "missing", EXTERNAL, minReplicaCount=9, maxReplicaCount=2)
    rollout = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout", "name": "unknown"}
    await world.scaled_object("rollout", "unknown", EXTERNAL, scaleTargetRef=rollout)
    await world.scaled_object("no-policy", "twice", {"type": "external", "metadata": {"scalerAddress": "a:1"}})
    fleet = KubeFleet(kube, clock, Scope(Mode.KEDA, [world.namespace], times=FAST))
    async with running(fleet):
        view = await synced(fleet)
    assert [workload.policy for workload in view.workloads] == ["(invalid)"]
    assert "a second trigger of this scaler" in fleet.problems()[view.workloads[0].ref]
    missing = fleet.problems()[WorkloadRef(world.namespace, "missing")]
    assert "minReplicaCount: above maxReplicaCount, found 9; allowed: at most 2" in missing
    assert "the target does not exist" in missing
    (other,) = (problem for ref, problem in fleet.problems().items() if ref.name == "unknown")
    assert other == "the API server does not serve rollouts.argoproj.io"
    assert "does not exist" not in other, "a kind that is not watched may well exist"
    no_policy = fleet.scaled_object(world.namespace, "no-policy")
    assert no_policy is not None
    assert "names no policy" in no_policy.problem


async def test_autoscaler_that_is_being_deleted_is_no_owner(kube: Kube, clock: SystemClock, world: World):
    """A finalizer keeps a deleted object until its controller returns."""
    kept = {"metadata": {"finalizers": ["keda.sh/absent"]}}
    for name in ("hpa", "scaled"):
        await world.deployment(name)
    await world.hpa("theirs", "hpa")
    await world.scaled_object("theirs", "scaled", {"type": "cron", "metadata": {}})
    await world.patch("HorizontalPodAutoscaler", "theirs", kept, "autoscaling/v2")
    await world.patch("ScaledObject", "theirs", kept)
    fleet = direct(kube, clock, world)
    async with running(fleet):
        view = await synced(fleet)
        assert view.other_owner == ("HorizontalPodAutoscaler/theirs", "ScaledObject/theirs")
        await world.delete("HorizontalPodAutoscaler", "theirs", "autoscaling/v2")
        await world.delete("ScaledObject", "theirs", KEDA)
        await until(fleet, "no other owner is left", lambda view: view.other_owner == ("", ""))
    for kind, version in (("HorizontalPodAutoscaler", "autoscaling/v2"), ("ScaledObject", KEDA)):
        assert (await world.api.get(version, kind, world.namespace, "theirs"))["metadata"]["deletionTimestamp"]
        await world.patch(kind, "theirs", {"metadata": {"finalizers": None}}, version)


async def test_limits_of_keda_and_its_hpa_are_read(kube: Kube, clock: SystemClock, world: World):
    await world.deployment("llama", replicas=6, annotations={})
    await world.deployment("other", annotations={})
    for name in ("llama", "other"):
        await world.scaled_object(name, name, EXTERNAL)
        await world.hpa(f"keda-hpa-{name}", name, scaled_object=name)
    fleet = KubeFleet(kube, clock, Scope(Mode.KEDA, [world.namespace], times=FAST))
    note = "autoscaling.keda.sh/paused-scale-in"

    def least(view: Fleet) -> float:
        assert view.hpa_limits is not None
        return float(view.hpa_limits.min_replicas[row(view, "llama")])

    def shrink_s(view: Fleet) -> float:
        assert view.hpa_limits is not None and view.hpa_limits.delays is not None
        return float(view.hpa_limits.delays.shrink_s[row(view, "llama")])

    async with running(fleet):
        view = await synced(fleet)
        assert (least(view), shrink_s(view), fleet.problems()) == (0, 315, {})
        await world.patch("ScaledObject", "llama", {"metadata": {"annotations": {note: "true"}}})
        view = await until(fleet, "the pause is seen", lambda view: least(view) == 6)
        assert view.hpa_limits is not None and view.hpa_limits.min_replicas[row(view, "other")] == 0
        await world.patch("ScaledObject", "llama", {"metadata": {"annotations": {note: None}}})
        await until(fleet, "the pause is over", lambda view: least(view) == 0)
        steps = {"stabilizationWindowSeconds": 0, "policies": [{"type": "Pods", "value": 1, "periodSeconds": 90}]}
        rules = {"spec": {"behavior": {"scaleDown": steps}}}
        await world.patch("HorizontalPodAutoscaler", "keda-hpa-llama", rules, "autoscaling/v2")
        await until(fleet, "the HPA takes one replica in 90 s", lambda view: shrink_s(view) == 90)

        rules = {"spec": {"behavior": {"scaleDown": {"selectPolicy": "Disabled"}}}}
        await world.patch("HorizontalPodAutoscaler", "keda-hpa-llama", rules, "autoscaling/v2")
        await until(fleet, "the HPA keeps the count", lambda view: least(view) == 6)
        cpu = {
            "type": "Resource",
            "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 9}},
        }
        rules = {"spec": {"behavior": None, "metrics": [cpu]}}
        await world.patch("HorizontalPodAutoscaler", "keda-hpa-llama", rules, "autoscaling/v2")
        view = await until(fleet, "the HPA has no metric of ours", lambda view: bool(fleet.problems()))
        problem = fleet.problems()[WorkloadRef(world.namespace, "llama")]
        assert problem.startswith("HorizontalPodAutoscaler/keda-hpa-llama has no metric s0-replicas")
        assert view.hpa_limits is not None and view.hpa_limits.shared[row(view, "llama")]


async def test_hpa_that_cannot_scale_is_an_obstacle(kube: Kube, clock: SystemClock, world: World):
    await world.deployment("llama", replicas=1, annotations={})
    await world.scaled_object("llama", "llama", EXTERNAL)
    await world.hpa("keda-hpa-llama", "llama", scaled_object="llama")
    fleet = KubeFleet(kube, clock, Scope(Mode.KEDA, [world.namespace], times=FAST))
    denied = "the HPA controller was unable to update the target scale: admission webhook denied the request"
    condition = {"type": "AbleToScale", "status": "False", "reason": "FailedUpdateScale", "message": denied}

    async def set_conditions(*conditions: dict[str, str]) -> None:
        counts = {"currentReplicas": 1, "desiredReplicas": 1, "conditions": list(conditions)}
        await world.api.set_status(
            "autoscaling/v2", "HorizontalPodAutoscaler", world.namespace, "keda-hpa-llama", counts
        )

    async with running(fleet):
        assert np.isnan((await synced(fleet)).obstacles.refused_replicas).all()
        await set_conditions(condition)
        view = await until(fleet, "the problem is reported", lambda view: bool(fleet.problems()))
        assert fleet.problems() == {
            WorkloadRef(world.namespace, "llama"): f"HorizontalPodAutoscaler/keda-hpa-llama: {denied}"
        }
        assert (view.obstacles.refused_replicas[0], view.obstacles.messages[0]) == (np.inf, denied)
        assert view.hpa_limits is not None and view.hpa_limits.shared[0]
        await set_conditions({**condition, "status": "True"})
        view = await until(fleet, "it is over", lambda view: not fleet.problems())
        assert np.isnan(view.obstacles.refused_replicas[0])


async def test_a_model_that_fits_on_no_device_is_a_problem(
    kube: Kube, clock: SystemClock, world: World, tmp_path: Path
):
    """The weights are stated by an annotation, or by the policy for all its workloads."""
    (tmp_path / "policy.yaml").write_text(POLICY_OF_LARGE_MODELS)
    book = load([tmp_path])
    l4 = {"cloud.google.com/gke-accelerator": "nvidia-l4"}
    for name, size in {"large": "30", "small": "15"}.items():
        annotations = annotated(policy="realtime", weights_gb=size)
        await world.deployment(name, annotations=annotations, nodeSelector=l4)
    await world.deployment("by-policy", annotations=annotated(policy="large-models"), nodeSelector=l4)
    overridden = annotated(policy="large-models", weights_gb="15")
    await world.deployment("smaller-than-its-policy", annotations=overridden, nodeSelector=l4)
    fleet = KubeFleet(
        kube,
        clock,
        Scope(
            Mode.DIRECT,
            [world.namespace],
            times=FAST,
            weights_gb=lambda workload: stated_weights_gb(workload, book),
        ),
    )
    async with running(fleet):
        await synced(fleet)
        await until(fleet, "all are managed", lambda view: len(view.workloads) == 4)
        problems = {ref.name: problem for ref, problem in fleet.problems().items()}
        assert problems.keys() == {"large", "by-policy"}
        for problem in problems.values():
            assert "does not fit: needs 27.9 GiB of weights on 24 GiB × 0.92 - 1 GiB: short by 6.9 GiB" in problem


async def test_fleet_is_unavailable_when_keda_is_not_installed(
    kube_api: KubeApi, kube: Kube, clock: SystemClock, world: World
):
    await kube_api.remove_crds("scaledobjects")
    fleet = KubeFleet(kube, clock, Scope(Mode.KEDA, [world.namespace], times=FAST))

    async def is_named() -> bool:
        with pytest.raises(Unavailable) as refused:
            fleet.fleet()
        return "scaledobjects" in str(refused.value)

    async with running(fleet):
        await eventually(is_named, "nothing but the missing kind is unknown")
        await kube_api.install_crds("scaledobjects")
        await synced(fleet)


async def test_custom_resources_are_found_when_installed_later(
    kube_api: KubeApi, kube: Kube, clock: SystemClock, world: World
):
    await kube_api.remove_crds("leaderworkersets")
    fleet = direct(kube, clock, world)
    async with running(fleet):
        assert names(await synced(fleet)) == []
        await kube_api.install_crds("leaderworkersets")
        await world.leader_worker_set("deepseek")
        await until(fleet, "the set is seen", lambda view: names(view) == ["deepseek"])


async def test_all_namespaces_are_watched_when_none_is_named(kube: Kube, clock: SystemClock, world: World):
    other = World(world.api, await world.api.namespace())
    await world.deployment("here")
    await other.deployment("there")
    fleet = KubeFleet(kube, clock, Scope(Mode.DIRECT, times=FAST))
    async with running(fleet):
        view = await synced(fleet)
    assert {("here", world.namespace), ("there", other.namespace)} <= {
        (workload.ref.name, workload.ref.namespace) for workload in view.workloads
    }


@pytest.mark.parametrize("mode", [Mode.DIRECT, Mode.KEDA])
async def test_workloads_of_system_namespaces_are_refused(kube: Kube, clock: SystemClock, world: World, mode: Mode):
    system = World(world.api, await world.api.namespace("kube-ml"))
    allowed = World(world.api, await world.api.namespace("kube-other"))
    for each in (world, system, allowed):
        await each.deployment("a")
        await each.scaled_object("a", "a", EXTERNAL)
    rule = SystemNamespaces((allowed.namespace,), own=world.namespace)
    fleet = KubeFleet(kube, clock, Scope(mode, times=FAST, system=rule))
    async with running(fleet):
        view = await synced(fleet)
        problems = fleet.problems()
    ours = {world.namespace, system.namespace, allowed.namespace}
    assert {each.ref.namespace for each in view.workloads} & ours == {allowed.namespace}
    told = {ref.namespace: problem for ref, problem in problems.items() if ref.namespace in ours}
    assert told[system.namespace].startswith("workloads of Kubernetes itself in kube-ml-")
    assert told[world.namespace].endswith(f"are not scaled; to scale them: --system-namespace {world.namespace}")
    for each in (system, allowed):
        await world.api.delete("v1", "Namespace", None, each.namespace)


async def test_only_named_namespaces_are_watched(kube: Kube, clock: SystemClock, world: World):
    other = World(world.api, await world.api.namespace())
    third = World(world.api, await world.api.namespace())
    await world.deployment("here")
    await other.deployment("there")
    await third.deployment("nowhere")
    fleet = KubeFleet(kube, clock, Scope(Mode.DIRECT, [world.namespace, other.namespace], times=FAST))
    async with running(fleet):
        assert sorted(names(await synced(fleet))) == ["here", "there"]


async def test_time_of_a_replica_that_leaves_is_known(kube: Kube, clock: SystemClock, world: World):
    await world.deployment("llama", terminationGracePeriodSeconds=120)
    fleet = direct(kube, clock, world)
    async with running(fleet):
        view = await synced(fleet)
        assert view.drain_s is not None
        assert view.drain_s.tolist() == [0.0]  # vLLM without --shutdown-timeout
        lifecycle = {"preStop": {"sleep": {"seconds": 5}}}
        engine = {"name": "vllm", "image": "vllm", "args": ["--shutdown-timeout", "60"], "lifecycle": lifecycle}
        await world.patch("Deployment", "llama", {"spec": {"template": {"spec": {"containers": [engine]}}}}, "apps/v1")
        await until(fleet, "the drain", lambda view: view.drain_s is not None and view.drain_s.tolist() == [65.0])
