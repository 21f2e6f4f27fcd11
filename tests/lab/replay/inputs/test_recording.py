"""Reading of recordings: real ones, and broken ones."""

import gzip
import json
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from autoscaler.lab.replay.inputs.recording import RecordingError, read
from tests.lab.replay.vllm_recordings import RECORDED, packed, recording

TEXT = (RECORDED / "running.prom").read_text()


def line(at_s: float, text: str = TEXT) -> str:
    return json.dumps({"t": at_s, "text": text}) + "\n"


def test_the_recorded_series_becomes_columns() -> None:
    found = recording("load")
    assert len(found.time_s) == 101
    assert found.running.max() == 4
    assert found.waiting.max() == 32
    assert found.finished[-1] == found.first_tokens[-1] == 60
    assert found.steps[-1] > 6000
    assert (found.kv_cache_tokens, found.block_size, found.max_model_len) == (3072, 128, 2048)


def test_the_bucket_that_holds_every_step_is_found() -> None:
    assert recording("load").steps_within_tokens == 256
    assert recording("kv-bound").steps_within_tokens == 2048


@pytest.mark.parametrize(
    ("bucket", "edited", "expected"),
    [
        (r"vllm:iteration_tokens_total_bucket.*\n", "", None),  # no buckets
        (r'(vllm:iteration_tokens_total_bucket.*le="\+Inf".*\}) .*', r"\1 1e6", float("inf")),  # a step beyond the last
        (r"(vllm:iteration_tokens_total_bucket.*\}) .*", r"\1 0.0", None),  # no steps yet
    ],
)
def test_steps_can_lie_beyond_all_buckets(tmp_path: Path, bucket: str, edited: str, expected: float | None) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(line(1, re.sub(bucket, edited, TEXT)))
    assert read(path).steps_within_tokens == expected


def test_plain_and_compressed_files_read_alike(tmp_path: Path) -> None:
    plain = tmp_path / "run.jsonl"
    plain.write_text(line(1) + line(2))
    found, again = read(plain), read(packed(tmp_path / "run.jsonl.gz", line(1) + line(2)))
    assert found.running.tolist() == again.running.tolist() == [2.0, 2.0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it contains no scrape"),
        ("not json\n", 'line 1: not {"t": seconds, "text": metrics}'),
        ('{"t": 1}\n', "line 1: not"),
        (line(2) + line(2), "line 2: t is 2; it must be above that of the previous line"),
        (line(1, "vllm:num_requests_running 1\n"), "line 1: the metrics lack vllm:num_requests_waiting"),
        (line(1, TEXT.replace("vllm:num_requests_running{", "vllm:num_requests_running{{")), "line 1: "),
        (
            line(1) + line(2, (RECORDED / "dp2-saturated.prom").read_text()),
            "line 2: 2 engines; allowed: one (record each engine of a data-parallel server apart)",
        ),
        (
            line(1, re.sub(r"(vllm:num_requests_running\{.*\}) 2.0", r"\1 NaN", TEXT)),
            "line 1: vllm:num_requests_running is nan; it must",
        ),
        (line(1e290), "line 1: t is 1e+290; it must be a number from"),
        (line(10**400), "line 1: "),
        (line(1, re.sub(r"(vllm:num_requests_running\{.*\}) 2.0", rf"\1 {10**400}", TEXT)), "running is 1000000"),
        (line(1, re.sub(r"(vllm:num_requests_running\{.*\}) 2.0", r"\1 1e300", TEXT)), "running is 1e+300; it must"),
        (line(1, TEXT.replace('kv_cache_size_tokens="', 'kv_cache_size_tokens="' + "9" * 400)), "_info says 9999"),
        (line(1, TEXT.replace('kv_cache_size_tokens="', 'kv_cache_size_tokens="' + "9" * 5000)), "_info lacks"),
        (
            line(1, re.sub(r'(kv_cache_max_concurrency=)"[^"]*"', r'\1"0"', TEXT)),
            "3072 tokens in blocks of 128, for 0 of",
        ),
        ('{"t": 1, "text": "", "more": ' + "[" * 100_000 + "\n", 'line 1: not {"t": seconds, "text": metrics}'),
        (
            line(1, re.sub(r'(vllm:iteration_tokens_total_bucket.*)le="8.0"', r'\1le="many"', TEXT)),
            "line 1: vllm:iteration_tokens_total_bucket: le is 'many'; it must be a number",
        ),
        (line(1, TEXT.replace("kv_cache_size_tokens=", "unknown=")), "vllm:cache_config_info lacks"),
        (line(1, TEXT.replace('block_size="128"', 'block_size="9999"')), "vllm:cache_config_info says"),
    ],
)
def test_unusable_recording_is_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(text)
    with pytest.raises(RecordingError, match=re.escape(message)) as caught:
        read(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_recording_can_come_through_a_pipe(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(pack((line(1) + line(2)).encode()),))
    writer.start()
    found = read(path)
    writer.join()
    assert found.time_s.tolist() == [1.0, 2.0]


def test_reading_a_recording_reports_progress() -> None:
    shares: list[float] = []
    read(RECORDED / "kv-bound-timeseries.jsonl.gz", shares.append)
    assert len(shares) > 10
    assert shares == sorted(shares) and shares[0] > 0 and shares[-1] == 1


def test_blank_lines_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(line(1) + "\n" + line(2) + "\n")
    assert read(path).time_s.tolist() == [1.0, 2.0]
    path.write_text(line(1) + "\n" + line(1))
    with pytest.raises(RecordingError, match="line 3: t is 1"):
        read(path)


def test_cached_prompt_tokens_are_read(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    series = r"(vllm:prompt_tokens_cached_total\{.*\}) .*\n"
    path.write_text(line(1) + line(2, re.sub(series, r"\1 7.0\n", TEXT)))
    assert read(path).cached_prompt_tokens.tolist() == [0.0, 7.0]
    older = re.sub(series, "", TEXT)
    path.write_text(line(1, older))
    assert read(path).cached_prompt_tokens.tolist() == [0.0]
    hits = re.sub(r"(vllm:(external_)?prefix_cache_hits_total\{.*\}) .*\n", r"\1 7.0\n", older)
    path.write_text(line(1, hits))
    assert read(path).cached_prompt_tokens.tolist() == [14.0]


def test_decompression_stops_at_a_limit(tmp_path: Path) -> None:
    """The real limit is too large for a test."""
    path = packed(tmp_path / "run.jsonl.gz", line(1) + (" " * 999_999 + "\n") * 9)
    assert path.stat().st_size < 50_000
    with pytest.raises(RecordingError, match=r"run\.jsonl\.gz, line 4: more than 3,000,000 bytes, the limit"):
        read(path, most_bytes=3_000_000)


def test_gzip_that_ends_early_is_refused(tmp_path: Path) -> None:
    path = packed(tmp_path / "run.jsonl.gz", line(1) + line(2))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(RecordingError, match="the gzip data ends early, after line"):
        read(path)
    with pytest.raises(RecordingError, match=r"absent\.jsonl: No such file"):
        read(tmp_path / "absent.jsonl")
