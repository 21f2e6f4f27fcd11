"""Further replicas that needs of several workloads want, and their order."""

import numpy as np
import pytest

from autoscaler.core.allocate.further import Further
from tests.core.world import spec


@pytest.mark.parametrize(
    ("priority", "first"), [((0.0, 0.0), [(0, 0), (0, 1), (0, 2)]), ((0.0, 5.0), [(0, 0), (1, 0), (1, 1)])]
)
def test_each_replica_is_listed_once_when_needs_overlap(priority, first):
    """Earlier needs come first, then a higher priority. The first workload wants three for its second need."""
    wanted, due_s = np.array([[1.0, 3.0], [2.0, 0.0]]), np.array([[50.0, 70.0], [70.0, 10.0]])
    found = Further.of(wanted, due_s, spec(2, priority=np.array(priority)))
    listed = list(zip(found.row.tolist(), found.number.tolist(), strict=True))
    assert listed[:3] == first
    assert sorted(listed) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
