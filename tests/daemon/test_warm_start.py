"""Learning from the recent past: as if the daemon had been there, and nothing else."""

from dataclasses import replace

import numpy as np
import pytest
import structlog

from autoscaler.adapters.clock import SystemClock
from autoscaler.config.policy.compile import compile_specs
from autoscaler.config.policy.parse import load
from autoscaler.core.model.fleet import Fleet, HpaLimits, PodPart, Workload, WorkloadRef
from autoscaler.core.model.pairs import DECODE, PREFILL
from autoscaler.core.model.phases import PodStarts
from autoscaler.core.model.recent import RecentReadings
from autoscaler.core.model.samples import GatewaySamples, Objectives, PodSamples, Samples
from autoscaler.core.model.types import TickInput
from autoscaler.core.model.weights import PodCache, Weights
from autoscaler.core.snapshot import restore, take
from autoscaler.core.state import Memory
from autoscaler.core.tick import tick
from autoscaler.daemon.warm_start import DEADLINE_S, NOT_IN_HISTORY, SPAN_S, WarmStart, arrange, replay
from autoscaler.ports import Unavailable
from tests.core.world import Story, fleet, no_schedule, quotas, spec

pytestmark = pytest.mark.slow

BOOK = load(())
STEP_S = 60.0
NOW_S = 300.0  # a machine that has been up for less than the span: the past is before zero
WALL_OFFSET_S = 1_800_000_000.0


def course(pods: np.ndarray, present: Fleet, **columns) -> RecentReadings:
    """Readings of these rows of pods (-1: gone), with plain values where none are given; float64[T, P] each."""
    workload = columns.pop("workload", present.pod_workload[pods])
    steps = len(columns["running"])
    time_s = NOW_S - STEP_S * np.arange(steps - 1, -1, -1.0)
    there = ~np.isnan(columns["running"])
    plain = dict.fromkeys(("kv_usage", "waiting"), 0.0)
    made = {name: np.where(there, value, np.nan) for name, value in plain.items()}
    made["time_s"] = np.where(there, time_s[:, None] - 5.0, np.nan)
    return RecentReadings(time_s, np.asarray(workload, dtype=np.int64), pods, {**made, **columns})


def busy(steps: int, pods: int) -> dict[str, np.ndarray]:
    """Saturated engines: the same load on each pod, counters that grow."""
    count = np.arange(1.0, steps + 1)[:, None] * np.ones(pods)
    return {
        "running": np.full((steps, pods), 20.0),
        "waiting": np.full((steps, pods), 6.0),
        "generation_tokens": 60_000 * count,
        "first_tokens": 300 * count,
        "finished": 300 * count,
        "prompt_tokens": 90_000 * count,
    }


def learned(recent: RecentReadings, present: Fleet):
    past = arrange(recent, present)
    return replay(past, compile_specs(past.fleet.workloads, BOOK), WALL_OFFSET_S)


def test_replay_learns_what_live_ticks_would_have_learned():
    present = fleet([3], created_s=-20_000.0)
    recent = course(np.arange(3), present, **busy(60, 3))
    memory, rules = Memory.empty(), compile_specs(present.workloads, BOOK)
    names = PodSamples.__dataclass_fields__
    for step, now_s in enumerate(recent.time_s.tolist()):
        columns = {name: recent.columns.get(name, np.full((60, 3), np.nan))[step] for name in names}
        samples = Samples(PodSamples(**columns), GatewaySamples.filled(1))
        inp = TickInput(now_s, replace(present, time_s=now_s), rules.spec, no_schedule(1), samples)
        _, memory = tick(inp, memory)
    live = take(memory, present.workloads, NOW_S, NOW_S + WALL_OFFSET_S)
    snapshot = learned(recent, present)
    assert (snapshot.workloads, snapshot.wall_s) == (live.workloads, live.wall_s)
    assert snapshot.columns.keys() == live.columns.keys() - set(NOT_IN_HISTORY)
    for place, column in snapshot.columns.items():
        np.testing.assert_array_equal(column, live.columns[place], err_msg=place)
    assert snapshot.columns["capacity.observed_s"][0] > 3000
    assert snapshot.columns["capacity.requests_per_replica"][0] == pytest.approx(20.0, rel=0.01)


