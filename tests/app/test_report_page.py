"""The report that a daemon shows of its record: made by a process of its own, within limits."""

import pytest

from autoscaler.adapters.web.report_page import NotYet
from autoscaler.app.report_page import FILE, page_of_record, say_missing
from autoscaler.ports import Unavailable
from tests.adapters.record.test_record import write
from tests.adapters.record.ticks import START_S, records
from tests.report.test_recorded import spread

pytestmark = pytest.mark.slow


def test_page_is_left_in_the_folder_of_the_record(tmp_path):
    write(tmp_path / "record", spread())
    text = page_of_record(tmp_path / "record")
    assert "ns/w0" in text and (tmp_path / "record" / FILE).read_text() == text


@pytest.mark.parametrize(
    ("first_s", "minutes", "until"),
    [
        (START_S, 20, ("08:00 to 08:20", "09:00 by that clock, in 40m")),
        (START_S + 1, 60, ("08:00 to 09:00", "09:05 by that clock, in 5m")),
        (START_S - 8.1 * 3600, 30, ("23:54 to 00:24", "00:55 by that clock, in 31m")),
    ],
    ids=["on a step", "within a step", "over midnight"],
)
def test_page_tells_until_when_a_record_is_too_short(first_s, minutes, until):
    text = say_missing(first_s, first_s + 60 * minutes)
    assert text == (
        "A report needs a record of one hour, in whole steps of 5 minutes. So far it reaches from "
        "{} UTC of 2026-06-01. The report will be here soon after {}.".format(*until)
    )
    assert say_missing(first_s, first_s + 3600 + 300) == ""


def test_short_record_is_told_without_words_of_the_command(tmp_path):
    with pytest.raises(NotYet, match=r"one hour.* Nothing is recorded yet.* within 70 minutes of the first tick"):
        page_of_record(tmp_path)
    write(tmp_path / "record", records(20))
    with pytest.raises(NotYet, match="soon after 09:00") as raised:
        page_of_record(tmp_path / "record")
    assert "--" not in str(raised.value) and str(tmp_path) not in str(raised.value)


@pytest.mark.parametrize(
    ("most_mib", "takes", "said"),
    [(40, FILE, "more than the 40 MiB of memory"), (768, f"{FILE}/x", "the log of the daemon has the reason")],
    ids=["memory", "file"],
)
def test_reason_is_told_when_no_page_can_be_made(most_mib, takes, said, tmp_path):
    """The page cannot be written where a folder has its name."""
    write(tmp_path / "record", spread())
    if takes != FILE:
        (tmp_path / "record" / takes).mkdir(parents=True)
    with pytest.raises(Unavailable, match=said) as raised:
        page_of_record(tmp_path / "record", most_mib << 20)
    assert "--" not in str(raised.value)
