"""Gateway series by metric, and queries of policies."""

import numpy as np
import pytest

from autoscaler.adapters.gateways import WorkloadLookup
from autoscaler.adapters.prometheus.decode import decode_vector
from autoscaler.adapters.prometheus.instant.gateways import WakeUpQuery, group_by_metric, read_wake_up
from tests.adapters.prometheus.fleets import fleet_of
from tests.adapters.prometheus.responses import vector

FLEET = fleet_of({"llm/chat": [], "llm/code": [], "dev/chat": []}, policy="batch")
NAN = np.nan


def woken(*series: tuple[dict[str, str], object], policy: str = "batch", default: bool = False, **more: object):
    found = decode_vector(vector(*series, **more).encode())
    column, problems = read_wake_up(FLEET, WorkloadLookup(FLEET), WakeUpQuery(policy, "q", default), found)
    return column.tolist(), problems


def test_a_workload_is_found_by_namespace_and_name():
    column, problems = woken(
        ({"namespace": "llm", "deployment": "chat"}, 3), ({"namespace": "dev", "service": "chat"}, 1)
    )
    assert column == pytest.approx([3, NAN, 1], nan_ok=True)
    assert problems == []


def test_another_namespace_is_not_ours():
    column, problems = woken(({"namespace": "prod", "deployment": "chat"}, 3))
    assert column == pytest.approx([NAN] * 3, nan_ok=True)
    assert "none of 1 series is about a workload of the policy" in problems[0]


def test_a_workload_is_found_by_its_model():
    fleet = fleet_of({"llm/chat": []}, model="llama-3", policy="batch")
    found = decode_vector(vector(({"model_name": "llama-3"}, 2)).encode())
    column, _ = read_wake_up(fleet, WorkloadLookup(fleet), WakeUpQuery("batch", "q"), found)
    assert column.tolist() == [2]


def test_workloads_of_other_policies_are_left_alone():
    column, problems = woken(({"namespace": "llm", "deployment": "chat"}, 3), policy="realtime")
    assert column == pytest.approx([NAN] * 3, nan_ok=True)
    assert problems == []


def test_the_default_policy_counts_for_workloads_that_name_none():
    fleet = fleet_of({"llm/chat": []})
    found = decode_vector(vector(({}, 2)).encode())
    column, _ = read_wake_up(fleet, WorkloadLookup(fleet), WakeUpQuery("interactive", "q", default=True), found)
    assert column.tolist() == [2]
    column, _ = read_wake_up(fleet, WorkloadLookup(fleet), WakeUpQuery("interactive", "q"), found)
    assert np.isnan(column).all()


def test_a_value_without_labels_needs_a_single_workload():
    column, problems = woken(({}, 2))
    assert column == pytest.approx([NAN] * 3, nan_ok=True)
    assert problems[0].startswith("a value without labels, but the policy has 3 workloads")


def test_zero_is_known_and_an_empty_answer_is_not():
    assert woken(({"namespace": "llm", "deployment": "chat"}, 0))[0][0] == 0
    assert np.isnan(woken()[0]).all()


def test_the_zeros_of_a_partial_answer_are_unknown():
    series = [({"namespace": "llm", "deployment": "chat"}, 0), ({"namespace": "llm", "deployment": "code"}, 2)]
    assert woken(*series, warnings=["a store is missing"])[0] == pytest.approx([NAN, 2, NAN], nan_ok=True)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1"])
def test_an_impossible_wake_up_value_is_unknown(value: str):
    assert np.isnan(woken(({"namespace": "llm", "deployment": "chat"}, value))[0]).all()


def test_gateway_series_are_grouped_by_metric():
    found = decode_vector(vector(({"metric": "a", "x": "1"}, 1), ({"metric": "b"}, 2), ({"metric": "a"}, 0)).encode())
    assert group_by_metric(found, 9) == {"a": [({"x": "1"}, 1.0), ({}, 0.0)], "b": [({}, 2.0)]}
    assert group_by_metric(found, 1) == {"a": [({"x": "1"}, 1.0)]}


def test_a_crowd_of_series_leaves_room_for_gateways_of_others():
    crowd = [({"metric": "a", "namespace": "evil", "x": str(number)}, 1) for number in range(20)]
    found = decode_vector(vector(*crowd, ({"metric": "a", "namespace": "gateways"}, 7)).encode())
    kept = group_by_metric(found, 4)["a"]
    assert len(kept) == 4
    assert ({"namespace": "gateways"}, 7.0) in kept
