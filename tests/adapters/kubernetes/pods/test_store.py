"""The table of pods against a slow model of it, and the odd cases by name."""

import asyncio
import math
from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.adapters.clock import SystemClock
from autoscaler.adapters.kubernetes.api import objects
from autoscaler.adapters.kubernetes.pods.store import (
    LWS_GROUP,
    LWS_NAME,
    LWS_SIZE,
    LWS_WORKER,
    Endpoint,
    PodRows,
    PodTable,
)
from autoscaler.adapters.kubernetes.pods.template import NO_FACTS, tolerating
from autoscaler.adapters.kubernetes.scheduling import Toleration
from autoscaler.core.model.fleet import Blocked
from tests.harness.calls import counted_calls


class StillClock:
    """A clock that stands, 1,000 s on the tick's side when Unix time is 1,800,000,000."""

    def __init__(self) -> None:
        self.wall = 1_800_000_000.0

    def now_s(self) -> float:
        return 1000.0

    def wall_s(self) -> float:
        return self.wall

    async def sleep(self, duration_s: float) -> None:
        await asyncio.sleep(duration_s)


def stamp(tick_s: float) -> str:
    """Write a time of the tick's clock as the API server would."""
    return datetime.fromtimestamp(1_799_999_000.0 + tick_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def pod(name: str, owner: str = "rs-1", ready_s: float | None = None, **more: Any) -> objects.Pod:
    conditions = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": stamp(10)}]
    if ready_s is not None:
        conditions.append({"type": "Ready", "status": "True", "lastTransitionTime": stamp(ready_s)})
    started_s = more.pop("started_s", 20)
    running = {"name": "vllm", "state": {"running": {"startedAt": stamp(started_s)}}}
    running["restartCount"] = more.pop("restarts", 0)
    body = {
        "metadata": {
            "name": name,
            "namespace": "ns",
            "uid": name,
            "creationTimestamp": stamp(5),
            "ownerReferences": [{"kind": "ReplicaSet", "name": owner, "uid": owner, "controller": True}],
        },
        "spec": {"containers": [{"name": "vllm"}], "nodeName": "n"},
        "status": {"phase": "Running", "podIP": "10.0.0.1", "conditions": conditions, "containerStatuses": [running]},
    }
    return msgspec.json.decode(msgspec.json.encode(body | more), type=objects.Pod)


def ids(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


def seen(table: PodTable, *targets: int) -> list[str]:
    return [found.name for found in table.rows(ids(*targets)).pods]


def test_pods_follow_their_owner_in_whichever_order_they_are_seen():
    table = PodTable(StillClock())
    table.put(pod("early"))
    assert seen(table, 7) == []
    table.own(("ns", "rs-1"), 7)
    table.put(pod("late"))
    assert seen(table, 7) == ["early", "late"]
    assert seen(table, 8) == []


def test_times_are_on_the_clock_of_the_tick():
    table = PodTable(StillClock())
    table.own(("ns", "rs-1"), 0)
    table.put(pod("a", ready_s=90))
    rows = table.rows(ids(0))
    assert (rows.created_s[0], rows.scheduled_s[0], rows.started_s[0], rows.ready_s[0]) == (5, 10, 20, 90)


def test_readiness_that_flaps_does_not_make_the_cold_start_longer():
    table = PodTable(StillClock())
    table.own(("ns", "rs-1"), 0)
    table.put(pod("a", ready_s=90))
    table.put(pod("a"))
    assert math.isnan(table.rows(ids(0)).ready_s[0])
    table.put(pod("a", ready_s=700))
    assert table.rows(ids(0)).ready_s[0] == 90


def test_an_engine_that_started_again_became_ready_again():
    table = PodTable(StillClock())
    table.own(("ns", "rs-1"), 0)
    table.put(pod("a", ready_s=90))
    table.put(pod("a", ready_s=700, started_s=600))
    assert table.rows(ids(0)).ready_s[0] == 700


def test_when_an_engine_that_was_started_again_ran_first_is_not_known():
    """Met after a crash, it would look as if it had taken all the time since the pod was made."""
    table = PodTable(StillClock())
    table.own(("ns", "rs-1"), 0)
    table.put(pod("a", ready_s=700, started_s=600, restarts=1))
    rows = table.rows(ids(0))
    assert math.isnan(rows.started_s[0])
    assert rows.ready_s[0] == 700
    table.put(pod("a", ready_s=900, started_s=800, restarts=2))
    assert table.rows(ids(0)).ready_s[0] == 900


def test_a_wall_clock_that_is_set_right_moves_no_times_between_each_other():
    clock = StillClock()
    table = PodTable(clock)
    table.own(("ns", "rs-1"), 0)
    table.put(pod("a"))
    clock.wall += 3600
    table.put(pod("a", ready_s=90))
    rows = table.rows(ids(0))
    assert rows.ready_s[0] - rows.created_s[0] == 85


def test_where_a_target_serves_metrics_reaches_its_pods():
    table = PodTable(StillClock())
    table.own(("ns", "rs-1"), 0)
    table.put(pod("before"))
    table.set_endpoint(0, Endpoint(9000, "https", "/v1/metrics"))
    table.put(pod("after"))
    found = [(pod.metrics_port, pod.metrics_scheme, pod.metrics_path) for pod in table.rows(ids(0)).pods]
    assert found == [(9000, "https", "/v1/metrics")] * 2


def test_a_pod_that_nobody_controls_is_left_out():
    table = PodTable(StillClock())
    bare = msgspec.convert({"metadata": {"name": "x", "namespace": "ns"}}, objects.Pod)
    table.put(bare)
    assert table.rows(ids(-1, 0)).pods == ()


NAMES = st.sampled_from([f"p{index}" for index in range(8)])
STEPS = st.lists(
    st.tuples(st.just("put"), NAMES, st.sampled_from(["rs-0", "rs-1", "rs-2"]))
    | st.tuples(st.just("remove"), NAMES, st.just(""))
    | st.tuples(st.just("own"), st.sampled_from(["rs-0", "rs-1", "rs-2"]), st.integers(0, 3).map(str)),
    max_size=300,
)


@pytest.mark.slow
@settings(deadline=None)
@given(STEPS, st.integers(1, 40))
def test_the_table_holds_what_a_plain_dictionary_would(steps: list[tuple[str, str, str]], churn: int):
    """Owners never change in a pod's life, so a pod under another owner is one made again: removed first."""
    table = PodTable(StillClock())
    owner_of: dict[str, str] = {}
    target_of: dict[str, int] = {}
    order: list[str] = []
    for index in range(churn * 10):  # rows that come and go, so that the table closes its gaps
        table.put(pod(f"churn{index}"))
        table.remove("ns", f"churn{index}")
    for step, first, second in steps:
        if step == "own":
            target_of[first] = int(second)
            table.own(("ns", first), int(second))
            continue
        if step == "remove" or owner_of.get(first, second) != second:
            table.remove("ns", first)
            owner_of.pop(first, None)
            order = [name for name in order if name != first]
        if step == "put":
            table.put(pod(first, second))
            if first not in owner_of:
                order.append(first)
            owner_of[first] = second
    for targets in ((0, 1), (2,), (0, 1, 2, 3)):
        expected = [name for name in order if target_of.get(owner_of[name], -1) in targets]
        rows = table.rows(ids(*targets))
        assert [found.name for found in rows.pods] == expected
        assert rows.target_id.tolist() == [target_of[owner_of[name]] for name in expected]
        assert (np.diff(rows.pod_id) > 0).all()


def test_an_event_costs_no_more_among_many_pods_and_a_snapshot_one_call_a_pod():
    pods = 20_000
    table = PodTable(SystemClock())
    table.own(("ns", "rs-1"), 0)
    one = pod("x")
    many = [
        msgspec.structs.replace(one, metadata=msgspec.structs.replace(one.metadata, name=f"p{index}"))
        for index in range(pods)
    ]
    with counted_calls() as first:
        table.put(many[0])
    for each in many[1:-1]:
        table.put(each)
    with counted_calls() as last:
        table.put(many[-1])
    with counted_calls() as snapshot:
        rows = table.rows(ids(0))
    assert last.made == first.made
    assert snapshot.made < 1.1 * pods
    assert len(rows.pods) == pods
    assert rows.blocked.tolist() == [Blocked.NO] * pods


def member(index: int, ready_s: float | None = None, size: int = 3, leaves: bool = False, **more: Any) -> objects.Pod:
    """Return a pod of a LeaderWorkerSet's only group."""
    name = f"m-0-{index}" if index else "m-0"
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": "ns",
        "uid": name,
        "creationTimestamp": stamp(5),
        "labels": {LWS_NAME: "m", LWS_GROUP: "0", LWS_WORKER: str(index)},
        "annotations": {LWS_SIZE: str(size)},
    }
    if leaves:
        metadata["deletionTimestamp"] = stamp(500)
    return pod(name, ready_s=ready_s, metadata=metadata, **more)


def group(*members: objects.Pod) -> PodRows:
    table = PodTable(StillClock())
    table.own(("ns", "m"), 7)
    for each in members:
        table.put(each)
    return table.rows(ids(7))


@pytest.mark.parametrize(
    ("members", "ready"),
    [
        ([member(0, 100), member(1, 110), member(2, 90)], True),
        ([member(2, 90), member(1, 110), member(0, 100)], True),
        ([member(0, 100), member(1, 110), member(2)], False),
        ([member(0), member(1, 110), member(2, 90)], False),
        ([member(0, 100), member(1, 110)], False),  # startupPolicy LeaderReady: the workers come later
        ([member(0, 100), member(1, 110), member(2, 90, leaves=True)], False),
        ([member(0, 100, size=1)], True),
    ],
)
def test_a_group_is_as_ready_as_its_worst_pod(members: list[objects.Pod], ready: bool):
    rows = group(*members)
    assert [each.name for each in rows.pods] == ["m-0"]
    assert rows.ready.tolist() == [ready]
    assert math.isnan(rows.ready_s[0]) != ready


def test_a_group_is_ready_since_its_last_pod_is():
    unready, table = member(2), PodTable(StillClock())
    table.own(("ns", "m"), 7)
    for each in (member(0, 100), member(1, 110), unready):
        table.put(each)
    assert not table.rows(ids(7)).ready[0]
    table.put(member(2, 400))
    assert table.rows(ids(7)).ready_s.tolist() == [400]
    table.remove("ns", "m-0-1")
    assert not table.rows(ids(7)).ready[0]


def test_a_ready_leader_does_not_hide_a_worker_that_is_stuck():
    crashing = {"name": "vllm", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
    stuck = member(1, status={"phase": "Running", "containerStatuses": [crashing]})
    assert group(member(0, 100, size=2), stuck).blocked.tolist() == [Blocked.CRASHING]


def test_a_group_whose_leader_goes_leaves():
    rows = group(member(0, 100, size=2, leaves=True), member(1, 100, size=2))
    assert (rows.terminating.tolist(), rows.ready.tolist()) == ([True], [True])


def test_pods_tell_what_they_tolerate_beyond_their_template():
    """Admission plugins add tolerations; those of every pod, for taints of the control plane, tell nothing."""
    added = {"key": "dedicated", "operator": "Exists"}
    every = {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}
    table = PodTable(StillClock())
    table.own(("ns", "rs-1"), 7)
    table.put(pod("a", spec={"containers": [{"name": "vllm"}], "tolerations": [every]}))
    assert (table.tolerations(), table.tolerances) == ({}, 0)
    table.put(pod("b", spec={"containers": [{"name": "vllm"}], "tolerations": [every, added]}))
    table.put(pod("c", spec={"containers": [{"name": "vllm"}], "tolerations": [added]}))
    assert (table.tolerations(), table.tolerances) == ({7: frozenset({Toleration("dedicated", "Exists")})}, 1)
    assert tolerating(NO_FACTS, table.tolerations()[7]).needs.tolerations == (Toleration("dedicated", "Exists"),)


def test_a_pod_has_the_names_of_its_own_command_line():
    table = PodTable(StillClock())
    table.own(("ns", "rs-1"), 7)
    for name in ("old", "new"):
        args = ["vllm", "serve", "org/m", "--served-model-name", name]
        table.put(pod(name, spec={"containers": [{"name": "vllm", "args": args}]}))
    table.put(pod("plain"))
    assert [found.served.names for found in table.rows(ids(7)).pods] == [("old",), ("new",), ()]
