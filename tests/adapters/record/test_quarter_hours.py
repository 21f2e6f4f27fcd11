"""The year of quarter hours: what is written is read, and nothing that goes wrong there stops the record."""

import sqlite3
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.adapters.record import quarter_hours
from autoscaler.adapters.record.quarter_hours import NAME, HistoryWriter, UseName, read_history
from autoscaler.adapters.record.quarter_room import MAX_NAME
from autoscaler.adapters.record.quarter_values import DAY_S, FIELDS, QUARTER_S, QUARTERS, join_quarters, pack, unpack
from autoscaler.adapters.record.recorder import RecordWriter
from autoscaler.config.prices import shares_of
from autoscaler.core.gpu_totals import GpuTotals
from autoscaler.core.gpu_use import GpuState
from autoscaler.ports import Unavailable
from tests.adapters.record.ticks import records, without_second

POOL = ("nvidia.com/gpu", "H100", "")
MIDNIGHT_S = 1_780_272_000
GPUS = 1e-9 + 1 / 64  # share by which a number that is kept differs at most


def write(folder, days, max_bytes=10**9, names=2):
    """Write one quarter hour of each day, in which workload n holds n + 1 GPUs and lacks 0.25 for 300 s."""
    writer = HistoryWriter(folder, max_bytes)
    rows = [UseName("team", f"chat-{number}", "Deployment", POOL) for number in range(names)]
    for day in range(days):
        writer._from_s = MIDNIGHT_S + day * DAY_S + QUARTER_S
        values = np.zeros((len(FIELDS), names))
        values[0], values[4], values[6] = np.arange(names) + 1, 0.25, 300
        writer._write(900, rows, values)


def with_gpus(tick, gpus):
    """Let each node group offer this many GPUs."""
    fleet = tick.input.fleet
    groups = replace(fleet.groups, allocatable=np.full(len(fleet.groups.groups), gpus))
    return replace(tick, input=replace(tick.input, fleet=replace(fleet, groups=groups)))


@pytest.mark.slow
def test_quarter_hours_are_those_of_the_ticks_when_read_again(tmp_path):
    ticks = [with_gpus(tick, 40.0) for tick in records(80)]
    writer, totals = HistoryWriter(tmp_path, 10**9), GpuTotals()
    for tick in ticks:
        writer.take(tick)
        if tick.wall_s // QUARTER_S == ticks[0].wall_s // QUARTER_S:
            totals.add(tick.use, shares_of(tick.input.fleet.groups.groups), 1, lambda *line: line)
    writer.close()
    second, first = read_history(tmp_path)
    assert (first.from_s % QUARTER_S, second.from_s - first.from_s) == (0, QUARTER_S)
    assert [name.name for name in first.names] == ["w0", "w1", ""]
    assert [name.pool for name in first.names] == [next(iter(totals.of_pools))] * 3
    sums = totals.of_workloads
    gpus, busy, _, needed = first.values[:4, :2, 0]
    for kept, truth in (
        (gpus, sums.gpu_s[: GpuState.ORDERED].sum(axis=0)),
        (busy, sums.gpu_s[GpuState.SERVING]),
        (needed, sums.needed_gpu_s),
    ):
        np.testing.assert_allclose(kept, truth / totals.seconds, rtol=GPUS)
    assert first.values[0, 2, 0] == pytest.approx(40, rel=GPUS)
    assert 0 < first.values[1, 2, 0] < 40


def test_quarter_hour_has_the_workload_that_was_removed_within(tmp_path):
    writer, (*ticks, last) = HistoryWriter(tmp_path, 10**9), records(20)
    for each in (*ticks, without_second(last)):
        writer.take(each)
    writer.close()
    (quarter,) = read_history(tmp_path)
    gpus = dict(zip([name.name for name in quarter.names], quarter.values[0, :, 0].tolist(), strict=True))
    lasted_s = last.now_s - ticks[0].now_s
    assert gpus["w1"] == pytest.approx((ticks[-1].now_s - ticks[0].now_s) / lasted_s, rel=GPUS)


def test_a_pool_of_unknown_size_is_not_full(tmp_path):
    writer = HistoryWriter(tmp_path, 10**9)
    for tick in records(3):
        writer.take(with_gpus(tick, np.nan))
    writer.close()
    (only,) = read_history(tmp_path)
    assert [name.name for name in only.names] == ["w0", "w1"]


@given(st.lists(st.floats(0, 50_000), min_size=1, max_size=40), st.booleans())
def test_numbers_stay_within_a_share_when_packed(values, is_day):
    quarters = QUARTERS if is_day else 1
    whole = np.full((len(FIELDS), len(values), quarters), np.nan)
    whole[0, :, 0] = values
    ids = np.arange(len(values)) * 7
    numbers, found = unpack(pack(ids, whole), len(values), quarters)
    assert (numbers == ids).all()
    assert (np.isnan(found) == np.isnan(whole)).all()
    np.testing.assert_allclose(found[0, :, 0], values, rtol=GPUS, atol=1e-6)


