"""The Helm chart: equal to the manifests by default, accepted by a real API server, and strict about its values."""

import json
import re
import shlex
import tarfile
import tomllib
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml
from click.testing import CliRunner

from autoscaler.cli.main import main
from autoscaler.cli.run import run
from autoscaler.config.quotas import load_quotas
from tests.harness.helm import CHART, HelmFailed, helm, template, template_text
from tests.harness.kube_api import ApiError, KubeApi
from tests.kustomize import Document, render
from tests.test_manifests import MANIFESTS, OVERLAYS, SHIPPED_POLICIES, container, only, rendered
from tools import helm_schema

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[1]
DEFAULTS = yaml.safe_load((CHART / "values.yaml").read_text())
EXAMPLES = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "how-to" / "helm.md").read_text(), re.DOTALL)
OF_HELM = {"app.kubernetes.io/instance", "app.kubernetes.io/managed-by", "app.kubernetes.io/version", "helm.sh/chart"}
DIGEST = f"sha256:{'0' * 64}"

VARIANTS: dict[str, dict[str, Any]] = {
    "a registry, a tag and a secret": {
        "image": {"repository": "registry.example:5000/ml/scaler", "tag": "1.2", "pullSecrets": ["registry.key"]}
    },
    "a digest": {"image": {"digest": DIGEST, "pullPolicy": "Always"}},
    "pods read directly": {"prometheus": {"url": ""}, "replicas": 3},
    "both sources of metrics": {"scrape": True, "prometheus": {"selector": 'cluster="prod"'}},
    "policies": {
        "policies": {"gold": {"objective": {"ttft": "300ms", "attainment": 0.995}, "priority": 1000000}},
        "defaultPolicy": "gold",
    },
    "limits of namespaces": {"namespaceLimits": [{"name": "team-*", "maxPriority": 500, "maxMinReplicas": 2}]},
    "some namespaces": {"namespaces": ["@", "default"]},
    "some namespaces without nodes": {"namespaces": ["@"], "rbac": {"nodes": False}},
    "all namespaces without nodes": {"rbac": {"nodes": False}},
    "a system namespace": {"systemNamespaces": ["kube-ml"]},
    "no admission policies": {"rbac": {"admissionPolicies": False, "podDeletionCost": True}, "requestNodes": "auto"},
    "all further rights": {
        "rbac": {"localModels": True, "podDeletionCost": True},
        "requestNodes": "placeholder",
        "extraArgs": ["--placeholder-image=registry.example/pause:1"],
    },
    "further kinds of targets": {"targetKinds": ["rollouts.argoproj.io", "nodesets.slinky.slurm.net"]},
    "further kinds in a namespace": {"namespaces": ["@"], "targetKinds": ["rollouts.argoproj.io"]},
    "quotas": {"quotas": [
        {"name": "research", "namespaces": ["research-*"], "cohort": "all", "label": "team=r"}
        | {"resources": [{"name": "nvidia.com/gpu", "nominal": 8, "borrowingLimit": 4, "lendingLimit": 2}]}
    ]},
    "quotas of Kueue": {"rbac": {"kueue": True}},
    "quotas of Kueue without nodes": {"rbac": {"kueue": True, "nodes": False}},
    "quotas of Kueue in a namespace": {"namespaces": ["@"], "rbac": {"kueue": True}},
    "quotas of Kueue in a namespace without nodes": {"namespaces": ["@"], "rbac": {"kueue": True, "nodes": False}},
    "models of KServe": {"rbac": {"localModels": True}},
    "Datasets of Fluid": {"rbac": {"datasets": True}},
    "dry-run in a namespace": {"mode": "dry-run", "namespaces": ["@"]},
    "KEDA over TLS": {
        "mode": "keda",
        "keda": {"namespace": "keda-system", "service": {"port": 443, "headless": True}}
        | {"tls": {"secretName": "grpc.tls", "verifyClient": True}},
    },
    "a service of another kind": {"service": {"type": "NodePort", "port": 80, "annotations": {"a.example/b": "c"}}},
    "other networks": {
        "networkPolicy": {
            "prometheusNamespace": "observability",
            "apiServerPorts": [8443],
            "extraIngress": [{"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}],
            "extraEgress": [{"to": [{"ipBlock": {"cidr": "192.0.2.1/32"}}], "ports": [{"port": 9090}]}],
        }
    },
    "nothing that can be left out": {
        "networkPolicy": {"enabled": False},
        "podDisruptionBudget": {"enabled": False},
        "rbac": {"create": False},
        "serviceAccount": {"create": False, "name": "given"},
        "monitoring": {"enabled": False, "dashboard": {"enabled": False}},
    },
    "monitoring by label": {
        "monitoring": {"labels": {"release": "kube-prometheus-stack"}, "interval": "30s", "rules": False}
    },
    "an identity of a cloud": {"serviceAccount": {"name": "scaler", "annotations": {"iam.example/role": "arn:1"}}},
    "where its pods run": {
        "nodeSelector": {"pool": "system"},
        "tolerations": [{"key": "system", "operator": "Exists"}],
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"a": "b"}}}
        ]}},
        "topologySpreadConstraints": [{"maxSkew": 2, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}],
        "priorityClassName": "system-cluster-critical",
        "runAsUser": None,
        "resources": {"limits": {"memory": "2Gi", "cpu": 4}},
    },
    "labels and annotations": {
        "labels": {"team": "a"},
        "annotations": {"a.example/b": "c"},
        "podLabels": {"inject": "false"},
        "podAnnotations": {"d.example/e": "f"},
    },
    "weights of its own namespace": {
        "weights": {
            "enabled": True,
            "hostPath": "/mnt/k8s-disks/0/weights",
            "namespace": "@",
            "createNamespace": False,
            "extraArgs": ["--max-bytes=800GB"],
            "extraEnv": [{"name": "AWS_REGION", "value": "eu-west-1"}],
            "extraEgress": [{"ports": [{"port": 9000}]}],
            "resources": {"limits": {"memory": "2Gi"}},
            "serviceAccountAnnotations": {"iam.example/role": "arn:2"},
            "nodeSelector": {"gpu": "true"},
            "affinity": {"nodeAffinity": {}},
            "tolerations": [{"operator": "Exists"}],
            "webhook": {"replicas": 3, "compileCache": True, "annotations": {"a.example/b": "c"}},
        },
        "image": {"repository": "registry.example/x", "pullSecrets": ["registry"]},
    },
    "weights with a certificate of another program": {
        "weights": {"enabled": True, "namespace": "@", "createNamespace": False, "webhook": {"ownCertificate": False}}
    },
    "weights without the webhook": {
        "weights": {"enabled": True, "namespace": "@", "createNamespace": False, "webhook": {"enabled": False}}
    },
    "more options": {
        "extraArgs": ["--log-level=debug", "--prometheus-token-file=/token/token"],
        "extraEnv": [{"name": "TZ", "value": "UTC"}],
        "extraVolumes": [{"name": "token", "secret": {"secretName": "token"}}],
        "extraVolumeMounts": [{"name": "token", "mountPath": "/token"}],
    },
}  # fmt: skip
BAD_VALUES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "an unknown value": ({"modee": "keda"}, ["'modee'", "not allowed"]),
    "an unknown value inside": ({"image": {"name": "x"}}, ["/image", "'name'", "not allowed"]),
    "a mode with a typo": ({"mode": "dryrun"}, ["/mode", "'direct', 'keda', 'dry-run'"]),
    "a port that is too large": ({"service": {"port": 70000}}, ["/service/port", "70,000", "65,535"]),
    "a port of KEDA that is zero": ({"keda": {"service": {"port": 0}}}, ["/keda/service/port", "minimum"]),
    "no replicas": ({"replicas": 0}, ["/replicas", "minimum", "1"]),
    "replicas as text": ({"replicas": "2"}, ["/replicas", "got string", "integer"]),
    "a tag that is a number": ({"image": {"tag": 1.2}}, ["/image/tag", "got number, want string"]),
    "a tag with a colon": ({"image": {"tag": "a:b"}}, ["/image/tag", "does not match pattern"]),
    "a digest that is cut": ({"image": {"digest": "sha256:00"}}, ["/image/digest", "does not match pattern"]),
    "a URL without a scheme": ({"prometheus": {"url": "prometheus:9090"}}, ["/prometheus/url", "does not match"]),
    "a namespace that is no name": ({"namespaces": ["Team A"]}, ["/namespaces/0", "'Team A' does not match"]),
    "a kind of target without a group": ({"targetKinds": ["rollouts"]}, ["/targetKinds/0", "does not match"]),
    "a namespace twice": ({"namespaces": ["a", "a"]}, ["/namespaces", "equal"]),
    "a memory limit in MB": ({"resources": {"limits": {"memory": "1 MB"}}}, ["/resources/limits/memory", "match"]),
    "a switch as text": ({"rbac": {"create": "yes"}}, ["/rbac/create", "got string, want boolean"]),
    "no mode": ({"mode": None}, ["missing property", "'mode'"]),
    "an option that has a value of its own": ({"extraArgs": ["--mode=keda"]}, ["/extraArgs/0", "not"]),
    "an option without dashes": ({"extraArgs": ["log-level=debug"]}, ["/extraArgs/0", "does not match"]),
    "a quota's field with a typo": (
        {"quotas": [{"name": "a", "namespaces": ["a"], "resources": [{"name": "nvidia.com/gpu", "nominl": 1}]}]},
        ["/quotas/0/resources/0", "'nominl'"],
    ),
    "a policy's field with a typo": ({"policies": {"gold": {"objectiv": {}}}}, ["/policies/gold", "'objectiv'"]),
    "a policy's number out of bounds": (
        {"policies": {"gold": {"replicas": {"max": 0}}}},
        ["/policies/gold/replicas/max", "minimum"],
    ),
    "a policy's duration without a unit": (
        {"policies": {"gold": {"objective": {"ttft": "300"}}}},
        ["/policies/gold/objective/ttft", "does not match"],
    ),
    "a folder of the nodes that is relative": ({"weights": {"hostPath": "mnt"}}, ["/weights/hostPath", "match"]),
    "a folder of the nodes that leads up": ({"weights": {"hostPath": "/mnt/../etc"}}, ["/weights/hostPath", "not"]),
    "an option of agents that the chart sets": (
        {"weights": {"extraArgs": ["--root=/x"]}}, ["/weights/extraArgs/0", "not"]
    ),
    "no webhook replicas": ({"weights": {"webhook": {"replicas": 0}}}, ["/weights/webhook/replicas", "minimum"]),
    "a limit of a namespace with a typo": (
        {"namespaceLimits": [{"name": "team-*", "maxPriorit": 5}]},
        ["/namespaceLimits/0", "'maxPriorit'"],
    ),
}  # fmt: skip


