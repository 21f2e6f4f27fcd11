"""Each server of the harness really starts, answers and can be taken away."""

import asyncio
import json
import random
import socket
import ssl
from pathlib import Path

import aiohttp
import pytest
from aiohttp import test_utils, web
from kubernetes_asyncio.client import AppsV1Api, CoreV1Api
from kubernetes_asyncio.client.exceptions import ApiException
from playwright.async_api import Browser

from tests.harness.browser import screenshot
from tests.harness.certificates import Certificates
from tests.harness.exposition import Answer, ExpositionServer
from tests.harness.exposition import exposition_server as serve_exposition
from tests.harness.fixtures import StartPromql
from tests.harness.kube_api import ApiError, KubeApi, Permission, granted, logged
from tests.harness.process import PATIENCE_S, Process, ServerFailed, answers, eventually, free_port
from tests.harness.promql import PromqlServer, Target

pytestmark = pytest.mark.integration

SATURATED = (Path(__file__).parents[1] / "data" / "vllm" / "saturated.prom").read_text()
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


def test_a_port_is_given_once_before_its_server_listens():
    """Each test worker draws its ports alone, and two may draw the same."""
    state = random.getstate()
    first = free_port()
    random.setstate(state)
    assert free_port() != first
    socket.create_server(("127.0.0.1", first)).close()
    socket.create_server(("0.0.0.0", first)).close()


async def test_a_flush_is_tried_again_until_it_is_answered():
    statuses = [503, 503, 200]

    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=statuses.pop(0))

    app = web.Application()
    app.router.add_get("/flush", answer)
    async with test_utils.TestServer(app) as server:
        url = str(server.make_url("")).rstrip("/")
        process = Process("none", [], Path(), ready=lambda: answers(url))
        await PromqlServer(url, process, "/flush").flush()
    assert statuses == []


@pytest.mark.parametrize("turn", ["first", "second"])
async def test_no_test_sees_the_nodes_of_another(kube_api: KubeApi, turn: str):
    assert (await kube_api.request("GET", "/api/v1/nodes"))["items"] == []
    await kube_api.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": turn}})


async def test_an_object_applied_is_read_back_by_the_client_library(kube_api: KubeApi, namespace: str):
    await kube_api.apply(deployment("llama", replicas=3), namespace=namespace)
    await kube_api.set_status("apps/v1", "Deployment", namespace, "llama", {"replicas": 3, "readyReplicas": 2})
    async with kube_api.client() as client:
        found = await AppsV1Api(client).read_namespaced_deployment("llama", namespace)
    assert (found.spec.replicas, found.status.ready_replicas) == (3, 2)


async def test_a_misspelt_field_is_refused(kube_api: KubeApi, namespace: str):
    with pytest.raises(ApiError, match="replicaz"):
        await kube_api.apply(deployment("llama") | {"replicaz": 1}, namespace=namespace)


async def test_service_account_has_the_rights_of_its_role(kube_api: KubeApi, namespace: str):
    user = await kube_api.service_account(namespace, "reader", READER)
    async with kube_api.client(user) as client:
        await CoreV1Api(client).list_namespaced_pod(namespace)
        with pytest.raises(ApiException, match="Forbidden"):
            await CoreV1Api(client).list_namespaced_secret(namespace)
    assert kube_api.used(user) == granted(READER) == {Permission("", "pods", "list")}
    assert kube_api.refused(user) == {Permission("", "secrets", "list")}


