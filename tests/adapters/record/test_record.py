"""A record is read as it was written: while it is written, after a kill, on a full disk, and damaged."""

import os
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import structlog

from autoscaler.adapters.record import folder as folders
from autoscaler.adapters.record.file import FORMAT, RecordFile
from autoscaler.adapters.record.reader import Record
from autoscaler.adapters.record.recorder import RecordWriter
from autoscaler.adapters.record.rows import MAX_SENTENCE, MOST_OBJECTS, MOST_TEXTS, TEXT_S, PolicyLoad, TableRows
from autoscaler.adapters.record.tick_values import Decided
from autoscaler.adapters.record.writer import FolderWriter
from autoscaler.ports import Unavailable
from tests.adapters.record.ticks import PERIOD_S, START_S, at, records

pytestmark = pytest.mark.slow

DAY_S = 86_400.0
MB = 1_000_000


def write(folder: Path, ticks, max_bytes: int = 100 * MB, max_days: int = 7, block: int = 4) -> None:
    """Write ticks as a process does that ends by itself."""
    folders.prepare(folder)
    writer = FolderWriter(folder, max_bytes, max_days)
    writer.begin()
    for number, tick in enumerate(ticks):
        writer.take(tick)
        if number % block == block - 1:
            writer.flush()
    writer.close()


def same_stages(computed) -> bool:
    return np.array_equal(computed.recorded.decided.stages, computed.decision.stages, equal_nan=True)


def test_each_tick_is_computed_again_bit_for_bit(tmp_path):
    ticks = records(60)
    write(tmp_path / "record", ticks)
    with Record(tmp_path / "record") as record:
        for tick in ticks[::13]:
            computed = record.compute(tick.wall_s + PERIOD_S / 2)
            assert computed.inp.now_s == tick.now_s
            assert np.array_equal(computed.decision.stages, tick.decision.stages, equal_nan=True)
            assert np.array_equal(computed.decision.plan.demand, tick.decision.plan.demand, equal_nan=True)
            assert same_stages(computed)
            assert computed.policies == tick.policies


def test_changes_are_found_with_their_sentences(tmp_path):
    ticks = records(30)
    write(tmp_path / "record", ticks)
    told = [
        (round(tick.wall_s), each.change.before, each.change.after, "applied", "", each.change.reason)
        for tick in ticks
        for each in tick.outcomes
        if each.change.ref.name == "w0"
    ]
    with Record(tmp_path / "record") as record:
        found = record.changes(("ns", "w0"), START_S, START_S + DAY_S)
    assert told
    assert [tuple(change) for change in found] == told


def test_a_long_sentence_ends_with_a_whole_word(tmp_path):
    tick = next(tick for tick in records(30) if tick.outcomes)
    long = replace(tick.outcomes[0], change=replace(tick.outcomes[0].change, reason="because of reasons " * 20))
    write(tmp_path / "record", [replace(tick, outcomes=(long,))])
    with Record(tmp_path / "record") as record:
        ((_, (sentence,)),) = record.query("SELECT sentence FROM changes")
    assert len(sentence) <= MAX_SENTENCE and sentence.removesuffix("…").endswith((" because", " of", " reasons"))


def test_plain_tables_sum_up_to_what_the_ticks_have(tmp_path):
    ticks = records(60)
    write(tmp_path / "record", ticks)
    with Record(tmp_path / "record") as record:
        ((_, (finished, seconds)),) = record.query("SELECT sum(finished), max(seconds) FROM traffic WHERE workload = 0")
        last = dict(row for _, row in record.query("SELECT workload, wanted FROM counts ORDER BY tick"))
    grown = 0.0
    for before, after in pairwise(ticks):
        was = dict(zip(before.input.fleet.pod_id, before.input.samples.pods.finished, strict=True))
        for pod, row, now in zip(
            after.input.fleet.pod_id, after.input.fleet.pod_workload, after.input.samples.pods.finished, strict=True
        ):
            if row == 0 and pod in was:
                grown += now - was[pod] if now >= was[pod] else now
    assert finished == pytest.approx(grown, abs=4)  # a row for each five minutes is rounded
    assert seconds == pytest.approx(300, abs=PERIOD_S)
    assert last == dict(enumerate(ticks[-1].decision.replicas.tolist()))


