"""llm-d's Workload Variant Autoscaler: supply against demand, by saturation (tokens) or throughput (tokens/s).

Source: llm-d-workload-variant-autoscaler, internal/engines: analyzers/saturation_v2/analyzer.go, compared at b28a4f6,
and pipeline/cost_aware_optimizer.go, at 74afe4c. For the throughput analyzer: issue 1005 and pull request 1250 (version
not recorded, a later one is 88d6832). For the HPA: docs/integrations/hpa-integration.md, at d44975b.

Cycle 15 s. The recommendation goes through an HPA (AverageValue 1): both ways 240 s stabilization and 10 pods per 150
s.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

import numpy as np

from autoscaler.core.table.columns import FloatColumn
from autoscaler.lab.baselines.base import MIN_REPLICAS, POSITIVE, Axis, Baseline, Params, min_replicas_to_try, number
from autoscaler.lab.baselines.hpa import SYNC_S, Direction, Hpa, Policy
from autoscaler.lab.baselines.signals import inflight, mean_itl_s, mean_lengths, rate, waiting
from autoscaler.lab.replay.case import Case, Scaler, View
from autoscaler.sim.engine.profiles import Profile

UP_THRESHOLD, DOWN_BOUNDARY = 0.85, 0.70
KV_THRESHOLD = 0.8
QUEUE_THRESHOLD = 5
STABILIZATION_S = 240.0
POLICIES = (Policy("Pods", 10, 150.0),)
RETENTION_S = 600.0  # idle time before scaling to zero
LENGTHS_S = 300.0  # window of mean lengths
RATE_WINDOW_S = 60.0
CAPACITY_OBSERVATIONS = 10  # kept observations of the compute bound
ITL_OBSERVATIONS = 120  # kept observations of ITL and KV usage: half an hour
LEAST_SPREAD = 0.05  # range of KV usage below which the slope is unknown

Analysis = tuple[float, float]  # capacity of a replica, and demand, in the same unit


def steady_tokens(profile: Profile, prompt: float, output: float) -> float:
    """Return the compute bound k2 from the engine's limits: with 1000 + 250 tokens 1638 sequences, clamped to the
    slots.
    """
    sequences = min(profile.max_batched_tokens * output / (prompt + output), profile.max_num_seqs)
    return sequences * (prompt + output / 2)


def balance(desired: int, ready: int, capacity: float, demand: float, up: float, down: float) -> int:
    """Return the count that brings demand between the thresholds, at least 1.

    desired: ready and pending. Example: capacity 100, demand 500, 4 ready of 4, 0.85: 588 - 400 = 188 short, so 6.
    """
    if capacity <= 0:
        return desired
    required = demand / up - desired * capacity
    if required > 0:
        return desired + math.ceil(required / capacity - 1e-9)
    spare = ready * capacity - demand / down
    return max(desired - math.floor(spare / capacity + 1e-9), 1) if spare > 0 else desired


def last_lengths(view: View, before: tuple[float, float]) -> tuple[float, float]:
    """Return mean prompt and output of the latest requests; `before` without any."""
    prompt, output = (
        old if math.isnan(new) else new for new, old in zip(mean_lengths(view, LENGTHS_S), before, strict=True)
    )
    return prompt, output


class Saturation:
    """Demand: KV tokens in use and queued prompts. Capacity: the smaller of a KV bound and a compute bound.

    The compute bound is the mean usage while a replica queued; before any queue, it follows from the engine's limits.
    KV usage is that of the last scrape. The maximum over a minute would hide the compute bound (its issue 1500).
    """

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._observed: deque[float] = deque(maxlen=CAPACITY_OBSERVATIONS)
        self._lengths = (math.nan, math.nan)

    def __call__(self, view: View) -> Analysis | None:
        prompt, output = self._lengths = last_lengths(view, self._lengths)
        totals = view.totals
        if math.isnan(prompt) or not len(totals.kv_usage):
            return None
        in_use = totals.kv_usage * self._profile.kv_capacity_tokens
        saturated = (totals.waiting >= QUEUE_THRESHOLD) & (in_use > 0)
        compute = np.full(len(in_use), self._compute_bound(prompt, output))
        compute[saturated] = in_use[saturated]
        self._observed.extend(in_use[saturated].tolist())
        capacity = np.minimum(compute, KV_THRESHOLD * self._profile.kv_capacity_tokens)
        return float(np.median(capacity)), float(in_use.sum()) + waiting(totals) * prompt

    def _compute_bound(self, prompt: float, output: float) -> float:
        if self._observed:
            return float(np.mean(self._observed))
        return math.inf if math.isnan(output) else steady_tokens(self._profile, prompt, output)


class Throughput:
    """Demand: arriving output tokens per second. Capacity: N / ITL at a KV usage of `k`, with a fitted ITL = A k + B.

    Defect fixed: N is clamped to the engine's slots; otherwise short requests would promise more than can run.
    """

    def __init__(self, profile: Profile, k: float) -> None:
        self._profile, self._k = profile, k
        self._totals: deque[tuple[float, float]] = deque(maxlen=ITL_OBSERVATIONS)
        self._lengths = (math.nan, math.nan)

    def __call__(self, view: View) -> Analysis | None:
        prompt, output = self._lengths = last_lengths(view, self._lengths)
        itl_s = mean_itl_s(view, RATE_WINDOW_S)
        if len(view.totals.kv_usage) and not math.isnan(itl_s):
            self._totals.append((float(view.totals.kv_usage.mean()), itl_s))
        if not self._totals or math.isnan(prompt) or math.isnan(output):
            return None
        queued = waiting(view.totals) * output / RATE_WINDOW_S  # to drain within the window
        return self.capacity(prompt, output), rate(view, "arrivals", RATE_WINDOW_S) * output + queued

    def capacity(self, prompt: float, output: float) -> float:
        """Return the tokens per second of a replica at `k`."""
        tokens = self._k * self._profile.kv_capacity_tokens
        sequences = min(tokens / (prompt + output / 2), self._profile.max_num_seqs)
        # With few slots the cache never fills up to `k`; ITL is then that of the reachable usage.
        k = sequences * (prompt + output / 2) / self._profile.kv_capacity_tokens
        slope, base_s = fit_line(np.array(self._totals), self._profile.step_s)
        return sequences / max(slope * k + base_s, 1e-6)


def fit_line(points: FloatColumn, base_s: float) -> tuple[float, float]:
    """Return A and B of ITL = A k + B by least squares; through `base_s` if the points lie too close together.

    points: float64[n, 2], KV usage and ITL in seconds.
    """
    k, itl_s = points[:, 0], points[:, 1]
    if len(k) > 2 and k.max() - k.min() >= LEAST_SPREAD:
        slope = float(((k - k.mean()) * (itl_s - itl_s.mean())).sum() / ((k - k.mean()) ** 2).sum())
        if slope > 0 and itl_s.mean() - slope * k.mean() > 0:
            return slope, float(itl_s.mean() - slope * k.mean())
    square = float((k**2).sum())
    slope = float((k * (itl_s - base_s)).sum()) / square if square > 0 else 0.0
    return max(slope, 0.0), base_s


class Wva:
    """An analyzer, the optimizer for one variant, and the HPA behind it."""

    period_s = SYNC_S

    def __init__(
        self,
        name: str,
        case: Case,
        analyze: Callable[[View], Analysis | None],
        up: float = UP_THRESHOLD,
        down: float = DOWN_BOUNDARY,
        stabilization_s: float = STABILIZATION_S,
        least: int = 1,
    ) -> None:
        self.name = name
        self._analyze, self._up, self._down, self._least = analyze, up, down, least
        direction = Direction(stabilization_s, POLICIES)
        # Defect fixed: the HPA's default tolerance would ignore a recommendation of 11 with 10 replicas.
        self._hpa = Hpa(1.0, least, case.max_replicas, direction, direction, tolerance=0.0)
        self._asked_s = 0.0  # time of the last request

    def decide(self, view: View) -> int:
        analysis = self._analyze(view)
        if inflight(view.totals) > 0 or rate(view, "arrivals", RATE_WINDOW_S) > 0:
            self._asked_s = view.now_s
        if view.desired == 0:  # its scale-from-zero loop reads the gateway's queue
            return 1 if view.totals.gateway_waiting > 0 else self._least
        if self._least == 0 and view.now_s - self._asked_s >= RETENTION_S:
            return 0
        desired = view.desired
        if analysis is not None:
            desired = balance(view.desired, view.ready, *analysis, self._up, self._down)
        return self._hpa.sync(view.now_s, view.desired, float(desired))


def _saturation(case: Case, params: Params) -> Scaler:
    return _wva("wva-saturation", case, params, Saturation(case.profile))


def _throughput(case: Case, params: Params) -> Scaler:
    return _wva("wva-throughput", case, params, Throughput(case.profile, number(params, "kv_usage")))


def _wva(name: str, case: Case, params: Params, analyze: Callable[[View], Analysis | None]) -> Scaler:
    up = number(params, "scale_up_threshold")
    down = up * DOWN_BOUNDARY / UP_THRESHOLD
    least = int(number(params, MIN_REPLICAS))
    return Wva(name, case, analyze, up, down, number(params, "stabilization_s"), least)


def _axes(case: Case) -> tuple[Axis, ...]:
    return (
        Axis("scale_up_threshold", (0.2, 0.35, 0.6, UP_THRESHOLD, 1.2), within=POSITIVE),
        Axis("stabilization_s", (30.0, STABILIZATION_S)),
        Axis(MIN_REPLICAS, min_replicas_to_try(case, RETENTION_S)),
    )


def _throughput_axes(case: Case) -> tuple[Axis, ...]:
    return (Axis("kv_usage", (0.5, 0.8)), *_axes(case))


def _default(case: Case) -> Params:
    """As in its configuration; `scaleToZero` is off."""
    return {"scale_up_threshold": UP_THRESHOLD, "stabilization_s": STABILIZATION_S, MIN_REPLICAS: 1.0}


def _throughput_default(case: Case) -> Params:
    return {"kv_usage": KV_THRESHOLD, **_default(case)}


WVA_SATURATION = Baseline("wva-saturation", "llm-d WVA, saturation_v2/analyzer.go", _saturation, _axes, _default)
WVA_THROUGHPUT = Baseline(
    "wva-throughput", "llm-d WVA, throughput analyzer, PR 1250", _throughput, _throughput_axes, _throughput_default
)
