"""Wishes of weights on the real API server: from nodes and workloads to ConfigMaps, without an agent."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import AsyncExitStack, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autoscaler.adapters.clock import SystemClock
from autoscaler.adapters.in_memory import AlwaysLeading, RecordingActuator
from autoscaler.adapters.kubernetes.api.client import Kube
from autoscaler.adapters.kubernetes.weights import publisher as publishing
from autoscaler.adapters.kubernetes.weights.publisher import WishPublisher
from autoscaler.adapters.web.metrics import Metrics
from autoscaler.app.wiring import build_loop, connect_cluster
from autoscaler.config.policy.compile import stated_weights_gb
from autoscaler.config.policy.reload import PolicyFiles
from autoscaler.config.settings import KubeSettings, LeaseSettings, Mode, ScrapeSettings, Settings
from autoscaler.config.weights.allowed import DEFAULT_RULES, PrivateSources, SourceRules
from autoscaler.config.weights.source import parse
from autoscaler.config.weights.wishes import config_map_of, decode
from autoscaler.core.model.fleet import Fleet
from autoscaler.core.model.forecast import BINS, Forecast
from autoscaler.core.model.weights import SourceStatus
from autoscaler.daemon.loop import Loop, Parts
from tests.adapters.keda.world import Lease, ManualClock
from tests.adapters.kubernetes.conftest import Connect, in_namespace
from tests.adapters.kubernetes.node_world import GPU, Nodes, everywhere, row_of
from tests.adapters.kubernetes.test_weights import CHAT, KEY, report
from tests.adapters.kubernetes.world import MANIFESTS, World, annotated, running, shipped_roles, synced, until
from tests.harness.kube_api import ApiError, KubeApi, User, load_manifests
from tests.harness.process import eventually

pytestmark = pytest.mark.integration

CODE = "hf://org/code@main"


class Daemon:
    """A fleet, a loop without metrics, and the plan of weights. Time passes only where a test says so."""

    def __init__(
        self,
        world: World,
        kube: Kube,
        writer: Kube,
        lease: Any = None,
        publishes: bool = True,
        caches: bool = False,
        clock: SystemClock | ManualClock | None = None,
        rules: SourceRules = DEFAULT_RULES,
    ) -> None:
        self.clock = clock or ManualClock()
        self.may_pin = True
        self.world = world
        policies = PolicyFiles((), SystemClock(), "interactive")
        stated = lambda workload: stated_weights_gb(workload, policies.book)  # noqa: E731
        self.fleet = everywhere(kube, SystemClock(), weights_gb=stated, with_caches=caches)
        self.publisher = WishPublisher(
            writer,
            self.clock,
            self.fleet.inventory,
            self.fleet.weights.reports,
            lease or AlwaysLeading(),
            world.namespace,
            "vllm-autoscaler",
            publishes,
            self.fleet.local_models if caches else None,
            lambda namespace: self.may_pin,
            rules,
        )
        self.fleet.weights.published = self.publisher.published
        self._loop = Loop(
            Parts(
                clock=SystemClock(),
                workloads=self.fleet,
                sources=[],
                actuator=RecordingActuator(),
                recorders=[self.publisher],
                leadership=AlwaysLeading(),
            ),
            policies=lambda: policies.book,
            period_s=5.0,
            deadline_s=30.0,
        )

    async def step(self, pass_s: float = 120.0, expected: float = math.nan) -> None:
        """Tick, plan and publish. expected: replicas that each workload would need by the load of a day ago."""
        tick = await self._loop.attempt()
        assert tick is not None
        rows = len(tick.input.fleet.workloads)
        since_s = np.full(rows, tick.now_s)
        forecast = replace(Forecast.blank(rows), replicas=np.full((BINS, rows), expected), since_s=since_s)
        plan = replace(tick.decision.plan, forecast=forecast)
        self.publisher.record(replace(tick, decision=replace(tick.decision, plan=plan)))
        await self.clock.sleep(pass_s)
        await self.publisher.step()

    async def wished(self, node: str) -> list[str] | None:
        """Return what the cluster says that a node should hold; None: it says nothing."""
        try:
            found = await self.world.api.get("v1", "ConfigMap", self.world.namespace, config_map_of(node))
        except ApiError:
            return None
        text = found.get("data", {}).get(node)
        return None if text is None else [str(wish.source) for wish in decode(text).wishes]

    async def until(self, node: str, holds: Callable[[list[str] | None], bool]) -> None:
        async def settled() -> bool:
            await self.step()
            return holds(await self.wished(node))

        await eventually(settled, f"the wishes of {node}")


@pytest.fixture
async def writer(kube_api: KubeApi, connect: Connect, world: World) -> Kube:
    """A client with nothing but the rights to write wishes."""
    shipped = load_manifests(MANIFESTS / "weights" / "base" / "rbac.yaml")
    role = next(each for each in shipped if each["metadata"]["name"] == "vllm-autoscaler-wish-writer")
    roles = in_namespace([role], world.namespace)
    return await connect(await kube_api.service_account(world.namespace, "writer", *roles))


async def test_wishes_reach_nodes_and_quiet_fleets_write_nothing(
    kube: Kube, writer: Kube, world: World, nodes: Nodes, kube_api: KubeApi
):
    names = [await nodes.add(f"n{number}", {GPU: 2}) for number in range(4)]
    for name in names[:3]:
        await report(kube_api, name)
    await world.deployment("chat", 4, annotated(policy="", weights=CHAT), nodeSelector=nodes.mark)
    await world.deployment("code", 1, annotated(policy="", weights=CODE), nodeSelector=nodes.mark)
    daemon = Daemon(world, kube, writer)
    async with running(daemon.fleet):
        await synced(daemon.fleet)
        await daemon.step()
        wished = {name: await daemon.wished(name) for name in names}
        assert sum(CHAT in (each or []) for each in wished.values()) == 3, "4 replicas, and a spare one"
        assert sum(CODE in (each or []) for each in wished.values()) == 2
        assert wished[names[3]] is None, "it has no agent"
        warmed = {ref.name: set(on) for ref, on in daemon.publisher.warmed.items()}
        assert warmed == {
            name: {node for node in names if source in (wished[node] or ())}
            for name, source in (("chat", CHAT), ("code", CODE))
        }
        writes = daemon.publisher.published().status.writes
        assert writes <= 3
        for name in names[:3]:
            await report(kube_api, name, *(wished[name] or []))

        def held_and_wished(view: Fleet) -> bool:
            assert view.weights is not None and view.weights.wishes is not None
            chat = view.weights.status[view.weights.sources.index(CHAT)]
            return (chat.held, chat.wished, chat.failed, view.weights.nodes >= 3) == (3, 3, 0, True)

        await until(daemon.fleet, "the reports are read", held_and_wished)
        for _ in range(30):  # an hour
            await daemon.step()
        assert daemon.publisher.published().status.writes == writes
        assert daemon.publisher.published().missing == {}
        assert held_and_wished(daemon.fleet.fleet())


async def test_wishes_of_a_forecast_are_withdrawn_when_it_goes_away(
    kube: Kube, writer: Kube, world: World, nodes: Nodes, kube_api: KubeApi
):
    names = [await nodes.add(f"n{number}", {GPU: 1}) for number in range(6)]
    for name in names:
        await report(kube_api, name)
    await world.deployment("chat", 1, annotated(policy="", weights=CHAT), nodeSelector=nodes.mark)
    daemon = Daemon(world, kube, writer)
    async with running(daemon.fleet):
        await synced(daemon.fleet)
        for expected, copies in ((math.nan, 2), (4.0, 5), (math.nan, 2)):  # a spare one each

            async def is_wished(expected: float = expected, copies: int = copies) -> bool:
                await daemon.step(expected=expected)
                return sum([await daemon.wished(name) == [CHAT] for name in names]) == copies

            await eventually(is_wished, f"{copies} copies")


async def test_new_leader_keeps_the_plan_of_the_last_one(
    kube: Kube, writer: Kube, world: World, nodes: Nodes, kube_api: KubeApi
):
    names = [await nodes.add(f"n{number}", {GPU: 1}) for number in range(6)]
    for name in names:
        await report(kube_api, name)
    await world.deployment("chat", 2, annotated(policy="", weights=CHAT), nodeSelector=nodes.mark)
    first = Daemon(world, kube, writer)
    async with running(first.fleet):
        await synced(first.fleet)
        await first.step()
        second = Daemon(world, kube, writer, lease := Lease(leading=False))
        async with running(second.fleet):
            await synced(second.fleet)
            await second.step()
            assert second.publisher.wishes == first.publisher.wishes, "followers show the plan"
            lease.leading = True
            await second.step()
            assert second.publisher.published().status.writes == 0


async def test_restart_after_a_peak_keeps_the_copies_for_it(
    kube: Kube, writer: Kube, world: World, nodes: Nodes, kube_api: KubeApi
):
    """No node has fetched them yet, so that nothing but the plan of before speaks for them.

    They are not kept for a larger workload of the same model whose pods fit on none of these nodes.
    """
    for number in range(6):
        await report(kube_api, await nodes.add(f"n{number}", {GPU: 1}))
    await world.deployment("elsewhere", 3, annotated(policy="", weights=CHAT), nodeSelector={"disk": "none"})
    await world.deployment("chat", 4, annotated(policy="", weights=CHAT), nodeSelector=nodes.mark)
    first = Daemon(world, kube, writer)
    async with running(first.fleet):
        await synced(first.fleet)
        await first.step()
        assert first.publisher.published().wished == {CHAT: 5}
        await world.scale("chat", 1, by="test")
        await until(first.fleet, "one replica", lambda fleet: fleet.replicas[row_of(world, fleet, "chat")] == 1)
        for daemon in (first, Daemon(world, kube, writer), Daemon(world, kube, writer)):
            async with running(daemon.fleet) if daemon is not first else nullcontext():
                await synced(daemon.fleet)
                await daemon.step()
                await daemon.step()
                assert daemon.publisher.published().wished == {CHAT: 5}


async def test_node_that_is_gone_loses_its_wishes_a_silent_one_not(
    kube: Kube, writer: Kube, world: World, nodes: Nodes, kube_api: KubeApi
):
    gone, silent = [await nodes.add(name, {GPU: 1}) for name in ("gone", "silent")]
    for name in (gone, silent):
        await report(kube_api, name)
    await world.deployment("chat", 2, annotated(policy="", weights=CHAT), nodeSelector=nodes.mark)
    daemon = Daemon(world, kube, writer)
    async with running(daemon.fleet):
        await synced(daemon.fleet)
        await daemon.step()
        assert await daemon.wished(gone) == await daemon.wished(silent) == [CHAT]
        await nodes.remove(gone)
        await nodes.change(silent, {"metadata": {"annotations": {"weights.vllm-autoscaler.io/report": None}}})
        await daemon.until(gone, lambda wished: wished is None)
        assert await daemon.wished(silent) == [CHAT]


async def test_dry_run_shows_the_plan_and_writes_nothing(
    kube: Kube, writer: Kube, world: World, nodes: Nodes, kube_api: KubeApi
):
    name = await nodes.add("n", {GPU: 1})
    await report(kube_api, name)
    await world.deployment("chat", 1, annotated(policy="", weights=CHAT), nodeSelector=nodes.mark)
    daemon = Daemon(world, kube, writer, publishes=False)
    async with running(daemon.fleet):
        await synced(daemon.fleet)
        await daemon.step()
        (wish,) = daemon.publisher.wishes[name]
        assert str(wish.source) == CHAT
        assert await daemon.wished(name) is None


async def test_pinned_model_comes_first_when_a_node_has_room_for_one(
    kube: Kube, writer: Kube, world: World, nodes: Nodes, kube_api: KubeApi
):
    name = await nodes.add("n", {GPU: 8})
    await report(kube_api, name)  # 100 GiB
    for model, pinned in (("chat", "false"), ("code", "true")):
        stated = {"weights": f"hf://org/{model}@main", "weights-pinned": pinned, "weights-gb": "80"}
        annotations = annotated(policy="") | {f"vllm-autoscaler.io/{key}": value for key, value in stated.items()}
        await world.deployment(model, 1, annotations, nodeSelector=nodes.mark)
    daemon = Daemon(world, kube, writer)
    async with running(daemon.fleet):
        await synced(daemon.fleet)
        await daemon.step()
        assert await daemon.wished(name) == [CODE]
        daemon.may_pin = False
        await daemon.step()
        assert await daemon.wished(name) == [CODE], "what is there stays"
        assert len(daemon.publisher.published().missing) == 1


async def test_sources_that_do_not_serve_a_namespace_are_not_planned(
    kube: Kube, writer: Kube, world: World, nodes: Nodes, kube_api: KubeApi
):
    name = await nodes.add("n", {GPU: 8})
    await report(kube_api, name)
    for model, source in (("chat", CHAT), ("bucket", "s3://models/x"), ("gated", "hf://gated/x@main"), ("code", CODE)):
        stated = {"vllm-autoscaler.io/weights": source, "vllm-autoscaler.io/weights-gb": "5"}
        await world.deployment(model, 1, annotated(policy="") | stated, nodeSelector=nodes.mark)
    private = ("hf://gated/*=another-team", f"{CODE}={world.namespace}")
    rules = SourceRules(DEFAULT_RULES.allowed, tuple(map(PrivateSources.parse, private)))
    daemon = Daemon(world, kube, writer, rules=rules)
    async with running(daemon.fleet):
        await synced(daemon.fleet)
        await daemon.step()
        assert set(await daemon.wished(name) or ()) == {CHAT, CODE}
        assert {ref.name: on for ref, on in daemon.publisher.warmed.items()} == {"chat": (name,), "code": (name,)}


async def test_refused_writes_are_told_and_tried_again(
    kube: Kube, world: World, nodes: Nodes, kube_api: KubeApi, clock: SystemClock
):
    name = await nodes.add("n", {GPU: 1})
    await report(kube_api, name)
    await world.deployment("chat", 1, annotated(policy="", weights=CHAT), nodeSelector=nodes.mark)
    daemon = Daemon(world, kube, kube, clock=clock)  # the daemon's own client has no right to ConfigMaps
    async with running(daemon.fleet, daemon.publisher):
        await synced(daemon.fleet)

        async def told() -> bool:
            return "configmaps" in daemon.publisher.published().status.problem

        await eventually(told, "the refusal")
        assert any("wishes of weights: " in problem for problem in daemon.fleet.watch_problems())


async def test_wishes_are_written_at_a_bounded_rate(
    kube: Kube, writer: Kube, world: World, nodes: Nodes, kube_api: KubeApi
):
    """A load that swings with each plan changes wishes once, not each time: copies that are there stay."""
    names = [await nodes.add(f"n{number}", {GPU: 1}) for number in range(4)]
    for name in names:
        await report(kube_api, name)
    await world.deployment("chat", 1, annotated(policy="", weights=CHAT), nodeSelector=nodes.mark)
    daemon = Daemon(world, kube, writer)
    async with running(daemon.fleet):
        await synced(daemon.fleet)
        for number in range(24):  # a quarter of an hour
            await world.scale("chat", 1 + 2 * (number % 2), by="kubectl")
            await daemon.step(publishing.PLAN_S)
        assert daemon.publisher.published().status.writes_last_hour <= 6, "each node once, and two more for the peak"


async def test_daemon_with_the_setting_publishes_wishes(
    world: World, nodes: Nodes, kube_api: KubeApi, monkeypatch: pytest.MonkeyPatch
):
    """The parts as `run --weights` builds them, with the rights that are shipped."""
    name = await nodes.add("n", {GPU: 8})
    await report(kube_api, name)
    await world.deployment("chat", 1, annotated(policy="", weights=CHAT), nodeSelector=nodes.mark)
    rbac = load_manifests(MANIFESTS / "weights" / "base" / "rbac.yaml")
    writes = [each for each in rbac if each["metadata"]["name"] == "vllm-autoscaler-wish-writer" and "rules" in each]
    roles = in_namespace([*shipped_roles("direct"), *writes], world.namespace)
    user = await kube_api.service_account(world.namespace, "daemon", *roles)
    monkeypatch.setenv("KUBECONFIG", str(kube_api.kubeconfig(user)))
    settings = Settings(
        mode=Mode.DIRECT,
        weights=True,
        namespaces=(world.namespace,),
        scrape=ScrapeSettings(),
        kube=KubeSettings(),
        lease=LeaseSettings(enabled=False, namespace=world.namespace),
        http=None,
    )
    clock = SystemClock()
    async with AsyncExitStack() as stack:
        policies = PolicyFiles((), clock, "interactive")
        parts = await connect_cluster(stack, settings, clock, policies, [], Metrics("direct"))
        loop = await build_loop(stack, parts, settings)
        tasks = [asyncio.create_task(work()) for _, work in parts.background]

        async def wished() -> bool:
            await loop.attempt()
            try:
                found = await kube_api.get("v1", "ConfigMap", world.namespace, config_map_of(name))
            except ApiError:
                return False
            return [str(wish.source) for wish in decode(found["data"][name]).wishes] == [CHAT]

        try:
            await eventually(wished, "the wishes of the node", timeout_s=60, every_s=0.5)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def test_local_models_of_kserve_are_read_and_asked_for(
    world: World, nodes: Nodes, kube_api: KubeApi, connect: Connect, daemon: User
):
    await kube_api.install_crds("weights/localmodels")
    name = await nodes.add("n", {GPU: 8})
    key = {"key": "test", "operator": "In", "values": [world.namespace]}
    volume = {"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [key]}]}}}
    group = {"storageLimit": "200G", "persistentVolumeSpec": volume, "persistentVolumeClaimSpec": {}}
    api_version = "serving.kserve.io/v1alpha1"
    metadata = {"name": world.namespace}
    await kube_api.apply(
        {"apiVersion": api_version, "kind": "LocalModelNodeGroup", "metadata": metadata, "spec": group}
    )
    stated = annotated(policy="") | {f"vllm-autoscaler.io/{key}": value for key, value in KSERVE.items()}
    await world.deployment("chat", 1, stated, nodeSelector=nodes.mark)
    gated = stated | {"vllm-autoscaler.io/weights": "hf://gated/x@main"}
    await world.deployment("gated", 1, gated, nodeSelector=nodes.mark)
    for workload in ("chat", "gated"):
        labels = {"metadata": {"labels": {"serving.kserve.io/inferenceservice": workload}}}
        await world.patch("Deployment", workload, labels, "apps/v1")
    private = (PrivateSources.parse(f"hf://gated/*={world.namespace}"),)  # KServe would give it to all namespaces
    shipped = load_manifests(MANIFESTS / "weights" / "kserve.yaml")[0]
    rbac = load_manifests(MANIFESTS / "weights" / "base" / "rbac.yaml")
    writes = [each for each in rbac if each["metadata"]["name"] == "vllm-autoscaler-wish-writer" and "rules" in each]
    roles = [*in_namespace(shipped_roles("direct"), world.namespace), *in_namespace(writes, world.namespace), shipped]
    client = await connect(await kube_api.service_account(world.namespace, "daemon", *roles))
    it = Daemon(world, client, client, caches=True, rules=SourceRules(DEFAULT_RULES.allowed, private))
    async with running(it.fleet):
        await synced(it.fleet)

        async def asked() -> bool:
            await it.step()
            return await cache_of(kube_api) is not None

        await eventually(asked, "the cache")
        cache = await cache_of(kube_api)
        assert cache is not None
        assert cache["spec"] == {
            "sourceModelUri": "hf://org/chat",
            "modelSize": "80000000000",
            "nodeGroups": [world.namespace],
        }
        await until(it.fleet, "the watch shows it", lambda _: len(it.fleet.local_models.own()) == 1)
        assert await cache_of(kube_api, parse("hf://gated/x@main").key) is None
        writes_before = it.publisher.published().status.writes
        await it.step()
        assert it.publisher.published().status.writes == writes_before
        local = {"localModels": [{"modelName": "m", "sourceModelUri": "hf://org/chat"}]}
        metadata = {"name": name}
        await kube_api.apply({"apiVersion": api_version, "kind": "LocalModelNode", "metadata": metadata, "spec": local})
        await kube_api.set_status(api_version, "LocalModelNode", None, name, {"modelStatus": {"m": "ModelDownloaded"}})
        await until(
            it.fleet, "the node holds it", lambda view: view.weights and any(s.held for s in view.weights.status)
        )
        await world.delete("Deployment", "chat")
        await world.deployment("other", 1, annotated(policy="", weights=CODE), nodeSelector=nodes.mark)

        async def deleted() -> bool:
            await it.step(3700.0)
            return await cache_of(kube_api) is None

        await eventually(deleted, "the cache is deleted an hour after the last workload")


async def test_datasets_of_fluid_are_read(
    world: World, nodes: Nodes, kube_api: KubeApi, connect: Connect, daemon: User
):
    await kube_api.install_crds("weights/datasets")
    source, label = "s3://models/chat", f"fluid.io/s-{world.namespace}-models"
    holder = await nodes.add("n", {GPU: 8}, labels={label: "true"})
    await nodes.add("o", {GPU: 8})
    await world.deployment("chat", 1, annotated(policy="", weights=source), nodeSelector=nodes.mark)
    shipped = load_manifests(MANIFESTS / "weights" / "fluid.yaml")[0]
    roles = [*in_namespace(shipped_roles("direct"), world.namespace), shipped]
    client = await connect(await kube_api.service_account(world.namespace, "reader", *roles))
    it = Daemon(world, client, client, caches=True)
    async with running(it.fleet):
        await synced(it.fleet)
        version, metadata = "data.fluid.io/v1alpha1", {"name": "models", "namespace": world.namespace}
        spec = {"mounts": [{"mountPoint": source, "name": "chat"}]}
        await kube_api.apply({"apiVersion": version, "kind": "Dataset", "metadata": metadata, "spec": spec})
        states = {"cachedPercentage": "40.2%"}
        status = {"phase": "Bound", "ufsTotal": "14.96GiB", "cacheStates": states}
        await kube_api.set_status(version, "Dataset", world.namespace, "models", status)
        await until(it.fleet, "it is fetched", lambda view: status_of(view, source).fetching == 1)
        states["cachedPercentage"] = "100.0%"
        await kube_api.set_status(version, "Dataset", world.namespace, "models", status)
        view = await until(it.fleet, "it is held", lambda view: status_of(view, source).held == 1)
        assert view.weights is not None
        row, places = row_of(world, view, "chat"), view.weights.places
        assert view.weights.size_bytes[row] == pytest.approx(14.96 * 2**30, abs=1)
        assert places.free_held[places.workload == row].tolist() == [8]
        assert places.free[places.workload == row].tolist() == [16]
        await nodes.change(holder, {"metadata": {"labels": {label: None}}})
        await until(it.fleet, "the runtime has left", lambda view: status_of(view, source).held == 0)


def status_of(view: Fleet, source: str) -> SourceStatus:
    weights = view.weights
    return weights.status[weights.sources.index(source)] if weights is not None else SourceStatus()


KSERVE = {"weights": CHAT, "weights-gb": "80"}


async def cache_of(api: KubeApi, key: str = KEY) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = await api.get(
            "serving.kserve.io/v1alpha1", "LocalModelCache", None, f"vllm-autoscaler-{key}"
        )
    except ApiError:
        return None
    return found
