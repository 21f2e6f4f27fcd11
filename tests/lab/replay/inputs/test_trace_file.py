"""Reading and transforming traces, and refusing hostile files."""

import gzip
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from autoscaler.lab.replay.case import Trace
from autoscaler.lab.replay.inputs.trace_file import TraceError, load
from autoscaler.lab.replay.inputs.transform import clip, scale, thin, truncate
from autoscaler.sim.engine.traffic import Lengths, Shape
from tests.lab.replay.synthetic import generate

HEADER = "arrival_s,prompt_tokens,output_tokens\n"
SHAPE = Shape(2.0, Lengths(200, 0.5, 2000), Lengths(100, 0.5, 1000))


def written(folder: Path, text: str | bytes, name: str = "day.csv") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_trace_lasts_until_the_second_after_its_last_arrival(tmp_path: Path) -> None:
    (trace,) = load(written(tmp_path, HEADER + "0.5,10,3\n0.5,11,4\r\n7.25,12,5\n\n"))
    assert trace.name == "day"
    assert trace.arrival_s.tolist() == [0.5, 0.5, 7.25]
    assert trace.prompt_tokens.tolist() == [10, 11, 12]
    assert trace.output_tokens.tolist() == [3, 4, 5]
    assert trace.output_tokens.dtype == np.int64
    assert trace.duration_s == 8.0


