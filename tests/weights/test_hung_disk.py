"""A disk that hangs for real: the agent says so, goes on with all that needs no disk, and recovers by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from autoscaler.config.weights.source import ModelSource
from autoscaler.weights.origins.object_store import Objects
from autoscaler.weights.problems import WeightsCause
from tests.harness.hub import FakeHub, safetensors, serving
from tests.harness.hung_disk import freezable, hung, may_freeze
from tests.weights.test_agent import HUB, SIZE, TIMES, InMemoryNode, running, until

pytestmark = pytest.mark.skipif(not may_freeze(), reason="this process may mount no disk that hangs")

HUNG = replace(TIMES, slow_s=0.5)


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with serving(FakeHub({"config.json": b"{}", "model.safetensors": safetensors(3_000_000)})) as served:
        yield served


@pytest.fixture
def models(tmp_path: Path) -> Callable[[str], ModelSource]:
    def make(name: str) -> ModelSource:
        folder = tmp_path / "origin" / name
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(safetensors(SIZE, len(name)))
        return ModelSource("file", str(folder))

    return make


def does_not_answer(node: InMemoryNode) -> bool:
    last = node.reports[-1]
    return last.cause == WeightsCause.DISK and "does not answer" in last.text and not last.models


async def test_writes_that_hang_are_told_until_they_end(tmp_path: Path, models: Callable[[str], ModelSource]) -> None:
    first, second = models("a"), models("bb")
    node = InMemoryNode(first)
    with freezable(tmp_path / "disk", tmp_path / "image") as freeze:
        async with running(tmp_path / "disk", node, open_origin=Objects, times=HUNG):
            await until(lambda: node.is_ready(first))
            with freeze():
                node.wish(first, second)
                await until(lambda: does_not_answer(node))
            await until(lambda: node.is_ready(first) and node.is_ready(second))


async def test_transfer_on_a_disk_that_hangs_goes_on_afterwards(tmp_path: Path, hub: FakeHub) -> None:
    """The hub sends so slowly that the disk hangs in the middle of the transfer."""
    node = InMemoryNode(HUB)
    hub.delay_s = 0.05
    with freezable(tmp_path / "disk", tmp_path / "image") as freeze:
        async with running(tmp_path / "disk", node, hub, times=HUNG) as agent:
            await until(lambda: agent.fetching is not None and agent.fetching.fetched > 0)
            with freeze():
                await until(lambda: does_not_answer(node))
            await until(lambda: node.is_ready(HUB))


async def test_disk_that_answers_nothing_is_told_until_it_does(
    tmp_path: Path, models: Callable[[str], ModelSource]
) -> None:
    first, second, root = models("a"), models("bb"), tmp_path / "root"
    node = InMemoryNode(first)
    async with running(root, node, open_origin=Objects, times=HUNG):
        await until(lambda: node.is_ready(first))
        with hung(root):
            node.wish(first, second)
            await until(lambda: does_not_answer(node))
        await until(lambda: node.is_ready(first) and node.is_ready(second))
