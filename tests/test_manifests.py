"""The manifests that ship: accepted by a real API server, in step with command line, policies and metrics."""

import copy
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from autoscaler.adapters.web.exported_metrics import FAMILIES, KEDA
from autoscaler.cli.keda_stand_in import keda_stand_in
from autoscaler.cli.main import main
from autoscaler.cli.run import run
from autoscaler.config.policy.parse import shipped
from autoscaler.config.promql import parse_query
from autoscaler.core.gpu_use import GpuState
from tests.harness.kube_api import ApiError, KubeApi
from tests.harness.process import FRUGAL, require_binary
from tests.kustomize import Document, render

MANIFESTS = Path(__file__).parents[1] / "manifests"
OVERLAYS = ["direct", "dry-run", "keda"]
SHIPPED_POLICIES = shipped()
SELECTOR = {"app.kubernetes.io/name": "vllm-autoscaler"}
STAND_IN = "vllm-autoscaler-stand-in"


def rendered(overlay: str) -> list[Document]:
    """Render with kubectl where it is present, else with our own part of kustomize. A test may change the result."""
    return copy.deepcopy(rendered_once(overlay))


@cache
def rendered_once(overlay: str) -> list[Document]:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        return render(MANIFESTS / overlay)
    return list(yaml.safe_load_all(kustomized(kubectl, MANIFESTS / overlay)))


def kustomized(kubectl: str, overlay: Path) -> str:
    command = [kubectl, "kustomize", str(overlay)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def only(documents: list[Document], kind: str, name: str = "vllm-autoscaler") -> Document:
    (found,) = [each for each in documents if each["kind"] == kind and each["metadata"]["name"] == name]
    return found


def container(documents: list[Document]) -> dict[str, Any]:
    found: dict[str, Any] = only(documents, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    return found


@pytest.mark.integration
@pytest.mark.parametrize("overlay", OVERLAYS)
async def test_every_overlay_is_accepted_with_strict_validation(kube_api: KubeApi, overlay: str):
    await kube_api.install_crds()
    documents = rendered(overlay)
    applied = await kube_api.apply(*documents)
    assert [each["kind"] for each in applied] == [each["kind"] for each in documents]
    await kube_api.apply(*documents)  # and again, as an upgrade does


@pytest.mark.integration
@pytest.mark.parametrize("overlay", OVERLAYS)
async def test_the_pod_passes_restricted_pod_security(kube_api: KubeApi, overlay: str):
    documents = rendered(overlay)
    await kube_api.apply(only(documents, "Namespace"), only(documents, "ServiceAccount"))
    template = only(documents, "Deployment")["spec"]["template"]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"trial-{overlay}", "labels": template["metadata"]["labels"]},
        "spec": template["spec"],
    }
    await kube_api.apply(pod, namespace="vllm-autoscaler", dry_run=True)
    template["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
    with pytest.raises(ApiError, match="violates PodSecurity"):
        await kube_api.apply(pod, namespace="vllm-autoscaler", dry_run=True)


@pytest.mark.integration
async def test_disruption_budget_allows_drains_one_ready_pod_at_a_time(kube_api: KubeApi, namespace: str):
    """With a right missing, say, no replica is ever ready; the disruption controller then counts none as healthy."""
    template = only(rendered("direct"), "Deployment")["spec"]["template"]
    budget = only(rendered("direct"), "PodDisruptionBudget")
    await kube_api.apply(budget | {"metadata": {"name": "budget"}}, namespace=namespace)
    for name, ready in (("broken", "False"), ("well", "True")):
        spec = {"containers": [{"name": "c", "image": "i"}], "nodeName": "node-1"}
        metadata = {"name": name, "labels": template["metadata"]["labels"]}
        await kube_api.apply(
            {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}, namespace=namespace
        )
        status = {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]}
        await kube_api.set_status("v1", "Pod", namespace, name, status)
    counts = {"currentHealthy": 0, "desiredHealthy": 1, "expectedPods": 2, "disruptionsAllowed": 0}
    status = {"observedGeneration": 1, **counts}
    await kube_api.set_status("policy/v1", "PodDisruptionBudget", namespace, "budget", status)

    async def evict(name: str) -> None:
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": namespace}}
        await kube_api.request("POST", f"/api/v1/namespaces/{namespace}/pods/{name}/eviction", eviction)

    with pytest.raises(ApiError, match="disruption budget"):
        await evict("well")
    await evict("broken")


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_our_own_rendering_is_that_of_kubectl(overlay: str):
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not there to compare with")
    theirs = list(yaml.safe_load_all(kustomized(kubectl, MANIFESTS / overlay)))

    def sort_key(document: Document) -> tuple[str, str]:
        return document["kind"], document["metadata"]["name"]

    assert sorted(render(MANIFESTS / overlay), key=sort_key) == sorted(theirs, key=sort_key)


