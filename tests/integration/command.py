"""`vllm-autoscaler` as people run it: the command in a process of its own, and what it says over HTTP."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp

from tests.harness.forked import ForkedCommand
from tests.harness.process import PATIENCE_S, ServerFailed, eventually, free_port

COMMAND = Path(sys.executable).with_name("vllm-autoscaler")
FORKED = "vllm-autoscaler"  # in a process that need not import anything


class Command:
    """One run of the command. Output is kept in files, so that no pipe fills up and stops it."""

    def __init__(self, directory: Path, *command: str | Path, environment: Mapping[str, str] | None = None) -> None:
        """command: it starts with FORKED, with COMMAND where the start of the process is tested, or with another."""
        folder = Path(tempfile.mkdtemp(prefix="command-", dir=directory))
        self._out, self._err = folder / "stdout", folder / "stderr"
        self.started_s = time.monotonic()
        # Linux ends the child even when the test run is killed; variables of the developer's shell do not reach it.
        guard = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        own = {"PATH": os.environ["PATH"], "HOME": str(folder), "COLUMNS": "200", **(environment or {})}
        self._child: subprocess.Popen[bytes] | ForkedCommand
        with self._out.open("wb") as out, self._err.open("wb") as err:
            if command[0] == FORKED:
                self._child = ForkedCommand([*map(str, command[1:])], folder, own, self._out, self._err)
                return
            self._child = subprocess.Popen(
                [*guard, *map(str, command)],
                cwd=folder,
                env=own,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    @property
    def out(self) -> str:
        return self._out.read_text(errors="replace")

    @property
    def err(self) -> str:
        return self._err.read_text(errors="replace")

    @property
    def code(self) -> int | None:
        """Exit code, negative for a signal; None while it runs."""
        return self._child.poll()

    def log(self, event: str = "") -> list[dict[str, Any]]:
        """Return the JSON lines of the log so far, of one event or all, without one that is still being written."""
        lines = [json.loads(line) for line in self.err.split("\n")[:-1] if line.startswith("{")]
        return [line for line in lines if event in ("", line["event"])]

    def signal(self, number: signal.Signals, *, group: bool = False) -> None:
        """Send a signal; `group`: to all processes it started, as a terminal does on Ctrl-C."""
        if group:
            os.killpg(self._child.pid, number)
        else:
            self._child.send_signal(number)

    async def ended(self, timeout_s: float = PATIENCE_S) -> int:
        """Wait for the end and return the exit code."""
        await eventually(lambda: asyncio.sleep(0, self.code is not None), f"the end of {self._child.args}", timeout_s)
        assert self.code is not None
        return self.code

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.send_signal(signal.SIGKILL)  # a forked one may have no group of its own yet
        self._child.wait()


async def run(
    directory: Path, *arguments: str | Path, environment: Mapping[str, str] | None = None, timeout_s: float = PATIENCE_S
) -> Command:
    """Run the command to its end."""
    command = Command(directory, FORKED, *arguments, environment=environment)
    try:
        await command.ended(timeout_s)
    finally:
        command.kill()
    return command


class Daemon(Command):
    """A run that serves HTTP at `url`."""

    def __init__(
        self, directory: Path, *command: str | Path, port: int, environment: Mapping[str, str] | None = None
    ) -> None:
        """The command line must state the port."""
        self.http_port = port
        self.url = f"http://127.0.0.1:{port}"
        super().__init__(directory, *command, environment=environment)

    async def get(self, path: str) -> tuple[int, str]:
        """Return status and text; (0, "") while nothing listens."""
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE_S)) as session,
                session.get(self.url + path) as answer,
            ):
                return answer.status, await answer.text()
        except (aiohttp.ClientError, TimeoutError):
            return 0, ""

    async def json(self, path: str) -> Any:
        """Return the decoded answer, whatever its status; {} while nothing listens."""
        status, text = await self.get(path)
        return json.loads(text) if status else {}

    async def metric(self, name: str, **labels: str) -> float | None:
        """Return the value of the one series with these labels; None: there is none."""
        _, text = await self.get("/metrics")
        for line in text.splitlines():
            series, _, value = line.rpartition(" ")
            if series.partition("{")[0] == name and all(f'{key}="{label}"' in series for key, label in labels.items()):
                return float(value)
        return None

    async def readyz(self) -> dict[str, Any]:
        answer: dict[str, Any] = await self.json("/readyz")
        return answer

    async def workload(self, namespace: str, name: str) -> dict[str, Any]:
        """Return everything the API knows of one workload; {} before the first tick."""
        status, text = await self.get(f"/api/v1/workloads/{namespace}/{name}")
        answer: dict[str, Any] = json.loads(text) if status == 200 else {}
        return answer

    async def ready(self, timeout_s: float = PATIENCE_S) -> None:
        """Wait for the first good tick. Raises ServerFailed with the log if it ends before."""

        async def probe() -> bool:
            if self.code is not None:
                raise ServerFailed(f"ended with code {self.code}\n{self.err[-4000:]}")
            return bool((await self.readyz()).get("ready"))

        try:
            await eventually(probe, "the first good tick", timeout_s)
        except TimeoutError as error:
            raise ServerFailed(f"{error}\n{await self.readyz()}\n{self.err[-4000:]}") from None


@asynccontextmanager
async def daemon(
    directory: Path,
    *arguments: str | Path,
    environment: Mapping[str, str] | None = None,
    ready: bool = True,
    command: str | Path = FORKED,
) -> AsyncIterator[Daemon]:
    """Run a command that serves HTTP within the block, from its first good tick on unless `ready` is False."""
    port = free_port()
    started = Daemon(directory, command, *arguments, "--http-port", str(port), port=port, environment=environment)
    try:
        if ready:
            await started.ready()
        yield started
    except Exception:  # pytest shows what a failed test has printed
        for row in (await started.json("/api/v1/workloads")).get("workloads", ()):
            print(await started.get(f"/api/v1/workloads/{row['namespace']}/{row['name']}"))
        print(started.err[-8000:])
        raise
    finally:
        started.kill()
