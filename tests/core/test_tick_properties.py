"""Properties of the tick over generated worlds and histories."""

import math
from dataclasses import dataclass, fields, replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from autoscaler.core.model.fleet import Fleet
from autoscaler.core.model.samples import GatewaySamples, PodSamples, Samples
from autoscaler.core.model.spec import Spec
from autoscaler.core.model.types import Decision, Stage
from autoscaler.core.state import Memory
from autoscaler.core.tick import tick
from tests.core.world import PLAIN_SPEC, Story, few_examples, fleet, spec, world

pytestmark = pytest.mark.slow
NAN = math.nan


@dataclass(frozen=True)
class Row:
    """One workload through a few ticks: its policy, its pods, and per tick the readings of each."""

    rules: dict[str, float]
    ready: int
    starting: int
    paused: bool
    other_owner: str
    readings: tuple[tuple[dict[str, float], ...], ...]  # by tick, by pod
    front: tuple[dict[str, float], ...]  # by tick


TICKS = 4

RULES = {
    "min_replicas": (0.0, 1.0, 3.0),
    "max_replicas": (3.0, 6.0, 12.0),
    "concurrency": (NAN, 4.0, 16.0),
    "down_stabilization_s": (0.0, 7.0, 60.0),
    "up_stabilization_s": (0.0, 7.0),
    "up_step_fraction": (NAN, 1.0),
    "down_step_fraction": (NAN, 0.25),
    "tolerance": (0.0, 0.1),
    "idle_after_s": (NAN, 12.0, math.inf),
    "decode_tokens_per_s": (NAN, 300.0),
    "priority": (1.0, 2.0),
}
PLAIN = {  # column to the largest of its readings
    **{"age_s": 70.0, "running": 40.0, "waiting": 40.0, "held": 40.0, "asleep": 1.2, "kv_usage": 1.0},
    **dict.fromkeys(("generation_tokens", "finished", "first_tokens", "rejections"), 1e5),
    **{"ttft_s": 30.0, "itl_s": 1.0},
}
ABSURD = (NAN, 0.0, -0.0, -1.0, 1e-320, 0.3, 7.0, 2000.0, 1e9, 1e308, math.inf, -math.inf)


def a_reading(random: np.random.Generator, wild: bool) -> dict[str, float]:
    """The readings of one pod: plausible numbers, zeros and gaps; or anything at all."""
    if wild:
        return {name: float(random.choice(ABSURD)) for name in ("age_s", *(f.name for f in fields(PodSamples)))}
    values = {name: random.choice((NAN, 0.0, *[largest * random.random()] * 4)) for name, largest in PLAIN.items()}
    whole = {name: np.floor(values[name]) for name in ("running", "waiting", "held", "asleep")}
    return {name: float(value) for name, value in {**values, **whole}.items()}


def a_row(seed: int, wild: bool = False) -> Row:
    """One workload drawn from a seed: thousands of draws are numpy's to make, the seeds are Hypothesis's."""
    random = np.random.default_rng(seed)
    ready, starting = int(random.integers(0, 4)), int(random.integers(0, 3))
    gates = ABSURD if wild else (NAN, 0.0, 1.0, 30.0)
    names = [f.name for f in fields(GatewaySamples)]
    return Row(
        {**PLAIN_SPEC, **{name: float(random.choice(values)) for name, values in RULES.items()}},
        ready,
        starting,
        paused=bool(random.random() < 0.15),
        other_owner="HorizontalPodAutoscaler/x" if random.random() < 0.15 else "",
        readings=tuple(tuple(a_reading(random, wild) for _ in range(ready + starting)) for _ in range(TICKS)),
        front=tuple({name: float(random.choice(gates)) for name in names} for _ in range(TICKS)),
    )


seeds = st.integers(0, 2**32 - 1)
one_row, wild_row = seeds.map(a_row), seeds.map(lambda seed: a_row(seed, wild=True))
some_rows = st.lists(one_row, min_size=1, max_size=4)


def lay_out(rows: list[Row], pool_gpus: float = NAN) -> tuple[Fleet, Spec]:
    cluster = fleet(
        [row.ready for row in rows],
        [row.starting for row in rows],
        paused=np.array([row.paused for row in rows], dtype=bool),
        other_owner=tuple(row.other_owner for row in rows),
        pool_gpus=np.array([pool_gpus]),
        starting_since_s=980.0,
    )
    return cluster, Spec(*(np.array([row.rules[field.name] for row in rows]) for field in fields(Spec)))


