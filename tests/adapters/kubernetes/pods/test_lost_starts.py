"""Pods that end before they are ready, and what follows for the pods that replace them."""

from datetime import UTC, datetime

import numpy as np
import pytest

from autoscaler.adapters.clock import SystemClock
from autoscaler.adapters.kubernetes.api.objects import Condition, OwnerReference
from autoscaler.adapters.kubernetes.api.pod_objects import (
    ContainerState,
    ContainerStatus,
    PodMetadata,
    PodObject,
    PodStatus,
    Terminated,
)
from autoscaler.adapters.kubernetes.pods.lost_starts import NOT_SCHEDULED_S, LostStarts
from autoscaler.core.model.fleet import PendingCause

BEGIN_S = 1_800_000_000.0
NONE, NOT_SCHEDULED, LOST = PendingCause.NONE, PendingCause.NOT_SCHEDULED, PendingCause.LOST_STARTS


class Clock(SystemClock):
    """A clock that a test sets. The tick and Unix time count from different moments."""

    at_s = 0.0

    def now_s(self) -> float:
        return 100.0 + self.at_s

    def wall_s(self) -> float:
        return BEGIN_S + self.at_s


def moment(at_s: float) -> datetime:
    return datetime.fromtimestamp(BEGIN_S + at_s, UTC)


class Owner:
    """A controller that creates pods in place of others."""

    def __init__(self, kind: str = "ReplicaSet") -> None:
        self.clock, self.kind = Clock(), kind
        self.starts = LostStarts(self.clock)
        self.created_s: dict[str, float] = {}

    def pod(self, name: str, at_s: float, uid: str = "", deleted_s: float | None = None, **status) -> None:
        """Let a pod be seen. at_s: the time of that; a pod of a new name is created then."""
        self.clock.at_s = at_s
        created_s = self.created_s.setdefault(uid or name, at_s)
        owners = [OwnerReference(self.kind, "llama", "owner", True)]
        metadata = PodMetadata(
            name,
            "demo",
            uid or name,
            creation_timestamp=moment(created_s),
            deletion_timestamp=None if deleted_s is None else moment(deleted_s + 30),
            deletion_grace_period_seconds=None if deleted_s is None else 30,
            labels={"pod-template-hash": "a"},
            owner_references=owners,
        )
        self.starts.put(PodObject(metadata=metadata, status=PodStatus(**status)))

    def cause(self, name: str, at_s: float, own: PendingCause = NONE) -> PendingCause:
        self.clock.at_s = at_s
        created_s = np.array([100.0 + self.created_s[name]])
        found = self.starts.causes(lambda: [("demo", name)], created_s, np.array([own]), np.array([True]))
        return PendingCause(int(found[0]))


def condition(kind: str, status: str, at_s: float, reason: str = "") -> Condition:
    return Condition(kind, status, reason, "words", moment(at_s))


def reject(owner: Owner, name: str, at_s: float) -> None:
    owner.pod(name, at_s)
    owner.pod(name, at_s + 1, phase="Failed", reason="UnexpectedAdmissionError", message="no device")


def preempt(owner: Owner, name: str, at_s: float) -> None:
    owner.pod(name, at_s)
    owner.pod(name, at_s + 1, conditions=[condition("DisruptionTarget", "True", at_s + 1, "PreemptionByScheduler")])
    owner.starts.remove(("demo", name))


def delete(owner: Owner, name: str, at_s: float) -> None:
    owner.pod(name, at_s)
    owner.pod(name, at_s + 1, deleted_s=at_s + 1)


def complete(owner: Owner, name: str, at_s: float) -> None:
    owner.pod(name, at_s)
    owner.pod(name, at_s + 1, phase="Succeeded")


@pytest.mark.parametrize("end", [reject, preempt, delete, complete])
def test_pod_is_not_expected_when_those_before_it_were_lost(end):
    owner = Owner()
    end(owner, "a", 0)
    owner.pod("b", 2)
    assert owner.cause("b", 3) is NONE  # one pod may be lost for many reasons
    end(owner, "b", 2)
    owner.pod("c", 4)
    assert owner.cause("c", 5) is LOST
    assert owner.starts.words(("demo", "c"))
    assert owner.cause("c", 5, PendingCause.UNSCHEDULABLE) is PendingCause.UNSCHEDULABLE  # it says more
    assert owner.cause("c", 40) is NONE  # it has survived what ended the others


def test_a_pod_of_a_stateful_set_is_replaced_by_its_name():
    owner = Owner("StatefulSet")
    for number in range(2):
        owner.pod("a", 300 * number, uid=f"uid-{number}")
        owner.pod("a", 300 * number + 200, uid=f"uid-{number}", deleted_s=300 * number + 200)
        owner.clock.at_s = 300 * number + 299
        owner.starts.remove(("demo", "a"))
    owner.pod("a", 600, uid="uid-2")
    owner.created_s["a"] = 600
    assert owner.cause("a", 601) is LOST


def test_pods_that_a_lower_count_removed_were_not_lost():
    owner = Owner()
    for number in range(4):
        owner.pod(f"a{number}", 0)
        owner.pod(f"a{number}", 60, deleted_s=60)
        owner.starts.remove(("demo", f"a{number}"))
    owner.pod("b", 120)
    assert owner.cause("b", 121) is NONE


def test_a_pod_that_becomes_ready_ends_the_doubt():
    owner = Owner()
    reject(owner, "a", 0)
    reject(owner, "b", 2)
    owner.pod("c", 4)
    owner.pod("d", 4)
    assert owner.cause("d", 5) is LOST
    owner.pod("c", 20, conditions=[condition("Ready", "True", 20)])
    assert owner.cause("d", 21) is NONE


def test_pods_that_had_served_were_not_lost():
    """The daemon starts and finds evicted pods: they ran for an hour, or never."""
    for served in (True, False):
        owner = Owner()
        for number in range(2):
            run = ContainerState(terminated=Terminated("Error", moment(10), moment(3600)))
            fell = condition("Ready", "False", 3600 if served else 5)
            owner.created_s[f"a{number}"] = number
            owner.pod(
                f"a{number}",
                3700,
                phase="Failed",
                reason="Evicted",
                conditions=[fell],
                container_statuses=[ContainerStatus("vllm", run)],
            )
        owner.pod("b", 3700)
        assert owner.cause("b", 3701) is (NONE if served else LOST)


def test_scheduler_has_some_time_to_answer():
    owner = Owner()
    owner.pod("a", 0)
    assert owner.cause("a", 1, NOT_SCHEDULED) is NONE
    assert owner.cause("a", NOT_SCHEDULED_S, NOT_SCHEDULED) is NOT_SCHEDULED