def test_history_of_a_pair_is_learned_by_its_roles():
    """Prefill generates one token per request, so only its role tells how busy it was."""
    sides = tuple(Workload(WorkloadRef("ns", f"m-{role}"), service="m", role=role) for role in (PREFILL, DECODE))
    present = replace(fleet([1, 1], created_s=-20_000.0), workloads=sides)
    load = busy(60, 2)
    load |= {"gap_s": 600 * load["finished"], "gaps": 60_000 * load["finished"] / 300}
    load["gap_s"][:, 0] = load["gaps"][:, 0] = 0.0
    load["generation_tokens"][:, 0] = load["finished"][:, 0]
    snapshot = learned(course(np.arange(2), present, **load), present)
    assert snapshot.columns["replica.prompt_tokens"][0] > 0
    assert snapshot.columns["offered_load.requests"][0] > 1000


def test_brief_counter_drop_of_a_running_process_is_ignored():
    """One answer without counters: when they were back, all that they had ever counted counted as new."""
    present, load = fleet([2], created_s=-20_000.0), paced(120, 2)
    for name in load.keys() - {"running", "waiting"}:
        load[name] = 5e6 + load[name]
    fine = learned(course(np.arange(2), present, **load), present)
    glitch = {name: column.copy() for name, column in load.items()}
    for name in load.keys() - {"running", "waiting"}:
        glitch[name][60] = 0.0
    stood = learned(course(np.arange(2), present, process_start_s=np.full((120, 2), 1.7e9), **glitch), present)
    for place in ("answers.requests", "offered_load.requests", "error_budget.judged", "shadow_fleets.arrived"):
        np.testing.assert_allclose(stood.columns[place], fine.columns[place], rtol=0.05, err_msg=place)


def test_values_missing_in_history_keep_their_present_state():
    """There are neither gateways nor GPUs in it: a gateway that fell silent since would be taken for none."""
    present = fleet([3], created_s=-20_000.0)
    snapshot = learned(course(np.arange(3), present, **busy(60, 3)), present)
    story = Story(spec(1, idle_after_s=120.0), now_s=NOW_S)
    story.watch(present, 20, gateway_waiting=0.0, gateway_arrivals_per_s=0.0)
    knew = story.memory.workloads
    story.memory, count = restore(snapshot, story.memory, present, NOW_S, NOW_S + WALL_OFFSET_S)
    knows = story.memory.workloads
    assert count == 1 and knows.capacity.concurrency[0] != knew.capacity.concurrency[0]
    assert knows.observe.last_gateway_s[0] == knew.observe.last_gateway_s[0] == NOW_S + 20
    assert knows.observe.loaded_idle_s[0] == knew.observe.loaded_idle_s[0]


def test_deleted_pod_counts_while_it_reported():
    present = fleet([1], created_s=-20_000.0)
    load = busy(40, 2)
    for name, column in load.items():
        load[name] = np.where(np.arange(40)[:, None] < np.array([40, 15]), column, np.nan)
    past = arrange(course(np.array([0, -1]), present, workload=[0, 0], **load), present)
    assert past.reporting.sum(axis=0).tolist() == [40, 15]
    assert not past.starting.any()
    snapshot = replay(past, compile_specs(past.fleet.workloads, BOOK), WALL_OFFSET_S)
    assert snapshot.columns["capacity.requests_per_replica"][0] == pytest.approx(20.0, rel=0.01)


def test_columns_follow_the_pods_and_workloads_of_the_fleet():
    """One workload has no history; a deleted pod comes before the one that started then."""
    born_s = NOW_S - 30 * STEP_S
    present = fleet([1, 1], created_s=-20_000.0)
    present = replace(
        present,
        pod_created_s=np.array([-20_000.0, born_s]),
        pod_ready_s=np.array([-19_940.0, born_s + 200.0]),
        pod_slots=np.array([8.0, 16.0]),
        gpus_per_pod=np.array([1.0, 2.0]),
        drain_s=np.array([10.0, 20.0]),
        pods_of_replica={0: (1.0, 2.0), 1: (2.0, 4.0)},
        starts=replace(PodStarts.filled(2), image_s=np.array([10.0, 20.0])),
        weights=replace(
            Weights.unknown(2, 2),
            sources=("hf://org/a", "hf://org/b"),
            source=np.array([0, 1]),
            size_bytes=np.array([1e9, 2e9]),
            pod_cache=np.array([PodCache.ABSENT, PodCache.HELD]),
        ),
        parts=(PodPart(0, "node-1", 1.0),),
    )
    load = busy(60, 2)
    for name, column in load.items():
        is_read = [np.arange(60) < 40, np.arange(60) >= 33]
        load[name] = np.where(np.transpose(is_read), column, np.nan)
    past = arrange(course(np.array([-1, 1]), present, workload=[1, 1], **load), present)
    then = past.fleet
    assert then.pod_slots.tolist() == pytest.approx([np.nan, 16.0], nan_ok=True)
    assert then.starts.image_s.tolist() == pytest.approx([np.nan, 20.0], nan_ok=True)
    assert then.weights.pod_cache.tolist() == [PodCache.UNKNOWN, PodCache.HELD]
    assert (then.weights.source.tolist(), then.weights.size_bytes.tolist()) == ([1], [2e9])
    assert (then.gpus_per_pod.tolist(), then.pods_of_replica, then.parts) == ([2.0], {0: (2.0, 4.0)}, ())
    snapshot = replay(past, compile_specs(then.workloads, BOOK), WALL_OFFSET_S)
    assert snapshot.columns["cold_start.mean_s"][0] > 60


