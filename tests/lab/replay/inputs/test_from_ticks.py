import gzip
import json
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from autoscaler.core.model.published import VERSION
from autoscaler.lab.replay.inputs.from_history import count_replicas, to_trace
from autoscaler.lab.replay.inputs.from_ticks import TicksError, read

START_S = datetime(2026, 3, 1, 8, tzinfo=UTC).timestamp()


def line(second: float, **changes: object) -> dict[str, object]:
    inputs = {
        "running": 4.0,
        "waiting": 0.0,
        "gateway_waiting": None,
        "finished_per_s": 2.0,
        "first_tokens_per_s": 2.0,
        "prompt_tokens_per_s": 600.0,
        "generation_tokens_per_s": 160.0,
    }
    made = {
        "time": datetime.fromtimestamp(START_S + second, UTC).isoformat().replace("+00:00", "Z"),
        "workload": "team/llama",
        "ready": 2,
        "inputs": inputs,
    }
    return {**made, **changes}


def write(path: Path, *lines: object) -> Path:
    file = path / "ticks.jsonl"
    file.write_text("".join(f"{each if isinstance(each, str) else json.dumps(each)}\n" for each in lines))
    return file


def test_rates_become_requests_and_tokens(tmp_path: Path) -> None:
    past = read(write(tmp_path, *(line(15.0 * tick) for tick in range(241))), "team/llama")
    assert np.nansum(past.arrivals) == pytest.approx(7200)
    assert past.pods.tolist() == [2.0] * 240
    trace = to_trace(past, "team/llama", seed=1)
    assert trace.prompt_tokens.mean() == pytest.approx(300, rel=0.02)
    assert trace.output_tokens.mean() == pytest.approx(80, rel=0.02)
    assert past.problems == ()


def test_other_workloads_failed_ticks_and_times_are_skipped(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        line(0),
        {"time": "2026-03-01T08:00:05Z", "error": "no answer"},
        line(15, workload="team/other", inputs="nonsense"),
        line(15),
        line(30),
        line(9000),
    )
    past = read(file, "team/llama", START_S, START_S + 60)
    assert past.duration_s == 30.0


UNKNOWN = dict.fromkeys(line(0)["inputs"])  # type: ignore[call-overload]


def rated(second: float, per_s: float, **changes: object) -> dict[str, object]:
    tokens = {"prompt_tokens_per_s": 300 * per_s, "generation_tokens_per_s": 80 * per_s}
    inputs = {"running": 4.0, "waiting": 0.0, "finished_per_s": per_s, "first_tokens_per_s": per_s, **tokens}
    return line(second, inputs=inputs | changes)


