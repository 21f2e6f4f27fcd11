"""Kueue's quotas: queues of workloads, flavors by node labels and taints, cohorts, stopped queues, hostile objects."""

import math
from typing import Any

import pytest

from autoscaler.adapters.kubernetes.pods.needs import NodeExpression, PodToleration
from autoscaler.adapters.kubernetes.quotas.columns import Applicant, QuotaLayout
from autoscaler.adapters.kubernetes.quotas.kueue import CLUSTER_QUEUES, COHORTS, FLAVORS, LOCAL_QUEUES
from tests.adapters.kubernetes.quotas.world import GPU, Kueue, charged, groups, workload

H100, L4 = {"product": "h100"}, {"product": "l4"}


@pytest.fixture
def kueue() -> Kueue:
    made = Kueue()
    made.local_queue("gpus", "research")
    return made


def laid_out(kueue: Kueue, *workloads: Applicant) -> QuotaLayout:
    layout = kueue.store.lay_out(workloads or [workload(queue="gpus")])
    assert layout is not None
    return layout


def amounts(layout: QuotaLayout) -> dict[str, tuple[str, float, float, float]]:
    """Return cohort, nominal devices, borrowing and lending limit of each quota."""
    return {
        f"{row.quota.source} {row.quota.flavor}": (
            row.quota.cohort,
            row.nominal,
            row.borrowing_limit,
            row.lending_limit,
        )
        for row in layout.rows
    }


def test_workload_is_charged_to_the_cluster_queue_of_its_label(kueue: Kueue):
    kueue.cluster_queue("research", {"any": {"nominalQuota": "8"}}, {"any": 5})
    layout = laid_out(kueue, workload(queue="gpus"), workload(), workload("team-b", queue="gpus"))
    assert [charged(layout, row) for row in range(3)] == [["ClusterQueue/research any"], [], []]
    assert amounts(layout) == {"ClusterQueue/research any": ("", 8.0, 0.0, 0.0)}
    assert [kueue.store.used[row.key] for row in layout.rows] == [5.0]
    assert kueue.store.of_workloads == {2: "no quota applies: LocalQueue 'gpus' is not known"}


def cpu_queue(kueue: Kueue, name: str, of: dict[str, tuple[str, str]], **spec: Any) -> None:
    """Add a ClusterQueue. of: quota and use of CPU, by flavor; its fields of loans are in `spec`."""
    limits = {key: spec.pop(key) for key in ("borrowingLimit", "lendingLimit") if key in spec}
    flavors = [
        {
            "name": flavor,
            "resources": [{"name": GPU, "nominalQuota": 8}, {"name": "cpu", "nominalQuota": quota, **limits}],
        }
        for flavor, (quota, _) in of.items()
    ]
    used = [{"name": flavor, "resources": [{"name": "cpu", "total": use}]} for flavor, (_, use) in of.items()]
    kueue.put(CLUSTER_QUEUES, name, {"resourceGroups": [{"flavors": flavors}], **spec}, {"flavorsReservation": used})


@pytest.mark.parametrize(
    ("spec", "other", "left"),
    [
        ({}, {}, 6.0),  # of no cohort
        ({"cohort": "all"}, {}, 6.0),
        ({"cohort": "all"}, {"cohort": "all"}, 6 + 12.0),
        ({"cohort": "all", "borrowingLimit": 3}, {"cohort": "all"}, 6 + 3.0),
        ({"cohort": "all"}, {"cohort": "all", "lendingLimit": "5"}, 6 + 5.0),
    ],
)
def test_queues_leave_cpu_that_is_not_used(kueue: Kueue, spec: dict[str, Any], other: dict[str, Any], left: float):
    cpu_queue(kueue, "research", {"any": ("8", "2500m"), "more": ("500m", "0")}, **spec)
    cpu_queue(kueue, "prod", {"any": ("16", "4")}, **other)
    rows = [workload(queue="gpus", cpu=2.0), workload()]
    kueue.store.lay_out(rows)
    (allowance,) = kueue.store.allowances(rows)
    assert allowance.left.tolist() == [left]
    assert allowance.quota.tolist() == [0, -1]
    assert allowance.each[0] == 2


