"""Pods with several series in one answer, and their description."""

import numpy as np
import pytest

from autoscaler.adapters.prometheus.decode import decode_vector
from autoscaler.adapters.prometheus.duplicates import (
    NamedCluster,
    describe_clusters,
    describe_duplicates,
    find_duplicates,
)
from autoscaler.adapters.prometheus.instant.pod_join import PodJoin
from autoscaler.adapters.prometheus.promql.labels import CLUSTER_LABELS
from tests.adapters.prometheus.fleets import fleet_of
from tests.adapters.prometheus.responses import pod, vector

FLEET = fleet_of({"llm/a": ["a-0", "a-1"], "llm/b": ["b-0"]})


def described(*labels: dict[str, str]) -> tuple[str, ...]:
    answer = decode_vector(vector(*((each, 1) for each in labels)).encode())
    join = PodJoin()
    join.align(FLEET)
    return describe_duplicates(find_duplicates(answer, join.rows(answer.labels), FLEET))


def test_nothing_is_reported_when_each_pod_has_one_series():
    assert described({**pod("a-0"), "job": "x"}, {**pod("a-1"), "job": "y"}, {**pod("z-9"), "job": "x"}) == ()


def test_jobs_are_named_when_two_read_one_pod():
    twice = [{**pod(name), "job": job} for name in ("a-0", "b-0") for job in ("podmonitor", "auto")]
    assert described(*twice, {**pod("a-1"), "job": "auto"}) == (
        "pod llm/a-0 and 1 more is read by 2 scrape jobs (auto, podmonitor); it counts once, with the largest reading",
    )


def test_original_jobs_are_named_when_federation_moved_them():
    twice = [{**pod("a-0"), "job": "federate", "exported_job": job} for job in ("x", "y")]
    assert "2 scrape jobs (x, y)" in described(*twice)[0]


@pytest.mark.parametrize("label", CLUSTER_LABELS)
def test_clusters_are_named_when_both_have_the_pod(label: str):
    (line,) = described(*({**pod("a-0"), label: name, "job": name} for name in ("stage", "prod")))
    assert line.startswith("pod llm/a-0 has series of 2 clusters (prod, stage), which count as one; ")
    assert line.endswith(f"--prometheus-selector '{label}=\"prod\"'")


def test_pod_labels_are_named_when_series_of_a_job_differ():
    (line,) = described(pod("a-0"), {"exported_namespace": "llm", "exported_pod": "a-0", **pod("prometheus-0", "x")})
    assert line == "pod llm/a-0 is named by the labels exported_pod, pod of different series; it counts once"


def test_others_name_no_job_and_no_cluster_of_a_pod_that_is_scraped():
    """Any pod may write them, and the advice is there to be pasted."""
    forged = {"exported_namespace": "llm", "exported_pod": "a-0", **pod("evil-0", "evil"), "job": "a", "cluster": "a"}
    own = {**pod("a-0"), "job": "own", "cluster": "prod"}
    (line,) = described(own, forged, {**forged, "cluster": "b"})
    assert line == "pod llm/a-0 is named by the labels exported_pod, pod of different series; it counts once"
    assert "2 clusters (a, b)" in described(forged, {**forged, "cluster": "b"})[0]


def test_hostile_labels_stay_one_short_line():
    (line,) = described(*({**pod("a-0"), "job": f"{number}\n" + "x" * 10_000} for number in range(50)))
    assert len(line) < 1500
    assert "\n" not in line
    assert describe_clusters(
        "pod", {("n", "p"): {NamedCluster("a\"'; rm", "cluster"), NamedCluster("b", "cluster")}}
    ).endswith("'cluster=\"a; rm\"'")


def test_only_some_of_many_duplicates_are_inspected():
    names = [f"p-{number}" for number in range(5000)]
    fleet = fleet_of({"llm/p": names})
    answer = decode_vector(vector(*(({**pod(name), "job": job}, 1) for name in names for job in "xy")).encode())
    rows = np.repeat(np.arange(5000), 2)
    assert 100 < len(find_duplicates(answer, rows, fleet)) <= 2000
