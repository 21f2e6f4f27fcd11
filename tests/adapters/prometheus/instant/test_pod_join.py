"""Mapping of series to the pods of a fleet."""

from dataclasses import replace
from itertools import compress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.adapters.prometheus.decode import Vector, decode_vector
from autoscaler.adapters.prometheus.instant.pod_join import PodJoin
from autoscaler.adapters.prometheus.pod_labels import pod_name
from tests.adapters.prometheus.fleets import fleet_of
from tests.adapters.prometheus.responses import pod, vector

FLEET = fleet_of({"llm/a": ["a-0", "a-1"], "llm/b": ["b-0"]})


def found(*series: tuple[dict[str, str], object]) -> Vector:
    return decode_vector(vector(*series).encode())


def joined(*series: tuple[dict[str, str], object]) -> list[float]:
    join = PodJoin()
    join.align(FLEET)
    return join.column(found(*series)).tolist()


def test_each_value_goes_to_its_pod_and_silent_pods_stay_unknown():
    assert joined((pod("b-0"), 3), (pod("a-0"), 1)) == pytest.approx([1, np.nan, 3], nan_ok=True)


def test_a_series_of_a_deleted_pod_is_dropped():
    assert joined((pod("a-9"), 9), (pod("a-0", "other"), 8), (pod("a-1"), 2)) == pytest.approx(
        [np.nan, 2, np.nan], nan_ok=True
    )


def test_of_two_series_about_one_pod_the_largest_counts():
    twice = [({**pod("a-0"), "replica": name}, value) for name, value in (("p0", 4), ("p1", 5), ("p2", "NaN"))]
    assert joined(*twice)[0] == 5


def test_own_scrape_counts_before_moved_labels():
    moved = {"exported_namespace": "llm", "exported_pod": "a-0", **pod("evil-0", "attacker")}
    assert joined((moved, 900), (pod("a-0"), 4))[0] == 4
    assert joined((moved, 900), ({**moved, "job": "x"}, 5))[0] == 900
    assert joined((moved, 900), (pod("a-0"), "NaN"))[0] == 900


def test_what_pods_of_others_contradict_is_unknown_where_it_is_asked():
    """Any pod may expose readings of the GPUs of others."""
    moved = {"exported_namespace": "llm", "exported_pod": "a-0", **pod("dcgm-0", "gpu")}
    forged = {**moved, **pod("evil-0", "attacker")}
    second = {**moved, "exported_pod": "a-1"}
    join = PodJoin()
    join.align(FLEET)
    answer = found((moved, 0), (forged, 0.5), (second, 0.3), ({**second, "job": "x"}, 0.4), (pod("b-0"), 0.2))
    assert join.column(answer, alike=True) == pytest.approx([np.nan, 0.4, 0.2], nan_ok=True)
    assert join.column(answer) == pytest.approx([0.5, 0.4, 0.2])
    agreed = found((moved, 0.5), (forged, 0.502), ({**forged, **pod("own-0", "llm"), "job": "y"}, "NaN"))
    assert join.column(agreed, alike=True)[0] == 0.502
    own = found((moved, 0.5), (forged, 0.9), (pod("a-0"), 0.1))
    assert join.column(own, alike=True)[0] == 0.1


def test_a_value_that_is_not_a_number_is_unknown():
    assert np.isnan(joined((pod("a-0"), "NaN"))[0])


def test_pods_come_and_go_between_two_answers():
    join = PodJoin()
    join.align(FLEET)
    answer = found((pod("a-0"), 1), (pod("b-0"), 3), (pod("c-0"), 5))
    join.column(answer)
    later = fleet_of({"llm/b": ["b-0"], "llm/c": ["c-0"]})
    join.align(replace(later, pod_id=np.array([2, 3])))  # a-0 and a-1 are gone, c-0 is new
    assert join.column(answer).tolist() == [3, 5]