def of_helm_removed(value: Any) -> Any:
    """Return a document without the labels that only Helm adds, wherever labels or a selector hold them."""
    if isinstance(value, dict):
        return {key: of_helm_removed(inner) for key, inner in value.items() if key not in OF_HELM}
    if isinstance(value, list):
        return [of_helm_removed(inner) for inner in value]
    return value


def by_name(documents: list[Document]) -> dict[tuple[str, str, str], Document]:
    keys = [(each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"]) for each in documents]
    assert len(set(keys)) == len(keys)
    return dict(zip(keys, documents, strict=True))


def in_namespace(values: Any, namespace: str) -> Any:
    return json.loads(json.dumps(values).replace('"@"', json.dumps(namespace)))


@pytest.mark.parametrize("mode", OVERLAYS)
def test_by_default_the_chart_is_what_kustomize_applies(mode: str):
    ours = by_name([of_helm_removed(each) for each in template({"mode": mode})])
    theirs = by_name([each for each in rendered(mode) if each["kind"] != "Namespace"])
    assert ours.keys() == theirs.keys()
    for key, document in theirs.items():
        assert ours[key] == document, key


@pytest.mark.parametrize(
    ("kubernetes", "own_node", "is_added"),
    [("1.35.9", None, False), ("1.36.0-gke.1", None, True), ("1.35.9", True, True), ("1.36.0", False, False)],
)
def test_weights_of_the_chart_are_what_kustomize_applies(kubernetes: str, own_node: bool | None, is_added: bool):
    off = by_name(template())
    values = {"weights": {"enabled": True, "ownNode": own_node}}
    on = by_name([of_helm_removed(each) for each in template(values, kubernetes=kubernetes)])
    ours = {key: document for key, document in on.items() if key not in off}
    base = render(MANIFESTS / "weights" / "base")
    agents = render(MANIFESTS / "weights" / "own-node", base) if is_added else base
    theirs = by_name([*agents, *render(MANIFESTS / "weights" / "monitoring")])
    assert ours.keys() == theirs.keys()
    for key, document in theirs.items():
        assert ours[key] == document, key


def test_admission_policies_limit_the_accounts_of_the_release():
    values: dict[str, Any] = VARIANTS["all further rights"] | {"namespaces": ["team"], "systemNamespaces": ["kube-ml"]}
    documents = template(values | {"weights": {"enabled": True, "namespace": "disks"}}, release="blue", namespace="ml")
    name = "blue-vllm-autoscaler"
    specs = {
        each["metadata"]["name"]: each["spec"] for each in documents if each["kind"] == "ValidatingAdmissionPolicy"
    }
    bindings = [each for each in documents if each["kind"] == "ValidatingAdmissionPolicyBinding"]
    assert {each["spec"]["policyName"] for each in bindings} == specs.keys()
    limited = {each.removeprefix("ml-"): spec for each, spec in specs.items() if not each.endswith("-namespaces")}
    users = {each: spec["matchConditions"][0]["expression"].partition("== ")[2] for each, spec in limited.items()}
    daemon = f"'system:serviceaccount:ml:{name}'"
    parts = ("deployments", "localmodels", "prewarm", "scale", "shrink", "statefulsets", "wishes", "writes")
    assert users == {f"{name}-weights": f"'system:serviceaccount:disks:{name}-weights'"} | {
        f"{name}-{part}": daemon for part in parts
    }
    variables = {each["name"]: each["expression"] for spec in limited.values() for each in spec.get("variables", ())}
    assert variables["own"] == "['ml', 'disks']" and variables["allowed"] == "['team', 'kube-ml']"
    assert variables["lease"] == f"'{name}'" and variables["image"] == "'registry.example/pause:1'"
    assert variables["priorityClass"] == f"'{name}-placeholder'"
    assert "--system-namespace=kube-ml" in container_of(documents, name)["args"]
    none = template(values | {"rbac": {"admissionPolicies": False, "localModels": True, "podDeletionCost": True}})
    assert not [each for each in none if each["kind"].startswith("ValidatingAdmission")]


def container_of(documents: list[Document], name: str) -> dict[str, Any]:
    found: dict[str, Any] = only(documents, "Deployment", name)["spec"]["template"]["spec"]["containers"][0]
    return found


def test_counts_are_narrowed_as_the_values_say():
    policies = {
        each["metadata"]["name"]: each["spec"]
        for each in template({"rbac": {"annotatedOnly": False, "namespaceLabel": "a.example/scale"}})
        if each["kind"] == "ValidatingAdmissionPolicy"
    }
    assert {"vllm-autoscaler-deployments", "vllm-autoscaler-statefulsets"}.isdisjoint(policies)
    assert {"name": "label", "expression": "'a.example/scale'"} in policies["vllm-autoscaler-scale"]["variables"]


def test_sources_of_weights_reach_all_who_judge_them():
    sources = {"allowSources": ["s3://models/**"], "privateSources": ["hf://org/*=team-a,team-b"]}
    documents = template({"weights": {"enabled": True, **sources}})
    for kind, name, options in (
        ("DaemonSet", "vllm-autoscaler-weights", ("allow-source", "private-source")),
        ("Deployment", "vllm-autoscaler-webhook", ("private-source",)),
        ("Deployment", "vllm-autoscaler", ("weights-allow-source", "weights-private-source")),
    ):
        args = only(documents, kind, name)["spec"]["template"]["spec"]["containers"][0]["args"]
        stated = [each for each in args if "-source=" in each]
        values = {"allow": sources["allowSources"][0], "private": sources["privateSources"][0]}
        assert stated == [f"--{each}={values[each.split('-')[-2]]}" for each in options]


def test_weights_of_another_release_name_its_own_objects():
    values = {"weights": {"enabled": True, "namespace": "disks"}}
    documents = template(values, release="blue", namespace="ml")
    name = "blue-vllm-autoscaler"
    compiles = template({"weights": {"enabled": True, "webhook": {"compileCache": True}}})
    given = only(compiles, "Deployment", "vllm-autoscaler-webhook")["spec"]["template"]["spec"]["containers"][0]["args"]
    main.commands["webhook"].make_context("webhook", given[1:])
    assert "--compile-cache" in given
    agent = only(documents, "DaemonSet", f"{name}-weights")
    assert agent["metadata"]["namespace"] == "disks"
    arguments = agent["spec"]["template"]["spec"]["containers"][0]["args"]
    assert {"--namespace=ml", f"--peer-service=disks/{name}-weights"} <= set(arguments)
    policy = only(documents, "ValidatingAdmissionPolicy", f"{name}-weights")["spec"]
    assert f"'system:serviceaccount:disks:{name}-weights'" in policy["matchConditions"][0]["expression"]
    assert (
        only(documents, "ValidatingAdmissionPolicyBinding", f"{name}-weights")["spec"]["policyName"]
        == f"{name}-weights"
    )
    only(documents, "Namespace", "disks")
    only(documents, "PriorityClass", agent["spec"]["template"]["spec"]["priorityClassName"])
    (webhook,) = only(documents, "MutatingWebhookConfiguration", name)["webhooks"]
    service = only(documents, "Service", webhook["clientConfig"]["service"]["name"])
    assert service["metadata"]["namespace"] == webhook["clientConfig"]["service"]["namespace"] == "ml"
    deployment = only(documents, "Deployment", f"{name}-webhook")
    assert deployment["spec"]["template"]["metadata"]["labels"].items() >= service["spec"]["selector"].items()
    given = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    assert {f"--secret={name}-webhook", f"--service={name}-webhook"} <= set(given)
    job = only(documents, "Job", f"{name}-trust")["spec"]["template"]["spec"]
    assert job["containers"][0]["args"] == ["webhook", "--trust", f"--secret={name}-webhook", f"--configuration={name}"]
    main.commands["webhook"].make_context("webhook", job["containers"][0]["args"][1:])
    accounts = {
        (each["metadata"]["namespace"], each["metadata"]["name"])
        for each in documents
        if each["kind"] == "ServiceAccount"
    }
    for binding in [each for each in documents if "roleRef" in each]:
        only(documents, binding["roleRef"]["kind"], binding["roleRef"]["name"])
        assert {(each["namespace"], each["name"]) for each in binding["subjects"]} <= accounts


async def test_notes_say_how_pods_use_the_weights(kube_api: KubeApi):
    """Another test may have made the namespace of the weights, which this release then takes over."""

    def notes(*values: str) -> str:
        said = helm(
            "install", "noted", CHART, "--dry-run=client", "--take-ownership", *values, kubeconfig=kube_api.kubeconfig()
        )
        return said.partition("NOTES:")[2]

    assert "kubectl label namespace <namespace> vllm-autoscaler.io/weights=enabled" in notes(
        "--set=weights.enabled=true"
    )
    assert "weights" not in notes()


@pytest.mark.parametrize("mode", OVERLAYS)
def test_lint_finds_nothing(mode: str):
    assert "0 chart(s) failed" in helm("lint", "--strict", CHART, "--set", f"mode={mode}")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def prepared(shared_kube_api: KubeApi) -> str:
    """A namespace in a cluster that knows the kinds of the Prometheus operator."""
    await shared_kube_api.install_crds()
    return await shared_kube_api.namespace()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def taken(shared_kube_api: KubeApi, prepared: str) -> list[Document]:
    """Documents of the defaults, which a real API server takes."""
    documents = template(namespace=prepared)
    await shared_kube_api.apply(*documents, dry_run=True)
    return documents


@pytest.mark.parametrize("name", VARIANTS)
async def test_a_real_api_server_takes_every_variant(
    kube_api: KubeApi, prepared: str, taken: list[Document], name: str
):
    documents = template(in_namespace(VARIANTS[name], prepared), namespace=prepared)
    await kube_api.apply(*(each for each in documents if each not in taken), dry_run=True)
    command, *arguments = container(documents)["args"]
    assert command == "run"
    options = {name for option in run.params for name in (*option.opts, *option.secondary_opts)}
    assert {argument.partition("=")[0] for argument in arguments} <= options
    run.make_context("run", [argument for argument in arguments if "=/" not in argument])  # but for files


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def parameters_are_read(shared_kube_api: KubeApi) -> None:
    """A binding that stays. With the last one, an API server would stop reading parameters, for later tests, too."""
    group = "admissionregistration.k8s.io/v1"
    for kind in ("Deployment", "StatefulSet"):
        name = f"reads-{kind.lower()}s"
        rule = {"apiGroups": ["a.example"], "apiVersions": ["*"], "resources": ["nothing"], "operations": ["*"]}
        spec = {
            "failurePolicy": "Ignore",
            "paramKind": {"apiVersion": "apps/v1", "kind": kind},
            "matchConstraints": {"resourceRules": [rule]},
            "validations": [{"expression": "true"}],
        }
        binding = {
            "policyName": name,
            "validationActions": ["Deny"],
            "paramRef": {"selector": {}, "parameterNotFoundAction": "Allow"},
        }
        for made, of in (("ValidatingAdmissionPolicy", spec), ("ValidatingAdmissionPolicyBinding", binding)):
            await shared_kube_api.apply({"apiVersion": group, "kind": made, "metadata": {"name": name}, "spec": of})


@pytest.mark.usefixtures("parameters_are_read")
async def test_a_release_is_installed_changed_and_taken_away(kube_api: KubeApi, prepared: str):
    """With a real cluster the kinds of the Prometheus operator are looked up there."""
    namespace = prepared
    kubeconfig = kube_api.kubeconfig()
    release = f"r-{namespace}"
    options = ("--namespace", namespace)
    notes = helm("install", release, CHART, *options, kubeconfig=kubeconfig)
    assert "annotate --overwrite deployment" in notes
    name = f"{release}-vllm-autoscaler"
    await kube_api.get("monitoring.coreos.com/v1", "PodMonitor", namespace, name)
    deployment = await kube_api.get("apps/v1", "Deployment", namespace, name)
    assert f"--lease-name={name}" in deployment["spec"]["template"]["spec"]["containers"][0]["args"]

    notes = helm("upgrade", release, CHART, *options, "--set", "mode=keda", kubeconfig=kubeconfig)
    assert f"scalerAddress: {name}-keda.{namespace}:6000" in notes
    await kube_api.get("v1", "Service", namespace, f"{name}-keda")

    helm("uninstall", release, *options, kubeconfig=kubeconfig)
    for version, kind, where, own in (
        ("apps/v1", "Deployment", namespace, name),
        ("v1", "ConfigMap", namespace, f"{name}-policies"),
        ("rbac.authorization.k8s.io/v1", "ClusterRole", None, name),
    ):
        with pytest.raises(ApiError, match="404"):
            await kube_api.get(version, kind, where, own)


@pytest.mark.usefixtures("parameters_are_read")
async def test_helm_takes_over_what_kustomize_applied(kube_api: KubeApi, prepared: str):
    applied = rendered("keda")
    await kube_api.apply(*applied)
    name = "vllm-autoscaler"
    await kube_api.delete("apps/v1", "Deployment", name, name)
    options = ("--namespace", name)
    kubeconfig = kube_api.kubeconfig()
    helm("install", name, CHART, *options, "--take-ownership", "--set", "mode=direct", kubeconfig=kubeconfig)
    (role,) = [each for each in template({"mode": "direct"}) if each["kind"] == "ClusterRole"]
    found = await kube_api.get(role["apiVersion"], role["kind"], None, name)
    assert found["rules"] == role["rules"]
    helm("uninstall", name, *options, kubeconfig=kubeconfig)


@pytest.mark.parametrize("problem", BAD_VALUES)
def test_a_bad_value_is_named_by_the_schema(problem: str):
    values, words = BAD_VALUES[problem]
    with pytest.raises(HelmFailed) as caught:
        template(values)
    assert [word for word in ["values don't meet the specifications", *words] if word not in str(caught.value)] == []


def test_an_account_that_is_not_created_needs_its_name():
    with pytest.raises(HelmFailed, match=r"serviceAccount\.name is needed where serviceAccount\.create is false"):
        template({"serviceAccount": {"create": False}})


def test_topology_spread_selects_the_pods_of_the_release():
    zone = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    other = zone | {"labelSelector": {"matchLabels": {"a": "b"}}}
    pod = only(template({"topologySpreadConstraints": [zone, other]}), "Deployment")["spec"]["template"]
    ours, theirs = pod["spec"]["topologySpreadConstraints"]
    assert ours == zone | {"labelSelector": {"matchLabels": pod["metadata"]["labels"]}}
    assert theirs == other


def test_every_value_has_a_default_and_a_schema():
    schema = json.loads((CHART / "values.schema.json").read_text())

    def keys(properties: dict[str, Any], prefix: str = "") -> set[str]:
        found = set()
        for key, inner in properties.items():
            found |= {f"{prefix}{key}"} | keys(inner.get("properties", {}), f"{prefix}{key}.")
        return found

    def defaults(values: dict[str, Any], prefix: str = "") -> set[str]:
        found = set()
        for key, inner in values.items():
            found |= {f"{prefix}{key}"} | (defaults(inner, f"{prefix}{key}.") if isinstance(inner, dict) else set())
        return found

    amounts = {f"{prefix}resources.{kind}" for prefix in ("", "weights.") for kind in ("requests", "limits")}
    left_out = {"global", *amounts}  # Helm's own, and what differs from the manifests
    free = {"monitoring.dashboard.labels.grafana_dashboard"}
    assert keys(schema["properties"]) - left_out == defaults(DEFAULTS) - free


def test_alerts_on_capacity_have_the_limits_of_the_values():
    limits = {"minutes": 12.5, "poolUse": 0.65, "days": 7}
    rules = only(template({"monitoring": {"capacity": limits}}), "PrometheusRule", "vllm-autoscaler")["spec"]["groups"]
    assert rules[-1]["name"] == "vllm-autoscaler-capacity"
    lacking, full, ceiling = (rule["expr"] for rule in rules[-1]["rules"])
    assert "> 750" in lacking and "> 750" in ceiling
    assert full.count("[7d]") == 2 and "> 0.65" in full and "[30d]" not in full
    assert "within 7 days" in rules[-1]["rules"][1]["annotations"]["summary"]


def test_the_schema_of_policies_is_that_of_the_daemon():
    text = helm_schema.TARGET.read_text()
    assert text == helm_schema.render(text), "run: python -m tools.helm_schema"


def test_the_schema_takes_every_shipped_policy():
    policies = [yaml.safe_load(path.read_text()) for path in sorted(SHIPPED_POLICIES.glob("*.yaml"))]
    specs = {policy["metadata"]["name"]: policy["spec"] for policy in policies}
    data = only(template({"policies": specs}), "ConfigMap", "vllm-autoscaler-policies")["data"]
    assert [yaml.safe_load(text) for _, text in sorted(data.items())] == policies


def test_check_reads_the_policies_of_a_rendered_release():
    values = {"policies": {"gold": {"objective": {"ttft": "300ms"}}, "batch": {"objective": {"ttft": "2h"}}}}
    result = CliRunner().invoke(main, ["check", "-"], input=template_text(values))
    assert result.exit_code == 1
    assert "vllm-autoscaler-policies/batch.yaml:7: error: spec.objective.ttft: too large" in result.output
    assert "gold" not in result.output


def test_check_holds_manifests_against_limits_of_a_release():
    values = {"namespaceLimits": [{"name": "team-*", "maxPriority": 400}]}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": "chat",
            "namespace": "team-a",
            "annotations": {"vllm-autoscaler.io/policy": "realtime"},
        },
    }
    result = CliRunner().invoke(main, ["check", "-"], input=f"{template_text(values)}---\n{yaml.safe_dump(deployment)}")
    assert result.exit_code == 1
    assert "found 1000 of the policy realtime; allowed: at most 400" in result.output


