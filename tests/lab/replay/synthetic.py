"""Synthetic cases, and a view with values set by a test."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from autoscaler.core.table.columns import FloatColumn
from autoscaler.lab.baselines.signals import BOUNDS
from autoscaler.lab.replay.case import Case, FreePlaces, Goal, NodeState, ObservedLatency, ReplicaRows, Totals, Trace
from autoscaler.sim.engine.profiles import H100, LLAMA_8B, Profile, compute_profile
from autoscaler.sim.engine.traffic import BLOCK_S, Shape, Traffic

GOAL = Goal(ttft_s=1.0, itl_s=0.1, attainment=0.99)
EMPTY = np.empty(0)
NOTHING = Totals(
    time_s=0.0,
    running=EMPTY,
    waiting=EMPTY,
    kv_usage=EMPTY,
    gateway_waiting=0.0,
    arrivals=0.0,
    finished=0.0,
    first_tokens=0.0,
    prompt_tokens=0.0,
    generation_tokens=0.0,
    latencies={name: ObservedLatency(np.zeros(len(bounds)), 0.0) for name, bounds in BOUNDS.items()},
)


def llama(max_num_seqs: int = 256) -> Profile:
    return compute_profile(LLAMA_8B, H100, max_num_seqs=max_num_seqs)


def generate(name: str, shape: Shape, duration_s: float, seed: int) -> Trace:
    """Generate a trace of `shape` that begins at midnight and lasts `duration_s`."""
    traffic = Traffic(shape, seed)
    blocks = [traffic.block(number) for number in range(math.ceil(duration_s / BLOCK_S))]
    made = Trace(
        name,
        np.concatenate([block.time_s for block in blocks]),
        np.concatenate([block.prompt_tokens for block in blocks]),
        np.concatenate([block.output_tokens for block in blocks]),
        duration_s,
    )
    return made.select(made.arrival_s < duration_s)


def trace(arrival_s: FloatColumn, prompt: int = 1000, output: int = 100, duration_s: float | None = None) -> Trace:
    count = len(arrival_s)
    arrival_s = np.sort(np.asarray(arrival_s, np.float64))
    end_s = duration_s if duration_s is not None else float(np.ceil(arrival_s[-1])) + 1
    return Trace("small", arrival_s, np.full(count, prompt), np.full(count, output), end_s)


def poisson(rates: list[float], part_s: float, seed: int = 1, prompt: int = 1000, output: int = 100) -> Trace:
    """Poisson arrivals, each rate for `part_s`."""
    rng = np.random.default_rng(seed)
    parts = [
        np.sort(rng.uniform(number * part_s, (number + 1) * part_s, rng.poisson(rate * part_s)))
        for number, rate in enumerate(rates)
    ]
    return trace(np.concatenate(parts), prompt, output, len(rates) * part_s)


def case_of(of: Trace, **fields: object) -> Case:
    settings = {"profile": llama(), "goal": GOAL, "cold_start_s": 60.0, "cold_start_spread": 0.0} | fields
    return Case(trace=of, **settings)  # type: ignore[arg-type]


@dataclass
class FakeView:
    """Implements `case.View`. `scrape` appends the totals of a scrape; earlier ones stay."""

    now_s: float = 0.0
    desired: int = 1
    ready: int = 1
    starting: int = 0
    concurrency: float = 0.0
    starting_since_s: FloatColumn = field(default_factory=lambda: EMPTY)
    past: list[Totals] = field(default_factory=lambda: [NOTHING])

    def scrape(self, now_s: float, **fields: object) -> "FakeView":
        """Advance to `now_s` and scrape these fields; the others keep their values."""
        self.now_s = now_s
        self.past.append(replace(self.past[-1], time_s=now_s, **fields))
        return self

    @property
    def totals(self) -> Totals:
        return self.past[-1]

    @property
    def pods(self) -> ReplicaRows:
        raise AssertionError("no baseline looks at single pods")

    @property
    def places(self) -> FreePlaces:
        raise AssertionError("no baseline looks at nodes")

    @property
    def nodes(self) -> Sequence[NodeState]:
        raise AssertionError("no baseline looks at nodes")

    def request_nodes(self, places: int) -> None:
        raise AssertionError("no baseline requests nodes")

    def fetch_weights(self, nodes: Sequence[int]) -> None:
        raise AssertionError("no baseline fetches weights")

    def totals_ago(self, seconds: float) -> Totals:
        old = [totals for totals in self.past if totals.time_s <= self.now_s - seconds]
        return old[-1] if old else self.past[0]

    def live_concurrency(self) -> float:
        return self.concurrency

    def set_deletion_costs(self, costs: Mapping[int, int]) -> None:
        """No scaler of these tests names the replicas that leave."""


def observed(before: Totals, **values: FloatColumn) -> dict[str, ObservedLatency]:
    """Return the latencies of a scrape after these values, by latency."""
    found = dict(before.latencies)
    for name, each in values.items():
        counts = np.searchsorted(np.sort(each), BOUNDS[name], side="right")
        found[name] = ObservedLatency(found[name].counts + counts, found[name].sum_s + float(each.sum()))
    return found