def test_old_pods_are_read_when_their_workload_joins_late():
    """Their ids are from when the cluster first showed them, below those of pods in the fleet already."""
    later = FLEET.pod_workload == 1
    before = replace(FLEET, pods=tuple(compress(FLEET.pods, later)), pod_id=FLEET.pod_id[later])
    join = PodJoin()
    answer = found((pod("a-0"), 1), (pod("a-1"), 2), (pod("b-0"), 3))
    for fleet, values in ((before, [3]), (FLEET, [1, 2, 3]), (before, [3]), (FLEET, [1, 2, 3])):
        join.align(fleet)
        assert join.column(answer).tolist() == values


def test_a_pod_with_a_reused_name_gets_its_own_readings():
    join = PodJoin()
    join.align(FLEET)
    answer = found((pod("b-0"), 3))
    assert join.column(answer)[2] == 3
    join.align(replace(fleet_of({"llm/b": ["b-0"]}), pod_id=np.array([7])))
    assert join.column(answer).tolist() == [3]


def test_a_fleet_without_pods_takes_nothing():
    join = PodJoin()
    join.align(FLEET)
    join.align(fleet_of({"llm/a": []}))
    assert join.column(found((pod("a-0"), 1))).tolist() == []


def test_the_label_cache_is_cleared_when_it_is_full():
    join = PodJoin(max_remembered=10)
    join.align(FLEET)
    for flood in range(5):
        join.align(FLEET)
        series = [(pod(f"x-{flood}-{number}"), 1) for number in range(20)]
        assert join.column(found(*series, (pod("a-1"), 2))).tolist() == pytest.approx([np.nan, 2, np.nan], nan_ok=True)


def test_thousands_of_pods_each_get_their_own_value():
    names = [f"p-{number}" for number in range(5000)]
    join = PodJoin()
    join.align(fleet_of({"llm/p": names}))
    answer = found(*[(pod(name), number) for number, name in enumerate(names)])
    np.testing.assert_array_equal(join.column(answer), np.arange(5000))


@given(st.permutations(range(6)), st.lists(st.integers(0, 5), max_size=12))
def test_the_order_of_series_does_not_matter(order: list[int], names: list[int]):
    """Second source: a dict of the largest value by name."""
    series = [(pod(f"p-{name}"), value) for value, name in enumerate(names)]
    fleet = fleet_of({"llm/p": [f"p-{number}" for number in order]})
    join = PodJoin()
    join.align(fleet)
    largest = {name: float(value) for value, name in enumerate(names)}
    reported = [largest.get(number, np.nan) for number in order]
    assert join.column(found(*series)).tolist() == pytest.approx(reported, nan_ok=True)
    assert join.column(found(*reversed(series))).tolist() == pytest.approx(reported, nan_ok=True)


@pytest.mark.parametrize(
    ("labels", "name"),
    [
        ({"namespace": "gpu", "pod": "dcgm-0", "exported_namespace": "llm", "exported_pod": "a-0"}, ("llm", "a-0")),
        ({"pod_namespace": "llm", "pod_name": "a-0"}, ("llm", "a-0")),
        ({"namespace": "llm", "pod": "a-0", "job": "vllm", "instance": "10.0.0.1:8000"}, ("llm", "a-0")),
        ({"job": "vllm", "instance": "10.0.0.1:8000"}, ("vllm", "10.0.0.1:8000")),
        (
            {"k8s_namespace_name": "llm", "k8s_pod_name": "a-0", "namespace": "otel", "pod": "collector-0"},
            ("llm", "a-0"),
        ),
        ({"kubernetes_namespace": "llm", "kubernetes_pod_name": "a-0"}, ("llm", "a-0")),
        ({"exported_pod": "a-0", "namespace": "monitoring", "pod": "prometheus-0"}, ("", "")),
        ({"model_name": "m"}, ("", "")),
        ({}, ("", "")),
    ],
)
def test_a_pod_is_named_by_its_first_label_pair(labels: dict, name: tuple[str, str]):
    assert pod_name(labels) == name
