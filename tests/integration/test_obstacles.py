"""Replicas that do not come, or not as decided: the whole daemon on a real API server, beside a small cluster."""

from datetime import UTC, datetime

import pytest

from autoscaler.core.model.fleet import PendingClass
from tests.adapters.kubernetes.world import LATEST, SCHEDULED, annotated, condition
from tests.integration.cluster import GPU, L4, SATURATED, Cluster, Run
from tests.integration.site import POLICY

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("is_read", [True, False], ids=["quota is read", "quota is not read"])
async def test_refused_replicas_leave_their_gpus_to_others(cluster: Cluster, run: Run, is_read: bool):
    """The API server enforces a ResourceQuota of two GPUs on the pods of one namespace of a pool of eight."""
    await cluster.node("a", {GPU: 8}, L4)
    limited = await cluster.quota({f"requests.{GPU}": "2"})
    await cluster.pressed("first", 900, spec={"priorityClassName": limited})
    await cluster.pressed("second", 100)
    cluster.load["second",] = 64
    async with run(quotas=is_read) as daemon:
        await cluster.settle()
        assert await cluster.counts("second") == [6]
        assert len(await cluster.pods("first")) == 2
        if is_read:
            assert (await cluster.counts("first"), daemon.classes("first")) == ([2], {})
            assert f"ResourceQuota {cluster.namespace}/gpus" in daemon.sentence("first")
        else:
            assert daemon.classes("first") == {PendingClass.QUOTA: 2}
            assert "exceeded quota" in daemon.sentence("first")


async def test_gated_replicas_leave_their_gpus_to_others(cluster: Cluster, run: Run):
    """Kueue holds the pods of the first workload back, and 49 other gates, in a pool of five GPUs."""
    await cluster.node("a", {GPU: 5}, L4)
    await cluster.pressed("first", 900)
    await cluster.pressed("second", 100)
    async with run() as daemon:
        await cluster.turn()
        others = [{"name": f"example.com/{number}"} for number in range(49)]
        gate = {"schedulingGates": [*others, {"name": "kueue.x-k8s.io/admission"}]}
        await cluster.site.patch("Deployment", "first", {"spec": {"template": {"spec": gate}}}, "apps/v1")
        await cluster.settle()
        assert daemon.classes("first") == {PendingClass.QUEUED: 3}
        assert await cluster.counts("second") == [4]


async def test_replica_that_fits_no_node_takes_none_that_serves(cluster: Cluster, run: Run):
    """A replica of eight GPUs has priority, and each node has four."""
    await cluster.node("a", {GPU: 4}, L4)
    await cluster.node("b", {GPU: 4}, L4)
    await cluster.workload("large", devices=8, **{"override.priority": "900"})
    await cluster.pressed("small", 100)
    async with run() as daemon:
        await cluster.settle()
        assert await cluster.counts("large", "small") == [1, 4]
        assert daemon.classes("large") == {PendingClass.IMPOSSIBLE: 1}


async def test_group_that_vanishes_in_mid_tick_stops_no_decision(cluster: Cluster, run: Run):
    await cluster.node("a", {GPU: 4}, {**L4, "team": "a"})
    await cluster.node("b", {GPU: 4}, {**L4, "team": "b"})
    await cluster.pressed("first", selector={"team": "a"})
    await cluster.pressed("second", selector={"team": "b"})
    async with run() as daemon:
        cluster.engines.before_answer = lambda: cluster.remove_node("a")
        ticks = daemon.last.number
        await cluster.turn()
        assert daemon.last.number > ticks
        await cluster.settle()
        assert await cluster.counts("second") == [4]


async def test_idle_replica_is_named_before_the_shrink_and_leaves(cluster: Cluster, run: Run):
    """Three replicas are busy and one is idle. Among equals the ReplicaSet would remove another one."""
    await cluster.node("a", {GPU: 8}, L4)
    await cluster.workload("llama", replicas=4)
    cluster.load["llama",] = 36  # until it is known which replica is idle
    async with run(shrink=True):
        await cluster.turn()
        *busy, idle = [pod["metadata"]["name"] for pod in await cluster.pods()]
        cluster.load.clear()
        cluster.load_of_pods = {idle: 0.0, **dict.fromkeys(busy, 9.0)}
        await cluster.settle()
        assert [pod["metadata"]["name"] for pod in await cluster.pods()] == busy
        assert await cluster.counts("llama") == [3]
    assert cluster.writes() == [("pods", idle), ("deployments/scale", "llama")]


