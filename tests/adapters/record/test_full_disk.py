"""A disk that is full for real: the year of quarter hours loses some, keeps what it has, and goes on by itself."""

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from autoscaler.adapters.record.quarter_hours import HistoryWriter, UseDay, read_history
from autoscaler.adapters.record.quarter_values import QUARTER_S
from autoscaler.ports import TickRecord
from tests.adapters.record.ticks import records
from tests.harness.hung_disk import small_disk

pytestmark = pytest.mark.integration

BYTES = 96 * 1024
FULL = "database or disk is full"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    try:
        with small_disk(tmp_path / "disk", BYTES):
            yield tmp_path / "disk"
    except subprocess.CalledProcessError:
        pytest.skip("this process may mount no disk")


def quarter(tick: TickRecord, number: int) -> list[TickRecord]:
    """Return two ticks of a quarter hour, half a minute apart."""
    begin_s = tick.wall_s // QUARTER_S * QUARTER_S + number * QUARTER_S
    return [
        replace(tick, wall_s=begin_s + at_s, input=replace(tick.input, now_s=number * QUARTER_S + at_s))
        for at_s in (30.0, 60.0)
    ]


def test_quarter_hours_go_on_when_a_full_disk_has_room_again(disk: Path) -> None:
    (tick,) = records(1)
    writer, other = HistoryWriter(disk, 10**9), disk / "other"

    def record(*numbers: int) -> None:
        for number in numbers:
            for each in quarter(tick, number):
                writer.take(each)
            writer.close()

    def read() -> list[UseDay]:
        return [*read_history(disk)]

    record(0, 1)
    with other.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        while True:
            file.write(bytes(1024))
    with capture_logs() as lines:
        record(2, 3, 4)
    assert [(line["event"], FULL in line["problem"]) for line in lines] == [("a quarter hour is not recorded", True)]
    assert len(read()) == 2  # what was written stays readable on the full disk
    other.unlink()
    record(5, 6)
    assert len(read()) == 4
    assert sorted(path.name for path in disk.iterdir()) == ["history.db"]