def test_days_that_are_over_become_one_row_and_old_ones_go(tmp_path):
    write(tmp_path, 5)
    file = sqlite3.connect(tmp_path / NAME)
    assert file.execute("SELECT quarters FROM parts ORDER BY from_s").fetchall() == [(96,)] * 4 + [(1,)]
    days = list(read_history(tmp_path))[::-1]
    assert [day.from_s for day in days] == [MIDNIGHT_S + day * DAY_S for day in range(4)] + [days[-1].from_s]
    assert days[0].values[0, :, 1].tolist() == [1, 2] and np.isnan(days[0].values[0, :, 2]).all()
    assert days[0].values[6, :, 1] == pytest.approx([300, 300], rel=GPUS)
    later = read_history(tmp_path, MIDNIGHT_S + 3 * DAY_S)
    assert [*later][-1].from_s == MIDNIGHT_S + 3 * DAY_S


def test_the_oldest_days_go_when_the_file_is_full(tmp_path):
    write(tmp_path, 8, max_bytes=quarter_hours.PART * 400)
    days = list(read_history(tmp_path))[::-1]
    assert 1 <= len(days) < 8 and days[-1].from_s >= MIDNIGHT_S + 7 * DAY_S


def test_names_of_days_that_are_gone_go_too(tmp_path):
    writer = HistoryWriter(tmp_path, quarter_hours.PART * 1200)
    for day in range(12):
        writer._from_s = MIDNIGHT_S + day * DAY_S
        rows = [UseName("team", f"job-{day}", "Deployment", POOL), UseName("team", "chat", "Deployment", POOL)]
        writer._write(900, rows, np.ones((len(FIELDS), 2)))
    days = list(read_history(tmp_path))
    assert 1 < len(days) < 12
    (names,) = sqlite3.connect(tmp_path / NAME).execute("SELECT count(*) FROM names").fetchone()
    assert names == len(days) + 1
    assert [{name.name for name in day.names} for day in days[::-1]] == [
        {f"job-{day}", "chat"} for day in range(12 - len(days), 12)
    ]


def test_quarter_hours_are_written_when_a_device_has_a_long_name(tmp_path):
    writer, row = HistoryWriter(tmp_path, 10**9), [UseName("team", "chat", "Deployment", ("x", "H" * 5000, ""))]
    for quarter in range(2):
        writer._from_s = MIDNIGHT_S + quarter * QUARTER_S
        writer._write(900, row, np.ones((len(FIELDS), 1)))
    assert [day.names[0].pool[1] for day in read_history(tmp_path)] == ["H" * MAX_NAME] * 2


CHAT, JOB = (UseName("team", name, "Deployment", POOL) for name in ("chat", "job"))
WHOLE = UseName("", "", "", POOL)


def part(writer, seconds, **gpus):
    """Write a part of the first quarter hour of a day, in which these had GPUs and lacked some for 100 s."""
    named = {"chat": CHAT, "job": JOB, "pool": WHOLE}
    values = np.array([[each] * 6 + [100.0] * 2 for each in gpus.values()]).T
    values[3:, [name == "pool" for name in gpus]] = np.nan
    writer._write(seconds, [named[name] for name in gpus], values)


def test_parts_of_a_quarter_hour_add_up_when_the_daemon_restarts(tmp_path):
    writer = HistoryWriter(tmp_path, 10**9)
    writer._from_s = MIDNIGHT_S
    part(writer, 600, chat=6.0, pool=8.0)
    part(writer, 200, job=2.0, chat=2.0)
    (day,) = read_history(tmp_path)
    gpus = dict(zip(day.names, day.values[0, :, 0], strict=True))
    assert gpus == pytest.approx({CHAT: 5.0, JOB: 0.5, WHOLE: 8.0}, rel=GPUS)
    lacking_s = dict(zip(day.names, day.values[6, :, 0], strict=True))
    assert lacking_s == pytest.approx({CHAT: 200.0, JOB: 100.0, WHOLE: np.nan}, rel=GPUS, nan_ok=True)
    part(writer, 700, chat=1.0)  # the clock was set back: it overlaps, and is shorter
    (again,) = read_history(tmp_path)
    np.testing.assert_array_equal(again.values, day.values)


