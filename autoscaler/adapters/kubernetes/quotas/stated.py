"""Quotas that the operator states in a file, for workloads without a quota of the cluster."""

from __future__ import annotations

import math
from collections.abc import Sequence

from autoscaler.adapters.kubernetes.quotas.columns import Applicant, QuotaLayout, QuotaRow, lay_out
from autoscaler.config.quotas import StatedQuota
from autoscaler.core.model.quotas import Quota


def lay_out_stated(
    stated: Sequence[StatedQuota], workloads: Sequence[Applicant], free: Sequence[bool]
) -> QuotaLayout | None:
    """Return the stated quotas; None: none charges a workload. The first that matches a workload charges it.

    free: whether no quota of the cluster charges the workload. The use of other pods is not counted.
    """
    rows: list[QuotaRow] = []
    places: dict[tuple[int, str], int] = {}
    for number, quota in enumerate(stated):
        for each in quota.resources:
            places.setdefault((number, each.name), len(rows))
            borrowing = 0.0 if not quota.cohort else math.inf if each.borrowing_limit is None else each.borrowing_limit
            lending = each.nominal if each.lending_limit is None else min(each.lending_limit, each.nominal)
            rows.append(
                QuotaRow(
                    Quota(f"quota {quota.name}", each.name, cohort=quota.cohort or ""),
                    float(each.nominal),
                    float(borrowing),
                    float(lending if quota.cohort else 0.0),
                )
            )
    keys = {quota.label.partition("=")[0] for quota in stated if quota.label is not None}
    known: dict[tuple[str, str, tuple[str | None, ...]], list[int]] = {}  # workloads are many, and namespaces few
    charging: list[list[int]] = []
    for workload, is_free in zip(workloads, free, strict=True):
        question = workload.namespace, workload.resource, tuple(workload.labels.get(key) for key in keys)
        if question not in known:
            known[question] = [
                places[number, workload.resource]
                for number, quota in enumerate(stated)
                if (number, workload.resource) in places and quota.matches(workload.namespace, workload.labels)
            ][:1]
        charging.append(known[question] if is_free else [])
    return lay_out(rows, charging)
