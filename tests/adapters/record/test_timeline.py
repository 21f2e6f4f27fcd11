"""The past of a workload, as the page draws it, has what the ticks had."""

import pytest

from autoscaler.adapters.record.rows import TRAFFIC_S
from autoscaler.adapters.record.timeline import POINTS, read_timeline
from autoscaler.ports import Unavailable
from tests.adapters.record.test_record import write
from tests.adapters.record.ticks import PERIOD_S, START_S, at, records

pytestmark = pytest.mark.slow


def test_points_hold_what_the_last_tick_before_them_had(tmp_path):
    ticks = records(80)
    write(tmp_path / "record", ticks)
    timeline = read_timeline(tmp_path / "record", "ns", "w0", "", 24)
    history = timeline["history"]
    assert (timeline["from_s"], timeline["until_s"]) == (ticks[0].wall_s, ticks[-1].wall_s)
    assert history["wall_s"][-1] >= ticks[-1].wall_s
    for place in range(0, len(history["wall_s"]), 50):
        number = min(int((history["wall_s"][place] - START_S) // PERIOD_S), 79)
        assert history["ready"][place] == ticks[number].decision.observation.ready[0]
        assert history["wanted"][place] == ticks[number].decision.replicas[0]
    assert max(history["running"]) > 0
    changed = [each.change for tick in ticks for each in tick.outcomes if each.change.ref.name == "w0"]
    assert [change["reason"] for change in timeline["changes"]] == [change.reason for change in changed]


def test_points_are_bounded_whatever_the_span(tmp_path):
    ticks = [at(tick, START_S + 3 * 3600.0 * number) for number, tick in enumerate(records(40))]
    write(tmp_path / "record", ticks)
    whole = read_timeline(tmp_path / "record", "ns", "w1", "Deployment", 8784)["history"]
    assert {len(values) for values in whole.values()} == {len(whole["wall_s"])}
    assert POINTS / 2 < len(whole["wall_s"]) <= POINTS
    day = read_timeline(tmp_path / "record", "ns", "w1", "Deployment", 24)["history"]["wall_s"]
    assert day[0] >= ticks[-1].wall_s - 86_400


def test_hours_without_ticks_are_unknown(tmp_path):
    """The daemon was stopped for six hours: whether replicas ran then, and requests waited, nobody saw."""
    ticks = [at(tick, tick.wall_s + (6 * 3600.0 if number >= 40 else 0.0)) for number, tick in enumerate(records(80))]
    write(tmp_path / "record", ticks)
    history = read_timeline(tmp_path / "record", "ns", "w0", "", 24)["history"]
    wall_s = history.pop("wall_s")
    stopped = [ticks[39].wall_s + TRAFFIC_S < at_s < ticks[40].wall_s for at_s in wall_s]
    assert sum(stopped) > 300
    for name, values in history.items():
        assert [value is None for value in values] == stopped, name


@pytest.mark.parametrize(("name", "kind"), [("w7", ""), ("w0", "StatefulSet")])
def test_an_unknown_workload_is_named(tmp_path, name, kind):
    write(tmp_path / "record", records(4))
    with pytest.raises(LookupError, match=f"ns/{name} is not in the record"):
        read_timeline(tmp_path / "record", "ns", name, kind, 24)


def test_an_empty_record_is_unavailable(tmp_path):
    (tmp_path / "record").mkdir()
    with pytest.raises(Unavailable, match="no tick is recorded in it"):
        read_timeline(tmp_path / "record", "ns", "w0", "", 24)
