"""The year of quarter hours: what is written is read, and nothing that goes wrong there stops the record."""

import sqlite3
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.adapters.record import history
from autoscaler.adapters.record.history import DAY_S, FIELDS, NAME, QUARTER_S, HistoryWriter, UseName, read_history
from autoscaler.adapters.record.recorder import RecordWriter
from autoscaler.config.prices import shares_of
from autoscaler.core.gpu_totals import GpuTotals
from autoscaler.core.gpu_use import GpuState
from autoscaler.ports import Unavailable
from tests.adapters.record.ticks import records

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


def test_quarter_hours_are_those_of_the_ticks_when_read_again(tmp_path):
    ticks = [with_gpus(tick, 40.0) for tick in records(80)]
    writer, totals = HistoryWriter(tmp_path, 10**9), GpuTotals()
    for tick in ticks:
        writer.take(tick)
        if tick.wall_s // QUARTER_S == ticks[0].wall_s // QUARTER_S:
            totals.add(tick.input, tick.decision, shares_of(tick.input.fleet.groups.groups), 1)
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


def test_a_pool_of_unknown_size_is_not_full(tmp_path):
    writer = HistoryWriter(tmp_path, 10**9)
    for tick in records(3):
        writer.take(with_gpus(tick, np.nan))
    writer.close()
    (only,) = read_history(tmp_path)
    assert [name.name for name in only.names] == ["w0", "w1"]


@given(st.lists(st.floats(0, 50_000), min_size=1, max_size=40), st.booleans())
def test_numbers_stay_within_a_share_when_packed(values, is_day):
    quarters = history.QUARTERS if is_day else 1
    whole = np.full((len(FIELDS), len(values), quarters), np.nan)
    whole[0, :, 0] = values
    ids = np.arange(len(values)) * 7
    numbers, found = history._unpack(history._pack(ids, whole), len(values), quarters)
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
    write(tmp_path, 8, max_bytes=history.PART * 400)
    days = list(read_history(tmp_path))[::-1]
    assert 1 <= len(days) < 8 and days[-1].from_s >= MIDNIGHT_S + 7 * DAY_S


def test_names_of_days_that_are_gone_go_too(tmp_path):
    writer = HistoryWriter(tmp_path, history.PART * 1200)
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
    assert [day.names[0].pool[1] for day in read_history(tmp_path)] == ["H" * history.MAX_NAME] * 2


def test_a_shorter_part_of_a_quarter_hour_replaces_no_longer_one(tmp_path):
    writer, row = HistoryWriter(tmp_path, 10**9), [UseName("team", "chat", "Deployment", POOL)]
    writer._from_s = MIDNIGHT_S
    for seconds, gpus in ((600, 6), (200, 2)):  # a restart in between
        writer._write(seconds, row, np.full((len(FIELDS), 1), float(gpus)))
    assert [day.values[0].item() for day in read_history(tmp_path)] == [6]


async def test_ticks_are_recorded_when_the_history_cannot_be_written(tmp_path):
    folder = tmp_path / "record"
    folder.mkdir(mode=0o700)
    (folder / NAME).write_text("no database" * 100)
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
