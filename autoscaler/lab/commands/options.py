"""What all trials have in common, as it was asked for, and what that names: policy, baselines, files to write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autoscaler.config.policy.parse import load, read_policies
from autoscaler.config.policy.schema import Policy
from autoscaler.lab.baselines import BASELINES
from autoscaler.lab.report import output_files

ALL = "all"


@dataclass(frozen=True)
class ExperimentOptions:
    """What all trials have in common."""

    profile: str  # by name, or a file
    policies: tuple[Path, ...]  # one policy; none: the shipped `interactive`
    against: tuple[str, ...]
    tuned: bool
    offline_plan: bool  # also a schedule made with the whole trace in hand
    cold_start_s: float
    cold_start_uncached_s: float  # on a node that was never used; NaN: every node has image and weights
    cold_start_spread: float  # sigma of the logarithm; 0: all alike
    crash_every_s: float  # mean, of a replica that serves
    router: str  # "least-requests" or "round-robin"
    patience_s: float  # clients who still wait by then leave
    drain_s: float  # that a replica on its way out may take to finish what it runs
    scrape_s: float  # between two scrapes
    seed: int
    learn_s: float  # of the beginning, that policies may learn from; figures count from then on
    start_replicas: int | None  # None: the fewest whose first ten minutes meet the goal
    gpus: float  # that all models of a trace share; infinity: as many as each asks for
    json: Path | None
    html: Path | None
    ray: bool
    jobs: int | None

    @property
    def outputs(self) -> tuple[Path, ...]:
        return tuple(path for path in (self.json, self.html) if path is not None)


def baselines(named: Sequence[str]) -> tuple[str, ...]:
    """Return the baselines meant. Raises ValueError for an unknown one, with those there are."""
    names = [name for each in named for name in each.replace(",", " ").split()]
    unknown = [name for name in names if name not in (ALL, *BASELINES)]
    if unknown or (named and not names):
        raise ValueError(f"no baseline {(unknown or named)[0]!r}; allowed: {ALL}, {', '.join(BASELINES)}")
    return tuple(BASELINES) if ALL in names else tuple(dict.fromkeys(names))


def load_policy(paths: tuple[Path, ...]) -> Policy:
    """Return the one policy of a file, or the shipped `interactive`. Raises PolicyError, or ValueError for several."""
    if not paths:
        book = load(())
        return book.policies[book.default]
    policies = read_policies(paths)
    if len(policies) != 1:
        raise ValueError(f"{paths[0]}: {len(policies)} policies: {', '.join(sorted(policies))}; allowed: one")
    return next(iter(policies.values()))


def check_outputs(options: ExperimentOptions, *inputs: Path | None) -> None:
    """Look at the outputs before the work: hours of simulation should not end at a folder that is not there."""
    profile = Path(options.profile) if options.profile.endswith(".json") else None
    output_files.check(options.outputs, [path for path in (profile, *options.policies, *inputs) if path is not None])
