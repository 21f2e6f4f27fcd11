"""Stories with explained decisions: one for every signal and every stage."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np

from autoscaler.core.explain.sentence import Explanation, explain
from autoscaler.core.model.fleet import ForeignCounts, HpaLimits
from autoscaler.core.model.phases import Phase
from autoscaler.core.model.spec import Schedule
from autoscaler.core.model.types import Decision
from autoscaler.core.state import Memory
from autoscaler.core.tick import tick
from tests.core.serving import LEARNED, Serving
from tests.core.world import Story, fleet, quotas, spec, world

NAN = math.nan


class ExplainedStory(Story):
    """A story that explains its last tick."""

    def __init__(self, rules, now_s=1000.0):
        super().__init__(rules, now_s)
        self.schedule = None
        self.listen = lambda: None  # called after each tick

    def tick(self, cluster, after_s=5.0, **columns):
        self.now_s += after_s
        self.input = world(self.now_s, cluster, self.spec, self.schedule, self.variants, self.pairs, **columns)
        return self.repeat()

    def repeat(self) -> Decision:
        """Tick on `input` as it is."""
        self.decision, self.memory = tick(self.input, self.memory)
        self.listen()
        return self.decision

    def explain(self, row=0, problem="", leading=True) -> Explanation:
        return explain(self.input, self.decision, ("plain",) * len(self.spec.weight), {row: problem}, row, leading)


def one_tick(cluster, rules=None, watched_s=0.0, quiet=None, schedule=None, **columns) -> ExplainedStory:
    """Tick once, after a watch on the same cluster with the `quiet` readings."""
    story = ExplainedStory(rules or spec(len(cluster.workloads)))
    story.schedule = schedule
    if watched_s:
        story.watch(cluster, watched_s, **(quiet or {}))
    story.tick(cluster, **columns)
    return story


def cases() -> dict[str, Callable[[], ExplainedStory]]:
    """Return by name what plays a story to a decision, one for every signal and every stage."""
    asleep = fleet([0], replicas=[0])
    quiet_night = spec(idle_after_s=900.0, down_stabilization_s=60.0)
    budgeted = spec(idle_after_s=math.inf, down_stabilization_s=60.0)
    batch = spec(up_stabilization_s=120.0)
    window = Schedule(*(np.array([[value]]) for value in (1000.0, 9000.0, 4.0, NAN)))
    scarce = {"pool_gpus": np.array([3.0])}
    busy = {"running": 10.0, "waiting": 7.0}
    gpu = {"gpu_time_s": 1300.0, "fb_usage": 0.9, "tensor_active": 0.3}
    return {
        "planner": planner_story,
        "concurrency": lambda: one_tick(fleet([2]), running=20.0, waiting=24.0),
        "one replica": lambda: one_tick(fleet([1]), running=1.0),
        "gateway": lambda: one_tick(fleet([1]), running=10.0, gateway_waiting=15.0),
        "prefill": lambda: rate_story("prompt_tokens", prefill_tokens_per_s=1000.0),
        "decode": lambda: rate_story("generation_tokens", decode_tokens_per_s=1000.0),
        "kv_cache": lambda: one_tick(fleet([3]), kv_usage=0.94, running=9.0),
        "ttft": lambda: one_tick(fleet([2]), ttft_s=1.62, running=2.0, waiting=1.0),
        "itl": lambda: one_tick(fleet([2]), itl_s=0.128, running=2.0, waiting=1.0),
        "rejections": rejections_story,
        "many rejections": lambda: rejections_story(6170.0),
        "schedule": lambda: one_tick(fleet([1]), schedule=window),
        "wake": lambda: one_tick(asleep, quiet_night, gateway_waiting=1.0),
        "silent pod": lambda: one_tick(fleet([4]), running=2.0, time_s=np.array([1005.0, 1005.0, 1005.0, NAN])),
        "silent workload": lambda: one_tick(fleet([4]), time_s=NAN),
        "stale cluster": stale_view_story,
        "all starting": lambda: one_tick(fleet([0], [3])),
        "about to forecast": lambda: one_tick(
            fleet([2]), spec(concurrency=NAN, target_usage=0.8), running=40.0, waiting=1.0, gaps=0.0
        ),
        "at zero": lambda: one_tick(asleep, quiet_night),
        "burst": burst_story,
        "tolerance": lambda: one_tick(fleet([5]), spec(tolerance=0.1), running=10.4),
        "stabilization": lambda: one_tick(fleet([5]), watched_s=60, quiet={"running": 10.0}, running=3.0),
        "slow growth": lambda: one_tick(
            fleet([1]), batch, watched_s=200, quiet={"running": 1.0}, running=10.0, waiting=31.0
        ),
        "idle soon": lambda: one_tick(fleet([1]), quiet_night, watched_s=300),
        "computes at idle": lambda: one_tick(fleet([1]), quiet_night, watched_s=300, **gpu),
        "idle": lambda: one_tick(fleet([1]), quiet_night, watched_s=1000),
        "idle, as the budget bears": lambda: one_tick(
            fleet([1]), budgeted, watched_s=1000, quiet={"gateway_waiting": 0.0}, gateway_waiting=0.0
        ),
        "idle without gateway": lambda: one_tick(fleet([1]), budgeted, watched_s=1000),
        "never idle": lambda: one_tick(fleet([1]), watched_s=1000),
        "abandoned": lambda: one_tick(
            fleet([0], [2]), quiet_night, watched_s=1000, quiet={"gateway_waiting": 0.0}, gateway_waiting=0.0
        ),
        "rate up": lambda: one_tick(fleet([2]), spec(up_step_fraction=1.0, up_period_s=30.0), running=90.0),
        "rate down": lambda: one_tick(
            fleet([8]), spec(down_step_fraction=0.25, down_stabilization_s=10.0), watched_s=60, running=1.0
        ),
        "maximum": lambda: one_tick(fleet([2]), spec(max_replicas=4.0), running=90.0),
        "minimum": lambda: one_tick(fleet([2]), spec(min_replicas=2.0, down_stabilization_s=10.0), watched_s=60),
        "grant": lambda: one_tick(fleet([2], **scarce), **busy),
        "quota": lambda: one_tick(fleet([2], quotas=(quotas([0], [4], others=1),)), **busy),
        "quota of a cohort": lambda: one_tick(fleet([2, 1], quotas=(quotas([0, 1], [1, 3], cohort="all"),)), **busy),
        "borrowing limit": lambda: one_tick(
            fleet([2, 1], quotas=(quotas([0, 1], [1, 5], cohort="all", borrowing=[2.0, 0.0]),)), **busy
        ),
        "lent GPUs go back": lambda: one_tick(
            fleet([6, 2], quotas=(quotas([0, 1], [2, 6], cohort="all"),), drain_s=np.array([120.0, 60.0])), **busy
        ),
        "held beyond a quota": lambda: one_tick(
            fleet(
                [2],
                quotas=(quotas([0], [4]),),
                hpa_limits=HpaLimits(*map(np.array, ([6.0], [np.inf], [False], [False])), ("the HPA keeps six",)),
            ),
            watched_s=200,
        ),
        "reserve": headroom_story,
        "paused": lambda: one_tick(fleet([1], paused=np.array([True])), **busy),
        "paused at what is right": lambda: one_tick(fleet([1], paused=np.array([True])), running=5.0),
        "held": lambda: one_tick(
            fleet(
                [6],
                hpa_limits=HpaLimits(
                    *map(np.array, ([6.0], [np.inf], [False], [False])), ("KEDA is told to take none away",)
                ),
            ),
            watched_s=200,
        ),
        "other_owner": lambda: one_tick(fleet([1], other_owner=("HorizontalPodAutoscaler/chat",)), **busy),
        "owner for a while": lambda: one_tick(foreign_fleet([1], until_s=1300.0), **busy),
        "stopped": lambda: one_tick(foreign_fleet([0], until_s=math.inf)),
        "holds what is right": lambda: one_tick(foreign_fleet([1], until_s=1300.0), running=5.0),
        "reset": lambda: one_tick(foreign_fleet([4], reset_to=1.0), running=9.0),
        "reset that is right": lambda: one_tick(foreign_fleet([4], reset_to=1.0), spec(max_replicas=1.0), running=1.0),
        "guess": lambda: one_tick(fleet([2]), spec(concurrency=NAN), running=4.0),
        "too many": maximum_story,
        "no policy": lambda: one_tick(fleet([2]), spec(**dict.fromkeys(vars(spec()), NAN)), **busy),
        "endless start": endless_story,
        "late start": lambda: endless_story(Phase.WEIGHTS),
        "asleep": lambda: one_tick(fleet([2]), asleep=np.array([1.0, 0.0]), running=np.array([0.0, 30.0])),
    }


def foreign_fleet(ready, until_s=NAN, reset_to=NAN):
    owned = not math.isnan(until_s)
    counts = ForeignCounts(np.array([reset_to]), ("helm",), np.array([False]), np.array([until_s]))
    return fleet(ready, other_owner=("a manual change by kubectl" if owned else "",), foreign=counts)


def rate_story(counter, **rules):
    story = ExplainedStory(spec(**rules))
    for number in range(10):
        story.tick(fleet([2]), running=1.0, **{counter: 7890.0 * number})
    return story


def rejections_story(refused=5.0):
    story = ExplainedStory(spec())
    for number in range(10):
        story.tick(fleet([2]), running=1.0, finished=10.0 * number, rejections=refused * number)
    return story


def planner_story():
    """For two hours two replicas are half busy: the gap between tokens is twice that of an idle engine."""
    story, ended, gap_s = ExplainedStory(spec(concurrency=NAN)), 0.0, 0.0
    for step in range(240):
        ended += 60.0
        gap_s += 60.0 * 100 * (0.01 if step < 3 else 0.02)
        counters = {"finished": ended, "first_tokens": ended, "generation_tokens": 100 * ended, "ttft_met": ended}
        story.tick(fleet([2]), 30, running=4.0, gap_s=gap_s, gaps=100 * ended, **counters)
    return story


class ExplainedServing(Serving, ExplainedStory):
    """Workloads that serve a load, and explain their last tick."""


def headroom_story(guaranteed=NAN):
    """Two workloads share seven GPUs: the first holds headroom after its peak, the second has become busy.

    guaranteed: share of the pool that is guaranteed to the headroom of the first. Requests of the second can wait.
    """
    ranks = {
        "priority": [1000.0, 10.0],
        "headroom_share": [guaranteed, NAN],
        "ttft_objective_s": [1.0, 900.0],
    }
    story = ExplainedServing(spec(2, cold_start_s=60.0, **ranks, **LEARNED))
    story.learn(fleet([2, 2]))
    crowded = fleet([5, 2], pool_gpus=np.array([7.0]))
    for demand, for_s in (([6.0, 1.0], 120), ([1.0, 1.0], 300), ([1.0, 1.9], 180)):
        story.serve(crowded, np.array(demand), for_s)
    return story


def maximum_story():
    """The load exceeds what the maximum of the policy can serve."""
    story = ExplainedServing(spec(max_replicas=2.0, **LEARNED))
    story.learn(fleet([2]))
    story.serve(fleet([2]), 1.8, 600)
    story.decision = replace(story.decision, plan=replace(story.decision.plan, demand=np.array([3.8])))
    return story


def endless_story(phase=None):
    """A pod starts for an hour and 40 minutes. phase: in which it is late; None: no phase is known."""
    story = ExplainedStory(spec())
    story.watch(fleet([0], [1], starting_since_s=900.0), 3700, 60, running=5.0)
    if phase is not None:
        told = {"pod_late": [True], "pod_phase": [phase], "pod_phase_s": [720.0], "pod_usual_s": [110.0]}
        starts = replace(story.decision.starts, **{column: np.array(value) for column, value in told.items()})
        story.decision = replace(story.decision, starts=starts)
    return story


def stale_view_story():
    story = ExplainedStory(spec())
    story.tick(fleet([3]))
    story.input = replace(story.input, fleet=replace(story.input.fleet, time_s=story.now_s - 75.0))
    story.decision, _ = tick(story.input, Memory.empty())
    return story


def burst_story():
    """A full replica serves 3 requests/s. Later 1 request/s arrives, and then 12 at once."""
    story, ended = ExplainedStory(spec(cold_start_s=60.0, max_wait_s=2.0)), 0.0
    for per_s, running, waiting in [(3.0, 10.0, 8.0)] * 30 + [(1.0, 4.0, 0.0)] * 60 + [(1.0, 10.0, 12.0)]:
        ended += 5 * per_s
        counters = {"finished": ended, "first_tokens": ended, "generation_tokens": 300 * ended}
        story.tick(fleet([1]), running=running, waiting=waiting, **counters)
    return story


CASES = cases()


@cache
def played(name: str) -> ExplainedStory:
    """Play one of the cases. Tests must not change it."""
    return CASES[name]()


@cache
def explained(name: str) -> Explanation:
    return played(name).explain()
