"""`bench/policies.py` as one runs it: what is kept of a case, when it is run again, and what is refused."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from autoscaler.sim.engine.profile_file import write
from autoscaler.sim.engine.profiles import named
from bench import policies

ROOT = Path(__file__).parents[1]
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
    """Return the keys and results of a folder of results; every line must be whole but those that were cut."""
    return [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines() if line.endswith("}")]


def bench(traces: Path, out: Path, *more: str) -> int:
    return policies.main(["--traces", str(traces), "--out", str(out), *SMALL, *more])


def test_a_case_is_run_again_where_an_option_changes_its_result_and_only_then(
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
    assert all(table.count("steady") == 1 for table in tables)  # of the cases asked for, not of all that are kept
    assert bench(traces, out, "--against", "keda-rps", "static") == 0
    assert len(kept(out)) == 5
    assert capsys.readouterr().out == tables[2]


def test_another_trace_or_profile_of_the_same_name_is_run(traces: Path, tmp_path: Path) -> None:
    out, profile = tmp_path / "out", tmp_path / "mine.json"
    profile.write_text(write(named("8b-h100")))
    assert bench(traces, out, "--profile", str(profile)) == 0
    write_trace(traces, every_s=0.4)
    assert bench(traces, out, "--profile", str(profile)) == 0
    profile.write_text(write(named("8b-a100")))
    assert bench(traces, out, "--profile", str(profile)) == 0
    assert len(kept(out)) == 3


def test_a_last_line_that_was_cut_is_run_again_and_kept(traces: Path, tmp_path: Path) -> None:
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
        (("--profile", "nope"), "no profile 'nope', there are: 8b-h100,"),
        (("--sizes", "0"), "argument --sizes: '0': must be a number above 0"),
        (("--cold-starts", "inf"), "argument --cold-starts: 'inf': must be a number above 0"),
        (("--gpus", "-1"), "argument --gpus: '-1': must be a number above 0"),
        (("--seeds", "-1"), "argument --seeds: '-1': must be a whole number, 0 or more"),
        (("--max-requests", "0"), "argument --max-requests: '0': must be a whole number, 1 or more"),
        (("--jobs", "0"), "argument --jobs: '0': must be a whole number, 1 or more"),
        (("--traces", "nowhere"), "error: nowhere: no such folder"),
        (("--traces", "pyproject.toml"), "error: pyproject.toml: no such folder"),
        (("--against", "kedda"), "argument --against: invalid choice: 'kedda'"),
    ],
)
def test_what_cannot_be_is_refused_with_its_value(
    traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...], said: str
) -> None:
    out = tmp_path / "out"
    with pytest.raises(SystemExit) as ended:
        bench(traces, out, *more)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
    assert not out.exists()


def test_a_folder_without_traces_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(SystemExit) as ended:
        bench(tmp_path, tmp_path / "out")
    assert ended.value.code == 2
    assert f"error: {tmp_path}: no trace in it" in capsys.readouterr().err


def test_results_that_cannot_be_written_are_told_before_the_run(
    traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit) as ended:
        bench(traces, tmp_path / "file" / "out")
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert f"'{tmp_path / 'file' / 'out'}'" in said
    assert "240 requests" not in said


def test_a_bad_trace_is_one_line(traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (traces / "bad.csv").write_text("arrival_s,prompt_tokens,output_tokens\n1,-1,10\n")
    with pytest.raises(SystemExit) as ended:
        bench(traces, tmp_path / "out")
    assert ended.value.code == 2
    assert f"error: {traces / 'bad.csv'}, line 2: prompt_tokens is -1" in capsys.readouterr().err


def test_ctrl_c_ends_it_quietly(tmp_path: Path) -> None:
    heard = ("env", "--default-signal=INT")  # who runs the tests may ignore it
    running = subprocess.Popen(
        [*heard, sys.executable, "bench/policies.py", "--out", str(tmp_path / "out"), "--jobs", "1"],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
    )
    assert running.stderr is not None
    begun = running.stderr.readline()  # a case runs
    running.send_signal(signal.SIGINT)
    _, said = running.communicate()
    assert "requests" in begun
    assert running.returncode == 130
    assert "Traceback" not in said