def test_gap_in_readings_is_not_the_end_of_a_pod():
    present = fleet([1], created_s=-20_000.0)
    load = busy(40, 1)
    for column in load.values():
        column[10:14] = np.nan
    past = arrange(course(np.array([0]), present, **load), present)
    assert past.reporting.all()


def test_cold_start_is_learned_from_pods_that_started_then():
    born_s = NOW_S - 30 * STEP_S
    present = fleet([2], created_s=-20_000.0)
    present = replace(
        present,
        pod_created_s=np.array([-20_000.0, born_s]),
        pod_ready_s=np.array([-19_940.0, born_s + 200.0]),
    )
    load = busy(60, 2)
    for name, column in load.items():
        load[name] = np.where(np.arange(60)[:, None] >= np.array([0, 33]), column, np.nan)
    past = arrange(course(np.arange(2), present, **load), present)
    assert past.starting.sum(axis=0).tolist() == [0, 4]
    snapshot = replay(past, compile_specs(past.fleet.workloads, BOOK), WALL_OFFSET_S)
    assert snapshot.columns["cold_start.mean_s"][0] == pytest.approx(60 + (200 - 60) / 4)


def paced(steps: int, pods: int) -> dict[str, np.ndarray]:
    """Engines with room, whose speed and misses are told as well."""
    load = busy(steps, pods)
    load |= {"running": np.full((steps, pods), 6.0), "waiting": np.zeros((steps, pods))}
    tokens, requests = load["generation_tokens"], load["finished"]
    return load | {"gaps": tokens, "gap_s": 0.03 * tokens, "ttft_met": 0.99 * requests}


def test_recreated_pod_of_the_same_name_is_another_pod():
    # As a StatefulSet makes them: 100 minutes of one, 5 of none, then 15 of the one that is there.
    born_s = NOW_S - 20 * STEP_S
    made_again = replace(
        fleet([1]), **{f"pod_{name}_s": np.array([born_s]) for name in ("created", "scheduled", "started")}
    )
    made_again = replace(made_again, pod_ready_s=np.array([born_s + 290.0]))
    load = paced(120, 2)
    first, then = np.arange(120) < 100, np.arange(120) >= 105
    for name, column in load.items():
        if name not in ("running", "waiting"):
            column[:, 1] -= column[104, 1]
        load[name] = np.where(np.stack([first, then], axis=1), column, np.nan)
    apart = learned(course(np.array([-1, 0]), made_again, workload=[0, 0], **load), made_again)
    as_one = {name: np.where(then, column[:, 1], column[:, 0])[:, None] for name, column in load.items()}
    together = learned(course(np.array([0]), made_again, **as_one), made_again)
    for place, column in apart.columns.items():
        np.testing.assert_array_equal(together.columns[place], column, err_msg=place)
    assert together.columns["shadow_fleets.observed_s"][0] > 100 * STEP_S
    assert together.columns["cold_start.mean_s"][0] == 290.0


def test_pod_that_became_ready_again_served_before():
    served = fleet([2], created_s=-20_000.0)
    again = replace(served, pod_ready_s=np.full(2, NOW_S - 5 * STEP_S))
    before, after = (learned(course(np.arange(2), each, **paced(120, 2)), each) for each in (served, again))
    assert before.columns["shadow_fleets.observed_s"][0] > 100 * STEP_S
    for place in ("shadow_fleets.observed_s", "error_budget.judged", "offered_load.requests"):
        np.testing.assert_array_equal(after.columns[place], before.columns[place], err_msg=place)
    assert np.isnan(after.columns["cold_start.mean_s"][0])  # how long its first start took nobody knows


