"""The admission policies that ship: what our accounts write passes, and what an intruder would write is refused.

Each request is sent to a real API server with a token of the account, under the Roles that ship.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any, NamedTuple

import pytest
import pytest_asyncio

from autoscaler.adapters.clock import SystemClock
from autoscaler.adapters.kubernetes.api.client import Kube
from autoscaler.adapters.kubernetes.events import API_ROOT, CONTROLLER
from autoscaler.adapters.kubernetes.node_requests.images import Warmed
from autoscaler.adapters.kubernetes.node_requests.objects import PlaceRequest, object_name
from autoscaler.adapters.kubernetes.node_requests.reconciler import NodeRequester
from autoscaler.adapters.kubernetes.pods.needs import Needs
from autoscaler.config.settings import LeaseSettings, NodeRequestKind, NodeRequests
from autoscaler.core.model.fleet import WorkloadRef
from tests.adapters.keda.world import Lease
from tests.harness.kube_api import ApiError, KubeApi, User, load_manifests
from tests.harness.process import eventually
from tests.test_manifests import MANIFESTS, only, rendered

pytestmark = pytest.mark.integration

OURS, AGENTS = "vllm-autoscaler", "vllm-autoscaler-weights"
OWN = {"app.kubernetes.io/managed-by": "vllm-autoscaler"}
NEEDS = Needs(resource="nvidia.com/gpu", largest=1.0, smallest=1.0, total=1.0, cpu=4.0, memory=2.0**34)
LLAMA = WorkloadRef("team-a", "llama")
PLACEHOLDER = object_name(LLAMA, f"{OURS}/{OURS}")
PLACEHOLDERS = f"/apis/apps/v1/namespaces/{OURS}/deployments"
MANAGED = {"vllm-autoscaler.io/policy": "interactive"}
CRDS = ("nodes/capacitybuffers", "weights/localmodels")
MERGE, JSON = "application/merge-patch+json", "application/json-patch+json"


class Site(NamedTuple):
    api: KubeApi
    user: User
    namespace: str  # of a tenant

    async def send(self, verb: str, path: str, body: Any = None, content_type: str = "", **more: Any) -> Any:
        """Send a request of the account. "@" stands for the namespace of the tenant."""
        kind = content_type or (MERGE if verb == "PATCH" else "application/json")
        body = json.loads(json.dumps(body).replace("@", self.namespace))
        return await self.api.request(
            verb, path.replace("@", self.namespace), body, content_type=kind, **{"user": self.user, **more}
        )

    async def is_refused(self, why: str, verb: str, path: str, body: Any = None, content_type: str = "") -> bool:
        """Send a request; return whether an admission policy refuses it for this reason."""
        try:
            await self.send(verb, path, body, content_type, dryRun="All")
        except ApiError as error:
            assert "ValidatingAdmissionPolicy" in str(error), error
            return why in str(error)
        return False


def deployment(name: str, annotations: Mapping[str, str] = MANAGED) -> dict[str, Any]:
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    metadata = {"name": name, "annotations": dict(annotations)}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}


def stateful(name: str, annotations: Mapping[str, str] = MANAGED) -> dict[str, Any]:
    body = deployment(name, annotations)
    return {**body, "kind": "StatefulSet", "spec": {**body["spec"], "serviceName": "s"}}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def site(shared_kube_api: KubeApi) -> AsyncIterator[Site]:
    """The daemon of direct mode with all further rights, and a workload of a tenant, of Kubernetes and of our own."""
    kube_api, namespace = shared_kube_api, await shared_kube_api.namespace()
    await kube_api.install_crds()
    await kube_api.install_crds(*CRDS)
    await kube_api.apply(
        *rendered("direct"),
        *load_manifests(
            MANIFESTS / "shrink" / "rbac.yaml",
            MANIFESTS / "prewarm" / "prewarm.yaml",
            MANIFESTS / "weights" / "kserve.yaml",
            MANIFESTS / "weights" / "base" / "namespace.yaml",
            MANIFESTS / "weights" / "base" / "rbac.yaml",
            MANIFESTS / "weights" / "base" / "wish-policy.yaml",
        ),
    )
    for where in (namespace, "kube-system", OURS, AGENTS):
        await kube_api.apply(deployment("target"), namespace=where)
    await kube_api.apply(stateful("target"), namespace="kube-system")
    theirs = {"example.com/policy": "interactive"}
    await kube_api.apply(stateful("target"), deployment("plain", {}), stateful("plain", theirs), namespace=namespace)
    labels = {"labels": {"app": "target"}, "annotations": {"kept": "yes"}}
    spec = {"containers": [{"name": "c", "image": "i"}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod", **labels}, "spec": spec}
    await kube_api.apply(pod, namespace=namespace)
    site = Site(kube_api, await kube_api.service_account(OURS, OURS), namespace)
    await in_force(site)
    yield site
    await kube_api.remove_crds(*CRDS)


async def in_force(site: Site) -> None:
    stateful_plain = "only what has the annotation", scale("@", "statefulsets", "plain")
    for why, request in (*FIRST.items(), stateful_plain):
        await eventually(lambda why=why, request=request: site.is_refused(why, *request), f"in force: {why}")


def scale(namespace: str, kind: str = "deployments", name: str = "target") -> tuple[str, str, Any]:
    return "PATCH", f"/apis/apps/v1/namespaces/{namespace}/{kind}/{name}/scale", {"spec": {"replicas": 2}}


def event(controller: str, name: str = "e") -> tuple[str, str, Any]:
    regarding = {"kind": "Pod", "namespace": "@", "name": "pod"}
    body = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": "@"},
        "type": "Normal",
    }
    body |= {"eventTime": "2026-01-01T00:00:00.000000Z", "reportingInstance": "i", "action": "a", "reason": "r"}
    return (
        "POST",
        f"{API_ROOT}/namespaces/@/events",
        {**body, "reportingController": controller, "note": "n", "regarding": regarding},
    )


def created(kind: str, path: str, name: str, version: str = "v1", **fields: Any) -> tuple[str, str, Any]:
    return "POST", path, {"apiVersion": version, "kind": kind, "metadata": {"name": name}, **fields}


def cache(name: str, labels: Mapping[str, str]) -> tuple[str, str, Any]:
    spec = {"sourceModelUri": "hf://a/b", "modelSize": "1", "nodeGroups": ["g"]}
    verb, path, body = created("LocalModelCache", CACHES, name, "serving.kserve.io/v1alpha1", spec=spec)
    return verb, path, {**body, "metadata": {"name": name, "labels": dict(labels)}}


def prewarm(kind: str, version: str, **fields: Any) -> tuple[str, str, Any]:
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    path = f"{root}/namespaces/{OURS}/{kind.lower()}s"
    verb, path, body = created(kind, path, "prewarm-0", version, **fields)
    return verb, path, {**body, "metadata": {"name": "prewarm-0", "labels": {"vllm-autoscaler.io/installation": "a"}}}


MOUNTS_A_SECRET = {
    "automountServiceAccountToken": False,
    "containers": [{"name": "c", "image": "registry.k8s.io/pause:3.10.1"}],
    "volumes": [{"name": "v", "projected": {"sources": [{"secret": {"name": "s"}}]}}],
}
CACHES = "/apis/serving.kserve.io/v1alpha1/localmodelcaches"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{OURS}/leases"
CONFIG_MAPS = f"/api/v1/namespaces/{OURS}/configmaps"
FIRST = {
    "scales nothing in namespaces of Kubernetes": scale("kube-system"),
    "only what has the annotation": scale("@", name="plain"),
    "in its own name alone": event("kubelet"),
    "no ConfigMap but": created("ConfigMap", CONFIG_MAPS, "other"),
    "no LocalModelCache but its own": cache("vllm-autoscaler-a", {}),
    "no image": ("PATCH", "/api/v1/namespaces/@/pods/pod", {"spec": {"containers": [{"name": "c", "image": "j"}]}}),
    "but those that request nodes": ("DELETE", f"{PLACEHOLDERS}/target"),
}
"""A refused request of each policy: a policy is in force a moment after it was written."""


async def test_what_the_daemon_writes_passes(site: Site) -> None:
    for request in (
        scale("@"),
        scale("@", "statefulsets"),
        event(CONTROLLER, "ours"),
        created("ConfigMap", CONFIG_MAPS, "vllm-autoscaler-weights-07", data={}),
        cache("vllm-autoscaler-1", OWN),
        ("DELETE", f"{CACHES}/vllm-autoscaler-1"),
        ("PATCH", "/api/v1/namespaces/@/pods/pod", deletion_cost("-1")),
        ("PATCH", "/api/v1/namespaces/@/pods/pod", deletion_cost(None)),
    ):
        await site.send(*request)
    async with Kube.using(site.api.configuration(site.user), 10.0) as kube:
        for by in (NodeRequestKind.PLACEHOLDER, NodeRequestKind.CAPACITY_BUFFER):
            requester = requester_of(kube, by)
            await requester.reconcile((PlaceRequest(LLAMA, 100, NEEDS, "vllm/vllm-openai:v0.20.0"),))
            if by is NodeRequestKind.PLACEHOLDER:
                made = await site.api.request("GET", f"{PLACEHOLDERS}/{PLACEHOLDER}")
                pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, **made["spec"]["template"]}
                pod = {**pod, "metadata": {"name": "p"}}
                await site.api.apply(pod, namespace=OURS, dry_run=True)  # under the restricted standard
            await requester.reconcile(())
        requester = requester_of(kube, NodeRequestKind.AUTO, {LLAMA: ("n1", "n2")})
        await requester.reconcile(())
        items = (await site.api.request("GET", PLACEHOLDERS))["items"]
        (made,) = [each for each in items if each["metadata"]["name"].startswith("prewarm-")]
        assert made["spec"]["template"]["spec"]["volumes"][0]["image"]["reference"] == "vllm/vllm-openai:v0.20.0"
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": made["spec"]["template"]["spec"]}
        await site.api.apply(pod, namespace=OURS, dry_run=True)
        await requester_of(kube, NodeRequestKind.AUTO).reconcile(())


def deletion_cost(cost: str | None) -> dict[str, Any]:
    return {"metadata": {"annotations": {"controller.kubernetes.io/pod-deletion-cost": cost}}}


def requester_of(kube: Kube, by: NodeRequestKind, warmed: Warmed | None = None) -> NodeRequester:
    lease, requests = LeaseSettings(), NodeRequests(by=by, pull_images=warmed is not None)
    return NodeRequester(
        kube,
        SystemClock(),
        requests,
        lease,
        lease.installation,
        lambda ref: NEEDS,
        Lease(),
        lambda ref: "vllm/vllm-openai:v0.20.0",
        warmed=lambda: warmed or {},
    )


def pods(**metadata: Any) -> tuple[str, str, Any]:
    return "PATCH", "/api/v1/namespaces/@/pods/pod", {"metadata": metadata}


@pytest.mark.parametrize(
    ("why", "request_"),
    [
        ("scales nothing in namespaces", scale("vllm-autoscaler")),
        ("scales nothing in namespaces", scale("vllm-autoscaler-weights")),
        ("only what has the annotation", scale("@", "statefulsets", "plain")),
        ("no Lease but its own", created("Lease", LEASES, "other", "coordination.k8s.io/v1")),
        ("no labels", pods(labels={"app": "other"})),
        ("no labels", pods(finalizers=["a.example/b"])),
        ("no annotation", pods(annotations={"kept": None})),
        ("no annotation", pods(annotations={"other": "1"})),
        ("no LocalModelCache but its own", cache("theirs", OWN)),
        ("100 pods", prewarm("CapacityBuffer", "autoscaling.x-k8s.io/v1beta1", spec={"replicas": 1000})),
        ("no volumes", prewarm("PodTemplate", "v1", template={"spec": MOUNTS_A_SECRET})),
        ("scales nothing in namespaces", scale("kube-system", "statefulsets")),
    ],
)
async def test_what_the_daemon_never_writes_is_refused(site: Site, why: str, request_: tuple[str, str, Any]) -> None:
    assert await site.is_refused(why, *request_)


async def test_objects_of_others_are_not_taken_over(site: Site) -> None:
    """Nor by giving them our marks in the same write."""
    theirs = cache("theirs", {"app.kubernetes.io/managed-by": "somebody"})
    await site.send(*theirs, user=site.api.admin)
    assert await site.is_refused("LocalModelCache", "PATCH", f"{CACHES}/theirs", {"metadata": {"labels": OWN}})
    assert await site.is_refused("LocalModelCache", "DELETE", f"{CACHES}/theirs")
    await site.send(*event("kubelet", "theirs"), user=site.api.admin)
    series = {"series": {"count": 2, "lastObservedTime": "2026-01-01T00:00:00.000000Z"}}
    assert await site.is_refused("in its own name", "PATCH", f"{API_ROOT}/namespaces/@/events/theirs", series)
    marks = {"metadata": {"labels": {"vllm-autoscaler.io/installation": "a"}}}
    assert await site.is_refused("request nodes", "PATCH", f"{PLACEHOLDERS}/target", marks)
    await site.api.delete("serving.kserve.io/v1alpha1", "LocalModelCache", None, "theirs")


CONTAINER, POD = "/spec/template/spec/containers/0", "/spec/template/spec"


@pytest.mark.parametrize(
    ("why", "path", "value"),
    [
        ("100 pods", "/spec/replicas", 101),
        ("one image", f"{CONTAINER}/image", "evil.example/pause:3.10.1"),
        ("one priority", f"{POD}/priorityClassName", "system-cluster-critical"),
        ("one image", f"{POD}/containers/1", {"name": "b", "image": "registry.k8s.io/pause:3.10.1"}),
        ("no volumes", f"{POD}/volumes", [{"name": "v", "secret": {"secretName": "s"}}]),
        ("no volumes", f"{POD}/volumes", [{"name": "v", "hostPath": {"path": "/"}}]),
        ("no volumes", f"{POD}/initContainers", [{"name": "i", "image": "registry.k8s.io/pause:3.10.1"}]),
        ("no pull secrets", f"{POD}/imagePullSecrets", [{"name": "s"}]),
        ("their host", f"{POD}/hostNetwork", True),
        ("their host", f"{POD}/hostPID", True),
        ("no account", f"{POD}/serviceAccountName", "vllm-autoscaler"),
        ("no account", f"{POD}/automountServiceAccountToken", True),
        ("no variables", f"{CONTAINER}/envFrom", [{"secretRef": {"name": "s"}}]),
        ("no variables", f"{CONTAINER}/env", [{"name": "A", "value": "b"}]),
        ("no variables", f"{CONTAINER}/command", ["sh"]),
        ("no variables", f"{CONTAINER}/args", ["-c"]),
        ("no variables", f"{CONTAINER}/lifecycle", {"postStart": {"httpGet": {"host": "a.example", "port": 80}}}),
        ("no variables", f"{CONTAINER}/livenessProbe", {"httpGet": {"host": "a.example", "port": 80}}),
        ("no variables", f"{CONTAINER}/securityContext/allowPrivilegeEscalation", None),
    ],
)  # fmt: skip
async def test_placeholders_run_nothing_else(site: Site, why: str, path: str, value: Any) -> None:
    async with Kube.using(site.api.configuration(site.user), 10.0) as kube:
        await requester_of(kube, NodeRequestKind.PLACEHOLDER).reconcile((PlaceRequest(LLAMA, 1, NEEDS),))
    patch = [{"op": "add", "path": path, "value": value}]
    if value is None:
        patch = [{"op": "remove", "path": path}]
    assert await site.is_refused(why, "PATCH", f"{PLACEHOLDERS}/{PLACEHOLDER}", patch, JSON)


def scale_policy(**variables: str) -> dict[str, Any]:
    """Return the policy on counts with other expressions for some of its variables, as its comment says."""
    policy = only(rendered("direct"), "ValidatingAdmissionPolicy", "vllm-autoscaler-scale")
    for each in policy["spec"]["variables"]:
        each["expression"] = variables.get(each["name"], each["expression"])
    return policy


async def test_named_system_namespace_may_be_scaled(site: Site) -> None:
    await site.api.apply(scale_policy(allowed="['kube-system']"))

    async def is_allowed() -> bool:
        return not await site.is_refused("", *scale("kube-system"))

    await eventually(is_allowed, "the policy is in force")
    assert await site.is_refused("scales nothing", *scale("vllm-autoscaler"))
    await site.api.apply(scale_policy())
    await in_force(site)


async def test_namespaces_opt_in_when_the_policy_names_a_label(site: Site) -> None:
    await site.api.apply(scale_policy(label="'vllm-autoscaler.io/scale'"))
    why = "only in namespaces with the label vllm-autoscaler.io/scale=enabled"
    await eventually(lambda: site.is_refused(why, *scale("@")), "the policy is in force")

    async def is_refused_with(value: str) -> bool:
        labels = {"labels": {"vllm-autoscaler.io/scale": value}}
        await site.api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": site.namespace, **labels}})
        return await site.is_refused(why, *scale("@"))

    assert await is_refused_with("disabled")

    async def is_allowed() -> bool:
        return not await is_refused_with("enabled")

    await eventually(is_allowed, "the API server knows the label")
    await is_refused_with("disabled")
    await site.api.apply(scale_policy())

    async def is_back() -> bool:
        return not await site.is_refused("", *scale("@"))

    await eventually(is_back, "the policy that ships is in force")


async def test_counts_can_be_changed_when_the_policies_were_reinstalled(site: Site) -> None:
    """An API server reads the parameters of a policy no more after their last binding was away for a second.

    Without one it would refuse counts of every namespace that is new since, of our account and of all others.
    """
    group = "admissionregistration.k8s.io/v1"
    names = "vllm-autoscaler-deployments", "vllm-autoscaler-statefulsets"
    plain = scale("@", name="plain")

    async def are_away() -> bool:
        return not await site.is_refused("", *plain)

    try:
        for name in names:
            await site.api.delete(group, "ValidatingAdmissionPolicyBinding", None, name)
        await eventually(are_away, "the policies are away")
        shipped = rendered("direct")
        await site.api.apply(*(only(shipped, "ValidatingAdmissionPolicyBinding", name) for name in names))
        await eventually(lambda: site.is_refused("only what has the annotation", *plain), "the policies are back")
        later = site._replace(namespace=await site.api.namespace())
        await site.api.apply(deployment("target"), namespace=later.namespace)
        await later.send(*scale("@"))
        await later.send(*scale("@"), user=site.api.admin)
    finally:
        async with site.api.outage():
            pass  # it reads parameters again
