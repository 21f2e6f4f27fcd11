import numpy as np
import pytest

from autoscaler.sim.engine.cold_start import ColdStart, Start


def starts(node_asleep: bool = False, image_cached: bool = True, weights_cached: bool = True) -> list[Start]:
    rng = np.random.default_rng(1)
    return [
        ColdStart().draw(
            rng, 16e9, 1, node_asleep=node_asleep, image_cached=image_cached, weights_cached=weights_cached
        )
        for _ in range(400)
    ]


def median_s(drawn: list[Start]) -> float:
    return float(np.median([start.ready_s for start in drawn]))


def test_start_times_are_ordered_and_differ_by_pod() -> None:
    drawn = starts(node_asleep=True, image_cached=False, weights_cached=False)
    assert all(0 < start.scheduled_s < start.started_s < start.serving_s < start.ready_s for start in drawn)
    assert len({start.ready_s for start in drawn}) == len(drawn)


def test_each_missing_part_adds_its_own_phase() -> None:
    warm_s = median_s(starts())
    assert warm_s == pytest.approx(0.5 + 1 + 12 + 16 / 3 + 18 + 3, rel=0.1)
    assert median_s(starts(weights_cached=False)) - warm_s == pytest.approx(16 / 1.5, rel=0.2)
    assert median_s(starts(image_cached=False)) - warm_s == pytest.approx(60, rel=0.1)
    assert median_s(starts(node_asleep=True)) - warm_s == pytest.approx(100, rel=0.1)


def test_median_start_takes_every_median() -> None:
    median_start = ColdStart().median_start(16e9, 1, node_asleep=True, image_cached=False, weights_cached=False)
    assert median_start.scheduled_s == 100.0
    assert median_start.started_s == 161.0
    assert median_start.ready_s == pytest.approx(161 + 16 / 1.5 + 12 + 16 / 3 + 18 + 3)
    twice = median_start.stretched_to(2 * median_start.ready_s)
    assert (twice.scheduled_s, twice.started_s) == pytest.approx((200.0, 322.0))
    assert twice.serving_s == pytest.approx(2 * median_start.serving_s)


def test_four_devices_load_in_parallel() -> None:
    start = ColdStart()
    one = np.mean([start.restart_s(np.random.default_rng(seed), 140e9, 1) for seed in range(200)])
    four = np.mean([start.restart_s(np.random.default_rng(seed), 140e9, 4) for seed in range(200)])
    assert one - four == pytest.approx(140 / 3 * 0.75, rel=0.1)
