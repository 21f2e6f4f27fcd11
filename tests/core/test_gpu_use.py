"""What GPUs are used for: sums over generated worlds, what keeps idle ones, and sums over time."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.core.gpu_devices import find_device_use, find_pool_use
from autoscaler.core.gpu_totals import MOST_REMOVED, GpuTotals, PoolKey, TickUse, share_of_rows
from autoscaler.core.gpu_use import IDLE, OF_STAGE, GpuState, GpuUse, IdleCause, find_need, find_use
from autoscaler.core.model.fleet import (
    Fleet,
    HeldDevices,
    NodeGroups,
    PendingCause,
    PendingClass,
    PodPart,
    Pool,
    Workload,
    WorkloadRef,
)
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
    """Pods in any state, on pools that share node groups or not, some of unknown size; what they hold may be known."""
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
        used_by_others=random.choice([0.0, 1.0, 5.0], groups),
        closed=random.random(groups) < 0.2,
    )
    waiting = np.flatnonzero(~ready)
    split = random.choice(waiting, 1).tolist() if len(waiting) and random.random() < 0.5 else []
    workload = np.repeat(np.arange(rows), counts)
    owners = random.integers(0, pods, 2 * pods) if pods else np.empty(0, np.int64)
    holds = HeldDevices(
        workload[owners],
        np.where(random.random(len(owners)) < 0.8, owners, -1),
        random.integers(0, groups, len(owners)),
        random.choice([1.0, 4.0], len(owners)),
        held.allocatable,
    )
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
        held=holds if random.random() < 0.6 else None,
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

    devices = find_device_use(inp.fleet, use)
    np.testing.assert_allclose(devices.causes.sum(axis=0), devices.states[IDLE].sum(axis=0), atol=1e-9)
    pools, held = find_pool_use(inp.fleet, devices), inp.fleet.held
    assert sorted(sum(pools.pools, ())) == list(range(len(inp.fleet.pools)))
    assert sorted(sum(pools.groups, ())) == list(range(len(inp.fleet.groups.groups)))
    for groups, devices, states in zip(pools.groups, pools.devices, pools.states.T, strict=True):
        offered = sum(inp.fleet.groups.allocatable[list(groups)]) if groups else NAN
        assert math.isnan(offered) == math.isnan(devices) == math.isnan(states[S.FREE])
        assert states[S.ORDERED] == 0
        if not math.isnan(devices):
            assert states.sum() == pytest.approx(devices)
            assert states[S.OTHER] == sum(inp.fleet.groups.used_by_others[list(groups)])
            assert devices == pytest.approx(max(offered, devices - states[S.FREE]))
        if held is not None:
            assert states[: S.ORDERED].sum() == pytest.approx(held.devices[np.isin(held.group, groups)].sum())


@pytest.mark.slow
@settings(max_examples=20)
@given(st.lists(st.integers(0, 2**32 - 1), min_size=2, max_size=5), st.integers(1, 4))
def test_sums_over_time_are_the_gpus_of_the_pools(seeds: list[int], restarts_at: int):
    """Workloads come and go, templates and nodes change, full GPUs stand beside slices, and the daemon begins again."""
    parts, now_s, held_s, offered_s = [GpuTotals[tuple[int, PoolKey]]()], 1000.0, 0.0, 0.0
    share = np.array([1.0, 1 / 7, 1.0, 0.25])
    for number, seed in enumerate(seeds):
        inp, decision = a_world(seed)
        ids = np.sort(np.random.default_rng(seed).choice(9, len(inp.fleet.workloads), replace=False))
        inp = replace(inp, now_s=now_s, fleet=replace(inp.fleet, workload_id=ids))
        if number == restarts_at:
            parts.append(GpuTotals())
        of_groups = share[: len(inp.fleet.groups.groups)]
        parts[-1].add(TickUse.of(inp, decision), of_groups, 99, lambda row, pool: (row, pool))
        now_s += 60.0
        if number in (0, restarts_at):
            continue  # the first tick of a process counts no time
        use = find_use(inp, decision)
        pools = find_pool_use(inp.fleet, find_device_use(inp.fleet, use))
        of_rows = share_of_rows(pools, of_groups)
        offered_s += 60.0 * np.nansum(of_rows * pools.devices)
        of_pool, of_group = share_by(pools.pools, of_rows), share_by(pools.groups, of_rows)
        replicas = use.states[S.ORDERED] if inp.fleet.held is not None else use.states.sum(axis=0)
        each = [of_pool.get(pool, NAN) for pool in inp.fleet.pool.tolist()]
        held_s += 60.0 * np.nansum(replicas * inp.fleet.gpus_per_replica * each)
        if (holds := inp.fleet.held) is not None:
            held_s += 60.0 * np.nansum(holds.devices * [of_group[group] for group in holds.group.tolist()])
    sums = [part.by_name(lambda row, pool: (row, pool))[1] for part in parts]
    assert sum(float(each.gpu_s.sum()) for each in sums) == pytest.approx(held_s)
    assert sum(float(states.sum()) for part in parts for states in part.of_pools.values()) == pytest.approx(offered_s)
    for each in sums:
        np.testing.assert_allclose(each.idle_gpu_s.sum(axis=0), each.gpu_s[IDLE].sum(axis=0), atol=1e-6)


def share_by(rows: tuple[tuple[int, ...], ...], shares: FloatColumn) -> dict[int, float]:
    """The share of each member of the rows."""
    return {member: float(share) for members, share in zip(rows, shares, strict=True) for member in members}


def test_sums_stay_when_their_workload_is_removed():
    totals, names = GpuTotals[str](), {3: "chat", 5: "code", 7: "chat"}  # `chat` is made again
    for now_s, ids in ((1000.0, [3, 5]), (1060.0, [3, 5]), (1120.0, [5]), (1180.0, [5, 7])):
        inp, decision = decide(fleet([2] * len(ids)), now_s)
        before = [3, 5] if now_s <= 1120.0 else [5]
        inp = replace(inp, fleet=replace(inp.fleet, workload_id=np.array(ids)))
        totals.add(TickUse.of(inp, decision), np.ones(1), 9, lambda row, _, ids=before: names[ids[row]])
    named, sums = totals.by_name(lambda row, _: ("code", "chat")[row])
    assert (named, sums.gpu_s.sum(axis=0).tolist()) == (["code", "chat"], [360.0, 240.0])
    assert totals.by_name(lambda row, _: ("code", "other")[row])[0] == ["code", "other", "chat"]


@pytest.mark.slow
def test_sums_of_the_removed_stay_when_others_remove_many():
    refs = [WorkloadRef("ns", "chat"), *(WorkloadRef("crowd", f"job-{number}") for number in range(MOST_REMOVED + 5))]
    totals = GpuTotals[str]()
    for now_s, present, before in ((1000.0, refs, refs), (1060.0, refs, refs), (1120.0, refs[1:2], refs)):
        cluster = fleet([1] * len(present), workloads=tuple(map(Workload, present)))
        cluster = replace(cluster, workload_id=np.array([refs.index(each) for each in present]))
        inp, decision = decide(cluster, now_s)
        totals.add(TickUse.of(inp, decision), np.ones(1), 9, lambda row, _, refs=before: refs[row].name)
    named, sums = totals.by_name(lambda row, _: refs[1 + row].name)
    assert len(named) == MOST_REMOVED + 1
    assert sums.gpu_s[:, named.index("chat")].sum() == 60.0


def held_replicas(cluster: Fleet, decision: Decision) -> list[float]:
    """The replicas that hold GPUs of nodes, counted pod by pod."""
    held = [0.0] * len(cluster.workloads)
    parts = {part.pod: part.gpus for part in cluster.parts}
    for pod, row in enumerate(cluster.pod_workload.tolist()):
        each = float(cluster.gpus_per_replica[row])
        if pod in parts and not cluster.pod_ready[pod]:
            held[row] += min(parts[pod] / each, 1.0) if each > 0 else float(each == 0)
        else:
            holds = cluster.held is not None and pod in cluster.held.pod
            on_node = holds or not math.isnan(cluster.pod_scheduled_s[pod])
            held[row] += bool(cluster.pod_ready[pod] or decision.sleep_orders.asleep[pod] or on_node)
    return held


def kept(
    ready: int,
    signals: dict[Signal, float],
    stages: dict[Stage, float],
    plan: dict[str, float] | None = None,
    least: float = 1.0,
    **readings: float,
) -> dict[str, dict[str, float]]:
    """What `ready` replicas are used for. stages: those that change the count; the others leave it."""
    inp, decision = decide(fleet([ready]), **readings)
    inp = replace(inp, spec=replace(inp.spec, min_replicas=np.array([least])))
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
        plan=replace(decision.plan, **{name: np.array([value]) for name, value in (WARM | (plan or {})).items()}),
    )
    return named(find_use(inp, decision))


def named(use: GpuUse) -> dict[str, dict[str, float]]:
    return {
        "states": {state.published: float(use.states[state, 0]) for state in S if use.states[state, 0] > 0},
        "causes": {cause.published: float(use.causes[cause, 0]) for cause in C if use.causes[cause, 0] > 0},
    }


WARM = {"observed_s": 900.0, "warm_up_s": 600.0}
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
            {"strategy": 4},
        ),
        (
            PLANNED,
            {},
            {"base_replicas": 5.0, "strategy_replicas": 6.0, "demand": 0.5, "initial_fleet": 5.0, "observed_s": 60.0},
            {"serving": 2, "headroom": 4},
            {"initial_fleet": 3, "strategy": 1},
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


@pytest.mark.parametrize(
    ("demand", "states", "causes"),
    [
        (0.5, {"serving": 2, "floor": 2, "headroom": 2}, {"floor": 2, "held_peak": 2}),
        (0.0, {"floor": 4, "headroom": 2}, {"floor": 4, "held_peak": 2}),
        (-0.1, {"floor": 4, "headroom": 2}, {"floor": 4, "held_peak": 2}),  # a fit that is off
        (9.0, {"serving": 4, "headroom": 2}, {"held_peak": 2}),
        (NAN, {"serving": 4, "headroom": 2}, {"held_peak": 2}),
    ],
)
def test_floor_of_a_policy_is_no_load_when_the_planner_decides(
    demand: float, states: dict[str, float], causes: dict[str, float]
):
    plan = {"base_replicas": 4.0, "strategy_replicas": 6.0, "peak_expires_in_s": 60.0, "demand": demand}
    assert kept(6, PLANNED, {}, plan, least=4.0) == {"states": states, "causes": causes}


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
    groups = replace(NodeGroups.of_pools(POOLS, np.array([10.0])), used_by_others=np.ones(1))
    cluster = fleet([3], groups=groups, **{"pools": POOLS, "gpus_per_replica": np.array([2.0]), **columns})
    totals = GpuTotals()
    for now_s in (1000.0, 1036.0):
        inp, decision = decide(cluster, now_s)
        totals.add(
            TickUse.of(replace(inp, variants=Variants(np.array([-1]), np.array([5.0]))), decision),
            np.array([share]),
            9,
            lambda row, _: str(row),
        )
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


@pytest.mark.parametrize(
    ("gpus", "held", "states"),
    [
        (4.0, {0: 1.0, 1: 1.0, 2: 1.0}, {"serving": 3, "other": 1, "free": 6}),  # an earlier template made them
        (4.0, {0: 1.0, 1: 4.0, 2: 4.0}, {"serving": 9, "other": 1}),
        (1.0, {0: 1.0, 1: 1.0}, {"serving": 2, "other": 1, "free": 7}),  # one is still listed, and its node is gone
        (1.0, {}, {"other": 1, "free": 9}),
        (1.0, {0: 1.0, 1: 1.0, 2: 1.0, -1: 2.0}, {"serving": 3, "unknown": 2, "other": 1, "free": 4}),
        (NAN, {0: 1.0, 1: 1.0}, {"serving": 2, "other": 1, "free": 7}),
        (1.0, None, {"serving": 3, "other": 1, "free": 6}),
        (NAN, None, {"unknown": 9, "other": 1}),
        (1.0, {0: 4.0, 1: 4.0, 2: 4.0}, {"serving": 12, "other": 1}),  # an agent of the node that restarts offers less
    ],
)
def test_gpus_of_a_pool_are_those_that_its_nodes_have(
    gpus: float, held: dict[int, float] | None, states: dict[str, float]
):
    groups = replace(NodeGroups.of_pools(POOLS, np.array([10.0])), used_by_others=np.ones(1))
    cluster = fleet([3], groups=groups, pools=POOLS, gpus_per_replica=np.array([gpus]))
    if held is not None:
        none = np.zeros(len(held), dtype=np.int64)
        of = HeldDevices(none, np.array([*held], np.int64), none, np.array([*held.values()]), groups.allocatable)
        cluster = replace(cluster, held=of)
    use = np.zeros((len(S), 1))
    use[S.SERVING] = 3
    served = GpuUse(use, np.zeros((len(C), 1)), np.full(3, S.SERVING), np.ones(3))
    pools = find_pool_use(cluster, find_device_use(cluster, served))
    assert {state.published: pools.states[state, 0] for state in S if pools.states[state, 0]} == pytest.approx(states)
    assert pools.devices[0] == sum(states.values())


def test_pods_of_an_earlier_template_keep_their_own_state_and_price():
    """A replica with 8 GPUs serves while one with 2, in another pool, starts; the price of the first pool is known."""
    pools = (*POOLS, Pool("nvidia.com/gpu", "NVIDIA-H200"))
    groups, totals = NodeGroups.of_pools(pools, np.array([8.0, 8.0])), GpuTotals[PoolKey]()
    for now_s, pool, gpus, cost in ((1000.0, 0, 8.0, 80.0), (1036.0, 1, 2.0, 30.0), (1072.0, 1, 2.0, 30.0)):
        changes, ready = now_s == 1036.0, 1 if now_s < 1072.0 else 0
        cluster = fleet([ready], [1 - ready + changes], pools=pools, groups=groups)
        pods = np.arange(len(cluster.pods))
        on = pods[-1:] * 0 + pool if not changes else np.array([0, 1])
        held = HeldDevices(pods * 0, pods, on, np.array([8.0, 2.0])[on], groups.allocatable)
        gpu = {"held": held, "pool": np.array([pool]), "gpus_per_replica": np.array([gpus])}
        inp, decision = decide(replace(cluster, **gpu), now_s)
        inp = replace(inp, variants=Variants(np.array([-1]), np.array([cost])))
        totals.add(TickUse.of(inp, decision), np.ones(2), 9, lambda _, pool: pool)
    named, sums = totals.by_name(lambda _, pool: pool)
    assert [key[1] for key in named] == [each.product for each in pools]
    old, new = sums.gpu_s.T
    assert (old.sum(), old[S.WARMING], new[S.WARMING], new.sum()) == (8 * 36, 0, 2 * 72, 2 * 72)
    np.testing.assert_allclose(sums.usd.sum(axis=0), [80.0 / 100, 30.0 * 2 / 100])
    assert sums.unpriced_s.sum() == sums.unsized_s.sum() == 0


@pytest.mark.parametrize(("prices", "usd"), [(np.array([10.0, 15.0]), 8 * 10.0 / 100), (None, 0.0)])
def test_pods_of_another_pool_have_its_price_after_a_restart(prices, usd):
    pools = (*POOLS, Pool("nvidia.com/gpu", "NVIDIA-H200"))
    groups, totals = NodeGroups.of_pools(pools, np.array([8.0, 8.0])), GpuTotals[PoolKey]()
    held = HeldDevices(
        np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.int64), np.array([8.0]), np.full(2, 8.0)
    )
    for now_s in (1000.0, 1036.0):
        inp, decision = decide(fleet([1], pools=pools, groups=groups, held=held, pool=np.array([1])), now_s)
        inp = replace(inp, variants=Variants(np.array([-1]), np.array([30.0])))
        totals.add(TickUse.of(inp, decision), np.ones(2), 9, lambda _, pool: pool, prices)
    assert totals.of_workloads.usd.sum() == pytest.approx(usd)
    assert (totals.of_workloads.unpriced_s.sum() > 0) == (prices is None)


def test_pods_are_told_when_no_node_is_read():
    nodes = NodeGroups.of_pools((), np.empty(0))
    inp, decision = decide(fleet([3], groups=replace(nodes, admitted=np.zeros((1, 0), dtype=bool))))
    pools = find_pool_use(inp.fleet, find_device_use(inp.fleet, find_use(inp, decision)))
    assert (pools.states[: S.ORDERED].sum(), math.isnan(pools.devices[0])) == (3, True)


def test_a_workload_without_gpus_is_no_unknown_one():
    totals = add(NAN, gpus_per_replica=np.array([0.0]), pool=np.array([-1]))
    assert totals.of_workloads.unsized_s[0] == totals.of_workloads.gpu_s.sum() == 0


def test_time_of_unknown_shares_and_gpus_is_counted_apart():
    for totals in (add(NAN), add(1.0, gpus_per_replica=np.array([NAN]))):
        assert totals.of_workloads.gpu_s.sum() == 0
        assert totals.of_workloads.unsized_s[0] == 3 * 36
    assert add(NAN).of_pools == {}


def test_a_long_gap_between_ticks_is_not_counted():
    totals = GpuTotals()
    for now_s in (1000.0, 2000.0):
        totals.add(TickUse.of(*decide(fleet([3]), now_s)), np.array([1.0]), 9, lambda row, _: str(row))
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
    inp, decision = decide(fleet([ready]))
    stages = np.full((len(Stage), 1), float(granted))
    stages[: Stage.ALLOCATION], stages[: Stage.BOUNDS] = min(wanted, most), wanted
    by_class = np.zeros((len(PendingClass), 1))
    for kind, count in pending.items():
        by_class[kind] = count
    decision = replace(decision, stages=stages, pending_by_class=by_class)
    need = find_need(inp, decision)
    assert (need.lacking.item(), need.beyond.item()) == (lacking, beyond)


@pytest.mark.parametrize(
    ("demand", "bounded", "beyond"), [(8.2, 6, 3), (8.2, 5, 0), (2.0, 6, 0), (np.nan, 6, 0), (5.9, 6, 1), (-0.1, 6, 0)]
)
def test_load_is_beyond_the_ceiling_when_the_planner_is_capped(demand: float, bounded: int, beyond: int):
    inp, decision = decide(fleet([4]))
    inp = replace(inp, spec=replace(inp.spec, max_replicas=np.array([6.0])))
    plan = replace(decision.plan, demand=np.array([demand]))
    decision = replace(decision, plan=plan, stages=np.full((len(Stage), 1), float(bounded)))
    assert find_need(inp, decision).beyond.item() == beyond
