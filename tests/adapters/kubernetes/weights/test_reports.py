"""What nodes say about weights: labels and reports, also hostile ones."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.adapters.kubernetes.api import node_objects
from autoscaler.adapters.kubernetes.weights.reports import MAX_MODELS, ReportStore
from autoscaler.config.weights.report import ANNOTATION, LABEL_PREFIX, ModelReport, Report, State, encode, labels
from autoscaler.config.weights.source import parse
from autoscaler.core.model.weights import PodCache
from tests.adapters.keda.world import ManualClock

CHAT, CODE = "hf://org/chat@main", "hf://org/code@main"
A, B = parse(CHAT).key, parse(CODE).key


def node(name: str, labels: dict[str, str] | None = None, report: str | None = None) -> node_objects.NodeObject:
    annotations = {"other": "x"} if report is None else {ANNOTATION: report, "other": "x"}
    metadata = {"name": name, "labels": labels or {}, "annotations": annotations}
    return msgspec.json.decode(msgspec.json.encode({"metadata": metadata}), type=node_objects.NodeObject)


def holding(name: str, *sources: str, size: int = 5, state: State = State.READY) -> node_objects.NodeObject:
    models = {parse(source).key: ModelReport(source, state, size) for source in sources}
    report = Report(models, "1.0", 100, 50)
    return node(name, labels(report), encode(report))


def test_nodes_hold_what_labels_or_the_report_say():
    store = ReportStore(ManualClock())
    store.put(holding("both", CHAT))
    store.put(node("labelled", {f"{LABEL_PREFIX}{A}": "ready", f"{LABEL_PREFIX}{B}": "no"}))
    store.put(holding("fetching", CHAT, state=State.FETCHING))
    store.put(node("silent"))
    assert store.holders == {A: {"both", "labelled"}}
    assert sorted(store.nodes) == ["both", "fetching", "labelled"]


def test_removed_label_and_deleted_node_hold_nothing():
    store = ReportStore(ManualClock())
    store.put(holding("n1", CHAT, CODE))
    store.put(holding("n2", CHAT))
    store.put(holding("n1", CODE))
    assert store.holders == {A: {"n2"}, B: {"n1"}}
    store.remove("", "n2")
    store.put(node("n1"))
    assert (store.holders, store.nodes) == ({}, {})


def test_version_stays_when_nothing_about_weights_changes():
    store = ReportStore(ManualClock())
    store.put(holding("n1", CHAT))
    before = store.version
    store.put(holding("n1", CHAT))
    store.put(node("n2", {"zone": "a"}))
    assert store.version == before


def test_size_is_the_median_so_that_one_node_deceives_no_other():
    store = ReportStore(ManualClock())
    assert math.isnan(store.size_bytes(A))
    for name, size in (("n1", 7), ("n2", 7), ("liar", 1 << 50), ("unknown", 0)):
        store.put(holding(name, CHAT, size=size))
    assert store.size_bytes(A) == 7


def test_pod_finds_the_weights_when_its_node_held_them_before():
    clock = ManualClock()
    store = ReportStore(clock)
    start_s = clock.now_s()
    store.put(holding("n1", CHAT))
    store.put(holding("n2", CODE))
    clock.time_s += 10
    store.put(holding("n2", CODE, CHAT))
    assert store.cache_of("n1", A, start_s + 1) is PodCache.HELD
    assert store.cache_of("n1", A, start_s - 1) is PodCache.UNKNOWN
    assert store.cache_of("n2", A, start_s + 9) is PodCache.ABSENT
    assert store.cache_of("n2", A, start_s + 11) is PodCache.HELD
    assert store.cache_of("n1", B, start_s + 1) is PodCache.ABSENT
    assert store.cache_of("n3", A, start_s + 1) is PodCache.UNKNOWN
    assert store.cache_of("n1", A, math.nan) is PodCache.UNKNOWN


@pytest.mark.parametrize("report", ["{", "[]", '{"format":2,"models":{}}', "x" * 20_000, '{"format":1,"models":3}'])
def test_report_that_cannot_be_used_is_told_and_labels_count(report: str):
    store = ReportStore(ManualClock())
    store.put(holding("good", CHAT))
    store.put(node("bad", {f"{LABEL_PREFIX}{A}": "ready"}, report))
    assert store.holders == {A: {"good", "bad"}}
    (problem,) = store.problems()
    assert problem.startswith("node bad: the report ")
    store.put(holding("bad", CHAT))
    assert list(store.problems()) == []


def test_thousand_labels_of_one_node_are_bounded():
    store = ReportStore(ManualClock())
    store.put(node("n1", {f"{LABEL_PREFIX}{number:016x}": "ready" for number in range(1000)}))
    assert len(store.nodes["n1"].held) == MAX_MODELS


@given(st.dictionaries(st.text(max_size=80), st.text(max_size=10), max_size=5), st.text(max_size=100))
def test_any_label_and_annotation_is_read(found: dict[str, str], report: str):
    store = ReportStore(ManualClock())
    store.put(holding("good", CHAT))
    store.put(node("odd", {f"{LABEL_PREFIX}{key}": value for key, value in found.items()}, report))
    assert "good" in store.holders[A]
