"""Agents of other nodes, and those that hold a model, as a real API server lists them."""

from __future__ import annotations

import pytest

from autoscaler.adapters.kubernetes.agent.peers import AGENTS_S, HOLDERS_S, AgentDirectory
from autoscaler.config.weights.report import LABEL_PREFIX, READY_LABEL
from tests.adapters.keda.world import ManualClock
from tests.adapters.kubernetes.conftest import Connect
from tests.harness.kube_api import KubeApi

pytestmark = pytest.mark.integration

KEY = "0123456789abcdef"
RIGHTS = [
    {
        "kind": "Role",
        "rules": [{"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list"]}],
    },
    {"kind": "ClusterRole", "rules": [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}]},
]


def endpoints(namespace: str, name: str, hosts: dict[str, str], port: object = 8474, family: str = "IPv4") -> dict:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name, "namespace": namespace, "labels": {"kubernetes.io/service-name": "agents"}},
        "addressType": family,
        "ports": [{"name": "metrics", "port": 9}, {"name": "peers", "port": port}],
        "endpoints": [{"addresses": [host], "nodeName": node} for node, host in hosts.items()],
    }


@pytest.fixture
def roles(namespace: str) -> list[dict]:
    versions = {"apiVersion": "rbac.authorization.k8s.io/v1"}
    metadata = {"name": f"agents-of-{namespace}"}
    spaced = {"metadata": {**metadata, "namespace": namespace}}
    return [{**versions, **each, **(spaced if each["kind"] == "Role" else {"metadata": metadata})} for each in RIGHTS]


async def test_holders_are_agents_of_nodes_with_the_label(
    kube_api: KubeApi, namespace: str, connect: Connect, roles: list[dict]
) -> None:
    await kube_api.apply(endpoints(namespace, "a", {f"{namespace}-1": "10.0.0.1", f"{namespace}-2": "10.0.0.2"}))
    await kube_api.apply(endpoints(namespace, "b", {f"{namespace}-3": "fd00::3"}, family="IPv6"))
    for number, label in ((1, READY_LABEL), (2, "gone"), (4, READY_LABEL)):
        labels = {f"{LABEL_PREFIX}{KEY}": label}
        name = f"{namespace}-{number}"
        await kube_api.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}})
    user = await kube_api.service_account(namespace, "agent", *roles)
    clock = ManualClock()
    directory = AgentDirectory(await connect(user), clock, namespace, "agents")
    agents = await directory.agents()
    assert agents == ("10.0.0.1:8474", "10.0.0.2:8474", "[fd00::3]:8474")
    assert await directory.holders(KEY) == ["10.0.0.1:8474"]
    assert await directory.holders("f" * 16) == []

    await kube_api.apply(endpoints(namespace, "b", {f"{namespace}-4": "fd00::4"}, family="IPv6"))
    assert await directory.agents() is agents
    clock.time_s += AGENTS_S + HOLDERS_S
    assert set(await directory.holders(KEY)) == {"10.0.0.1:8474", "[fd00::4]:8474"}
    assert not kube_api.refused(user)
    for number in (1, 2, 4):
        await kube_api.delete("v1", "Node", None, f"{namespace}-{number}")


async def test_lists_that_are_refused_leave_what_was_known(
    kube_api: KubeApi, namespace: str, connect: Connect, roles: list[dict]
) -> None:
    user = await kube_api.service_account(namespace, "agent", *roles[:1])
    clock = ManualClock()
    directory = AgentDirectory(await connect(user), clock, namespace, "agents")
    assert await directory.holders(KEY) == []
    await kube_api.apply(endpoints(namespace, "a", {f"{namespace}-1": "10.0.0.1"}))
    clock.time_s += AGENTS_S
    assert await directory.holders(KEY) == []
    assert await directory.agents() == ("10.0.0.1:8474",)
    stranger = await kube_api.service_account(namespace, "stranger")
    directory = AgentDirectory(await connect(stranger), clock, namespace, "agents")
    assert await directory.agents() == ()


async def test_slices_without_the_port_name_no_agents(
    kube_api: KubeApi, namespace: str, connect: Connect, roles: list[dict]
) -> None:
    wrong = endpoints(namespace, "a", {f"{namespace}-1": "10.0.0.1"})
    wrong["ports"] = [{"name": "other", "port": 8474}]
    await kube_api.apply(wrong)
    user = await kube_api.service_account(namespace, "agent", *roles)
    assert await AgentDirectory(await connect(user), ManualClock(), namespace, "agents").agents() == ()
