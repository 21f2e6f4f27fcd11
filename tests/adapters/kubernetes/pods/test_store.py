"""The store of pods against a slow model of it, and special cases."""

import asyncio
import math
from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.adapters.clock import SystemClock
from autoscaler.adapters.kubernetes.api import pod_objects
from autoscaler.adapters.kubernetes.pods.endpoint import UNSTATED, Endpoint, Endpoints
from autoscaler.adapters.kubernetes.pods.label_sets import PodLookup
from autoscaler.adapters.kubernetes.pods.needs import PodToleration
from autoscaler.adapters.kubernetes.pods.rows import PodRows
from autoscaler.adapters.kubernetes.pods.selector import read_selector, selects
from autoscaler.adapters.kubernetes.pods.status import LWS_SIZE
from autoscaler.adapters.kubernetes.pods.store import PodStore
from autoscaler.adapters.kubernetes.pods.template import NO_FACTS, add_tolerations
from autoscaler.catalog.scale_targets import POD_GROUPS
from autoscaler.core.model.fleet import PendingCause
from tests.harness.calls import counted_calls

LWS = POD_GROUPS[0]


class FixedClock:
    """A clock that tests move: 1,000 s for the tick, 1,800,000,000 in Unix time."""

    def __init__(self) -> None:
        self.wall = 1_800_000_000.0
        self.tick_s = 1000.0

    def now_s(self) -> float:
        return self.tick_s

    def wall_s(self) -> float:
        return self.wall + self.tick_s - 1000.0

    async def sleep(self, duration_s: float) -> None:
        await asyncio.sleep(duration_s)


