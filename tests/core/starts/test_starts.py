"""The start that the next replica would have here and now, and the phases of the pods that are starting."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autoscaler.core import snapshot
from autoscaler.core.model.fleet import Fleet, NodeGroup, NodeGroups, Obstacles, PendingCause, PendingClass, Pod
from autoscaler.core.model.phases import NOT_STARTING, Phase, PodStarts
from autoscaler.core.model.types import Decision
from autoscaler.core.model.weights import PodCache, WeightPlaces, Weights
from autoscaler.core.starts.starts import REQUESTED_NODE_S
from autoscaler.core.state import Memory
from tests.core.world import Story, fleet, spec

pytestmark = pytest.mark.slow

FIXED, GROWS = 0, 1
SOURCE, SIZE = "hf://org/model@main", 60e9


def places(free: float, held: float = 0.0, absent: float = 0.0, nodes_held: float = 0.0) -> WeightPlaces:
    one = (np.array([each]) for each in (free, held, absent, 4.0, nodes_held))
    return WeightPlaces(np.array([0]), np.array([FIXED]), *one)


def cluster(
    pods: list[dict[str, float]],
    room: float = 1.0,
    can_add: float = 0.0,
    where: WeightPlaces | None = None,
    cache: list[PodCache] | None = None,
    steered: bool = False,
) -> Fleet:
    """Return one workload with pods of these times, on a cluster with so much room."""
    count = len(pods)

    def column(name: str, default: float = np.nan) -> np.ndarray:
        return np.array([pod.get(name, default) for pod in pods], dtype=float)

    ready_s = column("ready_s")
    ready = ~np.isnan(ready_s)
    groups = NodeGroups.of_pools(fleet([0]).pools, np.array([8.0]))
    groups = replace(
        groups,
        groups=(NodeGroup("nvidia.com/gpu", "H100"),),
        can_add=np.array([can_add]),
        of_node={"old": (0,), "new": (0,)},
    )
    base = fleet(
        [int(ready.sum())],
        [count - int(ready.sum())],
        pods=tuple(Pod("ns", f"p{place}", node="old") for place in range(count)),
        pod_ready=ready,
        pod_pending=column("pending", PendingCause.NONE).astype(np.int64),
        pod_created_s=column("created_s"),
        pod_scheduled_s=column("scheduled_s"),
        pod_started_s=column("started_s"),
        pod_ready_s=ready_s,
        groups=groups,
        obstacles=replace(Obstacles.none(1), room=np.array([room])),
    )
    names = ("node_created_s", "image_s", "pulling_since_s", "weights_s", "fetching_since_s")
    weights = None
    if where is not None:
        of_pods = np.array([int(each) for each in cache or [PodCache.UNKNOWN] * count], dtype=np.int64)
        weights = Weights((SOURCE,), np.array([0]), np.array([SIZE]), np.array([steered]), where, of_pods)
    return replace(base, starts=PodStarts(*map(column, names)), weights=weights)


def took(
    created_s: float,
    wait_s: float = 1.0,
    image_s: float = 0.0,
    engine_s: float = 60.0,
    weights_s: float = np.nan,
    **more: float,
) -> dict[str, float]:
    """Return a pod that was created then and is ready."""
    scheduled_s = created_s + wait_s
    started_s = scheduled_s + image_s + 2 + float(np.nan_to_num(weights_s))
    times = {"created_s": created_s, "scheduled_s": scheduled_s, "started_s": started_s, "image_s": image_s}
    return times | {"ready_s": started_s + engine_s, "node_created_s": -9e9, "weights_s": weights_s} | more


class Starts:
    """A workload whose pods become ready one after the other, on nodes of several kinds."""

    def __init__(self, stated_s: float = 300.0) -> None:
        self.story = Story(spec(cold_start_s=stated_s))
        self.pods: list[dict[str, float]] = []
        self.cache: list[PodCache] = []

    def add(
        self,
        cache: PodCache = PodCache.UNKNOWN,
        where: WeightPlaces | None = None,
        room: float = 8.0,
        **pod: float,
    ) -> None:
        """Add a pod that has just become ready."""
        self.cache.append(cache)
        self.pods.append(took(self.story.now_s - 900, **pod))
        self.see(where=where, room=room)

    def see(self, *starting: dict[str, float], **more: Any) -> Decision:
        """Tick, with these pods starting as well."""
        pods = [*self.pods, *starting]
        return self.story.tick(cluster(pods, cache=[*self.cache, *[PodCache.UNKNOWN] * len(starting)], **more), 30.0)


ON_NEW_NODE = {"wait_s": 120.0, "image_s": 100.0, "node_created_s": 9e9}


def test_next_start_needs_no_node_while_there_is_a_free_place():
    starts = Starts()
    for _ in range(3):
        starts.add()
        starts.add(**ON_NEW_NODE)
    here_s = starts.see(can_add=8.0).observation.cold_start_s[0]
    away_s = starts.see(room=0.0, can_add=8.0).observation.cold_start_s[0]
    assert here_s < 120
    assert away_s > 280


def test_full_cluster_that_cannot_grow_creates_no_node():
    starts = Starts()
    starts.add()
    decision = starts.see(room=0.0)
    assert not decision.starts.new_node[0]


def test_weights_on_a_free_node_make_the_next_start_short():
    held, absent = places(4, held=4, nodes_held=4), places(4, absent=4, nodes_held=1)
    starts = Starts()
    for _ in range(3):
        starts.add(PodCache.HELD, held, engine_s=45.0)
        starts.add(PodCache.ABSENT, held, engine_s=400.0)
    short_s = starts.see(where=held).observation.cold_start_s[0]
    long_s = starts.see(where=absent).observation.cold_start_s[0]
    assert short_s < 120
    assert long_s > 330


def test_weights_make_a_start_short_before_any_was_seen():
    story = Story(spec(cold_start_s=300.0))
    held_s = story.tick(cluster([], where=places(4, held=4))).observation.cold_start_s[0]
    absent_s = story.tick(cluster([], where=places(4, absent=4))).observation.cold_start_s[0]
    assert absent_s == pytest.approx(300, rel=0.01)
    assert held_s < 150


@pytest.mark.parametrize(("steered", "cache"), [(False, PodCache.ABSENT), (True, PodCache.HELD)])
def test_few_places_with_weights_count_when_they_are_preferred(steered: bool, cache: PodCache):
    story = Story(spec(cold_start_s=300.0))
    decision = story.tick(cluster([], where=places(8, held=1, absent=7), steered=steered))
    assert decision.starts.cache[0] == cache


@pytest.mark.parametrize("room", [8.0, np.nan])
def test_planner_counts_with_the_mean_start_on_any_node(room: float):
    """A rise takes more replicas than the next one, which alone finds a free place with the weights."""
    held = places(1, held=1, nodes_held=1) if room > 0 else None
    starts = Starts()
    for _ in range(3):
        starts.add(PodCache.HELD, held, engine_s=45.0)
        starts.add(PodCache.ABSENT, held, engine_s=400.0)
    decision = starts.see(where=held, room=room)
    assert 180 < decision.starts.mean_s[0] < 260
    assert decision.starts.known[0] == (room > 0)


def test_single_long_start_counts_for_three_mean_ones():
    starts = Starts(stated_s=100.0)
    starts.add(room=np.nan, engine_s=3000.0)
    assert starts.see(room=np.nan).starts.mean_s[0] < 300


@pytest.mark.parametrize(("node_created_s", "mean_s"), [(-9e9, 63.0), (np.nan, 128.0)])
def test_wait_counts_as_long_as_the_start_if_nodes_are_not_told(node_created_s: float, mean_s: float):
    """The pod may have waited for a new node, or for a GPU that other pods held."""
    starts = Starts(stated_s=63.0)
    for _ in range(5):
        starts.add(room=np.nan, wait_s=800.0, node_created_s=node_created_s)
    assert starts.see(room=np.nan).starts.mean_s[0] == pytest.approx(mean_s, rel=0.1)


def test_start_is_that_of_all_when_the_cluster_tells_nothing():
    starts = Starts()
    starts.add()
    decision = starts.see(room=np.nan)
    assert not decision.starts.known[0]
    assert decision.observation.cold_start_s[0] == pytest.approx(63 * 1.5)


STARTING = {"created_s": 1000.0, "scheduled_s": 1001.0}


@pytest.mark.parametrize(
    ("pod", "phase", "since_s"),
    [
        ({"created_s": 1000.0}, Phase.SCHEDULE, 1000.0),
        ({"created_s": 1000.0, "pending": float(PendingCause.NODE_COMING)}, Phase.NODE, 1000.0),
        (STARTING, Phase.CONTAINER, 1001.0),
        (STARTING | {"pulling_since_s": 1010.0}, Phase.IMAGE, 1010.0),
        (STARTING | {"fetching_since_s": 1020.0}, Phase.WEIGHTS, 1020.0),
        (STARTING | {"fetching_since_s": 1020.0, "started_s": 1030.0}, Phase.ENGINE, 1030.0),
        (took(900.0), NOT_STARTING, np.nan),
    ],
)
def test_phase_of_a_starting_pod_is_told(pod: dict[str, float], phase: int, since_s: float):
    starts = Starts()
    decision = starts.see(pod)
    assert decision.starts.pod_phase[0] == phase
    assert decision.starts.pod_phase_s[0] == pytest.approx(starts.story.now_s - since_s, nan_ok=True)


def steady() -> Starts:
    starts = Starts()
    for _ in range(5):
        starts.add(weights_s=120.0, engine_s=60.0)
    return starts


def test_a_pod_is_due_when_its_remaining_phases_are_over():
    starts = steady()
    now_s = starts.story.now_s
    early = {"created_s": now_s - 2, "scheduled_s": now_s - 1}
    late = early | {"started_s": now_s + 10, "weights_s": 0.0}
    decision = starts.see(early)
    assert decision.observation.next_ready_s[0] > 40
    assert starts.see(late).observation.next_ready_s[0] < decision.observation.next_ready_s[0]


ON_REQUESTED_NODE = {"wait_s": 1.0, "image_s": 100.0}


def requesting(starts: Starts) -> Starts:
    starts.story.requests_nodes = np.ones(1, dtype=bool)
    return starts


@pytest.mark.parametrize(("requests", "age_s"), [(True, 900.0), (True, 5000.0), (True, 9000.0), (False, 900.0)])
def test_a_pull_on_a_requested_node_counts_for_new_nodes_alone(requests: bool, age_s: float):
    """Its pod waits for no node, as on one that has long existed and has the image."""
    starts = requesting(Starts()) if requests else Starts()
    for _ in range(5):
        starts.add(**ON_REQUESTED_NODE, node_created_s=starts.story.now_s - 900 - age_s)
        starts.add()
    here, new = starts.see(can_add=8.0), starts.see(room=0.0, can_add=8.0)
    is_new = requests and age_s < REQUESTED_NODE_S
    assert (90 < here.starts.image_s[0] < 120) == is_new
    assert (here.starts.p90_s[Phase.IMAGE, 0] < 10) == is_new
    assert here.starts.p50_s[Phase.NODE, 0] == 0 and new.starts.p50_s[Phase.IMAGE, 0] == here.starts.image_s[0]


def test_image_of_a_requested_node_counts_for_present_nodes():
    """It is the second pod on it."""
    starts = requesting(Starts())
    for _ in range(3):
        starts.add(**ON_REQUESTED_NODE, node_created_s=starts.story.now_s - 1800)
        starts.add(node_created_s=starts.story.now_s - 1800)
    assert starts.see(can_add=8.0).starts.image_s[0] > 90


def test_pulls_on_requested_nodes_survive_a_restart():
    starts = requesting(Starts())
    for _ in range(3):
        starts.add(**ON_REQUESTED_NODE, node_created_s=starts.story.now_s - 1800)
    story, seen = starts.story, cluster(starts.pods, can_add=8.0)
    before = story.tick(seen)
    saved = snapshot.take(story.memory, seen.workloads, story.now_s, wall_s=1.7e9)
    story.memory, _ = snapshot.restore(saved, Memory.empty(), seen, story.now_s, wall_s=1.7e9)
    assert story.tick(seen).starts.image_s[0] == pytest.approx(before.starts.image_s[0])


def test_a_pod_is_not_late_when_only_others_found_its_image():
    starts = Starts()
    for _ in range(4):
        starts.add()
    starts.add(**ON_NEW_NODE)
    pulling = dict.fromkeys(("created_s", "scheduled_s", "pulling_since_s"), starts.story.now_s)
    for _ in range(4):  # 120 s
        decision = starts.see(pulling)
    assert not decision.starts.pod_late[-1]
    assert decision.starts.pod_usual_s[-1] > 60
    for _ in range(30):
        decision = starts.see(pulling)
    assert decision.starts.pod_late[-1]


def test_the_usual_time_of_a_phase_is_known_after_one_start():
    starts = Starts()
    assert np.isnan(starts.see({"created_s": starts.story.now_s}).starts.pod_usual_s[-1])
    starts.add()
    assert np.isfinite(starts.see({"created_s": starts.story.now_s}).starts.pod_usual_s[-1])


def test_pod_is_stuck_when_far_beyond_its_quantile():
    starts = steady()
    fetching = {"created_s": starts.story.now_s, "scheduled_s": starts.story.now_s}
    fetching["fetching_since_s"] = starts.story.now_s
    for _ in range(5):  # 150 s
        decision = starts.see(fetching)
    assert decision.pending_by_class[PendingClass.STUCK_STARTING, 0] == 0
    assert decision.observation.starting[0] == 1
    for _ in range(40):  # 22 min
        decision = starts.see(fetching)
    assert decision.starts.pod_late[-1]
    assert decision.pending_by_class[PendingClass.STUCK_STARTING, 0] == 1
    assert (decision.observation.starting[0], decision.observation.starting_replica_s[0]) == (0, 0)


@pytest.mark.parametrize("started_s", [-1e7, 1e7])
def test_times_that_do_not_ascend_make_no_long_start(started_s: float):
    starts = Starts()
    for _ in range(3):
        starts.add(started_s=started_s)
    assert starts.see().observation.cold_start_s[0] < 120


@pytest.mark.parametrize("started_s", [-1e7, 1e7])
def test_a_pod_whose_start_is_absurd_is_neither_late_nor_far_off(started_s: float):
    starts = steady()
    now_s = starts.story.now_s
    decision = starts.see({"created_s": now_s, "scheduled_s": now_s, "started_s": started_s})
    assert not decision.starts.pod_late[-1]
    assert 0 <= decision.observation.next_ready_s[0] < 300


def test_first_token_is_timed_from_readiness():
    starts = Starts()
    starts.add()
    starts.pods.append(took(starts.story.now_s - 60, engine_s=60.0))
    starts.cache.append(PodCache.UNKNOWN)
    ready_s = starts.pods[-1]["ready_s"]
    for first_tokens in (0.0, 0.0, 5.0):
        starts.story.tick(cluster(starts.pods), 5.0, first_tokens=np.array([9.0, first_tokens]))
    took_s = starts.story.memory.workloads.observe.ledger.took_s[Phase.FIRST_TOKEN, 0, 0]
    assert took_s == pytest.approx(starts.story.now_s - ready_s)


def test_ledger_survives_a_restart():
    starts = Starts()
    for _ in range(3):
        starts.add(PodCache.HELD, places(4, held=4), engine_s=45.0)
    seen = cluster(starts.pods, where=places(4, held=4), cache=starts.cache)
    before = starts.story.tick(seen).observation.cold_start_s[0]
    taken = snapshot.take(starts.story.memory, seen.workloads, starts.story.now_s, 1.8e9)
    memory, _ = snapshot.restore(taken, Memory.empty(), seen, 50.0, 1.8e9)
    after = Story(starts.story.spec, 50.0)
    after.memory = memory
    assert after.tick(seen).observation.cold_start_s[0] == before
