"""Targets of custom kinds, whatever their objects hold."""

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.adapters.kubernetes.api.target_objects import CustomTarget, LeaderWorkerSet
from autoscaler.adapters.kubernetes.workloads.targets import MOST_REPLICAS, read_custom, read_leader_worker_set
from autoscaler.catalog.scale_targets import BY_KIND, SCALED, ScaleTarget, other_kind

CUSTOM = [row for row in SCALED.values() if row.selector]
KEYS = sorted(
    {key for row in CUSTOM for part in row.pods for key in (*part.place, *part.counts)} | {"replicas", "mode"}
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=3), inner),
    max_leaves=20,
)


def seen(spec: Any, status: Any = None, **metadata: Any) -> CustomTarget:
    body = {"metadata": {"name": "x", "namespace": "ns", "uid": "u", **metadata}, "spec": spec, "status": status}
    return msgspec.json.decode(msgspec.json.encode(body), type=CustomTarget)


def pod(gpus: int) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "v", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}]}}


@pytest.mark.slow
@pytest.mark.parametrize("row", CUSTOM, ids=lambda row: row.kind)
@given(spec=JSON, status=JSON)
def test_any_object_is_read_without_an_error(row: ScaleTarget, spec: Any, status: Any):
    target = read_custom(row, CustomTarget(spec=spec, status=status))
    assert 0 <= target.replicas <= MOST_REPLICAS
    assert target.pods_per_replica >= 1
    assert target.pod_selector is not None


@pytest.mark.parametrize("count", [-1, 2**31, 1.5, "3", True, 2**40, [1], {}])
def test_count_that_is_no_whole_number_is_refused(count: object):
    target = read_custom(BY_KIND["NodeSet"], seen({"replicas": count}))
    assert target.refusal == "spec.replicas is no count of replicas; allowed: a whole number"


@pytest.mark.parametrize(("kind", "replicas"), [("Rollout", 1), ("DisaggregatedSetRoleScaler", 0)])
def test_absent_count_is_the_default_of_the_kind(kind: str, replicas: int):
    assert read_custom(BY_KIND[kind], seen({})).replicas == replicas


def test_pods_of_a_replica_are_those_of_all_templates():
    groups = [{"replicas": 2, "numOfHosts": 4, "template": pod(8)}, {"replicas": 1, "template": pod(1)}]
    spec = {"template": {"spec": {"headGroupSpec": {"template": pod(0)}, "workerGroupSpecs": groups}}}
    target = read_custom(BY_KIND["RayClusterFleet"], seen(spec))
    assert (target.pods_per_replica, target.facts.gpus) == (10, 65.0)
    assert (target.facts.needs.largest, target.facts.needs.smallest, target.facts.needs.total) == (8.0, 1.0, 65.0)


def test_pod_group_of_one_template_counts_each_pod():
    role = {"replicas": 1, "podGroupSize": 4, "template": pod(8)}
    target = read_custom(BY_KIND["StormService"], seen({"template": {"spec": {"roles": [role]}}}))
    assert (target.pods_per_replica, target.facts.gpus) == (4, 32.0)


def test_template_of_another_form_leaves_the_gpus_unknown():
    target = read_custom(BY_KIND["Rollout"], seen({"template": {"spec": {"containers": "vllm"}}}))
    assert np.isnan(target.facts.gpus)
    assert not target.states_pods


def test_writer_is_the_field_manager_of_the_count_of_the_kind():
    fields = [
        {"manager": "user", "fieldsV1": {"f:spec": {"f:replicas": {}}}},
        {"manager": "operator", "fieldsV1": {"f:spec": {"f:deploymentConfig": {"f:replicas": {}}}}},
    ]
    assert read_custom(BY_KIND["VLLMRuntime"], seen({}, managedFields=fields)).writer.manager == "operator"


@pytest.mark.parametrize("place", ["selector", "labelSelector", "hpaPodSelector", "scalingTargetSelector"])
def test_unknown_kind_has_its_selector_at_a_usual_place(place: str):
    row = other_kind("models.example.com", "Model", "v1")
    target = read_custom(row, seen({"replicas": 2}, {place: "app=x"}))
    assert target.ref.api_version == "example.com/v1"
    assert target.pod_selector == read_custom(BY_KIND["Rollout"], seen({}, {"selector": "app=x"})).pod_selector != ()


@pytest.mark.parametrize("worker", [pod(8), {"spec": {"containers": [{"resources": {"limits": {"x.com/npu": "8"}}}]}}])
def test_object_that_has_not_changed_is_read_as_the_same_target(worker: dict[str, Any]):
    """Also with an unknown number of GPUs: otherwise each event of its status would count as another template."""
    groups = [{"replicas": 2, "template": worker}]
    spec = {"template": {"spec": {"headGroupSpec": {"template": pod(1)}, "workerGroupSpecs": groups}}}
    body = seen(spec)
    assert read_custom(BY_KIND["RayClusterFleet"], body) == read_custom(BY_KIND["RayClusterFleet"], body)
    group = {"leaderWorkerTemplate": {"size": 3, "leaderTemplate": pod(1), "workerTemplate": worker}}
    leader_worker_set = msgspec.json.decode(
        msgspec.json.encode({"metadata": {"name": "x"}, "spec": group}), type=LeaderWorkerSet
    )
    assert read_leader_worker_set(leader_worker_set) == read_leader_worker_set(leader_worker_set)
