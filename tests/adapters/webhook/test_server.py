"""The webhook behind a real API server: pods of namespaces that opt in are changed, and none is ever kept out."""

from __future__ import annotations

import asyncio
import base64
import copy
import io
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest
import pytest_asyncio

from autoscaler.adapters.kubernetes.pods.node_weights import read_pod_weights
from autoscaler.adapters.web.exported_metrics import WEBHOOK
from autoscaler.adapters.web.metric_family import PREFIX
from autoscaler.adapters.webhook.metrics import WebhookMetrics
from autoscaler.adapters.webhook.patch import Folder
from autoscaler.adapters.webhook.server import MAX_BODY_BYTES, MAX_REVIEWS, WebhookServer
from autoscaler.config.settings import TlsFiles
from autoscaler.http.certificates import CertificateFiles
from autoscaler.ports import CannotServe
from tests.adapters.webhook.test_patch import READY, engine, pod_of, review, terms
from tests.harness.certificates import Certificates, KeyPair
from tests.harness.kube_api import ApiError, KubeApi, load_manifests
from tests.harness.process import eventually, free_port

MANIFEST = Path(__file__).parents[3] / "manifests" / "weights" / "base" / "webhook.yaml"
FOLDER = Folder("/mnt/disks/ssd0/weights", "vllm-autoscaler:test")
Manifest = dict[str, Any]


class Site(NamedTuple):
    """A namespace that opts in, with a configuration that calls a port of this machine."""

    api: KubeApi
    namespace: str
    service: str  # name in DNS, for the certificate
    port: int
    configuration: str

    async def create(self, pod: Manifest, namespace: str = "") -> Manifest:
        path = f"/api/v1/namespaces/{namespace or self.namespace}/pods"
        created: Manifest = await self.api.request("POST", path, pod, fieldValidation="Strict")
        return created

    async def is_patched(self) -> bool:
        return "affinity" in (await self.create(pod_of()))["spec"]


def configuration_of(name: str, namespace: str, port: int, ca: Path | None = None) -> tuple[Manifest, Manifest]:
    """Return the shipped configuration and a Service that leads to this machine instead of to pods."""
    (shipped,) = [each for each in load_manifests(MANIFEST) if each["kind"] == "MutatingWebhookConfiguration"]
    changed = copy.deepcopy(shipped)
    changed["metadata"]["name"] = name
    (webhook,) = changed["webhooks"]
    webhook["clientConfig"]["service"] |= {"namespace": namespace, "port": port}
    webhook["timeoutSeconds"] = 30  # a busy machine
    if ca:
        webhook["clientConfig"]["caBundle"] = base64.b64encode(ca.read_bytes()).decode()
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": webhook["clientConfig"]["service"]["name"]},
        "spec": {"type": "ExternalName", "externalName": "localhost"},
    }
    return changed, service


@asynccontextmanager
async def opted_in(kube_api: KubeApi, certificates: Certificates) -> AsyncIterator[Site]:
    """Make a namespace that opts in, and the configuration; take the latter away afterwards."""
    namespace = await kube_api.namespace(labels={"vllm-autoscaler.io/weights": "enabled"})
    port = free_port()
    configuration, service = configuration_of(namespace, namespace, port, certificates.ca)
    await kube_api.apply(service, namespace=namespace)
    await kube_api.apply(configuration)
    name = f"{service['metadata']['name']}.{namespace}.svc"
    try:
        yield Site(kube_api, namespace, name, port, namespace)
    finally:
        await kube_api.delete("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration", None, namespace)


@pytest_asyncio.fixture
async def site(kube_api: KubeApi, certificates: Certificates) -> AsyncIterator[Site]:
    async with opted_in(kube_api, certificates) as made:
        yield made


@asynccontextmanager
async def serving(pair: KeyPair, port: int, deadline_s: float = 60.0) -> AsyncIterator[WebhookServer]:
    files = CertificateFiles(TlsFiles(cert=pair.certificate, key=pair.key), ["http/1.1"])
    metrics = WebhookMetrics(lambda: 0.0)
    context = files.context()
    async with WebhookServer("127.0.0.1", port, context, read_pod_weights, FOLDER, metrics, deadline_s) as server:
        yield server


@pytest.mark.integration
async def test_pods_that_opt_in_are_changed_and_deployments_are_not(site: Site, certificates: Certificates) -> None:
    async with serving(certificates.issue(site.service), site.port):
        await eventually(site.is_patched, "the API server calls the webhook")
        pod = await site.create(pod_of(engine(resources={"limits": {"nvidia.com/gpu": "1"}})))
        assert terms(pod)[0]["preference"]["matchExpressions"][0]["key"] == READY
        assert [each["name"] for each in pod["spec"]["initContainers"]] == ["weights"]
        again = await site.create(
            {key: pod[key] for key in ("apiVersion", "kind", "spec")} | {"metadata": {"name": "b"}}
        )
        assert again["spec"] == pod["spec"]

        other = await site.api.namespace()
        assert "affinity" not in (await site.create(pod_of(), other))["spec"]
        out = pod_of()
        out["metadata"]["labels"] = {"vllm-autoscaler.io/weights": "disabled"}
        assert "affinity" not in (await site.create(out))["spec"]

        labels = {"app": "llama"}
        template = {"metadata": {"labels": labels}, "spec": pod_of()["spec"]}
        deployment = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "llama"},
            "spec": {"selector": {"matchLabels": labels}, "template": template},
        }
        (created,) = await site.api.apply(deployment, namespace=site.namespace)
        assert "affinity" not in created["spec"]["template"]["spec"]


