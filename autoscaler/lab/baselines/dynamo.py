"""NVIDIA Dynamo's planner for aggregated prefill and decode: its throughput mode and its load mode.

Source: ai-dynamo/dynamo, components/src/dynamo/planner, compared at: core/throughput_scaling.py 0c9050c,
core/load_scaling.py 0c6da1e, core/perf_model/agg.py 518a702, config/defaults.py 1ca6015.

Throughput mode: every 180 s, the predicted requests over the capacity of one engine at the largest batch that keeps
TTFT and ITL. Load mode: every 5 s, one engine more if all are expected to break an objective. One less if the others
stay below 80 % of it. No change while one is in progress.

Deviations from the source:

* It sizes one aggregated engine (mode `agg`; the default is `disagg`), because every simulated replica does prefill and
  decode.
* The ITL correction of earlier versions (0.8, decode), which these commits lack, is a setting: the expected ITL, times
  observed over expected ITL of the last interval, must keep the objective. The prefill correction, min(1, observed over
  expected TTFT), is 1 here: without a prompt cache, no prompt is faster than on an idle engine.
* Its load mode reads every forward pass; here it reads the last scrape, as all scalers do.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from autoscaler.core.table.columns import FloatColumn
from autoscaler.lab.baselines.base import MIN_REPLICAS, Axis, Baseline, Params, number
from autoscaler.lab.baselines.load_test import engine_rps, steady_itl_s, step_s, ttft_s
from autoscaler.lab.baselines.predictors import Series
from autoscaler.lab.baselines.signals import inflight, mean_itl_s, mean_lengths, rate
from autoscaler.lab.replay.case import Case, Goal, Scaler, View

INTERVAL_S = 180.0
LOAD_INTERVAL_S = 5.0
SENSITIVITY = 0.8
SLA_SHARES = (0.02, 2.0)  # fractions of the objectives; with much less, an engine takes one request at a time
WINDOW_S = 60.0  # window of lengths and rates in load mode


class DynamoThroughput:
    """Throughput mode: predicts requests and lengths of the next interval, and sizes engines for them."""

    name = "dynamo-throughput"

    def __init__(
        self,
        case: Case,
        predictor: str = "arima",
        interval_s: float = INTERVAL_S,
        sla: float = 1.0,
        least: int = 1,
        corrected: bool = False,
    ) -> None:
        self.period_s = interval_s
        self._scrape_s, self._corrected = case.scrape_s, corrected
        self._profile, self._least, self._most = case.profile, least, case.max_replicas
        self._goal = _share_of(case.goal, sla)
        self._requests, self._isl, self._osl = (Series(predictor) for _ in range(3))

    def decide(self, view: View) -> int:
        self._requests.add(rate(view, "arrivals", self.period_s))
        for series, length in zip((self._isl, self._osl), mean_lengths(view, self.period_s), strict=True):
            if not math.isnan(length):
                series.add(length)
        isl, osl = self._isl.next(self.period_s), self._osl.next(self.period_s)
        if isl < 1 or osl < 1:
            return max(view.desired, self._least)
        goal = replace(self._goal, itl_s=self._goal.itl_s / self.correction(view)) if self._corrected else self._goal
        desired = math.ceil(self._requests.next(self.period_s) / engine_rps(self._profile, goal, isl, osl) - 1e-9)
        return min(max(desired, self._least), self._most)

    def correction(self, view: View) -> float:
        """Return observed over expected ITL of the last interval; 1 if unknown."""
        (isl, osl), itl_s = mean_lengths(view, self.period_s), mean_itl_s(view, self.period_s)
        if math.isnan(isl + osl + itl_s):
            return 1.0
        scrapes = [view.totals_ago(ago_s) for ago_s in np.arange(0.0, self.period_s, self._scrape_s)]
        concurrency = np.mean([inflight(totals) / max(len(totals.running), 1) for totals in scrapes])
        batch = np.clip([concurrency], 1.0, self._profile.max_num_seqs)
        return itl_s / float(steady_itl_s(self._profile, batch, isl, osl)[0])


class DynamoLoad:
    """Load mode: predicts each engine's next TTFT and ITL from its queue and KV cache, and takes single steps."""

    name = "dynamo-load"
    period_s = LOAD_INTERVAL_S

    def __init__(self, case: Case, sensitivity: float = SENSITIVITY, sla: float = 1.0, least: int = 1) -> None:
        self._profile, self._least, self._most = case.profile, least, case.max_replicas
        self._sensitivity = sensitivity
        self._goal = _share_of(case.goal, sla)

    def decide(self, view: View) -> int:
        if view.desired < self._least:
            return self._least
        if view.starting or view.ready != view.desired:  # a change is in progress
            return view.desired
        isl, osl = mean_lengths(view, WINDOW_S)
        engines = len(view.totals.running)
        if math.isnan(isl) or math.isnan(osl) or not engines:
            return view.desired
        itl_s = mean_itl_s(view, WINDOW_S)
        steps_per_s = engines / itl_s if itl_s > 0 else math.inf
        prompt_per_step = rate(view, "prompt_tokens", WINDOW_S) / steps_per_s
        return min(max(self.step(view, isl, osl, prompt_per_step), self._least), self._most)

    def step(self, view: View, isl: float, osl: float, prompt_per_step: float) -> int:
        """Return the present count, or one more, or one less."""
        totals, desired = view.totals, view.desired
        queued = totals.waiting * isl
        kv_tokens = totals.kv_usage * self._profile.kv_capacity_tokens
        first_s, gap_s = self._latencies(queued, kv_tokens, totals.running, isl, osl, prompt_per_step)
        if (first_s > self._goal.ttft_s).all() or (gap_s > self._goal.itl_s).all():
            return desired + 1
        if desired < 2:
            return desired
        # With one engine less, each other one takes its part of queue and cache.
        more = desired / (desired - 1)
        combined = (kv_tokens + queued) * more
        first_s, _ = self._latencies(queued * more, kv_tokens * more, totals.running * more, isl, osl, prompt_per_step)
        idle_s, _ = self._latencies(0 * queued, kv_tokens * more, totals.running * more, isl, osl, prompt_per_step)
        _, gap_s = self._latencies(queued, combined, totals.running * more, isl, osl, prompt_per_step * more)
        budget_s = (self._goal.ttft_s - idle_s) * self._sensitivity
        fits = (
            (budget_s > 0)
            & (first_s - idle_s < budget_s)
            & (gap_s < self._goal.itl_s * self._sensitivity)
            & (combined < self._profile.kv_capacity_tokens)
        )
        return desired - 1 if fits.all() else desired

    def _latencies(
        self,
        queued: FloatColumn,
        kv_tokens: FloatColumn,
        batch: FloatColumn,
        isl: float,
        osl: float,
        prompt_per_step: float,
    ) -> tuple[FloatColumn, FloatColumn]:
        """Return expected TTFT and ITL of a new request of mean length on each engine, in seconds, float64[R] each."""
        first_s = ttft_s(self._profile, queued + isl, batch, kv_tokens)
        gap_s = step_s(self._profile, np.full(len(batch), prompt_per_step), batch + 1, kv_tokens + isl + osl / 2)
        return first_s, gap_s


