"""A record from a stranger is read as far as it is whole. It runs nothing, removes nothing, and takes little memory."""

import os
import shutil
import sqlite3
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from autoscaler.adapters.record import folder as folders
from autoscaler.adapters.record.file import FORMAT, JOURNAL_END
from autoscaler.adapters.record.folder import HISTORY
from autoscaler.adapters.record.quarter_hours import read_history
from autoscaler.adapters.record.reader import Record
from autoscaler.ports import Unavailable
from tests.adapters.record.test_record import DAY_S, same_stages, write
from tests.adapters.record.ticks import START_S, at, records

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path):
    """A record of two days; the first one is what the tests spoil."""
    write(tmp_path / "record", [at(tick, tick.wall_s + DAY_S * (tick.number >= 4)) for tick in records(8)])
    return tmp_path / "record"


def spoil(folder: Path, *statements: str) -> Path:
    """Run statements on the first file, as its owner may."""
    path = folders.files(folder)[0]
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA writable_schema = ON")
    for statement in statements:
        connection.execute(statement)
    connection.close()
    return path


ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x, x, x, x, x, x, x, x FROM n"


@pytest.mark.parametrize(
    ("statements", "named"),
    [
        (["ALTER TABLE ticks RENAME TO t", f"CREATE VIEW ticks AS {ENDLESS}"], "'t' differs"),
        (["DROP TABLE about", f"CREATE VIEW about AS {ENDLESS}"], "not a file of a record"),
        (["CREATE TRIGGER t AFTER UPDATE ON blocks BEGIN DELETE FROM ticks; END"], "'t' differs"),
        (["CREATE VIRTUAL TABLE t USING fts5(x)"], "differs"),
        (["CREATE INDEX i ON counts (abs(at_s))"], "'i' differs"),
        (["ALTER TABLE changes ADD COLUMN x AS (hex(hex(sentence)))"], "'changes' differs"),
        (
            [f"UPDATE about SET value = '{FORMAT + 1}' WHERE key = 'format'"],
            f"format '{FORMAT + 1}'; this version reads",
        ),
        (
            ["UPDATE about SET value = 5 WHERE key = 'format'", "UPDATE about SET value = x'00'"],
            "values that no record",
        ),
        (["UPDATE ticks SET at_s = 'yesterday'"], "table ticks has values that no record has"),
        (["UPDATE ticks SET until_s = 1e300"], "table ticks has values that no record has"),
        (["UPDATE ticks SET at_s = NULL"], "table ticks has values that no record has"),
    ],
)
def test_a_file_with_anything_else_in_it_is_named(folder, statements, named):
    broken = spoil(folder, *statements)
    with Record(folder) as record:
        assert len(record.files) == 1
        assert same_stages(record.compute(START_S + 2 * DAY_S))
        assert any(broken.name in problem and named in problem for problem in record.problems), record.problems
    write(folder, records(4, start_s=START_S + 2 * DAY_S))  # and it hinders no writer


@pytest.mark.parametrize(
    ("statement", "lost"),
    [
        ("UPDATE counts SET at_s = 1e300", "counts"),
        ("UPDATE counts SET ready = 'many'", "counts"),
        ("UPDATE counts SET ready = -5", "counts"),
        ("UPDATE traffic SET kv_s = NULL", "traffic"),
        ("UPDATE traffic SET first_tokens = 9223372036854775807", "traffic"),
        ("UPDATE gpu_use SET gpu_s = NULL", "gpu_use"),
        ("UPDATE gpu_use SET usd = -1", "gpu_use"),
        ("UPDATE changes SET sentence = x'ff'", "changes"),
        ("UPDATE changes SET at_s = -9e18", "changes"),
        ("UPDATE workloads SET name = zeroblob(100000000)", "workloads"),
        ("UPDATE policies SET difference = replace(hex(zeroblob(1000000)), '00', 'policy')", "policies"),
    ],
)
def test_a_table_with_other_values_is_named_alone(folder, statement, lost):
    broken = spoil(
        folder,
        "INSERT INTO policies VALUES (1, 1, 'p', 'd', '')",
        "INSERT OR IGNORE INTO changes VALUES (1, 1, 0, 1, 2, 'applied', '', '')",
        statement,
    )
    with Record(folder) as record:
        for table in ("counts", "changes", "workloads", "policies", "traffic", "gpu_use"):
            found = {file.path for file, _ in record.query(f"SELECT * FROM {table}")}
            assert (broken in found) == (table != lost)
        assert any(broken.name in problem for problem in record.problems)


