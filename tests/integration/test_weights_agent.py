"""`weights agent` on a real kube-apiserver and a hub: killed, cut off from the server, and short of room."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from autoscaler.config.weights.report import ANNOTATION, LABEL_PREFIX, State, decode, label_of
from autoscaler.config.weights.source import parse
from autoscaler.config.weights.wishes import Wish, config_map_of, encode
from autoscaler.weights.store import WeightStore
from tests.harness.hub import FakeHub, safetensors, serving
from tests.harness.kube_api import KubeApi
from tests.harness.process import eventually, free_port
from tests.integration.command import FORKED, Daemon

pytestmark = pytest.mark.integration

HUB = parse("hf://org/model@main")
SIZE = 1_000_000


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with serving(FakeHub({"config.json": b"{}", "model.safetensors": safetensors(SIZE)})) as served:
        yield served


class Cluster:
    """One node, the wishes for it, and its agent."""

    def __init__(self, api: KubeApi, namespace: str, folder: Path, hub: FakeHub) -> None:
        self.root = folder / "root"
        self.root.mkdir()
        self.name = f"gpu-{namespace}"
        self._api, self._namespace, self._folder, self._hub = api, namespace, folder, hub

    async def wish(self, *sources: str) -> None:
        data = {self.name: encode(Wish(parse(source)) for source in sources)}
        metadata = {"name": config_map_of(self.name)}
        config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
        await self._api.apply(config_map, namespace=self._namespace)

    async def metadata(self) -> dict[str, Any]:
        return (await self._api.get("v1", "Node", None, self.name))["metadata"]

    async def ready(self) -> set[str]:
        labels = (await self.metadata()).get("labels") or {}
        return {name.removeprefix(LABEL_PREFIX) for name in labels if name.startswith(LABEL_PREFIX)}

    async def cause(self, source: str) -> str:
        text = ((await self.metadata()).get("annotations") or {}).get(ANNOTATION)
        model = decode(text).models.get(parse(source).key) if text else None
        return model.cause if model is not None and model.state is State.FAILED else ""

    async def until(self, condition: Callable[[set[str]], bool]) -> None:
        async def probe() -> bool:
            return condition(await self.ready())

        await eventually(probe, "the labels of the node")

    @asynccontextmanager
    async def agent(self, *options: str) -> AsyncIterator[Daemon]:
        port = free_port()
        command = [FORKED, "weights", "agent", "--root", self.root, "--node", self.name]
        command += ["--namespace", self._namespace, "--hub", self._hub.url, "--http-port", str(port)]
        command += ["--allow-source", "hf://**", "--allow-source", "file://**", "--context", "test", *options]
        environment = {"KUBECONFIG": str(self._api.kubeconfig())}
        running = Daemon(self._folder, *command, port=port, environment=environment)
        try:
            yield running
        finally:
            running.kill()


@pytest.fixture
async def cluster(kube_api: KubeApi, namespace: str, tmp_path: Path, hub: FakeHub) -> Cluster:
    made = Cluster(kube_api, namespace, tmp_path, hub)
    await kube_api.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": made.name}})
    return made


def make_model(folder: Path, size: int = SIZE) -> str:
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(safetensors(size, len(folder.name)))
    return f"file://{folder}"


@pytest.mark.long
async def test_label_is_true_whenever_the_agent_is_killed(cluster: Cluster, hub: FakeHub, tmp_path: Path) -> None:
    first, second = make_model(tmp_path / "a"), make_model(tmp_path / "bb")
    chance = random.Random(3)
    for number in range(6):
        await cluster.wish(str(HUB) if number % 2 else first, second)
        async with cluster.agent("--max-bytes", "2.5MB") as agent:
            await eventually(lambda agent=agent: asyncio.sleep(0, "serving HTTP" in agent.err), "the agent")
            await asyncio.sleep(chance.uniform(0.0, 1.5))
        models = {model.listing.source.key: model for model in WeightStore(cluster.root).models()}
        assert await cluster.ready() <= models.keys()
        assert all(WeightStore(cluster.root).verify(model, lambda _: None) == [] for model in models.values())
    await cluster.wish(str(HUB), second)
    async with cluster.agent("--max-bytes", "2.5MB"):
        await cluster.until(lambda ready: ready == {HUB.key, parse(second).key})
    assert sum(hub.sent.values()) < 4 * SIZE


@pytest.mark.slow
async def test_pod_is_first_and_nothing_goes_when_the_server_is_down(
    cluster: Cluster, kube_api: KubeApi, namespace: str, tmp_path: Path
) -> None:
    old, new = make_model(tmp_path / "a"), make_model(tmp_path / "bb")
    await cluster.wish(old)
    async with cluster.agent("--max-bytes", "1.5MB") as agent:
        await cluster.until(lambda ready: ready == {parse(old).key})
        await cluster.wish()
        container = {"name": "vllm", "image": "vllm/vllm-openai:v0.11.0"}
        metadata = {"name": "waiting", "annotations": {"vllm-autoscaler.io/weights": new}}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
        spec = {"nodeName": cluster.name, "containers": [container]}
        async with kube_api.outage(crash=True):
            await eventually(lambda: self_says(agent, "unreachable"), "the metric of the outage")
            assert [str(model.listing.source) for model in WeightStore(cluster.root).models()] == [old]
        await kube_api.apply(pod | {"spec": spec}, namespace=namespace)
        await eventually(lambda: _is(cluster, new, "no_space"), "the share of what pods alone name")
        await cluster.wish(new)
        await cluster.until(lambda ready: ready == {parse(new).key})
        await eventually(lambda: self_says(agent, "unreachable", is_set=False), "the metric of the outage ends")
        assert [str(model.listing.source) for model in WeightStore(cluster.root).models()] == [new]
        await cluster.wish(old, new)
        await eventually(lambda: _is(cluster, old, "no_space"), "the state of the model that has no room")
        assert await cluster.ready() == {parse(new).key}
        assert label_of(parse(new).key) in (await cluster.metadata())["labels"]
        assert agent.code is None


async def self_says(agent: Daemon, cause: str, is_set: bool = True) -> bool:
    return (await agent.metric("vllm_autoscaler_weights_agent_problem", cause=cause) == 1) is is_set


async def _is(cluster: Cluster, source: str, cause: str) -> bool:
    return await cluster.cause(source) == cause