async def test_installations_leave_a_workload_to_one_of_them(cluster: Cluster, run: Run):
    small = cluster.site.directory / "small.yaml"
    small.write_text(POLICY.replace("max: 8", "max: 2"))
    await cluster.node("a", {GPU: 8}, L4)
    await cluster.pressed("llama")
    async with run(installation="team-a") as first, run(installation="team-b", policy=small) as second:
        await cluster.turn(12)
        assert await cluster.counts("llama") == [4]
        assert "another installation, vllm-autoscaler/team-a/vllm-autoscaler owns the count" in second.sentence("llama")
        assert "owns the count" not in first.sentence("llama")


async def test_engine_beside_a_sidecar_is_read_and_scaled(cluster: Cluster, run: Run):
    """The proxy is the first container, and has a command line with another port and another model."""
    await cluster.node("a", {GPU: 8}, L4)
    proxy = {"name": "proxy", "image": "p", "args": ["--port", "1", "--model", "guard"]}
    engine = {"name": "vllm", "image": "vllm", "args": ["--model", "m", "--port", str(cluster.engines.port)]}
    await cluster.workload("llama", containers=[proxy, engine], metrics_port=None)
    cluster.load["llama",] = SATURATED
    async with run():
        await cluster.settle()
        assert await cluster.counts("llama") == [4]


async def test_count_stays_during_starts_and_falls_with_the_load(cluster: Cluster, run: Run):
    await cluster.node("a", {GPU: 8}, L4)
    await cluster.pressed("llama")
    async with run() as daemon:
        await cluster.turn()
        cluster.starting.add("llama")
        await cluster.turn(20)
        assert daemon.classes("llama") == {PendingClass.STARTING: 3}
        assert await cluster.counts("llama") == [4]
        cluster.load.clear()
        await cluster.settle()
        assert await cluster.counts("llama") == [1]


@pytest.mark.parametrize(("by", "is_left_out", "most"), [("operator", False, 1), ("helm-like", True, 2)])
async def test_owner_that_reverts_a_count_is_named_and_left_alone(
    cluster: Cluster, run: Run, by: str, is_left_out: bool, most: int
):
    """An operator writes its own count after each change, or an update leaves the count out, which makes it 1.

    The first reset by a tool that applies manifests is undone.
    """
    await cluster.node("a", {GPU: 8}, L4)
    await cluster.pressed("llama")
    async with run() as daemon:
        reverts = 0
        for _ in range(20):
            await cluster.turn()
            if await cluster.counts("llama") != [1]:
                await cluster.revert("llama", by, is_left_out)
                reverts += 1
        assert reverts == most
        assert f"{by} owns the count for " in daemon.sentence("llama")


async def test_count_that_a_deployment_resets_is_restored_at_once(cluster: Cluster, run: Run):
    """Twice in two hours, each time with another image and fewer replicas, under the same load."""
    await cluster.node("a", {GPU: 8}, L4)
    await cluster.pressed("llama")
    async with run() as daemon:
        await cluster.turn(6)
        for image in ("first", "second"):
            assert await cluster.counts("llama") == [4]
            template = {"spec": {"containers": [{"name": "vllm", "image": image}]}}
            await cluster.deploy("llama", "helm", {"replicas": 1, "template": template})
            await cluster.turn()
            assert await cluster.counts("llama") == [4]
            assert "owns the count" not in daemon.sentence("llama")
            cluster.clock.leap(3600)
            await cluster.turn(6)


