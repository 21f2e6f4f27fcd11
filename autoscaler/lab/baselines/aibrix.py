"""AIBrix's application pod autoscaler (APA).

Source: vllm-project/aibrix at 4148b7a, pkg/controller/podautoscaler/algorithm/apa.go and context/context.go. Sync every
10 s, tolerance 0.1 both ways. At most doubling, at most halving. Up at once, down to the highest recommendation of 300
s.
"""

from __future__ import annotations

import math

from autoscaler.lab.baselines.base import MIN_REPLICAS, POSITIVE, Axis, Baseline, Params, concurrencies_to_try, number
from autoscaler.lab.baselines.load_test import cached_requests
from autoscaler.lab.baselines.signals import MovingMax, inflight
from autoscaler.lab.replay.case import Case, Scaler, View

SYNC_S = 10.0
TOLERANCE = 0.1
MAX_RATE = 2.0
DOWN_COOLDOWN_S = 300.0
SAMPLE_KV_USAGE = 0.5


def desired_replicas(replicas: int, q: float) -> int:
    """Return the recommendation for `q` times the target: 4 and 1.5 give 6, 4 and 3 give 8, 4 and 0.2 give 2."""
    exact = math.ceil(replicas * q - 1e-9)
    if q > 1 + TOLERANCE:
        return min(exact, math.ceil(MAX_RATE * replicas))
    if q < 1 - TOLERANCE:
        return max(exact, math.floor(replicas / MAX_RATE))
    return replicas


class AibrixApa:
    """Requests per replica against a target. The minimum is 1 or more: scaling to zero is off by default.

    Defect fixed: starting replicas count as idle. The mean over ready replicas, times all replicas, would double the
    count every 10 s during a cold start.
    """

    name = "aibrix-apa"
    period_s = SYNC_S

    def __init__(self, case: Case, target: float, down_s: float = DOWN_COOLDOWN_S, least: int = 1) -> None:
        self._target, self._least, self._most = target, least, case.max_replicas
        self._recent_max = MovingMax(down_s)

    def decide(self, view: View) -> int:
        current = max(view.desired, 1)
        desired = desired_replicas(current, inflight(view.totals) / (self._target * current))
        desired = min(max(desired, self._least), self._most)
        recent = self._recent_max.add(view.now_s, desired)
        return desired if desired >= current else min(recent, current)


def _make(case: Case, params: Params) -> Scaler:
    return AibrixApa(
        case, number(params, "target"), number(params, "down_cooldown_s"), int(number(params, MIN_REPLICAS))
    )


def _axes(case: Case) -> tuple[Axis, ...]:
    return (
        Axis("target", concurrencies_to_try(case), within=POSITIVE),
        Axis("down_cooldown_s", (60.0, DOWN_COOLDOWN_S)),
        Axis(MIN_REPLICAS, (1.0,)),
    )


def _default(case: Case) -> Params:
    """As in samples/autoscaling/apa.yaml: half of the KV cache, here in requests."""
    target = min(SAMPLE_KV_USAGE * cached_requests(case), float(case.profile.max_num_seqs))
    return {"target": float(f"{max(target, 1.0):.6g}"), "down_cooldown_s": DOWN_COOLDOWN_S, MIN_REPLICAS: 1.0}


AIBRIX_APA = Baseline(
    "aibrix-apa",
    "AIBrix, algorithm/apa.go",
    _make,
    _axes,
    _default,
    derived="target: the sample's half of the KV cache, in requests of mean length, at most the engine's slots",
)