def _share_of(goal: Goal, share: float) -> Goal:
    """Return the objectives to keep; an objective that is not stated becomes infinite."""
    ttft_s, itl_s = (share * (math.inf if math.isnan(limit_s) else limit_s) for limit_s in (goal.ttft_s, goal.itl_s))
    return Goal(ttft_s, itl_s, goal.attainment)


def _throughput(case: Case, params: Params) -> Scaler:
    interval_s, sla = number(params, "interval_s"), number(params, "sla_share")
    least, corrected = int(number(params, MIN_REPLICAS)), params["correction"] == "decode"
    return DynamoThroughput(case, str(params["predictor"]), interval_s, sla, least, corrected)


def _load(case: Case, params: Params) -> Scaler:
    return DynamoLoad(
        case, number(params, "sensitivity"), number(params, "sla_share"), int(number(params, MIN_REPLICAS))
    )


def _throughput_axes(case: Case) -> tuple[Axis, ...]:
    return (
        Axis("predictor", ("constant", "arima", "kalman", "prophet", "seasonal")),
        Axis("interval_s", (60.0, INTERVAL_S)),
        Axis("sla_share", (0.25, 0.5, 1.0), within=SLA_SHARES),
        Axis("correction", ("none",), extra_values=("decode",)),
        Axis(MIN_REPLICAS, (1.0,)),  # `min_endpoint`
    )


def _load_axes(case: Case) -> tuple[Axis, ...]:
    return (
        Axis("sensitivity", (0.2, 0.4, SENSITIVITY), within=(0.01, 1.0)),  # a whole percentage
        Axis("sla_share", (0.125, 0.25, 0.5, 1.0), within=SLA_SHARES),
        Axis(MIN_REPLICAS, (1.0,)),
    )


def _throughput_default(case: Case) -> Params:
    """As in config/defaults.py."""
    return {"predictor": "arima", "interval_s": INTERVAL_S, "sla_share": 1.0, "correction": "none", MIN_REPLICAS: 1.0}


def _load_default(case: Case) -> Params:
    return {"sensitivity": SENSITIVITY, "sla_share": 1.0, MIN_REPLICAS: 1.0}


DYNAMO_THROUGHPUT = Baseline(
    "dynamo-throughput",
    "NVIDIA Dynamo planner, throughput_scaling.py",
    _throughput,
    _throughput_axes,
    _throughput_default,
)
DYNAMO_LOAD = Baseline("dynamo-load", "NVIDIA Dynamo planner, load_scaling.py", _load, _load_axes, _load_default)