def test_a_second_process_goes_on_where_the_first_ended(tmp_path):
    first, second = records(10), records(10, start_s=START_S + 600, seed=2)
    for ticks in (first, second):
        write(tmp_path / "record", ticks)
    with Record(tmp_path / "record") as record:
        assert len(record.files) == 1
        for tick in (first[-1], second[0], second[-1]):
            computed = record.compute(tick.wall_s)
            assert computed.inp.now_s == tick.now_s
            assert same_stages(computed)


def test_sums_outlive_a_kill_and_go_on_after_it(tmp_path):
    """The second process begins within the same five minutes and the same hour."""
    parts = records(20)[:10], records(20)[10:]
    for name, killed in (("apart", False), ("record", True)):
        for number, ticks in enumerate(parts):
            folder = tmp_path / (name if killed else f"{name}-{number}")
            folders.prepare(folder)
            writer = FolderWriter(folder, 100 * MB, 7)
            writer.begin()
            for tick in ticks:
                writer.take(tick)
            writer.flush()  # and no more
    found = {}
    for name in ("record", "apart-0", "apart-1"):
        with Record(tmp_path / name) as record:
            for query in ("SELECT sum(finished), sum(seconds) FROM traffic", "SELECT sum(gpu_s), 0 FROM gpu_use"):
                ((_, sums),) = record.query(query)
                found.setdefault(query, []).append(np.array(sums))
    for whole, first, second in found.values():
        assert whole == pytest.approx(first + second, abs=2)
        assert min(first[0], second[0]) > 0


def test_a_lost_tick_does_not_spoil_those_after_it(tmp_path):
    ticks = records(20)
    write(tmp_path / "record", [*ticks[:9], *ticks[10:]])
    with Record(tmp_path / "record") as record:
        assert same_stages(record.compute(ticks[-1].wall_s))
        assert record.compute(ticks[9].wall_s).inp.now_s == ticks[8].now_s


def test_policies_and_owners_are_told_when_they_change(tmp_path):
    ticks = records(6)
    held = replace(ticks[3].input.fleet, other_owner=("a manual change by alice", ""))
    ticks[3] = replace(ticks[3], input=replace(ticks[3].input, fleet=held))
    folders.prepare(tmp_path / "record")
    writer = FolderWriter(tmp_path / "record", 100 * MB, 7)
    writer.begin()
    writer.note_policies(PolicyLoad({"chat": "max: 4\n"}, {}), START_S)
    for tick in ticks[:2]:
        writer.take(tick)
    writer.note_policies(PolicyLoad({"chat": "max: 2\n"}, {"chat": "-max: 4\n+max: 2"}), ticks[2].wall_s)
    for tick in ticks[2:]:
        writer.take(tick)
    writer.close()
    with Record(tmp_path / "record") as record:
        policies = [row for _, row in record.query("SELECT tick, difference FROM policies ORDER BY tick")]
        owners = [row for _, row in record.query("SELECT tick, workload, owner FROM owners ORDER BY tick")]
    assert policies == [(1, ""), (3, "-max: 4\n+max: 2")]
    assert owners == [(4, 0, "a manual change by alice"), (5, 0, "")]


