"""Hours that were replayed request by request, and when a service counts as not well modelled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autoscaler.lab.replay.case import Goal
from autoscaler.lab.replay.score import Score
from autoscaler.lab.report.format import count

ATTAINMENT_LIMIT = 0.05
TTFT_LIMIT, ITL_LIMIT = 0.5, 0.35
WAITING_LIMIT, LEAST_WAITING = 0.5, 5.0
"""A row is not well modelled if the replay of the real counts differs by more from what was measured: attainment by
more than this, TTFT at the median by this share of the objective, ITL by this share of what was measured, waiting
requests by this share of it and by `LEAST_WAITING`. Nor is it if the fluid attainment of the policy differs by more
than `ATTAINMENT_LIMIT` from the replay of the policy's counts."""

LATE = 2.0
"""Waits beyond this many times the objective are equally late."""


@dataclass(frozen=True)
class Hour:
    """One replayed hour of one service. Measured values are NaN where no metric shows them."""

    row: int
    kind: str  # "worst" or "ordinary"
    start_s: float  # Unix time
    requests: int
    measured: Score
    replayed: Score  # with the real counts
    measured_itl_s: float
    replayed_itl_s: float
    measured_waiting: float
    replayed_waiting: float
    fluid_attainment: float  # with the counts of this policy
    policy_attainment: float  # the same counts, request by request
    doubt: str  # why the service is not well modelled; "": it is


def find_doubt(hour: Hour, goal: Goal, late_waiting: float) -> str:
    """Return in which way the replay is too far from what was measured, or the fluid figure from it; "": in none.

    late_waiting: waiting requests from which all of them miss. A queue or a wait far beyond what misses is not
    compared: a replay begins without the queue of hours before, and histograms end somewhere.
    """
    was, made, most_s = hour.measured, hour.replayed, LATE * goal.ttft_s
    if abs(made.attainment_ttft - was.attainment_ttft) > ATTAINMENT_LIMIT:
        return f"{made.attainment_ttft:.1%} within TTFT in the replay, {was.attainment_ttft:.1%} measured"
    if abs(min(made.ttft_p50_s, most_s) - min(was.ttft_p50_s, most_s)) > TTFT_LIMIT * goal.ttft_s:
        return f"median TTFT {made.ttft_p50_s:.3g} s in the replay, {was.ttft_p50_s:.3g} s measured"
    if abs(hour.replayed_itl_s - hour.measured_itl_s) > ITL_LIMIT * hour.measured_itl_s:
        return f"ITL {1000 * hour.replayed_itl_s:.3g} ms in the replay, {1000 * hour.measured_itl_s:.3g} ms measured"
    off = abs(min(hour.replayed_waiting, late_waiting) - min(hour.measured_waiting, late_waiting))
    if off > LEAST_WAITING and off > WAITING_LIMIT * hour.measured_waiting:
        return f"{hour.replayed_waiting:.3g} requests wait in the replay, {hour.measured_waiting:.3g} were measured"
    if abs(hour.fluid_attainment - hour.policy_attainment) > ATTAINMENT_LIMIT:
        fluid = f"{hour.fluid_attainment:.1%} by fluid sums under this policy"
        return f"{fluid}, {hour.policy_attainment:.1%} in the replay"
    return ""


def describe(hours: Sequence[Hour]) -> str:
    """Return how far the fluid figures and the replay were off for services that are well modelled.

    "": no hour was replayed.
    """
    doubtful = {hour.row for hour in hours if hour.doubt}
    left = sum(hour.row in doubtful for hour in hours)
    hours = [hour for hour in hours if hour.row not in doubtful]
    others = f"{count(left, 'hour')} of services that are not well modelled {'is' if left == 1 else 'are'} left out"
    if not hours:
        return f"Replayed request by request: {others}." if left else ""
    fluid = max(abs(hour.fluid_attainment - hour.policy_attainment) for hour in hours)
    real = [abs(hour.replayed.attainment_ttft - hour.measured.attainment_ttft) for hour in hours]
    told = ""
    if known := [each for each in real if not math.isnan(each)]:
        told = f", and the replay of the real counts by at most {100 * max(known):.2g} points from what was measured"
    return (
        f"Of {count(len(hours), 'hour')} replayed request by request, the fluid attainment of this policy was off by "
        f"at most {100 * fluid:.2g} points{told}." + (f" {others}." if left else "")
    )
