"""The agent's side of a real kube-apiserver: wishes, pods of the node, labels and report, with the rights it needs."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import pytest_asyncio

from autoscaler.adapters.clock import SystemClock
from autoscaler.adapters.kubernetes.agent.node import KubeNode
from autoscaler.adapters.kubernetes.api.reflector import WatchTimes
from autoscaler.config.weights.report import ANNOTATION, FIELD_MANAGER, ModelReport, Report, State, decode, label_of
from autoscaler.config.weights.source import ModelSource, parse
from autoscaler.config.weights.wishes import CONFIG_MAPS, Wish, Wishes, config_map_of, encode
from autoscaler.ports import Unavailable
from tests.adapters.kubernetes.conftest import Connect
from tests.adapters.kubernetes.world import running
from tests.harness.kube_api import KubeApi, Permission, User
from tests.harness.process import eventually

pytestmark = pytest.mark.integration

LLAMA, QWEN = parse("hf://meta-llama/Llama-3.1-8B@main"), parse("s3://models/qwen")
TIMES = WatchTimes(backoff_s=0.05)
FOLDER = {"name": "node-weights", "hostPath": {"path": "/mnt/disks/ssd0/weights"}}


def role(kind: str, name: str, *rules: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": name}
    return {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": metadata, "rules": list(rules)}


@pytest_asyncio.fixture
async def agent(kube_api: KubeApi, namespace: str) -> User:
    """A user with the rights that the documentation names, and no others."""
    cluster = role(
        "ClusterRole",
        f"agent-{namespace}",
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["patch"]},
    )
    maps = [f"vllm-autoscaler-weights-{number:02d}" for number in range(CONFIG_MAPS)]
    own = role(
        "Role",
        "agent",
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list", "watch"], "resourceNames": maps},
    )
    return await kube_api.service_account(namespace, "agent", cluster, own)


@pytest_asyncio.fixture
async def name(kube_api: KubeApi, namespace: str) -> str:
    """A node of the test's own."""
    node = f"gpu-{namespace}"
    labels = {"kubernetes.io/arch": "amd64"}
    await kube_api.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node, "labels": labels}})
    return node


@pytest_asyncio.fixture
async def node(connect: Connect, agent: User, name: str, namespace: str) -> KubeNode:
    return KubeNode(await connect(agent), SystemClock(), name, namespace, times=TIMES)


async def until(condition: Callable[[], bool]) -> None:
    async def probe() -> bool:
        return condition()

    await eventually(probe, "the state that the test waits for")


async def wish(api: KubeApi, namespace: str, data: dict[str, str], name: str) -> None:
    await api.apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": config_map_of(name)}, "data": data},
        namespace=namespace,
    )


async def pod(api: KubeApi, namespace: str, name: str, node: str, annotations: dict[str, str], **spec: Any) -> None:
    container = {"name": "vllm", "image": "vllm/vllm-openai:v0.11.0", **spec.pop("container", {})}
    body = {"nodeName": node, "containers": [container], **spec}
    metadata = {"name": name, "annotations": annotations}
    await api.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": body}, namespace=namespace)


def models(**states: State) -> Report:
    sources: dict[str, ModelSource] = {"llama": LLAMA, "qwen": QWEN}
    reports = {sources[key].key: ModelReport(str(sources[key]), state, 7) for key, state in states.items()}
    return Report(reports, "0.2.0", 100, 50)


async def test_wishes_arrive_change_and_become_unknown(
    kube_api: KubeApi, namespace: str, name: str, node: KubeNode
) -> None:
    async with running(node):
        await until(lambda: node.synced)
        assert node.wishes() is None
        mine = encode([Wish(LLAMA), Wish(QWEN, pinned=True)])
        await wish(kube_api, namespace, {name: mine, "another": "{"}, name)
        await until(lambda: node.wishes() == Wishes((Wish(LLAMA), Wish(QWEN, True))))
        await wish(kube_api, namespace, {name: encode([])}, name)
        await until(lambda: node.wishes() == Wishes())
        await wish(kube_api, namespace, {"another": encode([])}, name)
        await until(lambda: node.wishes() is None)
        await wish(kube_api, namespace, {name: mine}, name)
        await until(lambda: node.wishes() is not None)
        await kube_api.delete("v1", "ConfigMap", namespace, config_map_of(name))
        await until(lambda: node.wishes() is None)
        assert node.problem() == ""


@pytest.mark.parametrize("text", ['{"format": 2, "models": {}}', "{", "x" * 20_000])
async def test_wishes_of_another_version_leave_the_previous_ones(
    kube_api: KubeApi, namespace: str, name: str, node: KubeNode, text: str
) -> None:
    async with running(node):
        await wish(kube_api, namespace, {name: encode([Wish(LLAMA)])}, name)
        await until(lambda: node.wishes() == Wishes((Wish(LLAMA),)))
        await wish(kube_api, namespace, {name: text}, name)
        await until(lambda: node.problem().startswith("the wishes"))
        assert node.wishes() == Wishes((Wish(LLAMA),))
        await wish(kube_api, namespace, {name: encode([])}, name)
        await until(lambda: node.problem() == "" and node.wishes() == Wishes())


