"""Warnings about a workload in addition to the decision."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.explain.row import TickRow
from autoscaler.core.explain.warnings import LONG, warnings
from autoscaler.core.model.types import Stage
from autoscaler.core.model.variants import Variants
from autoscaler.core.state import Memory
from autoscaler.core.tick import tick
from tests.core.world import fleet, quotas, spec, world


def warned(drain_s: float | None, output_tokens: float = np.nan, itl_s: float = np.nan) -> tuple[str, ...]:
    known = None if drain_s is None else np.array([drain_s])
    inp = world(1000.0, replace(fleet([1]), drain_s=known), spec())
    decision, _ = tick(inp, Memory.empty())
    seen = replace(decision.observation, output_tokens=np.array([output_tokens]), itl_s=np.array([itl_s]))
    return warnings(TickRow(inp, replace(decision, observation=seen), 0))


def test_requests_that_are_cut_off_at_once_are_warned_of():
    (warning,) = warned(0.0)
    assert "--shutdown-timeout is 0" in warning


def test_time_is_compared_with_the_generations_seen():
    (warning,) = warned(30.0, output_tokens=400.0, itl_s=0.05)
    assert warning.startswith(
        "the requests of a replica that leaves may go on for 30 s, but an average one takes about 20 s "
        "and a long one about 60 s;"
    )
    assert warned(60.0, output_tokens=400.0, itl_s=0.05) == ()


@pytest.mark.parametrize("drain_s", [None, np.nan])
def test_nothing_is_warned_of_where_the_time_is_not_known(drain_s: float | None):
    assert warned(drain_s, output_tokens=1e6, itl_s=1.0) == ()


@given(st.floats(1, 1e4), st.floats(1, 1e5), st.floats(1e-3, 10))
def test_a_warning_is_given_when_a_long_generation_does_not_fit(drain_s: float, tokens: float, gap_s: float):
    assert bool(warned(drain_s, tokens, gap_s)) == (LONG * tokens * gap_s > drain_s)


def test_no_generation_seen_is_no_warning():
    assert warned(30.0) == ()


def test_a_quota_that_cannot_limit_is_warned_of():
    kinds = (quotas([0, 0], [4]),)
    cluster = fleet([1, 1], gpus_per_replica=np.array([np.nan, 1.0]), quotas=kinds)
    inp = world(1000.0, cluster, spec(2))
    decision, _ = tick(inp, Memory.empty())
    assert warnings(TickRow(inp, decision, 0)) == (
        "quota 0 cannot limit it, because the GPUs of a replica are unknown",
    )
    assert warnings(TickRow(inp, decision, 1)) == ()


@pytest.mark.parametrize(
    ("present", "answer", "told"),
    [
        (
            5,
            3.0,
            "KEDA's HPA has kept 5 replicas for 2 min, although the answer is 3, so the GPUs of these are not free",
        ),
        (
            1,
            3.0,
            "KEDA's HPA has kept 1 replica for 2 min, although the answer is 3, so other workloads may take the GPUs "
            "of the rest",
        ),
    ],
)
def test_an_answer_that_the_hpa_does_not_follow_is_warned_of(present: int, answer: float, told: str):
    inp = world(1000.0, fleet([present]), spec())
    decision, _ = tick(inp, Memory.empty())
    stages = decision.stages.copy()
    stages[Stage.OWNER] = answer
    assert warnings(TickRow(inp, replace(decision, stages=stages), 0)) == ()
    unfollowed = replace(decision, stages=stages, unfollowed_s=np.array([120.0]))
    assert warnings(TickRow(inp, unfollowed, 0)) == (told,)


@pytest.mark.parametrize(
    ("variants", "said"),
    [
        (None, "the workload has no service with variants"),
        (Variants(np.array([0, -1]), np.ones(2), np.array([False, True])), "no variant is known to be on spot nodes"),
        (Variants(np.array([0, 0]), np.ones(2), np.array([True, True])), "all variants are on spot nodes"),
        (Variants(np.array([0, 0]), np.ones(2), np.array([False, True])), ""),
    ],
)
def test_a_floor_on_demand_without_effect_is_warned_of(variants: Variants | None, said: str):
    inp = replace(world(1000.0, fleet([1, 1]), spec(2, on_demand_floor=[1.0, np.nan])), variants=variants)
    decision, _ = tick(inp, Memory.empty())
    found = [words for words in warnings(TickRow(inp, decision, 0)) if "onDemandFloor" in words]
    assert found == ([f"replicas.onDemandFloor has no effect, because {said}"] if said else [])
    assert not [words for words in warnings(TickRow(inp, decision, 1)) if "onDemandFloor" in words]
