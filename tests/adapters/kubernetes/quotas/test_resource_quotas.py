"""ResourceQuotas: which of them limits a workload, scopes, use, and amounts that cannot be."""

from typing import Any

import pytest

from autoscaler.adapters.kubernetes.quotas.columns import MAX_DEVICES
from autoscaler.adapters.kubernetes.quotas.resource_quotas import ResourceQuotaStore
from tests.adapters.kubernetes.quotas.world import GPU, charged, resource_quota, workload

HARD = f"requests.{GPU}"


def store(*quotas: Any) -> ResourceQuotaStore:
    made = ResourceQuotaStore()
    for quota in quotas:
        made.put(quota)
    return made


def selector(operator: str, *values: str, scope: str = "PriorityClass") -> dict[str, Any]:
    return {"scopeSelector": {"matchExpressions": [{"scopeName": scope, "operator": operator, "values": list(values)}]}}


def test_quota_limits_workloads_of_its_namespace_and_resource():
    quotas = store(resource_quota("gpus", {HARD: "8", "requests.cpu": "100"}, {HARD: "3"}))
    rows = [workload(), workload("team-b"), workload(resource="nvidia.com/mig-1g.10gb"), workload(resource="")]
    (layout,) = quotas.lay_out(rows)
    assert [charged(layout, row) for row in range(4)] == [["ResourceQuota team-a/gpus"], [], [], []]
    assert [row.nominal for row in layout.rows] == [8.0]
    assert [quotas.used[row.key] for row in layout.rows] == [3.0]


def test_quotas_of_pods_cpu_and_memory_leave_what_is_not_used():
    pods = resource_quota("pods", {"pods": "6", "count/pods": 9, "requests.memory": "64Gi"}, {"pods": "2"})
    cpu = resource_quota("cpu", {"cpu": "8500m"}, {"cpu": "500m"})
    tighter = resource_quota("tight", {"requests.cpu": 3}, scopes=["BestEffort"])
    rows = [workload(memory=2.0**30), workload(largest=1.0, total=3.0, cpu=2.0), workload("team-b")]
    found = store(pods, cpu, tighter).allowances(rows)
    assert [each.left.tolist() for each in found] == [[4.0], [8.0], [64 * 2.0**30]]
    assert [each.quota.tolist() for each in found] == [[0, 0, -1]] * 3
    assert [each.each[:2].tolist() for each in found] == [[1, 3], [1, 6], [2.0**30, 0]]
    assert store(resource_quota("gpus", {HARD: "8"})).allowances(rows) == ()


@pytest.mark.parametrize("amount", ["-1", "x", "", "NaN", "8" * 5000])
def test_amount_of_pods_that_cannot_be_limits_nothing(amount: str):
    assert store(resource_quota("q", {"pods": amount, HARD: "1"})).allowances([workload()]) == ()
    (left,) = store(resource_quota("q", {"pods": "3"}, {"pods": amount})).allowances([workload()])
    assert left.left.tolist() == [3.0]


def test_tightest_quota_counts_when_several_have_equal_scopes():
    quotas = store(*(resource_quota(name, {HARD: hard}) for name, hard in (("a", "9"), ("b", "4"), ("c", "16"))))
    (layout,) = quotas.lay_out([workload()])
    assert charged(layout, 0) == ["ResourceQuota team-a/b"]


def test_quotas_of_different_scopes_hold_together():
    high = resource_quota("high", {HARD: 2}, **selector("In", "high"))
    quotas = store(resource_quota("all", {HARD: 8}), high)
    rows = [workload(), workload()._replace(priority_class="high")]
    tightest, second = quotas.lay_out(rows)
    assert [charged(tightest, row) for row in (0, 1)] == [["ResourceQuota team-a/all"], ["ResourceQuota team-a/high"]]
    assert [charged(second, row) for row in (0, 1)] == [[], ["ResourceQuota team-a/all"]]


