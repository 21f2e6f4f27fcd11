"""How single values are written, read, bounded and shown."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.config.values import (
    NAME,
    Cron,
    Duration,
    Integer,
    Number,
    OneOf,
    Quantity,
    Share,
    StepKind,
    StepLimit,
    Switch,
    Text,
    TimeZone,
    ValueKind,
    read_duration,
    show_duration,
)


@pytest.mark.parametrize(
    ("text", "duration_s"),
    [("150ms", 0.15), ("30s", 30), ("5m", 300), ("1h", 3600), ("1h30m", 5400), ("12.5ms", 0.0125), ("0s", 0)],
)
def test_durations_are_read_with_their_unit(text: str, duration_s: float):
    assert read_duration(text) == duration_s


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("150", "a duration without a unit"),
        ("0", "a duration without a unit"),
        ("-5", "a duration without a unit"),
        ("", "not a duration"),
        ("-5s", "not a duration"),
        ("5 s", "not a duration"),
        ("5d", "not a duration"),
        ("1h 30m", "not a duration"),
        ("٣s", "not a duration"),
        ("1e3s", "not a duration"),
        ("5s\n", "not a duration"),
        ("30m1h", "units out of order"),
        ("5s5s", "units out of order"),
        ("0.0001ms", "finer than a microsecond"),
    ],
)
def test_an_invalid_duration_is_refused(text: str, problem: str):
    with pytest.raises(ValueError, match=f"^{problem}$"):
        read_duration(text)


@given(st.integers(0, 400 * 86_400 * 1_000_000))
def test_durations_round_trip(microseconds: int):
    duration_s = microseconds / 1_000_000
    assert read_duration(show_duration(duration_s)) == duration_s


@given(st.text(alphabet="0123456789.hms -+", max_size=12))
def test_any_text_is_a_duration_or_a_value_error(text: str):
    try:
        duration_s = read_duration(text)
    except ValueError:
        return
    assert math.isfinite(duration_s)
    assert duration_s >= 0


@pytest.mark.parametrize(
    ("kind", "value", "problem"),
    [
        (Duration(1.0, 60.0), "500ms", "too small"),
        (Duration(1.0, 60.0), "2m", "too large"),
        (Duration(), 30, "a duration without a unit"),
        (Duration(), True, "not a duration"),
        (Duration(), "auto", "not a duration"),
        (Share(), 1.5, "too large"),
        (Share(), "101%", "too large"),
        (Share(), -0.1, "negative"),
        (Share(), "half", "not a number"),
        (Share(), math.nan, "not a finite number"),
        (Number(0.01, 10), 0, "too small"),
        (Number(0.01, 10), 10**400, "not a finite number"),
        (Number(0.01, 10), True, "not a number"),
        (Integer(0, 10), -1, "negative"),
        (Integer(0, 10), 2.0, "not a whole number"),
        (Integer(0, 10), "2", "text, for it is in quotes"),
        (Number(0.01, 10), "-0.5", "text, for it is in quotes"),
        (StepKind(), "4", "text, for it is in quotes"),
        (StepKind(), "0%", "too small"),
        (StepKind(most_fraction=1.0), "101%", "too large"),
        (StepKind(), 0, "too small"),
        (StepKind(), 0.5, "neither a percentage nor a whole number"),
        (Switch(), "true", "text, for it is in quotes"),
        (Switch(), "yes", "neither true nor false"),
        (Switch(), 1, "neither true nor false"),
        (Text(3), "abcd", "4 characters"),
        (Text(3), " ", "empty"),
        (Text(3), "a\nb", "characters that cannot be printed"),
        (Text(9, lines=True), "a\x1b[0m", "characters that cannot be printed"),
        (NAME, "Real_Time", "not a name"),
        (NAME, "a" * 64, "not a name"),
        (NAME, "-a", "not a name"),
        (OneOf(("a", "b")), "c", "unknown"),
        (OneOf(("a", "b")), ["a"], "unknown"),
        (Cron(), "nonsense", "a cron expression of 1 field"),
        (Cron(), "* * * * * *", "a cron expression of 6 fields"),
        (Cron(), "61 * * * *", "bad minute in a cron expression"),
        (Cron(), "0 0 * * mon-fry", "bad day-of-week in a cron expression"),
        (Cron(), "0 0 30 2 *", "bad day-of-month in a cron expression"),
        (Cron(), "0 " * 200, "not a cron expression"),
        (Cron(), 5, "not a cron expression"),
        (TimeZone(), "Europe/Berlim", r"did you mean Europe/Berlin\? unknown time zone"),
        (TimeZone(), "Europe", r"(did you mean .*\? )?unknown time zone"),
        (TimeZone(), "../../etc/passwd", "unknown time zone"),
        (TimeZone(), "/etc/localtime", r"(did you mean .*\? )?unknown time zone"),
        (TimeZone(), "a\0b", "unknown time zone"),
        (TimeZone(), "\ud800", "unknown time zone"),
        (TimeZone(), "", "not a time zone"),
    ],
)
def test_values_out_of_their_kind_are_refused_by_name(kind: ValueKind, value: object, problem: str):
    with pytest.raises(ValueError, match=f"^{problem}"):
        kind.read(value)
    assert kind.allowed


@pytest.mark.parametrize(
    ("kind", "written", "value"),
    [
        (Duration(), "1h30m", 5400.0),
        (Duration(auto=True), "auto", None),
        (Share(), "99.9%", 0.999),
        (Share(), 1, 1.0),
        (StepKind(), "25%", StepLimit(fraction=0.25)),
        (StepKind(), "12.5%", StepLimit(fraction=0.125)),
        (StepKind(), 4, StepLimit(replicas=4)),
        (Switch(), True, True),
        (Text(20, lines=True), "sum(x)\n  > 0", "sum(x)\n  > 0"),
        (NAME, "real-time2", "real-time2"),
        (Cron(), "30  8 * * mon-fri", "30 8 * * mon-fri"),
        (TimeZone(), "America/Argentina/Ushuaia", "America/Argentina/Ushuaia"),
    ],
)
def test_a_shown_value_reads_as_the_same_value(kind: ValueKind, written: object, value: object):
    assert kind.read(written) == value
    assert kind.read(kind.show(value)) == value


@given(st.text(alphabet="0123456789*/,-#LWlmonfri ", max_size=30))
def test_any_text_is_a_cron_expression_or_a_value_error(text: str):
    try:
        assert len(Cron().read(text).split()) == 5
    except ValueError as error:
        assert "cron expression" in str(error)


@given(st.tuples(*[st.text(alphabet="0123456789*/,-#LW", min_size=1, max_size=8)] * 5))
def test_any_five_fields_are_a_cron_expression_or_a_value_error(fields: tuple[str, ...]):
    try:
        assert Cron().read(" ".join(fields)) == " ".join(fields)
    except ValueError as error:
        assert "cron expression" in str(error)


@pytest.mark.parametrize(
    ("written", "value"), [(0, 0), ("0", 0), (0.1, 0.1), ("0.05", 0.05), ("50m", 0.05), ("100u", 1e-4), (".5", 0.5)]
)
def test_a_quantity_is_read_as_kubernetes_writes_it(written: object, value: float):
    assert Quantity(10).read(written) == pytest.approx(value)


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        (True, "not a"),
        ("", "not a"),
        ("1e3", "not a"),
        ("-1", "not a"),
        (math.nan, "not a"),
        ([1], "not a"),
        (11, "large"),
    ],
)
def test_a_quantity_out_of_bounds_is_refused(written: object, problem: str):
    with pytest.raises(ValueError, match=problem):
        Quantity(10).read(written)
