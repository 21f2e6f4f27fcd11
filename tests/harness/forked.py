"""Processes of this project's code that start in milliseconds: their parent has imported everything.

A start of the installed command takes most of a second of a core for imports. Tests of the start itself pay for it.
"""

import ctypes
import functools
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.context import ForkServerContext
from pathlib import Path
from types import ModuleType

from tests.harness.process import PATIENCE_S

IMPORTED = [
    *(
        f"autoscaler.app.{name}"
        for name in ("run", "dry_run", "demo", "explain", "webhook", "weights", "weights_agent")
    ),
    "tests.weights.agent_process",
]
PR_SET_PDEATHSIG = 1


@functools.cache
def forks() -> ForkServerContext:
    """The server of processes of this test worker; what it imports it imports once."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    return context


class ForkedCommand:
    """One run of `vllm-autoscaler`, with as much of the interface of `subprocess.Popen` as tests use."""

    def __init__(
        self, arguments: Sequence[str], folder: Path, environment: Mapping[str, str], out: Path, err: Path
    ) -> None:
        self.args = ["vllm-autoscaler", *arguments]
        self._process = forks().Process(target=_run, args=(self.args, folder, dict(environment), out, err))
        caller = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")  # a script that starts this is not run again in the process
        try:
            self._process.start()
        finally:
            sys.modules["__main__"] = caller
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs."""
        return self._process.exitcode

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        """Wait for the end and return the exit code. Raises TimeoutExpired."""
        self._process.join(timeout_s)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout_s)
        return code


def run_forked(
    *arguments: str | Path, folder: Path | None = None, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `vllm-autoscaler` to its end, by default in an empty folder and in the environment of the tests."""
    with tempfile.TemporaryDirectory() as name:
        out, err = Path(name) / "out", Path(name) / "err"
        command = ForkedCommand(list(map(str, arguments)), folder or Path(name), environment or os.environ, out, err)
        try:
            code = command.wait()
        finally:
            command.kill()
        return subprocess.CompletedProcess(command.args, code, out.read_text(), err.read_text())


def _run(arguments: list[str], folder: Path, environment: dict[str, str], out: Path, err: Path) -> None:
    """Become what a shell would have started: session, folder, environment, open files and arguments."""
    os.setsid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # also when the test run is killed
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, path in enumerate((Path(os.devnull), out, err)):
        opened = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin = open(0, encoding="utf-8")  # noqa: SIM115  open to the end
    sys.stdout = open(1, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace")  # noqa: SIM115
    sys.argv = arguments

    from autoscaler.cli.main import main

    sys.exit(main())
