"""Start one server as a child process, wait until it answers, keep its log, end it with everything it started."""

import asyncio
import functools
import os
import random
import shutil
import signal
import socket
import ssl
import subprocess
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import TypeVar

import aiohttp
import pytest

ARTEFACTS = Path(__file__).parents[2] / "test-artefacts"
TOOLS = Path(__file__).parents[2] / "tools"
LOG_TAIL_BYTES = 4000
FRUGAL = {"GOGC": "400"}  # a server in Go collects garbage a quarter as often, with a third less processor time
KEPT_PORTS = 200  # the last that were given, of each process
PATIENCE_S = 60.0  # until a condition that does not come fails its test; a busy machine takes its time
Answer = TypeVar("Answer")

_kept: deque[int] = deque()  # file descriptors of sockets that keep ports
servers_allowed = True  # tests/conftest.py says so for each test


class ServerFailed(Exception):
    """A server ended early or did not answer in time; the text ends with its last log lines."""


def in_ci() -> bool:
    """Say whether a missing server is an error (CI=true) or only a reason to skip."""
    return os.environ.get("CI", "").lower() in {"1", "true"}


def require_marker(server: str) -> None:
    """Fail the test if it may use no server, naming the marker that it lacks."""
    if not servers_allowed:
        pytest.fail(f"this test uses {server}, so mark it with `@pytest.mark.integration`", pytrace=False)


def require_binary(name: str, install: str, path: Path | None = None) -> Path:
    """Return the path of a server's binary; without it skip the test, or in CI fail it, naming what installs it.

    Fails a test that is not marked as one that uses a server.
    """
    require_marker(name)
    found = shutil.which(path or name)
    if found:
        return Path(found)
    message = f"{path or name} is not there; `{install}` installs it"
    if in_ci():
        pytest.fail(message, pytrace=False)
    pytest.skip(message)


@functools.cache
def where(script: str, *arguments: str) -> Path:
    """Return the path at which a script of tools/ has or would have what it builds."""
    command = [TOOLS / script, "--where", *arguments]
    return Path(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())


def free_port() -> int:
    """Return a free loopback TCP port that no other test worker is given while its server starts, or is away.

    Below those that the system hands to outgoing connections, which would take it before the server does. A bound
    socket that does not listen keeps it from the next caller, in any process; a server with SO_REUSEADDR may bind it.
    """
    for _ in range(100):
        port = random.randrange(12_000, 32_000)
        with socket.socket() as keeper, suppress(OSError):
            keeper.bind(("127.0.0.1", port))  # without SO_REUSEADDR, so a kept port is refused
            keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            _kept.append(keeper.detach())
            if len(_kept) > KEPT_PORTS:
                os.close(_kept.popleft())
            return port
    raise RuntimeError("no free port of a hundred tried between 12000 and 32000 on 127.0.0.1")


async def eventually(
    probe: Callable[[], Awaitable[Answer]], what: str, timeout_s: float = PATIENCE_S, every_s: float = 0.05
) -> Answer:
    """Call `probe` until its answer is true or non-empty and return it; raise TimeoutError naming `what` otherwise."""
    deadline = time.monotonic() + timeout_s
    while True:
        answer = await probe()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {timeout_s:g} s; last answer {answer!r}")
        await asyncio.sleep(every_s)


@asynccontextmanager
async def repeated(look: Callable[[], Awaitable[None]], every_s: float) -> AsyncIterator[None]:
    """Call `look` again and again within the block, and wait for the last call at its end.

    No call is cancelled: before Python 3.12 a TLS connection that is cancelled in its making is never closed.
    """
    end = asyncio.Event()

    async def run() -> None:
        while not end.is_set():
            await look()
            with suppress(TimeoutError):
                await asyncio.wait_for(end.wait(), every_s)

    task = asyncio.create_task(run())
    try:
        yield
    finally:
        end.set()
        await task


async def answers(url: str, trust: ssl.SSLContext | None = None, headers: Mapping[str, str] | None = None) -> bool:
    """Say whether a GET of `url` is answered with 200, soon."""
    timeout = aiohttp.ClientTimeout(total=5)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, headers=headers) as session,
            session.get(url, ssl=trust or True) as response,
        ):
            return response.status == HTTPStatus.OK
    except (aiohttp.ClientError, TimeoutError):
        return False


class Process:
    """One server: `await start()`, `stop()`, and again on the same port and data, as often as a test likes.

    It is not tied to an event loop, so a server of the whole session serves tests that each have their own loop.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        directory: Path,
        *,
        ready: Callable[[], Awaitable[bool]],
        start_timeout_s: float = PATIENCE_S,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.log = directory / f"{name}.log"
        self._command = [str(part) for part in command]
        self._directory = directory
        self._ready = ready
        self._start_timeout_s = start_timeout_s
        # A server's own ETCD_*, KUBECONFIG or proxy variables in the developer's shell must not reach it.
        self._environment = {"PATH": os.environ["PATH"], "HOME": str(directory), **FRUGAL, **(environment or {})}
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        if self._child is None:
            raise ServerFailed(f"{self.name} is not running")
        return self._child.pid

    async def start(self) -> None:
        """Start the server and return when it answers. Raises ServerFailed with the end of its log otherwise."""
        with self.log.open("ab") as log:
            # Linux ends the child even when the test run itself is killed and no `finally` runs. The death signal
            # follows the thread that starts the child, so this line stays on the main thread, out of executors.
            guard = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
            self._child = subprocess.Popen(  # noqa: ASYNC220  see above, and it is quick
                [*guard, *self._command],
                cwd=self._directory,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            await eventually(self._ready_or_dead, f"{self.name} answers", self._start_timeout_s)
        except TimeoutError as error:
            self.kill()
            raise ServerFailed(f"{error}\n{self._tail()}") from None
        except BaseException:
            self.kill()
            raise

    async def stop(self, grace_s: float = 10) -> None:
        """End the server politely, then surely. Stopping what is stopped does nothing."""
        await asyncio.to_thread(self._end, signal.SIGTERM, grace_s)

    def kill(self) -> None:
        """End the server as a crash would."""
        self._end(signal.SIGKILL, 10)

    def freeze(self) -> None:
        """Hang the server: its connections stay open and nothing is answered until `thaw`.

        The signal stops one thread after another, and a thread that still runs may answer. So wait until all stand.
        """
        os.killpg(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def thaw(self) -> None:
        os.killpg(self.pid, signal.SIGCONT)

    def _end(self, how: signal.Signals, grace_s: float) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        for sign in (how, signal.SIGCONT):  # a frozen group reads its signal only when it runs again
            _signal_group(child.pid, sign)
        try:
            with suppress(subprocess.TimeoutExpired):
                child.wait(grace_s)
        finally:
            _signal_group(child.pid, signal.SIGKILL)  # grandchildren too
            child.wait()

    async def _ready_or_dead(self) -> bool:
        if self._child is not None and self._child.poll() is not None:
            raise ServerFailed(f"{self.name} ended with code {self._child.returncode}\n{self._tail()}")
        return await self._ready()

    def _tail(self) -> str:
        """Return the end of the log, and keep the whole of it where a failed run's artefacts are looked for."""
        ARTEFACTS.mkdir(exist_ok=True)
        kept = ARTEFACTS / f"{self.name}-{os.getpid()}.log"
        shutil.copyfile(self.log, kept)
        return f"whole log: {kept}\n" + self.log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")


def _signal_group(pid: int, sign: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, sign)
