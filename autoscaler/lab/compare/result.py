"""The result of a comparison: every policy's run over one trace, and the lower bound. Plain values, no behaviour.

`compare` makes it, `report` shows it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from autoscaler.core.model.money import Price, UnitCosts
from autoscaler.core.table.columns import FloatColumn
from autoscaler.lab.replay.case import Goal
from autoscaler.lab.replay.score import Score

OURS = "ours"
OFFLINE_PLAN = "offline-plan"  # a schedule made with the whole trace known
MOST_TTFT_RATIO = 3.0
"""Between the median times to first token that were measured and simulated: beyond it, the profile is of others."""

MOST_ATTAINMENT_ERROR = 0.05
"""Between the attainments that were measured and simulated, likewise."""

ACTUAL = "actual"  # the actual history, from metrics
RECORDED = "recorded"  # a simulation with the actual replica counts
Params = Mapping[str, float | int | str]


@dataclass(frozen=True)
class LearningResult:
    """The result of a baseline in the learning part, at its best setting there: all that its operator could know."""

    attainment: float
    gpu_hours: float


@dataclass(frozen=True, eq=False)  # runs are compared by identity; arrays are not compared
class PolicyRun:
    """The run of one policy with one setting."""

    name: str  # one of the above, or a baseline
    tuned: bool  # tuned in hindsight, on this trace
    params: Params  # parameters common to all models of the trace; empty for `ours`
    score: Score
    timeline: FloatColumn  # float64[T, 5]: time (s), desired, ready, running, waiting; empty: not kept
    default: bool = False  # a baseline at its documented setting
    own: bool = False  # a rule that its owner has written
    before: LearningResult | None = None  # result of the setting in the learning part; None: not chosen there


@dataclass(frozen=True)
class Point:
    """One setting on a policy's frontier."""

    params: Params
    attainment: float
    gpu_hours: float


@dataclass(frozen=True)
class Comparison:
    """All runs over one trace file, with the parameters of the simulation."""

    trace: str
    profile: str
    seed: int
    goal: Goal
    cold_start_s: float
    scale: float  # superposed copies of the trace
    requests: int  # number of scored requests
    duration_s: float  # length of the scored part
    models: int  # workloads in the trace, whose figures are summed
    lower_bound_gpu_hours: float  # no schedule that meets the goal with each model takes less; NaN: unknown
    runs: tuple[PolicyRun, ...]
    frontier: Mapping[str, tuple[Point, ...]] = field(default_factory=dict)  # every tried setting, by policy
    cold_start_uncached_s: float = math.nan  # on a fresh node; NaN: as on any other
    weights_on: float = math.nan  # share of nodes that hold the weights; NaN: each has those that its replicas fetched
    cold_start_spread: float = 0.1  # sigma of the logarithm
    crash_every_s: float = math.inf  # mean, per serving replica
    router: str = "least-requests"
    patience_s: float = math.inf  # clients still waiting after this time leave
    drain_s: float = 30.0  # longest time of a terminating replica to finish its requests
    scrape_s: float = 15.0  # scrape interval
    gpus: float = math.inf  # shared by all models; infinity: no limit
    learned_s: float = 0.0  # length of the learning part
    offline_plan: PolicyRun | None = None  # cheapest schedule found for this trace; None: not requested
    estimate_gpu_hours: float = math.nan  # estimated least cost with this router; not below the bound
    notes: tuple[str, ...] = ()  # notes for the reader, such as on reconstructed requests
    gpu_price: Price = Price(math.nan, "no price of a GPU is stated")  # noqa: RUF009 - a value

    def cost(self, run: PolicyRun) -> tuple[float, UnitCosts]:
        """Return what a run cost, USD, and what its answers cost; NaN: unknown."""
        usd = run.score.gpu_hours * self.gpu_price.usd
        return usd, UnitCosts.of(usd, run.score.output_tokens, run.score.answered)

    @property
    def rows(self) -> tuple[PolicyRun, ...]:
        """Return every run to show: those of the policies, and the offline plan."""
        return self.runs if self.offline_plan is None else (*self.runs, self.offline_plan)

    def ratio(self, gpu_hours: float) -> float:
        """Return GPU-hours over the lower bound; NaN without a bound."""
        return gpu_hours / self.lower_bound_gpu_hours if self.lower_bound_gpu_hours > 0 else math.nan

    def meets_goal(self, run: PolicyRun) -> bool:
        """Return whether a run met the goal."""
        return self.goal.is_met_by(run.score.attainment)

    def misses_goal(self, run: PolicyRun) -> bool:
        """Return whether a run missed the goal; False if its attainment is unknown."""
        return not math.isnan(run.score.attainment) and not self.meets_goal(run)

    @property
    def baselines(self) -> tuple[PolicyRun, ...]:
        """Return the runs of baselines."""
        return tuple(run for run in self.runs if run.name not in (OURS, ACTUAL, RECORDED))

    def contradiction(self) -> tuple[PolicyRun, PolicyRun] | None:
        """Return the history and its simulation with the same counts, if these are too different for a verdict."""
        by_name = {run.name: run for run in self.runs}
        actual, recorded = by_name.get(ACTUAL), by_name.get(RECORDED)
        if actual is None or recorded is None:
            return None
        quicker, slower = sorted((actual.score.ttft_p50_s, recorded.score.ttft_p50_s))
        # False where one of them is unknown.
        differs = slower > MOST_TTFT_RATIO * quicker
        differs |= abs(actual.score.attainment - recorded.score.attainment) > MOST_ATTAINMENT_ERROR
        return (actual, recorded) if differs else None

    def best_baseline(self) -> PolicyRun | None:
        """Return the baseline with the fewest GPU-hours among those that met the goal, or None."""
        met = [run for run in self.baselines if self.meets_goal(run)]
        return min(met, key=lambda run: run.score.gpu_hours, default=None)

    def best_learned_baseline(self) -> PolicyRun | None:
        """Return the baseline that the learning part suggests, or None if none was tuned on it.

        It met the goal there with the fewest GPU-hours; if none met it, it came closest.
        """

        def order(run: PolicyRun) -> tuple[bool, float]:
            assert run.before
            meets = self.goal.is_met_by(run.before.attainment)
            return not meets, run.before.gpu_hours if meets else -run.before.attainment

        return min((run for run in self.baselines if run.before), key=order, default=None)