def stamp(tick_s: float) -> str:
    """Format a time of the tick's clock like the API server."""
    return datetime.fromtimestamp(1_799_999_000.0 + tick_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def pod(name: str, owner: str = "rs-1", ready_s: float | None = None, **more: Any) -> pod_objects.PodObject:
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
    return msgspec.json.decode(msgspec.json.encode(body | more), type=pod_objects.PodObject)


def ids(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


def names(store: PodStore, *targets: int) -> list[str]:
    return [found.name for found in store.rows(ids(*targets)).pods]


def test_pods_have_the_target_of_their_owner_in_any_order():
    store = PodStore(FixedClock())
    store.put(pod("early"))
    assert names(store, 7) == []
    store.set_target(("ns", "rs-1"), 7)
    store.put(pod("late"))
    assert names(store, 7) == ["early", "late"]
    assert names(store, 8) == []


def test_times_are_on_the_clock_of_the_tick():
    store = PodStore(FixedClock())
    store.set_target(("ns", "rs-1"), 0)
    store.put(pod("a", ready_s=90))
    rows = store.rows(ids(0))
    assert (rows.created_s[0], rows.scheduled_s[0], rows.started_s[0], rows.ready_s[0]) == (5, 10, 20, 90)


def test_ready_time_stays_when_readiness_flaps():
    clock = FixedClock()
    store = PodStore(clock)
    store.set_target(("ns", "rs-1"), 0)
    store.put(pod("a", ready_s=90))
    clock.tick_s = 690
    store.put(pod("a"))
    assert math.isnan(store.rows(ids(0)).ready_s[0])
    clock.tick_s = 700
    store.put(pod("a", ready_s=700))
    assert store.rows(ids(0)).ready_s[0] == 90


def test_ready_time_is_new_when_the_engine_restarted():
    store = PodStore(FixedClock())
    store.set_target(("ns", "rs-1"), 0)
    store.put(pod("a", ready_s=90))
    store.put(pod("a", ready_s=700, started_s=600))
    assert store.rows(ids(0)).ready_s[0] == 700


def test_start_time_is_unknown_after_a_restart():
    """After a crash the cold start would otherwise include all the time since the pod was created."""
    store = PodStore(FixedClock())
    store.set_target(("ns", "rs-1"), 0)
    store.put(pod("a", ready_s=700, started_s=600, restarts=1))
    rows = store.rows(ids(0))
    assert math.isnan(rows.started_s[0])
    assert rows.ready_s[0] == 700
    store.put(pod("a", ready_s=900, started_s=800, restarts=2))
    assert store.rows(ids(0)).ready_s[0] == 900


def test_durations_stay_when_the_wall_clock_is_set():
    clock = FixedClock()
    store = PodStore(clock)
    store.set_target(("ns", "rs-1"), 0)
    clock.tick_s = 20
    store.put(pod("a"))
    clock.tick_s, clock.wall = 90, clock.wall + 3600
    store.put(pod("a", ready_s=90))
    rows = store.rows(ids(0))
    assert rows.ready_s[0] - rows.created_s[0] == 85


@pytest.mark.parametrize(("ahead_s", "clock_s"), [(0, 0), (3, 0), (60, 60), (3600, 3600), (10**9, 10**9)])
def test_times_of_a_node_whose_clock_is_ahead_are_moved_back(ahead_s: int, clock_s: int):
    """Its engine starts 900 s and serves 990 s after the beginning. Each event comes at once."""
    clock = FixedClock()
    store = PodStore(clock)
    store.set_target(("ns", "rs-1"), 0)
    clock.tick_s = 900
    store.put(pod("a", started_s=900 + ahead_s))
    clock.tick_s = 990
    store.put(pod("a", started_s=900 + ahead_s, ready_s=990 + ahead_s))
    rows = store.rows(ids(0))
    assert (rows.started_s[0], rows.ready_s[0]) == (900 + ahead_s - clock_s, 990 + ahead_s - clock_s)
    assert (rows.created_s[0], rows.scheduled_s[0]) == (5, 10)  # by the clock of the control plane


@pytest.mark.parametrize(
    ("behind_s", "events_s", "clock_s"),
    [
        (0, (400, 900, 990), 0),
        (4, (400, 900, 990), 0),
        (30, (400, 900, 990), 30),  # both events come half a minute late
        (600, (400, 900, 990), 600),
        (3600, (899, 900, 990), 3600),
        (3600, (989, 990), 3600),  # its engine was seen with its readiness first
        (0, (400, 900, 1200), 0),  # a watch that was broken tells late what happened
        (0, (400, 1200), 0),
    ],
)
def test_times_of_a_node_whose_clock_is_behind_are_moved_on(behind_s: int, events_s: tuple[int, ...], clock_s: int):
    """Its engine starts 900 s and serves 990 s after the beginning."""
    clock = FixedClock()
    store = PodStore(clock)
    store.set_target(("ns", "rs-1"), 0)
    waits = {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}]}
    for at_s in events_s:
        clock.tick_s = at_s
        happened = {"started_s": 900 - behind_s} | ({"ready_s": 990 - behind_s} if at_s >= 990 else {})
        store.put(pod("a", **(happened if at_s >= 900 and at_s != 989 else {"status": waits})))
    rows = store.rows(ids(0))
    assert (rows.started_s[0], rows.ready_s[0]) == (900 - behind_s + clock_s, 990 - behind_s + clock_s)


def test_clock_ahead_teaches_nothing_of_a_start_not_seen():
    store = PodStore(FixedClock())
    store.set_target(("ns", "rs-1"), 0)
    store.put(pod("a", started_s=900 + 3600, ready_s=990 + 3600))
    rows = store.rows(ids(0))
    assert math.isnan(rows.started_s[0])
    assert rows.ready_s[0] == 1000  # now


def test_pods_have_the_endpoint_of_their_target():
    store = PodStore(FixedClock())
    store.set_target(("ns", "rs-1"), 0)
    store.put(pod("before"))
    store.set_endpoint(0, Endpoints(otherwise=Endpoint(9000, "https", "/v1/metrics")))
    store.put(pod("after"))
    found = [(pod.metrics_port, pod.metrics_scheme, pod.metrics_path) for pod in store.rows(ids(0)).pods]
    assert found == [(9000, "https", "/v1/metrics")] * 2


def container(*arguments: str, **more: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "vllm", "args": list(arguments), **more}], "nodeName": "n"}}


