"""The daemon with a real KEDA, HPA controller and API server: `make test-keda`."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from tests.adapters.kubernetes.world import KEDA
from tests.harness.certificates import Certificates
from tests.harness.exposition import Answer
from tests.harness.process import eventually, free_port, repeated
from tests.integration.command import Daemon
from tests.integration.site import POLICY
from tests.integration.test_keda_mode import EPP_QUEUE
from tests.keda.site import HPA, Site, service

pytestmark = pytest.mark.keda

COUNTS = (7, 8, 20, 21, 22, 19, 18, 12, 11, 10)  # steps of one from ten up are within an HPA's default tolerance
SOON_S = 120  # the machine may be busy
CRON = {
    "type": "cron",  # active only in the first minute of a year
    "metadata": {"timezone": "UTC", "start": "0 0 1 1 *", "end": "1 0 1 1 *", "desiredReplicas": "2"},
}


@asynccontextmanager
async def counted(site: Site) -> AsyncIterator[list[int]]:
    """Collect the desired counts of the workload within the block, one for each change."""
    counts: list[int] = []

    async def look() -> None:
        count = await site.replicas("llama")
        if counts[-1:] != [count]:
            counts.append(count)

    async with repeated(look, every_s=0.05):
        yield counts


async def has(site: Site, count: int) -> None:
    await eventually(lambda: site.has(count), f"{count} replicas", SOON_S)


async def has_condition(site: Site, kind: str, true: bool) -> None:
    async def probe() -> bool:
        return ((await site.conditions()).get(kind) == "True") == true

    await eventually(probe, f"condition {kind} is {true}", SOON_S)


async def test_workload_goes_from_zero_to_four_and_back(site: Site):
    site.policy.write_text(POLICY + "  scaleToZero: {enabled: true, idleAfter: 1s}\n")
    await site.workload(replicas=0)
    gateway = site.metrics.serve("/gateway", EPP_QUEUE.format(waiting=0))
    user, port = await site.user("keda"), free_port()
    await site.scale_by_keda(f"localhost:{port}", minReplicaCount=0, cooldownPeriod=1)
    async with site.keda_daemon(user, port, "--gateway", gateway):

        async def listed() -> bool:
            return await site.hpa_metrics() == ["s0-replicas"]

        await eventually(listed, "KEDA makes the HPA", SOON_S)
        assert await site.has(0)
        site.load("saturated")
        site.metrics.serve("/gateway", EPP_QUEUE.format(waiting=1))
        await has(site, 4)
        site.metrics.serve("/gateway", EPP_QUEUE.format(waiting=0))
        site.load("drained")
        await has(site, 0)


async def test_every_count_lands_exactly_when_the_tolerance_is_zero(site: Site):
    site.exactly(COUNTS[0])
    await site.workload()
    user, port = await site.user("keda"), free_port()
    await site.scale_by_keda(f"localhost:{port}")
    async with counted(site) as seen, site.keda_daemon(user, port):
        for number, count in enumerate(COUNTS, 1):
            site.exactly(count)
            await eventually(lambda number=number: asyncio.sleep(0, len(seen) > number), f"{count} is seen", SOON_S)
            assert seen == [1, *COUNTS[:number]]


async def test_fallback_keeps_its_count_when_no_pod_is_read(site: Site):
    site.exactly(2)
    await site.workload()
    site.metrics.serve("/metrics", Answer("loading", status=503))
    user, port = await site.user("keda"), free_port()
    await site.scale_by_keda(f"localhost:{port}", fallback={"failureThreshold": 2, "replicas": 3})
    async with site.keda_daemon(user, port):
        await has_condition(site, "Fallback", True)
        await has(site, 3)
        site.load("running")
        await has_condition(site, "Fallback", False)
        await has(site, 2)


async def test_refused_metadata_is_in_an_event_and_counts(site: Site):
    await site.workload()
    user, port = await site.user("keda"), free_port()
    metadata = {"scalerAddress": f"localhost:{port}", "policy": "quick", "polisy": "quick"}
    spec = {"fallback": {"failureThreshold": 2, "replicas": 3}}
    async with site.keda_daemon(user, port):
        await site.scale_by_keda(f"localhost:{port}", trigger={"metadata": metadata}, **spec)
        await has(site, 3)
        assert await site.hpa_metrics() == ["s0-replicas"]

        async def named() -> bool:
            return any("polisy" in event["note"] for event in await site.events("KEDAScalerFailed"))

        await eventually(named, "an event names the key", SOON_S)


async def test_count_stays_with_a_second_trigger_without_daemon(site: Site):
    """Without the stand-in, KEDA 2.21 may write the HPA without our metric as the daemon returns: 4, 1, 5."""
    site.exactly(4)
    await site.workload()
    user, ports, http = await site.user("keda"), [free_port(), free_port()], [free_port()]
    async with service(ports) as port, service(http) as http_port, AsyncExitStack() as stack:
        await site.scale_by_keda(f"localhost:{port}", CRON)
        first = await stack.enter_async_context(site.keda_daemon(user, ports[0]))
        http[0] = first.http_port
        stack.enter_context(site.keda_stand_in(f"http://localhost:{http_port}", ports[1]))
        await has(site, 4)
        seen = await stack.enter_async_context(counted(site))
        first.signal(signal.SIGTERM)
        ports[0] = ports[1]
        await has_condition(site, "Ready", False)
        await asyncio.sleep(3)  # several syncs of the HPA controller
        second = await stack.enter_async_context(site.keda_daemon(user, next_port := free_port()))
        ports[0], http[0] = next_port, second.http_port
        site.exactly(5)
        await eventually(lambda: asyncio.sleep(0, seen == [4, 5]), "4, then 5 replicas", SOON_S)
        assert len(await site.hpa_metrics()) == 2


async def test_count_stays_when_edited_while_no_daemon_runs(site: Site):
    """KEDA writes the HPA of an edited ScaledObject. Without our spec, the other trigger would decide alone: 4 to 1."""
    site.exactly(4)
    await site.workload()
    user, ports = await site.user("keda"), [free_port(), free_port()]
    async with service(ports) as port, AsyncExitStack() as stack:
        await site.scale_by_keda(f"localhost:{port}", CRON)
        first = await stack.enter_async_context(site.keda_daemon(user, ports[0]))
        stand_in = stack.enter_context(site.keda_stand_in(first.url, ports[1]))
        await has(site, 4)
        for event in ("a replica is ready", "sending KEDA on to the leader"):
            await eventually(lambda event=event: asyncio.sleep(0, bool(stand_in.log(event))), event)
        seen = await stack.enter_async_context(counted(site))
        first.kill()
        del ports[0]
        await site.patch("ScaledObject", "llama", {"spec": {"maxReplicaCount": 49}})

        async def written() -> bool:
            hpa = await site.api.get(HPA, "HorizontalPodAutoscaler", site.namespace, "keda-hpa-llama")
            return bool(hpa["spec"]["maxReplicas"] == 49)

        await eventually(written, "KEDA writes the HPA again", SOON_S)
        assert len(await site.hpa_metrics()) == 2
        await asyncio.sleep(3)  # several syncs of the HPA controller
        assert seen == [4]


async def test_new_leader_answers_soon_when_the_leader_ends(site: Site):
    site.exactly(3)
    await site.workload()
    user, ports = await site.user("keda"), [free_port(), free_port()]
    async with service(ports) as port, AsyncExitStack() as stack:
        await site.scale_by_keda(f"localhost:{port}")
        first, second = [await stack.enter_async_context(site.keda_daemon(user, port)) for port in ports]
        await has(site, 3)
        assert await answers(second) is None
        del ports[0]
        first.signal(signal.SIGTERM)

        async def leads() -> bool:
            return bool((await second.readyz()).get("leader"))

        async def answered() -> bool:
            return await answers(second) is not None

        await eventually(leads, "the second leads", SOON_S)
        await eventually(answered, "the second answers")
        site.exactly(5)
        await has(site, 5)


async def answers(daemon: Daemon) -> float | None:
    """Return how many values a daemon has answered; None: KEDA has not called it, or it had no answer."""
    return await daemon.metric("vllm_autoscaler_keda_calls_total", method="GetMetrics", code="OK")


async def test_count_lands_over_mutual_tls(site: Site, certificates: Certificates):
    site.exactly(3)
    await site.workload()
    server, client = certificates.issue("localhost"), certificates.issue("keda")
    parts = {"caCert": certificates.ca, "tlsClientCert": client.certificate, "tlsClientKey": client.key}
    await site.secret("llama", **{key: path.read_text() for key, path in parts.items()})
    references = [{"parameter": key, "name": "llama", "key": key} for key in parts]
    await site.api.apply(
        {
            "apiVersion": KEDA,
            "kind": "TriggerAuthentication",
            "metadata": {"name": "llama"},
            "spec": {"secretTargetRef": references},
        },
        namespace=site.namespace,
    )
    user, port = await site.user("keda"), free_port()
    await site.scale_by_keda(f"localhost:{port}", trigger={"authenticationRef": {"name": "llama"}})
    tls = ("--grpc-cert", server.certificate, "--grpc-key", server.key, "--grpc-ca", certificates.ca)
    async with site.keda_daemon(user, port, *tls):
        await has(site, 3)