async def test_an_audit_line_that_is_being_written_is_not_read_yet(kube_api: KubeApi, namespace: str):
    await kube_api.request("GET", f"/api/v1/namespaces/{namespace}/pods")
    log = kube_api.audit_log.read_bytes()
    whole, _, _ = log.rpartition(b"\n")
    *earlier, last = whole.splitlines()[-3:]
    assert logged(b"\n".join([*earlier, last]) + b"\n")[-1] == json.loads(last)
    for written in (1, len(last) // 2, len(last)):
        assert logged(b"\n".join([*earlier, last[:written]])) == [json.loads(line) for line in earlier]


async def test_restarted_server_has_its_port_and_its_data(kube_api: KubeApi, namespace: str):
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


async def expect_two_pods_behind_one_address(start: StartPromql, endpoint: ExpositionServer):
    for pod in "ab":
        endpoint.serve(f"/{pod}/metrics", SATURATED)
    server = await start(
        *(Target(endpoint.address, f"/{pod}/metrics", {"namespace": "llm", "pod": pod}) for pod in "ab")
    )
    waiting = await server.wait_for('vllm:num_requests_waiting{namespace="llm"}', series=2)
    assert {(series["metric"]["pod"], series["value"][1]) for series in waiting} == {("a", "30"), ("b", "30")}


async def test_prometheus_scrapes_and_answers(prometheus: StartPromql, exposition_server: ExpositionServer):
    await expect_two_pods_behind_one_address(prometheus, exposition_server)


async def test_victoria_metrics_scrapes_and_answers(victoria_metrics: StartPromql, exposition_server: ExpositionServer):
    await expect_two_pods_behind_one_address(victoria_metrics, exposition_server)


async def test_exposition_server_can_misbehave_in_every_way(
    exposition_server: ExpositionServer,
):
    serve = exposition_server.serve
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE_S)) as session:
        async with session.get(serve("/zip", Answer("up 1\n" * 1000, gzip=True))) as response:
            assert (await response.text(), response.headers["Content-Encoding"]) == ("up 1\n" * 1000, "gzip")
        async with session.get(serve("/busy", Answer("later", status=503))) as response:
            assert response.status == 503
        async with session.get(exposition_server.url + "/nothing-set") as response:
            assert response.status == 404
        async with session.get(serve("/cut", Answer("up 1\n", truncate_at=2))) as response:
            with pytest.raises(aiohttp.ClientPayloadError):
                await response.text()
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await session.get(serve("/drop", Answer(drop=True)))
        with pytest.raises(TimeoutError):
            await session.get(serve("/slow", Answer("up 1\n", delay_s=60)), timeout=aiohttp.ClientTimeout(total=0.5))
    assert exposition_server.asked("/zip") == 1


async def test_tls_with_a_certificate_of_the_tests_own(certificates: Certificates):
    server_context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server_context.load_cert_chain(*certificates.issue("127.0.0.1"))
    trust = ssl.create_default_context(cafile=certificates.ca)
    async with serve_exposition(server_context) as server:
        assert await answers(server.serve("/metrics", "up 1\n"), trust)
        assert not await answers(server.url + "/metrics")


async def test_chromium_runs_a_page_and_leaves_a_picture(chromium: Browser, exposition_server: ExpositionServer):
    html = Answer("<script>document.title = 6 * 7</script>", headers={"Content-Type": "text/html"})
    page = await chromium.new_page()
    await page.goto(exposition_server.serve("/", html))
    assert await page.title() == "42"
    assert (await screenshot(page, "harness")).stat().st_size > 0


async def test_a_server_that_fails_to_start_says_why(tmp_path: Path):
    broken = Process("broken", ["sh", "-c", "echo out of luck; exit 3"], tmp_path, ready=lambda: answers("http://["))
    with pytest.raises(ServerFailed, match=r"(?s)broken ended with code 3.*out of luck"):
        await broken.start()


def running(pid: int) -> bool:
    """Say whether a process runs; who has ended and waits for an heir of its parent to notice does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


async def test_stopping_a_server_ends_what_it_started(tmp_path: Path):
    told = tmp_path / "grandchild"

    async def written() -> bool:  # the shell creates the file before it writes to it
        return told.exists() and told.read_text().endswith("\n")

    parent = Process("parent", ["sh", "-c", "sleep 600 & echo $! >grandchild; wait"], tmp_path, ready=written)
    await parent.start()
    grandchild = int(told.read_text())
    assert running(grandchild)
    await parent.stop()
    await eventually(lambda: asyncio.sleep(0, not running(grandchild)), "the grandchild is gone")