def turns(count: int = 60):
    """Ticks whose whole memory is written again after each ten, over two days."""
    return [at(tick, START_S + 7 * 3600 * (number // 10) + number) for number, tick in enumerate(records(count))]


def test_texts_that_change_with_each_tick_are_bounded():
    """A tenant may write annotations as often as it likes; the size of the record is that of all."""
    rows, (one,), ticks = TableRows(), records(1), 300
    numbers = rows.number_workloads(one.input.fleet.workloads)
    for number in range(ticks):
        tick = replace(one, policies=(f"policy-{number}", "batch"), wall_s=START_S + PERIOD_S * number)
        rows.note(tick, number, Decided.of(tick.input, tick.decision, numbers, tick.wall_s))
    named = [[row[3] for row in rows.pending["facts"] if row[0] == workload] for workload in numbers]
    assert named[0][:MOST_TEXTS] == [f"policy-{number}" for number in range(MOST_TEXTS)]
    assert len(named[0]) == MOST_TEXTS + (ticks - MOST_TEXTS) * PERIOD_S // TEXT_S
    assert named[1] == ["batch"]


def test_rows_are_bounded_when_a_workload_is_made_again_each_tick():
    rows, (one,), ticks = TableRows(), records(1), 160
    for number in range(ticks):
        first, *others = one.input.fleet.workloads
        again = (first._replace(uid=f"{number}"), *others)
        tick = replace(one, input=replace(one.input, fleet=replace(one.input.fleet, workloads=again)))
        tick = replace(tick, policies=(f"policy-{number}", "batch"), wall_s=START_S + PERIOD_S * number)
        numbers = rows.number_workloads(again)
        assert len({*numbers.tolist()}) == len(again)
        rows.note(tick, number, Decided.of(tick.input, tick.decision, numbers, tick.wall_s))
    assert [row[4] for row in rows.pending["workloads"] if row[2] == first.ref.name] == [
        str(number) for number in range(MOST_OBJECTS)
    ]
    allowed = MOST_TEXTS + (ticks - MOST_TEXTS) * PERIOD_S // TEXT_S
    assert len(rows.pending["facts"]) == allowed + len(others)
    assert len(rows.pending["counts"]) <= 2 * MOST_OBJECTS + len(others)


def test_inputs_that_were_dropped_are_told_and_decisions_stay(tmp_path):
    ticks, folder = turns(), tmp_path / "record"
    write(folder, ticks)
    before = folders.total_bytes(folder)
    for path in folders.files(folder):
        file = RecordFile.open(path, write=True)
        while file.drop_oldest_inputs(before=41):
            pass
        file.close()
    assert folders.total_bytes(folder) < before
    with Record(folder) as record:
        assert record.tick(START_S + 5).number == 6
        with pytest.raises(Unavailable, match=r"are not kept, so it cannot be computed again; those of .* are"):
            record.compute(START_S + 5)
        assert same_stages(record.compute(ticks[-1].wall_s))


def test_the_record_keeps_within_its_size(tmp_path):
    ticks = turns()
    write(tmp_path / "record", ticks, max_bytes=200_000)
    assert folders.total_bytes(tmp_path / "record") <= 200_000
    with Record(tmp_path / "record") as record:
        assert same_stages(record.compute(ticks[-1].wall_s))


def test_old_days_go_whatever_the_size(tmp_path):
    ticks = [at(tick, START_S + DAY_S * (number // 4)) for number, tick in enumerate(records(40))]
    write(tmp_path / "record", ticks, max_days=3)
    names = [path.stem.partition("_")[2] for path in folders.files(tmp_path / "record")]
    assert names == ["2026-06-07", "2026-06-08", "2026-06-09", "2026-06-10"]


@pytest.mark.parametrize("jump_s", [-3 * DAY_S, -600.0, 400 * DAY_S])
def test_a_clock_that_jumps_removes_nothing_and_spoils_nothing(tmp_path, jump_s):
    ticks = records(16)
    ticks[8:] = [at(tick, tick.wall_s + jump_s) for tick in ticks[8:]]
    write(tmp_path / "record", ticks)
    with Record(tmp_path / "record") as record:
        count = sum(last - first + 1 for _, (first, last) in record.query("SELECT first, last FROM ticks"))
        assert count == 16
        assert same_stages(record.compute(ticks[-1].wall_s))


def damage_page(path: Path) -> None:
    """Overwrite what comes after the first page."""
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(path.stat().st_size - 4096))


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (damage_page, "malformed"),
        (lambda path: path.write_bytes(path.read_bytes()[:5000]), "malformed"),
        (lambda path: path.write_bytes(b"not a database at all" * 300), "not a database"),
        (lambda path: path.write_bytes(b""), "not a file of a record"),
        (lambda path: sqlite3.connect(path).execute("DROP TABLE about").connection.close(), "not a file of a record"),
        (lambda path: (path.unlink(), path.symlink_to("/etc/hostname")), "is not a file"),
    ],
)
def test_a_damaged_file_is_named_and_the_others_are_read(tmp_path, damage, named):
    ticks = [at(tick, START_S + DAY_S * (number // 8)) for number, tick in enumerate(records(24))]
    folder = tmp_path / "record"
    write(folder, ticks)
    broken = folders.files(folder)[1]
    damage(broken)
    with Record(folder) as record:
        for tick in (ticks[7], ticks[-1]):
            assert same_stages(record.compute(tick.wall_s))
        record.tick(ticks[12].wall_s)
        assert [problem for problem in record.problems if broken.name in problem and named in problem]
    write(folder, records(8, start_s=START_S + 3 * DAY_S))  # and it hinders no writer


def test_a_file_of_another_format_is_named_with_both_formats(tmp_path):
    write(tmp_path / "record", records(4))
    file = RecordFile.open(folders.files(tmp_path / "record")[0], write=True)
    file.add("about", [("format", "7")])
    file.close()
    with pytest.raises(Unavailable, match=f"format '7'; this version reads {FORMAT}"), Record(tmp_path / "record"):
        pass


def test_a_damaged_block_is_named_with_its_time(tmp_path):
    write(tmp_path / "record", records(12))
    file = RecordFile.open(folders.files(tmp_path / "record")[0], write=True)
    file.connection.execute("UPDATE blocks SET inputs = x'00' WHERE first = 5")
    file.connection.execute("UPDATE blocks SET decided = x'00' WHERE first = 9")
    file.close()
    with Record(tmp_path / "record") as record:
        assert same_stages(record.compute(START_S + 2 * PERIOD_S))
        with pytest.raises(Unavailable, match="cannot be read"):
            record.compute(START_S + 5 * PERIOD_S)
        with pytest.raises(Unavailable, match="are damaged"):
            record.tick(START_S + 9 * PERIOD_S)


def test_a_damaged_moment_is_not_called_one_before_the_record(tmp_path):
    write(tmp_path / "record", records(12))
    with Record(tmp_path / "record") as record:
        path = folders.files(tmp_path / "record")[0]
        sqlite3.connect(path).execute("DELETE FROM blocks").connection.commit()
        with pytest.raises(Unavailable, match=r"the ticks up to 2026-06-01T08:01:15Z cannot be read: .*left out"):
            record.tick(START_S + 5 * PERIOD_S)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda path: path.symlink_to(path.parent), "is a symbolic link"),
        (lambda path: path.write_text("x"), "is not a folder"),
        (lambda path: (path.mkdir(), path.chmod(0o777)), "every user can write to it"),
        (lambda path: path.parent.rmdir(), "cannot be created"),
    ],
)
def test_an_unsafe_folder_is_refused_with_what_is_allowed(tmp_path, make, named):
    folder = tmp_path / "parent" / "record"
    folder.parent.mkdir()
    make(folder)
    with pytest.raises(Unavailable, match=named):
        folders.prepare(folder)


def test_files_are_for_their_owner_alone(tmp_path):
    write(tmp_path / "record", records(4))
    assert (tmp_path / "record").stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "record").iterdir()} == {0o600}


def wait_until(condition) -> None:
    """Wait for the thread. The loop may stand still meanwhile: the thread does not need it."""
    while not condition():
        time.sleep(0.01)


async def test_a_second_writer_is_refused(tmp_path):
    async with RecordWriter(tmp_path / "record", 100, 7):
        with pytest.raises(Unavailable, match="another process writes to it"):
            async with RecordWriter(tmp_path / "record", 100, 7):
                pass


async def test_ticks_are_lost_not_kept_when_the_disk_is_too_slow(tmp_path):
    """A reader that holds the file stops the thread; ticks beyond the queue are counted, and later ones are whole."""
    ticks, lost = records(80), []
    async with RecordWriter(tmp_path / "record", 100, 7, flush_s=0.01, on_lost=lost.append) as writer:
        writer.record(ticks[0])
        wait_until(lambda: writer.written > 0)
        reader = sqlite3.connect(folders.files(tmp_path / "record")[0], isolation_level=None)
        reader.execute("BEGIN EXCLUSIVE")
        for tick in ticks[1:]:
            writer.record(tick)
        assert sum(lost) > 0  # how many depends on what the thread took before it wrote
        reader.execute("ROLLBACK")
        reader.close()
    with Record(tmp_path / "record") as record:
        count = sum(last - first + 1 for _, (first, last) in record.query("SELECT first, last FROM ticks"))
        assert count == len(ticks) - sum(lost) >= 1
        assert same_stages(record.compute(ticks[-1].wall_s))


CHILD = """
import asyncio, resource, sys
from pathlib import Path
from autoscaler.adapters.record.recorder import RecordWriter
from tests.adapters.record.ticks import records

async def main():
    lost = []
    ticks = records(80)
    async with RecordWriter(Path(sys.argv[1]), 100, 7, flush_s=0.1, on_lost=lost.append) as writer:
        for tick in ticks:
            if tick.number == int(sys.argv[2]):
                resource.setrlimit(resource.RLIMIT_FSIZE, (80_000, resource.RLIM_INFINITY))
            writer.record(tick)
            print(tick.number, flush=True)
            await asyncio.sleep(0.05)
            if tick.number == int(sys.argv[2]) + 5:
                while not writer.problem:
                    await asyncio.sleep(0.01)
                print("problem:", writer.problem, flush=True)
                resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            if tick.number == int(sys.argv[2]) + 10:
                while writer.problem:
                    await asyncio.sleep(0.01)
    print("lost", sum(lost), "problem" if writer.problem else "well", flush=True)

asyncio.run(main())
"""


def child(folder: Path, full_from: int) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(folder), str(full_from)], stdout=subprocess.PIPE, text=True, bufsize=1
    )


