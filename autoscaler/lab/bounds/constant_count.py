"""The smallest constant replica count with which a case meets its goal."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from functools import cache

from autoscaler.lab.replay.case import Case
from autoscaler.lab.replay.request_cost import request_work_s

START_FACTOR = 4.0  # first largest count, as a multiple of the busy replicas


def find_fewest_replicas(case: Case, attained: Callable[[int], float], more: float) -> int:
    """Return the smallest count that meets the goal; if none does, the smallest that comes as close.

    attained: returns the attainment of a constant count, 0..1. Counts up to four times the busy replicas are searched.
    The limit doubles as long as the attainment rises by `more`, because bursts need many times the mean.
    """
    attained = cache(attained)
    prefill_s, decode_s = request_work_s(case)
    busy = float((prefill_s + decode_s).sum()) / case.trace.duration_s
    many = min(math.ceil(START_FACTOR * max(busy, 1.0)), case.max_replicas)
    while many < case.max_replicas and not case.goal.is_met_by(attained(many)):
        twice = min(2 * many, case.max_replicas)
        if attained(twice) < attained(many) + more:
            break
        many = twice
    enough = min(case.goal.attainment, attained(many))
    counts = range(1, many + 1)
    return counts[bisect_left(counts, True, key=lambda count: attained(count) >= enough)]
