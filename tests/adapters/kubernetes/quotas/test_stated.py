"""Quotas of a file: which charges a workload, and what is lent by default."""

import math
from typing import Any

from autoscaler.adapters.kubernetes.quotas.columns import QuotaLayout
from autoscaler.adapters.kubernetes.quotas.stated import lay_out_stated
from autoscaler.config.quotas import StatedQuota
from tests.adapters.kubernetes.quotas.world import GPU, charged, workload

MIG = "nvidia.com/mig-1g.10gb"


def stated(name: str, *namespaces: str, resources: list[dict[str, Any]] | None = None, **fields: Any) -> StatedQuota:
    given = [{"name": GPU, "nominal": 8}] if resources is None else resources
    return StatedQuota.model_validate({"name": name, "namespaces": list(namespaces), "resources": given, **fields})


def amounts(layout: QuotaLayout | None) -> dict[str, tuple[float, float, float]]:
    assert layout is not None
    return {row.quota.source: (row.nominal, row.borrowing_limit, row.lending_limit) for row in layout.rows}


def test_first_quota_that_matches_charges_a_workload():
    quotas = [
        stated("mig", "*", resources=[{"name": MIG, "nominal": 14}]),
        stated("blue", "team-*", label="color=blue"),
        stated("teams", "team-*"),
        stated("rest", "*"),
    ]
    blue = workload()._replace(labels={"color": "blue"})
    workloads = [blue, workload(), workload("other"), workload(resource=MIG), workload(resource=""), workload()]
    layout = lay_out_stated(quotas, workloads, [True] * 5 + [False])
    assert [charged(layout, row) for row in range(6)] == [
        ["quota blue"],
        ["quota teams"],
        ["quota rest"],
        ["quota mig"],
        [],
        [],
    ]


def test_limits_left_out_mean_any_loan_within_a_cohort_alone():
    limits = [{"name": GPU, "nominal": 8, "borrowingLimit": 0, "lendingLimit": 99}]
    quotas = [
        stated("a", "team-a", cohort="all"),
        stated("b", "team-b", cohort="all", resources=limits),
        stated("c", "team-c"),
    ]
    workloads = [workload("team-a"), workload("team-c")]
    assert amounts(lay_out_stated(quotas, workloads, [True, True])) == {
        "quota a": (8.0, math.inf, 8.0),
        "quota b": (8.0, 0.0, 8.0),
        "quota c": (8.0, 0.0, 0.0),
    }


def test_no_quota_is_laid_out_when_none_matches():
    assert lay_out_stated([stated("a", "x")], [workload()], [True]) is None
    assert lay_out_stated([], [workload()], [True]) is None


def test_thousand_quotas_are_matched_once_for_each_namespace():
    class Labels(dict[str, str]):
        """Counts how often its workload is compared with a label of a quota."""

        asked = 0

        def get(self, key: str, default: Any = None) -> Any:
            Labels.asked += 1
            return super().get(key, default)

    quotas = [stated(f"q{number}", f"team-{number}", label="tier=a") for number in range(1000)]
    workloads = [workload(f"team-{number % 10}")._replace(labels=Labels(tier="a")) for number in range(5000)]
    layout = lay_out_stated(quotas, workloads, [True] * len(workloads))
    assert layout is not None
    assert len(layout.rows) == 10
    assert Labels.asked == 5000 + 10 * 1000
