"""Each server of the harness really starts, answers and can be taken away."""

import pytest
from kubernetes_asyncio.client import AppsV1Api, CoreV1Api
from kubernetes_asyncio.client.exceptions import ApiException

from tests.harness.kube_api import ApiError, KubeApi, Permission, granted
from tests.harness.process import answers

pytestmark = pytest.mark.integration

READER = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "Role",
    "metadata": {"name": "reader"},
    "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}],
}


def deployment(name: str, replicas: int = 1) -> dict:
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "vllm", "image": "vllm"}]}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template},
    }


async def test_the_api_server_is_a_real_one_of_the_pinned_version(kube_api: KubeApi):
    assert (await kube_api.request("GET", "/version"))["gitVersion"] == "v1.36.3"


async def test_an_object_applied_is_read_back_by_the_client_library(kube_api: KubeApi, namespace: str):
    await kube_api.apply(deployment("llama", replicas=3), namespace=namespace)
    await kube_api.set_status("apps/v1", "Deployment", namespace, "llama", {"replicas": 3, "readyReplicas": 2})
    async with kube_api.client() as client:
        found = await AppsV1Api(client).read_namespaced_deployment("llama", namespace)
    assert (found.spec.replicas, found.status.ready_replicas) == (3, 2)


async def test_a_misspelt_field_is_refused(kube_api: KubeApi, namespace: str):
    with pytest.raises(ApiError, match="replicaz"):
        await kube_api.apply(deployment("llama") | {"replicaz": 1}, namespace=namespace)


async def test_a_service_account_may_do_what_its_role_says_and_the_audit_log_shows_both(
    kube_api: KubeApi, namespace: str
):
    user = await kube_api.service_account(namespace, "reader", READER)
    async with kube_api.client(user) as client:
        await CoreV1Api(client).list_namespaced_pod(namespace)
        with pytest.raises(ApiException, match="Forbidden"):
            await CoreV1Api(client).list_namespaced_secret(namespace)
    assert kube_api.used(user) == granted(READER) == {Permission("", "pods", "list")}
    assert kube_api.refused(user) == {Permission("", "secrets", "list")}


async def test_after_an_outage_the_server_is_back_on_the_same_port_with_its_data(kube_api: KubeApi, namespace: str):
    async with kube_api.outage(crash=True):
        assert not await answers(f"{kube_api.url}/readyz")
    assert (await kube_api.get("v1", "Namespace", None, namespace))["metadata"]["name"] == namespace


async def test_a_frozen_server_answers_again_once_thawed(kube_api: KubeApi, namespace: str):
    async with kube_api.frozen():
        assert not await answers(f"{kube_api.url}/readyz")
    assert (await kube_api.get("v1", "Namespace", None, namespace))["metadata"]["name"] == namespace


async def test_custom_resources_come_and_go_and_scale(kube_api: KubeApi, namespace: str):
    await kube_api.install_crds()
    group = {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": "deepseek"},
        "spec": {"replicas": 2, "leaderWorkerTemplate": {"size": 4}},
    }
    await kube_api.apply(group, namespace=namespace)
    scale = await kube_api.get("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", namespace, "deepseek", "scale")
    assert scale["spec"]["replicas"] == 2
    await kube_api.remove_crds("leaderworkersets")
    with pytest.raises(ApiError, match="404"):
        await kube_api.get("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", namespace, "deepseek")