@pytest.mark.slow
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_arguments_are_those_of_the_command_line(overlay: str, tmp_path: Path):
    command, *arguments = container(rendered(overlay))["args"]
    assert command == "run"
    arguments = [argument.replace("/etc/vllm-autoscaler/policies", str(SHIPPED_POLICIES)) for argument in arguments]
    arguments = [argument.replace("/var/lib/vllm-autoscaler", str(tmp_path)) for argument in arguments]
    parsed = run.make_context("run", arguments).params
    assert parsed["mode"] == overlay
    assert parsed["prometheus"].startswith("http://")
    assert parsed["policies"] == (SHIPPED_POLICIES,)
    assert parsed["lease"] is (overlay != "dry-run")
    assert parsed["state"] == tmp_path / "state.npz"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_only_the_state_volume_is_writable(overlay: str):
    documents = rendered(overlay)
    mounts = {mount["name"]: mount for mount in container(documents)["volumeMounts"] if not mount.get("readOnly")}
    assert [mount["mountPath"] for mount in mounts.values()] == ["/var/lib/vllm-autoscaler"]
    volumes = {
        volume["name"]: volume for volume in only(documents, "Deployment")["spec"]["template"]["spec"]["volumes"]
    }
    assert "emptyDir" in volumes[next(iter(mounts))]