def test_workloads_without_history_are_not_learned():
    present = fleet([1, 1, 1], created_s=-20_000.0)
    load = busy(10, 2)
    load["running"][:, 1] = np.nan
    snapshot = learned(course(np.array([2, 0]), present, **load), present)
    assert [name for _, _, name, _ in snapshot.workloads] == ["w2"]


def test_limits_of_the_present_do_not_apply_to_the_past():
    """The second of three workloads has no history. The quota holds two replicas, and the HPA none."""
    plain = fleet([1, 1, 1], created_s=-20_000.0)
    limited = replace(
        plain,
        quotas=(quotas([0, 0, 0], [2]),),
        hpa_limits=HpaLimits(np.zeros(3), np.zeros(3), np.zeros(3, dtype=bool), np.zeros(3, dtype=bool), ("",) * 3),
        drain_s=np.full(3, 30.0),
    )
    recent = course(np.array([0, 2]), plain, **busy(10, 2))
    expected, found = learned(recent, plain), learned(recent, limited)
    assert found.workloads == expected.workloads
    for place, column in expected.columns.items():
        np.testing.assert_array_equal(found.columns[place], column, err_msg=place)


@pytest.mark.parametrize("present", [fleet([1]), fleet([0]), fleet([])], ids=["a pod", "no pod", "no workload"])
def test_nothing_is_learned_from_empty_history(present: Fleet):
    nothing = RecentReadings(np.array([NOW_S - STEP_S, NOW_S]), np.empty(0, np.int64), np.empty(0, np.int64), {})
    assert learned(nothing, present).workloads == ()


def test_impossible_readings_harm_no_other_workload():
    present = fleet([1, 1], created_s=-20_000.0)
    load = busy(30, 2)
    fine = learned(course(np.arange(2), present, **{name: column.copy() for name, column in load.items()}), present)
    for number, column in enumerate(load.values()):
        column[:, 1] = (-1.0, np.inf, 1e308, -np.inf, 1e-320, -0.0)[number % 6]
    wild = learned(course(np.arange(2), present, **load), present)
    for place, column in fine.columns.items():
        np.testing.assert_array_equal(wild.columns[place][..., 0], column[..., 0], err_msg=place)


class Cluster:
    """Known only at the second look."""

    def __init__(self, present: Fleet) -> None:
        self.present, self.looks = present, 0

    def fleet(self) -> Fleet:
        self.looks += 1
        if self.looks == 1:
            raise Unavailable("the cluster is not known yet")
        return self.present


class Clock(SystemClock):
    def now_s(self) -> float:
        return NOW_S

    def wall_s(self) -> float:
        return NOW_S + WALL_OFFSET_S


class Remembered:
    """A HistorySource that answers from memory."""

    def __init__(self, recent: RecentReadings) -> None:
        self.recent_ = recent
        self.asked: list[tuple[Objectives, float, float]] = []

    async def recent(self, seen: Fleet, objectives: Objectives, span_s: float, deadline_s: float) -> RecentReadings:
        self.asked.append((objectives, span_s, deadline_s))
        return self.recent_


async def test_learning_waits_for_the_cluster_and_is_logged():
    present = fleet([2], created_s=-20_000.0)
    history = Remembered(replace(course(np.arange(2), present, **busy(20, 2)), problem="no more was read in time"))
    with structlog.testing.capture_logs() as logs:
        snapshot = await WarmStart(history, Cluster(present), lambda: BOOK, Clock()).learn()
    assert snapshot is not None
    ((objectives, span_s, deadline_s),) = history.asked
    assert (span_s, deadline_s) == (SPAN_S, DEADLINE_S)
    assert objectives.ttft_s.tolist() == [BOOK.policies[BOOK.default].spec.objective.ttft]
    (line,) = logs
    told = {name: line[name] for name in ("event", "workloads", "of", "pods", "problem")}
    assert told == {
        "event": "learned from history",
        "workloads": 1,
        "of": 1,
        "pods": 2,
        "problem": "no more was read in time",
    }


async def test_nothing_is_learned_when_history_has_other_workloads():
    present = fleet([1])
    nothing = RecentReadings(np.array([NOW_S]), np.empty(0, np.int64), np.empty(0, np.int64), {})
    assert await WarmStart(Remembered(nothing), Cluster(present), lambda: BOOK, Clock()).learn() is None