def test_a_killed_process_leaves_all_but_the_last_ticks(tmp_path):
    with child(tmp_path / "record", 1_000_000) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line == "60\n":
                process.send_signal(signal.SIGKILL)
                break
        further = [int(line) for line in process.stdout if line.strip().isdigit()]  # until the signal works
        given = max([60, *further])
    with Record(tmp_path / "record") as record:
        last = record.tick(START_S + DAY_S)
        after = START_S + given * PERIOD_S
        assert after - 30 * PERIOD_S < last.at_s <= after + PERIOD_S  # all but the last tenth of a second
        assert same_stages(record.compute(last.at_s))
    write(tmp_path / "record", records(4, start_s=START_S + DAY_S))


def test_a_full_disk_is_told_and_stops_nothing(tmp_path):
    process = child(tmp_path / "record", 30)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    assert "problem: ticks are not recorded in" in output
    lost = int(output.split("lost ")[1].split()[0])
    assert 0 < lost < 50
    assert output.endswith("well\n")
    with Record(tmp_path / "record") as record:
        count = sum(last - first + 1 for _, (first, last) in record.query("SELECT first, last FROM ticks"))
        assert count == 80 - lost
        assert same_stages(record.compute(START_S + 79 * PERIOD_S))
        assert same_stages(record.compute(START_S + 9 * PERIOD_S))