@pytest.mark.parametrize(
    ("scopes", "applies"),
    [
        ({"scopes": ["Terminating"]}, False),
        ({"scopes": ["NotTerminating"]}, True),
        ({"scopes": ["NotBestEffort"]}, True),
        ({"scopes": ["BestEffort"]}, False),
        ({"scopes": ["NotTerminating", "BestEffort"]}, False),
        ({"scopes": ["PriorityClass"]}, True),
        (selector("In", "high", "low"), True),
        (selector("In", "low"), False),
        (selector("NotIn", "high"), False),
        (selector("Exists"), True),
        (selector("DoesNotExist"), False),
        (selector("Exists", scope="NotTerminating"), True),
        (selector("Exists", scope="CrossNamespacePodAffinity"), False),
        (selector("Matches", "high"), False),
        ({"scopes": ["Lunar"]}, False),
    ],
)
def test_scope_decides_whether_a_quota_applies(scopes: dict[str, Any], applies: bool):
    quotas = store(resource_quota("q", {HARD: "8"}, **scopes))
    assert bool(quotas.lay_out([workload()._replace(priority_class="high")])) is applies


def test_pods_without_cpu_and_memory_are_best_effort():
    quotas = store(resource_quota("q", {HARD: "8"}, scopes=["NotBestEffort"]))
    assert quotas.lay_out([workload(cpu=0.0)]) == []


@pytest.mark.parametrize("scopes", [{"scopes": ["Lunar"]}, selector("Matches"), {"scopes": ["PriorityClass"] * 17}])
def test_quota_with_scopes_that_are_not_read_is_named(scopes: dict[str, Any]):
    quotas = store(resource_quota("q", {HARD: "8"}, **scopes))
    assert quotas.lay_out([workload()]) == []
    (problem,) = quotas.problems({"team-a"})
    assert problem.startswith("ResourceQuota team-a/q: its scopes are not read, so it is no limit here: ")
    assert quotas.problems({"team-b"}) == []


@pytest.mark.parametrize(
    "amount", ["-1", "x", "", "1.5", "500m", "9" * 40, "1e99", str(MAX_DEVICES + 1), "8Ei", 1.5, -3, "NaN", "8" * 5000]
)
def test_amount_that_cannot_be_is_named_and_ignored(amount: Any):
    quotas = store(resource_quota("q", {HARD: amount}))
    assert quotas.lay_out([workload()]) == []
    (problem,) = quotas.problems({"team-a"})
    assert "allowed: " in problem
    assert len(problem) < 300


def test_whole_amounts_are_read_in_every_spelling():
    for amount, devices in (("8", 8.0), (8, 8.0), ("1k", 1000.0), ("2e1", 20.0), ("0", 0.0), ("4000m", 4.0)):
        (layout,) = store(resource_quota("q", {HARD: amount})).lay_out([workload()])
        assert [row.nominal for row in layout.rows] == [devices]


def test_change_of_use_alone_is_no_new_version():
    quotas = store(resource_quota("q", {HARD: "8"}, {HARD: "1"}))
    before = quotas.version
    quotas.put(resource_quota("q", {HARD: "8"}, {HARD: "5"}))
    assert (quotas.version, list(quotas.used.values())) == (before, [5.0])
    quotas.put(resource_quota("q", {HARD: "8"}, {HARD: "junk"}))
    assert list(quotas.used.values()) == [5.0]


def test_removed_quota_leaves_nothing():
    quotas = store(resource_quota("q", {HARD: "8"}, {HARD: "1"}))
    quotas.put(resource_quota("q", {"pods": "8"}))
    assert (quotas.lay_out([workload()]), quotas.used) == ([], {})
    quotas.put(resource_quota("q", {HARD: "8"}, {HARD: "1"}))
    quotas.remove("team-a", "q")
    quotas.remove("team-a", "q")
    assert (quotas.lay_out([workload()]), quotas.used) == ([], {})
