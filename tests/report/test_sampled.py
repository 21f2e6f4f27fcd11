"""When the replay of an hour is too far from what was measured."""

import math
from dataclasses import replace

import numpy as np
import pytest

from autoscaler.lab.replay.case import Goal
from autoscaler.lab.replay.score import Score
from autoscaler.report.sampled import Hour, describe, find_doubt

GOAL = Goal(1.0, 0.05, 0.99)
LATE_WAITING = 80.0
SCORE = Score(
    attainment=0.98,
    attainment_ttft=0.98,
    attainment_itl=1.0,
    goodput_rps=1.0,
    goodput_tokens_per_s=100.0,
    gpu_hours=1.0,
    ttft_p50_s=0.2,
    ttft_p95_s=0.5,
    ttft_p99_s=0.9,
    scale_ups=0,
    scale_downs=0,
    flaps=0,
    breach_s=0.0,
    unfinished=0.0,
)
HOUR = Hour(
    row=0,
    kind="worst",
    start_s=0.0,
    requests=100,
    measured=SCORE,
    replayed=SCORE,
    measured_itl_s=0.02,
    replayed_itl_s=0.02,
    measured_waiting=10.0,
    replayed_waiting=10.0,
    fluid_attainment=0.97,
    policy_attainment=0.99,
    doubt="",
)


def with_score(measured=None, replayed=None):
    return {
        name: replace(SCORE, **values) for name, values in (("measured", measured), ("replayed", replayed)) if values
    }


@pytest.mark.parametrize(
    ("changed", "doubt"),
    [
        ({}, ""),
        (with_score(replayed={"attainment_ttft": 0.935}), ""),
        (with_score(replayed={"attainment_ttft": 0.925}), "92.5% within TTFT in the replay, 98.0% measured"),
        (with_score(measured={"attainment_ttft": 0.9}), "98.0% within TTFT in the replay, 90.0% measured"),
        (with_score(replayed={"ttft_p50_s": 0.69}), ""),
        (with_score(replayed={"ttft_p50_s": 0.71}), "median TTFT 0.71 s in the replay, 0.2 s measured"),
        (with_score(measured={"ttft_p50_s": 5.0}, replayed={"ttft_p50_s": np.inf}), ""),  # equally late
        ({"replayed_itl_s": 0.0265}, ""),
        ({"replayed_itl_s": 0.0275}, "ITL 27.5 ms in the replay, 20 ms measured"),
        ({"replayed_itl_s": 0.0125}, "ITL 12.5 ms in the replay, 20 ms measured"),
        ({"replayed_waiting": 14.9}, ""),
        ({"replayed_waiting": 15.2}, "15.2 requests wait in the replay, 10 were measured"),
        ({"measured_waiting": 0.5, "replayed_waiting": 5.4}, ""),  # a few requests are no queue
        ({"measured_waiting": 90.0, "replayed_waiting": 900.0}, ""),  # all of them miss
        ({"measured_itl_s": np.nan, "measured_waiting": np.nan, "replayed_waiting": 99.0}, ""),  # no metric shows it
        (with_score(measured={"attainment_ttft": np.nan, "ttft_p50_s": np.nan}), ""),
        ({"policy_attainment": 0.93}, ""),
        ({"policy_attainment": 0.915}, "97.0% by fluid sums under this policy, 91.5% in the replay"),
    ],
)
def test_doubt_names_what_is_beyond_its_limit(changed, doubt):
    assert find_doubt(replace(HOUR, **changed), GOAL, LATE_WAITING) == doubt


def test_sentence_on_the_sample_has_the_largest_errors():
    worse = replace(HOUR, policy_attainment=0.9, replayed=replace(SCORE, attainment_ttft=0.95))
    assert describe([HOUR, worse]) == (
        "Of 2 hours replayed request by request, the fluid attainment of this policy was off by at most 7 points, and "
        "the replay of the real counts by at most 3 points from what was measured."
    )
    unmeasured = replace(HOUR, measured=replace(SCORE, attainment_ttft=math.nan))
    assert describe([unmeasured]).startswith("Of 1 hour replayed ")
    assert describe([unmeasured]).endswith("this policy was off by at most 2 points.")
    assert describe([]) == ""


def test_sample_of_badly_modelled_services_is_left_out():
    """Also their hours that are right: their figures do not count."""
    wrong = replace(HOUR, row=1, policy_attainment=0.4, doubt="57.0 points")
    left = "2 hours of services that are not well modelled are left out."
    assert describe([HOUR, replace(HOUR, row=1), wrong]).startswith("Of 1 hour ")
    assert describe([HOUR, replace(HOUR, row=1), wrong]).endswith(f"from what was measured. {left}")
    assert describe([replace(HOUR, row=1), wrong]) == f"Replayed request by request: {left}"
