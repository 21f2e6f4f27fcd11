"""Options common to `simulate` and `replay`, and what they name: policy, baselines, output files."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autoscaler.config.policy.parse import load, read_policies
from autoscaler.config.policy.schema import Policy
from autoscaler.config.rules.read import NONE, read_files
from autoscaler.config.rules.rule import Rule
from autoscaler.config.settings import KubeSettings
from autoscaler.config.yaml import SUFFIXES
from autoscaler.lab.baselines import BASELINES
from autoscaler.lab.report import output_files

ALL = "all"
RULE_SUFFIXES = (*SUFFIXES, ".json")
MOST_RULES = 16  # each is a run of its own


@dataclass(frozen=True)
class ExperimentOptions:
    """Options common to `simulate` and `replay`."""

    profile: str  # name or file
    policies: tuple[Path, ...]  # one policy; none: the shipped `interactive`
    against: tuple[str, ...]  # names of baselines, and files with scaling rules
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
    kube: KubeSettings | None = None  # of the cluster whose scaling rules are read; None: none
    usd_per_gpu_hour: float = math.nan  # NaN: the list price of the profile's GPU
    device_profiles: tuple[str, ...] = ()  # further ones that the fewest GPUs are asked of

    @property
    def outputs(self) -> tuple[Path, ...]:
        return tuple(path for path in (self.json, self.html) if path is not None)


def select_baselines(named: Sequence[str]) -> tuple[str, ...]:
    """Return the selected baselines; files are passed over. Raises ValueError for an unknown name, and lists all."""
    names = [name for each in named if not is_file(each) for name in each.replace(",", " ").split()]
    if named and not names and any(map(is_file, named)):
        return ()
    unknown = [name for name in names if name not in (ALL, *BASELINES)]
    if unknown or (named and not names):
        known = f"{ALL}, {', '.join(BASELINES)}, or a file *.yaml with scaling rules"
        raise ValueError(f"no baseline {(unknown or named)[0]!r}; allowed: {known}")
    return tuple(BASELINES) if ALL in names else tuple(dict.fromkeys(names))


def is_file(word: str) -> bool:
    """Return whether a word of `--against` names a file."""
    return word.endswith(RULE_SUFFIXES) or "/" in word


def read_rules(named: Sequence[str], recorded: Mapping[str, str] = NONE) -> tuple[Rule, ...]:
    """Return the scaling rules in the files of `--against`. Raises PolicyError with every problem.

    recorded: expressions of recording rules by name.
    """
    files = [Path(word) for word in named if is_file(word)]
    rules = read_files(files, recorded) if files else ()
    if len(rules) > MOST_RULES:
        raise ValueError(f"--against names {len(rules)} scaling rules; allowed: at most {MOST_RULES}")
    repeated = [title for title, count in Counter(rule.title for rule in rules).items() if count > 1]
    if repeated:
        places = ", ".join(rule.place for rule in rules if rule.title == repeated[0])
        raise ValueError(f"--against: {repeated[0]} is given more than once, in {places}; allowed: each rule once")
    return rules


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
