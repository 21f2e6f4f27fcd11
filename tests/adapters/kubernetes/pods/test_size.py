"""Reading what a tenant writes takes time that is linear in its size: counted in calls, for ten times as much."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from autoscaler.adapters.kubernetes.api import pod_objects
from autoscaler.adapters.kubernetes.pods.template import MAX_CONDITIONS, read_template
from tests.harness.calls import counted_calls

GPU = "nvidia.com/gpu"


def spec(**more: Any) -> pod_objects.PodSpec:
    engine = {"name": "vllm", "args": ["--model", "m"], "resources": {"limits": {GPU: "1"}}}
    return msgspec.json.decode(msgspec.json.encode({"containers": [engine], **more}), type=pod_objects.PodSpec)


def container(number: int, **more: Any) -> dict[str, Any]:
    return {"name": f"c{number}", "resources": {"limits": {f"a.com/r{number}": "1"}}, **more}


def required(*expressions: dict[str, Any]) -> dict[str, Any]:
    terms = [{"matchExpressions": [each]} for each in expressions]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


PARTS: dict[str, Callable[[int], dict[str, Any]]] = {
    "init containers": lambda n: {"initContainers": [container(each) for each in range(n)]},
    "sidecars": lambda n: {"initContainers": [container(each, restartPolicy="Always") for each in range(n)]},
    "containers": lambda n: {"containers": [container(each) for each in range(n)]},
    "words": lambda n: {"containers": [container(0, args=["--model", *["$(A)"] * n])]},
    "a long word": lambda n: {"containers": [container(0, args=["--model", "$(" * n])]},
    "a script": lambda n: {"containers": [container(0, command=["sh", "-c"], args=["a=b;" * n])]},
    "variables": lambda n: {"containers": [container(0, env=[{"name": f"V{e}", "value": "$(V0)"} for e in range(n)])]},
    "claims": lambda n: {"resourceClaims": [{"name": str(e), "resourceClaimTemplateName": "t"} for e in range(n)]},
    "volumes": lambda n: {"volumes": [{"name": str(each), "hostPath": {"path": "/x"}} for each in range(n)]},
    "labels": lambda n: {"nodeSelector": {f"k{each}": "v" for each in range(n)}},
    "tolerations": lambda n: {"tolerations": [{"key": f"k{each}"} for each in range(n)]},
    "terms": lambda n: {"affinity": required(*[{"key": f"k{e}", "operator": "Exists"} for e in range(n)])},
}


@pytest.mark.parametrize("part", PARTS)
def test_work_is_linear_when_a_template_is_large(part: str):
    calls = []
    for count in (100, 1000):
        template = spec(**PARTS[part](count))
        with counted_calls() as made:
            read_template(template)
        calls.append(made.made)
    assert calls[1] < 20 * calls[0]


@pytest.mark.parametrize("part", ["labels", "tolerations", "terms"])
def test_template_with_too_many_conditions_has_no_pool(part: str):
    found = read_template(spec(**PARTS[part](MAX_CONDITIONS + 1)))
    assert math.isnan(found.gpus)
    assert "conditions on nodes; allowed: 1000" in found.unclear
    assert not (found.needs.selector or found.needs.tolerations or found.needs.terms or found.has_open_requests)
    assert read_template(spec(**PARTS[part](10))).gpus == 1
