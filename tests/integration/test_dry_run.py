"""Dry-run from outside: with nothing but a Prometheus URL, and in a cluster under a Role that can only read."""

import json
import lzma
import signal
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.kubernetes.world import shipped_roles
from tests.harness.exposition import ExpositionServer
from tests.harness.fixtures import StartPromql
from tests.harness.kube_api import granted
from tests.harness.process import eventually, free_port
from tests.harness.promql import PromqlServer, Target
from tests.integration.command import Command, Daemon, daemon, run
from tests.integration.site import POLICY, Site, recording
from tests.integration.test_direct import changes, ticks

pytestmark = pytest.mark.integration

PODS = ("llama-7d9c5b6f4-x2x8k", "llama-7d9c5b6f4-b4b4b")
READING = {"get", "list", "watch"}
SECRETS = ("password-in-url", "key-in-header", "token-in-environment")


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    return path


async def scraped(start: StartPromql, metrics: ExpositionServer, pods: Sequence[str] = PODS) -> PromqlServer:
    """Start a server that scrapes pods of the Deployment `llm/llama`, saturated, and wait until it has."""
    metrics.serve("/metrics", recording("saturated"))
    labels: list[dict[str, str]] = [{"namespace": "llm", "pod": pod} for pod in pods]
    server = await start(*(Target(metrics.address, "/metrics", label) for label in labels))
    await server.wait_for('vllm:num_requests_running{namespace="llm"}', series=len(pods))
    return server


def lines(text: str) -> list[dict[str, Any]]:
    """Return the lines; a last one that is still being written is none yet."""
    return [json.loads(line) for line in text.split("\n")[:-1]]


async def run_once(server: PromqlServer, *arguments: Any, **options: Any) -> Command:
    """Decide once, and once more if a scrape failed meanwhile: on a busy machine a pod takes longer than a second."""

    async def decided() -> Command | None:
        await server.wait_for("vllm:num_requests_running")
        done = await run(*arguments, "--once", **options)
        return done if await server.query("min_over_time(up[10s]) == 0") == [] else None

    return await eventually(decided, "a decision by what was scraped")


async def expect_one_decision(server: PromqlServer, tmp_path: Path, policy: Path) -> None:
    arguments = ("--prometheus", server.url, "--policy", policy, "--default-policy", "quick")
    done = await run_once(server, tmp_path, "dry-run", *arguments, "--json")
    assert (done.code, done.err) == (0, "")
    (line,) = lines(done.out)
    assert (line["workload"], line["policy"]) == ("llm/llama", "quick")
    assert (line["ready"], line["current"], line["wanted"]) == (2, 2, 7)
    assert line["signal"] == "concurrency"
    assert "8 running and 60 waiting" in line["reason"]
    assert line["inputs"]["ttft_s"] is None or line["inputs"]["ttft_s"] > 0


async def test_once_as_json_with_nothing_but_a_prometheus(
    prometheus: StartPromql, exposition_server: ExpositionServer, tmp_path: Path, policy: Path
):
    await expect_one_decision(await scraped(prometheus, exposition_server), tmp_path, policy)


async def test_once_as_json_with_nothing_but_a_victoria_metrics(
    victoria_metrics: StartPromql, exposition_server: ExpositionServer, tmp_path: Path, policy: Path
):
    await expect_one_decision(await scraped(victoria_metrics, exposition_server), tmp_path, policy)


async def test_once_in_a_pipe_is_a_line_and_live_ends_with_ctrl_c(
    prometheus: StartPromql, exposition_server: ExpositionServer, tmp_path: Path
):
    server = await scraped(prometheus, exposition_server)
    alone = ("dry-run", "--prometheus", server.url, "--http-port", "1")
    once = await run_once(server, tmp_path, *alone, "--namespace", "llm")
    assert (once.code, once.err) == (0, "")
    line, total = once.out.splitlines()
    assert "would add an unknown number of GPUs" in total and "state --gpus-per-replica" in total
    assert "  llm/llama: Scales up from 2 to " in line
    elsewhere = await run(tmp_path, *alone, "--once", "--namespace", "elsewhere")
    assert elsewhere.code == 1
    assert "no engine reports metrics from namespace elsewhere" in elsewhere.out

    async with daemon(tmp_path, "dry-run", "--prometheus", server.url, "--period", "500ms") as live:
        await ticks(live, 3)
        told = await live.workload("llm", "llama")
        assert told["workload"]["current"] == 2
        assert told["changes"] == [] or told["changes"][-1]["outcome"] == "recorded"
        assert (await live.get("/"))[1].startswith("<!doctype html>")
        live.signal(signal.SIGINT)
        assert await live.ended() == 0
        assert "llm/llama" in live.out
        page, total = live.err.splitlines()
        assert page == f"The page: {live.url}/"
        assert total.startswith("in all: ")


