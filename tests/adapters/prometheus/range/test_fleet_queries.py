"""Which workload of a fleet a pod of the past belonged to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autoscaler.adapters.prometheus.range.fleet_queries import FleetQueries
from autoscaler.core.model.fleet import Workload, WorkloadRef
from tests.core.world import fleet


class NoSeries:
    """A reader of an empty Prometheus."""

    def query(self, *_: Any) -> list[Any]:
        return []


@pytest.mark.parametrize("pod", ["llama-0", "llama-7d9f8b6c5-bcdfg"])
@pytest.mark.parametrize("kinds", [("StatefulSet", "Deployment"), ("Deployment", "StatefulSet"), ("StatefulSet",)])
def test_past_pod_counts_for_the_kind_that_its_name_tells(kinds: tuple[str, ...], pod: str):
    workloads = tuple(Workload(WorkloadRef("ns", "llama", kind)) for kind in kinds)
    queries = FleetQueries(NoSeries(), replace(fleet([0] * len(kinds)), workloads=workloads), (), 0.0)  # type: ignore[arg-type]
    row = queries.workload_of(("ns", pod))
    assert row is not None
    assert kinds[row] == ("StatefulSet" if pod == "llama-0" or len(kinds) == 1 else "Deployment")
