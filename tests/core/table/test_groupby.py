"""Extremes of the pods of each workload."""

import numpy as np
import pytest

from autoscaler.core.table.groupby import GroupBy

NAN = np.nan
WORKLOADS = 5


@pytest.mark.parametrize("pods", [0, 1, 40])
def test_extremes_do_not_depend_on_the_order_of_pods(pods: int):
    """Workload 3 has no pod, and some pods have no value."""
    random = np.random.default_rng(pods)
    workload = np.sort(random.choice([0, 1, 2, 4], pods))
    values = np.where(random.random(pods) < 0.5, NAN, random.normal(size=pods))
    order = random.permutation(pods)
    for extreme, plain in ((GroupBy.max, max), (GroupBy.min, min)):
        known = [values[(workload == row) & ~np.isnan(values)].tolist() for row in range(WORKLOADS)]
        expected = [plain(some, default=NAN) for some in known]
        for some in (slice(None), order):
            np.testing.assert_array_equal(extreme(GroupBy(workload[some], WORKLOADS), values[some]), expected)
