"""Fluid's Datasets: which nodes hold their models, also odd objects and names that run together."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.adapters.kubernetes.api.node_objects import NodeObject
from autoscaler.adapters.kubernetes.api.objects import Dataset
from autoscaler.adapters.kubernetes.weights.fluid_datasets import Datasets
from autoscaler.adapters.kubernetes.weights.reports import ReportStore
from autoscaler.config.annotations import WEIGHTS
from autoscaler.config.weights.report import ModelReport, State
from autoscaler.config.weights.source import parse
from tests.adapters.keda.world import ManualClock

CHAT, CODE = parse("s3://models/chat"), parse("hf://org/code@main")
LABEL = "fluid.io/s-team-chat"
CACHED = {"phase": "Bound", "cacheStates": {"cachedPercentage": "100.0%"}, "ufsTotal": "14.96GiB"}


class Cluster:
    """A store of Datasets, the labels of nodes, and what the daemon then knows."""

    def __init__(self) -> None:
        self.reports = ReportStore(ManualClock())
        self.datasets = Datasets(self.reports)

    def node(self, name: str, *labels: str, value: str = "true") -> None:
        metadata = {"name": name, "labels": dict.fromkeys(labels, value)}
        self.datasets.nodes.put(msgspec.convert({"metadata": metadata}, NodeObject))

    def dataset(self, *points: object, status: object = CACHED, place: str = "team/chat", **annotations: str) -> None:
        namespace, _, name = place.partition("/")
        stated = {f"vllm-autoscaler.io/{key}": value for key, value in annotations.items()}
        metadata = {"namespace": namespace, "name": name, "uid": "3f2a", "annotations": stated}
        spec = {"mounts": [{"mountPoint": point, "name": "m"} for point in points]}
        self.datasets.put(msgspec.convert({"metadata": metadata, "spec": spec, "status": status}, Dataset))

    def states(self, node: str) -> dict[str, State]:
        report = self.reports.nodes[node].report
        return {key: model.state for key, model in report.models.items()} if report is not None else {}


@pytest.mark.parametrize("order", ["node", "dataset"])
def test_a_node_with_the_label_holds_what_its_dataset_mounts(order: str):
    cluster = Cluster()
    if order == "node":
        cluster.node("n", LABEL)
    cluster.dataset("s3://models/chat/")
    cluster.node("n", LABEL)
    cluster.node("other", "fluid.io/s-team-code", "fluid.io/dataset-num")
    assert cluster.reports.holders == {CHAT.key: {"n"}}
    assert cluster.reports.size_bytes(CHAT.key) == pytest.approx(14.96 * 2**30, abs=1)


def test_an_annotation_names_what_a_claim_or_a_bucket_holds():
    cluster = Cluster()
    cluster.node("n", LABEL)
    cluster.dataset("pvc://models", weights=str(CODE))
    assert cluster.reports.holders == {CODE.key: {"n"}}
    cluster.dataset("pvc://models", weights="no source")
    assert cluster.reports.holders == {}
    assert WEIGHTS == "vllm-autoscaler.io/weights"


@pytest.mark.parametrize(
    ("status", "state"),
    [
        (CACHED, State.READY),
        ({"phase": "Bound", "cacheStates": {"cachedPercentage": "99.5%"}}, State.READY),
        ({"phase": "Bound", "cacheStates": {"cachedPercentage": "63.1%"}}, State.FETCHING),
        ({"phase": "Bound", "cacheStates": {"cachedPercentage": "N/A"}}, State.FETCHING),
        ({"phase": "Bound"}, State.FETCHING),
        ({"phase": "NotBound", "cacheStates": {"cachedPercentage": "100.0%"}}, State.WAITING),
        (None, State.WAITING),
        ({"phase": "Failed"}, State.FAILED),
    ],
)
def test_state_is_that_of_the_dataset(status: object, state: State):
    cluster = Cluster()
    cluster.node("n", LABEL)
    cluster.dataset(str(CHAT), status=status)
    assert cluster.states("n") == {CHAT.key: state}
    if state is State.FAILED:
        assert [(each.cause, each.text) for each in cluster.reports.status(CHAT.key).failures] == [
            ("fluid", "see Dataset team/chat")
        ]


def test_several_mounts_share_no_size():
    cluster = Cluster()
    cluster.node("n", LABEL)
    cluster.dataset("s3://models/chat", "s3://models/code", "local:///data")
    assert cluster.reports.holders == {parse(f"s3://models/{name}").key: {"n"} for name in ("chat", "code")}
    assert not cluster.reports.size_bytes(CHAT.key) > 0


def test_a_long_name_is_labelled_by_uid():
    cluster = Cluster()
    cluster.node("n", "fluid.io/s-3f2a")
    cluster.dataset(str(CHAT), place=f"team/{'x' * 47}")  # with prefix and namespace 63 characters
    assert cluster.reports.holders == {CHAT.key: {"n"}}
    cluster.dataset(str(CODE), place=f"team/{'x' * 46}")
    assert CODE.key not in cluster.reports.holders
    cluster.node("n", f"fluid.io/s-team-{'x' * 46}")
    assert cluster.reports.holders == {CODE.key: {"n"}}


def test_names_that_run_together_share_a_label():
    cluster = Cluster()
    cluster.node("n", "fluid.io/s-a-b-c")
    cluster.dataset(str(CHAT), place="a-b/c")
    cluster.dataset("pvc://x", place="a/b-c", weights=str(CODE))
    assert cluster.reports.holders == {CHAT.key: {"n"}, CODE.key: {"n"}}
    cluster.datasets.remove("a-b", "c")
    assert cluster.reports.holders == {CODE.key: {"n"}}


def test_what_goes_away_is_forgotten():
    cluster = Cluster()
    cluster.node("n", LABEL)
    cluster.dataset(str(CHAT))
    cluster.node("n", LABEL, value="false")
    assert cluster.reports.nodes == {}
    cluster.node("n", LABEL)
    cluster.datasets.nodes.remove("", "n")
    assert cluster.reports.nodes == {}
    cluster.node("n", LABEL)
    cluster.datasets.clear()
    assert cluster.reports.nodes == {}
    cluster.dataset(str(CHAT))
    assert cluster.reports.holders == {CHAT.key: {"n"}}


def test_of_two_caches_of_a_node_the_one_that_is_ready_counts():
    cluster = Cluster()
    cluster.node("n", LABEL)
    cluster.dataset(str(CHAT))
    cluster.reports.put_cache(
        "kserve",
        "n",
        {
            CHAT.key: ModelReport(str(CHAT), State.FETCHING),
            CODE.key: ModelReport(str(CODE), State.READY),
        },
    )
    assert cluster.reports.holders == {CHAT.key: {"n"}, CODE.key: {"n"}}
    cluster.reports.put_cache("kserve", "n", {})
    assert cluster.reports.holders == {CHAT.key: {"n"}}


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from(["Bound", "1e999", "1e99GiB"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = ("mounts", "phase", "cacheStates", "cachedPercentage", "ufsTotal", "mountPoint")


@given(values | st.dictionaries(st.sampled_from(FIELDS), values), st.lists(st.text(max_size=70), max_size=3))
def test_any_object_is_read(value: object, labels: list[str]):
    cluster = Cluster()
    cluster.node("n", *labels, LABEL)
    metadata = {"namespace": "team", "name": "chat"}
    cluster.datasets.put(msgspec.convert({"metadata": metadata, "spec": value, "status": value}, Dataset))
    cluster.dataset(str(CHAT), status=value)
    assert set(cluster.states("n")) == {CHAT.key}
    cluster.datasets.clear()
    assert cluster.reports.nodes == {}