@pytest.mark.integration
@pytest.mark.parametrize("standard", ["baseline", "restricted"])
async def test_namespaces_that_forbid_the_volume_are_left_out(
    site: Site, certificates: Certificates, standard: str
) -> None:
    labels = {"vllm-autoscaler.io/weights": "enabled", "pod-security.kubernetes.io/enforce": standard}
    strict = await site.api.namespace(labels=labels)
    security = {
        "allowPrivilegeEscalation": False,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    async with serving(certificates.issue(site.service), site.port):
        await eventually(site.is_patched, "the API server calls the webhook")
        created = await site.create(pod_of(engine(securityContext=security)), strict)
    assert "affinity" not in created["spec"]


@pytest.mark.integration
@pytest.mark.parametrize("enforced", ["baseline", "restricted", "privileged", ""])
async def test_opting_in_warns_where_the_volume_is_forbidden(kube_api: KubeApi, enforced: str) -> None:
    """The shipped policy warns. Here it denies, because an error is easier to see."""
    policy, binding = load_manifests(MANIFEST.with_name("namespaces.yaml"))
    assert binding["spec"]["validationActions"] == ["Warn"]
    labels = {"pod-security.kubernetes.io/enforce": enforced} if enforced else {}
    name = await kube_api.namespace(labels=labels)
    binding["spec"] |= {"policyName": name, "validationActions": ["Deny"]}
    only = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}
    binding["spec"]["matchResources"] = only
    for each in (policy, binding):
        each["metadata"]["name"] = name
        await kube_api.apply(each)
    path, merge = f"/api/v1/namespaces/{name}", "application/merge-patch+json"

    async def opt_in() -> str:
        try:
            body = {"metadata": {"labels": {"vllm-autoscaler.io/weights": "enabled"}}}
            await kube_api.request("PATCH", path, body, content_type=merge, dryRun="All")
        except ApiError as error:
            return str(error)
        return ""

    async def is_refused() -> bool:
        return "forbids folders of nodes" in await opt_in()

    try:
        if enforced in ("baseline", "restricted"):
            await eventually(is_refused, "the policy is known")
        else:
            await asyncio.sleep(1.0)
            assert await opt_in() == ""
    finally:
        for each in (policy, binding):
            await kube_api.delete(each["apiVersion"], each["kind"], None, name)