async def test_models_of_the_nodes_pods_are_in_use(
    kube_api: KubeApi, namespace: str, name: str, node: KubeNode
) -> None:
    assert node.used() is None
    annotated = {"vllm-autoscaler.io/weights": str(QWEN)}
    stated = {"container": {"args": ["--model", "meta-llama/Llama-3.1-8B", "--revision", "main"]}}
    await pod(kube_api, namespace, "elsewhere", "another-node", {"vllm-autoscaler.io/weights": "hf://a/b@main"})
    await pod(kube_api, namespace, "without-folder", name, {}, **stated)
    async with running(node):
        await until(lambda: node.synced)
        assert node.used() == []
        await pod(kube_api, namespace, "annotated", name, annotated)
        await until(lambda: node.used() == [QWEN])
        await pod(kube_api, namespace, "stated", name, {}, volumes=[FOLDER], **stated)
        await until(lambda: node.used() == [QWEN, LLAMA])
        await pod(kube_api, namespace, "hostile", name, {"vllm-autoscaler.io/weights": "../../etc"})
        await kube_api.set_status("v1", "Pod", namespace, "annotated", {"phase": "Succeeded"})
        await until(lambda: node.used() == [LLAMA])
        await kube_api.delete("v1", "Pod", namespace, "stated")
        await until(lambda: node.used() == [])
        cache = {"name": "cache", "hostPath": {"path": "/mnt/disks/ssd0/weights/compile/my-team/llama"}}
        await pod(kube_api, namespace, "compiling", name, {}, volumes=[cache])
        await until(lambda: set(node.used_caches()) == {"compile/my-team/llama"})
        await kube_api.delete("v1", "Pod", namespace, "compiling")
        await until(lambda: not node.used_caches())


async def test_namespaces_take_turns_when_one_names_many_models(
    kube_api: KubeApi, namespace: str, name: str, node: KubeNode
) -> None:
    other = await kube_api.namespace()
    sources = [parse(f"hf://org/m{number}@main") for number in range(4)]
    for number, source in enumerate(sources):
        own = other if number == 3 else namespace
        await pod(kube_api, own, f"pod-{number}", name, {"vllm-autoscaler.io/weights": str(source)})
    async with running(node):
        await until(lambda: len(node.used() or ()) == len(sources))
        used = node.used() or ()
        assert sources[3] in used[:2]
        assert node.namespaces_of(sources[3]) == {other}
        assert node.namespaces_of(sources[0]) == {namespace}


async def test_report_replaces_own_labels_and_no_others(kube_api: KubeApi, name: str, node: KubeNode) -> None:
    async def metadata() -> dict[str, Any]:
        return (await kube_api.get("v1", "Node", None, name))["metadata"]

    await node.publish(models(llama=State.READY, qwen=State.FETCHING))
    seen = await metadata()
    assert seen["labels"] == {"kubernetes.io/arch": "amd64", label_of(LLAMA.key): "ready"}
    assert decode(seen["annotations"][ANNOTATION]).models[QWEN.key].state is State.FETCHING
    await node.publish(models(qwen=State.READY))
    assert (await metadata())["labels"] == {"kubernetes.io/arch": "amd64", label_of(QWEN.key): "ready"}
    before = (await metadata())["resourceVersion"]
    await node.publish(models(qwen=State.READY))
    assert (await metadata())["resourceVersion"] == before
    await node.publish(Report({}, "0.2.0", cause="disk", text="the disk does not answer"))
    seen = await metadata()
    assert seen["labels"] == {"kubernetes.io/arch": "amd64"}
    assert json.loads(seen["annotations"][ANNOTATION])["cause"] == "disk"
    assert {field["manager"] for field in seen["managedFields"]} >= {FIELD_MANAGER}


async def test_node_or_server_that_is_gone_is_told(
    kube_api: KubeApi, connect: Connect, agent: User, namespace: str, name: str, node: KubeNode
) -> None:
    await kube_api.delete("v1", "Node", None, name)
    with pytest.raises(Unavailable):
        await node.publish(models(llama=State.READY))


async def test_agent_uses_the_rights_that_it_needs_only(
    kube_api: KubeApi, namespace: str, name: str, node: KubeNode, agent: User
) -> None:
    async with running(node):
        await until(lambda: node.synced)
        await node.publish(models(llama=State.READY))
    used = {Permission("", "pods", verb) for verb in ("list", "watch")}
    used |= {Permission("", "configmaps", verb) for verb in ("list", "watch")} | {Permission("", "nodes", "patch")}
    assert kube_api.used(agent) <= used
    assert not kube_api.refused(agent)
