"""Rules on the times of single requests: what they see and decide, computed again from the record of each request."""

from bisect import bisect_left

import numpy as np
import pytest

from autoscaler.config.rules.rule import Rule
from autoscaler.lab.baselines.own_rule import OwnRule, RuleSetting
from autoscaler.lab.replay.case import View
from autoscaler.lab.replay.engine.front import Front
from autoscaler.lab.replay.engine.gpu_pool import GpuPool
from autoscaler.lab.replay.run import CaseRun
from autoscaler.sim.engine.metrics import REQUEST_BOUNDS_S
from tests.lab.baselines.controller import Controller
from tests.lab.baselines.test_own_rule import MONDAY_S, prometheus, rule
from tests.lab.replay.cases import make_case, trace_of

WINDOW_S = 120.0
SECONDS = [*np.arange(0.0, 600.0, 0.5), *np.arange(600.0, 1500.0, 0.09), *np.arange(1500.0, 2400.0, 0.5)]
TOKENS = np.random.default_rng(5).integers(20, 300, len(SECONDS)).tolist()

Seen = tuple[float, float, float, int, int]  # time, scrape, scrape at the begin of the window, ready, current


def play(found: Rule) -> tuple[list[Seen], list[int], Front]:
    """Run a rule; return what it saw, its counts, and the front with the record of each request."""
    case = make_case(trace_of(SECONDS, TOKENS), start_replicas=2)
    front = Front((case,))
    case_run = CaseRun(case, GpuPool.for_cases((case,)), front, 0)
    scaler, seen, counts = OwnRule(RuleSetting(found, MONDAY_S), 2), [], []
    decide_s = 15.0
    while case_run.outcome is None:
        now_s = min(case_run.due_s, decide_s)
        case_run.advance(now_s)
        if case_run.scrape_due_s <= now_s:
            case_run.scrape(now_s)
        if decide_s <= now_s:
            view: View = case_run.view
            before_s = view.totals_ago(WINDOW_S).time_s
            seen.append((now_s, view.totals.time_s, before_s, view.ready, view.desired))
            counts.append(scaler.decide(view))
            case_run.scale(counts[-1], now_s)
            decide_s += 15.0
    return seen, counts, front


def times_between(front: Front, kind: str, after_s: float, upto_s: float) -> list[float]:
    """Return a time of each request that ended within a window."""
    records = front.state.requests
    ended = records[(after_s < records["end_s"]) & (records["end_s"] <= upto_s)]
    return [float(each["scheduled_s" if kind == "queue" else "end_s"] - each["submitted_s"]) for each in ended]


def quantile_of(times: list[float], q: float) -> float:
    """Return the quantile as Prometheus estimates it from vLLM's buckets."""
    bounds = [*REQUEST_BOUNDS_S, np.inf]
    counts = [0] * len(bounds)
    for value in times:
        counts[bisect_left(bounds, value)] += 1
    rank, below = q * len(times), 0
    for number, count in enumerate(counts):
        if below + count >= rank:
            start = bounds[number - 1] if number else 0.0
            return start + (bounds[number] - start) * (rank - below) / count
        below += count
    raise AssertionError(times)


QUANTILE = "histogram_quantile(0.95, sum by (le) (rate(vllm:{}_bucket[2m])))"
BY_SERVICE = 'max(histogram_quantile(0.95, sum by (service, le) (increase(vllm_{}_bucket{{namespace="a"}}[2m]))))'
MEAN = "sum(rate(vllm:{0}_sum[2m])) / sum(rate(vllm:{0}_count[2m]))"
E2E, QUEUE = "e2e_request_latency_seconds", "request_queue_time_seconds"
RECORDED = {"team:queue:mean2m": MEAN.format(QUEUE)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("query", "kind", "target"),
    [
        (QUANTILE.format(E2E), "e2e", 6.0),
        (BY_SERVICE.format(QUEUE), "queue", 1.0),
        ("team:queue:mean2m", "queue", 0.5),
        (MEAN.format(E2E), "e2e", 2.5),
    ],
)
def test_latency_in_a_rule_is_that_of_each_request(query: str, kind: str, target: float) -> None:
    found = rule(prometheus(query, str(target), "Value"), minReplicaCount=1, maxReplicaCount=12, recorded=RECORDED)
    seen, counts, front = play(found)
    controller, (metric,) = Controller(found.hpa), found.metrics
    for (now_s, scraped_s, before_s, ready, current), count in zip(seen, counts, strict=True):
        times = times_between(front, kind, before_s, scraped_s)
        found_s = quantile_of(times, 0.95) if "quantile" in query else float(np.mean(times))
        assert controller.reconcile(now_s, current, ready, [(metric, [round(found_s, 3)])]) == count
    assert max(counts) > 4 and counts[-1] < max(counts)
