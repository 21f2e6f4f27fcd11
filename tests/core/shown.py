"""What one step of judging shows of workloads, made of the demand it stands for."""

import math
from dataclasses import replace

import numpy as np

from autoscaler.core.planner import select as R
from autoscaler.core.planner import step_time
from autoscaler.core.planner.interval import Seen
from autoscaler.core.planner.pod_work import Tally
from autoscaler.core.planner.strategies import EVERY_S

NAN = math.nan
WORK_S = 2.0  # of a request
IDLE_GAP_S = 0.01
PROMPT_TOKEN_S, OUTPUT_TOKEN_S = IDLE_GAP_S / 180, IDLE_GAP_S / 100  # near to what is believed of every engine


def seen(demand, *, replicas=None, busy=None, late=0.0, tally=None, **columns):
    """What one step shows of workloads in which so many replicas are kept busy by what arrives; numbers or float64[W].

    late: share of the requests served that missed TTFT. tally: single counts that are not those that follow.
    """
    demand = np.atleast_1d(np.asarray(demand, dtype=float))
    rows = len(demand)
    replicas = np.maximum(np.ceil(demand / 0.6), 1) if replicas is None else replicas
    busy = np.minimum(demand / replicas, 0.95) if busy is None else busy
    arrived, served = demand * EVERY_S / WORK_S, busy * replicas * EVERY_S / WORK_S
    gap_s = np.broadcast_to(IDLE_GAP_S / (1 - busy), rows)
    counts = {
        **dict.fromkeys(Tally.__dataclass_fields__, 0.0),
        "covered_s": replicas * EVERY_S,
        "arrived": arrived,
        "queue_grown": np.maximum(arrived - served, 0.0),
        "began": served,
        "ttft_judged": served,
        "ttft_missed": late * served,
        "gaps": 1000.0,
        "gap_s": 1000.0 * gap_s,
        "writing_pods": replicas,
        "paces_per_s": replicas / gap_s,
        "shortest_gap_s": IDLE_GAP_S,
        "readings": replicas,
        **(tally or {}),
    }
    half = busy / 2  # of what it computes are prompts, the other half answers
    counts["lessons"] = replicas * step_time.lessons(gap_s, half / PROMPT_TOKEN_S, half / OUTPUT_TOKEN_S)
    told = {
        "replicas": replicas,
        "served": replicas,
        "waiting": 0.0,
        "cold_start_s": 60.0,
        "ttft_objective_s": 1.0,
        "itl_objective_s": 0.1,
        "may_miss": 0.01,
        "floor": 1.0,
        "ceiling": 100.0,
        **columns,
    }
    tables = [
        {name: np.broadcast_to(np.asarray(value, float), (*np.shape(value)[:-1], rows)) for name, value in some.items()}
        for some in (counts, told)
    ]
    return Seen(Tally(**tables[0]), **tables[1])


def silence(**columns):
    """A step in which no pod told anything."""
    nothing = dict.fromkeys(Tally.__dataclass_fields__, 0.0) | {"shortest_gap_s": NAN}
    quiet = seen(0.0, replicas=4, tally=nothing, **columns)
    return replace(quiet, tally=replace(quiet.tally, lessons=np.zeros((step_time.SUMS, 1))))


def live(demands, rules=None, now_s=1000.0, **columns):
    """Judge through these demands, one each step."""
    rules = R.Rules.blank(np.size(demands[0])) if rules is None else rules
    for demand in demands:
        now_s += EVERY_S
        rules = R.judge(rules, seen(demand, **columns), now_s)
    return rules


def judged(rules, shown, after_s=EVERY_S):
    return R.judge(rules, shown, float(rules.last_judged_s[0]) + after_s)
