"""Node admission, against the rules of the Kubernetes documentation and a plain count."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.adapters.kubernetes.api.objects import LeaderWorkerSet, PodSpec
from autoscaler.adapters.kubernetes.inventory.fit import admits, count_fitting
from autoscaler.adapters.kubernetes.inventory.groups import GroupKey
from autoscaler.adapters.kubernetes.inventory.nodes import Taint
from autoscaler.adapters.kubernetes.pods.needs import Expression, Needs, Toleration
from autoscaler.adapters.kubernetes.pods.template import read_template
from autoscaler.adapters.kubernetes.workloads.targets import read_leader_worker_set

GPU = "nvidia.com/gpu"
ONE = Needs(GPU, 1.0, 1.0, 1.0)


def group(labels=None, taints=(), gpus=4) -> GroupKey:
    devices = ((GPU, gpus),) if gpus else ()
    return GroupKey(tuple(sorted((labels or {}).items())), frozenset(taints), devices, "L4", False)


def affinity(*terms) -> Needs:
    return ONE._replace(terms=tuple(tuple(Expression(*each) for each in term) for term in terms))


@pytest.mark.parametrize(
    ("needs", "admitted"),
    [
        (ONE, True),
        (ONE._replace(selector=(("team", "a"),)), True),
        (ONE._replace(selector=(("team", "b"),)), False),
        (ONE._replace(selector=(("team", "a"), ("zone", "x"))), False),
        (ONE._replace(largest=4.0), True),
        (ONE._replace(largest=8.0), False),
        (ONE._replace(resource="nvidia.com/mig-1g.10gb"), False),
        (affinity([("team", "In", ("a", "b"))]), True),
        (affinity([("team", "In", ("b",))]), False),
        (affinity([("team", "NotIn", ("b",))]), True),
        (affinity([("zone", "NotIn", ("b",))]), True),
        (affinity([("team", "NotIn", ("a",))]), False),
        (affinity([("team", "Exists")]), True),
        (affinity([("zone", "Exists")]), False),
        (affinity([("zone", "DoesNotExist")]), True),
        (affinity([("size", "Gt", ("4",))]), True),
        (affinity([("size", "Gt", ("8",))]), False),
        (affinity([("size", "Lt", ("10",))]), True),
        (affinity([("team", "Lt", ("10",))]), False),
        (affinity([("team", "In", ("b",))], [("size", "Gt", ("4",))]), True),  # any term
        (affinity([("team", "In", ("a",)), ("size", "Lt", ("4",))]), False),  # all expressions of a term
        (affinity([]), False),
        (affinity([("team", "OfTomorrow")]), True),
    ],
)
def test_admission_by_labels_and_size_equals_the_scheduler(needs, admitted):
    assert admits(group({"team": "a", "size": "8"}), needs) is admitted


@pytest.mark.parametrize(
    ("tolerations", "admitted"),
    [
        ([], False),
        ([Toleration("dedicated", "Equal", "training", "NoSchedule")], True),
        ([Toleration("dedicated", "", "training")], True),
        ([Toleration("dedicated", "Equal", "serving")], False),
        ([Toleration("dedicated", "Exists")], True),
        ([Toleration("dedicated", "Exists", "", "NoExecute")], False),
        ([Toleration("other", "Exists")], False),
        ([Toleration("", "Exists")], True),
        ([Toleration()], False),
    ],
)
def test_taint_excludes_pods_without_toleration(tolerations, admitted):
    tainted = group(taints=[Taint("dedicated", "training", "NoSchedule")])
    assert admits(tainted, ONE._replace(tolerations=tuple(tolerations))) is admitted


@pytest.mark.parametrize(
    "taint",
    [
        Taint("dedicated", "training", "PreferNoSchedule"),
        Taint("node.kubernetes.io/unschedulable", "", "NoSchedule"),
        Taint("node.kubernetes.io/unreachable", "", "NoExecute"),
        Taint(GPU, "present", "NoSchedule"),
    ],
)
def test_nodes_admit_when_taints_are_control_plane_or_gpu(taint):
    assert admits(group(taints=[taint]), ONE)


words = st.sampled_from(["a", "b", "c"])
labels = st.dictionaries(words, words, max_size=3)
expressions = st.builds(
    Expression, words, st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist"]), st.tuples(words, words)
)
needs = st.builds(
    Needs,
    st.just(GPU),
    st.sampled_from([1.0, 2.0, 8.0]),
    selector=labels.map(lambda found: tuple(sorted(found.items()))),
    terms=st.one_of(st.none(), st.tuples(st.lists(expressions, max_size=2).map(tuple), st.tuples(expressions))),
)


@pytest.mark.slow
@given(labels, needs, labels)
def test_labels_that_no_template_reads_do_not_matter(has, needed, others):
    read = {key: value for key, value in has.items() if key in needed.label_keys()}
    more = {f"other-{key}": value for key, value in others.items()} | read
    assert admits(group(read), needed) == admits(group(more), needed)


@pytest.mark.slow
@given(labels, needs)
def test_fewer_needs_admit_at_least_as_much(has, needed):
    """An additional selector or term, or a larger pod, only excludes nodes."""
    if admits(group(has), needed):
        assert admits(group(has), needed._replace(selector=()))
        assert admits(group(has), needed._replace(terms=None))
        assert admits(group(has), needed._replace(largest=1.0))


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 4)), min_size=1, max_size=4), st.integers(1, 9))
def test_fitting_replicas_equal_a_plain_count(nodes, size):
    groups: dict[GroupKey, int] = {}
    for gpus, count in nodes:
        groups[group(gpus=gpus)] = groups.get(group(gpus=gpus), 0) + count
    needed = Needs(GPU, float(size), float(size), float(size))
    assert count_fitting(groups, needed) == sum(count * (gpus // size) for gpus, count in nodes)


def test_pods_of_a_group_may_use_several_nodes():
    four_of_eight = Needs(GPU, 8.0, 8.0, 32.0)
    assert count_fitting({group(gpus=8): 9}, four_of_eight) == 2
    assert count_fitting({group(gpus=4): 9}, four_of_eight) == 0
    assert count_fitting({group(gpus=8): 9}, Needs(GPU)) == math.inf


def template(**spec) -> PodSpec:
    container = {"name": "vllm", "resources": {"limits": {GPU: "2"}}}
    return msgspec.convert({"containers": [container], **spec}, PodSpec)


def test_needs_are_read_from_the_template():
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["x"]}]}]
    seen = read_template(
        template(
            nodeSelector={"team": "a"},
            tolerations=[{"key": "dedicated", "operator": "Exists"}],
            affinity={"nodeAffinity": {required: {"nodeSelectorTerms": terms}}},
        )
    ).needs
    assert (seen.largest, seen.smallest, seen.total) == (2.0, 2.0, 2.0)
    assert seen.selector == (("team", "a"),)
    assert seen.terms == ((Expression("zone", "In", ("x",)),),)
    assert seen.tolerations == (Toleration("dedicated", "Exists"),)
    by_name = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]
    named = {"nodeAffinity": {required: {"nodeSelectorTerms": by_name}}}
    assert read_template(template(affinity=named)).needs.terms is None


def test_needs_of_a_group_include_all_its_pods():
    pods = {
        "leaderTemplate": {"spec": {"containers": [{"name": "leader"}]}},
        "workerTemplate": {
            "spec": {
                "nodeSelector": {"team": "a"},
                "containers": [{"name": "vllm", "resources": {"limits": {GPU: "8"}}}],
            }
        },
    }
    created = {"metadata": {"name": "x"}, "spec": {"leaderWorkerTemplate": {"size": 4, **pods}}}
    seen = read_leader_worker_set(msgspec.convert(created, LeaderWorkerSet)).facts.needs
    assert (seen.largest, seen.smallest, seen.total) == (8.0, 8.0, 24.0)
    assert seen.selector == (("team", "a"),)
