"""The report that a daemon shows of its record: made by a process of its own, within limits."""

import pytest

from autoscaler.app.report_page import FILE, page_of_record
from autoscaler.ports import Unavailable
from tests.adapters.record.test_record import write
from tests.adapters.record.ticks import records
from tests.report.test_recorded import spread

pytestmark = pytest.mark.slow


def test_page_is_left_in_the_folder_of_the_record(tmp_path):
    write(tmp_path / "record", spread())
    text = page_of_record(tmp_path / "record")
    assert "ns/w0" in text and (tmp_path / "record" / FILE).read_text() == text


@pytest.mark.parametrize(
    ("ticks", "most_mib", "said"),
    [(20, 768, "needed: at least an hour"), (80, 40, "the report needs more than 40 MiB")],
    ids=["short", "large"],
)
def test_reason_is_told_when_no_page_can_be_made(ticks, most_mib, said, tmp_path):
    write(tmp_path / "record", spread() if ticks == 80 else records(ticks))
    with pytest.raises(Unavailable, match=said):
        page_of_record(tmp_path / "record", most_mib << 20)