@pytest.mark.parametrize(
    ("declared", "pod_has", "expected"),
    [
        (UNSTATED, container("vllm", "serve", "m", "--port", "8001"), (8001, "https", "/new", "vllm")),
        (UNSTATED, container("sglang", "serve", "--model", "m"), (30000, "https", "/new", "sglang")),
        (UNSTATED, container(ports=[{"name": "http", "containerPort": 8200}]), (8200, "https", "/new", "")),
        (UNSTATED, container(), (9000, "https", "/new", "")),
        (UNSTATED, container(readinessProbe={"httpGet": {"port": 15020}}), (9000, "https", "/new", "")),
        (
            Endpoint(7000, "http", "/x", "tgi"),
            container("vllm", "serve", "m", "--port", "8001"),
            (7000, "http", "/x", "tgi"),
        ),
        (Endpoint(0, "", "", "vllm"), container("sglang", "serve", "--model", "m"), (9000, "https", "/new", "vllm")),
    ],
)
def test_pod_keeps_its_own_endpoint_when_the_template_changes(declared, pod_has, expected):
    store = PodStore(FixedClock())
    store.set_target(("ns", "rs-1"), 0)
    store.put(pod("before", **pod_has))
    store.set_endpoint(0, Endpoints(declared, Endpoint(9000, "https", "/new")))
    store.put(pod("after", **pod_has))
    found = [
        (each.metrics_port, each.metrics_scheme, each.metrics_path, each.engine) for each in store.rows(ids(0)).pods
    ]
    assert found == [expected] * 2


@pytest.mark.parametrize(
    ("declared", "words", "annotations", "expected"),
    [
        ("", ("vllm", "serve", "org/old"), {}, "hf://org/old@main"),
        ("", ("vllm", "serve", "org/old", "--revision", "v1"), {}, "hf://org/old@v1"),
        ("", ("vllm", "serve", "org/old"), {"vllm-autoscaler.io/weights": "hf://org/own@v2"}, "hf://org/own@v2"),
        ("", ("vllm", "serve", "old"), {"vllm-autoscaler.io/weights": "ftp://no"}, "hf://org/new@main"),
        ("hf://org/stated@v3", ("vllm", "serve", "org/old"), {}, "hf://org/stated@v3"),
    ],
)
def test_pod_keeps_its_own_weights_when_the_template_changes(declared, words, annotations, expected):
    store = PodStore(FixedClock())
    store.set_target(("ns", "rs-1"), 0)
    metadata = {"name": "a", "namespace": "ns", "uid": "a", "annotations": annotations}
    owner = {"kind": "ReplicaSet", "name": "rs-1", "uid": "rs-1", "controller": True}
    store.put(pod("a", **container(*words), metadata=metadata | {"ownerReferences": [owner]}))
    store.set_endpoint(0, Endpoints(UNSTATED._replace(weights=declared), Endpoint(weights="hf://org/new@main")))
    assert [each.weights for each in store.rows(ids(0)).pods] == [expected]


@pytest.mark.parametrize(("port", "expected"), [("8123", (8123, "https", "/old")), ("15020", (9000, "http", ""))])
def test_annotations_of_the_pod_name_its_endpoint(port, expected):
    """Istio redirects those of all pods to itself; then the template tells the endpoint of the engine."""
    notes = {"prometheus.io/port": port, "prometheus.io/scheme": "https", "prometheus.io/path": "/old"}
    seen = pod("a")
    store = PodStore(FixedClock())
    store.set_target(("ns", "rs-1"), 0)
    store.set_endpoint(0, Endpoints(otherwise=Endpoint(9000)))
    raw = msgspec.Raw(msgspec.json.encode(notes))
    store.put(msgspec.structs.replace(seen, metadata=msgspec.structs.replace(seen.metadata, annotations=raw)))
    found = store.rows(ids(0)).pods[0]
    assert (found.metrics_port, found.metrics_scheme, found.metrics_path) == expected


def test_facts_of_pods_differ_when_only_their_templates_do():
    """A StatefulSet without a label for its revision: its old and new pods have the same labels."""
    store = PodStore(FixedClock())
    store.select({1: query("app=x", learns=True)})
    store.put(labelled("a", {"app": "x"}, gpus=1))
    store.put(labelled("b", {"app": "x"}, gpus=4))
    assert store.facts(1).gpus == 4.0
    store.remove("ns", "b")
    assert store.facts(1).gpus == 1.0


def test_pod_without_controller_is_ignored():
    store = PodStore(FixedClock())
    bare = msgspec.convert({"metadata": {"name": "x", "namespace": "ns"}}, pod_objects.PodObject)
    store.put(bare)
    assert store.rows(ids(-1, 0)).pods == ()