def test_daemon_reads_the_quotas_of_a_rendered_release(tmp_path: Path):
    values = VARIANTS["quotas"]
    documents = template(values)
    text = only(documents, "ConfigMap", "vllm-autoscaler-quotas")["data"]["quotas.yaml"]
    (tmp_path / "quotas.yaml").write_text(text)
    assert [quota.name for quota in load_quotas(tmp_path / "quotas.yaml")] == ["research"]
    (mount,) = [each for each in container(documents)["volumeMounts"] if each["name"] == "quotas"]
    assert f"--quotas={mount['mountPath']}/quotas.yaml" in container(documents)["args"]


def test_image_is_named_by_tag_or_digest():
    def image(**values: str) -> str:
        return str(container(template({"image": values}))["image"])

    assert (
        image(repository="r.example/x")
        == f"r.example/x:{yaml.safe_load((CHART / 'Chart.yaml').read_text())['appVersion']}"
    )
    assert image(repository="r.example/x", tag="2") == "r.example/x:2"
    assert image(repository="r.example/x", tag="2", digest=DIGEST) == f"r.example/x@{DIGEST}"


def test_versions_of_package_manifests_and_chart_are_one():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == chart["version"] == version
    assert container(rendered("direct"))["image"] == f"vllm-autoscaler:{version}"


