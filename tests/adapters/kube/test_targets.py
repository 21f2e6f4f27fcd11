import math

import msgspec
import pytest

from autoscaler.adapters.kube.objects import LeaderWorkerSet, PodSpec, Target
from autoscaler.adapters.kube.targets import DEPLOYMENT, read_group, read_target, read_template
from tests.harness.calls import counted_calls


def template(container: dict | None = None, **spec: object):
    return read_template(msgspec.convert({"containers": [container or {}], **spec}, PodSpec))


@pytest.mark.parametrize(
    ("arguments", "model", "port"),
    [
        (["--model", "org/m"], "org/m", 8000),
        (["--model=org/m", "--served-model-name=chat", "--port=9000"], "chat", 9000),
        (["vllm", "serve", "org/m", "--served-model-name", "chat", "alias"], "chat", 8000),
        (["serve", "org/m", "--tensor-parallel-size", "4"], "org/m", 8000),
        (["sh", "-c", "exec vllm serve org/m --port 8001"], "org/m", 8001),
        (["--model", "$(MODEL)"], "", 8000),
        (["serve", "--port", "none"], "", 8000),
        (["sh", "-c", "vllm 'unbalanced"], "", 8000),
        (["--served-model-name", "two words"], "", 8000),
        ([], "", 8000),
    ],
)
def test_the_served_model_and_port_are_read_from_arguments_where_that_is_easy(
    arguments: list[str], model: str, port: int
):
    facts = template({"name": "vllm", "args": arguments})
    assert (facts.model, facts.port) == (model, port)


def test_many_long_scripts_in_one_template_take_no_longer_than_one():
    """Whoever may make a Deployment must not hold up the daemon with each change of it."""
    container = {"args": ["-c", "x" * 16_000]}
    with counted_calls() as one:
        template(container)
    with counted_calls() as many:
        template(containers=[container] * 90)
    assert many.made < 2 * one.made


@pytest.mark.parametrize(
    ("resources", "gpus", "resource"),
    [
        ({"limits": {"nvidia.com/gpu": "4"}}, 4.0, "nvidia.com/gpu"),
        ({"requests": {"nvidia.com/mig-3g.40gb": "1"}}, 1.0, "nvidia.com/mig-3g.40gb"),
        ({"limits": {"cpu": "4"}}, 0.0, ""),
        ({"limits": {"nvidia.com/gpu": "4", "nvidia.com/mig-1g.10gb": "1"}}, 5.0, ""),
        ({"limits": {"nvidia.com/gpu": "a lot"}}, 0.0, ""),
    ],
)
def test_gpus_are_those_of_the_container_resources(resources: dict, gpus: float, resource: str):
    facts = template({"resources": resources})
    assert (facts.gpus, facts.resource) == (gpus, resource)


def test_gpus_that_come_by_resource_claims_are_unknown():
    assert math.isnan(template({}, resourceClaims=[{"name": "gpu"}]).gpus)


def test_the_product_is_what_node_selector_or_required_affinity_demand():
    label = "nvidia.com/gpu.product"
    assert template(nodeSelector={label: "H100"}).product == (label, "H100")

    def affinity(*terms: dict) -> dict:
        return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}}

    def term(*values: str) -> dict:
        return {"matchExpressions": [{"key": label, "operator": "In", "values": list(values)}]}

    assert template(affinity=affinity(term("H100"))).product == (label, "H100")
    assert template(affinity=affinity(term("H100", "A100"))).product is None
    assert template(affinity=affinity(term("H100"), term("A100"))).product is None


def test_a_group_sums_leader_and_workers():
    def with_gpus(count: int) -> dict:
        return {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": str(count)}}}]}}

    group = {
        "metadata": {"name": "x"},
        "spec": {
            "replicas": 2,
            "leaderWorkerTemplate": {"size": 3, "leaderTemplate": with_gpus(1), "workerTemplate": with_gpus(8)},
        },
    }
    row = read_group(msgspec.convert(group, LeaderWorkerSet))
    assert (row.replicas, row.facts.gpus, row.facts.resource) == (2, 17.0, "nvidia.com/gpu")


def test_the_writer_is_who_owns_spec_replicas_not_status_replicas():
    fields = [
        {"manager": "controller", "fieldsV1": {"f:status": {"f:replicas": {}}}},
        {"manager": "kubectl\n-scale", "fieldsV1": {"f:spec": {"f:replicas": {}}}},
    ]
    text = msgspec.json.encode({"metadata": {"name": "x", "managedFields": fields}, "spec": {"replicas": 2}})
    assert read_target(DEPLOYMENT, msgspec.json.decode(text, type=Target)).writer == "kubectl-scale"