def read(rows: list[Row], number: int, now_s: float) -> Samples:
    pods = [reading for row in rows for reading in row.readings[number]]
    table = {f.name: np.array([pod.get(f.name, NAN) for pod in pods], dtype=float) for f in fields(PodSamples)}
    table["time_s"] = now_s - np.array([pod["age_s"] for pod in pods], dtype=float)
    ahead = [row.front[number] for row in rows]
    gates = {f.name: np.array([gate.get(f.name, NAN) for gate in ahead], dtype=float) for f in fields(GatewaySamples)}
    gates["time_s"] = np.full(len(rows), now_s)
    return Samples(PodSamples(**table), GatewaySamples(**gates))


def live(rows: list[Row], pool_gpus: float = NAN, period_s: float = 5.0) -> list[Decision]:
    """Tick through the history of these rows, on a cluster whose counts never change."""
    cluster, policies = lay_out(rows, pool_gpus)
    memory, decisions, now_s = Memory.empty(), [], 1000.0
    for number in range(TICKS):
        now_s += period_s
        inp = replace(world(now_s, cluster, policies), samples=read(rows, number, now_s))
        decision, memory = tick(inp, memory)
        decisions.append(decision)
    return decisions


def same(one: Decision, other: Decision, rows=slice(None), others=slice(None)):
    np.testing.assert_array_equal(one.stages[:, rows], other.stages[:, others])
    np.testing.assert_array_equal(one.recommendations[:, rows], other.recommendations[:, others])
    np.testing.assert_array_equal(one.replicas[rows], other.replicas[others])
    np.testing.assert_array_equal(one.trusted[rows], other.trusted[others])


@given(some_rows, st.sampled_from([NAN, 3.0, 9.0]))
def test_the_same_inputs_give_the_same_decisions(rows, pool_gpus):
    for one, other in zip(live(rows, pool_gpus), live(rows, pool_gpus), strict=True):
        same(one, other)


