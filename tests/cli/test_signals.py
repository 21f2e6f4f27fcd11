"""How a study ends whose workers run, or have just begun to: quietly, at once, and with all of them."""

import os
import pty
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cli.study import write_trace
from tests.cli.test_outputs import simulating
from tests.harness.process import PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("kernel")]

LONG = ("--profile", "8b-h100", "--against", "all", "--tuned", "--jobs", "2")


def children(process: int) -> list[str]:
    return Path(f"/proc/{process}/task/{process}/children").read_text().split()


@pytest.mark.parametrize(
    ("number", "group", "later_s"),  # a worker imports for about two seconds
    [
        (signal.SIGINT, True, 0.0),
        (signal.SIGTERM, False, 1.0),
        pytest.param(signal.SIGINT, True, 1.0, marks=pytest.mark.long),
        pytest.param(signal.SIGTERM, True, 0.0, marks=pytest.mark.long),
        pytest.param(signal.SIGTERM, True, 1.0, marks=pytest.mark.long),
        pytest.param(signal.SIGTERM, False, 0.0, marks=pytest.mark.long),
    ],
)
def test_a_signal_ends_the_run_and_its_workers(tmp_path: Path, number: int, group: bool, later_s: float) -> None:
    trace = write_trace(tmp_path / "hour.csv", (f"{at / 8:.3f},500,80" for at in range(8 * 3600)))
    out = tmp_path / "proof.json"
    process = simulating("--trace", trace, *LONG, "--json", out, stdout=subprocess.PIPE)
    try:
        while len(children(process.pid)) < 3:  # two workers and what looks after their semaphores
            assert process.poll() is None
            time.sleep(0.02)
        time.sleep(later_s)
        (os.killpg if group else os.kill)(process.pid, number)
        assert process.communicate(timeout=PATIENCE_S) == ("", "")  # until no process holds these any more
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 128 + number
    assert not out.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_a_signal_ends_what_still_imports(tmp_path: Path, number: int) -> None:
    trace = write_trace(tmp_path / "minute.csv", (f"{at / 8:.3f},500,80" for at in range(960)))
    many = ("--scale", 2500, "--jobs", 1)  # it does not end by itself, however late the signal is
    process = simulating("--trace", trace, "--profile", "8b-h100", *many, stdout=subprocess.PIPE)
    while "numpy" not in Path(f"/proc/{process.pid}/maps").read_text():
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(number)
    assert process.communicate(timeout=PATIENCE_S) == ("", "")
    assert process.returncode == 128 + number


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.long), signal.SIGTERM])
def test_a_signal_ends_what_this_process_computes(tmp_path: Path, number: int) -> None:
    trace = write_trace(tmp_path / "minute.csv", (f"{at / 8:.3f},500,80" for at in range(960)))
    terminal, end = pty.openpty()
    process = simulating(
        *("--trace", trace, "--scale", 2500, "--profile", "8b-h100", "--jobs", 1), stdout=end, stderr=end, TERM="xterm"
    )
    os.close(end)
    shown = b""
    while b"preparing" not in shown:  # from the start on
        shown += os.read(terminal, 1000)
    process.send_signal(number)
    with suppress(OSError):  # the other end is closed
        while piece := os.read(terminal, 1000):
            shown += piece
    os.close(terminal)
    assert process.wait() == 128 + number
    assert b"Traceback" not in shown


def test_a_signal_that_comes_in_compiled_code_ends_it_as_well() -> None:
    program = """
import subprocess, time, numba, numpy
from autoscaler.cli.process import run_interruptibly

@numba.njit
def long(count):
    sums = numpy.zeros(2)
    for number in range(count):
        sums[number % 2] += number**0.5
    return sums, sums * 2

long(1)
# On a busy machine the signal may come later.
run_interruptibly(
    lambda: subprocess.Popen(["sh", "-c", "kill -TERM $PPID"]) and long(400_000_000) and time.sleep(60)
)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (128 + signal.SIGTERM, "")


@pytest.mark.parametrize("where", ["def __del__(self): kill()", "def __init__(self): weakref.finalize(self, kill)"])
def test_a_signal_that_comes_in_a_destructor_ends_it_as_well(where: str) -> None:
    """Python drops an exception that is raised in one."""
    program = f"""
import os, signal, time, weakref
from autoscaler.cli.process import run_interruptibly

def kill():
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0)

class Dropped:
    {where}

run_interruptibly(lambda: bool(Dropped()) and time.sleep(60))
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (128 + signal.SIGTERM, "")
