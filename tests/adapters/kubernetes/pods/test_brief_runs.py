"""Pods that serve for a moment between two restarts, and what follows for their next run."""

from itertools import pairwise

import pytest

from autoscaler.adapters.kubernetes.api.objects import Condition
from autoscaler.adapters.kubernetes.api.pod_objects import (
    ContainerState,
    ContainerStatus,
    PodMetadata,
    PodObject,
    PodStatus,
    RunningState,
    Terminated,
)
from autoscaler.adapters.kubernetes.pods.brief_runs import BriefRuns
from tests.adapters.kubernetes.pods.test_lost_starts import Clock, moment

KEY = ("demo", "a")


class Life:
    """One pod that a kubelet runs. Each run starts for `start_s`, serves, and is killed."""

    def __init__(self, start_s: float = 60, seen_s: float = 0.0) -> None:
        self.clock, self.restarts, self.start_s, self.seen_s = Clock(), 0, start_s, seen_s
        self.runs = BriefRuns(self.clock)
        self.last: ContainerState | None = None
        self.began_s = 0.0

    def see(self, at_s: float, ready: bool, changed_s: float, uid: str = "a") -> str:
        """Let the daemon see the pod, and return its words."""
        self.clock.at_s = at_s
        state = ContainerState(running=RunningState(moment(self.began_s)))
        conditions = [Condition("Ready", "True" if ready else "False", last_transition_time=moment(changed_s))]
        status = PodStatus(
            conditions=conditions,
            container_statuses=[ContainerStatus("vllm", state, self.last, self.restarts, ready)],
        )
        if at_s >= self.seen_s:
            self.runs.put(PodObject(metadata=PodMetadata("a", "demo", uid), status=status))
        return self.runs.words(KEY)

    def run(self, served_s: float, told: bool = True) -> float:
        """Run once, and be killed. told: an event says that it is ready no longer. Returns the time of the kill."""
        ready_s = self.began_s + self.start_s
        fell_s = ready_s + served_s
        self.see(self.began_s, False, self.began_s)
        if served_s:
            self.see(ready_s, True, ready_s)
        if told:
            self.see(fell_s, False, fell_s if served_s else self.began_s)
        self.last = ContainerState(terminated=Terminated("Error", moment(self.began_s), moment(fell_s), 137))
        self.restarts, self.began_s = self.restarts + 1, fell_s
        return fell_s


@pytest.mark.parametrize(
    ("served_s", "doubted"),
    [
        ((5, 5), True),
        ((59, 59), True),  # no longer than its start takes
        ((5,), False),
        ((3600, 5), False),
        ((5, 3600, 5), False),
        ((5, 5, 3600), False),
        ((5, 0, 5), True),  # a run that was never ready ends no doubt
        ((0, 0, 0), False),  # the state of its container tells
    ],
)
@pytest.mark.parametrize("told", [True, False])
def test_next_run_is_doubted_when_runs_before_served_briefly(served_s, doubted, told):
    life = Life()
    for each in served_s:
        at_s = life.run(each, told)
    assert bool(life.see(at_s + 1, False, at_s)) is doubted
    assert bool(life.see(at_s + 60, True, at_s + 60)) is doubted  # it serves, as it did before


def test_doubt_ends_when_a_run_outlives_those_before_it():
    life = Life()
    for each in (5, 5):
        at_s = life.run(each)
    life.see(at_s, False, at_s)
    assert "served for 5 s" in life.see(at_s + 60, True, at_s + 60)
    life.clock.at_s = at_s + 60 + 61
    assert not life.runs.words(KEY)


def test_another_pod_of_the_name_is_not_doubted():
    life = Life()
    for each in (5, 5):
        at_s = life.run(each)
    assert life.see(at_s + 1, False, at_s)
    assert not life.see(at_s + 2, False, at_s, uid="b")


def test_runs_that_were_not_seen_are_not_judged():
    life = Life(seen_s=200)
    words = [bool(life.see(life.run(5) + 1, False, life.began_s)) for _ in range(8)]
    assert [words.index(True), words[-1]] == [4, True]  # the fourth run began 195 s after the first
    assert all(after >= before for before, after in pairwise(words))