def test_a_release_of_another_name_selects_its_own_pods_alone():
    documents = template({"mode": "keda"}, release="blue")
    pods = [
        only(documents, "Deployment", f"blue-vllm-autoscaler{part}")["spec"]["template"]["metadata"]["labels"]
        for part in ("", "-stand-in")
    ]
    for kind, way in {
        "Service": ["selector"],
        "Deployment": ["selector", "matchLabels"],
        "NetworkPolicy": ["podSelector", "matchLabels"],
        "PodMonitor": ["selector", "matchLabels"],
        "PodDisruptionBudget": ["selector", "matchLabels"],
    }.items():
        for document in documents:
            if document["kind"] == kind:
                selector = document["spec"]
                for step in way:
                    selector = selector[step]
                selected = [labels for labels in pods if selector.items() <= labels.items()]
                assert selector["app.kubernetes.io/instance"] == "blue"
                assert len(selected) == (
                    2 if document["metadata"]["name"].endswith("-keda") and kind == "Service" else 1
                )
    lease = only(documents, "Role", "blue-vllm-autoscaler-lease")
    assert lease["rules"][1]["resourceNames"] == ["blue-vllm-autoscaler"]


def test_an_override_of_the_name_names_every_object():
    documents = template({"mode": "keda", "fullnameOverride": "scaler", "namespaces": ["a"]})
    names = {each["metadata"]["name"] for each in documents}
    parts = {"", "-keda", "-stand-in", "-lease", "-policies", "-dashboard"}
    wide = {f"vllm-autoscaler-scaler-{part}" for part in ("nodes", "status-reader", "writes")}
    assert names == {f"scaler{part}" for part in parts} | wide