def test_a_day_is_kept_when_the_clock_is_set_back_into_it(tmp_path):
    write(tmp_path, 2)
    writer = HistoryWriter(tmp_path, 10**9)
    for quarter, gpus in ((1, 50.0), (7, 7.0), (QUARTERS, 1.0)):  # one that the day has, one that it has not, and today
        writer._from_s = MIDNIGHT_S + quarter * QUARTER_S
        writer._write(300, [CHAT], np.full((len(FIELDS), 1), gpus))
    day = list(read_history(tmp_path))[-1]
    assert (day.from_s, day.values.shape[2]) == (MIDNIGHT_S, QUARTERS)
    gpus = dict(zip([name.name for name in day.names], day.values[0, :, [1, 7]].T, strict=True))
    assert gpus["chat-0"].tolist() == pytest.approx([1.0, np.nan], nan_ok=True)
    assert gpus["chat"].tolist() == pytest.approx([np.nan, 7.0], nan_ok=True, rel=GPUS)


@pytest.mark.parametrize("data", ["x'00'", "zeroblob(900)", "substr(data, 2)"])
def test_other_days_stand_when_one_is_damaged(data, tmp_path):
    write(tmp_path, 3)
    with sqlite3.connect(tmp_path / NAME) as file:
        file.execute(f"UPDATE parts SET data = {data} WHERE from_s = {MIDNIGHT_S + DAY_S}")
        file.execute(f"UPDATE parts SET data = {data} WHERE quarters = 1")
    problems = []
    assert [day.from_s for day in read_history(tmp_path, problems=problems)] == [MIDNIGHT_S]
    (problem,) = problems
    assert "2 of its days or quarter hours cannot be read" in problem
    write(tmp_path, 4)
    assert MIDNIGHT_S + 3 * DAY_S + QUARTER_S in [day.from_s for day in read_history(tmp_path)]


@pytest.mark.parametrize("seconds", ["'abc'", "x'00'", "NULL", "9e999", "-5"])
def test_quarter_hours_are_written_when_a_part_is_damaged(seconds, tmp_path):
    write(tmp_path, 1)
    with sqlite3.connect(tmp_path / NAME) as file:
        file.execute(f"UPDATE parts SET seconds = {seconds}")
    writer = HistoryWriter(tmp_path, 10**9)
    for quarter in (1, 2):
        writer._from_s = MIDNIGHT_S + quarter * QUARTER_S
        writer._write(300, [CHAT], np.ones((len(FIELDS), 1)))
    assert [day.from_s for day in read_history(tmp_path)] == [MIDNIGHT_S + 2 * QUARTER_S, MIDNIGHT_S + QUARTER_S]


def without_database(path):
    path.write_text("no database" * 100)
    path.with_name(f"{NAME}-journal").write_bytes(b"x" * 600)


def without_index(path):
    """Leave an empty page of the index of names."""
    write(path.parent, 2)
    with sqlite3.connect(path) as file:
        (page,) = file.execute("SELECT rootpage FROM sqlite_master WHERE name LIKE 'sqlite_auto%'").fetchone()
        (size,) = file.execute("PRAGMA page_size").fetchone()
    whole = bytearray(path.read_bytes())
    whole[(page - 1) * size : page * size] = bytes([10, 0, 0, 0, 0, *size.to_bytes(2, "big")]).ljust(size, b"\0")
    path.write_bytes(whole)


@pytest.mark.parametrize("damage", [without_database, without_index])
async def test_a_new_history_begins_when_the_old_one_is_damaged(damage, tmp_path):
    folder = tmp_path / "record"
    folder.mkdir(mode=0o700)
    damage(folder / NAME)
    before = (folder / NAME).read_bytes()
    ticks = records(4)
    async with RecordWriter(folder, 100, 7) as recorder:
        for tick in ticks:
            recorder.record(replace(tick, wall_s=tick.wall_s + 450 * tick.number + 400 * DAY_S))
    assert (folder / quarter_hours.DAMAGED).read_bytes() == before
    assert list(read_history(folder))


async def test_ticks_are_recorded_when_the_history_cannot_be_written(tmp_path):
    folder = tmp_path / "record"
    folder.mkdir(mode=0o700)
    (folder / NAME).mkdir()
    lost = []
    async with RecordWriter(folder, 100, 7, on_lost=lost.append) as recorder:
        for tick in records(4):
            recorder.record(replace(tick, wall_s=tick.wall_s + 1000 * tick.number))
    assert not recorder.problem and not lost
    with pytest.raises(Unavailable, match=r"history\.db: cannot be read"):
        next(read_history(folder))


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("UPDATE parts SET rows = 1000000000", "1000000000 rows"),
        ("UPDATE parts SET quarters = 7", "7 quarter hours"),
        ("UPDATE parts SET data = x'00'", "cannot be read"),
        ("UPDATE parts SET data = 'text'", "quarter hours that no record has"),
        ("UPDATE parts SET from_s = 9e18", "quarter hours that no record has"),
        ("UPDATE names SET name = hex(zeroblob(600)) || id", "names that no workload has"),
        ("DELETE FROM names", "cannot be read"),
        ("UPDATE about SET value = 2", "format '2'; this version reads 1"),
        ("CREATE TRIGGER t AFTER UPDATE ON parts BEGIN SELECT 1; END", "more than tables"),
        ("DROP TABLE parts", "not a history of a record"),
    ],
)
def test_a_hostile_history_is_refused(statement, words, tmp_path):
    write(tmp_path, 1)
    with sqlite3.connect(tmp_path / NAME) as file:
        file.execute(statement)
    with pytest.raises(Unavailable, match=words):
        list(read_history(tmp_path))