def test_the_environment_names_an_option_that_exists():
    (variable,) = container(rendered("direct"))["env"]
    prefix = f"{main.context_settings['auto_envvar_prefix']}_RUN_"
    assert variable["name"].removeprefix(prefix).lower() in {option.name for option in run.params}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_container_is_confined_and_bounded(overlay: str):
    documents = rendered(overlay)
    security = container(documents)["securityContext"]
    assert security["readOnlyRootFilesystem"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert only(documents, "Deployment")["spec"]["template"]["spec"]["securityContext"]["runAsNonRoot"]
    resources = container(documents)["resources"]
    assert {"cpu", "memory"} == resources["requests"].keys() == resources["limits"].keys()


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_whatever_selects_pods_selects_these(overlay: str):
    documents = rendered(overlay)
    deployment = only(documents, "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert labels.items() >= SELECTOR.items()
    ports = {port["name"] for port in container(documents)["ports"]}
    for document in documents:
        spec = document.get("spec", {})
        match document["kind"]:
            case "Service":
                assert spec["selector"].items() <= labels.items()
                assert {port["targetPort"] for port in spec["ports"]} <= ports
            case "NetworkPolicy":
                selected = spec["podSelector"]["matchLabels"].items()
                assert selected <= labels.items() or document["metadata"]["name"] == STAND_IN
            case "PodMonitor":
                assert spec["selector"]["matchLabels"].items() <= labels.items()
                assert {endpoint["port"] for endpoint in spec["podMetricsEndpoints"]} <= ports
            case "PodDisruptionBudget":
                assert spec["selector"]["matchLabels"].items() <= labels.items()


def test_stand_in_answers_beside_the_daemon_without_a_right():
    documents = rendered("keda")
    template = only(documents, "Deployment", STAND_IN)["spec"]["template"]
    labels, pod = template["metadata"]["labels"], template["spec"]
    assert only(documents, "Service", "vllm-autoscaler-keda")["spec"]["selector"].items() <= labels.items()
    assert only(documents, "NetworkPolicy", STAND_IN)["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    assert not SELECTOR.items() <= labels.items()  # what selects the daemon does not select it
    assert pod["automountServiceAccountToken"] is False and "serviceAccountName" not in pod
    (stand_in,), daemon = pod["containers"], container(documents)
    assert stand_in["securityContext"] == daemon["securityContext"] and stand_in["image"] == daemon["image"]
    (port,) = stand_in["ports"]
    assert port in daemon["ports"]
    name, *arguments = stand_in["args"]
    context = keda_stand_in.make_context(name, list(arguments))
    http = only(documents, "Service")
    assert context.params["daemon"] == f"http://{http['metadata']['name']}:{http['spec']['ports'][0]['port']}"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_bindings_name_a_shipped_role_and_the_pod_account(overlay: str):
    documents = rendered(overlay)
    account = only(documents, "Deployment")["spec"]["template"]["spec"]["serviceAccountName"]
    bindings = [document for document in documents if "roleRef" in document]
    assert bindings
    for binding in bindings:
        only(documents, binding["roleRef"]["kind"], binding["roleRef"]["name"])
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": "vllm-autoscaler"}]


def test_only_direct_mode_has_write_access_to_scale():
    writing = {}
    for overlay in OVERLAYS:
        roles = [document for document in rendered(overlay) if document["kind"] in ("Role", "ClusterRole")]
        writing[overlay] = {
            resource
            for role in roles
            for rule in role["rules"]
            if set(rule["verbs"]) - {"get", "list", "watch"}
            for resource in rule["resources"]
        }
    scales = {"deployments/scale", "statefulsets/scale", "leaderworkersets/scale"}
    assert writing == {"direct": scales | {"events", "leases"}, "keda": {"events", "leases"}, "dry-run": set()}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_rights_of_one_mode_take_the_place_of_another_s(overlay: str):
    wide = [each for each in rendered(overlay) if each["kind"] in ("ClusterRole", "ClusterRoleBinding")]
    assert {(each["kind"], each["metadata"]["name"]) for each in wide} == {
        ("ClusterRole", "vllm-autoscaler"),
        ("ClusterRoleBinding", "vllm-autoscaler"),
    }


def test_prometheus_keeps_the_namespace_of_a_workload():
    (endpoint,) = only(rendered("direct"), "PodMonitor")["spec"]["podMetricsEndpoints"]
    assert endpoint["honorLabels"]
    of_the_operator = {"namespace", "pod", "container", "endpoint", "job", "instance"}
    assert of_the_operator & {label for family in (*FAMILIES, *KEDA) for label in family.labels} == {"namespace"}


def test_the_policies_of_the_config_map_are_the_shipped_ones():
    data = only(rendered("direct"), "ConfigMap", "vllm-autoscaler-policies")["data"]
    assert data == {path.name: path.read_text() for path in SHIPPED_POLICIES.glob("*.yaml")}


TARGET = {"namespace", "pod", "job", "instance"}  # labels that a scrape adds


@cache
def exported() -> dict[str, set[str]]:
    """Return the labels of each series that Prometheus may hold of us, by its name."""
    labels = dict[str, set[str]]()
    for family in (*FAMILIES, *KEDA):
        own = {*family.labels} | TARGET
        parts = {"_bucket": own | {"le"}, "_sum": own, "_count": own} if family.type == "histogram" else {"": own}
        labels |= {f"{family.full_name}{part}": found for part, found in parts.items()}
    return labels


def labels_of(node: Any, used: set[str]) -> set[str]:
    """Return the labels that the result of an expression has. used: names of series are added."""
    kind = type(node).__name__
    if kind == "VectorSelector":
        used.add(node.name)
        found = exported()[node.name]
        for matcher in node.matchers.matchers:
            assert matcher.name in found, f"{node.name} has no label {matcher.name}"
            if matcher.name == "state" and "gpu_" in node.name:
                assert {*matcher.value.split("|")} <= {state.published for state in GpuState}
        return found
    if kind == "AggregateExpr":
        inner, by = labels_of(node.expr, used), {*getattr(node.modifier, "labels", ())}
        assert by <= inner, f"{node}: {by - inner} is no label of it"
        return by
    if kind == "BinaryExpr":
        left, right = labels_of(node.lhs, used), labels_of(node.rhs, used)
        modifier = node.modifier
        on = {*getattr(getattr(modifier, "matching", None), "labels", ())}
        added = {*(getattr(modifier, "group_labels", None) or ())}
        both = left & right
        assert on <= both and added <= right, f"{node}: both sides have {both}, the right one {right}"
        return (left or right) | added  # one side may be a number
    inner = [getattr(node, part) for part in ("expr", "vector_selector") if hasattr(node, part)]
    return set[str]().union(*(labels_of(part, used) for part in (*inner, *getattr(node, "args", ()))))


def expressions() -> Iterator[tuple[str, str, set[str]]]:
    """Yield name and expression of each alert and panel, and the labels that its words show."""
    for group in rules()["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"], {*re.findall(r"\$labels\.(\w+)", str(rule["annotations"]))}
    dashboard = json.loads((MANIFESTS / "monitoring" / "vllm-autoscaler.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"], {*re.findall(r"{{(\w+)}}", target.get("legendFormat", ""))}
    for variable in dashboard["templating"]["list"][1:]:  # the first chooses a server
        parts = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
        assert parts, variable["name"]
        yield variable["name"], parts[1], {parts[2]}


def test_alerts_and_dashboard_use_exported_series_and_labels():
    used = set[str]()
    for name, expression, shown in expressions():
        found = labels_of(parse_query(expression), used)
        assert shown <= found, f"{name}: {shown - found} is no label of its result"
    assert len(used) > 30


def test_dashboard_panels_have_numbers_of_their_own_and_queries():
    dashboard = json.loads((MANIFESTS / "monitoring" / "vllm-autoscaler.json").read_text())
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert all(panel["targets"] for panel in panels if panel["type"] != "row")
    assert "vector(" not in json.dumps(panels)  # what is not known is not drawn as zero


def test_dashboard_panels_show_only_the_chosen_installations():
    dashboard = json.loads((MANIFESTS / "monitoring" / "vllm-autoscaler.json").read_text())
    names = [variable["name"] for variable in dashboard["templating"]["list"]]
    assert names.index("installation") < names.index("pod") < names.index("namespace")
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            assert re.search(r'pod=~"\$pod"|installation=~"\$installation"', target["expr"]), panel["title"]


def rules() -> dict[str, Any]:
    spec: dict[str, Any] = yaml.safe_load((MANIFESTS / "monitoring" / "rules.yaml").read_text())["spec"]
    return spec


@pytest.mark.integration
def test_the_alerts_fire_on_what_they_are_for_and_only_then(tmp_path: Path):
    promtool = require_binary("promtool", "apt-get install prometheus")
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules()))

    def firing(series: dict[str, str], *alerts: str, after: str = "1h") -> dict[str, Any]:
        """Say that with these series exactly the named alerts fire after an hour, or another time."""
        return {
            "interval": "15s",
            "input_series": [{"series": name, "values": values} for name, values in series.items()],
            "promql_expr_test": [
                {
                    "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                    "eval_time": after,
                    "exp_samples": [{"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in alerts],
                }
            ],
        }

    pool = 'resource="nvidia.com/gpu",product="H100",nodes=""'

    def pool_in_use(serving: int, idle: int, after: str, fires: bool) -> dict[str, Any]:
        """Say whether a pool with this many busy and idle GPUs counts as full after a time."""
        rows = {"serving": serving, "free": idle // 2, "headroom": idle - idle // 2}
        series = {
            f'vllm_autoscaler_pool_gpu_seconds_total{{{pool},pod="a",state="{state}"}}': f"0+{900 * gpus}x120"
            for state, gpus in rows.items()
        }
        hour = {name: values.replace("300", "120").replace("0+15x", "0+900x") for name, values in good.items()}
        case = firing(hour | series, *["VllmAutoscalerPoolFull"] * fires, after=after)
        return case | {"interval": "15m"}

    up = 'vllm_autoscaler_info{mode="direct",pod="a"}'
    good = {
        up: "1x300",
        'vllm_autoscaler_leader{pod="a"}': "1x300",
        'vllm_autoscaler_leader{pod="b"}': "0x300",
        'vllm_autoscaler_last_tick_timestamp_seconds{pod="a"}': "0+15x300",
    }
    other = {  # another installation, in a namespace of its own
        'vllm_autoscaler_info{mode="direct",namespace="team",pod="a"}': "1x300",
        'vllm_autoscaler_leader{namespace="team",pod="a",installation="team/own"}': "1x300",
        'vllm_autoscaler_last_tick_timestamp_seconds{namespace="team",pod="a"}': "0+15x300",
    }
    workload = 'namespace="ns",workload="llama",kind="Deployment",pod="a"'
    cases = [
        firing(good),
        firing({}, "VllmAutoscalerDown"),
        firing(dict.fromkeys(good, "1x100 stale"), "VllmAutoscalerDown"),
        firing(good | dict.fromkeys(other, "1x100 stale"), "VllmAutoscalerDown"),
        firing(good | {'vllm_autoscaler_leader{pod="c",installation="ns/two"}': "1x100 stale"}, "VllmAutoscalerDown"),
        firing(good | {'vllm_autoscaler_leader{pod="b"}': "0x100 stale"}),  # one replica of two is enough
        firing(good | {'vllm_autoscaler_leader{pod="a"}': "0x300"}, "VllmAutoscalerNobodyLeads"),
        firing(good | {'vllm_autoscaler_leader{pod="b"}': "1x300"}, "VllmAutoscalerTwoLead"),
        firing(good | other),
        firing(good | {'vllm_autoscaler_leader{pod="c",installation="team/own"}': "1x300"}),
        firing(good | {'vllm_autoscaler_leader{namespace="team",pod="a"}': "0x300"}, "VllmAutoscalerNobodyLeads"),
        firing(
            good | other | {'vllm_autoscaler_leader{namespace="team",pod="b",installation="team/own"}': "1x300"},
            "VllmAutoscalerTwoLead",
        ),
        firing(
            good | other | {'vllm_autoscaler_last_tick_timestamp_seconds{namespace="team",pod="a"}': "0x300"},
            "VllmAutoscalerStalled",
        ),
        firing(
            good
            | {
                'vllm_autoscaler_leader{pod="d"}': "1x300",
                'vllm_autoscaler_info{mode="dry-run",pod="d"}': "1x300",
            }
        ),
        firing(
            good | {'vllm_autoscaler_last_tick_timestamp_seconds{pod="a"}': "0x300"},
            "VllmAutoscalerStalled",
        ),
        firing(good | {'vllm_autoscaler_ticks_total{result="failed",pod="a"}': "0+1x300"}, "VllmAutoscalerTicksFail"),
        firing(
            good
            | {
                'vllm_autoscaler_ticks_total{result="ok",pod="a"}': "0+3x300",
                'vllm_autoscaler_late_ticks_total{pod="a"}': "0+2x300",
                'vllm_autoscaler_ticks_total{result="ok",pod="b"}': "0+3x300",
                'vllm_autoscaler_late_ticks_total{pod="b"}': "0+1x300",
            },
            "VllmAutoscalerLate",
        ),
        firing(
            good
            | {
                'vllm_autoscaler_source_failures_total{source="prometheus",pod="a"}': "0+4x300",
                'vllm_autoscaler_source_queries_total{source="prometheus",pod="a"}': "0+5x300",
                'vllm_autoscaler_source_failures_total{source="prometheus",pod="b"}': "0x300",
                'vllm_autoscaler_source_queries_total{source="prometheus",pod="b"}': "0+25x300",
            },
            "VllmAutoscalerSourceFails",
        ),
        firing(good | {'vllm_autoscaler_policy_problems{pod="a"}': "1x300"}, "VllmAutoscalerPolicyProblem"),
        firing(
            good | {'vllm_autoscaler_changes_total{outcome="conflict",direction="up",pod="a"}': "0+1x300"},
            "VllmAutoscalerScalingFails",
        ),
        firing(good | {'vllm_autoscaler_untrusted_workloads{pod="a"}': "2x300"}, "VllmAutoscalerInputsMissing"),
        firing(
            good | {f'vllm_autoscaler_other_owner{{{workload},owner="HorizontalPodAutoscaler/x"}}': "1x300"},
            "VllmAutoscalerOtherOwner",
        ),
        firing(good | {f"vllm_autoscaler_problem{{{workload}}}": "1x300"}, "VllmAutoscalerWorkloadProblem"),
        firing(
            good | {'vllm_autoscaler_keda_unknown_scaled_objects{pod="a"}': "2x300"},
            "VllmAutoscalerUnknownScaledObject",
        ),
        firing(
            good | {f"vllm_autoscaler_blocked_replicas{{{workload}}}": "1x300"},
            "VllmAutoscalerReplicasBlocked",
        ),
        *(
            firing(good | {f"vllm_autoscaler_gpu_diagnosis_replicas{{{workload},{state}}}": "2x300"}, *alerts)
            for state, *alerts in (
                ('diagnosis="idle_and_loaded",witness="counters"', "VllmAutoscalerGpusIdleOrStuck"),
                ('diagnosis="stuck",witness="counters"', "VllmAutoscalerGpusIdleOrStuck"),
                ('diagnosis="idle_and_loaded",witness="gpu_util"',),
                ('diagnosis="busy",witness="counters"',),
            )
        ),
        firing(
            good
            | {
                'vllm_autoscaler_pool_gpus{resource="nvidia.com/gpu",product="H100",pod="a"}': "8x300",
                'vllm_autoscaler_pool_desired_gpus{resource="nvidia.com/gpu",product="H100",pod="a"}': "8x300",
                f"vllm_autoscaler_recommended_replicas{{{workload}}}": "9x300",
                f"vllm_autoscaler_desired_replicas{{{workload}}}": "8x300",
            },
            "VllmAutoscalerPoolShort",
        ),
        firing(
            good
            | {
                f"vllm_autoscaler_ttft_seconds{{{workload}}}": "2x300",
                f"vllm_autoscaler_ttft_objective_seconds{{{workload}}}": "1x300",
            },
            "VllmAutoscalerObjectiveMissed",
        ),
        firing(
            good
            | {
                f"vllm_autoscaler_missed_requests_ratio{{{workload}}}": "0.02x300",
                f"vllm_autoscaler_error_budget_ratio{{{workload}}}": "0.01x300",
            },
            "VllmAutoscalerErrorBudgetBurnt",
        ),
        firing(
            good
            | {
                f"vllm_autoscaler_missed_requests_ratio{{{workload}}}": "0.01x300",
                f"vllm_autoscaler_error_budget_ratio{{{workload}}}": "0.05x300",
            }
        ),
        *(
            firing(good | {f"vllm_autoscaler_{name}_duration_seconds_total{{{workload},{pool}}}": values}, *alerts)
            for name, values, *alerts in (
                ("lacking_gpus", "0+15x300", "VllmAutoscalerGpusLacking"),
                ("lacking_gpus", "0+15x60 900x240"),
                ("ceiling", "0+15x300", "VllmAutoscalerCeilingReached"),
                ("ceiling", "0+15x60 900x240"),
            )
        ),
        *(pool_in_use(*each) for each in ((90, 10, "26h", True), (90, 10, "2h", False), (70, 30, "26h", False))),
    ]
    (tmp_path / "test.yaml").write_text(
        yaml.safe_dump({"rule_files": ["rules.yaml"], "evaluation_interval": "3m", "tests": cases})
    )
    command = [promtool, "test", "rules", "test.yaml"]
    done = subprocess.run(command, cwd=tmp_path, env=FRUGAL, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
