"""`weights agent` and `weights plan`, as the DaemonSet and a user run them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from autoscaler.adapters.clock import SystemClock
from autoscaler.app.weights import FetchOptions
from autoscaler.config.findings import PolicyError
from autoscaler.config.weights.allowed import DEFAULT_RULES, PrivateSources, SourceRules
from autoscaler.config.weights.source import parse
from autoscaler.config.weights.wishes import Wish, Wishes
from autoscaler.weights.local_node import WishFile, load_wishes
from autoscaler.weights.problems import WeightsCause, WeightsError
from tests.harness.forked import ForkedCommand, run_forked
from tests.harness.hub import FakeHub, safetensors, serving
from tests.harness.process import PATIENCE_S, free_port

SOURCE = "hf://org/model@main"


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with serving(FakeHub({"config.json": b"{}", "model.safetensors": safetensors(200_000)})) as served:
        yield served


@contextmanager
def agent(root: Path, hub: FakeHub, *options: str | Path) -> Iterator[str]:
    """Run the command, give its address, and end it as the kubelet does."""
    port = free_port()
    root.mkdir(exist_ok=True)
    command = ["weights", "agent", "--root", root, "--hub", hub.url, "--http-port", str(port), *options]
    out, err = (root.with_name(f"{root.name}-{port}-{name}") for name in ("out", "err"))
    process = ForkedCommand([str(word) for word in command], root.parent, os.environ, out, err)
    try:
        yield f"http://127.0.0.1:{port}"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0, err.read_text()
    finally:
        process.kill()


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return run_forked("weights", *arguments)


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
        return str(answer.read().decode())


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            if condition():
                return
        except OSError:
            pass  # not listening yet
        assert time.monotonic() < deadline
        time.sleep(0.1)


def values(url: str) -> dict[str, float]:
    lines = [line for line in get(f"{url}/metrics").splitlines() if line.startswith("vllm_autoscaler_weights_agent")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


@pytest.mark.slow
def test_agent_follows_its_file_and_shows_every_state(tmp_path: Path, hub: FakeHub) -> None:
    root, wishes = tmp_path / "root", tmp_path / "wishes.yaml"
    wishes.write_text(f"- {SOURCE}\n")
    name = "vllm_autoscaler_weights_agent"
    with agent(root, hub, "--wishes", wishes, "--rate", "50MB") as url:
        until(lambda: values(url)[f'{name}_models{{state="ready"}}'] == 1)
        wishes.write_text(f"- source: {SOURCE}\n  pinned: true\n- hf://org/absent@main\n- s3://bucket/model\n")
        until(lambda: values(url)[f'{name}_models{{state="failed"}}'] == 2)
        seen = values(url)
        assert seen[f"{name}_fetched_models_total"] == 1
        assert seen[f"{name}_fetched_bytes_total"] == sum(map(len, hub.files.values()))
        assert seen[f'{name}_failures_total{{cause="not_allowed"}}'] >= 1
        key = parse(SOURCE).key
        assert seen[f'{name}_model{{cause="",key="{key}",source="{SOURCE}",state="ready"}}'] == 1
        assert json.loads(get(f"{url}/healthz")) == {"cause": "", "text": "", "models": {"ready": 1, "failed": 2}}
        until(lambda: run("ls", "--root", root).stdout.count("  failed  ") == 2)
        shown = run("ls", "--root", root).stdout.splitlines()
        assert shown[0].startswith(f"{SOURCE}  0.0002 GB  ")
        assert sorted(shown[1:]) == [
            "hf://org/absent@main  failed  not_found: hf://org/absent@main: the hub has no such model or revision",
            "s3://bucket/model  failed  not_allowed: s3://bucket/model may not be fetched; allowed: hf://**",
        ]
        wishes.write_text(f"- {SOURCE}\n- hf://org/model\n")
        until(lambda: values(url).get(f'{name}_problem{{cause="invalid"}}') == 1)
        until(lambda: "invalid: 1 wish is refused: 'hf://org/model' is no" in run("ls", "--root", root).stdout)
        assert "another process" not in run("rm", SOURCE, "--root", root).stderr


@pytest.mark.slow
def test_plan_prints_a_table_and_json(tmp_path: Path, hub: FakeHub) -> None:
    wishes = tmp_path / "wishes.yaml"
    wishes.write_text(f"[{SOURCE}, 's3://bucket/model']\n")
    (tmp_path / "root").mkdir()
    options = ("--root", tmp_path / "root", "--hub", hub.url, "--wishes", wishes)
    printed = run("plan", *options)
    assert printed.returncode == 1
    lines = printed.stdout.splitlines()
    assert lines[0].split("  ")[0] == "model"
    assert lines[1].split()[:3] == [SOURCE, "0.0002", "GB"]
    assert "not_allowed: s3://bucket/model may not be fetched" in lines[2]
    steps = json.loads(run("plan", "--json", *options).stdout)["steps"]
    assert [(step["source"], step["action"], step["cause"]) for step in steps] == [
        (SOURCE, "fetch", ""),
        ("s3://bucket/model", "none", "not_allowed"),
    ]
    assert not hub.sent


@pytest.mark.slow
def test_agent_without_wishes_is_bad_usage(tmp_path: Path) -> None:
    done = run("agent", "--root", tmp_path)
    assert (done.returncode, "neither --node nor --wishes is given" in done.stderr) == (2, True)
    (tmp_path / "wishes.yaml").write_text("models: 3\n")
    done = run("agent", "--root", tmp_path, "--wishes", tmp_path / "wishes.yaml")
    assert (done.returncode, "not wishes; allowed: a list of sources" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    "text", ["models: 3", "- 3", "- source: 3", "- [a]", "- {pinned: true}", "- \x00", "{", "- a\n---\n- b", "- .inf"]
)
def test_file_that_holds_no_wishes_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "wishes.yaml").write_text(text)
    with pytest.raises(PolicyError):
        load_wishes(tmp_path / "wishes.yaml")


def test_one_invalid_source_in_a_file_is_refused_alone(tmp_path: Path) -> None:
    (tmp_path / "wishes.yaml").write_text(f"# urgent\n- {SOURCE}\n- ftp://x/y\n")
    wishes = load_wishes(tmp_path / "wishes.yaml")
    assert wishes.wishes == (Wish(parse(SOURCE)),)
    assert [text for text, _ in wishes.refused] == ["ftp://x/y"]
    (tmp_path / "wishes.yaml").write_text("")
    assert load_wishes(tmp_path / "wishes.yaml") == Wishes()


def test_broken_file_leaves_the_previous_wishes(tmp_path: Path) -> None:
    import asyncio

    class Later(SystemClock):
        passed_s = 0.0

        def now_s(self) -> float:
            return self.passed_s

    path, clock, changed = tmp_path / "wishes.yaml", Later(), asyncio.Event()
    path.write_text(f"- {SOURCE}\n")
    file = WishFile(path, clock)
    path.write_text("{broken")
    clock.passed_s = 10.0
    assert file.current(changed).wishes == (Wish(parse(SOURCE)),)
    assert "wishes.yaml" in file.problem
    assert changed.is_set()
    path.unlink()
    clock.passed_s = 20.0
    assert file.current(changed).wishes == (Wish(parse(SOURCE)),)


@pytest.mark.parametrize(("private", "opens"), [((), False), (("hf://other/*=a",), False), (("hf://org/*=a",), True)])
async def test_token_is_used_for_private_sources_alone(
    tmp_path: Path, hub: FakeHub, private: tuple[str, ...], opens: bool
) -> None:
    hub.token = "hf_secret"
    (tmp_path / "token").write_text("hf_secret")
    given = {"hub": hub.url, "token_file": tmp_path / "token", "allow_pickled": False, "workers": 1, "rate": 0}
    rules = SourceRules(DEFAULT_RULES.allowed, tuple(map(PrivateSources.parse, private)))
    described = FetchOptions(given, rules).origin(parse("hf://org/model@main")).describe()
    if opens:
        assert (await described).files
    else:
        with pytest.raises(WeightsError) as raised:
            await described
        assert raised.value.cause is WeightsCause.DENIED
