import gzip
import json
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from autoscaler.sim.study.past import replicas, to_trace
from autoscaler.sim.study.ticks import TicksError, read

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


def test_other_workloads_failed_ticks_and_other_times_are_passed_over(tmp_path: Path) -> None:
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


def test_a_pause_of_the_recording_is_a_hole_and_is_told(tmp_path: Path) -> None:
    past = read(write(tmp_path, line(0), line(15), line(30), line(1830), line(1845)), "team/llama")
    assert past.problems == (
        "for 1,800 s there is no tick: what counters grew meanwhile is spread evenly over as many replicas as before; "
        "where they did not grow, no replica and no request is assumed",
    )
    assert replicas(past).tolist() == [2] * 123


def test_a_file_that_was_cut_off_is_read_up_to_its_last_whole_line(tmp_path: Path) -> None:
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
            r"other workloads: a\\x1b\[2J, team/lama \(did you mean team/lama\?\)",
        ),
    ],
)
def test_a_bad_line_is_named_with_what_is_wrong(tmp_path: Path, wrong: list[object], said: str) -> None:
    file = write(tmp_path, line(0), *wrong)
    with pytest.raises(TicksError, match=said) as raised:
        read(file, "team/llama")
    assert str(raised.value).startswith(str(file))


def test_ticks_beside_the_interval_are_told_with_when_they_were(tmp_path: Path) -> None:
    file = write(tmp_path, *(line(15.0 * tick) for tick in range(20)))
    said = (
        "0 ticks .* at least 2 are needed; beside it from 2026-03-01T08:00:00Z to 2026-03-01T08:04:45Z; other workloads"
    )
    with pytest.raises(TicksError, match=said):
        read(file, "team/llama", START_S + 86_400)


def test_packed_ticks_are_read_and_where_they_break_off_is_told(tmp_path: Path) -> None:
    file = write(tmp_path, *(line(15.0 * tick) for tick in range(200)))
    whole, packed = read(file, "team/llama"), tmp_path / "ticks.jsonl.gz"
    packed.write_bytes(gzip.compress(file.read_bytes()))
    assert read(packed, "team/llama").duration_s == whole.duration_s
    packed.write_bytes(gzip.compress(file.read_bytes())[:600])
    with pytest.raises(TicksError, match=r"ticks\.jsonl\.gz, line \d+: the gzip data ends early or is damaged"):
        read(packed, "team/llama")


def test_a_tick_of_another_century_is_told_with_its_line(tmp_path: Path) -> None:
    file = write(tmp_path, line(-START_S), *(line(15.0 * tick) for tick in range(20)))
    said = r"line 2: time is 2026-03-01T08:00:00Z and that of the tick before is 1970-01-01T00:00:00Z: .* 118,156,819 s"
    with pytest.raises(TicksError, match=said):
        read(file, "team/llama")
    assert read(file, "team/llama", START_S).duration_s == 285.0


def test_blank_lines_are_passed_over(tmp_path: Path) -> None:
    assert read(write(tmp_path, line(0), "", line(15), " "), "team/llama").duration_s == 15.0


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(TicksError, match="No such file"):
        read(tmp_path / "none", "team/llama")


@pytest.mark.parametrize("packed", [False, True])
def test_it_is_told_how_far_a_file_was_read(tmp_path: Path, packed: bool) -> None:
    file = write(tmp_path, *(line(float(second)) for second in range(2500)))
    if packed:
        file.write_bytes(gzip.compress(file.read_bytes()))
    shares: list[float] = []
    read(file, "team/llama", told=shares.append)
    assert len(shares) == 2
    assert shares == sorted(shares)
    assert 0.3 < shares[0] <= 1 and shares[-1] <= 1