def test_an_absent_history_is_named(tmp_path):
    with pytest.raises(Unavailable, match="has not recorded"):
        next(read_history(tmp_path))


def crowd(count, name="crowd", begin=0):
    return [UseName(name, f"job-{number}", "Deployment", POOL) for number in range(begin, begin + count)]


def test_a_crowded_namespace_takes_no_rows_from_others(tmp_path):
    """The daemon begins twice in a quarter hour, and a day is over: the crowd has other names each time."""
    writer, others = HistoryWriter(tmp_path, 10**9, 100), [CHAT, WHOLE]
    for from_s, begin in ((0, 0), (0, 200), (QUARTER_S, 400), (DAY_S, 0)):
        writer._from_s = MIDNIGHT_S + from_s
        rows = [*crowd(105, begin=begin), *others]
        writer._write(300, rows, np.ones((len(FIELDS), len(rows))))
    problems = []
    for day in read_history(tmp_path, problems=problems):
        assert len(day.names) == 100
        places = [day.names.index(name) for name in others]
        assert (~np.isnan(day.values[0, places])).sum(axis=1).tolist() == [2 if day.from_s == MIDNIGHT_S else 1] * 2
    (problem,) = problems
    assert f"{NAME}: rows of crowded namespaces are left out, the last time at 2026-06-02T00:00:00Z: " in problem
    assert "of 'crowd'; allowed: 100, " in problem and "team" not in problem


def test_names_without_end_shorten_no_history_of_others(tmp_path):
    writer, days = HistoryWriter(tmp_path, quarter_hours.PART * 40_000), 40
    for day in range(days):
        writer._from_s = MIDNIGHT_S + day * DAY_S
        rows = [*crowd(40, begin=40 * day), CHAT]
        writer._write(900, rows, np.ones((len(FIELDS), len(rows))))
    found = list(read_history(tmp_path))
    assert len(found) == days and all(CHAT in day.names for day in found)
    assert len(found[0].names) == 41 and len(found[-1].names) == 1
    named = [name.name for day in found for name in day.names if name.namespace == "crowd"]
    assert len(set(named)) == len(named)


def test_a_crowd_loses_its_old_days_first_when_the_file_is_full(tmp_path):
    writer, days, problems = HistoryWriter(tmp_path, quarter_hours.PART * 16_000), 30, []
    noise = np.random.default_rng(1)
    for day in range(days):
        writer._from_s = MIDNIGHT_S + day * DAY_S
        rows = [*crowd(40), CHAT, JOB, UseName("other", "chat", "Deployment", POOL), WHOLE]
        writer._write(900, rows, noise.random((len(FIELDS), len(rows))))
    found = list(read_history(tmp_path, problems=problems))
    assert len(found) == days
    with_crowd = [len(day.names) == 44 for day in found]
    assert all(len(day.names) in (4, 44) for day in found) and 1 < sum(with_crowd) < days
    assert with_crowd == sorted(with_crowd, reverse=True)  # the newest days have it
    assert "of 'crowd'" in problems[0]


def test_rows_of_the_most_quarter_hours_stay_when_a_day_has_too_many():
    ids_of = [[7, 8], [5, 8], [2, 5, 8, 9], [5, 9], []]
    parts = [
        (quarter, np.array(ids, np.int64), np.full((len(FIELDS), len(ids), 1), 10.0 * quarter + 1))
        for quarter, ids in enumerate(ids_of)
    ]
    ids, values = join_quarters(parts, lambda kept: kept[:3])
    assert ids.tolist() == [5, 8, 9]
    first = [[np.nan, 11, 21, 31], [1, 11, 21, np.nan], [np.nan, np.nan, 21, 31]]
    np.testing.assert_array_equal(values[0, :, :4], first)
    assert np.isnan(values[:, :, 4:]).all()
    assert join_quarters([], lambda kept: kept)[1].shape == (len(FIELDS), 0, QUARTERS)
