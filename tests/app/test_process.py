"""The daemon as it is put together, where it needs no server of others: waiting, logging, ending."""

import asyncio
import json
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.cli.test_main import KUBECONFIG
from tests.harness.process import PATIENCE_S, eventually
from tests.integration.command import COMMAND, Command, Daemon
from tests.integration.command import daemon as any_daemon

DRY_RUN = ("dry-run", "--prometheus", "http://127.0.0.1:1")
RUN = ("run", "--mode", "direct", "--scrape", "--http-host", "127.0.0.1", "--period", "200ms")
daemon = partial(any_daemon, command=COMMAND)  # the installed command, with its start


@pytest.fixture
def nowhere(tmp_path: Path) -> dict[str, str]:
    """A kubeconfig whose API server does not answer."""
    path = tmp_path / "kubeconfig"
    path.write_text(KUBECONFIG)
    return {"KUBECONFIG": str(path)}


async def waiting(running: Daemon) -> dict:
    """Wait until it says what it waits for; return that."""

    async def probe() -> dict:
        ready = await running.readyz()
        return ready if ready.get("last_error") and ready.get("cluster_problems") else {}

    return await eventually(probe, "it says what it waits for")


@pytest.mark.slow
async def test_daemon_reports_and_stops_when_the_cluster_is_silent(tmp_path: Path, nowhere: dict[str, str]):
    async with daemon(tmp_path, *RUN, environment=nowhere, ready=False) as running:
        ready = await waiting(running)
        assert (await running.get("/healthz"))[0] == 200
        assert (await running.get("/readyz"))[0] == 503
        assert ready["reason"] == "no tick has succeeded yet"
        assert "the cluster is not known yet" in ready["last_error"]
        assert any("127.0.0.1:1" in problem for problem in ready["cluster_problems"])
        assert await running.metric("vllm_autoscaler_ticks_total", result="ok") in (None, 0)
        running.signal(signal.SIGTERM)
        assert await running.ended() == 0


@pytest.mark.slow
async def test_log_is_json_lines_on_stderr_without_secrets(tmp_path: Path, nowhere: dict[str, str]):
    token = tmp_path / "token"
    token.write_text("hunter2-token")
    prometheus = ("--prometheus", "http://me:hunter2@127.0.0.1:1/prefix?key=hunter2", "--prometheus-token-file", token)
    async with daemon(tmp_path, *RUN, "--log-level", "debug", environment=nowhere, ready=False) as running:
        await waiting(running)
        lines = [json.loads(line) for line in running.err.split("\n")[:-1]]  # the last may be half written
        assert lines
        assert all({"event", "level", "timestamp"} <= line.keys() for line in lines)
        assert running.out == ""
        pages = [(await running.get(path))[1] for path in ("/readyz", "/metrics", "/api/v1/workloads")]
        assert "secret-token" not in "".join([running.err, *pages])
    for more in (prometheus, prometheus[:2]):
        async with daemon(tmp_path, "dry-run", "--json", "--period", "200ms", *more, ready=False) as running:
            await eventually(lambda: asyncio.sleep(0, "error" in running.out + running.err), "an error")
            pages = [(await running.get(path))[1] for path in ("/readyz", "/metrics")]
            assert "hunter2" not in "".join([running.out, running.err, *pages])


