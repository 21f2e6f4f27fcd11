"""An agent that is killed at random moments, again and again, goes on where it was, and no label is ever wrong."""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from autoscaler.config.weights.source import parse
from autoscaler.weights.store import WeightStore
from tests.harness.forked import forks
from tests.harness.hub import FakeHub, safetensors, serving
from tests.weights import agent_process
from tests.weights.agent_process import RANGE

HUB = "hf://org/model@main"
MANY = [25, pytest.param(110, marks=pytest.mark.long)]
PATIENCE_S = 60


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    files = {"config.json": b"{}"} | {f"model-{n}.safetensors": safetensors(2_500_000, n) for n in range(4)}
    with serving(FakeHub(files)) as served:
        yield served


class Node:
    """A folder, its labels, and one agent at a time."""

    def __init__(self, folder: Path, hub: FakeHub, max_bytes: float = float("inf")) -> None:
        self.root, self.labels = folder / "root", folder / "labels"
        self.root.mkdir()
        self._hub, self._max_bytes = hub, max_bytes

    def start(self, *wished: str, as_nobody: bool = False) -> ForkServerProcess:
        arguments = (self.root, self._hub.url, self.labels, wished, self._max_bytes, as_nobody)
        process = forks().Process(target=agent_process.run, args=arguments, daemon=True)
        process.start()
        return process

    def ready(self) -> list[str]:
        return json.loads(self.labels.read_text()) if self.labels.exists() else []

    def wait(self, process: ForkServerProcess, wished: Sequence[str]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while set(wished) - set(self.ready()):
            assert process.is_alive()
            assert time.monotonic() < deadline, self.ready()
            time.sleep(0.02)

    def check(self) -> None:
        """Every label is true, and every published model is whole."""
        store = WeightStore(self.root)
        present = {str(model.listing.source) for model in store.models()}
        assert set(self.ready()) <= present
        for model in store.models():
            assert store.find_incomplete(model) == ""


def kill(process: ForkServerProcess) -> None:
    process.kill()
    process.join()


@pytest.mark.slow
@pytest.mark.parametrize("kills", MANY)
def test_nothing_is_fetched_whole_again_after_many_kills(tmp_path: Path, hub: FakeHub, kills: int) -> None:
    node, chance = Node(tmp_path, hub), random.Random(1)
    hub.delay_s = 0.02
    for _ in range(kills):
        sent, process = sum(hub.sent.values()), node.start(HUB)
        deadline = time.monotonic() + PATIENCE_S
        while sum(hub.sent.values()) == sent and HUB not in node.ready() and time.monotonic() < deadline:
            time.sleep(0.002)
        time.sleep(chance.uniform(0.0, 0.03))
        kill(process)
        node.check()
    hub.delay_s = 0.0
    process = node.start(HUB)
    node.wait(process, [HUB])
    kill(process)
    total = sum(map(len, hub.files.values()))
    assert sum(hub.sent.values()) <= total + kills * 2 * RANGE  # two ranges are under way when a process is killed
    assert sum(hub.sent.values()) < 3 * total
    store = WeightStore(node.root)
    assert [store.verify(model, lambda _: None) for model in store.models()] == [[]]


@pytest.mark.slow
@pytest.mark.parametrize("kills", MANY)
def test_labels_are_true_while_evictions_are_cut_short(tmp_path: Path, hub: FakeHub, kills: int) -> None:
    sources = []
    for number in range(4):
        folder = tmp_path / f"origin-{number}"
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(safetensors(300_000, number))
        sources.append(str(parse(f"file://{folder}")))
    node, chance = Node(tmp_path, hub, max_bytes=700_000), random.Random(2)
    for _ in range(kills):
        process = node.start(*chance.sample(sources, 2))
        begun = time.monotonic()
        while not node.labels.exists() and time.monotonic() < begun + PATIENCE_S:
            time.sleep(0.002)
        time.sleep(chance.uniform(0.0, 0.15))
        kill(process)
        node.check()
    last = sources[:2]
    process = node.start(*last)
    node.wait(process, last)
    kill(process)
    node.check()


@pytest.mark.slow
def test_disk_that_cannot_be_written_keeps_its_models_ready(hub: FakeHub) -> None:
    """The process has no right to write, which is the same for it as a disk that was mounted again to be read only."""
    with tempfile.TemporaryDirectory() as name:  # folders of pytest are closed to other users
        Path(name).chmod(0o777)
        _cannot_be_written(Path(name), hub)


def _cannot_be_written(folder: Path, hub: FakeHub) -> None:
    sources = []
    for name in ("held", "absent"):
        (folder / name).mkdir()
        (folder / name / "model.safetensors").write_bytes(safetensors(100_000))
        sources.append(str(parse(f"file://{folder / name}")))
    source, absent = sources
    node = Node(folder, hub)
    process = node.start(source)
    node.wait(process, [source])
    kill(process)
    node.labels.unlink()
    node.labels.with_name("labels.new").unlink(missing_ok=True)
    (node.root / ".vllm-autoscaler" / "agent.lock").chmod(0o666)
    (node.root / ".vllm-autoscaler" / "lock").chmod(0o444)
    folders = [node.root, *(path for path in node.root.rglob("*") if path.is_dir())]
    for path in folders:
        path.chmod(0o555)
    try:
        process = node.start(source, absent, as_nobody=True)
        node.wait(process, [source])
        deadline = time.monotonic() + PATIENCE_S
        failures = folder / "failures"
        while not failures.exists() or "disk" not in failures.read_text():
            assert process.is_alive()
            assert time.monotonic() < deadline, (node.labels.read_text(), failures.exists() and failures.read_text())
            time.sleep(0.02)
        assert node.ready() == [source]
        kill(process)
    finally:
        for path in folders:
            path.chmod(0o755)
    process = node.start(source, absent)
    node.wait(process, [source, absent])
    kill(process)
