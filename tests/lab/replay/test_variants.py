"""Variants of one service in a run: replicas of several cases behind one router."""

from dataclasses import replace

import numpy as np
import pytest

from autoscaler.config.policy.parse import load
from autoscaler.lab.replay.case import Case
from autoscaler.lab.replay.policy_scaler import PolicyFleetScaler
from autoscaler.lab.replay.run import run, run_fleet
from tests.lab.replay import synthetic
from tests.lab.replay.cases import ConstantScaler, make_case, trace_of

INTERACTIVE = load().policies["interactive"]


def variants(case: Case, *changes: dict[str, object]) -> list[Case]:
    return [replace(case, service="llama", **each) for each in changes]  # type: ignore[arg-type]


def test_equal_variants_serve_like_one_workload() -> None:
    case = synthetic.case_of(synthetic.poisson([4.0, 6.0], 60.0), start_replicas=3)
    alone = run(case, ConstantScaler(3))
    first, second = run_fleet(
        variants(case, {"start_replicas": 2}, {"start_replicas": 1}), [ConstantScaler(2), ConstantScaler(1)]
    )
    assert np.array_equal(first.ttft_s, alone.ttft_s)
    assert np.array_equal(first.e2e_s, second.e2e_s)
    assert first.replica_s == pytest.approx(2 * second.replica_s)
    assert first.replica_s + second.replica_s == pytest.approx(alone.replica_s)


def test_heavier_variant_gets_more_of_the_requests() -> None:
    long = make_case(trace_of([1.0 + number / 100 for number in range(6)], 3000, duration_s=60.0), scrape_s=1.0)
    light, heavy = run_fleet(
        variants(long, {"router_weight": 0.5}, {"router_weight": 1.0}), [ConstantScaler(1), ConstantScaler(1)]
    )
    running = [outcome.timeline[outcome.timeline[:, 0] == 5.5, 3].item() for outcome in (light, heavy)]
    assert running == [2, 4]


def test_request_takes_the_time_of_its_variant() -> None:
    case = make_case(trace_of([1.0, 1.001], 100, duration_s=30.0))
    slow = replace(case.profile, step_s=0.02)
    first, _ = run_fleet(variants(case, {}, {"profile": slow}), [ConstantScaler(1), ConstantScaler(1)])
    assert first.e2e_s == pytest.approx([1.0, 2.0])


def test_replica_of_one_variant_serves_what_another_cannot() -> None:
    """The first variant leaves after 30 s; requests wait at no gateway, because the other one serves."""
    case = make_case(trace_of([10.0, 50.0, 70.0], 10, duration_s=100.0))
    first, second = run_fleet(variants(case, {}, {}), [ConstantScaler(0), ConstantScaler(1)])
    assert first.ttft_s == pytest.approx([0.01] * 3)
    assert first.replica_s < 60 < second.replica_s


def test_variants_of_other_clients_are_refused() -> None:
    case = make_case(trace_of([1.0]))
    with pytest.raises(ValueError, match="variants of service llama differ in patience_s"):
        run_fleet(variants(case, {}, {"patience_s": 5.0}), [ConstantScaler(1), ConstantScaler(1)])
    other = trace_of([1.0])
    with pytest.raises(ValueError, match="variants of service llama differ in trace"):
        run_fleet(variants(case, {}, {"trace": other}), [ConstantScaler(1), ConstantScaler(1)])
    with pytest.raises(ValueError, match="router_weight is 0; it must be above 0"):
        run(replace(case, router_weight=0.0), ConstantScaler(1))


@pytest.mark.slow
def test_ours_moves_load_to_the_cheaper_variant() -> None:
    """Of two equal variants the dearer one keeps a single replica."""
    case = synthetic.case_of(synthetic.poisson([60.0] * 6, 600.0), max_replicas=20)
    cases = variants(case, {"start_replicas": 4}, {"start_replicas": 1})
    scaler = PolicyFleetScaler(cases, [INTERACTIVE] * 2, prices=(3.0, 1.0))
    dear, cheap = run_fleet(cases, scaler)
    assert dear.timeline[-1, 2] == 1
    assert cheap.timeline[-1, 2] >= 2
    assert scaler.tick_input is not None and scaler.tick_input.variants is not None
    assert scaler.tick_input.variants.cost.tolist() == [3.0, 1.0]
    assert len({workload.ref for workload in scaler.tick_input.fleet.workloads}) == 2