NAMES = st.sampled_from([f"p{index}" for index in range(8)])
STEPS = st.lists(
    st.tuples(st.just("put"), NAMES, st.sampled_from(["rs-0", "rs-1", "rs-2"]))
    | st.tuples(st.just("remove"), NAMES, st.just(""))
    | st.tuples(st.just("own"), st.sampled_from(["rs-0", "rs-1", "rs-2"]), st.integers(0, 3).map(str)),
    max_size=300,
)


@pytest.mark.slow
@given(STEPS, st.integers(1, 40))
def test_store_equals_a_plain_dictionary(steps: list[tuple[str, str, str]], churn: int):
    """A pod never changes its owner, so a pod with another owner was deleted and created again."""
    store = PodStore(FixedClock())
    owner_of: dict[str, str] = {}
    target_of: dict[str, int] = {}
    order: list[str] = []
    for index in range(churn * 10):  # rows that are added and removed, so that the store compacts itself
        store.put(pod(f"churn{index}"))
        store.remove("ns", f"churn{index}")
    for step, first, second in steps:
        if step == "own":
            target_of[first] = int(second)
            store.set_target(("ns", first), int(second))
            continue
        if step == "remove" or owner_of.get(first, second) != second:
            store.remove("ns", first)
            owner_of.pop(first, None)
            order = [name for name in order if name != first]
        if step == "put":
            store.put(pod(first, second))
            if first not in owner_of:
                order.append(first)
            owner_of[first] = second
    for targets in ((0, 1), (2,), (0, 1, 2, 3)):
        expected = [name for name in order if target_of.get(owner_of[name], -1) in targets]
        rows = store.rows(ids(*targets))
        assert [found.name for found in rows.pods] == expected
        assert rows.target_id.tolist() == [target_of[owner_of[name]] for name in expected]
        assert (np.diff(rows.pod_id) > 0).all()


@pytest.mark.slow
def test_cost_of_an_event_is_independent_of_the_pod_count():
    pods = 20_000
    store = PodStore(SystemClock())
    store.set_target(("ns", "rs-1"), 0)
    one = pod("x")
    many = [
        msgspec.structs.replace(one, metadata=msgspec.structs.replace(one.metadata, name=f"p{index}"))
        for index in range(pods)
    ]
    store.put(many[0])  # the first pod of a template is read once for all
    with counted_calls() as first:
        store.put(many[1])
    for each in many[2:-1]:
        store.put(each)
    with counted_calls() as last:
        store.put(many[-1])
    with counted_calls() as snapshot:
        rows = store.rows(ids(0))
    assert last.made == first.made
    assert snapshot.made < 1.1 * pods
    assert len(rows.pods) == pods
    assert rows.blocked.tolist() == [PendingCause.NONE] * pods


def member(
    index: int, ready_s: float | None = None, size: int = 3, leaves: bool = False, **more: Any
) -> pod_objects.PodObject:
    """Return a pod of a LeaderWorkerSet's only group."""
    name = f"m-0-{index}" if index else "m-0"
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": "ns",
        "uid": name,
        "creationTimestamp": stamp(5),
        "labels": {LWS.same[0]: "m", LWS.same[1]: "0", LWS.leader: str(index)},
        "annotations": {LWS_SIZE: str(size)},
    }
    if leaves:
        metadata["deletionTimestamp"] = stamp(500)
    return pod(name, ready_s=ready_s, metadata=metadata, **more)


def group(*members: pod_objects.PodObject) -> PodRows:
    store = PodStore(FixedClock())
    store.set_target(("ns", "m"), 7)
    for each in members:
        store.put(each)
    return store.rows(ids(7))


@pytest.mark.parametrize(
    ("members", "ready"),
    [
        ([member(0, 100), member(1, 110), member(2, 90)], True),
        ([member(2, 90), member(1, 110), member(0, 100)], True),
        ([member(0, 100), member(1, 110), member(2)], False),
        ([member(0), member(1, 110), member(2, 90)], False),
        ([member(0, 100), member(1, 110)], False),  # startupPolicy LeaderReady: workers are created later
        ([member(0, 100), member(1, 110), member(2, 90, leaves=True)], False),
        ([member(0, 100, size=1)], True),
    ],
)
def test_group_is_ready_only_when_all_its_pods_are(members: list[pod_objects.PodObject], ready: bool):
    rows = group(*members)
    assert [each.name for each in rows.pods] == ["m-0"]
    assert rows.ready.tolist() == [ready]
    assert math.isnan(rows.ready_s[0]) != ready