@pytest.mark.slow
def test_library_errors_go_to_the_same_log():
    code = (
        "import logging\nfrom autoscaler.app.logging import configure_log\nconfigure_log('json', 'info')\n"
        "try:\n    1 / 0\nexcept ZeroDivisionError:\n    logging.getLogger('asyncio').exception('task %d failed', 7)\n"
        "logging.getLogger('asyncio').warning('not told')\n"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    line = json.loads(told.stderr)
    assert (line["event"], line["level"]) == ("task 7 failed", "error")
    assert "ZeroDivisionError" in line["exception"]
    assert "timestamp" in line


@pytest.mark.slow
async def test_console_log_is_plain_text(tmp_path: Path, nowhere: dict[str, str]):
    async with daemon(tmp_path, *RUN, "--log-format", "console", environment=nowhere, ready=False) as running:
        await waiting(running)
        assert "waiting for the first tick" in running.err
        assert "\x1b" not in running.err, "no colours where there is no terminal"


@pytest.mark.slow
async def test_page_address_names_the_port_when_any_port_is_allowed(tmp_path: Path, nowhere: dict[str, str]):
    prometheus = ("--prometheus", "http://127.0.0.1:1")
    for arguments, told in (
        (("demo", "--duration", "1s"), "The page: "),
        (("dry-run", *prometheus, "--json"), "The page: "),
        (RUN, '"url": "'),
    ):
        running = Command(tmp_path, COMMAND, *arguments, "--http-port", "0", environment=nowhere)
        try:
            page = re.compile(rf"{told}http://127\.0\.0\.1:[1-9]\d+/")
            await eventually(lambda: asyncio.sleep(0, page.search(running.out + running.err)), "its page")  # noqa: B023
        finally:
            running.kill()


@pytest.mark.slow
async def test_options_are_read_from_the_environment(tmp_path: Path, nowhere: dict[str, str]):
    environment = {**nowhere, "VLLM_AUTOSCALER_RUN_MODE": "dry-run", "VLLM_AUTOSCALER_RUN_SCRAPE": "true"}
    environment["VLLM_AUTOSCALER_RUN_HTTP_HOST"] = "127.0.0.1"
    async with daemon(tmp_path, "run", environment=environment, ready=False) as running:
        await eventually(lambda: asyncio.sleep(0, running.log("waiting for the first tick")), "it started")
        assert await running.metric("vllm_autoscaler_info", mode="dry-run") == 1


@pytest.mark.slow
async def test_command_ends_quietly_when_its_reader_closes(tmp_path: Path, nowhere: dict[str, str]):
    """As `vllm-autoscaler dry-run --json | head -1` does; what is printed is printed into a pipe nobody reads."""
    script = (
        "import asyncio, sys\n"
        "from autoscaler.app import process\n"
        "async def work():\n"
        "    async with asyncio.TaskGroup() as group:\n"
        "        group.create_task(say())\n"
        "async def say():\n"
        "    while True:\n"
        "        print('decision', flush=True)\n"
        "        await asyncio.sleep(0.01)\n"
        "sys.exit(asyncio.run(process.until_signalled(work(), endless=True)))\n"
    )
    piped = 'set -o pipefail; "$0" -c "$1" | head -1'
    speaker = await asyncio.create_subprocess_exec(
        "bash", "-c", piped, sys.executable, script, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(60):
        said, complaints = await speaker.communicate()
    assert (speaker.returncode, said, complaints) == (0, b"decision\n", b"")


FULL = "error: standard output cannot be written: No space left on device\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "policy.yaml"),
        pytest.param(("check", "broken.yaml"), marks=pytest.mark.long),
        pytest.param(("demo", "--json", "--duration", "1s", "--http-port", "0"), marks=pytest.mark.long),
        (*DRY_RUN, "--once"),
        pytest.param((*DRY_RUN, "--once", "--json"), marks=pytest.mark.long),
        pytest.param((*DRY_RUN, "--http-port", "0"), marks=pytest.mark.long),
        pytest.param((*DRY_RUN, "--json", "--http-port", "0"), marks=pytest.mark.long),
    ],
)
def test_commands_end_with_one_line_when_the_disk_is_full(tmp_path: Path, arguments: tuple[str, ...]):
    (tmp_path / "policy.yaml").write_text("apiVersion: vllm-autoscaler.io/v1\nkind: Policy\nmetadata: {name: mine}\n")
    (tmp_path / "broken.yaml").write_text("kind: Policy\n")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [COMMAND, *arguments],
            cwd=tmp_path,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    said = "".join(line for line in done.stderr.splitlines(keepends=True) if not line.startswith("The page: "))
    assert (done.returncode, said) == (2, FULL)


@pytest.mark.slow
def test_check_exits_130_when_interrupted_on_standard_input(tmp_path: Path):
    child = subprocess.Popen(
        ["env", "--default-signal=INT", COMMAND, "check", "-"],  # a shell has what it runs beside itself ignore it
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
    )
    assert child.stdin is not None
    child.stdin.write(b"#\n" * 100_000)  # more than a pipe holds: this returns once the command reads
    child.stdin.flush()
    child.send_signal(signal.SIGINT)
    assert child.communicate(timeout=PATIENCE_S) == (b"", b"")
    assert child.returncode == 130


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "number", "code"),
    [
        (("dry-run", "--once", "--prometheus"), signal.SIGINT, 130),
        (("explain", "llm/llama", "--url"), signal.SIGTERM, 143),
        (("dry-run", "--http-port", "0", "--prometheus"), signal.SIGTERM, 0),
        pytest.param(("dry-run", "--once", "--prometheus"), signal.SIGTERM, 143, marks=pytest.mark.long),
        pytest.param(("explain", "llm/llama", "--url"), signal.SIGINT, 130, marks=pytest.mark.long),
        pytest.param(("dry-run", "--http-port", "0", "--prometheus"), signal.SIGINT, 0, marks=pytest.mark.long),
    ],
)
async def test_exit_code_when_stopped_before_a_server_answers(
    tmp_path: Path, nowhere: dict[str, str], arguments: tuple[str, ...], number: signal.Signals, code: int
):
    asked = asyncio.Event()

    async def never_answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await closed.wait()
        writer.close()

    closed = asyncio.Event()
    server = await asyncio.start_server(never_answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        running = Command(tmp_path, COMMAND, *arguments, url, environment=nowhere)
        try:
            await asyncio.wait_for(asked.wait(), PATIENCE_S)
            running.signal(number)
            assert (await running.ended(), running.out, running.err) == (code, "", "")
        finally:
            running.kill()
    finally:
        closed.set()
        server.close()
