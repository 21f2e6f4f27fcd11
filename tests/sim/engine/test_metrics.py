import pytest

from autoscaler.sim.engine.metrics import EngineHistogram, token_bounds


def test_value_on_a_bound_belongs_to_the_bucket_below() -> None:
    histogram = EngineHistogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 2.5):
        histogram.observe(value)
    histogram.observe(3.0, times=4)
    assert histogram.counts == [2, 2, 5]
    assert histogram.count == 9
    assert histogram.total == pytest.approx(19.5)


@pytest.mark.parametrize(
    ("longest", "last"), [(2048, (500, 1000, 2000)), (8192, (1000, 2000, 5000)), (131072, (20000, 50000, 100000))]
)
def test_token_bounds_follow_the_longest_request(longest: int, last: tuple[float, ...]) -> None:
    assert token_bounds(longest)[:4] == (1, 2, 5, 10)
    assert token_bounds(longest)[-3:] == last
