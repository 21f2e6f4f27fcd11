"""What a proof found: every policy's run over one trace, beside the clairvoyant bound. Plain values, no behaviour.

`compare` makes one; `report` shows it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from autoscaler.core.table.columns import FloatColumn
from autoscaler.lab.replay.case import Goal
from autoscaler.lab.replay.score import Score

OURS = "ours"
OFFLINE_PLAN = "planned"  # a schedule made with the whole trace in hand
ACTUAL = "actual"  # what metrics say of what happened
RECORDED = "recorded"  # as many replicas as there were
Params = Mapping[str, float | int | str]


@dataclass(frozen=True)
class LearningResult:
    """What a baseline came to at its best setting before figures count: all that its owner knew when choosing it."""

    attainment: float
    gpu_hours: float


@dataclass(frozen=True, eq=False)  # two runs of one setting are two; and arrays are not compared
class PolicyRun:
    """One policy with one setting."""

    name: str  # one of the above, or that of a baseline
    tuned: bool  # with hindsight, on this very trace
    params: Params  # of the setting, where all models of the trace have the same; empty for `ours`
    score: Score
    timeline: FloatColumn  # float64[T, 5]: time, wanted, ready, running, waiting; empty: not kept
    default: bool = False  # a baseline as its documentation would have it, without hindsight
    before: LearningResult | None = (
        None  # what its setting came to on what is only learned from; None: not chosen by that
    )


@dataclass(frozen=True)
class Point:
    """One setting on a policy's frontier."""

    params: Params
    attainment: float
    gpu_hours: float


@dataclass(frozen=True)
class Comparison:
    """All runs over one trace file."""

    trace: str
    profile: str
    seed: int
    goal: Goal
    cold_start_s: float
    scale: float  # copies of the trace, superposed
    requests: int  # that count
    duration_s: float  # that counts
    models: int  # workloads in the trace; their figures are summed
    lower_bound_gpu_hours: float  # nobody who meets the goal with each model takes less; NaN: not known
    runs: tuple[PolicyRun, ...]
    frontier: Mapping[str, tuple[Point, ...]] = field(default_factory=dict)  # by policy: every setting that was tried
    cold_start_uncached_s: float = math.nan  # on a node that was never used; NaN: as any other
    cold_start_spread: float = 0.1  # sigma of the logarithm
    crash_every_s: float = math.inf  # mean, of a replica that serves
    router: str = "least-requests"
    patience_s: float = math.inf  # clients who still wait by then leave
    drain_s: float = 30.0  # that a replica on its way out may take to finish what it runs
    scrape_s: float = 15.0  # between two scrapes
    gpus: float = math.inf  # that all models share; infinity: as many as each asks for
    learned_s: float = 0.0  # before figures count
    offline_plan: PolicyRun | None = None  # cheapest schedule found for this very trace; None: not asked for
    estimate_gpu_hours: float = math.nan  # about what they take at the least with this router; not below the bound
    notes: tuple[str, ...] = ()  # what a reader must know: requests left out, what was reconstructed

    @property
    def rows(self) -> tuple[PolicyRun, ...]:
        """Return all that is shown side by side: every policy, and the schedule that knows the trace."""
        return self.runs if self.offline_plan is None else (*self.runs, self.offline_plan)

    def ratio(self, gpu_hours: float) -> float:
        """Return GPU-hours over the clairvoyant bound; NaN without one."""
        return gpu_hours / self.lower_bound_gpu_hours if self.lower_bound_gpu_hours > 0 else math.nan

    def meets_goal(self, run: PolicyRun) -> bool:
        """Say whether a run met the goal."""
        return self.goal.is_met_by(run.score.attainment)

    def misses_goal(self, run: PolicyRun) -> bool:
        """Say whether a run missed the goal; of one whose attainment is not known nobody can."""
        return not math.isnan(run.score.attainment) and not self.meets_goal(run)

    @property
    def baselines(self) -> tuple[PolicyRun, ...]:
        """Return the runs of other people's rules."""
        return tuple(run for run in self.runs if run.name not in (OURS, ACTUAL, RECORDED))

    def best_baseline(self) -> PolicyRun | None:
        """Return the baseline with the fewest GPU-hours among those that met the goal; None: none did."""
        met = [run for run in self.baselines if self.meets_goal(run)]
        return min(met, key=lambda run: run.score.gpu_hours, default=None)

    def best_learned_baseline(self) -> PolicyRun | None:
        """Return the baseline that an owner would have chosen who knew no more than what came before figures count.

        It had met the goal with the fewest GPU-hours there, else had come the nearest. None: none was tuned on that.
        """

        def order(run: PolicyRun) -> tuple[bool, float]:
            assert run.before
            meets = self.goal.is_met_by(run.before.attainment)
            return not meets, run.before.gpu_hours if meets else -run.before.attainment

        return min((run for run in self.baselines if run.before), key=order, default=None)