@pytest.mark.integration
@pytest.mark.parametrize("standard", ["baseline", "restricted"])
async def test_claim_for_the_folder_is_allowed_by_the_standards(kube_api: KubeApi, standard: str) -> None:
    namespace = await kube_api.namespace(labels={"pod-security.kubernetes.io/enforce": standard})
    security = {
        "allowPrivilegeEscalation": False,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    pod = pod_of(engine(securityContext=security))
    source = {"persistentVolumeClaim": {"claimName": "node-weights", "readOnly": True}}
    for volume, allowed in ((source, True), ({"hostPath": {"path": "/mnt/weights"}}, False)):
        pod["spec"]["volumes"] = [{"name": "node-weights"} | volume]
        creation = kube_api.request("POST", f"/api/v1/namespaces/{namespace}/pods", pod)
        if allowed:
            await creation
        else:
            with pytest.raises(ApiError, match="PodSecurity"):
                await creation


@pytest.mark.integration
async def test_pods_are_created_while_the_webhook_is_down_or_expired(site: Site, certificates: Certificates) -> None:
    assert not await site.is_patched()
    pair = certificates.issue(site.service)
    async with serving(pair, site.port):
        await eventually(site.is_patched, "the API server calls the webhook")
    files = pair.certificate.read_bytes(), pair.key.read_bytes()
    expired = certificates.issue(site.service, valid_for=-timedelta(hours=1))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(expired.certificate, expired.key)
    metrics = WebhookMetrics(lambda: 0.0)
    async with WebhookServer("127.0.0.1", site.port, context, read_pod_weights, FOLDER, metrics):
        assert not await site.is_patched()
    pair.certificate.write_bytes(files[0])
    pair.key.write_bytes(files[1])
    async with serving(pair, site.port):
        await eventually(site.is_patched, "the API server calls the webhook again")


@pytest.mark.integration
async def test_rotated_certificate_is_served_without_a_restart(site: Site, certificates: Certificates) -> None:
    pair = certificates.issue(site.service)
    client = ssl.create_default_context(cafile=certificates.ca)

    async def serial() -> str:
        _, writer = await asyncio.open_connection("127.0.0.1", site.port, ssl=client, server_hostname=site.service)
        found = str(writer.get_extra_info("peercert")["serialNumber"])
        writer.close()
        with suppress(ssl.SSLError, ConnectionError):
            await writer.wait_closed()
        return found

    async with serving(pair, site.port):
        first = await serial()
        certificates.issue(site.service)
        assert await serial() != first
        await eventually(site.is_patched, "the API server calls the webhook")


Send = Callable[..., Awaitable[aiohttp.ClientResponse]]


@asynccontextmanager
async def client(certificates: Certificates, deadline_s: float = 60.0) -> AsyncIterator[Send]:
    """Send requests to a webhook, as any pod of the network may."""
    trust = ssl.create_default_context(cafile=certificates.ca)
    async with (
        serving(certificates.issue("localhost"), 0, deadline_s) as server,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
    ):
        yield lambda data: session.post(f"https://localhost:{server.port}/pods", data=data, ssl=trust)


async def test_review_that_is_too_large_allows_its_pod(certificates: Certificates) -> None:
    head = review(pod_of())[:-3]
    async with client(certificates) as send:
        answered = await send(io.BytesIO(head + b" " * (MAX_BODY_BYTES + 1)))
        response = (await answered.json())["response"]
        assert response == {"uid": "705ab4f5-6393-11e8-b7cc-42010a800002", "allowed": True}
        answered = await send(review(pod_of()))
        assert (await answered.json())["response"]["patchType"] == "JSONPatch"


async def test_review_that_does_not_arrive_ends_at_the_deadline(certificates: Certificates) -> None:
    async def endless() -> AsyncIterator[bytes]:
        yield b'{"request":'
        await asyncio.Event().wait()

    async with client(certificates, deadline_s=0.05) as send:
        answered = await send(endless())
        assert answered.status == 408


@pytest.mark.integration
async def test_quota_and_limits_of_the_engine_allow_the_patch(site: Site, certificates: Certificates) -> None:
    """The container that waits adds nothing to what the pod requests, and is as large as its engine."""
    amounts = {"cpu": "2", "memory": "8Gi"}
    limits = {"type": "Container", "min": amounts, "max": amounts | {"nvidia.com/gpu": "1"}}
    hard = {f"{kind}.{name}": amount for kind in ("requests", "limits") for name, amount in amounts.items()}
    for kind, name, spec in (("LimitRange", "range", {"limits": [limits]}), ("ResourceQuota", "quota", {"hard": hard})):
        metadata = {"name": name, "namespace": site.namespace}
        await site.api.apply({"apiVersion": "v1", "kind": kind, "metadata": metadata, "spec": spec})
    used = dict.fromkeys(hard, "0")
    resources = {"requests": amounts | {"nvidia.com/gpu": "1"}, "limits": amounts | {"nvidia.com/gpu": "1"}}
    pod = pod_of(engine(resources=resources))
    async with serving(certificates.issue(site.service), site.port):

        async def is_patched() -> bool:
            await site.api.set_status("v1", "ResourceQuota", site.namespace, "quota", {"hard": hard, "used": used})
            path = f"/api/v1/namespaces/{site.namespace}/pods"
            created = await site.api.request("POST", path, pod, dryRun="All")
            return "affinity" in created["spec"]

        await eventually(is_patched, "the API server calls the webhook")
        created = await site.create(pod)
    assert [each["name"] for each in created["spec"]["initContainers"]] == ["weights"]
    with pytest.raises(ApiError, match="exceeded quota"):
        await site.create(pod)


async def test_reviews_beyond_the_limit_are_refused_at_once(certificates: Certificates) -> None:
    ends = asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield b'{"request":'
        await ends.wait()
        yield b"{}}"

    async with client(certificates) as send:
        waiting = [asyncio.ensure_future(send(slow())) for _ in range(MAX_REVIEWS)]

        async def is_refused() -> bool:
            answered = await send(review(pod_of()))
            return answered.status == 503

        await eventually(is_refused, "the limit is reached")
        ends.set()
        assert {(await each).status for each in waiting} == {200}
        assert not await is_refused()


def test_exported_metrics_are_those_of_the_reference() -> None:
    found = {line.split()[2]: line.split()[3] for line in WebhookMetrics(lambda: 0.0).render().decode().splitlines()
             if line.startswith(f"# TYPE {PREFIX}")}  # fmt: skip
    made = {name for name in found if name.endswith("_created")}
    assert {name: kind for name, kind in found.items() if name not in made} == {
        family.full_name: family.type for family in WEBHOOK
    }


async def test_port_in_use_is_named(certificates: Certificates) -> None:
    pair = certificates.issue("localhost")
    async with serving(pair, 0) as server:
        with pytest.raises(CannotServe, match=f"port {server.port} on 127.0.0.1 is in use"):
            async with serving(pair, server.port):
                pass