@pytest.mark.parametrize("stated", [False, True])
async def test_zero_by_a_person_stays_when_the_daemon_is_replaced(cluster: Cluster, run: Run, stated: bool):
    """Nothing but the object remembers it: there is no state file, and no second replica of the daemon."""
    await cluster.node("a", {GPU: 8}, L4)
    await cluster.workload("llama", replicas=2)
    async with run():
        await cluster.turn(2)
        await cluster.site.scale("llama", 0, by="kubectl")
        await cluster.turn(2)
    async with run() as daemon:
        for _ in range(3):
            cluster.clock.leap(3600)
            await cluster.turn(2)
        assert await cluster.counts("llama") == [0]
        assert "an unknown client owns the count, until somebody raises it from zero" in daemon.sentence("llama")
        if stated:
            until = datetime.fromtimestamp(cluster.clock.wall_s() + 3600, UTC).isoformat(timespec="seconds")
            notes = {"metadata": {"annotations": annotated(zero_until=until)}}
            await cluster.site.patch("Deployment", "llama", notes, "apps/v1")
            await cluster.turn(2)
            assert "an unknown client owns the count for " in daemon.sentence("llama")
            cluster.clock.leap(3600)
            await cluster.turn(2)
            assert await cluster.counts("llama") == [1]
            return
        await cluster.site.scale("llama", 1, by="kubectl")
        cluster.load["llama",] = SATURATED
        await cluster.turn(2)
        assert await cluster.counts("llama") == [1]
        cluster.clock.leap(300)
        await cluster.turn(6)
        assert await cluster.counts("llama") == [4]


ZERO = POLICY + "  scaleToZero: {enabled: true, idleAfter: 4s}\n"


async def test_workload_that_cannot_start_returns_to_zero(cluster: Cluster, run: Run):
    """Each was woken by one request, whose client gave up; the gateway says so."""
    cluster.site.policy.write_text(ZERO)
    await cluster.node("a", {GPU: 2}, L4)
    names = ("slow", "broken", "homeless")
    for name in names:
        await cluster.workload(name, replicas=0, selector={"none": "1"} if name == "homeless" else None)
    cluster.starting.add("slow")
    cluster.crashing.add("broken")
    gateway = cluster.site.metrics
    queue = 'llm_d_epp_flow_control_queue_size{{inference_pool="{0}"}} {1}\n'
    gateway.serve("/gateway", "".join(queue.format(name, 0) for name in names))
    async with run(gateways=(f"{gateway.url}/gateway",)):
        await cluster.turn(3)
        assert await cluster.counts(*names) == [0, 0, 0]
        gateway.serve("/gateway", "".join(queue.format(name, 1) for name in names))
        await cluster.turn(2)
        assert await cluster.counts(*names) == [1, 1, 1]
        gateway.serve("/gateway", "".join(queue.format(name, 0) for name in names))
        await cluster.settle()
        assert await cluster.counts(*names) == [0, 0, 0]


async def test_surplus_pods_and_preempted_ones_change_no_count(cluster: Cluster, run: Run):
    """A rolling update creates two pods more. Then two old ones are preempted, while each serves nine requests."""
    await cluster.node("a", {GPU: 8}, L4)
    await cluster.workload("llama", replicas=4)
    cluster.load["llama",] = 36
    async with run():
        await cluster.turn(3)
        for number in range(2):
            await cluster.site.pod("llama", f"surplus-{number}", {"phase": "Pending", "conditions": [SCHEDULED]})
        await cluster.turn(5, step=False)
        assert await cluster.counts("llama") == [4]
        for pod in (await cluster.pods("llama"))[:2]:
            disrupted = condition("DisruptionTarget", "True", LATEST, "PreemptionByScheduler")
            await cluster.site.status(
                pod["metadata"]["name"], {"conditions": [*pod["status"]["conditions"], disrupted]}
            )
        await cluster.turn(8, step=False)
        assert await cluster.counts("llama") == [4]


async def test_count_that_admission_denies_leaves_its_gpus_to_others(cluster: Cluster, run: Run):
    """A ValidatingAdmissionPolicy of the real API server denies more than two replicas of one workload."""
    await cluster.node("a", {GPU: 5}, L4)
    await cluster.pressed("first", 900)
    await cluster.pressed("second", 100)
    await cluster.deny("first", 2)
    async with run() as daemon:
        await cluster.settle()
        assert await cluster.counts("first", "second") == [1, 4]
        assert "the API server refuses 4 replicas" in daemon.sentence("first")
        assert "GPU quota of the team is 2" in daemon.sentence("first")
    assert 1 <= cluster.writes().count(("deployments/scale", "first")) <= 5
