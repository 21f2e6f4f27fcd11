"""Daemons and the API server start and stop: one daemon acts, and no count drops or is scaled twice."""

import asyncio
import signal
from typing import Any

import pytest

from tests.harness.process import eventually
from tests.integration.command import Daemon
from tests.integration.site import POLICY, Site
from tests.integration.test_direct import ticks, writes

pytestmark = pytest.mark.integration


async def leads(daemon: Daemon) -> bool:
    return (await daemon.readyz()).get("leader") is True


async def holder(site: Site) -> str:
    lease = await site.api.get("coordination.k8s.io/v1", "Lease", site.namespace, "vllm-autoscaler")
    return str(lease["spec"]["holderIdentity"])


async def test_second_daemon_takes_over_when_the_first_is_killed(site: Site):
    await site.workload()
    user = await site.user()
    async with site.daemon(user, "direct", "--scrape") as first:
        await eventually(lambda: leads(first), "the first leads")
        async with site.daemon(user, "direct", "--scrape") as second:
            site.load("saturated")
            await eventually(lambda: site.has(4), "four replicas")
            await ticks(second, 2)
            assert (await leads(first), await leads(second)) == (True, False)
            followed = await second.workload(site.namespace, "llama")
            assert (followed["workload"]["wanted"], followed["changes"]) == (4, [])

            first.kill()
            await eventually(lambda: leads(second), "the second leads")
            await ticks(second, 3)
            assert await site.has(4)
            assert writes(site, user) == [("llama", 200)], "nothing was written but the first change"

            site.load("drained")
            await eventually(lambda: site.has(1), "the second acts")


async def test_lease_is_released_when_the_daemon_stops(site: Site):
    await site.workload()
    user = await site.user()
    async with site.daemon(user, "direct", "--scrape") as first:
        await eventually(lambda: leads(first), "the first leads")
        async with site.daemon(user, "direct", "--scrape") as second:
            await ticks(second, 1)
            first.signal(signal.SIGTERM)
            assert await first.ended() == 0
            assert "Traceback" not in first.err
            assert first.out == ""
            await eventually(lambda: leads(second), "the second leads")
            assert await holder(site)
            second.signal(signal.SIGINT)
            assert await second.ended() == 0
            assert "Traceback" not in second.err
    assert await holder(site) == ""


async def test_counts_stay_during_an_outage_of_the_api_server(site: Site):
    site.policy.write_text(POLICY.replace("maxAge: 10s", "maxAge: 6s"))
    await site.workload()
    user = await site.user()
    async with site.daemon(user, "direct", "--scrape") as daemon:
        site.load("saturated")
        await eventually(lambda: site.has(4), "four replicas")
        await ticks(daemon, 2)

        async def trusts() -> bool:
            return bool((await daemon.workload(site.namespace, "llama"))["workload"]["trusted"])

        async def doubts() -> dict[str, Any]:
            answer = await daemon.workload(site.namespace, "llama")
            return answer if "the view of the cluster is" in answer["explanation"]["sentence"] else {}

        async with site.api.outage(crash=True):
            # The engine still answers, but the owners of its pods are no longer known.
            site.load("drained")
            seen = (await eventually(doubts, "the view of the cluster is too old"))["workload"]
            assert (seen["current"], seen["wanted"]) == (4, 4)
            assert (await daemon.readyz())["cluster_problems"]
            site.load("saturated")
        await eventually(trusts, "the view of the cluster is fresh")
        await ticks(daemon, 3)
        assert await site.has(4)
        assert writes(site, user) == [("llama", 200)]

        async def is_well() -> bool:
            return (await daemon.readyz())["cluster_problems"] == []

        await eventually(is_well, "no watch fails any more")
        await eventually(lambda: leads(daemon), "it leads again")
        site.load("drained")
        await eventually(lambda: site.has(1), "it acts again")
        assert daemon.code is None


async def test_daemon_waits_for_the_api_server_at_start(site: Site):
    await site.workload()
    user = await site.user()
    site.load("saturated")
    async with site.api.outage():
        starting = site.daemon(user, "direct", "--scrape", ready=False)
        daemon = await starting.__aenter__()
        await eventually(
            lambda: asyncio.sleep(0, daemon.log("waiting for the first tick")), "it says what it waits for"
        )
        assert (await daemon.get("/healthz"))[0] == 200
        assert (await daemon.readyz())["ready"] is False
        assert "the cluster is not known yet" in (await daemon.readyz())["last_error"]
    try:
        await eventually(lambda: site.has(4), "four replicas")
    finally:
        await starting.__aexit__(None, None, None)


async def test_workload_wakes_at_once_under_a_returning_leader(site: Site):
    site.policy.write_text(POLICY + "  scaleToZero: {enabled: true, idleAfter: 1s}\n")  # sooner than fewer would do
    await site.workload()
    queue = 'llm_d_epp_flow_control_queue_size{inference_pool="llama"} '
    gateway = site.metrics.serve("/gateway", f"{queue}0\n")
    user = await site.user()
    arguments = ("direct", "--scrape", "--gateway", gateway)

    async def awake() -> bool:
        return await site.replicas("llama") > 0

    async with site.daemon(user, *arguments) as first:
        await eventually(lambda: leads(first), "the first leads")
        site.load("saturated")
        await eventually(lambda: site.has(4), "the first writes a count")
        async with site.daemon(user, *arguments) as second:
            await ticks(second, 1)
            first.signal(signal.SIGSTOP)  # as a virtual machine is paused
            await eventually(lambda: leads(second), "the second leads")
            site.load("drained")
            await eventually(lambda: site.has(0), "the second goes to zero")
            first.signal(signal.SIGCONT)
            await ticks(first, 3)
            assert (await first.workload(site.namespace, "llama"))["workload"]["other_owner"] == ""
            second.signal(signal.SIGTERM)
            assert await second.ended() == 0
        await eventually(lambda: leads(first), "the first leads again")
        site.metrics.serve("/gateway", f"{queue}1\n")
        await eventually(awake, "it wakes the workload")
