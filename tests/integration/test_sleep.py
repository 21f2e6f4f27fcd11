"""Replicas that sleep and wake, end to end: the whole daemon on a real API server, beside a small cluster."""

import pytest

from autoscaler.config.settings import Mode
from tests.adapters.kubernetes.world import annotated
from tests.integration.answers import answers, scaled
from tests.integration.cluster import GPU, L4, Cluster, Run, is_ready

pytestmark = pytest.mark.integration

ONE_ASLEEP = {"override.sleep.replicas": "1", "override.scaleDown.stabilization": "60s"}
PAUSE, RELEASE = "/sleep?level=0&mode=wait", "/sleep?level=1&mode=keep"
RELEASES = {RELEASE, "/sleep?level=2&mode=keep"}
RELOAD = ["/wake_up?tags=weights", "/collective_rpc", "/wake_up?tags=kv_cache"]


@pytest.fixture
async def llama(cluster: Cluster) -> str:
    """A workload of two replicas that do nothing, of which one may sleep."""
    cluster.engines.rests = True
    await cluster.node("a", {GPU: 4}, L4)
    await cluster.workload("llama", replicas=2, **ONE_ASLEEP)
    return "llama"


async def one_asleep(cluster: Cluster, name: str) -> str:
    """Turn until a replica sleeps; return its pod."""
    for _ in range(40):
        await cluster.turn()
        asleep = [pod for pod in await cluster.asleep(name) if RELEASES & {*(await cluster.engine(pod)).calls}]
        if asleep:
            await cluster.turn(2)
            return asleep[0]
    raise AssertionError("no replica fell asleep")


async def ready(cluster: Cluster, name: str) -> int:
    return sum(map(is_ready, await cluster.pods(name)))


async def test_idle_replica_sleeps_and_wakes_before_one_is_ordered(cluster: Cluster, run: Run, llama: str):
    async with run() as daemon:
        pod = await one_asleep(cluster, llama)
        engine = await cluster.engine(pod)
        assert engine.calls == [PAUSE, RELEASE]
        assert (await cluster.counts(llama), await ready(cluster, llama)) == ([2], 1)
        assert "1 replica is asleep" in daemon.sentence(llama)
        cluster.load[llama,] = 15
        await cluster.turn(3)
        assert engine.calls == [PAUSE, RELEASE, "/wake_up"]
        assert await cluster.counts(llama) == [2]
        await cluster.turn(20)
        assert await cluster.counts(llama) == [3], "the load has stayed, so the reserve is filled up"


async def test_sleeping_replica_leaves_first_when_none_are_kept(cluster: Cluster, run: Run, llama: str):
    async with run():
        pod = await one_asleep(cluster, llama)
        notes = annotated(**{"override.sleep.replicas": "0"})
        await cluster.site.patch("Deployment", llama, {"metadata": {"annotations": notes}}, "apps/v1")
        await cluster.settle()
        left = [each["metadata"]["name"] for each in await cluster.pods(llama)]
        assert len(left) == 1 and pod not in left


async def test_replica_is_not_served_when_its_weights_are_not_reloaded(cluster: Cluster, run: Run):
    cluster.engines.rests = True
    await cluster.node("a", {GPU: 4}, L4)
    await cluster.workload("llama", replicas=2, **ONE_ASLEEP, **{"override.sleep.level": "2"})
    async with run() as daemon:
        pod = await one_asleep(cluster, "llama")
        engine = await cluster.engine(pod)
        engine.fail["/collective_rpc"] = 500
        cluster.load["llama",] = 15
        await cluster.turn(4)
        assert engine.calls[2:] == RELOAD[:2]
        assert f"replica {pod} does not wake: /collective_rpc: HTTP 500" in daemon.sentence("llama")
        assert await ready(cluster, "llama") == 1
        await cluster.turn(30)
        assert (await cluster.counts("llama"))[0] >= 3, "another replica takes its place"
        assert pod in [each["metadata"]["name"] for each in await cluster.pods("llama")]
        engine.fail.clear()
        cluster.load["llama",] = 45
        await cluster.turn(10)
        assert engine.calls[-3:] == RELOAD
        assert not engine.asleep and not engine.serves_garbage


async def test_next_daemon_wakes_what_the_last_one_put_to_sleep(cluster: Cluster, run: Run, llama: str):
    async with run():
        pod = await one_asleep(cluster, llama)
    engine = await cluster.engine(pod)
    cluster.load[llama,] = 15
    async with run():
        await cluster.turn(3)
        assert engine.calls == [PAUSE, RELEASE, "/wake_up"]
        assert (await cluster.counts(llama))[0] == 2


async def test_pod_that_restarts_in_its_sleep_serves_again(cluster: Cluster, run: Run, llama: str):
    async with run():
        pod = await one_asleep(cluster, llama)
        engine = await cluster.engine(pod)
        engine.restart()
        cluster.load[llama,] = 15
        await cluster.turn(3)
        assert await ready(cluster, llama) == 2
        assert engine.calls == [PAUSE, RELEASE]


async def test_pod_whose_probe_does_not_see_the_sleep_goes_on_serving(cluster: Cluster, run: Run, llama: str):
    cluster.unprobed.add(llama)
    async with run() as daemon:
        await cluster.turn(60)
        assert await cluster.asleep(llama) == []
        assert "its readiness probe must ask /is_sleeping" in daemon.sentence(llama)
        calls = [engine.calls for engine in cluster.engines.sleep.values() if engine.calls]
        assert calls == [[PAUSE, "/wake_up"]], "its other pods have the same probe"


async def test_nothing_sleeps_in_dry_run(cluster: Cluster, run: Run, llama: str):
    async with run(mode=Mode.DRY_RUN) as daemon:
        await cluster.turn(20)
        assert cluster.engines.sleep == {}
        assert "1 idle replica is to sleep" in daemon.sentence(llama)


async def test_replicas_sleep_in_keda_mode(cluster: Cluster, run: Run):
    """The answer counts those that sleep, so that the HPA keeps them."""
    cluster.engines.rests = True
    await cluster.node("a", {GPU: 4}, L4)
    metadata = {"policy": "quick", "sleep.replicas": "1", "scaleDown.stabilization": "60s"}
    await scaled(cluster, "llama", replicas=2, **metadata)
    async with run(mode=Mode.KEDA) as daemon:
        pod = await one_asleep(cluster, "llama")
        assert answers(daemon, "llama") == [2]
        cluster.load["llama",] = 15
        await cluster.turn(3)
        assert (await cluster.engine(pod)).calls[-1] == "/wake_up"
        assert answers(daemon, "llama") == [2]