def test_a_journal_that_names_another_file_deletes_nothing(folder):
    """SQLite deletes the file that such a journal names."""
    path, victim = folders.files(folder)[0], folder.parent / "victim"
    victim.write_text("precious")
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA cache_size = 1")
    connection.execute("BEGIN")
    connection.execute("UPDATE blocks SET inputs = randomblob(100000)")
    journal = path.with_name(f"{path.name}-journal")
    copies = [shutil.copy(each, folder.parent / each.name) for each in (path, journal)]
    connection.execute("ROLLBACK")
    connection.close()
    for each in copies:
        shutil.copy(each, folder)
    name = os.fsencode(victim)
    with journal.open("ab") as file:
        file.write(struct.pack(">I", (1 << 30) // 4096 + 1) + name + struct.pack(">II", len(name), sum(name)))
        file.write(JOURNAL_END)
    with Record(folder) as record:
        assert [problem for problem in record.problems if "is no journal of a record" in problem]
    write(folder, records(4, start_s=START_S + 2 * DAY_S))
    assert victim.exists()
    journal.unlink()
    journal.symlink_to(victim)
    with Record(folder) as record:
        assert len(record.problems) == 1
    assert victim.read_text() == "precious"


def test_the_year_beside_it_is_refused_with_more_than_tables(folder):
    path = folder / HISTORY
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE about AS SELECT 'format' AS key, '1' AS value")
    connection.execute("CREATE TABLE names AS SELECT 1")
    connection.execute(f"CREATE VIEW parts AS {ENDLESS}")
    connection.close()
    with pytest.raises(Unavailable, match="more than tables"):
        [*read_history(folder)]
    path.with_name(f"{path.name}-journal").write_bytes(b"x" * 512 + JOURNAL_END)
    with pytest.raises(Unavailable, match="no journal of a record"):
        [*read_history(folder)]


def test_files_of_others_are_named_and_never_removed(folder):
    others = ["notes.sqlite", "²_2020-01-01.sqlite", "000000000001_x.sqlite", f"{'9' * 200}_2020-01-01.sqlite"]
    for name in others:
        sqlite3.connect(folder / name).execute("CREATE TABLE mine (a)").connection.close()
    (folder / "000000000000_2019-01-01.sqlite").mkdir()
    write(folder, [at(tick, START_S + DAY_S * tick.number) for tick in records(12)], max_bytes=100_000, max_days=2)
    with Record(folder) as record:
        assert {each for each in others if any(each in problem for problem in record.problems)} == {*others}
    assert {*others} < {path.name for path in folder.iterdir()}


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_refused_for_writing(folder):
    os.chown(folder, 12345, -1)
    with pytest.raises(Unavailable, match="belongs to another user, 12345"):
        folders.prepare(folder)


BOMBS = """
import lzma, resource, struct
import msgspec
from autoscaler.adapters.record.stream import Damaged, Decoder

def block(heads, parts):
    head = msgspec.msgpack.encode((heads, [len(part) for part in parts]))
    return lzma.compress(len(head).to_bytes(4, "little") + head + b"".join(parts), preset=0)

large, links, same = ("<f8", (8_000_000,)), ((), ()), (None,) * 4
bombs = {
    "many large values": block([(b"", links, [large], bytes(1)), *[same] * 200], [bytes(1)]),
    "many large arrays": block([(b"", links, [large] * 200, bytes(200))], [bytes(1)] * 200),
    "many values": block([(b"", links, [], b""), *[same] * 6_000_000], []),
    "many shapes": block([(b"", links, [("<f8", (0,))] * 5_000_000, bytes(5_000_000))], []),
    "many axes": block([(b"", links, [("<f8", (0,) * 10_000_000)], bytes(1))], []),
    "a large frame": block([(struct.pack(">BI", 0xDD, 50_000_000) + bytes(50_000_000), links, [], b"")], []),
}
resource.setrlimit(resource.RLIMIT_DATA, (1 << 29, 1 << 29))
for name, bomb in bombs.items():
    try:
        Decoder().decode(bomb)
        print("read:", name)
    except Damaged:
        print("refused:", name)
"""


def test_a_block_that_would_be_huge_is_refused_in_little_memory():
    done = subprocess.run([sys.executable, "-c", BOMBS], capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.count("refused: ") == 6, done.stdout + done.stderr[-1000:]
