"""`weights agent` processes share a model, as their options say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import structlog
from click.testing import CliRunner

from autoscaler.cli.main import main
from tests.harness.hub import FakeHub, safetensors, serving
from tests.harness.process import free_port
from tests.weights.test_agent_command import SOURCE, agent, run, until, values
from tests.weights.test_store import contents

PEER = "vllm_autoscaler_weights_agent_peer"


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    shards = {f"model-{number}.safetensors": safetensors(300_000, number) for number in range(6)}
    with serving(FakeHub({"config.json": b"{}", **shards})) as served:
        yield served


def moved(urls: list[str]) -> dict[str, float]:
    """Return the bytes that agents received from others, and sent to them."""
    seen = [values(url) for url in urls]
    return {way: sum(each[f"{PEER}_{way}_bytes_total"] for each in seen) for way in ("received", "sent")}


@pytest.mark.slow
def test_agents_that_start_together_share_a_model(tmp_path: Path, hub: FakeHub) -> None:
    wishes, token = tmp_path / "wishes.yaml", tmp_path / "token"
    wishes.write_text(f"- {SOURCE}\n")
    token.write_text("a token of this cluster")
    ports = [free_port() for _ in range(3)]
    others = [word for port in ports for word in ("--peer", f"127.0.0.1:{port}")]
    with ExitStack() as stack:
        urls = []
        for number, port in enumerate(ports):
            peer = ["--peer-host", "127.0.0.1", "--peer-port", str(port), "--peer-token-file", token]
            root = tmp_path / str(number)
            urls.append(stack.enter_context(agent(root, hub, "--wishes", wishes, *peer, *others)))
        ready = 'vllm_autoscaler_weights_agent_models{state="ready"}'
        for url in urls:
            until(lambda url=url: values(url)[ready] == 1)
        size = sum(map(len, hub.files.values()))
        shared = 3 * size - sum(hub.sent.values())
        until(lambda: moved(urls) == {"received": shared, "sent": shared})  # a sender counts a moment later
    assert sum(hub.sent.values()) <= 2 * size
    for number in range(3):
        assert contents(Path(run("ls", "--root", tmp_path / str(number)).stdout.split()[-1])) == hub.files


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--peer", "10.0.0.1:8474"], "--peer-token-file is missing"),
        (["--peer-token-file", "TOKEN"], "neither --peer nor --peer-service is given"),
        (["--peer-token-file", "TOKEN", "--peer", "10.0.0.1:8474", "--peer-service", "a/b"], "allowed: one of them"),
        (["--peer-token-file", "SHORT", "--peer", "10.0.0.1:8474"], "allowed: 16 to 4096 bytes"),
        (["--peer-token-file", "TOKEN", "--peer", "host:8474"], "not an address with its port, found 'host:8474'"),
        (["--peer-token-file", "TOKEN", "--peer", "10.0.0.1:0"], "not an address with its port"),
        (["--peer-token-file", "TOKEN", "--peer-service", "a"], "not a Service, found 'a'"),
        (["--peer-token-file", "TOKEN", "--peer", "[::1]:8474", "--peer-tls-key", "TOKEN"], "allowed: all or none"),
    ],
)
def test_options_that_do_not_fit_are_refused(tmp_path: Path, options: list[str], problem: str) -> None:
    (tmp_path / "token").write_text("a token of this cluster")
    (tmp_path / "short").write_text("short")
    (tmp_path / "wishes.yaml").write_text("[]")
    places = {"TOKEN": str(tmp_path / "token"), "SHORT": str(tmp_path / "short")}
    words = [places.get(word, word) for word in options]
    own = ["--root", str(tmp_path / "root"), "--wishes", str(tmp_path / "wishes.yaml")]
    done = CliRunner().invoke(main, ["weights", "agent", *own, *words])
    structlog.reset_defaults()  # the command sets up the log of its process, which is that of all tests here
    assert done.exit_code == 2
    assert problem in done.output


@pytest.mark.slow
def test_agent_without_a_token_file_shares_nothing(tmp_path: Path, hub: FakeHub) -> None:
    wishes = tmp_path / "wishes.yaml"
    wishes.write_text(f"- {SOURCE}\n")
    absent = ["--peer-token-file", tmp_path / "absent", "--peer", "10.0.0.1:8474"]
    with agent(tmp_path / "root", hub, "--wishes", wishes, *absent) as url:
        until(lambda: values(url)['vllm_autoscaler_weights_agent_models{state="ready"}'] == 1)
        assert not any(name.startswith(PEER) for name in values(url))