def test_pause_has_requests_only_in_the_next_rate_window(tmp_path: Path) -> None:
    before = [rated(5.0 * tick, 0.5) for tick in range(121)]
    after = [rated(36_600 + 5.0 * tick, 10.0) for tick in range(121)]
    past = read(write(tmp_path, *before, *after), "team/llama")
    assert np.nansum(past.arrivals) == pytest.approx(0.5 * 600 + 10 * (60 + 600))
    assert np.nansum(past.arrivals[: 36_540 // 5]) == pytest.approx(0.5 * 600)
    counts = count_replicas(past)
    assert counts[:120].tolist() == [2] * 120
    assert not counts[120 : 36_540 // 5].any()
    assert counts[36_540 // 5 :].tolist() == [2] * 132
    assert past.problems == (
        "for 36,000 s no tick tells a rate: the rates of the next tick count for the last 60 s before it, and "
        "earlier in such a gap no request and no replica is assumed",
    )


def test_gap_within_the_rate_window_is_filled_and_noted(tmp_path: Path) -> None:
    seconds = [*range(0, 40, 2), *range(78, 120, 2)]
    past = read(write(tmp_path, *(line(second) for second in seconds)), "team/llama")
    assert np.nansum(past.arrivals) == pytest.approx(2 * 118)
    assert count_replicas(past).tolist() == [2] * 59
    assert [problem[:32] for problem in past.problems] == ["for 40 s no tick tells a rate: t"]


def test_held_requests_are_not_compared_across_a_gap(tmp_path: Path) -> None:
    before = [rated(5.0 * tick, 1.0, running=100.0) for tick in range(13)]
    after = [rated(3600 + 5.0 * tick, 1.0, running=held) for tick, held in enumerate([10.0] * 6 + [15.0] * 7)]
    past = read(write(tmp_path, *before, *after), "team/llama")
    assert np.nansum(past.arrivals) == pytest.approx(60 + 60 + 60 + 5)


def test_ticks_without_a_rate_are_a_gap(tmp_path: Path) -> None:
    """No pod could be scraped for an hour, but the two replicas existed."""
    lines = [rated(5.0 * tick, 5.0) if not 360 <= tick < 1080 else line(5.0 * tick) for tick in range(1440)]
    for each in lines[360:1080]:
        each["inputs"] = UNKNOWN
    past = read(write(tmp_path, *lines), "team/llama")
    assert np.nansum(past.arrivals) == pytest.approx(5 * (1795 + 60 + 1795))
    assert np.isnan(past.arrivals).sum() == (3605 - 60) / 5
    assert [problem[:36] for problem in past.problems] == ["for 3,605 s no tick tells a rate: th"]


def test_missing_rate_without_replicas_is_no_gap(tmp_path: Path) -> None:
    asleep = [line(15.0 * tick, inputs=UNKNOWN, ready=0) for tick in range(11, 21)]
    past = read(write(tmp_path, *(line(15.0 * tick) for tick in range(11)), *asleep), "team/llama")
    assert np.nansum(past.arrivals) == pytest.approx(300)
    assert past.duration_s == 300 and not np.isnan(past.pods).any()
    assert count_replicas(past).tolist() == [2] * 10 + [1] + [0] * 9
    assert past.problems == ()


def test_file_without_any_rate_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path, *(line(15.0 * tick, inputs=UNKNOWN) for tick in range(20)))
    said = "0 ticks of workload team/llama in the interval, besides 20 that tell no rate, at least 2 are needed"
    with pytest.raises(TicksError, match=said):
        read(file, "team/llama")


def test_unknown_ready_count_keeps_the_last_one_and_is_noted(tmp_path: Path) -> None:
    known = [None, 3, None, None, 1, None]
    past = read(write(tmp_path, *(line(15.0 * tick, ready=each) for tick, each in enumerate(known))), "team/llama")
    assert past.pods.tolist() == [3, 3, 3, 2, 1]
    assert past.problems == ("4 ticks do not tell `ready`: as many replicas as at the last tick that does",)


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_lines_of_another_version_are_refused(tmp_path: Path, version: object) -> None:
    file = write(tmp_path, line(0, version=VERSION), line(15, version=version))
    with pytest.raises(TicksError, match=rf"line 2: version is {version!r}; allowed: {VERSION}"):
        read(file, "team/llama")


def test_file_without_any_ready_count_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path, *(line(15.0 * tick, ready=None) for tick in range(20)))
    said = r"ticks\.jsonl: `ready` is null in all 20 ticks of workload team/llama; at least one must tell the replicas"
    with pytest.raises(TicksError, match=said):
        read(file, "team/llama")


def test_two_workloads_of_one_name_are_not_mixed(tmp_path: Path) -> None:
    both = (line(0, kind="Deployment"), line(0, kind="StatefulSet", ready=9))
    file = write(tmp_path, line(0), *both, line(15), line(30))
    said = "line 3: kind is 'StatefulSet' and that of a tick before is 'Deployment'; all ticks of workload team/llama"
    with pytest.raises(TicksError, match=said):
        read(file, "team/llama")
    assert read(file, "team/llama", START_S + 1).duration_s == 15.0


def test_tick_with_a_missed_scrape_adds_no_requests(tmp_path: Path) -> None:
    held = [100.0, 100.0, 50.0, 100.0, 100.0]
    past = read(write(tmp_path, *(rated(5.0 * n, 1.0, running=each) for n, each in enumerate(held))), "team/llama")
    assert np.nansum(past.arrivals) == pytest.approx(20)


@pytest.mark.parametrize(("per_s", "tick_s"), [(0.05, 5), (0.3, 5), (1.0, 15)])
def test_all_requests_of_a_quiet_service_are_found(tmp_path: Path, per_s: float, tick_s: int) -> None:
    """Held requests are instantaneous, while the rate of finished ones is smeared over the last minute."""
    rng = np.random.default_rng(1)
    lasted_s = 14_400
    came = np.sort(rng.random(rng.poisson(per_s * lasted_s)) * lasted_s)
    ended = np.sort(came + rng.exponential(20, len(came)))
    lines = []
    for second in range(60, lasted_s, tick_s):
        now = second - second % 15
        here, gone, before = np.searchsorted(came, now), *np.searchsorted(ended, (now, now - 60))
        lines.append(rated(second, (gone - before) / 60, running=float(here - gone)))
    past = read(write(tmp_path, *lines), "team/llama")
    assert np.nansum(past.arrivals) == pytest.approx((came > 60).sum(), rel=0.01)


def test_truncated_file_is_read_up_to_its_last_whole_line(tmp_path: Path) -> None:
    file = write(tmp_path, line(0), line(15))
    file.write_text(file.read_text() + '{"time": "2026-03-01T08:')
    assert read(file, "team/llama").duration_s == 15.0


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["{"], "line 2: not JSON"),
        (["[]"], "line 2: not a mapping"),
        ([line(15, time="yesterday")], "line 2: time is 'yesterday'"),
        ([line(15, time="9" * 5000)], "line 2: time is '9{39}; it must look like"),
        ([line(15, time="2026-03-01T08:00:15")], "line 2: time is .* without a time zone; it must look like"),
        ([line(-15)], "line 2: time is .* must not be before"),
        ([line(15, inputs=None)], "line 2: no inputs"),
        ([line(15, ready="two")], "line 2: ready is 'two'"),
        ([line(15, inputs={"running": -1})], "line 2: inputs.running is -1"),
        (
            [line(15, inputs={"running": 10**400})],
            "line 2: inputs.running is 1000.*; it must be a number from 0 to 1e.09",
        ),
        (
            [line(15, inputs={"running": 1e300})],
            "line 2: inputs.running is 1e.300; it must be a number from 0 to 1e.09",
        ),
        (["[" * 100_000], "line 2: not JSON"),
        ([line(15, ready=1e9)], r"line 2: ready is 1000000000.0; it must be a number from 0 to 100000, or null"),
        ([], "1 tick of workload team/llama in the interval, at least 2 are needed; other workloads: none"),
        (
            [line(15, workload="team/lama"), line(15, workload="a\x1b[2J"), line(15, workload=7)],
            r"did you mean team/lama\? 1 tick .*; other workloads: a\\x1b\[2J, team/lama",
        ),
    ],
)
def test_invalid_line_is_named_with_its_error(tmp_path: Path, wrong: list[object], said: str) -> None:
    file = write(tmp_path, line(0), *wrong)
    with pytest.raises(TicksError, match=said) as raised:
        read(file, "team/llama")
    assert str(raised.value).startswith(str(file))


