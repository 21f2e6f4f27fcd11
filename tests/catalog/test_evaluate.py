"""Evaluation of catalog rows on constructed series."""

import math

import pytest

from autoscaler.catalog.evaluate import read
from autoscaler.catalog.series import DISTINCT, MOVED, Aggregation, Series, counter, first, renamed


def test_the_first_present_alternative_counts_alone() -> None:
    both = {"new": [({}, 3.0)], "old": [({}, 4.0)]}
    assert read(first("new", "old"), both) == 3.0
    assert read(first("new", "old"), {"old": both["old"]}) == 4.0


def test_absent_is_nan_and_zero_is_zero() -> None:
    assert math.isnan(read(first("x"), {}))
    assert read(first("x"), {"x": [({}, 0.0)]}) == 0.0


def test_a_counter_is_read_with_its_suffix_or_without() -> None:
    assert read(counter("x"), {"x_total": [({}, 1.0)]}) == 1.0
    assert read(counter("x"), {"x": [({}, 2.0)]}) == 2.0


def test_series_of_one_pod_are_summed_or_the_largest_is_taken() -> None:
    ranks = {"x": [({"engine": "0"}, 3.0), ({"engine": "1"}, 4.0)]}
    assert read((Series("x", Aggregation.SUM),), ranks) == 7.0
    assert read((Series("x", Aggregation.MAX),), ranks) == 4.0


def test_a_filter_allows_only_its_values() -> None:
    row = Series("x", where=(("server", ("",)),))
    assert read((row,), {"x": [({}, 1.0), ({"server": "http://10.0.0.1"}, 100.0)]}) == 1.0
    assert math.isnan(read((row,), {"x": [({"server": "http://10.0.0.1"}, 100.0)]}))


@pytest.mark.parametrize("label", ["tp_rank", "pp_rank", "moe_ep_rank", "attn_cp_rank", "pid", "prometheus_replica"])
def test_a_number_counts_once_when_a_label_only_repeats_it(label: str) -> None:
    series = [({"dp_rank": str(dp), label: str(rank)}, 10.0 + dp) for dp in range(2) for rank in range(4)]
    assert read((Series("x"),), {"x": series}) == 21.0


def test_the_process_that_took_a_rank_over_counts_alone() -> None:
    rank = {"tp_rank": "0", "dp_rank": "1"}
    series = [({**rank, "pid": "912"}, 0.0), ({**rank, "pid": "77"}, 5.0), ({**rank, "dp_rank": "0", "pid": "80"}, 3.0)]
    assert read((Series("x"),), {"x": series}) == 3.0
    assert read((Series("x", Aggregation.MAX),), {"x": series[:2]}) == 0.0


@pytest.mark.parametrize("pid", ["", "x", "-5", "9" * 5000, "١"])
def test_a_process_without_a_pid_counts_if_alone_in_its_rank(pid: str) -> None:
    odd, numbered = ({"tp_rank": "0", "pid": pid}, 5.0), ({"tp_rank": "0", "pid": "7"}, 2.0)
    assert read((Series("x"),), {"x": [odd, odd]}) == 5.0
    assert read((Series("x"),), {"x": [odd, numbered]}) == 2.0
    assert read((Series("x"),), {"x": [numbered, odd]}) == 2.0


def test_processes_that_name_no_rank_repeat_one_number() -> None:
    assert read((Series("x"),), {"x": [({"pid": "7"}, 3.0), ({"pid": "8"}, 0.0)]}) == 3.0


@pytest.mark.parametrize("label", DISTINCT)
def test_numbers_are_added_when_an_engine_label_differs(label: str) -> None:
    series = {"x": [({label: "a"}, 3.0), ({label: "b"}, 4.0)]}
    assert read((Series("x"),), series) == 7.0
    assert read((Series("x", repeated=(label.removeprefix(MOVED),)),), series) == 4.0


