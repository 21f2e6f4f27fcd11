"""KServe's LocalModelCache: which caches should exist, and what its objects say, also odd ones."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.adapters.kubernetes.api.objects import Untyped
from autoscaler.adapters.kubernetes.weights.kserve import (
    CACHES,
    GROUPS,
    NODES,
    Cache,
    LocalModels,
    WantedModel,
    manifest,
    uri_of,
)
from autoscaler.adapters.kubernetes.weights.reports import ReportStore
from autoscaler.config.weights.source import parse
from tests.adapters.keda.world import ManualClock

CHAT, CODE = parse("hf://org/chat@main"), parse("hf://org/code@v1")
LABELS = {"a": {"disk": "ssd"}, "b": {"disk": "ssd"}, "c": {"disk": "none"}}
SSD = {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}


def seen(name: str, spec: object, status: object = None, **labels: str) -> Untyped:
    return msgspec.convert({"metadata": {"name": name, "labels": labels}, "spec": spec, "status": status}, Untyped)


def group(name: str, limit: str, *terms: dict) -> Untyped:
    affinity = {"required": {"nodeSelectorTerms": list(terms)}}
    return seen(name, {"storageLimit": limit, "persistentVolumeSpec": {"nodeAffinity": affinity}})


def models() -> LocalModels:
    found = LocalModels(ReportStore(ManualClock()))
    found.store_of(GROUPS).put(group("ssds", "100G", SSD))
    return found


def model(source=CHAT, size: float = 60e9, nodes: str = "abc", namespace: str = "team") -> WantedModel:
    return WantedModel(source, size, frozenset(nodes), frozenset({namespace}))


def test_model_gets_the_groups_that_may_run_it():
    found = models().wanted([model()], LABELS, frozenset())
    assert list(found.values()) == [Cache("hf://org/chat", ("ssds",), 60e9, is_own=True)]
    assert models().wanted([model(nodes="c")], LABELS, frozenset()) == {}


def test_first_model_gets_the_room_within_the_limit_of_a_group():
    found = models().wanted([model(CODE), model(CHAT)], LABELS, frozenset())
    assert [cache.uri for cache in found.values()] == ["hf://org/code:v1"]
    assert len(models().wanted([model(CODE, 50e9), model(CHAT, 50e9)], LABELS, frozenset())) == 2


def test_namespace_leaves_half_of_a_group_to_others():
    many = [model(parse(f"hf://org/m{number}@main"), 20e9) for number in range(5)]
    assert len(models().wanted(many, LABELS, frozenset())) == 5
    found = models().wanted([*many, model(CHAT, 20e9, namespace="other")], LABELS, frozenset())
    assert sorted(cache.uri for cache in found.values()) == ["hf://org/chat", "hf://org/m0", "hf://org/m1"]
    elsewhere = model(CHAT, 20e9, nodes="c", namespace="other")
    assert len(models().wanted([*many, elsewhere], LABELS, frozenset())) == 5, "it shares no node with them"


def test_caches_of_others_count_and_are_left_alone():
    local = models()
    local.store_of(CACHES).put(
        seen("theirs", {"sourceModelUri": "hf://org/chat", "modelSize": "60G", "nodeGroups": ["ssds"]})
    )
    assert local.wanted([model(CHAT), model(CODE, 50e9)], LABELS, frozenset()) == {}
    assert local.own() == {}


def test_nodes_with_an_agent_and_unknown_sizes_are_left_out():
    assert models().wanted([model()], LABELS, frozenset("ab")) == {}
    assert models().wanted([model(size=math.nan)], LABELS, frozenset()) == {}


def test_manifest_is_read_as_the_cache_that_it_was_made_of():
    local = models()
    ((name, cache),) = local.wanted([model(CODE)], LABELS, frozenset()).items()
    made = manifest(name, cache)
    local.store_of(CACHES).put(seen(name, made["spec"], **made["metadata"]["labels"]))
    assert local.own() == {name: cache}
    assert local.wanted([model(CODE)], LABELS, frozenset()) == {name: cache}, "its own size does not count twice"


@pytest.mark.parametrize(
    ("source", "uri"), [("hf://a/b@main", "hf://a/b"), ("hf://a/b@v1", "hf://a/b:v1"), ("s3://bu/c", "s3://bu/c")]
)
def test_uri_is_written_as_kserve_writes_it(source: str, uri: str):
    assert uri_of(parse(source)) == uri


def test_states_of_a_node_are_read_with_and_without_namespace():
    reports = ReportStore(ManualClock())
    local = LocalModels(reports)
    listed = [
        {"modelName": "chat", "sourceModelUri": "hf://org/chat"},
        {"modelName": "code", "namespace": "team", "sourceModelUri": "hf://org/code:v1"},
        {"modelName": "odd", "sourceModelUri": "oci://x"},
    ]
    status = {"modelStatus": {"chat": "ModelDownloaded", "team/code": "ModelDownloadError"}}
    store = local.store_of(NODES)
    store.put(seen("n1", {"localModels": listed}, status))
    assert reports.holders == {CHAT.key: {"n1"}}
    assert (reports.status(CODE.key).failed, reports.status(CODE.key).failures[0].cause) == (1, "kserve")
    store.clear()
    assert (reports.holders, reports.nodes) == ({}, {})


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = ("localModels", "modelStatus", "storageLimit", "persistentVolumeSpec", "nodeGroups", "modelSize")


@given(st.sampled_from([NODES, GROUPS, CACHES]), st.dictionaries(st.sampled_from(FIELDS), values) | values)
def test_any_object_is_read(kind: str, value: object):
    local = models()
    local.store_of(kind).put(seen("x", value, value))
    local.wanted([model()], LABELS, frozenset())