def test_ticks_outside_the_interval_are_noted_with_their_times(tmp_path: Path) -> None:
    file = write(tmp_path, *(line(15.0 * tick) for tick in range(20)))
    said = (
        "0 ticks .* at least 2 are needed; beside it from 2026-03-01T08:00:00Z to 2026-03-01T08:04:45Z; other workloads"
    )
    with pytest.raises(TicksError, match=said):
        read(file, "team/llama", START_S + 86_400)


def test_compressed_ticks_are_read_and_truncation_is_located(tmp_path: Path) -> None:
    file = write(tmp_path, *(line(15.0 * tick) for tick in range(200)))
    whole, packed = read(file, "team/llama"), tmp_path / "ticks.jsonl.gz"
    packed.write_bytes(gzip.compress(file.read_bytes()))
    assert read(packed, "team/llama").duration_s == whole.duration_s
    packed.write_bytes(gzip.compress(file.read_bytes())[:600])
    with pytest.raises(TicksError, match=r"ticks\.jsonl\.gz, line \d+: the gzip data ends early or is damaged"):
        read(packed, "team/llama")


def test_tick_of_another_century_is_named_with_its_line(tmp_path: Path) -> None:
    file = write(tmp_path, line(-START_S), *(line(15.0 * tick) for tick in range(20)))
    said = r"line 2: time is 2026-03-01T08:00:00Z and that of the tick before is 1970-01-01T00:00:00Z: .* 118,156,819 s"
    with pytest.raises(TicksError, match=said):
        read(file, "team/llama")
    assert read(file, "team/llama", START_S).duration_s == 285.0


def test_blank_lines_are_skipped(tmp_path: Path) -> None:
    assert read(write(tmp_path, line(0), "", line(15), " "), "team/llama").duration_s == 15.0


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TicksError, match="No such file"):
        read(tmp_path / "none", "team/llama")


@pytest.mark.parametrize("packed", [False, True])
def test_reading_a_file_reports_progress(tmp_path: Path, packed: bool) -> None:
    file = write(tmp_path, *(line(float(second)) for second in range(2500)))
    if packed:
        file.write_bytes(gzip.compress(file.read_bytes()))
    shares: list[float] = []
    read(file, "team/llama", progress=shares.append)
    assert len(shares) == 2
    assert shares == sorted(shares)
    assert 0.3 < shares[0] <= 1 and shares[-1] <= 1