def test_queue_that_has_borrowed_cpu_borrows_the_rest_alone(kueue: Kueue):
    cpu_queue(kueue, "research", {"any": ("8", "10")}, cohort="all", borrowingLimit=4)
    cpu_queue(kueue, "prod", {"any": ("16", "4")}, cohort="all")
    kueue.store.lay_out([workload(queue="gpus")])
    assert [each.left.tolist() for each in kueue.store.allowances([workload(queue="gpus")])] == [[2.0]]


@pytest.mark.parametrize("amount", ["-1", "x", "", "8" * 5000, {"a": 1}, None])
def test_cpu_that_cannot_be_leaves_no_negative_amount(kueue: Kueue, amount: Any):
    cpu_queue(kueue, "research", {"any": (amount, amount)}, borrowingLimit=amount, lendingLimit=amount, cohort="all")
    kueue.store.lay_out([workload(queue="gpus")])
    assert all((each.left >= 0).all() for each in kueue.store.allowances([workload(queue="gpus")]))


@pytest.mark.parametrize("field", ["cohort", "cohortName"])
def test_queues_of_a_cohort_lend_to_each_other(kueue: Kueue, field: str):
    kueue.cluster_queue("research", {"any": {"nominalQuota": 8}}, **{field: "all"})
    kueue.cluster_queue(
        "prod", {"any": {"nominalQuota": "16", "borrowingLimit": "2", "lendingLimit": "4"}}, **{field: "all"}
    )
    kueue.cluster_queue("other", {"any": {"nominalQuota": "16"}})
    assert amounts(laid_out(kueue)) == {
        "ClusterQueue/research any": ("all", 8.0, math.inf, 8.0),
        "ClusterQueue/prod any": ("all", 16.0, 2.0, 4.0),
    }


def test_cohorts_without_limits_are_part_of_their_root(kueue: Kueue):
    kueue.cluster_queue("research", {"any": {"nominalQuota": 8}}, cohort="team")
    kueue.cluster_queue("prod", {"any": {"nominalQuota": 4}}, cohort="root")
    kueue.cohort("team", {"any": {"nominalQuota": 3}}, parentName="middle")
    kueue.cohort("middle", parent="root")
    assert amounts(laid_out(kueue)) == {
        "ClusterQueue/research any": ("root", 8.0, math.inf, 8.0),
        "ClusterQueue/prod any": ("root", 4.0, math.inf, 4.0),
        "Cohort/team any": ("root", 3.0, 0.0, 3.0),
    }
    assert kueue.store.problems == []


def test_cohort_with_own_limits_borrows_nothing_from_its_parent(kueue: Kueue):
    kueue.cluster_queue("research", {"any": {"nominalQuota": 8}}, cohort="team")
    kueue.cluster_queue("prod", {"any": {"nominalQuota": 4}}, cohort="root")
    kueue.cohort("team", {"any": {"nominalQuota": 0, "borrowingLimit": 2}}, parentName="root")
    assert list(amounts(laid_out(kueue))) == ["ClusterQueue/research any"]
    assert kueue.store.problems == ["Cohort/team: it has limits of its own, so nothing is borrowed from Cohort/root"]


def test_cohorts_in_a_circle_end(kueue: Kueue):
    kueue.cluster_queue("research", {"any": {"nominalQuota": 8}}, cohort="a")
    kueue.cohort("a", parentName="b")
    kueue.cohort("b", parentName="a")
    assert amounts(laid_out(kueue))["ClusterQueue/research any"][1:] == (8.0, math.inf, 8.0)
    assert kueue.store.problems == ["Cohort/a: it is its own parent, so Kueue admits nothing"]


