"""Options common to `simulate` and `replay`, and what they name: policy, baselines, output files."""

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
    """Options common to `simulate` and `replay`."""

    profile: str  # name or file
    policies: tuple[Path, ...]  # one policy; none: the shipped `interactive`
    against: tuple[str, ...]
    tuned: bool
    offline_plan: bool  # also search a schedule with the whole trace known
    cold_start_s: float
    cold_start_uncached_s: float  # on a fresh node; NaN: every node has image and weights
    weights_on: float  # share of nodes that hold the weights; NaN: each has those that its replicas fetched
    requests_nodes: bool  # before the replicas of pre-warm windows
    fetches_weights: bool  # nodes fetch weights by the daemon's plan, and keep them
    node_idle_s: float  # an empty node is removed after this time; infinity: nodes stay
    cold_start_spread: float  # sigma of the logarithm; 0: no spread
    crash_every_s: float  # mean, per serving replica
    router: str  # "least-requests" or "round-robin"
    patience_s: float  # clients still waiting after this time leave
    drain_s: float  # longest time of a terminating replica to finish its requests
    scrape_s: float  # scrape interval
    seed: int
    learn_s: float  # length of the learning part; scores count from its end
    start_replicas: int | None  # None: the fewest that meet the goal in the first ten minutes
    gpus: float  # shared by all models of a trace; infinity: no limit
    json: Path | None
    html: Path | None
    ray: bool
    jobs: int | None

    @property
    def outputs(self) -> tuple[Path, ...]:
        return tuple(path for path in (self.json, self.html) if path is not None)


def select_baselines(named: Sequence[str]) -> tuple[str, ...]:
    """Return the selected baselines. Raises ValueError for an unknown name, and lists the known ones."""
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
    policies = read_policies(paths).policies
    if len(policies) != 1:
        raise ValueError(f"{paths[0]}: {len(policies)} policies: {', '.join(sorted(policies))}; allowed: one")
    return next(iter(policies.values()))


def check_outputs(options: ExperimentOptions, *inputs: Path | None) -> None:
    """Check the output files before hours of simulation. Raises ValueError."""
    profile = Path(options.profile) if options.profile.endswith(".json") else None
    output_files.check(options.outputs, [path for path in (profile, *options.policies, *inputs) if path is not None])
