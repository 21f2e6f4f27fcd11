"""The weights on nodes of the real API server: reports that tests write as agents do, and the columns of the fleet."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from autoscaler.adapters.clock import SystemClock
from autoscaler.adapters.kubernetes.api.client import Kube
from autoscaler.config.weights.report import (
    ANNOTATION,
    FIELD_MANAGER,
    LABEL_PREFIX,
    ModelReport,
    Report,
    State,
    encode,
    labels,
)
from autoscaler.config.weights.source import parse
from autoscaler.core.model.fleet import Fleet
from autoscaler.core.model.weights import PodCache
from tests.adapters.kubernetes.node_world import GPU, Nodes, bind, everywhere, row_of
from tests.adapters.kubernetes.world import World, annotated, running, synced, until
from tests.harness.kube_api import KubeApi

pytestmark = pytest.mark.integration

CHAT, OLD = "hf://org/chat@main", "hf://org/old@main"
KEY = parse(CHAT).key


async def report(api: KubeApi, node: str, *sources: str, state: State = State.READY, size: int = 5_000_000_000) -> None:
    """Write what a node holds, as its agent does: server-side apply of labels and annotation."""
    models = {parse(source).key: ModelReport(source, state, size) for source in sources}
    said = Report(models, "1.0", 100 << 30, 50 << 30)
    metadata = {"name": node, "labels": labels(said), "annotations": {ANNOTATION: encode(said)}}
    path = await api.path("v1", "Node", None, node)
    body = {"apiVersion": "v1", "kind": "Node", "metadata": metadata}
    await api.request(
        "PATCH", path, body, content_type="application/apply-patch+yaml", fieldManager=FIELD_MANAGER, force="true"
    )


def places_of(world: World, view: Fleet, workload: str) -> dict[str, float]:
    """Return the sums of the places of a workload."""
    assert view.weights is not None
    places = view.weights.places
    own = places.workload == row_of(world, view, workload)
    columns = ("free", "free_held", "free_absent", "nodes", "nodes_held")
    return {name: float(np.sum(getattr(places, name)[own])) for name in columns}


def scheduled_now() -> dict[str, Any]:
    at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": at, "reason": ""}
    return {"phase": "Pending", "conditions": [condition]}


async def test_free_places_are_told_apart_by_what_their_nodes_hold(
    kube: Kube,
    clock: SystemClock,
    world: World,
    nodes: Nodes,
    kube_api: KubeApi,
):
    a, b, silent = [await nodes.add(name, {GPU: 8}) for name in ("a", "b", "silent")]
    await report(kube_api, a, CHAT)
    await report(kube_api, b, "hf://org/other@main")
    await bind(kube_api, world, "theirs", a, GPU, 3)
    await world.deployment("chat", annotations=annotated(policy="", weights=CHAT), nodeSelector=nodes.mark)
    await world.deployment("plain", nodeSelector=nodes.mark)
    fleet = everywhere(kube, clock)
    async with running(fleet):
        view = await synced(fleet)
        assert places_of(world, view, "chat") == {
            "free": 21.0,
            "free_held": 5.0,
            "free_absent": 8.0,
            "nodes": 3.0,
            "nodes_held": 1.0,
        }
        assert places_of(world, view, "plain")["free"] == 0.0
        assert view.weights is not None
        row = row_of(world, view, "chat")
        assert view.weights.sources[view.weights.source[row]] == CHAT
        assert view.weights.size_bytes[row] == 5e9
        assert math.isnan(view.weights.size_bytes[row_of(world, view, "plain")])
        layout = view.groups.groups
        await report(kube_api, silent, CHAT)
        await report(kube_api, a)
        view = await until(fleet, "reports arrive", lambda view: places_of(world, view, "chat")["free_held"] == 8.0)
        assert places_of(world, view, "chat")["free_absent"] == 13.0
        assert view.groups.groups == layout, "labels of weights make no node groups"


async def test_pod_is_judged_by_what_its_node_held_when_it_was_bound(
    kube: Kube,
    clock: SystemClock,
    world: World,
    nodes: Nodes,
    kube_api: KubeApi,
):
    a, b = [await nodes.add(name, {GPU: 8}) for name in ("a", "b")]
    await report(kube_api, a, CHAT)
    await report(kube_api, b)
    await world.deployment("chat", 3, annotations=annotated(policy="", weights=CHAT), nodeSelector=nodes.mark)
    loads_chat = [{"name": "vllm", "image": "vllm", "args": ["vllm", "serve", "org/chat"]}]
    await world.deployment("rolled", 2, annotated(policy=""), nodeSelector=nodes.mark, containers=loads_chat)
    await world.pod("chat", "early", scheduled_now() | {"conditions": []}, node=a)
    await world.status(
        "early",
        {
            "phase": "Pending",
            "conditions": [
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:10Z", "reason": ""}
            ],
        },
    )
    fleet = everywhere(kube, clock)

    def caches(view: Fleet) -> dict[str, PodCache]:
        assert view.weights is not None
        found = zip(view.pods, view.weights.pod_cache.tolist(), strict=True)
        return {pod.name: PodCache(cache) for pod, cache in found if pod.namespace == world.namespace}

    async with running(fleet):
        await synced(fleet)
        await clock.sleep(1.1)  # times of the API server are whole seconds
        await world.pod("chat", "warm", scheduled_now(), node=a)
        await world.pod("chat", "cold", scheduled_now(), node=b)
        await world.pod("rolled", "old", scheduled_now(), node=a, annotations=annotated(weights=OLD))
        await world.pod("rolled", "new", scheduled_now(), node=a)
        view = await until(fleet, "pods are bound", lambda view: len(caches(view)) == 5 and max(caches(view).values()))
        expected = {"early": PodCache.UNKNOWN, "warm": PodCache.HELD, "cold": PodCache.ABSENT}
        expected |= {"old": PodCache.ABSENT, "new": PodCache.HELD}
        view = await until(fleet, "pods are judged", lambda view: caches(view) == expected)
        await report(kube_api, b, CHAT)
        view = await until(
            fleet, "the other node holds it", lambda view: places_of(world, view, "chat")["nodes_held"] == 2
        )
        assert caches(view) == expected, "what the node holds later changes nothing"


async def test_required_label_of_weights_admits_the_nodes_that_have_it(
    kube: Kube,
    clock: SystemClock,
    world: World,
    nodes: Nodes,
    kube_api: KubeApi,
):
    a, _ = [await nodes.add(name, {GPU: 8}) for name in ("a", "b")]
    selector = {**nodes.mark, f"{LABEL_PREFIX}{KEY}": "ready"}
    await world.deployment("chat", annotations=annotated(policy="", weights=CHAT), nodeSelector=selector)
    fleet = everywhere(kube, clock)
    async with running(fleet):
        view = await synced(fleet)
        assert not view.groups.admitted[view.pool[row_of(world, view, "chat")]].any()
        await report(kube_api, a, CHAT)

        def devices(view: Fleet) -> float:
            return float(view.groups.allocatable[view.groups.admitted[view.pool[row_of(world, view, "chat")]]].sum())

        await until(fleet, "the label counts", lambda view: devices(view) == 8.0)
        await report(kube_api, a)
        await until(fleet, "the label is gone", lambda view: devices(view) == 0.0)
