"""The fewest replicas, always there, with which a case meets its goal."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from functools import cache

from autoscaler.lab.replay.case import Case
from autoscaler.lab.replay.request_cost import request_work_s

MANY = 4.0  # times what its work keeps busy are tried first


def fewest(case: Case, attained: Callable[[int], float], more: float) -> int:
    """Return the fewest replicas that meet the goal; where no number does, the fewest that come as near.

    attained: the share of the requests that so many serve by the goal. Four times what the work of the case keeps busy
    are tried, and twice as many for as long as that serves `more` of the requests more: bursts need many times their
    mean.
    """
    attained = cache(attained)
    prefill_s, decode_s = request_work_s(case)
    busy = float((prefill_s + decode_s).sum()) / case.trace.duration_s
    many = min(math.ceil(MANY * max(busy, 1.0)), case.max_replicas)
    while many < case.max_replicas and not case.goal.met_by(attained(many)):
        twice = min(2 * many, case.max_replicas)
        if attained(twice) < attained(many) + more:
            break
        many = twice
    enough = min(case.goal.attainment, attained(many))
    counts = range(1, many + 1)
    return counts[bisect_left(counts, True, key=lambda count: attained(count) >= enough)]