def test_group_is_ready_since_its_last_pod_became_ready():
    unready, store = member(2), PodStore(FixedClock())
    store.set_target(("ns", "m"), 7)
    for each in (member(0, 100), member(1, 110), unready):
        store.put(each)
    assert not store.rows(ids(7)).ready[0]
    store.put(member(2, 400))
    assert store.rows(ids(7)).ready_s.tolist() == [400]
    store.remove("ns", "m-0-1")
    assert not store.rows(ids(7)).ready[0]


def test_group_is_blocked_when_a_worker_is():
    crashing = {"name": "vllm", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
    stuck = member(1, status={"phase": "Running", "containerStatuses": [crashing]})
    assert group(member(0, 100, size=2), stuck).blocked.tolist() == [PendingCause.CRASH_LOOP]


def test_group_is_terminating_when_its_leader_is():
    rows = group(member(0, 100, size=2, leaves=True), member(1, 100, size=2))
    assert (rows.terminating.tolist(), rows.ready.tolist()) == ([True], [True])


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_what_pods_of_a_group_hold_is_held_by_its_replica(order: tuple[int, ...]):
    limits = {"resources": {"limits": {"nvidia.com/gpu": "4"}}, "name": "vllm"}
    spec = {"nodeName": "n", "containers": [limits]}
    store = PodStore(FixedClock())
    store.set_target(("ns", "m"), 7)
    for index in order:
        store.put(member(index, 100, spec=spec))
        store.held()
    for _ in range(2):
        held, (replica,) = store.held(), store.rows(ids(7)).pod_id.tolist()
        assert (held.target.tolist(), held.replica.tolist()) == ([7] * 3, [replica] * 3)
        assert held.devices.tolist() == [4.0] * 3
        store.remove("ns", "m-0")  # it is made again, with another id
        store.put(member(0, 100, spec=spec))


def test_tolerations_of_pods_are_added_to_their_template():
    """Admission plugins add tolerations. Those for taints of the control plane, which every pod has, are ignored."""
    added = {"key": "dedicated", "operator": "Exists"}
    every = {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}
    store = PodStore(FixedClock())
    store.set_target(("ns", "rs-1"), 7)
    store.put(pod("a", spec={"containers": [{"name": "vllm"}], "tolerations": [every]}))
    assert (store.tolerations(), store.tolerations_version) == ({}, 0)
    store.put(pod("b", spec={"containers": [{"name": "vllm"}], "tolerations": [every, added]}))
    store.put(pod("c", spec={"containers": [{"name": "vllm"}], "tolerations": [added]}))
    assert (store.tolerations(), store.tolerations_version) == (
        {7: frozenset({PodToleration("dedicated", "Exists")})},
        1,
    )
    assert add_tolerations(NO_FACTS, store.tolerations()[7]).needs.tolerations == (
        PodToleration("dedicated", "Exists"),
    )


def test_pod_has_the_model_names_of_its_command_line():
    store = PodStore(FixedClock())
    store.set_target(("ns", "rs-1"), 7)
    for name in ("old", "new"):
        args = ["vllm", "serve", "org/m", "--served-model-name", name]
        store.put(pod(name, spec={"containers": [{"name": "vllm", "args": args}]}))
    store.put(pod("plain"))
    assert [found.served.names for found in store.rows(ids(7)).pods] == [("old",), ("new",), ()]


def test_slots_of_each_pod_are_those_of_its_own_command_line():
    store = PodStore(FixedClock())
    store.set_target(("ns", "rs-1"), 7)
    for slots in ("16", "24"):
        args = ["vllm", "serve", "org/m", "--max-num-seqs", slots]
        store.put(pod(f"of-{slots}", spec={"containers": [{"name": "vllm", "args": args}]}))
    store.put(pod("plain"))
    assert store.rows(ids(7)).slots.tolist() == pytest.approx([16, 24, math.nan], nan_ok=True)


def labelled(name: str, labels: dict[str, str], gpus: int = 1, owner: str = "rs-1") -> pod_objects.PodObject:
    container = {"name": "v", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
    owners = [{"kind": "ReplicaSet", "name": owner, "uid": owner, "controller": True}]
    metadata = {"name": name, "namespace": "ns", "uid": name, "labels": labels, "ownerReferences": owners}
    body = {"metadata": metadata, "spec": {"containers": [container]}, "status": {}}
    return msgspec.json.decode(msgspec.json.encode(body), type=pod_objects.PodObject)


def query(text: str, **rest: Any) -> PodLookup:
    return PodLookup("ns", read_selector(text), **rest)


def test_selecting_target_has_precedence_over_the_owner():
    store = PodStore(FixedClock())
    store.set_target(("ns", "rs-1"), 0)
    store.put(labelled("a", {"app": "x"}))
    store.put(labelled("b", {"app": "y"}))
    store.select({7: query("app=x")})
    assert store.rows(ids(0, 7)).target_id.tolist() == [7, 0]
    store.put(labelled("c", {"app": "x"}))
    assert store.target_of(("ns", "c")) == 7
    store.select({})
    assert store.rows(ids(0, 7)).target_id.tolist() == [0, 0, 0]


def test_pod_whose_labels_change_changes_its_target():
    store = PodStore(FixedClock())
    store.select({1: query("app=x"), 2: query("app in (y,z)")})
    store.put(labelled("a", {"app": "x"}))
    store.put(labelled("a", {"app": "z"}))
    assert store.target_of(("ns", "a")) == 2
    store.put(labelled("a", {"app": "none"}))
    assert store.target_of(("ns", "a")) == -1


def test_targets_that_select_the_same_pods_overlap():
    store = PodStore(FixedClock())
    store.put(labelled("a", {"app": "x", "role": "decode"}))
    store.select({1: query("app=x"), 2: query("role=decode"), 3: query("role=prefill")})
    assert store.overlaps() == {1: {2}, 2: {1}}
    assert store.target_of(("ns", "a")) == 1


def test_facts_are_those_of_the_newest_replica():
    store = PodStore(FixedClock())
    store.select({1: query("app=x", learns=True)})
    assert store.facts(1) is None
    store.put(labelled("a", {"app": "x", "hash": "1"}, gpus=1))
    version = store.facts_version
    store.put(labelled("b", {"app": "x", "hash": "2"}, gpus=4))
    assert store.facts_version > version
    found = store.facts(1)
    assert found is not None
    assert found.gpus == 4.0
    store.remove("ns", "b")
    found = store.facts(1)
    assert found is not None
    assert found.gpus == 1.0


@given(
    st.lists(st.dictionaries(st.sampled_from("abc"), st.sampled_from("xyz")), max_size=12),
    st.lists(
        st.sampled_from(["a=x", "a=y,b=x", "b in (x,z)", "!c", "c!=x", "a", "", "a in (x)"]), min_size=1, max_size=5
    ),
    st.booleans(),
)
def test_targets_are_those_that_each_pod_alone_would_have(labels: list[dict], selectors: list[str], first: bool):
    """A slow model: the first target, by its number, whose selector matches."""
    store = PodStore(FixedClock())
    queries = {number: query(text) for number, text in enumerate(selectors)}
    if first:
        store.select(queries)
    for index, each in enumerate(labels):
        store.put(labelled(f"p{index}", each))
    store.select(queries)
    for index, each in enumerate(labels):
        expected = [number for number, one in queries.items() if selects(one.selector, each)]
        assert store.target_of(("ns", f"p{index}")) == min(expected, default=-1)


def test_the_last_pod_tells_which_pods_yield_to_its_target():
    """Owners may be known later than pods, and the priority stays known without pods."""

    def important(name: str, **more: Any) -> pod_objects.PodObject:
        return pod(name, spec={"containers": [{"name": "vllm"}], "priority": 1000, **more})

    store = PodStore(FixedClock())
    assert store.preempts(0) == 0
    store.put(important("a"))
    store.set_target(("ns", "rs-1"), 0)
    assert store.preempts(0) == 1000
    store.put(important("b", preemptionPolicy="Never"))
    store.remove("ns", "a")
    store.remove("ns", "b")
    assert store.preempts(0) == -math.inf