def test_gzip_is_recognised_by_content_and_columns_by_name(tmp_path: Path) -> None:
    text = 'user,"output_tokens",model,"prompt_tokens",arrival_s\nu1,3,b,10,0.5\n"u,2",4,"a",11,1\nu3,5,b,12,2\n'
    first, second = load(written(tmp_path, gzip.compress(text.encode()), "two.csv.gz"))
    assert (first.name, second.name) == ("two/a", "two/b")
    assert first.prompt_tokens.tolist() == [11]
    assert second.output_tokens.tolist() == [3, 5]
    assert first.duration_s == second.duration_s == 3.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEADER + "1,10,3\n0.5,10,3\n", "line 3: arrival_s is 0.5; it must not be below 1, that of the request before"),
        (HEADER + "1,-10,3\n", "line 2: prompt_tokens is -10; it must be a whole number from 1 to 100,000,000"),
        (HEADER + "1,10,0\n", "line 2: output_tokens is 0; it must be a whole number from 1"),
        (HEADER + "1,10,1.5\n", "line 2: output_tokens is 1.5; it must be a whole number"),
        (HEADER + "1,10,1e12\n", "line 2: output_tokens is 1000000000000; it must be a whole number"),
        (HEADER + "-1,10,3\n", "line 2: arrival_s is -1; it must be a number from 0 to"),
        (HEADER + "nan,10,3\n", "line 2: arrival_s is nan; it must be a number from 0 to"),
        (HEADER + "1,10,3\n\n2,ten,3\n", "line 4: prompt_tokens is 'ten'; it must be a number"),
        (HEADER + "1,10,3\n2,1_000,3\n", "line 3: prompt_tokens is '1_000'; it must be a number"),
        (HEADER + '1,10,3\n2,"1_000",3\n', "line 3: prompt_tokens is '1_000'; it must be a number"),
        (HEADER + "1,10,3\n2,١٠,3\n", "line 3: prompt_tokens is '١٠'; it must be a number"),
        (HEADER + '1,10,3\n2,"١٠",3\n', "line 3: prompt_tokens is '١٠'; it must be a number"),
        (
            HEADER + "1767225600,10,3\n",
            "it must be a number from 0 to 316,224,000, seconds from the start of the trace",
        ),
        (HEADER + "1,10,3\n2,10\n", "line 3: 2 fields, the header has 3: '2,10'"),
        (HEADER + "1,10,3\n2,10,3,9\n", "line 3: 4 fields, the header has 3"),
        (HEADER + '1,10,3\n2,"10,3\n', "line 3: unexpected end of data: '2,\"10,3'"),
        ("arrival_s,prompt_tokens\n1,10\n", "line 1: no column output_tokens; needed: arrival_s,prompt_tokens"),
        ("1,10,3\n2,10,3\n", "line 1: no column arrival_s, prompt_tokens, output_tokens; needed: "),
        ('arrival_s,"prompt_tokens,output_tokens\n1,10,3\n', "line 1: unexpected end of data"),
        (HEADER.replace("\n", ",arrival_s\n") + "1,10,3,1\n", "line 1: a column is named twice"),
        (HEADER.replace("\n", ",Model\n") + "1,10,3,a\n", "line 1: column 'Model': did you mean model?"),
        (HEADER.replace("\n", ",  MODEL \n") + "1,10,3,a\n", "line 1: column 'MODEL': did you mean model?"),
        (HEADER.replace("\n", ",models\n") + "1,10,3,a\n", "line 1: column 'models': did you mean model?"),
        (HEADER.replace("\n", ",nodel\n") + "1,10,3,a\n", "line 1: column 'nodel': did you mean model?"),
        (
            HEADER.replace("\n", ",model\n") + "1,10,3,a\x07b\n",
            "line 2: model is 'a\\x07b'; allowed: 1 to 200 printable",
        ),
        (HEADER, "it contains no request"),
        ("", "line 1: no column arrival_s"),
        (HEADER + "1" * 20_000, "line 2: longer than 10,000 bytes"),
        (HEADER.encode() + b"1,10,\xff\n", "line 2: not UTF-8"),
        (b"\x1f\x8bnot gzip at all", "the gzip data is damaged, near line 1"),
    ],
)
def test_unusable_file_is_refused_with_name_line_and_rule(tmp_path: Path, text: str | bytes, message: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(TraceError, match=re.escape(message)) as caught:
        load(path)
    assert str(path) in str(caught.value)


def test_truncated_gzip_is_refused_with_its_line(tmp_path: Path) -> None:
    numbers = np.random.default_rng(1).integers(1, 1000, (30_000, 2))
    rows = "".join(f"{at}.{prompt},{prompt},{output}\n" for at, (prompt, output) in enumerate(numbers.tolist()))
    whole = gzip.compress((HEADER + rows).encode())
    for name, content in (
        ("early", whole[: len(whole) * 9 // 10]),
        ("damaged", whole[: len(whole) * 9 // 10] + b"\xff" * (len(whole) // 10)),
    ):
        with pytest.raises(TraceError, match=name) as raised:
            load(written(tmp_path, content, "half.csv.gz"))
        line = int(str(raised.value).partition(" line ")[2].partition(":")[0])
        assert 24_000 < line < 28_500


def test_truncated_gzip_of_whole_lines_is_refused(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    rows = "".join(f"{second},{rng.integers(1, 9999)},{rng.integers(1, 9999)}\n" for second in range(50_000))
    whole = gzip.compress((HEADER + rows).encode())
    path = written(tmp_path, whole[: len(whole) // 2], "half.csv.gz")
    with pytest.raises(TraceError, match=r"half\.csv\.gz: the gzip data ends early, in line \d+"):
        load(path)


def test_endless_file_is_stopped_at_a_limit(tmp_path: Path) -> None:
    """The real limits are too large for a test."""
    path = written(tmp_path, gzip.compress(HEADER.encode() + b"1,1,1\n" * 500_000), "bomb.csv.gz")
    assert path.stat().st_size < 20_000
    with pytest.raises(TraceError, match=r"bomb\.csv\.gz, line \d+: more than 2,000,000 bytes, the limit"):
        load(path, most_bytes=2_000_000)
    with pytest.raises(TraceError, match=r"bomb\.csv\.gz, line 100002: more than 100,000 requests, the limit"):
        load(path, most_requests=100_000)


def test_a_plain_file_of_50_gb_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = written(tmp_path, HEADER + "1,10,3\n")
    os.truncate(path, 50_000_000_000)
    with pytest.raises(TraceError, match=r"day\.csv: 50,000,000,000 bytes; allowed: at most 4,000,000,000"):
        load(path)


def test_unknown_columns_are_ignored(tmp_path: Path) -> None:
    header = HEADER.replace("\n", ",model,Model,user,node,model_size\n")
    (trace,) = load(written(tmp_path, header + "1,10,3,a,b,c,d,e\n"))
    assert trace.name == "day/a"
    assert load(written(tmp_path, HEADER.replace("\n", ",user,node,model_size\n") + "1,10,3,c,d,e\n"))


@pytest.mark.slow
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_reading_a_trace_reports_progress(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    numbers = np.random.default_rng(1).integers(1, 9999, (200_000, 2)).tolist()
    rows = "".join(f"{at},{prompt},{output}\n" for at, (prompt, output) in enumerate(numbers))
    shares: list[float] = []
    load(written(tmp_path, pack((HEADER + rows).encode())), shares.append)
    assert len(shares) > 2
    assert shares == sorted(shares) and 0 < shares[0] < 1 and shares[-1] == 1


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_trace_can_come_through_a_pipe(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(pack(f"{HEADER}1,10,3\n".encode()),))
    writer.start()
    (trace,) = load(path)
    writer.join()
    assert trace.prompt_tokens.tolist() == [10]


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"absent\.csv: No such file"):
        load(tmp_path / "absent.csv")


def test_copies_multiply_minutes_and_smear_seconds() -> None:
    burst = Trace("burst", np.full(200, 300.0), np.ones(200, np.int64), np.ones(200, np.int64), 900.0)
    many = scale(burst, 8, seed=3)
    assert len(many.arrival_s) == 1600
    assert np.all(np.diff(many.arrival_s) >= 0)
    assert many.arrival_s.min() > 298
    assert many.arrival_s.max() < 362
    assert np.bincount(many.arrival_s.astype(int)).max() < 1000
    around = scale(Trace("end", np.array([899.0]), np.ones(1, np.int64), np.ones(1, np.int64), 900.0), 50, seed=3)
    assert np.all((around.arrival_s >= 0) & (around.arrival_s < 900))


def test_copies_of_a_day_do_not_burst_in_the_same_minute() -> None:
    burst = Trace("burst", np.full(200, 43_200.0), np.ones(200, np.int64), np.ones(200, np.int64), 86_400.0)
    many = scale(burst, 30, seed=3)
    assert np.bincount((many.arrival_s // 60).astype(int)).max() <= 1000
    assert np.bincount((many.arrival_s // 3600).astype(int)).max() >= 5800  # nor does the hour change


@pytest.mark.parametrize("factor", [0.25, 1.0, 2.5])
def test_scaled_trace_multiplies_requests_and_keeps_lengths(factor: float) -> None:
    trace = generate("made", SHAPE, 7200.0, seed=4)
    scaled = scale(trace, factor, seed=5)
    assert len(scaled.arrival_s) == pytest.approx(factor * len(trace.arrival_s), rel=0.03)
    assert np.all(np.diff(scaled.arrival_s) >= 0)
    assert scaled.prompt_tokens.mean() == pytest.approx(trace.prompt_tokens.mean(), rel=0.03)
    assert scaled.duration_s == trace.duration_s
    assert np.array_equal(scaled.arrival_s, scale(trace, factor, seed=5).arrival_s)


def test_clip_begins_at_zero_and_truncate_shortens_requests() -> None:
    trace = Trace("x", np.array([5.0, 15.0, 25.0]), np.array([10, 900, 2000]), np.array([5, 500, 7]), 30.0)
    part = clip(trace, 10.0, 20.0)
    assert (part.arrival_s.tolist(), part.prompt_tokens.tolist(), part.duration_s) == ([5.0], [900], 10.0)
    shorter, count = truncate(trace, 1000)
    assert count == 2
    assert shorter.prompt_tokens.tolist() == [10, 900, 999]
    assert shorter.output_tokens.tolist() == [5, 100, 1]


def test_invalid_transformations_are_refused() -> None:
    trace = generate("made", SHAPE, 60.0, seed=1)
    with pytest.raises(ValueError, match="factor is 0; it must be a number above 0"):
        scale(trace, 0.0, seed=1)
    with pytest.raises(ValueError, match=r"^made: \d+ requests x 1e\+09 are more than 50,000,000, the limit"):
        scale(trace, 1e9, seed=1)
    with pytest.raises(ValueError, match=r"share is 1\.5; it must be above 0 and at most 1"):
        thin(trace, 1.5, seed=1)
    with pytest.raises(ValueError, match=r"from 10 to 90 s: must be an interval within 0\.\.60 s"):
        clip(trace, 10.0, 90.0)
    with pytest.raises(ValueError, match="max_model_len is 1; it must be at least 2"):
        truncate(trace, 1)
