"""Scaling rules of a real cluster, as `report`, `replay` and `simulate` read them with --cluster."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from autoscaler.adapters.kubernetes.api.scaling_rules import read_cluster
from autoscaler.adapters.prometheus.range.resample import WorkloadHistory
from autoscaler.config.check.manifests import text_at
from autoscaler.config.rules.read import read_objects
from autoscaler.config.settings import KubeSettings
from autoscaler.lab.commands.options import ExperimentOptions
from autoscaler.lab.commands.own_rules import read_own_rules, rules_in_cluster
from tests.cli.study import PROFILE, invoke, write_trace
from tests.harness.kube_api import KubeApi

SCALED = {"name": "llama"}
TRIGGER = {
    "type": "prometheus",
    "metadata": {"serverAddress": "http://p:9090", "query": "sum(vllm:num_requests_waiting)", "threshold": "5"},
}
METRIC = {"metric": {"name": "vllm_num_requests_waiting"}, "target": {"type": "AverageValue", "averageValue": "5"}}


@pytest.mark.integration
async def test_rules_of_a_namespace_are_read(
    kube_api: KubeApi, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kube_api.kubeconfig()))
    await kube_api.install_crds("scaledobjects")
    reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "qwen"}
    spec = {"scaleTargetRef": reference, "maxReplicas": 4, "metrics": [{"type": "Pods", "pods": METRIC}]}
    template = {"metadata": {"labels": SCALED}, "spec": {"containers": [{"name": "a", "image": "a"}]}}
    await kube_api.apply(
        {
            "apiVersion": "keda.sh/v1alpha1",
            "kind": "ScaledObject",
            "metadata": {"name": "llama"},
            "spec": {"scaleTargetRef": SCALED, "triggers": [TRIGGER]},
        },
        {
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": "qwen"},
            "spec": spec,
        },
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "phi", "annotations": {"autoscaling.knative.dev/target": "20"}},
            "spec": {"selector": {"matchLabels": SCALED}, "template": template},
        },
        namespace=namespace,
    )
    objects, problems = await read_cluster(KubeSettings(), [namespace])
    rules, faults = read_objects(objects)
    assert not faults and not problems
    assert sorted(rule.title for rule in rules) == [
        f"Deployment with Knative annotations {namespace}/phi",
        f"HorizontalPodAutoscaler {namespace}/qwen",
        f"ScaledObject {namespace}/llama",
    ]
    assert all(rule.metrics or rule.knative for rule in rules)
    # The rules of one namespace delay those of another by one turn each.
    other = await kube_api.namespace()
    await kube_api.apply(
        {
            "apiVersion": "keda.sh/v1alpha1",
            "kind": "ScaledObject",
            "metadata": {"name": "llama"},
            "spec": {"scaleTargetRef": SCALED, "triggers": [TRIGGER]},
        },
        namespace=other,
    )
    both, _ = await read_cluster(KubeSettings(), [namespace, other])
    assert {text_at(each, "metadata", "namespace") for each in both[:2]} == {namespace, other}
    # Rules of files come first.
    assert await rules_in_cluster(KubeSettings(), (namespace, "llama"), rules) == ([], [])
    options = cast(ExperimentOptions, SimpleNamespace(against=(), kube=KubeSettings()))
    past = cast(WorkloadHistory, SimpleNamespace(start_s=0.0, duration_s=60.0))
    (setting,), told = await read_own_rules(options, None, (namespace, "qwen"), past)
    assert (setting.rule.title, told) == (f"HorizontalPodAutoscaler {namespace}/qwen", ())
    trace = write_trace(tmp_path / "a.csv", ["1,100,10", "2,100,10", "400,100,10"])
    simulated = ("simulate", "--trace", trace, *PROFILE, "--cluster", "--workload")
    result = await asyncio.to_thread(invoke, *simulated, f"{namespace}/llama")
    assert result.exit_code == 0 and f"ScaledObject {namespace}/llama (own rule)" in result.output
    result = await asyncio.to_thread(invoke, *simulated, f"{namespace}/other")
    assert (result.exit_code, result.output.splitlines()[-1:]) == (
        2,
        [f"error: --cluster: the cluster has no scaling rule for {namespace}/other"],
    )
    assert await read_own_rules(options, None, (namespace, "other"), past) == (
        [],
        (f"the cluster has no scaling rule for {namespace}/other",),
    )
