"""How many replicas should find their weights."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.wishes.wants import BUCKET_S, BUCKETS, Peaks, peak_of_copies

IDS = np.array([3, 7])


def test_peak_is_remembered_for_three_days():
    peaks = Peaks.none().update(IDS, np.array([8.0, 1.0]), 0.0)
    peaks = peaks.update(IDS, np.array([2.0, 1.0]), (BUCKETS - 1) * BUCKET_S)
    assert peaks.spare(np.array([2.0, 1.0])).tolist() == [8.0, 1.0]
    peaks = peaks.update(IDS, np.array([2.0, 1.0]), BUCKETS * BUCKET_S)
    assert peaks.spare(np.array([2.0, 1.0])).tolist() == [1.0, 1.0]


def test_workloads_keep_their_peaks_when_rows_move():
    peaks = Peaks.none().update(IDS, np.array([8.0, 4.0]), 0.0).update(np.array([7, 9]), np.array([1.0, 1.0]), 1.0)
    assert peaks.spare(np.array([1.0, 1.0])).tolist() == [4.0, 1.0]


@given(st.integers(0, 1000))
def test_peak_of_former_copies_wants_no_more_of_them(copies: int):
    peak = peak_of_copies(np.array([float(copies)]))
    assert copies - 1 <= (Peaks.none().update(IDS[:1], peak, 0.0).spare(np.zeros(1)))[0] <= copies


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 1e6)), max_size=20))
def test_needed_and_spare_cover_the_peak_at_any_load(seen: list[tuple[float, float]]):
    peaks, wall_s = Peaks.none(), 0.0
    for replicas, pass_s in seen:
        wall_s += pass_s
        needed = np.array([replicas])
        peaks = peaks.update(IDS[:1], needed, wall_s)
        assert (peaks.spare(needed) + needed >= peaks.replicas.max(axis=0) - 1e-9).all()
