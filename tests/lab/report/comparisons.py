"""Comparisons with made-up figures, for the tests of their presentation."""

import math
from dataclasses import replace

import numpy as np

from autoscaler.core.model.money import Price
from autoscaler.lab.compare.result import Comparison, Point, PolicyRun
from autoscaler.lab.replay.case import Goal
from autoscaler.lab.replay.score import Score

SCORE = Score(0.995, 0.997, 0.996, 2.5, 320.0, 12.0, 0.1, 0.4, 0.9, 4, 3, 1, 120.0, 0, 9000, 1.2e6)


def timeline(minutes: int = 120, replicas: float = 3.0) -> np.ndarray:
    time_s = np.arange(minutes) * 60.0
    wave = np.round(replicas * (1.5 + np.sin(time_s / 1200)))
    return np.column_stack([time_s, wave, np.roll(wave, 1), 20 * wave, np.maximum(wave - 4, 0)])


def run(name: str = "ours", tuned: bool = False, params: dict[str, float] | None = None, **values: float) -> PolicyRun:
    return PolicyRun(name, tuned, params or {}, replace(SCORE, **values), timeline())


def comparison(*runs: PolicyRun, **values: object) -> Comparison:
    made = Comparison(
        gpu_price=Price(6.88),
        trace="office-day",
        profile="8b-h100",
        seed=7,
        goal=Goal(1.0, 0.1, 0.99),
        cold_start_s=60.0,
        scale=1.0,
        requests=12_345,
        duration_s=7200.0,
        models=1,
        lower_bound_gpu_hours=10.0,
        estimate_gpu_hours=11.5,
        runs=runs or (run(), run("keda-queue", params={"target": 5.0}, attainment=0.97, gpu_hours=15.0)),
        frontier={"keda-queue": (Point({"target": 2.0}, 0.993, 19.0), Point({"target": 5.0}, 0.97, 15.0))},
    )
    return replace(made, **values)  # type: ignore[arg-type]


PLAN = run("offline-plan", attainment=0.992, gpu_hours=11.0)
NEVER = math.inf
UNTOLD = run("actual", attainment=math.nan, goodput_rps=math.nan, breach_s=math.nan, unfinished=math.nan)
