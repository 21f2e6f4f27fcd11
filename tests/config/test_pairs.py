"""Pairs among workloads by service and role; whatever is no pair is said, and sized alone."""

import math

import pytest

from autoscaler.config.pairs import find_pairs
from autoscaler.core.model.fleet import Workload, WorkloadRef
from autoscaler.core.model.pairs import DECODE, PREFILL
from tests.core.world import spec

NAN = math.nan


def workload(name, role="", service="m", namespace="llm", model=""):
    return Workload(WorkloadRef(namespace, name), service=service, role=role, model=model)


P, D = workload("p", PREFILL), workload("d", DECODE)


def found(*workloads, **limits):
    pairs = find_pairs(workloads, spec(len(workloads), **limits))
    return pairs.partner.tolist(), dict(pairs.problems)


def test_one_of_each_role_in_a_service_is_a_pair():
    pairs = find_pairs((D, workload("x"), P), spec(3))
    assert pairs.partner.tolist() == [2, -1, 0]
    assert pairs.prefill.tolist() == [False, False, True]
    assert pairs.decode.tolist() == [True, False, False]
    assert pairs.problems == {}


def test_workloads_without_a_role_are_no_pair():
    assert found(workload("a"), workload("b"), workload("c", service="")) == ([-1, -1, -1], {})


def test_pairs_of_other_services_and_namespaces_are_apart():
    others = workload("p2", PREFILL, service="n"), workload("d2", DECODE, service="n")
    assert found(P, others[1], D, others[0]) == ([2, 3, 0, 1], {})
    partner, problems = found(P, workload("d", DECODE, namespace="other"))
    assert partner == [-1, -1]
    assert problems == {
        0: "service m has no decode workload beside its prefill workload, so it is sized alone",
        1: "service m has no prefill workload beside its decode workload, so it is sized alone",
    }


def test_two_prefill_workloads_are_no_pair():
    partner, problems = found(P, workload("p2", PREFILL), D)
    assert partner == [-1, -1, -1]
    assert set(problems.values()) == {
        "service m has 2 prefill workloads (p, p2) where a pair has one, so it is sized alone"
    }
    many = [workload(f"d{number}", DECODE) for number in range(7)]
    assert "(d0, d1, d2, d3 and 3 more)" in found(P, *many)[1][0]


def test_a_role_without_a_service_is_reported():
    partner, problems = found(workload("p", PREFILL, service=""), D)
    assert partner == [-1, -1]
    assert problems[0].startswith("vllm-autoscaler.io/role needs vllm-autoscaler.io/service")


@pytest.mark.parametrize(
    ("models", "is_pair"),
    [(("org/A", "A"), True), (("a", "A"), True), (("A", ""), True), (("", "A"), True), (("A", "B"), False)],
)
def test_both_sides_serve_one_model(models, is_pair):
    partner, problems = found(P._replace(model=models[0]), D._replace(model=models[1]))
    assert (partner == [1, 0]) == is_pair
    if not is_pair:
        assert problems[1] == "the workloads of service m serve different models (A, B), so it is sized alone"


def test_an_invalid_role_is_none():
    assert found(workload("p", "both"), D)[0] == [-1, -1]


def test_policies_that_contradict_each_other_are_reported():
    partner, problems = found(P, D, min_decode_per_prefill=[3.0, NAN], max_decode_per_prefill=[NAN, 2.0])
    assert partner == [1, 0]
    assert problems[0] == (
        "its pair has at least 3 and at most 2 decode replicas per prefill replica; at least 3 are kept"
    )
    assert found(P, D, min_decode_per_prefill=[1.0, NAN], max_decode_per_prefill=[NAN, 2.0])[1] == {}
