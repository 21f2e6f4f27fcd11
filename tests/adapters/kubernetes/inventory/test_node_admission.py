"""Node admission, against the rules of the Kubernetes documentation and a plain count."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.adapters.kubernetes.inventory.groups import group_nodes
from autoscaler.adapters.kubernetes.inventory.node_admission import admits
from autoscaler.adapters.kubernetes.inventory.nodes import Node, NodeTaint
from autoscaler.adapters.kubernetes.pods.needs import Needs, NodeExpression, PodToleration

GPU = "nvidia.com/gpu"
ONE = Needs(GPU, 1.0, 1.0, 1.0)


def affinity(*terms) -> Needs:
    return ONE._replace(terms=tuple(tuple(NodeExpression(*each) for each in term) for term in terms))


@pytest.mark.parametrize(
    ("needs", "admitted"),
    [
        (ONE, True),
        (ONE._replace(selector=(("team", "a"),)), True),
        (ONE._replace(selector=(("team", "b"),)), False),
        (ONE._replace(selector=(("team", "a"), ("zone", "x"))), False),
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
def test_admission_by_labels_equals_the_scheduler(needs, admitted):
    assert admits({"team": "a", "size": "8"}, (), needs) is admitted


@pytest.mark.parametrize(
    ("tolerations", "admitted"),
    [
        ([], False),
        ([PodToleration("dedicated", "Equal", "training", "NoSchedule")], True),
        ([PodToleration("dedicated", "", "training")], True),
        ([PodToleration("dedicated", "Equal", "serving")], False),
        ([PodToleration("dedicated", "Exists")], True),
        ([PodToleration("dedicated", "Exists", "", "NoExecute")], False),
        ([PodToleration("other", "Exists")], False),
        ([PodToleration("", "Exists")], True),
        ([PodToleration()], False),
    ],
)
def test_taint_excludes_pods_without_toleration(tolerations, admitted):
    taints = [NodeTaint("dedicated", "training", "NoSchedule")]
    assert admits({}, taints, ONE._replace(tolerations=tuple(tolerations))) is admitted


@pytest.mark.parametrize(
    "taint",
    [
        NodeTaint("dedicated", "training", "PreferNoSchedule"),
        NodeTaint(GPU, "present", "NoSchedule"),
    ],
)
def test_soft_taints_and_the_gpu_taint_exclude_no_pod(taint):
    assert admits({}, [taint], ONE)


words = st.sampled_from(["a", "b", "c"])
labels = st.dictionaries(words, words, max_size=3)
expressions = st.builds(
    NodeExpression, words, st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist"]), st.tuples(words, words)
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
    assert admits(read, (), needed) == admits(more, (), needed)


@pytest.mark.slow
@given(labels, needs)
def test_fewer_needs_admit_at_least_as_much(has, needed):
    """An additional selector or term only excludes nodes."""
    if admits(has, (), needed):
        assert admits(has, (), needed._replace(selector=()))
        assert admits(has, (), needed._replace(terms=None))


@pytest.mark.slow
@given(st.lists(labels, min_size=1, max_size=6), st.lists(needs, min_size=1, max_size=4))
def test_groups_admit_what_their_nodes_admit(has, needed):
    given_nodes = {f"n{index}": Node({GPU: 8}, each) for index, each in enumerate(has)}
    for group in group_nodes(given_nodes, needed):
        for name in group.nodes:
            found = [group.key.admits(place) for place in range(len(needed))]
            assert found == [admits(given_nodes[name].labels, (), each) for each in needed]