@pytest.mark.parametrize(
    ("mode", "verbs"), [("direct", {"list", "watch", "get", "patch"}), ("keda", {"list", "watch"})]
)
def test_further_kinds_get_the_rights_of_the_mode(mode: str, verbs: set[str]):
    documents = template({"mode": mode, "targetKinds": ["rollouts.argoproj.io"]})
    role = next(each for each in documents if each["kind"] == "ClusterRole")
    rules = [rule for rule in role["rules"] if rule["apiGroups"] == ["argoproj.io"]]
    assert {verb for rule in rules for verb in rule["verbs"]} == verbs
    assert {name for rule in rules for name in rule["resources"]} <= {"rollouts", "rollouts/scale"}
    kinds = [each for each in container(documents)["args"] if each.startswith("--target-kind")]
    assert kinds == [
        f"--target-kind={name}" for name in ("leaderworkersets.leaderworkerset.x-k8s.io", "rollouts.argoproj.io")
    ]


@pytest.mark.parametrize(("mode", "granted"), [("direct", True), ("keda", True), ("dry-run", False)])
@pytest.mark.parametrize("namespaces", [[], ["a"]])
def test_pods_are_patched_only_with_the_value_for_it(mode: str, granted: bool, namespaces: list[str]):
    def patched(**rbac: bool) -> bool:
        documents = template({"mode": mode, "namespaces": namespaces, "rbac": rbac})
        kind = "Role" if namespaces else "ClusterRole"
        roles = [each for each in documents if each["kind"] == kind and "lease" not in each["metadata"]["name"]]
        rules = [rule for role in roles for rule in role["rules"] if "pods" in rule["resources"]]
        return any("patch" in rule["verbs"] for rule in rules)

    assert patched(podDeletionCost=True) == granted
    assert not patched()


