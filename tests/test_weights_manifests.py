"""The manifests of weights: accepted by a real API server, in step with each other, and with no right too many."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest
import pytest_asyncio
import yaml

from autoscaler.adapters.clock import SystemClock
from autoscaler.adapters.kubernetes.agent.node import KubeNode
from autoscaler.adapters.kubernetes.agent.peers import AgentDirectory
from autoscaler.adapters.kubernetes.api.client import ApiError as KubeError
from autoscaler.adapters.kubernetes.api.client import Kube
from autoscaler.catalog.node_labels import PRODUCT_LABELS
from autoscaler.cli.main import main
from autoscaler.config.weights.report import ANNOTATION, LABEL_PREFIX, ModelReport, Report, State, label_of
from autoscaler.config.weights.source import parse
from autoscaler.config.weights.wishes import CONFIG_MAP_PREFIX, CONFIG_MAPS, Wish, Wishes, config_map_of, encode
from tests.adapters.kubernetes.world import running
from tests.harness.kube_api import ApiError, KubeApi, User, granted
from tests.harness.process import eventually, require_binary
from tests.kustomize import Document, render
from tests.test_manifests import kustomized, only

WEIGHTS = Path(__file__).parents[1] / "manifests" / "weights"
OVERLAYS = ["aks", "base", "eks", "gke"]
PARTS = [*OVERLAYS, "monitoring"]
AGENT, WEBHOOK, DAEMON = "vllm-autoscaler-weights", "vllm-autoscaler-webhook", "vllm-autoscaler"
NODE_PATCH = "application/apply-patch+yaml"


def rendered(overlay: str) -> list[Document]:
    return copy.deepcopy(rendered_once(overlay))


@cache
def rendered_once(overlay: str) -> list[Document]:
    return render(WEIGHTS / overlay)


def pod_spec(documents: list[Document], kind: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = only(documents, kind, name)["spec"]["template"]["spec"]
    return found


@pytest_asyncio.fixture
async def installed(kube_api: KubeApi) -> AsyncIterator[KubeApi]:
    """An API server with the manifests."""
    daemon = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": DAEMON}}
    await kube_api.apply(daemon, *rendered("base"))
    yield kube_api
    configuration = only(rendered("base"), "MutatingWebhookConfiguration")
    await kube_api.delete(configuration["apiVersion"], configuration["kind"], None, DAEMON)


@pytest.mark.parametrize("overlay", PARTS)
def test_our_own_rendering_is_that_of_kubectl(overlay: str) -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not there to compare with")
    theirs = list(yaml.safe_load_all(kustomized(kubectl, WEIGHTS / overlay)))

    def sort_key(document: Document) -> str:
        return json.dumps([document["kind"], document["metadata"]["name"], document["metadata"].get("namespace")])

    assert sorted(rendered(overlay), key=sort_key) == sorted(theirs, key=sort_key)


@pytest.mark.integration
@pytest.mark.parametrize("overlay", PARTS)
async def test_every_overlay_is_accepted_with_strict_validation(installed: KubeApi, overlay: str) -> None:
    await installed.install_crds()
    documents = rendered(overlay)
    applied = await installed.apply(*documents)
    assert [each["kind"] for each in applied] == [each["kind"] for each in documents]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_agents_and_webhook_name_one_folder_of_the_nodes(overlay: str) -> None:
    documents = rendered(overlay)
    agent = pod_spec(documents, "DaemonSet", AGENT)
    (path,) = [each["hostPath"]["path"] for each in agent["volumes"] if "hostPath" in each]
    assert path.endswith("/weights")
    arguments = pod_spec(documents, "Deployment", WEBHOOK)["containers"][0]["args"]
    assert f"--host-path={path}" in arguments
    (image,) = [each.partition("=")[2] for each in arguments if each.startswith("--image=")]
    assert {image} == {spec["containers"][0]["image"] for spec in (agent, pod_spec(documents, "Deployment", WEBHOOK))}


@pytest.mark.integration
async def test_agent_breaks_the_standards_by_nothing_but_its_folder(kube_api: KubeApi) -> None:
    spec = pod_spec(rendered("base"), "DaemonSet", AGENT)
    del spec["priorityClassName"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "agent"}, "spec": spec}
    for standard, allowed in (("privileged", True), ("baseline", False)):
        namespace = await kube_api.namespace(labels={"pod-security.kubernetes.io/enforce": standard})
        if allowed:
            await kube_api.apply(pod, namespace=namespace, dry_run=True)
        else:
            with pytest.raises(ApiError, match=r'hostPath volumes \(volume \\"weights\\"\)'):
                await kube_api.apply(pod, namespace=namespace, dry_run=True)
    spec["volumes"] = [{"name": each["name"], "emptyDir": {}} for each in spec["volumes"]]
    await kube_api.apply(pod, namespace=namespace, dry_run=True)
    security = spec["containers"][0]["securityContext"]
    security |= {"runAsUser": 65532, "runAsGroup": 65532, "runAsNonRoot": True}
    strict = await kube_api.namespace(labels={"pod-security.kubernetes.io/enforce": "restricted"})
    await kube_api.apply(pod, namespace=strict, dry_run=True)


@pytest.mark.integration
async def test_webhook_meets_the_restricted_standard(kube_api: KubeApi) -> None:
    spec = pod_spec(rendered("base"), "Deployment", WEBHOOK)
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "webhook"}, "spec": spec}
    namespace = await kube_api.namespace(labels={"pod-security.kubernetes.io/enforce": "restricted"})
    await kube_api.apply(pod, namespace=namespace, dry_run=True)


def test_arguments_are_those_of_the_command_line() -> None:
    documents = rendered("base")
    for kind, name, command in (("DaemonSet", AGENT, ["weights", "agent"]), ("Deployment", WEBHOOK, ["webhook"])):
        given = pod_spec(documents, kind, name)["containers"][0]["args"]
        arguments = [each.replace("$(NODE_NAME)", "node-1") for each in given]
        assert arguments[: len(command)] == command
        found: click.Command = main
        for word in command:
            assert isinstance(found, click.Group)
            found = found.commands[word]
        found.make_context(name, arguments[len(command) :])


def test_agents_run_on_every_kind_of_node_with_gpus() -> None:
    affinity = pod_spec(rendered("base"), "DaemonSet", AGENT)["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    labels = {expression["key"] for term in terms for expression in term["matchExpressions"]}
    others = {"cloud.google.com/gke-tpu-accelerator", "karpenter.k8s.aws/instance-accelerator-name"}
    assert set(PRODUCT_LABELS) - others <= labels


def test_selectors_select_the_pods_and_ports_of_their_object() -> None:
    documents = rendered("base")
    for kind, name in (("DaemonSet", AGENT), ("Deployment", WEBHOOK)):
        template = only(documents, kind, name)["spec"]["template"]
        labels = template["metadata"]["labels"]
        ports = {each["name"] for each in template["spec"]["containers"][0]["ports"]}
        assert only(documents, kind, name)["spec"]["selector"]["matchLabels"] == labels
        service = only(documents, "Service", name)["spec"]
        assert service["selector"] == labels
        assert {each["targetPort"] for each in service["ports"]} <= ports
        policy = only(documents, "NetworkPolicy", name)["spec"]
        assert policy["podSelector"]["matchLabels"] == labels
        assert {each["port"] for rule in policy["ingress"] for each in rule["ports"]} <= ports


def test_bindings_name_shipped_roles_and_accounts() -> None:
    documents = rendered("base")
    accounts = {
        (each["metadata"]["namespace"], each["metadata"]["name"])
        for each in documents
        if each["kind"] == "ServiceAccount"
    }
    for binding in [each for each in documents if each["kind"] in ("RoleBinding", "ClusterRoleBinding")]:
        only(documents, binding["roleRef"]["kind"], binding["roleRef"]["name"])
        subjects = {(each["namespace"], each["name"]) for each in binding["subjects"]}
        assert subjects <= accounts | {(DAEMON, DAEMON)}


@pytest.mark.parametrize("name", ["vllm-autoscaler-wishes", "vllm-autoscaler-wish-writer"])
def test_rights_to_wishes_are_those_to_their_config_maps(name: str) -> None:
    role = only(rendered("base"), "Role", name)
    (names,) = [rule["resourceNames"] for rule in role["rules"] if rule["verbs"] != ["create"]]
    assert names == [f"{CONFIG_MAP_PREFIX}{number:02d}" for number in range(CONFIG_MAPS)]
    assert config_map_of("node-1") in names


@pytest.mark.integration
def test_alerts_fire_on_what_they_are_for_and_only_then(tmp_path: Path) -> None:
    promtool = require_binary("promtool", "apt-get install prometheus")
    rules = only(rendered("monitoring"), "PrometheusRule", AGENT)["spec"]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules))
    alerts = sorted(rule["alert"] for rule in rules["groups"][0]["rules"])
    expiry = 'vllm_autoscaler_webhook_certificate_expiry_timestamp_seconds{namespace="a",pod="b"}'
    model = 'vllm_autoscaler_weights_agent_model{key="k",source="hf://a/b@main",'
    good = {expiry: f"{60 * 86400}x300", f'{model}state="ready"}}': "1x300"}
    cases: list[tuple[dict[str, str], str]] = [
        (good, ""),
        (good | {expiry: f"{5 * 86400}x300"}, "VllmAutoscalerWebhookCertificate"),
        (good | {expiry: "0x300"}, "VllmAutoscalerWebhookCertificate"),
        (good | {f'{model}state="failed",cause="denied",node="n"}}': "1x300"}, "VllmAutoscalerWeightsFailed"),
        (
            good | {'vllm_autoscaler_weights_agent_problem{node="n",cause="disk"}': "1x300"},
            "VllmAutoscalerWeightsProblem",
        ),
    ]
    tests = [
        {
            "interval": "30s",
            "input_series": [{"series": name, "values": values} for name, values in series.items()],
            "promql_expr_test": [
                {
                    "expr": f'count by (alertname) (ALERTS{{alertname="{alert}", alertstate="firing"}})',
                    "eval_time": "2h",
                    "exp_samples": [{"labels": f'{{alertname="{alert}"}}', "value": 1}] if alert == fires else [],
                }
                for alert in alerts
            ],
        }
        for series, fires in cases
    ]
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "tests": tests}))
    command = [promtool, "test", "rules", str(tmp_path / "tests.yaml")]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


# An agent changes its own node alone, and there only its own labels and annotations.


@pytest_asyncio.fixture
async def agent(installed: KubeApi) -> User:
    """The user of an agent on the node `node-a`; `node-b` is another."""
    for name in ("node-a", "node-b"):
        labels = {"kubernetes.io/hostname": name, f"{LABEL_PREFIX}{'0' * 16}": "ready"}
        await installed.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}})
    spec = {"containers": [{"name": "c", "image": "i"}], "serviceAccountName": AGENT, "nodeName": "node-a"}
    metadata = {"name": "agent", "namespace": AGENT}
    (pod,) = await installed.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    bound = {"kind": "Pod", "apiVersion": "v1", "name": "agent", "uid": pod["metadata"]["uid"]}
    user = await token(installed, {"boundObjectRef": bound})

    async def is_limited() -> bool:
        try:
            await change(installed, user, "node-b", metadata={"labels": READY})
        except ApiError as error:
            return "the node alone that it runs on" in str(error)
        return False

    await eventually(is_limited, "the policy is in force")
    await installed.knows_rights(user, AGENT, *roles_of_agent())
    return user


def roles_of_agent() -> list[Document]:
    documents = rendered("base")
    named = [("ClusterRole", AGENT), ("Role", AGENT), ("Role", "vllm-autoscaler-wishes")]
    return [only(documents, kind, name) for kind, name in named]


async def token(api: KubeApi, spec: dict[str, Any]) -> User:
    answer = await api.request(
        "POST",
        f"/api/v1/namespaces/{AGENT}/serviceaccounts/{AGENT}/token",
        {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600, **spec}},
    )
    return User(f"system:serviceaccount:{AGENT}:{AGENT}", answer["status"]["token"])


async def change(api: KubeApi, user: User, node: str, **fields: Any) -> None:
    metadata = {"name": node, **fields.pop("metadata", {})}
    body = {"apiVersion": "v1", "kind": "Node", "metadata": metadata, **fields}
    await api.request(
        "PATCH",
        f"/api/v1/nodes/{node}",
        body,
        user=user,
        content_type=NODE_PATCH,
        fieldManager="vllm-autoscaler-weights",
        force="true",
    )


@pytest.mark.integration
async def test_rights_of_an_agent_are_those_that_it_uses(installed: KubeApi, agent: User) -> None:
    source = parse("hf://org/model@main")
    metadata = {"name": config_map_of("node-a"), "namespace": DAEMON}
    wished = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"node-a": encode([Wish(source)])}}
    await installed.apply(wished)
    other = {"metadata": {"name": "node-b", "labels": {label_of(source.key): "ready"}}}
    await installed.apply({"apiVersion": "v1", "kind": "Node", **other})
    endpoint = {"addresses": ["10.0.0.2"], "nodeName": "node-b", "conditions": {"ready": True}}
    slices = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "agents", "namespace": AGENT, "labels": {"kubernetes.io/service-name": AGENT}},
        "addressType": "IPv4",
        "endpoints": [endpoint],
        "ports": [{"name": "peers", "port": 8474, "protocol": "TCP"}],
    }
    await installed.apply(slices)
    async with Kube.using(installed.configuration(agent), 10.0) as kube:
        node = KubeNode(kube, SystemClock(), "node-a", DAEMON)

        async def knows() -> bool:
            return node.wishes() is not None and node.used() is not None

        peers = AgentDirectory(kube, SystemClock(), AGENT, AGENT)
        assert await peers.holders(source.key) == ["10.0.0.2:8474"]
        async with running(node):
            await eventually(knows, "wishes and pods are known")
            assert node.wishes() == Wishes((Wish(source),))
            await node.publish(Report({source.key: ModelReport(str(source), State.READY, 7)}))
    labels = (await installed.get("v1", "Node", None, "node-a"))["metadata"]["labels"]
    assert labels[label_of(source.key)] == "ready"
    assert installed.used(agent) == granted(*roles_of_agent())


@pytest.mark.integration
async def test_agent_of_own_node_reads_no_pod_elsewhere(installed: KubeApi, agent: User) -> None:
    bindings = [each for each in render(WEIGHTS / "own-node", rendered("base")) if each["kind"].startswith("Cluster")]
    await installed.apply(*bindings)
    llama, qwen = parse("hf://org/llama@main"), parse("hf://org/qwen@main")
    for node, source in (("node-a", llama), ("node-b", qwen)):
        metadata = {"name": f"engine-{node}", "annotations": {"vllm-autoscaler.io/weights": str(source)}}
        spec = {"nodeName": node, "containers": [{"name": "c", "image": "i"}]}
        await installed.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}, namespace=DAEMON)
    async with Kube.using(installed.configuration(agent), 10.0) as kube:
        node = KubeNode(kube, SystemClock(), "node-a", DAEMON, as_node=True)
        async with running(node):

            async def knows() -> bool:
                return node.used() == [llama]

            await eventually(knows, f"the pods of the node are known: {node.outage()}")
            await node.publish(Report({}))
        for reader, query in (
            (kube, [("fieldSelector", "spec.nodeName=node-a")]),
            (kube.impersonating("system:node:node-a"), []),
            (kube.impersonating("system:node:node-a"), [("fieldSelector", "spec.nodeName=node-b")]),
            (kube.impersonating("system:node:node-b"), [("fieldSelector", "spec.nodeName=node-b")]),
        ):
            with pytest.raises(KubeError, match="403"):
                await reader.request("GET", "/api/v1/pods", query=query)
        with pytest.raises(KubeError, match="403"):
            await kube.impersonating("system:node:node-a").request("GET", "/api/v1/nodes/node-a")
    await installed.apply(only(rendered("base"), "ClusterRole", AGENT))


READY = {f"{LABEL_PREFIX}{'1' * 16}": "ready"}


@pytest.mark.integration
async def test_agent_changes_its_labels_and_report(installed: KubeApi, agent: User) -> None:
    await change(installed, agent, "node-a", metadata={"labels": READY, "annotations": {ANNOTATION: "{}"}})
    await change(installed, agent, "node-a")  # and takes them back
    node = await installed.get("v1", "Node", None, "node-a")
    assert READY.keys().isdisjoint(node["metadata"]["labels"])


@pytest.mark.integration
@pytest.mark.parametrize(
    ("node", "fields", "why"),
    [
        ("node-b", {"metadata": {"labels": READY}}, "the node alone that it runs on"),
        ("node-a", {"metadata": {"labels": {"pool": "gold"}}}, "only labels below weights"),
        ("node-a", {"metadata": {"labels": {"kubernetes.io/hostname": "other"}}}, "only labels below weights"),
        ("node-a", {"metadata": {"annotations": {"cluster-autoscaler.kubernetes.io/scale-down-disabled": "true"}}},
         "only annotations below weights"),
        ("node-a", {"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}}, "no taints"),
        ("node-a", {"spec": {"unschedulable": True}}, "no taints"),
        ("node-a", {"metadata": {"finalizers": ["example.com/a"]}}, "finalizers"),
    ],
)  # fmt: skip
async def test_agent_changes_nothing_else(
    installed: KubeApi, agent: User, node: str, fields: dict[str, Any], why: str
) -> None:
    with pytest.raises(ApiError, match=why):
        await change(installed, agent, node, **fields)


@pytest.mark.integration
async def test_token_without_a_node_changes_none(installed: KubeApi, agent: User) -> None:
    with pytest.raises(ApiError, match="the node alone that it runs on"):
        await change(installed, await token(installed, {}), "node-a", metadata={"labels": READY})


@pytest.mark.integration
async def test_node_policy_leaves_others_alone(installed: KubeApi, agent: User) -> None:
    await change(installed, installed.admin, "node-b", metadata={"labels": {"pool": "gold"}})
    for verb, path in (("POST", "/api/v1/nodes"), ("DELETE", "/api/v1/nodes/node-a")):
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-c"}} if verb == "POST" else None
        with pytest.raises(ApiError, match="403"):
            await installed.request(verb, path, body, user=agent)
