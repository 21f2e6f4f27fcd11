"""`simulate fit` as one types it: profiles that can be simulated, and none where they could not be."""

import gzip
import json
import re
from pathlib import Path

import pytest

from tests.cli.study import RECORDING, invoke

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("kernel")]

CACHED = "vllm:prompt_tokens_cached_total"


def test_fitted_profile_can_be_simulated(trace: Path, tmp_path: Path) -> None:
    file = tmp_path / "tiny.json"
    result = invoke("simulate", "fit", RECORDING, "--out", file)
    assert result.exit_code == 0, result.output
    assert "busy intervals; the profile explains them within" in result.output
    said = " ".join(result.output.split())
    assert "max_batched_tokens is a guess, 2048 (vLLM's default on most GPUs): no step had more than 256 tokens" in said
    out = tmp_path / "proof.json"
    result = invoke("simulate", "--trace", trace, "--profile", file, "--jobs", 1, "--json", out)
    assert result.exit_code == 0, result.output
    assert json.loads(out.read_text())["profile"] == "tiny"


def test_token_budget_can_be_given(tmp_path: Path) -> None:
    file = tmp_path / "tiny.json"
    result = invoke("simulate", "fit", RECORDING, "--out", file, "--max-num-batched-tokens", 512)
    assert (result.exit_code, "guess" in result.output) == (0, False)
    assert json.loads(file.read_text())["max_batched_tokens"] == 512


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            ("iteration_tokens_total_bucket", "other_bucket"),
            "2048 (vLLM's default on most GPUs): the recording has no buckets",
        ),
        (
            ('"+Inf",model_name="tiny"} 49', '"+Inf",model_name="tiny"} 99'),
            "8192 (vLLM's default on the largest GPUs): some steps had more tokens than",
        ),
    ],
)
def test_fit_explains_the_guessed_token_budget(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    recording = tmp_path / "run.jsonl"
    recording.write_text(
        gzip.decompress(RECORDING.read_bytes()).decode().replace(*(json.dumps(c)[1:-1] for c in change))
    )
    result = invoke("simulate", "fit", recording, "--out", tmp_path / "tiny.json")
    assert f"max_batched_tokens is a guess, {said}" in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--gpus", "nan"), "nan is not in the range 0<x<=1024"),
        (("--gpus", "0.0001"), "the profile: gpus is 0.0001; it must be a number from 0.001 to 1,024"),
        (("--max-num-seqs", "1"), "max_num_seqs is 1, but 4 requests ran at once; allowed: 4 or more"),
        (("--max-num-batched-tokens", "4"), "max_batched_tokens is 4; it must exceed max_num_seqs (4)"),
        (("--max-num-batched-tokens", "1"), "1 is not in the range 2<=x<=200000000"),
        (("--max-num-seqs", "8192"), "8192 is not in the range 1<=x<=8191"),
    ],
)
def test_fit_writes_no_profile_that_cannot_be_simulated(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    file = tmp_path / "tiny.json"
    result = invoke("simulate", "fit", RECORDING, "--out", file, *arguments)
    assert result.exit_code == 2
    assert said in result.output
    assert not file.exists()


def test_fit_fails_when_the_load_is_too_uniform(tmp_path: Path) -> None:
    recording, file = tmp_path / "uniform.jsonl", tmp_path / "tiny.json"
    recording.write_bytes(b"".join(gzip.decompress(RECORDING.read_bytes()).splitlines(keepends=True)[:22]))
    result = invoke("simulate", "fit", recording, "--out", file)
    assert result.exit_code == 2
    assert f"error: {recording}: the load was too uniform to tell how long a step takes" in result.output
    assert not file.exists()


def test_fit_warns_or_fails_when_scrapes_are_far_apart(tmp_path: Path) -> None:
    scrapes = gzip.decompress(RECORDING.read_bytes()).splitlines(keepends=True)
    recording, file = tmp_path / "thin.jsonl", tmp_path / "tiny.json"
    recording.write_bytes(b"".join(scrapes[::10]))
    result = invoke("simulate", "fit", recording, "--out", file)
    assert result.exit_code == 2
    assert f"error: {recording}: busy scrapes are 10 s apart; allowed: at most 5 s" in result.output
    assert not file.exists()
    recording.write_bytes(b"".join(scrapes[1::5]))
    result = invoke("simulate", "fit", recording, "--out", file)
    assert result.exit_code == 0, result.output
    said = " ".join(result.stderr.split())
    assert "warning: busy scrapes are 5 s apart: single constants are unsure" in said
    assert "warning: kv_token_s is 0: the recording does not tell it from the other constants" in said
    assert file.exists()


def test_fit_warns_of_prefix_cache_hits(tmp_path: Path) -> None:
    recording, scrapes = tmp_path / "hits.jsonl", []
    for line in gzip.decompress(RECORDING.read_bytes()).splitlines():
        scrape = json.loads(line)
        scrape["text"] = re.sub(
            r"vllm:prompt_tokens_total(\{.*\}) (.*)", _with_half_of_them_cached, scrape["text"].replace(CACHED, "other")
        )
        scrapes.append(json.dumps(scrape) + "\n")
    recording.write_text("".join(scrapes))
    result = invoke("simulate", "fit", recording, "--out", tmp_path / "tiny.json")
    assert result.exit_code == 0, result.output
    assert "warning: 50% of the prompt tokens came from the prefix cache" in " ".join(result.stderr.split())


def _with_half_of_them_cached(found: re.Match[str]) -> str:
    return f"{found[0]}\n{CACHED}{found[1]} {float(found[2]) / 2}"


def test_fit_writes_no_profile_when_the_recording_is_invalid(tmp_path: Path) -> None:
    recording, file = tmp_path / "bad.jsonl", tmp_path / "tiny.json"
    recording.write_text('{"t": 1}\n')
    result = invoke("simulate", "fit", recording, "--out", file)
    assert result.exit_code == 2
    assert f"error: {recording}, line 1" in result.output
    assert not file.exists()


def test_simulate_options_before_fit_are_refused(tmp_path: Path) -> None:
    result = invoke("simulate", "--gpus", "3", "fit", RECORDING, "--out", tmp_path / "tiny.json")
    assert (result.exit_code, "--gpus has no effect before fit" in result.output) == (2, True)