@pytest.mark.parametrize(("mode", "written"), [("direct", True), ("keda", True), ("dry-run", False)])
@pytest.mark.parametrize("namespaces", [[], ["a"]])
def test_models_of_kserve_are_read_only_with_the_value_for_it(mode: str, written: bool, namespaces: list[str]):
    def verbs(**rbac: bool) -> set[str]:
        documents = template({"mode": mode, "namespaces": namespaces, "rbac": rbac})
        roles = [each for each in documents if each["kind"] == "ClusterRole"]
        rules = [rule for role in roles for rule in role["rules"] if "localmodelcaches" in rule["resources"]]
        return {verb for rule in rules for verb in rule["verbs"]}

    assert verbs(localModels=True) == {"list", "watch"} | ({"create", "patch", "delete"} if written else set())
    assert verbs() == set()


@pytest.mark.parametrize("namespaces", [[], ["a"]])
def test_datasets_are_read_only_with_the_value_for_it(namespaces: list[str]):
    def rules(**rbac: bool) -> list[dict]:
        documents = template({"namespaces": namespaces, "rbac": rbac})
        roles = [each for each in documents if each["kind"] == "ClusterRole"]
        return [rule for role in roles for rule in role["rules"] if "datasets" in rule["resources"]]

    granted = {"apiGroups": ["data.fluid.io"], "resources": ["datasets"], "verbs": ["list", "watch"]}
    assert rules(datasets=True) == [granted]
    assert rules() == []


