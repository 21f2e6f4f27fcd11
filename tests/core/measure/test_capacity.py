"""The load that replicas carry: by most of their time where they are few, and by more of it where they are many."""

import numpy as np
import pytest

from autoscaler.core.measure.capacity import SPARE_ROOTS, compute_carried_load, count_carrying
from autoscaler.core.measure.miss_curve import MAX_UTILIZATION


@pytest.mark.parametrize(("replicas", "load"), [(1, 0.93), (4, 3.72), (30, 30 - SPARE_ROOTS * 30**0.5), (0, 0)])
def test_many_replicas_carry_more_of_their_time(replicas, load):
    assert compute_carried_load(np.array([float(replicas)])) == pytest.approx([load])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_count_is_the_inverse_of_the_carried_load(dtype):
    replicas = np.array([0, 0.5, 1, 5, 5.3, 40, 4000], dtype)
    load = compute_carried_load(replicas)
    assert load.dtype == dtype
    assert (load >= MAX_UTILIZATION * replicas * (1 - 1e-6)).all()
    np.testing.assert_allclose(count_carrying(load), replicas, rtol=1e-5)


def test_unknown_load_needs_an_unknown_count():
    assert np.isnan(count_carrying(np.array([np.nan])))[0]