@pytest.mark.parametrize(
    ("needs", "flavors"),
    [
        ({}, ["h100", "l4"]),
        ({"selector": (("product", "l4"),)}, ["l4"]),
        ({"selector": (("zone", "a"),)}, ["h100", "l4"]),  # no flavor states zones
        ({"selector": (("product", "t4"),)}, []),
        ({"terms": ((NodeExpression("product", "In", ("h100",)),),)}, ["h100"]),
        (
            {"terms": ((NodeExpression("product", "In", ("h100",)),), (NodeExpression("zone", "Exists"),))},
            ["h100", "l4"],
        ),
        ({"terms": ((NodeExpression("zone", "Exists"), NodeExpression("product", "NotIn", ("h100",))),)}, ["l4"]),
    ],
)
def test_flavors_are_those_whose_nodes_the_template_admits(kueue: Kueue, needs: dict[str, Any], flavors: list[str]):
    kueue.flavor("h100", nodeLabels=H100)
    kueue.flavor("l4", nodeLabels=L4)
    kueue.cluster_queue("research", {"h100": {"nominalQuota": 8}, "l4": {"nominalQuota": 2}})
    layout = kueue.store.lay_out([workload(queue="gpus", **needs)])
    assert charged(layout, 0) == [f"ClusterQueue/research {flavor}" for flavor in flavors]
    why = "no quota applies: no flavor of ClusterQueue/research fits its node selector and tolerations"
    assert kueue.store.of_workloads == ({} if flavors else {0: why})


def test_taint_of_a_flavor_must_be_tolerated(kueue: Kueue):
    spot = {"key": "spot", "value": "true", "effect": "NoSchedule"}
    kueue.flavor("spot", nodeTaints=[spot])
    kueue.flavor("tolerated", nodeTaints=[spot], tolerations=[{"key": "spot", "operator": "Exists"}])
    kueue.cluster_queue("research", {"spot": {"nominalQuota": 8}, "tolerated": {"nominalQuota": 2}})
    tolerant = workload(queue="gpus", tolerations=(PodToleration("spot", "Equal", "true"),))
    layout = laid_out(kueue, workload(queue="gpus"), tolerant)
    assert charged(layout, 0) == ["ClusterQueue/research tolerated"]
    assert len(charged(layout, 1)) == 2


def test_queue_that_covers_no_gpus_is_named(kueue: Kueue):
    kueue.cluster_queue("research", {"any": {"nominalQuota": 8}})
    assert kueue.store.lay_out([workload(queue="gpus", resource="amd.com/gpu")]) is None
    assert kueue.store.of_workloads == {0: "no quota applies: ClusterQueue/research has none for amd.com/gpu"}


def test_local_queue_without_its_cluster_queue_is_named(kueue: Kueue):
    assert kueue.store.lay_out([workload(queue="gpus")]) is None
    assert kueue.store.of_workloads == {0: "no quota applies: ClusterQueue 'research' is not known"}


def test_label_alone_is_no_problem_where_kueue_is_not_installed():
    kueue = Kueue()
    assert kueue.store.lay_out([workload(queue="gpus")]) is None
    assert kueue.store.of_workloads == {}


@pytest.mark.parametrize("of", ["cluster", "local"])
@pytest.mark.parametrize(("policy", "keeps"), [("Hold", True), ("HoldAndDrain", False)])
def test_stopped_queue_admits_nothing_and_still_lends(kueue: Kueue, of: str, policy: str, keeps: bool):
    stop = {"stopPolicy": policy}
    kueue.cluster_queue("research", {"any": {"nominalQuota": 8}}, cohort="all", **(stop if of == "cluster" else {}))
    kueue.cluster_queue("prod", {"any": {"nominalQuota": 4}}, cohort="all")
    kueue.local_queue("gpus", "research", **(stop if of == "local" else {}))
    kueue.local_queue("prod", "prod")
    layout = laid_out(kueue, workload(queue="gpus"), workload(queue="prod"))
    assert charged(layout, 0) == [f"ClusterQueue/research (stopPolicy {policy})"]
    assert [row.keeps for row in layout.rows if "stop" in row.quota.source] == [keeps]
    assert amounts(layout)["ClusterQueue/research any"] == ("all", 8.0, math.inf, 8.0)
    assert list(kueue.store.of_workloads) == [0]


@pytest.mark.parametrize(("status", "is_stopped"), [("False", True), ("True", False), ("Unknown", False)])
def test_inactive_queue_keeps_what_its_pods_hold(kueue: Kueue, status: str, is_stopped: bool):
    """A queue whose flavor does not exist is inactive."""
    spec = {"resourceGroups": groups({"any": {"nominalQuota": 8}})}
    condition = {"type": "Active", "status": status, "reason": "FlavorNotFound"}
    kueue.put(CLUSTER_QUEUES, "research", spec, {"conditions": [condition]})
    layout = laid_out(kueue)
    assert charged(layout, 0) == ["ClusterQueue/research " + ("(inactive)" if is_stopped else "any")]
    assert [row.keeps for row in layout.rows] == [is_stopped]