@pytest.mark.parametrize(("mode", "granted"), [("direct", True), ("keda", True), ("dry-run", False)])
def test_nodes_are_requested_only_with_the_value_for_it(mode: str, granted: bool):
    documents = template({"mode": mode, "requestNodes": "auto", "fullnameOverride": "blue"})
    found = {each["kind"]: each["metadata"] for each in documents if "blue-p" in each["metadata"]["name"]}
    args = only(documents, "Deployment", "blue")["spec"]["template"]["spec"]["containers"][0]["args"]
    assert ("--request-nodes=auto" in args) == granted
    if granted:
        assert found["Role"]["name"] == found["RoleBinding"]["name"] == "blue-prewarm"
        assert only(documents, "Role", "blue-prewarm")["rules"][-1]["resourceNames"] == ["blue-prewarm"]
        assert found["PriorityClass"]["name"] == "blue-placeholder" and "namespace" not in found["PriorityClass"]
        assert "--lease-name=blue" in args, "the daemon names the class after its lease"
    documents = template({"mode": mode})
    assert "PriorityClass" not in {each["kind"] for each in documents}
    assert not any("request-nodes" in each for each in container(documents)["args"])


def test_only_nodes_and_own_names_are_read_beside_namespaces():
    documents = template({"namespaces": ["a", "b"]})
    (role,) = [each for each in documents if each["kind"] == "ClusterRole"]
    names, *_ = role["rules"]
    assert names.pop("resourceNames") == ["a", "b"]
    assert role["rules"] == [
        {"apiGroups": [""], "resources": ["namespaces"], "verbs": ["list", "watch"]},
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch"]},
        {"apiGroups": ["karpenter.sh"], "resources": ["nodepools"], "verbs": ["list", "watch"]},
        {"apiGroups": ["resource.k8s.io"], "resources": ["deviceclasses"], "verbs": ["list", "watch"]},
        {"apiGroups": ["resource.k8s.io"], "resources": ["resourceslices"], "verbs": ["list", "watch"]},
    ]
    bound = [each for each in documents if each["kind"] == "RoleBinding" and "lease" not in each["metadata"]["name"]]
    assert {each["metadata"]["namespace"] for each in bound} == {"a", "b", "kube-system"}
    assert all(each["roleRef"]["kind"] == "Role" for each in bound)
    every = next(each for each in template() if each["kind"] == "ClusterRole")["rules"]
    for namespace in ("a", "b"):
        own = by_name(documents)["Role", namespace, "vllm-autoscaler"]
        assert sorted(map(json.dumps, [*own["rules"], *role["rules"]])) == sorted(map(json.dumps, every))
    arguments = container(documents)["args"]
    assert [each for each in arguments if each.startswith("--namespace")] == ["--namespace=a", "--namespace=b"]


