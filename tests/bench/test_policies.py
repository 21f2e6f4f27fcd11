"""The command `bench/studies/policies.py`: kept results, reruns, and refused options."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autoscaler.sim.engine.profile_file import write
from autoscaler.sim.engine.profiles import find_profile
from bench.studies import cases, policies, tables
from bench.studies.results import append_result, read_results

ROOT = Path(__file__).parents[2]
SMALL = ("--sizes", "1", "--cold-starts", "30", "--seeds", "1", "--against", "static", "--jobs", "1")


def write_trace(folder: Path, name: str = "steady.csv", every_s: float = 0.5) -> Path:
    rows = [f"{number * every_s:.1f},500,80" for number in range(240)]
    (folder / name).write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *rows, ""]))
    return folder


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    folder = tmp_path / "traces"
    folder.mkdir()
    return write_trace(folder)


def kept(out: Path) -> list[dict[str, object]]:
    """Return the keys and results of a folder; only truncated lines may be invalid."""
    return [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines() if line.endswith("}")]


def bench(traces: Path, out: Path, *more: str) -> int:
    return policies.main(["--traces", str(traces), "--out", str(out), *SMALL, *more])


@pytest.mark.slow
def test_case_reruns_only_when_an_option_changes_its_result(
    traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    tables = []
    for count, more in enumerate(
        [(), ("--max-requests", "30"), ("--against", "static", "keda-rps"), ("--planned",), ("--profile", "8b-h100-3g")]
    ):
        assert bench(traces, out, *more) == 0
        assert len(kept(out)) == count + 1
        tables.append(capsys.readouterr().out)
        assert tables[-1] == (out / "policies.md").read_text()
    assert len(set(tables)) == len(tables)
    assert all(table.count("steady") == 1 for table in tables)  # of the requested cases only
    assert bench(traces, out, "--against", "keda-rps", "static") == 0
    assert len(kept(out)) == 5
    assert capsys.readouterr().out == tables[2]


@pytest.mark.slow
def test_case_is_not_sized_again_when_its_result_is_known(traces: Path, tmp_path: Path) -> None:
    """Sizing takes as long as a run; a case too large to be sized shows whether sizing was tried."""
    out = tmp_path / "out"
    too_large = replace(policies.Grid(), sizes=(1e9,), cold_starts_s=(30.0,), seeds=(1,), against=("static",))
    ((key, prepare),) = policies.experiments(next(cases.load_traces(traces)), too_large)
    with pytest.raises(ValueError, match="more than 50,000,000, the limit"):
        prepare(lambda _share: None)
    assert bench(traces, out) == 0
    append_result(out / "results.jsonl", {"key": key, "result": kept(out)[0]["result"]})
    assert bench(traces, out, "--sizes", "1e9") == 0
    assert len(kept(out)) == 2


@pytest.mark.slow
def test_ours_alone_reruns_beside_kept_results(
    traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert bench(traces, out, "--planned") == 0
    table = capsys.readouterr().out
    ((key, first),) = read_results(out / "results.jsonl").items()
    other = {"name": "ours", "tuned": False, "gpu_hours": 9.0, "attainment": 0.5}
    static = next(each for each in first["policies"] if each["tuned"])
    changed = {**first, "policies": [other, {**static, "gpu_hours": 2.0}], "meets": {**first["meets"], "ours": False}}
    append_result(out / "results.jsonl", {"key": key, "result": changed})
    assert bench(traces, out, "--planned") == 0
    assert capsys.readouterr().out != table
    assert bench(traces, out, "--planned", "--ours") == 0
    again = read_results(out / "results.jsonl")[key]
    (ours, beside) = again["policies"]
    assert ours["gpu_hours"] == next(each for each in first["policies"] if each["name"] == "ours")["gpu_hours"]
    assert beside["gpu_hours"] == 2.0, "baselines stay as they were kept"
    assert again["excess"] == first["excess"]
    assert again["meets"] == first["meets"]
    assert again["planned"] == first["planned"]
    assert len(kept(out)) == 3


@pytest.mark.slow
def test_window_begins_at_a_random_request_of_the_seed(traces: Path, tmp_path: Path) -> None:
    (trace,) = next(cases.load_traces(traces))
    windows = [cases.clip_window([trace], 30.0, seed)[0] for seed in range(20)]
    assert all(window.duration_s == pytest.approx(30.0) and window.arrival_s[0] == 0 for window in windows)
    assert all(len(window.arrival_s) == 60 for window in windows)  # two a second
    assert len({policies.checksum([window], policies.find("8b-h100")[1]) for window in windows}) == 1  # all alike
    rising = replace(trace, prompt_tokens=np.arange(1, 241))
    starts = {int(cases.clip_window([rising], 30.0, seed)[0].prompt_tokens[0]) for seed in range(20)}
    assert len(starts) > 10 and min(starts) < 60 and 120 < max(starts) <= 180
    assert cases.clip_window([trace], 200.0, 1) == [trace]
    out = tmp_path / "out"
    for more in ((), ("--window", "0.01"), ("--window", "0.02"), ("--window", "0.02")):
        assert bench(traces, out, *more) == 0
    assert [case["result"]["duration_s"] for case in kept(out)] == [120.0, 36.0, 72.0]  # type: ignore[index]


@pytest.mark.slow
def test_table_names_the_baseline_chosen_in_the_learning_part(
    traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(traces, tmp_path / "out", "--learn", "0.25", "--against", "static", "keda-rps") == 0
    ((_, result),) = [case.values() for case in kept(tmp_path / "out")]
    assert (result["learned_s"], result["duration_s"]) == (30.0, 90.0)  # type: ignore[index]
    said = capsys.readouterr().out
    titles, _, row = (line.split(" | ") for line in said.splitlines()[:3])
    assert dict(zip(titles, row, strict=True))["best baseline, tuned before"] in ("static", "keda-rps")
    assert len(titles) == 16
    assert float(dict(zip(titles, row, strict=True))["estimate: excess"]) >= 0
    assert "- the baseline best before: 1; GPU-hours of ours beside it, where both met" in said


def test_summary_counts_all_runs() -> None:
    def result(ours: float, meets: bool, before: float, before_meets: bool) -> dict[str, Any]:
        return {
            "excess": {"ours": ours, "static": 1.0, "hpa": 0.0},
            "meets": {"ours": meets, "static": True, "hpa": False},
            "before": {"name": "hpa", "excess": before, "meets": before_meets, "attainment": 0.9},
        }

    told = list(
        tables.summarize_runs([result(1.2, True, 1.0, True), result(1.0, True, 1.0, False), result(7, False, 3, True)])
    )
    assert told == [
        "Of 3 runs ours met the goal in 2.",
        "- any tuned baseline: 3; GPU-hours of ours beside it, where both met, in the geometric mean: 1.049, "
        "95%: 0.57 to 1.92.",
        "- the baseline best before: 2; GPU-hours of ours beside it, where both met, in the geometric mean: 1.100.",
    ]
    (plain, best) = tables.summarize_runs([{"excess": {"ours": 1.0}, "meets": {"ours": False}}])
    assert plain == "Of 1 runs ours met the goal in 0."
    assert best.startswith("- any tuned baseline: 0;") and best.endswith(": –.")


def test_each_baseline_has_a_row_tuned_and_by_default() -> None:
    def entry(name: str, gpu_hours: float, attainment: float, default: bool) -> dict[str, Any]:
        tuned = not default and name != "ours"
        return {"name": name, "tuned": tuned, "default": default, "gpu_hours": gpu_hours, "attainment": attainment}

    results = [
        {
            "objective": {"attainment": 0.99},
            "excess": {"ours": 1.2, "static": 1.0, "hpa": 1.0},
            "meets": {"ours": True, "static": True, "hpa": True},
            "policies": [entry("ours", 2.2, 0.995, False), entry("hpa", 4.4, 0.99, True)],
        },
        {
            "objective": {"attainment": 0.99},
            "excess": {"ours": 1.0, "static": 1.0, "hpa": 0.5},
            "meets": {"ours": False, "static": True, "hpa": False},
            "policies": [entry("ours", 2.0, 0.98, False), entry("hpa", 1.5, 0.93, True), entry("hpa", 1.4, 0.9, False)],
        },
    ]
    assert list(tables.table_by_baseline(results))[2:] == [
        "| static | 2 | 1 | 1.100 |  |  |  |  |",
        "| hpa | 1 | 1 | 1.100 | 1 | 6 | 1 | 0.500 |",
    ]


def test_models_share_a_window_and_silent_ones_are_left_out(traces: Path) -> None:
    (trace,) = next(cases.load_traces(traces))
    late = replace(
        trace, arrival_s=np.array([100.0, 119.0]), prompt_tokens=np.ones(2, int), output_tokens=np.ones(2, int)
    )
    seen = set()
    for seed in range(20):
        window = cases.clip_window([trace, late], 30.0, seed)
        assert [len(model.arrival_s) for model in window[:1]] == [60]
        seen.add(len(window))
        if len(window) == 2:  # clipped at one time: both have a request at 119 s
            assert min(abs(window[1].arrival_s[-1] - window[0].arrival_s)) == pytest.approx(0.0, abs=1e-6)
    assert seen == {1, 2}


@pytest.mark.slow
def test_case_reruns_when_trace_or_profile_changed(traces: Path, tmp_path: Path) -> None:
    out, profile = tmp_path / "out", tmp_path / "mine.json"
    profile.write_text(write(find_profile("8b-h100")))
    assert bench(traces, out, "--profile", str(profile)) == 0
    write_trace(traces, every_s=0.4)
    assert bench(traces, out, "--profile", str(profile)) == 0
    profile.write_text(write(find_profile("8b-a100")))
    assert bench(traces, out, "--profile", str(profile)) == 0
    assert len(kept(out)) == 3


@pytest.mark.slow
def test_truncated_last_line_is_run_again(traces: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert bench(traces, out) == 0
    file = out / "results.jsonl"
    (whole,) = kept(out)
    file.write_text(file.read_text()[:100])
    assert bench(traces, out) == 0
    assert kept(out) == [whole]
    before = file.read_bytes()
    assert bench(traces, out) == 0
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--profile", "nope"), "no profile 'nope'; available: 8b-h100,"),
        (("--sizes", "0"), "argument --sizes: '0': must be a number above 0"),
        (("--cold-starts", "inf"), "argument --cold-starts: 'inf': must be a number above 0"),
        (("--gpus", "-1"), "argument --gpus: '-1': must be a number above 0"),
        (("--seeds", "-1"), "argument --seeds: '-1': must be a whole number, 0 or more"),
        (("--max-requests", "0"), "argument --max-requests: '0': must be a whole number, 1 or more"),
        (("--window", "0"), "argument --window: '0': must be a number above 0"),
        (("--learn", "1"), "argument --learn: '1': must be a number above 0 and below 1"),
        (("--jobs", "0"), "argument --jobs: '0': must be a whole number, 1 or more"),
        (("--traces", "nowhere"), "error: nowhere: no such folder"),
        (("--traces", "pyproject.toml"), "error: pyproject.toml: no such folder"),
        (("--against", "kedda"), "argument --against: invalid choice: 'kedda'"),
    ],
)
def test_invalid_option_is_refused_with_its_value(
    traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...], said: str
) -> None:
    out = tmp_path / "out"
    with pytest.raises(SystemExit) as ended:
        bench(traces, out, *more)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
    assert not out.exists()


def test_folder_without_traces_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(SystemExit) as ended:
        bench(tmp_path, tmp_path / "out")
    assert ended.value.code == 2
    assert f"error: {tmp_path}: no trace in it" in capsys.readouterr().err


def test_unwritable_results_are_refused_before_the_run(
    traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit) as ended:
        bench(traces, tmp_path / "file" / "out")
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert f"'{tmp_path / 'file' / 'out'}'" in said
    assert "240 requests" not in said


def test_invalid_trace_is_one_line_of_error(traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (traces / "bad.csv").write_text("arrival_s,prompt_tokens,output_tokens\n1,-1,10\n")
    with pytest.raises(SystemExit) as ended:
        bench(traces, tmp_path / "out")
    assert ended.value.code == 2
    assert f"error: {traces / 'bad.csv'}, line 2: prompt_tokens is -1" in capsys.readouterr().err


@pytest.mark.slow
def test_ctrl_c_ends_the_benchmark_quietly(tmp_path: Path) -> None:
    heard = ("env", "--default-signal=INT")  # the parent of the tests may ignore it
    running = subprocess.Popen(
        [*heard, sys.executable, "bench/studies/policies.py", "--out", str(tmp_path / "out"), "--jobs", "1"],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
    )
    assert running.stderr is not None
    begun = running.stderr.readline()  # a case is running
    running.send_signal(signal.SIGINT)
    _, said = running.communicate()
    assert "requests" in begun
    assert running.returncode == 130
    assert "Traceback" not in said


RUNS = {"beginnings": 48, "fifty": 12, "hours": 10, "learned": 20, "mooncake": 8, "small": 24, "windows": 12}


@pytest.mark.parametrize("name", RUNS)
def test_documented_tables_match_the_kept_results(name: str) -> None:
    results = read_results(ROOT / "bench" / "results" / f"{name}.jsonl")
    told = tables.table(results).strip()
    assert len(results) == RUNS[name]
    assert told in (ROOT / "docs" / "explanation" / "benchmark.md").read_text()
