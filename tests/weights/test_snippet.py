"""`weights snippet` on a real API server: a Deployment takes it, and keeps what it had."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from autoscaler.cli.main import main
from autoscaler.config.weights.report import READY_LABEL, label_of
from autoscaler.config.weights.source import parse
from tests.harness.kube_api import KubeApi

SOURCE = "hf://meta-llama/Llama-3.1-8B-Instruct@main"
READY = {"key": label_of(parse(SOURCE).key), "operator": "In", "values": [READY_LABEL]}


def snippet(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["weights", "snippet", *arguments])


def printed(*arguments: str) -> dict[str, Any]:
    result = snippet(*arguments)
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = yaml.safe_load(result.stdout)
    return document


def deployment(spec: dict[str, Any]) -> dict[str, Any]:
    labels = {"app": "llama"}
    template = {"metadata": {"labels": labels}, "spec": spec}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "llama"},
        "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template},
    }


@pytest.mark.integration
async def test_a_deployment_takes_the_snippet_and_keeps_the_rest(kube_api: KubeApi, namespace: str) -> None:
    engine = {
        "name": "vllm",
        "image": "vllm/vllm-openai",
        "args": ["--model=meta-llama/Llama-3.1-8B-Instruct"],
        "env": [{"name": "TZ", "value": "UTC"}],
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    spec = {
        "initContainers": [{"name": "first", "image": "i"}],
        "containers": [{"name": "proxy", "image": "i"}, engine],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
    }
    await kube_api.apply(deployment(spec), namespace=namespace)
    path = await kube_api.path("apps/v1", "Deployment", namespace, "llama")
    patch = printed(SOURCE, "--image=registry.example/vllm-autoscaler:1")
    once, twice = [
        await kube_api.request(
            "PATCH",
            path,
            patch,
            content_type="application/strategic-merge-patch+json",
            fieldValidation="Strict",
        )
        for _ in range(2)
    ]
    assert once["spec"] == twice["spec"]
    template = once["spec"]["template"]
    assert template["metadata"]["annotations"] == {"vllm-autoscaler.io/weights": SOURCE}
    (term,) = template["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert (term["weight"], term["preference"]) == (100, {"matchExpressions": [READY]})
    containers = {each["name"]: each for each in template["spec"]["containers"]}
    assert containers.keys() == {"proxy", "vllm"}
    assert {each["name"]: each["value"] for each in containers["vllm"]["env"]} == {
        "TZ": "UTC",
        "HF_HUB_CACHE": "/weights/hub",
        "HF_HUB_OFFLINE": "1",
    }
    mounts = {each["mountPath"]: each.get("readOnly", False) for each in containers["vllm"]["volumeMounts"]}
    assert mounts == {"/dev/shm": False, "/weights": True, "/node-weights": True}
    assert {each["name"] for each in template["spec"]["volumes"]} == {"shm", "weights", "node-weights"}
    waits = {each["name"]: each for each in template["spec"]["initContainers"]}
    assert waits.keys() == {"first", "weights"}
    assert waits["weights"]["args"] == ["weights", "wait", SOURCE, "--root=/node-weights", "--into=/weights"]


@pytest.mark.integration
async def test_the_waiting_container_meets_the_restricted_standard(kube_api: KubeApi) -> None:
    namespace = await kube_api.namespace(labels={"pod-security.kubernetes.io/enforce": "restricted"})
    (waits,) = printed(SOURCE)["spec"]["template"]["spec"]["initContainers"]
    volumes = [{"name": name, "emptyDir": {}} for name in ("weights", "node-weights")]  # hostPath is not allowed there
    spec = {"containers": [waits], "volumes": volumes}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "waits"}, "spec": spec}
    await kube_api.apply(pod, namespace=namespace, dry_run=True)


def test_an_engine_of_another_source_loads_a_path() -> None:
    result = snippet("s3://models/llama-8b", "--container=main", "--host-path=/mnt/k8s-disks/0/weights")
    path = f"/weights/models/llama-8b-{parse('s3://models/llama-8b').key}"
    assert f"vllm serve {path}\n" in result.stdout
    spec = yaml.safe_load(result.stdout)["spec"]["template"]["spec"]
    (engine,) = spec["containers"]
    assert (engine["name"], "env" in engine) == ("main", False)
    assert spec["volumes"][1]["hostPath"]["path"] == "/mnt/k8s-disks/0/weights"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["hf://org/model"], "its revision is missing"),
        ([SOURCE, "--host-path=weights"], "no path, found 'weights'"),
        ([SOURCE, "--host-path=/mnt/../etc"], "without . and .."),
        ([SOURCE, "--container=Main Engine"], "not a name"),
    ],
)
def test_wrong_arguments_are_refused(arguments: list[str], why: str) -> None:
    result = snippet(*arguments)
    assert result.exit_code == 2
    assert why in result.output
