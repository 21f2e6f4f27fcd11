from dataclasses import replace

import numpy as np
import pytest

from autoscaler.sim.engine.traffic import BLOCK_S, DAY_S, Bursts, Lengths, Shape, Traffic

LENGTHS = Lengths(100, 0.5, 1000)
STEADY = Shape(2.0, LENGTHS, LENGTHS)


def day_of(traffic: Traffic) -> np.ndarray:
    return np.concatenate([traffic.block(number).time_s for number in range(DAY_S // BLOCK_S)])


def test_requests_are_independent_of_the_order_of_blocks() -> None:
    one, other = Traffic(STEADY, seed=7, stream=3), Traffic(STEADY, seed=7, stream=3)
    other.block(9)
    first, second = one.block(5), other.block(5)
    assert len(first.time_s) > 0
    for column in ("time_s", "prompt_tokens", "output_tokens"):
        assert np.array_equal(getattr(first, column), getattr(second, column))


@pytest.mark.parametrize(("seed", "stream"), [(8, 3), (7, 4)])
def test_seed_and_stream_change_the_requests(seed: int, stream: int) -> None:
    assert not np.array_equal(Traffic(STEADY, 7, 3).block(5).time_s, Traffic(STEADY, seed, stream).block(5).time_s)


def test_arrivals_are_a_poisson_process_of_the_stated_rate() -> None:
    times = day_of(Traffic(STEADY, seed=1))
    assert np.all(np.diff(times) >= 0)
    assert len(times) == pytest.approx(2.0 * DAY_S, rel=4 / np.sqrt(2.0 * DAY_S))  # within four standard deviations
    counts = np.bincount((times // 10).astype(int), minlength=DAY_S // 10)
    assert counts.var() / counts.mean() == pytest.approx(1.0, abs=0.06)  # as for Poisson counts


def test_the_rate_follows_the_day_between_full_hours() -> None:
    day = tuple(float(hour == 12) for hour in range(24))
    traffic = Traffic(replace(STEADY, day=day), seed=1)
    at = np.array([11.0, 11.5, 12.0, 12.25, 13.0, 24 + 12.0]) * 3600
    assert traffic.rate_per_s(at) == pytest.approx([0.0, 1.0, 2.0, 1.5, 0.0, 2.0])


def test_no_requests_during_silences() -> None:
    times = day_of(Traffic(replace(STEADY, silences=((9.0, 17.0),)), seed=1))
    hours = times / 3600
    assert not np.any((hours >= 9) & (hours < 17))
    assert np.any(hours < 9)
    assert np.any(hours >= 17)


def test_overlapping_bursts_do_not_multiply() -> None:
    kinds = (Bursts(per_hour=30, median_s=120, sigma=0.3, height=3.0), Bursts(2, 600, 0.3, 5.0))
    rate = Traffic(replace(STEADY, bursts=kinds), seed=1).rate_per_s(np.arange(DAY_S, dtype=np.float64))
    assert set(np.unique(rate)) == {2.0, 6.0, 10.0}


def test_bursts_have_the_stated_frequency_and_length() -> None:
    kind = Bursts(per_hour=0.5, median_s=60, sigma=0.2, height=2.0)
    bursting = [
        np.mean(Traffic(replace(STEADY, bursts=(kind,)), seed=seed).rate_per_s(np.arange(DAY_S) + 0.5) > 2)
        for seed in range(40)
    ]
    share = 0.5 / 3600 * 60 * np.exp(0.2**2 / 2)
    assert np.mean(bursting) == pytest.approx(share, rel=0.2)


def test_lengths_are_lognormal_whole_and_bounded() -> None:
    drawn = Lengths(100, 0.5, 400).draw(np.random.default_rng(1), 20_000)
    assert np.median(drawn) == pytest.approx(100, rel=0.03)
    assert drawn.min() >= 1
    assert drawn.max() == 400
    inner = np.log(drawn[drawn < 400])
    assert inner.std() == pytest.approx(0.5, rel=0.05)


def test_day_must_have_24_hours() -> None:
    with pytest.raises(ValueError, match="day has 2 factors; it must have 24"):
        replace(STEADY, day=(1.0, 2.0))
