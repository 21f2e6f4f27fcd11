"""Files that `simulate` and `replay` write or refuse to write, and their end when the reader closes the pipe."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.study import POLICY, PROFILE, RECORDING, invoke, write_trace

COMMAND = (sys.executable, "-c", "from autoscaler.cli.main import main; main(prog_name='vllm-autoscaler')")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write_trace(tmp_path / "minute.csv", (f"{number / 4:.3f},500,80" for number in range(240)))


def simulating(
    *arguments: object, stdout: int, stderr: int = subprocess.PIPE, **environment: str
) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*COMMAND, "simulate", *map(str, arguments)],
        stdout=stdout,
        stderr=stderr,
        text=True,
        env={**os.environ, **environment},
        start_new_session=True,
    )


@pytest.mark.parametrize(
    ("command", "output"),
    [
        (("simulate", *PROFILE, "--trace"), "--json"),
        (("simulate", *PROFILE, "--trace"), "--html"),
        (("replay", *PROFILE, "--workload", "team/llama", "--ticks"), "--json"),
        (("simulate", "fit"), "--out"),
    ],
)
def test_an_input_is_not_replaced(tmp_path: Path, command: tuple[str, ...], output: str) -> None:
    file, link = tmp_path / "own", tmp_path / "link.json"
    file.write_text("mine")
    link.symlink_to(file)
    result = invoke(*command, file, output, link)
    assert result.exit_code == 2
    assert result.output == f"error: {link} would replace the input {file}; allowed: a file of its own\n"
    assert file.read_text() == "mine"


def test_profile_and_policy_are_inputs_as_well(trace: Path, tmp_path: Path) -> None:
    for option in ("--profile", "--policy"):
        file = tmp_path / f"{option.strip('-')}.json"
        file.write_text("mine")
        result = invoke("simulate", "--trace", trace, *PROFILE, option, file, "--json", file)
        assert result.exit_code == 2
        assert f"would replace the input {file};" in result.output
        assert file.read_text() == "mine"


def test_two_outputs_are_two_files(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "proof"
    result = invoke("simulate", "--trace", trace, *PROFILE, "--json", out, "--html", tmp_path / "." / "proof")
    assert result.exit_code == 2
    assert result.output == f"error: {out} would replace the output {out}; allowed: a file of its own\n"
    assert not out.exists()


@pytest.mark.parametrize("option", ["--json", "--html"])
def test_unwritable_output_is_refused_before_reading(tmp_path: Path, option: str) -> None:
    trace, other = write_trace(tmp_path / "bad.csv", ["no number"]), "--html" if option == "--json" else "--json"
    for wrong in (Path("/proc/x.json"), trace / "x", tmp_path / ("x" * 256), tmp_path / ("x/" * 3000)):
        result = invoke("simulate", "--trace", trace, *PROFILE, option, wrong, other, tmp_path / "other")
        assert result.exit_code == 2
        assert result.output.startswith(f"error: {wrong} cannot be written: ")
        assert result.output.count("\n") == 1
    assert list(tmp_path.iterdir()) == [trace]


def test_a_profile_that_cannot_be_written_is_one_line() -> None:
    result = invoke("simulate", "fit", RECORDING, "--out", "/proc/x.json")
    assert result.exit_code == 2
    assert result.output == "error: /proc/x.json cannot be written: No such file or directory\n"


@pytest.mark.slow
@pytest.mark.usefixtures("kernel")
def test_standard_output_as_the_file_keeps_both(trace: Path, tmp_path: Path) -> None:
    out, link = tmp_path / "out", tmp_path / "stdout"
    link.symlink_to("/proc/self/fd/1")  # as /dev/stdout
    with out.open("w") as stream:
        process = simulating("--trace", trace, *PROFILE, "--json", link, stdout=stream.fileno())
        assert process.communicate()[1] == ""
    written, end = json.JSONDecoder().raw_decode(out.read_text())
    assert written["requests"] == 240
    assert "minute: 240 requests" in out.read_text()[end:]
    assert link.is_symlink()


@pytest.mark.slow
@pytest.mark.usefixtures("kernel")
def test_files_are_written_when_the_table_has_no_reader(trace: Path, tmp_path: Path) -> None:
    file, link = tmp_path / "proof.html", tmp_path / "stdout"
    link.symlink_to("/proc/self/fd/1")
    for option in ((), ("--json", link)):
        reader, writer = os.pipe()
        os.close(reader)
        process = simulating("--trace", trace, *PROFILE, "--html", file, *option, stdout=writer)
        os.close(writer)
        assert process.communicate()[1] == ""
        assert process.returncode == 0
        assert file.read_text().startswith("<!doctype html>")
        file.unlink()


@pytest.mark.slow
@pytest.mark.usefixtures("kernel")
def test_files_are_written_when_the_table_cannot_be(trace: Path, tmp_path: Path) -> None:
    file = tmp_path / "proof.json"
    with Path("/dev/full").open("w") as full:
        process = simulating("--trace", trace, *PROFILE, "--json", file, stdout=full.fileno())
        assert process.communicate()[1] == "error: standard output cannot be written: No space left on device\n"
    assert process.returncode == 2
    assert json.loads(file.read_text())["requests"] == 240


@pytest.mark.slow
@pytest.mark.usefixtures("kernel")
def test_characters_outside_the_encoding_are_replaced(trace: Path) -> None:
    process = simulating("--trace", trace, "--scale", 2, *PROFILE, stdout=subprocess.PIPE, PYTHONIOENCODING="ascii")
    out, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    assert "minute ? 2: 480 requests" in out


def test_every_file_is_read_before_any_is_looked_into(trace: Path, tmp_path: Path) -> None:
    policy, bad = tmp_path / "mine.yaml", write_trace(tmp_path / "bad.csv", ["no number"])
    policy.write_text(POLICY.replace("ITL", "5ms"))  # the first file is found to be out of its reach
    result = invoke("simulate", "--trace", trace, bad, *PROFILE, "--policy", policy)
    assert result.output.startswith(f"error: {bad}, line 2")


def test_a_scale_that_leaves_no_request_is_refused(trace: Path) -> None:
    result = invoke("simulate", "--trace", trace, *PROFILE, "--scale", "0.000000001")
    assert result.exit_code == 2
    assert result.output == f"error: {trace}: no request is left at a scale of 1e-09; allowed: a larger scale\n"


@pytest.mark.parametrize("option", ["--gpus", "--scale"])
def test_nan_is_in_no_range(trace: Path, option: str) -> None:
    result = invoke("simulate", "--trace", trace, *PROFILE, option, "nan")
    assert result.exit_code == 2
    assert f"Invalid value for '{option}': nan is not in the range 0<x<=10" in result.output


@pytest.mark.slow
@pytest.mark.usefixtures("kernel")
def test_several_files_may_follow_an_equals_sign(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "proof.json"
    other = tmp_path / "other.csv"
    other.write_bytes(trace.read_bytes())
    result = invoke("simulate", f"--trace={trace}", other, *PROFILE, "--json", out)
    assert result.exit_code == 0, result.output
    assert [each["trace"] for each in json.loads(out.read_text())] == ["minute", "other"]


@pytest.mark.long
def test_trace_runs_when_the_compile_cache_is_unwritable(trace: Path) -> None:
    """As in a container whose file system is read-only: neither beside the code nor in the user's folder."""
    nowhere = {"NUMBA_CACHE_LOCATOR_CLASSES": "IPythonCacheLocator"}
    process = simulating("--trace", trace, *PROFILE, stdout=subprocess.PIPE, **nowhere)
    out, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    assert "240 requests" in out
