"""A pod starts from the weights of its node: webhook, agent and init container together, on a real API server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from huggingface_hub import snapshot_download

from tests.adapters.webhook.test_patch import engine, pod_of, terms
from tests.adapters.webhook.test_server import Site, opted_in, serving
from tests.harness.certificates import Certificates
from tests.harness.hub import FakeHub, safetensors
from tests.harness.hub import serving as serving_hub
from tests.harness.kube_api import KubeApi
from tests.harness.process import eventually
from tests.integration.command import FORKED, Command
from tests.integration.test_weights_agent import HUB, Cluster

pytestmark = pytest.mark.integration

MODEL = safetensors(300_000)


@pytest_asyncio.fixture
async def site(kube_api: KubeApi, certificates: Certificates) -> AsyncIterator[Site]:
    async with opted_in(kube_api, certificates) as made:
        yield made


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with serving_hub(FakeHub({"config.json": b"{}", "model.safetensors": MODEL})) as served:
        yield served


async def bind(site: Site, pod: str, node: str) -> None:
    """Do what the scheduler does."""
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod}, "target": target}
    await site.api.request("POST", f"/api/v1/namespaces/{site.namespace}/pods/{pod}/binding", body)


@pytest.mark.slow
async def test_pod_starts_from_its_node_and_the_next_prefers_it(
    site: Site, certificates: Certificates, hub: FakeHub, tmp_path: Path
) -> None:
    cluster = Cluster(site.api, site.namespace, tmp_path, hub)
    await site.api.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": cluster.name}})
    into = tmp_path / "pod"
    into.mkdir()
    async with serving(certificates.issue(site.service), site.port), cluster.agent():
        await eventually(site.is_patched, "the API server calls the webhook")
        pod = await site.create(pod_of(engine("--model=org/model")))
        await bind(site, pod["metadata"]["name"], cluster.name)
        (waits,) = pod["spec"]["initContainers"]
        places = {"/node-weights": str(cluster.root), "/weights": str(into)}
        arguments = [_moved(each, places) for each in waits["args"]]
        init = Command(tmp_path, FORKED, *arguments, "--hub", "http://127.0.0.1:1")  # nothing is fetched by the pod
        assert await init.ended() == 0, init.err
        (variable,) = [each for each in pod["spec"]["containers"][0]["env"] if each["name"] == "HF_HUB_CACHE"]
        cache = _moved(variable["value"], places)
        snapshot = Path(snapshot_download("org/model", cache_dir=cache, local_files_only=True))
        assert (snapshot / "model.safetensors").read_bytes() == MODEL
        assert sum(hub.sent.values()) < 2 * len(MODEL)

        await cluster.until(lambda ready: ready == {HUB.key})
        labels = (await cluster.metadata())["labels"]
        (term,) = terms(await site.create(pod_of(engine("--model=org/model"))))
        (expression,) = term["preference"]["matchExpressions"]
        assert labels[expression["key"]] in expression["values"]


def _moved(text: str, places: dict[str, str]) -> str:
    for path, other in places.items():
        start = text.find(path)
        if start == 0 or text[start - 1 : start] == "=":
            return text[:start] + other + text[start + len(path) :]
    return text