def test_grpc_over_tls_has_the_secret_of_the_values():
    values = {"mode": "keda", "keda": {"tls": {"secretName": "grpc", "verifyClient": True}}}
    documents = template(values)
    folder = "/etc/vllm-autoscaler/grpc"
    options = {f"--grpc-cert={folder}/tls.crt", f"--grpc-key={folder}/tls.key", f"--grpc-ca={folder}/ca.crt"}
    assert options <= set(container(documents)["args"])
    (mount,) = [each for each in container(documents)["volumeMounts"] if each["mountPath"] == folder]
    volumes = only(documents, "Deployment")["spec"]["template"]["spec"]["volumes"]
    assert {"name": mount["name"], "secret": {"secretName": "grpc"}} in volumes


def test_without_the_prometheus_operator_its_kinds_are_left_out():
    text = helm("template", "vllm-autoscaler", CHART)
    kinds = {document["kind"] for document in yaml.safe_load_all(text) if document}
    assert not kinds & {"PodMonitor", "PrometheusRule"}
    assert "Deployment" in kinds


def test_a_package_holds_what_the_folder_renders(tmp_path: Path):
    helm("package", CHART, "--destination", tmp_path)
    (package,) = tmp_path.glob("*.tgz")
    with tarfile.open(package) as archive:
        assert all(member.isfile() for member in archive.getmembers())
        assert not [name for name in archive.getnames() if name.endswith("kustomization.yaml")]
    assert template(chart=package) == template()


@pytest.mark.parametrize("example", range(len(EXAMPLES)))
def test_examples_of_values_in_the_docs_render(example: int):
    assert template(yaml.safe_load(EXAMPLES[example]))


def test_every_helm_command_of_the_docs_renders():
    commands = [
        command.replace("\\\n", " ")
        for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
        for command in re.findall(r"^ +helm (?:install|upgrade) ((?:.*\\\n)*.*)$", page.read_text(), re.MULTILINE)
    ]
    assert len(commands) > 3
    for command in commands:
        arguments = [each for each in shlex.split(command) if each not in ("--install", "--reuse-values")]
        assert helm("template", *(str(CHART) if each.endswith(".tgz") else each for each in arguments))
