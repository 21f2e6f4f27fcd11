"""A named cause of idle GPU-hours is true: without it these hours vanish."""

from collections.abc import Sequence

import numpy as np
import pytest

from autoscaler.config.policy.parse import load
from autoscaler.config.policy.schema import Policy
from autoscaler.core.gpu_totals import GpuTotals, TickUse
from autoscaler.core.gpu_use import GpuState, IdleCause
from autoscaler.lab.compare.experiment import goal_from_policy
from autoscaler.lab.replay.case import Case, View
from autoscaler.lab.replay.policy_scaler import PolicyFleetScaler
from autoscaler.lab.replay.run import run_fleet
from autoscaler.sim.engine.profile_file import find
from bench.studies.shapes import Shape, draw

HOURS = 2.0
SHAPE = Shape("busy for half an hour", HOURS, 6.0, lambda hour: np.where((hour >= 1) & (hour < 1.5), 1.0, 0.05))
WINDOW = "prewarm: [{from: '15 8 * * *', until: '45 8 * * *', replicas: 5}]"  # a trace begins at eight


class Counting(PolicyFleetScaler):
    """Adds up what GPUs are used for, on a pool of 40."""

    def __init__(self, case: Case, policy: Policy) -> None:
        super().__init__([case], [policy], gpus=40.0)
        self.totals = GpuTotals()

    def decide_all(self, views: Sequence[View]) -> Sequence[int]:
        counts = super().decide_all(views)
        assert self.tick_input is not None and self.decision is not None
        self.totals.add(TickUse.of(self.tick_input, self.decision), np.ones(1), 1, lambda *line: line)
        return counts


def play(tmp_path, least=1, more="", cold_start_s=120.0) -> tuple[float, dict[str, float]]:
    """Return the GPU-hours of the workload, and those that are idle by what keeps them."""
    file = tmp_path / "policy.yaml"
    file.write_text(
        "apiVersion: vllm-autoscaler.io/v1\nkind: Policy\nmetadata: {name: p}\n"
        "spec:\n  objective: {ttft: 1s, itl: 100ms, attainment: 0.99}\n"
        f"  replicas: {{min: {least}, max: 8}}\n  {more}\n"
    )
    policy = load((file,)).policies["p"]
    _, engine = find("8b-h100-3g")
    case = Case(draw(SHAPE, "day", 1), engine.profile, goal_from_policy(policy), cold_start_s, max_replicas=8)
    scaler = Counting(case, policy)
    run_fleet([case], scaler)
    sums, (pool,) = scaler.totals.of_workloads, scaler.totals.of_pools.values()
    assert pool.sum() == pytest.approx(40 * scaler.totals.seconds)
    held = sums.gpu_s[: GpuState.ORDERED].sum()
    assert pool[: GpuState.ORDERED].sum() == pytest.approx(held)
    causes = {cause.published: float(sums.idle_gpu_s[cause, 0]) / 3600 for cause in IdleCause}
    return float(held) / 3600, causes


@pytest.mark.long
def test_idle_hours_vanish_when_their_cause_is_removed(tmp_path):
    """GPUs that two causes keep are named by one. Without it the other keeps as many."""
    plain_h, plain = play(tmp_path)
    idle_h = sum(plain.values())
    assert plain["floor"] < 0.05 and plain["window"] == 0 < plain["cold_start"]

    with_floor_h, with_floor = play(tmp_path, least=4)
    assert 0.85 * (with_floor_h - plain_h) <= with_floor["floor"] <= with_floor_h - plain_h + idle_h

    with_window_h, with_window = play(tmp_path, more=WINDOW)
    assert 0.5 * (with_window_h - plain_h) <= with_window["window"] <= with_window_h - plain_h + idle_h

    _, at_once = play(tmp_path, cold_start_s=1.0)
    assert at_once["cold_start"] < 0.1 * plain["cold_start"]
