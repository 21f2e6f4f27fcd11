"""A chain end to end: a window, placeholder pods, a new node, replicas; the whole daemon on a real API server."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from autoscaler.config.settings import NodeRequestKind, NodeRequests
from tests.harness.process import eventually
from tests.integration.cluster import GPU, L4, PLACEHOLDER, TURN_S, Cluster, Run

pytestmark = pytest.mark.integration

POOL = "cloud.google.com/gke-nodepool"
NODES = {**L4, POOL: "gpu"}
LEAD_S, AHEAD_S = 60, 240
BY = NodeRequests(by=NodeRequestKind.PLACEHOLDER)


def window(cluster: Cluster, replicas: int) -> tuple[str, float]:
    """Return a window that begins in some minutes, as an annotation, and its Unix time."""
    now = datetime.fromtimestamp(cluster.clock.wall_s(), UTC)
    begin = (now + timedelta(seconds=AHEAD_S + 59)).replace(second=0, microsecond=0)
    end = begin + timedelta(hours=1)
    window = {
        "name": "office",
        "from": f"{begin.minute} {begin.hour} * * *",
        "until": f"{end.minute} {end.hour} * * *",
        "replicas": replicas,
        "lead": f"{LEAD_S}s",
    }
    return json.dumps([window]), begin.timestamp()


async def placeholders(cluster: Cluster) -> dict[str, Any]:
    found = (await cluster.api.request("GET", f"/apis/apps/v1/namespaces/{cluster.namespace}/deployments"))["items"]
    return {each["metadata"]["name"]: each for each in found if each["metadata"]["name"].startswith(PLACEHOLDER)}


async def has_none(cluster: Cluster) -> bool:
    return await placeholders(cluster) == {}


async def turn_until(cluster: Cluster, begin_s: float, ahead_s: float) -> None:
    """Turn until this many seconds before the window."""
    while cluster.clock.wall_s() < begin_s - ahead_s:
        await cluster.turn()


async def test_a_node_comes_before_the_replicas_of_a_window(cluster: Cluster, run: Run):
    await cluster.node("old", {GPU: 1}, NODES)
    windows, begin_s = window(cluster, 3)
    await cluster.workload("llama", windows=windows, **{"override.coldStart": "60s"})
    async with run(node_group_max=((f"{POOL}=gpu", 2),), node_requests=BY) as daemon:
        await cluster.turn(3)
        assert await placeholders(cluster) == {}
        chain = daemon.explain("llama").chain
        assert chain is not None and (chain.window, chain.replicas) == ("office", 3)
        assert [each.link for each in chain.links] == ["node", "replica"]
        node_ahead_s = chain.in_s - chain.links[0].in_s
        assert round(node_ahead_s) == 2 * LEAD_S

        await turn_until(cluster, begin_s, LEAD_S + 8 * TURN_S)
        await eventually(lambda: placeholders(cluster), "a Deployment of placeholders")
        await cluster.turn()
        (placeholder,) = (await placeholders(cluster)).values()
        # One node may still be created, and it has one GPU as far as is known.
        assert placeholder["spec"]["replicas"] == 1
        assert await cluster.counts("llama") == [1]
        pending = [pod for pod in cluster.pending() if pod.startswith(PLACEHOLDER)]
        assert len(pending) == 1, "what an autoscaler creates a node for"

        await cluster.node("new", {GPU: 2}, NODES)
        await cluster.turn(2)
        assert not cluster.pending()
        assert daemon.last is not None and daemon.last.input.fleet.obstacles.room is not None
        assert daemon.last.input.fleet.obstacles.room.tolist() == [2], "placeholder pods yield to replicas"
        assert list(await placeholders(cluster)) == [placeholder["metadata"]["name"]]

        await turn_until(cluster, begin_s, LEAD_S - 3 * TURN_S)
        assert await cluster.counts("llama") == [3]
        await eventually(lambda: has_none(cluster), "the placeholders are gone")
        await cluster.settle()
        assert not cluster.pending()
        assert [pod["status"]["phase"] for pod in await cluster.pods()] == ["Running"] * 3


async def test_a_window_that_is_removed_leaves_no_placeholder(cluster: Cluster, run: Run):
    await cluster.node("old", {GPU: 1}, NODES)
    windows, begin_s = window(cluster, 2)
    await cluster.workload("llama", windows=windows, **{"override.coldStart": "60s"})
    async with run(node_group_max=((f"{POOL}=gpu", 2),), node_requests=BY):
        await turn_until(cluster, begin_s, LEAD_S + 8 * TURN_S)
        await eventually(lambda: placeholders(cluster), "a Deployment of placeholders")
        (before,) = (await placeholders(cluster)).values()
    async with run(node_group_max=((f"{POOL}=gpu", 2),), node_requests=BY):  # a restart in the middle of the chain
        await cluster.turn(2)
        (after,) = (await placeholders(cluster)).values()
        assert after["metadata"]["uid"] == before["metadata"]["uid"]
        assert after["metadata"]["generation"] == before["metadata"]["generation"]
        annotations = {"vllm-autoscaler.io/windows": "[]"}
        path = await cluster.api.path("apps/v1", "Deployment", cluster.namespace, "llama")
        body = {"metadata": {"annotations": annotations}}
        await cluster.api.request("PATCH", path, body, content_type="application/merge-patch+json")
        await cluster.turn(3)
        await eventually(lambda: has_none(cluster), "the placeholders are gone")
        assert await cluster.counts("llama") == [1]


async def test_nothing_is_requested_without_the_setting(cluster: Cluster, run: Run):
    await cluster.node("old", {GPU: 1}, NODES)
    windows, begin_s = window(cluster, 2)
    await cluster.workload("llama", windows=windows, **{"override.coldStart": "60s"})
    async with run(node_group_max=((f"{POOL}=gpu", 2),)):
        await turn_until(cluster, begin_s, LEAD_S + TURN_S)
        assert await placeholders(cluster) == {}