def test_change_of_use_alone_is_no_new_version(kueue: Kueue):
    kueue.cluster_queue("research", {"any": {"nominalQuota": 8}}, {"any": 5})
    before = kueue.store.version
    kueue.cluster_queue("research", {"any": {"nominalQuota": 8}}, {"any": 7})
    assert (kueue.store.version, list(kueue.store.used.values())) == (before, [7.0])
    kueue.put(
        CLUSTER_QUEUES, "research", None, {"flavorsUsage": [{"name": "any", "resources": [{"name": GPU, "total": 2}]}]}
    )
    assert list(kueue.store.used.values()) == [2.0]


def test_removed_objects_leave_nothing(kueue: Kueue):
    kueue.cluster_queue("research", {"any": {"nominalQuota": 8}}, {"any": 5})
    kueue.local_queue("research", "research")
    kueue.remove(LOCAL_QUEUES, "research", "team-a")
    assert kueue.store.used != {}
    kueue.remove(CLUSTER_QUEUES, "research")
    kueue.remove(CLUSTER_QUEUES, "research")
    assert kueue.store.used == {}
    kueue.store.open(LOCAL_QUEUES).clear()
    assert kueue.store.lay_out([workload(queue="gpus")]) is None


@pytest.mark.parametrize("amount", ["-1", "x", "1.5", "9" * 40, "1e99", True, [], {"a": 1}, 1e300, -7])
@pytest.mark.parametrize("field", ["nominalQuota", "borrowingLimit", "lendingLimit"])
def test_amount_that_cannot_be_is_named(kueue: Kueue, field: str, amount: Any):
    kueue.cluster_queue("research", {"any": {"nominalQuota": "8", field: amount}}, cohort="all")
    layout = kueue.store.lay_out([workload(queue="gpus")])
    (problem,) = kueue.store.problems
    assert problem.startswith(f"ClusterQueue/research: {GPU} of any: ")
    assert len(problem) < 300
    if field == "nominalQuota":
        assert layout is None or all(row.nominal <= 10_000_000 for row in layout.rows)
    else:
        assert layout is not None
        assert layout.rows[0].lending_limit <= layout.rows[0].nominal


HOSTILE: list[Any] = [
    None,
    [],
    7,
    "x",
    {"resourceGroups": None},
    {
        "resourceGroups": [
            None,
            3,
            {"flavors": "x"},
            {"flavors": [None, {"resources": 9}, {"name": {}, "resources": []}]},
        ]
    },
    {"resourceGroups": [{"flavors": [{"name": "f", "resources": [{"name": GPU}]}]}]},
    {"cohort": {"a": 1}, "stopPolicy": ["Hold"], "clusterQueue": 5},
    {"nodeLabels": {"a": 1, "b": None}, "nodeTaints": [None, {"key": 7}], "tolerations": "all"},
    {"cohortName": "x" * 100_000, "resourceGroups": [{}] * 1000},
]


@pytest.mark.parametrize("spec", HOSTILE)
@pytest.mark.parametrize("kind", [CLUSTER_QUEUES, LOCAL_QUEUES, COHORTS, FLAVORS])
def test_object_of_any_form_raises_nothing(kueue: Kueue, kind: str, spec: Any):
    kueue.cluster_queue("research", {"any": {"nominalQuota": 8}}, cohort="any")
    for name in ("research", "gpus", "any"):
        kueue.put(kind, name, spec, spec, "team-a" if kind == LOCAL_QUEUES else "")
    kueue.store.lay_out([workload(queue="gpus"), workload()])


def test_many_flavors_and_queues_are_laid_out(kueue: Kueue):
    for number in range(200):
        kueue.cluster_queue(f"queue-{number}", {"any": {"nominalQuota": number}}, cohort="all")
        kueue.local_queue(f"q{number}", f"queue-{number}")
    layout = laid_out(kueue, *(workload(queue=f"q{number % 200}") for number in range(1000)))
    assert layout.charged.shape == (200, 200)