@given(some_rows, st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(rows, random):
    order = list(range(len(rows)))
    random.shuffle(order)
    for one, other in zip(live(rows), live([rows[i] for i in order]), strict=True):
        same(one, other, rows=order)


@given(some_rows, st.one_of(one_row, wild_row))
def test_a_row_more_changes_nothing_for_the_others(rows, another):
    """However wild its readings; only a pool that is too small makes rows depend on each other."""
    for alone, together in zip(live(rows), live([*rows, another]), strict=True):
        same(alone, together, others=slice(len(rows)))


@given(some_rows, st.sampled_from([NAN, 2.0, 7.0]))
def test_bounds_hold_except_where_the_count_is_not_ours(rows, pool_gpus):
    for decision in live(rows, pool_gpus):
        for index, row in enumerate(rows):
            count = decision.replicas[index]
            if row.paused or row.other_owner:
                assert count == row.ready + row.starting
                continue
            assert count == math.floor(count)
            stepwise = not math.isnan(row.rules["down_step_fraction"])  # on the way to a ceiling below what stands
            assert 0 <= count <= max(row.rules["max_replicas"], (row.ready + row.starting) * stepwise)
            if math.isnan(pool_gpus) and not (count == 0 and not math.isnan(row.rules["idle_after_s"])):
                assert count >= row.rules["min_replicas"]


@given(some_rows)
def test_untrusted_workloads_shrink_only_to_the_maximum(rows):
    for decision in live(rows):
        for index, row in enumerate(rows):
            if not decision.trusted[index]:
                current = row.ready + row.starting
                assert decision.replicas[index] >= min(current, row.rules["max_replicas"])


@given(some_rows, st.sampled_from([0.0, 2.0]))
def test_a_short_pool_is_never_given_out_twice(rows, spare):
    rows = [replace(row, paused=False, other_owner="") for row in rows]
    standing = sum(row.ready + row.starting for row in rows)
    for decision in live(rows, standing + spare):
        kept = [row.ready + row.starting for row, known in zip(rows, decision.trusted, strict=True) if not known]
        assert decision.replicas.sum() <= max(standing + spare, sum(kept))


@given(
    some_rows,
    st.lists(st.integers(0, 60), min_size=4, max_size=4),
    st.lists(st.integers(0, 60), min_size=4, max_size=4),
)
def test_more_load_never_asks_for_fewer(rows, running, waiting):
    """One more look at the same world, in which more run and more wait."""
    rows = rows[:4]
    cluster, policies = lay_out(rows)
    memory, now_s = Memory.empty(), 1000.0
    for number in range(TICKS - 1):
        now_s += 5
        _, memory = tick(replace(world(now_s, cluster, policies), samples=read(rows, number, now_s)), memory)
    now_s += 5
    less = read(rows, TICKS - 1, now_s)
    more = replace(
        less,
        pods=replace(
            less.pods,
            running=less.pods.running + np.array(running)[cluster.pod_workload],
            waiting=less.pods.waiting + np.array(waiting)[cluster.pod_workload],
        ),
    )
    inp = world(now_s, cluster, policies)
    few, _ = tick(replace(inp, samples=less), memory)
    many, _ = tick(replace(inp, samples=more), memory)
    stated = ~np.isnan(policies.concurrency)  # what is learned from more load is more capacity
    assert (
        np.nan_to_num(many.recommendations)[:, stated] >= np.nan_to_num(few.recommendations)[:, stated] - 1e-9
    ).all()


@given(st.lists(wild_row, min_size=1, max_size=3))
@example([a_row(14005520, wild=True)])  # an absurd pace times absurdly many requests
def test_any_input_gives_a_decision_without_warnings(rows):
    """Warnings are errors in these tests: numpy may not even mutter."""
    for decision in live(rows):
        assert np.isfinite(decision.replicas).all()
        observation = {f.name: getattr(decision.observation, f.name) for f in fields(decision.observation)}
        for name, column in observation.items():
            assert not np.isinf(column).any(), name
            if name != "age_s":
                assert not (column < 0).any(), name


@given(st.floats(0, 59), st.integers(0, 30))
def test_after_a_restart_nothing_shrinks_before_a_full_window(watched_s, running):
    story = Story(spec(down_stabilization_s=60.0))
    step_s = watched_s / 7
    for _ in range(8):
        assert story.tick(fleet([4]), step_s, running=running / 4).replicas[0] >= 4


@few_examples
@given(
    st.lists(
        st.tuples(st.integers(1, 12), st.integers(0, 60), st.sampled_from([0.0, 0.05, 0.1])), min_size=1, max_size=9
    )
)
def test_a_count_once_decided_is_kept_while_the_load_stays(workloads):
    """No flapping by itself: the decision on the world it has made is the same again."""
    current, requests, tolerance = (np.array(each) for each in zip(*workloads, strict=True))
    story, counts = Story(spec(len(workloads), tolerance=tolerance, down_stabilization_s=20.0)), []
    for _ in range(12):
        for _ in range(6):
            load = np.repeat(requests / current, current)
            decision = story.tick(fleet(current.tolist()), 5, running=load)
        current = decision.replicas.astype(int)
        counts.append(current)
    assert (np.array(counts[1:]) == counts[1]).all()
    assert (counts[-1] * 10 * (1 + tolerance) + 1e-3 >= requests).all()


def test_a_tick_changes_no_earlier_decision_or_memory():
    """Recorded memory must replay: no tick may write into what an earlier one gave back."""
    story, cluster = Story(spec(concurrency=NAN)), fleet([2])
    story.watch(cluster, 30, running=3.0)
    before = story.memory
    frozen = {
        f"{table}.{f.name}": np.copy(getattr(getattr(before, table), f.name))
        for table in ("pods", "workloads")
        for f in fields(getattr(before, table))
        if isinstance(getattr(getattr(before, table), f.name), np.ndarray)
    }
    windows = np.copy(before.workloads.stabilize.desired_lately.value)
    story.watch(cluster, 60, running=30.0, waiting=9.0)
    for name, column in frozen.items():
        table, field = name.split(".")
        np.testing.assert_array_equal(getattr(getattr(before, table), field), column)
    np.testing.assert_array_equal(before.workloads.stabilize.desired_lately.value, windows)


@pytest.mark.parametrize("stage", list(Stage))
def test_every_stage_is_filled_once_something_is_known(stage):
    decision = Story(spec()).tick(fleet([2]), running=3.0)
    assert not np.isnan(decision.stages[stage]).any()