def test_moved_labels_of_repeated_queues_are_ignored_too() -> None:
    """Prometheus moves `priority` where a scrape target has a label of that name."""
    series = {"x": [({"priority": "high"}, 5.0), ({"priority": "high", "exported_priority": "1"}, 3.0)]}
    assert read((Series("x", repeated=("priority",)),), series) == 5.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -1.0])
@pytest.mark.parametrize("aggregation", [Aggregation.SUM, Aggregation.MAX])
@pytest.mark.parametrize("repeated", [(), ("engine",)])
def test_one_invalid_value_makes_the_reading_unknown(
    bad: float, aggregation: Aggregation, repeated: tuple[str, ...]
) -> None:
    row = Series("x", aggregation, repeated=repeated)
    assert math.isnan(read((row,), {"x": [({"engine": "0"}, 5.0), ({"engine": "1"}, bad)]}))
    assert math.isnan(read((row,), {"x": [({"engine": "0"}, bad), ({"engine": "1"}, 5.0)]}))


def test_an_unknown_reading_gives_way_to_the_next_alternative() -> None:
    assert read(first("new", "old"), {"new": [({}, math.nan)], "old": [({}, 4.0)]}) == 4.0


def test_a_sum_too_large_for_a_number_is_unknown() -> None:
    assert math.isnan(read(first("x"), {"x": [({"engine": str(i)}, 1e308) for i in range(20)]}))


def test_further_readings_are_added_where_they_are_present() -> None:
    row = Series("x", plus=(Series("y"), Series("z", where=(("err", ("a",)),))))
    assert read((row,), {"x": [({}, 1.0)]}) == 1.0
    assert read((row,), {"x": [({}, 1.0)], "y": [({}, 2.0)], "z": [({"err": "b"}, 50.0)]}) == 3.0
    assert read((row,), {"y": [({}, 2.0)]}) == 2.0
    assert math.isnan(read((row,), {"z": [({"err": "b"}, 50.0)]}))


def test_further_readings_are_subtracted_when_they_are_known() -> None:
    row = Series("x", minus=(first("y", "z"), first("w")))
    assert read((row,), {"x": [({}, 10.0)]}) == 10.0
    assert read((row,), {"x": [({}, 10.0)], "y": [({}, 2.0)], "z": [({}, 2.0)], "w": [({}, 3.0)]}) == 5.0
    assert read((row,), {"x": [({}, 10.0)], "z": [({}, math.nan)]}) == 10.0
    assert math.isnan(read((row,), {"y": [({}, 2.0)]}))
    assert math.isnan(read((row,), {"x": [({}, 1.0)], "y": [({}, 2.0)]}))
    assert [part.name for part in row.parts()] == ["x", "y", "z", "w"]
    assert read(renamed((row,), str.upper), {"X": [({}, 9.0)], "Y": [({}, 2.0)]}) == 7.0


@pytest.mark.parametrize(
    ("again", "value"), [(None, 7.0), (9.0, 7.0), (10.0, 7.0), (12.0, 9.0), (13.0, 10.0), (20.0, 10.0)]
)
def test_what_is_counted_again_is_not_subtracted(again: float | None, value: float) -> None:
    row = Series("x", minus=(first("less"),), again=first("again"))
    series = {"x": [({}, 10.0)], "less": [({}, 3.0)]} | ({} if again is None else {"again": [({}, again)]})
    assert read((row,), series) == value


def test_inversion_and_scale_come_last() -> None:
    assert read((Series("awake", inverted=True),), {"awake": [({}, 0.0)]}) == 1.0
    assert read((Series("ms", scale=1e-3),), {"ms": [({}, 250.0)]}) == 0.25


def test_a_shared_name_needs_the_metric_of_its_product() -> None:
    row = Series("running", beside="cache")
    assert math.isnan(read((row,), {"running": [({}, 2.0)]}))
    assert read((row,), {"running": [({}, 2.0)], "cache": [({}, 0.0)]}) == 2.0
    assert read(renamed((row,), str.upper), {"RUNNING": [({}, 2.0)], "CACHE": [({}, 0.0)]}) == 2.0