def test_old_days_go_and_no_empty_file_stays_on_a_full_disk(tmp_path):
    """A new day begins on a disk that has room for names only."""
    folder = tmp_path / "record"
    write(folder, [at(tick, START_S + DAY_S * (number // 2)) for number, tick in enumerate(records(6))], max_days=2)
    writer = FolderWriter(folder, 100 * MB, 2)
    writer.begin()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        for tick in records(3, start_s=START_S + 3 * DAY_S):
            with pytest.raises((sqlite3.Error, OSError)):
                writer.take(tick)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [folders.day_of_name(path) for path in folders.files(folder)] == ["2026-06-02", "2026-06-03"]


async def test_a_failure_is_logged_once_and_so_is_its_end(tmp_path):
    ticks = records(3)
    with structlog.testing.capture_logs() as logs:
        async with RecordWriter(tmp_path / "record", 100, 7, flush_s=0.01) as writer:
            (tmp_path / "record").rename(tmp_path / "moved")
            for tick in ticks[:2]:
                writer.record(tick)
            wait_until(lambda: bool(writer.problem))
            (tmp_path / "moved").rename(tmp_path / "record")
            writer.record(ticks[2])
            wait_until(lambda: not writer.problem)
    assert [entry["event"] for entry in logs] == ["ticks are not recorded", "ticks are recorded again"]
