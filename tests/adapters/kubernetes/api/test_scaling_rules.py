"""Scaling rules of a real cluster, as `report --cluster` and `replay --cluster` read them."""

from types import SimpleNamespace
from typing import cast

import pytest

from autoscaler.adapters.kubernetes.api.scaling_rules import read_cluster
from autoscaler.adapters.prometheus.range.resample import WorkloadHistory
from autoscaler.config.rules.read import read_objects
from autoscaler.config.settings import KubeSettings
from autoscaler.lab.commands.options import ExperimentOptions
from autoscaler.lab.commands.own_rules import read_own_rules
from tests.harness.kube_api import KubeApi

SCALED = {"name": "llama"}
TRIGGER = {
    "type": "prometheus",
    "metadata": {"serverAddress": "http://p:9090", "query": "sum(vllm:num_requests_waiting)", "threshold": "5"},
}
METRIC = {"metric": {"name": "vllm_num_requests_waiting"}, "target": {"type": "AverageValue", "averageValue": "5"}}


@pytest.mark.integration
async def test_rules_of_a_namespace_are_read(
    kube_api: KubeApi, namespace: str, monkeypatch: pytest.MonkeyPatch
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
    options = cast(ExperimentOptions, SimpleNamespace(against=(), kube=KubeSettings()))
    past = cast(WorkloadHistory, SimpleNamespace(start_s=0.0, duration_s=60.0))
    (setting,), told = await read_own_rules(options, None, (namespace, "qwen"), past)
    assert (setting.rule.title, told) == (f"HorizontalPodAutoscaler {namespace}/qwen", ())
    assert await read_own_rules(options, None, (namespace, "other"), past) == (
        [],
        (f"the cluster has no scaling rule for {namespace}/other",),
    )