async def test_json_lines_go_on_when_prometheus_goes_away(
    prometheus: StartPromql, exposition_server: ExpositionServer, tmp_path: Path, policy: Path
):
    server = await scraped(prometheus, exposition_server)
    folder, url = tmp_path / "record", server.url.replace("://", f"://reader:{SECRETS[0]}@")
    arguments = ("--prometheus", url, "--policy", policy, "--default-policy", "quick", "--json")
    arguments += ("--prometheus-header", f"X-Api-Key: {SECRETS[1]}", "--record", folder)
    async with daemon(
        tmp_path, "dry-run", *arguments, "--period", "500ms", environment={"API_TOKEN": SECRETS[2]}
    ) as live:
        await ticks(live, 3)
        await server.process.stop()

        async def decided() -> bool:
            last = next(line for line in reversed(lines(live.out)) if "workload" in line)
            return last["wanted"] == 2 and "no connection" in str((await live.readyz())["sources"])

        await eventually(decided, "a decision in silence")
        live.signal(signal.SIGTERM)
        assert await live.ended() == 0
        decisions = lines(live.out)
        assert {line["workload"] for line in decisions if "workload" in line} == {"llm/llama"}
        wanted = [line["wanted"] for line in decisions if "workload" in line]
        assert (max(wanted), min(wanted)) == (7, 2), "silence never wants less than there is"
        said = live.out + live.err
    kept = b"".join(recorded_bytes(folder))
    assert b"llama" in kept and b"no connection" in kept  # what was recorded is found, also when it is compressed
    assert [secret for secret in SECRETS if secret.encode() in kept or secret in said] == []


def recorded_bytes(folder: Path) -> Iterator[bytes]:
    """Yield the files of a record, and what is compressed in them."""
    for path in folder.iterdir():
        yield path.read_bytes()
    for path in folder.glob("*.sqlite"):
        with closing(sqlite3.connect(path)) as file:
            for row in file.execute("SELECT decided, inputs, memory FROM blocks"):
                yield from (lzma.decompress(part) for part in row if part)


async def test_a_prometheus_that_is_down_is_named_and_the_code_is_1(tmp_path: Path):
    url = f"http://127.0.0.1:{free_port()}"
    table = await run(tmp_path, "dry-run", "--prometheus", url, "--once")
    assert table.code == 1
    assert url in table.out
    assert "Traceback" not in table.out + table.err
    as_json = await run(tmp_path, "dry-run", "--prometheus", url, "--once", "--json")
    assert as_json.code == 1
    (line,) = lines(as_json.out)
    assert url in line["error"]


async def test_exit_code_is_1_when_the_server_is_not_a_prometheus(exposition_server: ExpositionServer, tmp_path: Path):
    exposition_server.serve("/api/v1/query", "<html>log in first</html>")
    done = await run(tmp_path, "dry-run", "--prometheus", exposition_server.url, "--once", "--json")
    assert done.code == 1
    (line,) = lines(done.out)
    assert exposition_server.url in line["error"]


async def test_empty_table_names_what_is_needed_and_what_is_down(site: Site):
    user = await site.user("dry-run")
    url = f"http://127.0.0.1:{free_port()}"
    arguments = ("dry-run", "--cluster", "--namespace", site.namespace, "--prometheus", url, "--once")
    empty = await run(site.directory, *arguments, environment=site.environment(user))
    assert empty.code == 0
    assert "no recommendation" not in empty.out
    told = " ".join(empty.out.split())
    assert "needed: the annotation vllm-autoscaler.io/policy on a Deployment" in told
    assert f"prometheus: labels that name pods: {url}" in told


async def recommends(live: Daemon, count: int) -> bool:
    return await live.metric("vllm_autoscaler_desired_replicas", workload="llama") == count


async def test_dry_run_in_a_cluster_writes_nothing(site: Site, prometheus: StartPromql):
    await site.workload()
    site.load("saturated")
    labels = {"namespace": site.namespace, "pod": "llama-1-0"}
    server = await prometheus(Target(site.metrics.address, "/metrics", labels))
    await server.wait_for("vllm:num_requests_running")
    user = await site.user("dry-run")
    arguments = ("dry-run", "--cluster", "--namespace", site.namespace, "--prometheus", server.url)
    arguments += ("--policy", str(site.policy), "--default-policy", "quick")

    once = await run_once(server, site.directory, *arguments, "--json", environment=site.environment(user))
    assert once.code == 0, once.err
    (line,) = lines(once.out)
    assert (line["workload"], line["current"], line["wanted"]) == (f"{site.namespace}/llama", 1, 4)

    environment = site.environment(user)
    async with daemon(site.directory, *arguments, "--json", "--period", "500ms", environment=environment) as live:
        await ticks(live, 3)
        await eventually(lambda: recommends(live, 4), "four replicas")
        # After a tick without readings it is recorded again.
        recorded = {(change["before"], change["after"], change["outcome"]) for change in await changes(site, live)}
        assert recorded == {(1, 4, "recorded")}
    async with site.daemon(user, "dry-run", "--scrape", "--no-lease") as run_mode:
        await ticks(run_mode, 3)
        await eventually(lambda: recommends(run_mode, 4), "four replicas")

    assert await site.has(1)
    assert await site.events() == []
    events = site.api.audit(user)
    assert events
    assert {event.permission.verb for event in events} <= READING
    assert site.api.refused(user) == set()
    assert site.api.used(user) <= granted(*shipped_roles("dry-run"))
