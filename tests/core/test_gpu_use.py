"""What GPUs are used for: sums over generated worlds, what keeps idle ones, and sums over time."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.gpu_totals import GpuTotals
from autoscaler.core.gpu_use import IDLE, OF_STAGE, GpuState, GpuUse, IdleCause, find_need, find_pool_use, find_use
from autoscaler.core.model.fleet import Fleet, NodeGroups, PendingCause, PendingClass, PodPart, Pool
from autoscaler.core.model.types import Decision, Signal, Stage, TickInput
from autoscaler.core.model.variants import Variants
from autoscaler.core.state import Memory
from autoscaler.core.table.columns import FloatColumn
from autoscaler.core.tick import tick
from tests.core.world import fleet, node_groups, spec, world

NAN = math.nan
S, C = GpuState, IdleCause


def decide(cluster: Fleet, now_s: float = 1000.0, **readings: FloatColumn | float) -> tuple[TickInput, Decision]:
    inp = world(now_s, cluster, spec(len(cluster.workloads)), **readings)
    return inp, tick(inp, Memory.empty())[0]


def a_world(seed: int) -> tuple[TickInput, Decision]:
    """Pods in any state, on pools that share node groups or not, some of unknown size."""
    random = np.random.default_rng(seed)
    rows, pools, groups = (int(random.integers(1, most)) for most in (6, 4, 5))
    counts = random.integers(0, 6, rows)
    pods = int(counts.sum())
    ready = random.random(pods) < 0.6
    scheduled = np.where(ready | (random.random(pods) < 0.5), 900.0, NAN)
    fixed = node_groups(random.choice([NAN, 0.0, 4.0, 40.0], groups).tolist(), *[[]] * pools)
    held = replace(
        fixed,
        admitted=random.random((pools, groups)) < 0.4,
        used=random.choice([NAN, 0.0, 6.0], groups),
        used_by_others=random.choice([0.0, 1.0, 5.0], groups),
        closed=random.random(groups) < 0.2,
    )
    waiting = np.flatnonzero(~ready)
    split = random.choice(waiting, 1).tolist() if len(waiting) and random.random() < 0.5 else []
    cluster = fleet(
        counts.tolist(),
        groups=held,
        pools=tuple(Pool("nvidia.com/gpu", f"P{place}") for place in range(pools)),
        pool=random.integers(-1, pools, rows),
        gpus_per_replica=random.choice([NAN, 0.0, 1.0, 4.0], rows),
        replicas=random.integers(0, 8, rows).tolist(),
        pod_ready=ready,
        pod_terminating=random.random(pods) < 0.2,
        pod_scheduled_s=scheduled,
        pod_pending=np.where(ready, 0, random.choice([PendingCause.NONE, *PendingCause], pods)),
        pod_ready_s=np.where(ready, 950.0, NAN),
        parts=tuple(PodPart(pod, "node", 1.0) for pod in split),
    )
    readings = {name: random.choice([0.0, 3.0, 30.0], pods) for name in ("running", "waiting")}
    gpu = {name: random.choice([NAN, 0.0, 0.9], pods) for name in ("fb_usage", "tensor_active", "sm_active")}
    asleep = np.where(random.random(pods) < 0.2, 1.0, 0.0)
    return decide(cluster, asleep=asleep, gpu_time_s=990.0, **readings, **gpu)


@pytest.mark.slow
@given(st.integers(0, 2**32 - 1).map(a_world))
def test_states_of_all_pools_add_up_to_their_gpus(of: tuple[TickInput, Decision]):
    inp, decision = of
    use = find_use(inp, decision)
    assert (use.states >= 0).all()
    assert (use.causes >= 0).all()
    np.testing.assert_allclose(use.states[: S.ORDERED].sum(axis=0), held_replicas(inp.fleet, decision))
    np.testing.assert_allclose(use.causes.sum(axis=0), use.states[IDLE].sum(axis=0))

    pools = find_pool_use(inp.fleet, use)
    assert sorted(sum(pools.pools, ())) == list(range(len(inp.fleet.pools)))
    assert sorted(sum(pools.groups, ())) == list(range(len(inp.fleet.groups.groups)))
    for groups, devices, states in zip(pools.groups, pools.devices, pools.states.T, strict=True):
        offered = sum(inp.fleet.groups.allocatable[list(groups)]) if groups else NAN
        assert math.isnan(offered) == math.isnan(devices) == math.isnan(states[S.FREE])
        assert states[S.ORDERED] == 0
        if not math.isnan(devices):
            assert states.sum() == pytest.approx(devices)
            assert devices == pytest.approx(max(offered, devices - states[S.FREE]))


def held_replicas(cluster: Fleet, decision: Decision) -> list[float]:
    """The replicas that hold GPUs of nodes, counted pod by pod."""
    held = [0.0] * len(cluster.workloads)
    parts = {part.pod: part.gpus for part in cluster.parts}
    for pod, row in enumerate(cluster.pod_workload.tolist()):
        each = float(cluster.gpus_per_replica[row])
        if pod in parts and not cluster.pod_ready[pod]:
            held[row] += min(parts[pod] / each, 1.0) if each > 0 else float(each == 0)
        else:
            on_node = not math.isnan(cluster.pod_scheduled_s[pod])
            held[row] += bool(cluster.pod_ready[pod] or decision.sleep_orders.asleep[pod] or on_node)
    return held


def kept(
    ready: int,
    signals: dict[Signal, float],
    stages: dict[Stage, float],
    plan: dict[str, float] | None = None,
    **readings: float,
) -> dict[str, dict[str, float]]:
    """What `ready` replicas are used for. stages: those that change the count; the others leave it."""
    inp, decision = decide(fleet([ready]), **readings)
    asked, after = np.full((len(Signal), 1), NAN), np.empty((len(Stage), 1))
    for signal, value in signals.items():
        asked[signal] = value
    count = max(signals.values(), default=NAN)
    for stage in Stage:
        after[stage] = count = stages.get(stage, count)
    decision = replace(
        decision,
        recommendations=asked,
        stages=after,
        replicas=after[-1],
        plan=replace(decision.plan, **{name: np.array([value]) for name, value in (plan or {}).items()}),
    )
    return named(find_use(inp, decision))


def named(use: GpuUse) -> dict[str, dict[str, float]]:
    return {
        "states": {state.published: float(use.states[state, 0]) for state in S if use.states[state, 0] > 0},
        "causes": {cause.published: float(use.causes[cause, 0]) for cause in C if use.causes[cause, 0] > 0},
    }


TWO = {Signal.CONCURRENCY: 1.2}
PLANNED = {Signal.PLANNER: 6.0}


@pytest.mark.parametrize(
    ("signals", "stages", "plan", "states", "causes"),
    [
        (TWO, {Stage.BOUNDS: 6.0}, {}, {"serving": 2, "floor": 4}, {"floor": 4}),
        ({**TWO, Signal.SCHEDULE: 6.0}, {}, {}, {"serving": 2, "floor": 4}, {"window": 4}),
        (
            PLANNED,
            {},
            {"base_replicas": 2.0, "strategy_replicas": 6.0, "peak_expires_in_s": 60.0},
            {"serving": 2, "headroom": 4},
            {"held_peak": 4},
        ),
        (
            PLANNED,
            {},
            {"base_replicas": 2.0, "strategy_replicas": 3.0},
            {"serving": 2, "headroom": 4},
            {"strategy": 1, "initial_fleet": 3},
        ),
        (
            {**PLANNED, Signal.SCHEDULE: 5.0},
            {},
            {"base_replicas": 9.0, "strategy_replicas": 6.0},
            {"serving": 6},
            {},
        ),
        (TWO, {Stage.STABILIZATION: 6.0}, {}, {"serving": 2, "headroom": 4}, {"stabilization": 4}),
        (
            TWO,
            {Stage.STABILIZATION: 4.0, Stage.RATE_LIMIT: 6.0},
            {},
            {"serving": 2, "headroom": 4},
            {"stabilization": 2, "rate_limit": 2},
        ),
        (
            TWO,
            {Stage.STABILIZATION: 6.0, Stage.ALLOCATION: 4.0},
            {},
            {"serving": 2, "headroom": 4},
            {"stabilization": 2, "leaving": 2},
        ),
        (
            {Signal.CONCURRENCY: 0.0},
            {Stage.IDLE: 1.0, Stage.BOUNDS: 3.0, Stage.OWNER: 6.0},
            {},
            {"floor": 6},
            {"last_replica": 1, "floor": 2, "owner": 3},
        ),
        (TWO, {}, {}, {"serving": 2, "headroom": 4}, {"leaving": 4}),
        ({}, {Stage.UNKNOWN: 6.0}, {}, {"unknown": 6}, {}),
        (TWO, {Stage.UNKNOWN: 6.0}, {}, {"serving": 2, "headroom": 4}, {"unknown_load": 4}),
    ],
)
def test_decision_that_keeps_idle_gpus_is_named(
    signals: dict[Signal, float],
    stages: dict[Stage, float],
    plan: dict[str, float],
    states: dict[str, float],
    causes: dict[str, float],
):
    assert kept(6, signals, stages, plan) == {"states": states, "causes": causes}


def test_each_stage_that_can_raise_a_count_has_a_cause():
    assert OF_STAGE.keys() == {*Stage} - {Stage.DEMAND}


GPU = {"gpu_time_s": 995.0, "fb_usage": 0.9, "tensor_active": 0.0, "sm_active": 0.0, "dram_active": 0.0}


@pytest.mark.parametrize(
    ("signals", "causes"),
    [
        ({Signal.CONCURRENCY: 0.0}, {"floor": 3}),
        ({Signal.CONCURRENCY: 2.0}, {"load": 2, "floor": 1}),
        ({}, {"unknown_load": 3}),
    ],
)
def test_loaded_gpus_that_compute_nothing_are_told(signals: dict[Signal, float], causes: dict[str, float]):
    found = kept(3, signals, {Stage.BOUNDS: 3.0}, **GPU)
    assert found == {"states": {"loaded_idle": 3}, "causes": causes}


def test_pods_that_do_not_serve_are_told_by_what_they_wait_for():
    cluster = fleet(
        [1],
        [4],
        replicas=[6],
        pod_terminating=np.array([True, False, False, False, False]),
        pod_pending=np.array([0, 0, PendingCause.CRASH_LOOP, PendingCause.UNSCHEDULABLE, 0]),
        pod_scheduled_s=np.array([0.0, 990.0, 990.0, NAN, NAN]),
        gpus_per_replica=np.array([4.0]),
        parts=(PodPart(4, "node", 1.0),),
    )
    found = named(find_use(*decide(cluster)))
    missing = float(decide(cluster)[1].observation.missing_pods[0])
    assert found["states"] == {"warming": 1.25, "draining": 1, "failing": 1, "ordered": 1.75 + missing}
    assert found["causes"] == {"cold_start": 1.25, "drain": 1, "failure": 1}


def add(share: float, **columns: object) -> GpuTotals:
    """Two ticks of 3 ready pods of 2 devices each in a pool of 10, of which others hold 1; 36 s apart."""
    groups = replace(NodeGroups.of_pools(POOLS, np.array([10.0])), used_by_others=np.ones(1), used=np.array([6.0]))
    cluster = fleet([3], groups=groups, **{"pools": POOLS, "gpus_per_replica": np.array([2.0]), **columns})
    totals = GpuTotals()
    for now_s in (1000.0, 1036.0):
        inp, decision = decide(cluster, now_s)
        totals.add(replace(inp, variants=Variants(np.array([-1]), np.array([5.0]))), decision, np.array([share]), 9)
    return totals


POOLS = (Pool("nvidia.com/mig-1g.10gb", "NVIDIA-H100-80GB-HBM3"),)


def test_slices_count_by_their_share_in_seconds_and_money():
    totals = add(1 / 7)
    sums = totals.of_workloads
    assert sums.gpu_s.sum() == pytest.approx(3 * 2 * 36 / 7)
    assert sums.usd.sum() == pytest.approx(3 * 5.0 * 36 / 3600)
    assert (sums.unsized_s[0], sums.unpriced_s[0]) == (0, 0)
    (key, states), *others = totals.of_pools.items()
    assert (key, others) == ((*POOLS[0][:2], ""), [])
    assert states.sum() == pytest.approx(10 * 36 / 7)
    assert (states[S.OTHER], states[S.FREE]) == (pytest.approx(36 / 7), pytest.approx(3 * 36 / 7))


def test_time_of_unknown_shares_and_gpus_is_counted_apart():
    for totals in (add(NAN), add(1.0, gpus_per_replica=np.array([NAN]))):
        assert totals.of_workloads.gpu_s.sum() == 0
        assert totals.of_workloads.unsized_s[0] == 3 * 36
    assert add(NAN).of_pools == {}


def test_a_long_gap_between_ticks_is_not_counted():
    totals = GpuTotals()
    for now_s in (1000.0, 2000.0):
        totals.add(*decide(fleet([3]), now_s), np.array([1.0]), 9)
    assert (totals.seconds, totals.of_workloads.gpu_s.sum()) == (0, 0)


@pytest.mark.parametrize(
    ("wanted", "most", "granted", "ready", "pending", "lacking", "beyond"),
    [
        (6, 6, 6, 6, {}, 0, 0),
        (6, 6, 4, 4, {}, 2, 0),  # the allocation leaves out two
        (9, 6, 4, 4, {}, 2, 3),
        (6, 6, 6, 4, {PendingClass.NO_ROOM: 2}, 2, 0),
        (6, 6, 6, 4, {PendingClass.STARTING: 2}, 0, 0),
        (6, 6, 6, 4, {PendingClass.NODE_COMING: 2}, 0, 0),  # they come by waiting
        (6, 6, 4, 4, {PendingClass.QUOTA: 2}, 2, 0),  # the two that are left out, once
        (6, 6, 4, 5, {PendingClass.NO_ROOM: 1}, 1, 0),  # no more than are missing
        (3, 6, 3, 6, {PendingClass.QUEUED: 1}, 0, 0),
    ],
)
def test_lacking_gpus_are_those_that_waiting_does_not_bring(
    wanted: int, most: int, granted: int, ready: int, pending: dict[PendingClass, int], lacking: int, beyond: int
):
    _, decision = decide(fleet([ready]))
    stages = np.full((len(Stage), 1), float(granted))
    stages[: Stage.ALLOCATION], stages[: Stage.BOUNDS] = min(wanted, most), wanted
    by_class = np.zeros((len(PendingClass), 1))
    for kind, count in pending.items():
        by_class[kind] = count
    decision = replace(decision, stages=stages, pending_by_class=by_class)
    need = find_need(decision)
    assert (need.lacking.item(), need.beyond.item()) == (lacking, beyond)
