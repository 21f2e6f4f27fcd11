"""The agent of a node brings the folder to what is wished, whatever its sources, its disk and the API server do."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import resource
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from autoscaler.adapters.clock import SystemClock
from autoscaler.config.weights.allowed import SourcePattern, is_allowed
from autoscaler.config.weights.report import ModelReport, Report, State
from autoscaler.config.weights.source import ModelSource, parse
from autoscaler.config.weights.wishes import Wish, Wishes
from autoscaler.ports import Unavailable
from autoscaler.weights.agent import Agent, Times
from autoscaler.weights.budget import Limits
from autoscaler.weights.fetch import Transfer
from autoscaler.weights.listing import Origin, RemoteFile
from autoscaler.weights.origins.hub import Hub
from autoscaler.weights.origins.object_store import Objects
from autoscaler.weights.problems import WeightsCause, WeightsError
from autoscaler.weights.store import WeightStore
from tests.harness.hub import FakeHub, safetensors, serving
from tests.harness.process import eventually

pytestmark = pytest.mark.slow

HUB = parse("hf://org/model@main")
TIMES = Times(
    settle_s=0.0,
    poll_s=0.1,
    probe_s=0.05,
    hold_s=0.05,
    report_s=0.02,
    used_s=0.0,
    pace=0.01,
    check_bytes_per_s=1e9,
    slow_s=20.0,
)
SIZE = 200_000


class InMemoryNode:
    """A node whose wishes and pods are set by a test. It keeps every report."""

    def __init__(self, *wished: ModelSource) -> None:
        self.changed = asyncio.Event()
        self.reports: list[Report] = []
        self.known: Wishes | None = Wishes()
        self.pods: list[ModelSource] | None = []
        self.caches: Sequence[str] = ()
        self.namespaces: dict[ModelSource, set[str]] = {}
        self.down = False
        self.wish(*wished)

    def wish(self, *sources: ModelSource, pinned: Sequence[ModelSource] = ()) -> None:
        self.known = Wishes(tuple(Wish(source, source in pinned) for source in sources))
        self.changed.set()

    def use(self, *sources: ModelSource) -> None:
        self.pods = list(sources)
        self.changed.set()

    def wishes(self) -> Wishes | None:
        return self.known

    def used(self) -> Sequence[ModelSource] | None:
        return self.pods

    def namespaces_of(self, source: ModelSource) -> Collection[str]:
        return self.namespaces.get(source, {"my-team"})

    def used_caches(self) -> Sequence[str]:
        return self.caches

    def problem(self) -> str:
        return ""

    async def publish(self, report: Report) -> None:
        if self.down:
            raise Unavailable("the API server is down")
        self.reports.append(report)

    def seen(self, source: ModelSource) -> ModelReport | None:
        return self.reports[-1].models.get(source.key) if self.reports else None

    def is_ready(self, source: ModelSource) -> bool:
        seen = self.seen(source)
        return seen is not None and seen.state is State.READY

    def failed(self, source: ModelSource) -> str:
        seen = self.seen(source)
        return seen.cause if seen is not None and seen.state is State.FAILED else ""


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with serving(FakeHub({"config.json": b"{}", "model.safetensors": safetensors(SIZE)})) as served:
        yield served


@pytest.fixture
def models(tmp_path: Path) -> Callable[[str], ModelSource]:
    """Return a function that makes a model in a directory of the machine."""

    def make(name: str, size: int = SIZE) -> ModelSource:
        folder = tmp_path / "origin" / name
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(safetensors(size, len(name)))
        return parse(f"file://{folder}")

    return make


@asynccontextmanager
async def running(
    root: Path,
    node: InMemoryNode,
    hub: FakeHub | None = None,
    limits: Limits | None = None,
    times: Times = TIMES,
    max_cache_bytes: float = float("inf"),
    allowed: str = "**",
    open_origin: Callable[[ModelSource], Origin] | None = None,
) -> AsyncIterator[Agent]:
    def found(source: ModelSource) -> Origin:
        if not is_allowed(source, [SourcePattern(f"{source.scheme}://{allowed}")]):
            raise WeightsError(WeightsCause.NOT_ALLOWED, f"{source} may not be fetched")
        return Hub(source, hub.url) if hub is not None and source.scheme == "hf" else Objects(source)

    await asyncio.to_thread(root.mkdir, exist_ok=True)
    agent = Agent(
        WeightStore(root, limits or Limits(min_free_share=0.0), makes_root=False),
        open_origin or found,
        Transfer(workers=2, range_bytes=64 << 10),
        node,
        SystemClock(),
        "0.0",
        max_cache_bytes,
        times,
    )
    task = asyncio.ensure_future(agent.run())
    try:
        yield agent
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def until(condition: Callable[[], bool]) -> None:
    async def probe() -> bool:
        return condition()

    await eventually(probe, "the state that the test waits for", every_s=0.01)


def shard_of(root: Path) -> Path:
    return next(path for path in root.rglob("model.safetensors")).resolve()


def held(root: Path) -> set[str]:
    return {str(model.listing.source) for model in WeightStore(root).models()}


async def test_wished_models_are_fetched_in_order_and_reported(
    tmp_path: Path, hub: FakeHub, models: Callable[..., ModelSource]
) -> None:
    root, first, second = tmp_path / "root", models("a"), models("bb")
    node = InMemoryNode(first, HUB, second)
    async with running(root, node, hub):
        await until(lambda: all(map(node.is_ready, (first, HUB, second))))
    order = list(dict.fromkeys(key for r in node.reports for key, m in r.models.items() if m.state == "ready"))
    assert order == [first.key, HUB.key, second.key]
    seen = node.seen(HUB)
    assert seen is not None
    assert seen.size > SIZE
    assert (node.reports[-1].agent, node.reports[-1].cause) == ("0.0", "")
    assert node.reports[-1].free_bytes > 0


async def test_model_that_a_pod_waits_for_overtakes_the_wishes(
    tmp_path: Path, hub: FakeHub, models: Callable[..., ModelSource]
) -> None:
    hub.delay_s = 0.3
    urgent = models("a")
    node = InMemoryNode(HUB)
    async with running(tmp_path / "root", node, hub):
        await until(lambda: sum(hub.sent.values()) > 0)
        node.use(urgent)
        node.wish(HUB, urgent)
        await until(lambda: node.is_ready(urgent))
        assert not node.is_ready(HUB)
        hub.delay_s = 0.0
        await until(lambda: node.is_ready(HUB))
    assert sum(hub.sent.values()) <= sum(map(len, hub.files.values())) + 2 * (64 << 10)


async def test_one_failed_model_does_not_keep_the_others_out(
    tmp_path: Path, hub: FakeHub, models: Callable[..., ModelSource]
) -> None:
    hub.damaged["model.safetensors"] = 1000
    absent, good = parse("hf://org/other@main"), models("a")
    node = InMemoryNode(HUB, absent, parse(f"file://{tmp_path}/nothing"), good)
    async with running(tmp_path / "root", node, hub):
        await until(lambda: node.is_ready(good) and node.failed(HUB) == "corrupt")
        await until(lambda: node.failed(absent) == "not_found")
        hub.damaged.clear()
        await until(lambda: node.is_ready(HUB))


@pytest.mark.parametrize(
    ("status", "cause"), [(401, "denied"), (403, "denied"), (404, "not_found"), (503, "unreachable")]
)
async def test_refusal_of_the_hub_is_a_state_until_it_ends(
    tmp_path: Path, hub: FakeHub, models: Callable[..., ModelSource], status: int, cause: str
) -> None:
    hub.status, other = status, models("a")
    node = InMemoryNode(HUB, other)
    async with running(tmp_path / "root", node, hub):
        await until(lambda: node.failed(HUB) == cause and node.is_ready(other))
        hub.status = 0
        await until(lambda: node.is_ready(HUB))


async def test_source_that_is_not_allowed_is_never_asked(tmp_path: Path, hub: FakeHub) -> None:
    node = InMemoryNode(HUB)
    async with running(tmp_path / "root", node, hub, allowed="my-org/*"):
        await until(lambda: node.failed(HUB) == "not_allowed")
    assert not hub.sent


async def test_least_recently_used_is_evicted_after_its_label(
    tmp_path: Path, models: Callable[..., ModelSource]
) -> None:
    root, sources = tmp_path / "root", [models("a" * number) for number in range(1, 5)]
    first, second, third, fourth = sources
    node = InMemoryNode(first, second, third)
    limits = Limits(max_bytes=3.5 * SIZE, min_free_share=0.0)
    gone_with_label: list[str] = []

    class Watching(InMemoryNode):
        async def publish(self, report: Report) -> None:
            await super().publish(report)
            on_disk = {model.listing.source.key for model in WeightStore(root).models()}
            ready = {key for key, model in report.models.items() if model.state is State.READY}
            gone_with_label.extend(ready - on_disk)

    node = Watching(first, second, third)
    async with running(root, node, limits=limits) as agent:
        await until(lambda: all(map(node.is_ready, sources[:3])))
        node.use(first)
        node.wish(fourth)
        await until(lambda: node.is_ready(fourth))
        assert held(root) == {str(first), str(third), str(fourth)}
        assert not node.is_ready(second)
        assert agent.counts.evictions == 1
    assert not gone_with_label


async def test_nothing_is_evicted_while_pods_or_labels_are_not_known(
    tmp_path: Path, models: Callable[..., ModelSource]
) -> None:
    root, old, new = tmp_path / "root", models("a"), models("bb")
    node = InMemoryNode(old)
    async with running(root, node, limits=Limits(max_bytes=1.5 * SIZE, min_free_share=0.0)):
        await until(lambda: node.is_ready(old))
        node.pods = None
        node.wish(new)
        await until(lambda: node.failed(new) == "no_space")
        node.down, node.pods = True, []
        await asyncio.sleep(0.5)
        assert held(root) == {str(old)}
        node.down = False
        await until(lambda: node.is_ready(new))
        assert held(root) == {str(new)}


async def test_model_in_use_is_never_evicted(tmp_path: Path, models: Callable[..., ModelSource]) -> None:
    root, used, new = tmp_path / "root", models("a"), models("bb")
    node = InMemoryNode(used)
    async with running(root, node, limits=Limits(max_bytes=1.5 * SIZE, min_free_share=0.0)):
        await until(lambda: node.is_ready(used))
        node.use(used)
        node.wish(new)
        await until(lambda: node.failed(new) == "no_space")
        assert node.is_ready(used)
        node.use()
        await until(lambda: node.is_ready(new))


async def test_pods_take_no_room_of_wishes(tmp_path: Path, models: Callable[..., ModelSource]) -> None:
    root, pinned, first, last, pods = tmp_path / "root", *(models("a" * number) for number in range(1, 5))
    node = InMemoryNode()
    node.wish(first, last, pinned, pinned=[pinned])
    async with running(root, node, limits=Limits(max_bytes=3.5 * SIZE, min_free_share=0.0)) as agent:
        await until(lambda: all(map(node.is_ready, (first, last, pinned))))
        node.use(pods)
        await until(lambda: node.failed(pods) == "no_space")
        assert held(root) == {str(first), str(last), str(pinned)}
        assert agent.counts.evictions == 0
        node.wish(first, last, pinned, pods, pinned=[pinned])  # the daemon wishes it, too: its pod waits
        await until(lambda: node.is_ready(pods))
        await until(lambda: node.failed(last) == "no_space")
        assert held(root) == {str(pods), str(first), str(pinned)}


async def test_models_of_a_namespace_leave_room_for_others(tmp_path: Path, models: Callable[..., ModelSource]) -> None:
    root, *own, others, wished = tmp_path / "root", *(models("a" * number) for number in range(1, 6))
    node = InMemoryNode()
    node.namespaces = {others: {"another-team"}}
    async with running(root, node, limits=Limits(max_bytes=4.5 * SIZE, min_free_share=0.0)):
        node.use(*own, others)
        await until(lambda: all(map(node.is_ready, (*own[:2], others))))
        await until(lambda: node.failed(own[2]) == "no_space")
        node.wish(wished)
        await until(lambda: node.is_ready(wished))
    assert held(root) == {*map(str, own[:2]), str(others), str(wished)}


async def test_too_large_model_evicts_nothing(tmp_path: Path, models: Callable[..., ModelSource]) -> None:
    root, small, large = tmp_path / "root", models("a"), models("bb", 3 * SIZE)
    node = InMemoryNode(small)
    async with running(root, node, limits=Limits(max_bytes=2 * SIZE, min_free_share=0.0)):
        await until(lambda: node.is_ready(small))
        node.wish(large)
        await until(lambda: node.failed(large) == "no_space")
    assert held(root) == {str(small)}


async def test_unknown_wishes_keep_everything(tmp_path: Path, hub: FakeHub) -> None:
    node = InMemoryNode(HUB)
    async with running(tmp_path, node, hub):
        await until(lambda: node.is_ready(HUB))
        node.known = None
        node.changed.set()
        await asyncio.sleep(0.3)
        assert node.is_ready(HUB)


async def test_second_agent_says_nothing_and_takes_over_later(tmp_path: Path, hub: FakeHub) -> None:
    node, other = InMemoryNode(HUB), InMemoryNode(HUB)
    async with running(tmp_path, other, hub) as second:
        await until(lambda: other.is_ready(HUB))
        async with running(tmp_path, node, hub) as waiting:
            await until(lambda: waiting.report().cause == WeightsCause.BUSY)
            assert "another agent holds" in waiting.report().text
            assert not node.reports
            assert second.report().cause == ""
    async with running(tmp_path, node, hub):
        await until(lambda: node.is_ready(HUB))


async def test_restart_trusts_sizes_at_once_and_checksums_later(tmp_path: Path, hub: FakeHub) -> None:
    async with running(tmp_path, (node := InMemoryNode(HUB)), hub):
        await until(lambda: node.is_ready(HUB))
    hub.sent.clear()
    async with running(tmp_path, (node := InMemoryNode(HUB)), hub) as agent:
        await until(lambda: agent.counts.checks["right"] == 1)
        assert all(model.state is State.READY for report in node.reports for model in report.models.values())
    assert not hub.sent
    shard = shard_of(tmp_path)
    shard.write_bytes(shard.read_bytes()[:-1] + b"\0")
    async with running(tmp_path, (node := InMemoryNode(HUB)), hub) as agent:
        await until(lambda: agent.counts.checks["wrong"] == 1)
        await until(lambda: node.is_ready(HUB) and agent.counts.fetched_models == 1)
    assert hub.sent.keys() == {"model.safetensors"}


@pytest.mark.parametrize("recheck_s", [0.2, 1e9], ids=["daily", "a peer refuses it"])
async def test_model_that_was_right_is_checked_again(tmp_path: Path, hub: FakeHub, recheck_s: float) -> None:
    node, root = InMemoryNode(HUB), tmp_path / "root"
    async with running(root, node, hub, times=replace(TIMES, recheck_s=recheck_s)) as agent:
        await until(lambda: node.is_ready(HUB))
        shard = shard_of(root)
        shard.write_bytes(shard.read_bytes()[:-1] + b"\0")
        if recheck_s > 1.0:
            agent.suspect(HUB.key)
        await until(lambda: agent.counts.checks["wrong"] == 1)
        await until(lambda: node.is_ready(HUB) and agent.counts.fetched_models == 2)
    assert WeightStore(root).verify(WeightStore(root).models()[0], lambda _: None) == []


@pytest.mark.parametrize("harm", ["truncated", "file gone", "all gone"])
async def test_files_that_disappear_lose_their_label_and_come_back(tmp_path: Path, hub: FakeHub, harm: str) -> None:
    node, root = InMemoryNode(HUB), tmp_path / "root"
    async with running(root, node, hub):
        await until(lambda: node.is_ready(HUB))
        hub.delay_s = 0.2
        shard = shard_of(root)
        match harm:
            case "truncated":
                os.truncate(shard, 100)
            case "file gone":
                shard.unlink()
            case "all gone":
                shutil.rmtree(root / "hub")
        await until(lambda: not node.is_ready(HUB))
        await until(lambda: node.is_ready(HUB))
    assert WeightStore(root).verify(WeightStore(root).models()[0], lambda _: None) == []


async def test_disk_that_vanishes_takes_labels_away_until_it_is_back(tmp_path: Path, hub: FakeHub) -> None:
    """An instance store that comes back empty is filled again; one with its files needs no source."""
    root, node = tmp_path / "root", InMemoryNode(HUB)
    async with running(root, node, hub):
        await until(lambda: node.is_ready(HUB))
        hub.sent.clear()
        hub.status = 500
        root.rename(tmp_path / "away")
        root.touch()
        await until(lambda: node.reports[-1].cause == WeightsCause.DISK)
        assert not node.reports[-1].models
        root.unlink()
        (tmp_path / "away").rename(root)
        await until(lambda: node.is_ready(HUB) and not node.reports[-1].cause)
        assert not hub.sent
        root.rename(tmp_path / "away")
        await until(lambda: node.reports[-1].cause == WeightsCause.DISK)
        assert not root.exists()
        root.mkdir()
        await until(lambda: node.reports[-1].cause == "" and not node.is_ready(HUB))
        hub.status = 0
        await until(lambda: node.is_ready(HUB))
        assert hub.sent


async def test_slow_disk_is_told_and_forgotten(tmp_path: Path, hub: FakeHub) -> None:
    node = InMemoryNode(HUB)
    async with running(tmp_path, node, hub, times=replace(TIMES, slow_s=0.0, probe_s=0.2)) as agent:
        await until(lambda: any("does not answer" in report.text for report in node.reports))
        await until(lambda: node.is_ready(HUB))
        assert agent.report().cause in ("", WeightsCause.DISK)


async def test_full_disk_is_a_state_of_one_model(
    tmp_path: Path, hub: FakeHub, models: Callable[..., ModelSource]
) -> None:
    """Others use this disk too, so the space that may be used is what is left above a floor."""
    small, root = models("a"), tmp_path / "root"
    hub.listed["model.safetensors"] = {"size": 900_000_000}
    limits = Limits(min_free_bytes=shutil.disk_usage(tmp_path).free - 500_000_000, min_free_share=0.0)
    node = InMemoryNode(HUB, small)
    async with running(root, node, hub, limits=limits):
        await until(lambda: node.failed(HUB) == "no_space" and node.is_ready(small))
    assert not hub.sent


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[Path]:
    """Mount a file system with little room."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    subprocess.run(command, check=True, capture_output=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def may_mount() -> bool:
    """Tell whether this process may mount: not in most containers. A limit of file sizes stands in for a full disk."""
    with TemporaryDirectory() as name:
        try:
            with small_disk(Path(name) / "disk", 4096):
                return True
        except (OSError, subprocess.CalledProcessError):
            return False


@contextmanager
def small_files(size: int) -> Iterator[None]:
    """Let this process write no file beyond a size."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class Filling(Objects):
    """An origin whose disk is filled by others before the first byte arrives."""

    def __init__(self, source: ModelSource, root: Path) -> None:
        super().__init__(source)
        self._root = root

    async def read(self, file: RemoteFile, start: int, length: int) -> memoryview:
        with suppress(OSError), (self._root / "other").open("ab") as other:
            while True:
                other.write(bytes(4096))
                other.flush()
        return await super().read(file, start, length)


@pytest.mark.parametrize("is_mounted", [True, False] if may_mount() else [False])
async def test_disk_that_others_fill_meanwhile_harms_nothing(
    tmp_path: Path, models: Callable[..., ModelSource], is_mounted: bool
) -> None:
    first, second = models("a"), models("bb", 3 * SIZE)
    disk = tmp_path / "disk"
    with small_disk(disk, 10 * SIZE) if is_mounted else nullcontext(disk) as root:
        node = InMemoryNode(first)
        async with running(root, node, open_origin=Objects):
            await until(lambda: node.is_ready(first))
        with nullcontext() if is_mounted else small_files(2 * SIZE):
            async with running(root, node, open_origin=lambda source: Filling(source, root)):
                node.wish(first, second)
                await until(lambda: node.failed(second) == ("no_space" if is_mounted else "disk"))
                assert node.is_ready(first)
        (root / "other").unlink(missing_ok=True)
        async with running(root, node, open_origin=Objects):
            await until(lambda: node.is_ready(second))
        assert all(WeightStore(root).verify(model, lambda _: None) == [] for model in WeightStore(root).models())


async def test_plan_says_what_would_be_fetched_and_evicted(
    tmp_path: Path, hub: FakeHub, models: Callable[..., ModelSource]
) -> None:
    root, old, new, large = tmp_path / "root", models("a"), models("bb"), models("ccc", 9 * SIZE)
    limits = Limits(max_bytes=2.5 * SIZE, min_free_share=0.0)
    node = InMemoryNode(old)
    async with running(root, node, hub, limits=limits) as agent:
        await until(lambda: node.is_ready(old))
    node.wish(new, large, HUB, parse("hf://org/other@main"))
    steps = await agent.plan()
    assert [step.source for step in steps] == [new, large, HUB, parse("hf://org/other@main")]
    assert [step.cause for step in steps] == ["", "no_space", "", "not_found"]
    assert [step.evicted for step in steps] == [(), (), (old.key,), ()]
    assert held(root) == {str(old)}


@pytest.mark.parametrize("place", ["hub", ".vllm-autoscaler/parts", ".vllm-autoscaler/records", ".vllm-autoscaler"])
async def test_file_in_place_of_a_folder_is_told_until_it_goes(
    tmp_path: Path, hub: FakeHub, models: Callable[..., ModelSource], place: str
) -> None:
    root, other, node = tmp_path / "root", models("a"), InMemoryNode()
    node.wish(HUB, other)
    (root / place).parent.mkdir(parents=True)
    (root / place).touch()
    async with running(root, node, hub):
        if place == "hub":
            await until(lambda: node.failed(HUB) == "disk" and node.is_ready(other))
        else:
            await until(lambda: bool(node.reports) and node.reports[-1].cause == WeightsCause.DISK)
        (root / place).unlink()
        await until(lambda: node.is_ready(HUB) and node.is_ready(other))


def make_cache(root: Path, name: str, size: int, used_s: float) -> None:
    folder = root / "compile" / "my-team" / name
    (folder / "torch_compile_cache").mkdir(parents=True)
    (folder / "torch_compile_cache" / "code").write_bytes(os.urandom(size))
    os.utime(folder, (used_s, used_s))


def caches(root: Path) -> set[str]:
    return {path.name for path in (root / "compile" / "my-team").iterdir()}


async def test_compile_caches_have_a_share_and_yield_to_models(
    tmp_path: Path, models: Callable[..., ModelSource]
) -> None:
    root, source, node = tmp_path / "root", models("a"), InMemoryNode()
    for number, name in enumerate(["oldest", "old", "used", "newest"]):
        make_cache(root, name, SIZE, 1000.0 + number)
    (root / "compile" / "my-team" / "elsewhere").symlink_to(tmp_path)
    (root / "compile" / "file").touch()
    node.caches = ["compile/my-team/used"]
    limits = Limits(max_bytes=3.4 * SIZE, min_free_share=0.0)
    async with running(root, node, limits=limits, max_cache_bytes=3.2 * SIZE) as agent:
        await until(lambda: caches(root) == {"old", "used", "newest", "elsewhere"})
        await until(lambda: 3 * SIZE <= agent.cache_bytes < 3.1 * SIZE)
        node.wish(source)
        await until(lambda: node.is_ready(source))
        assert caches(root) == {"used", "newest", "elsewhere"}
        node.pods = None
        node.wish(source, models("bb"))
        await until(lambda: node.failed(parse(f"file://{tmp_path}/origin/bb")) == "no_space")
        assert caches(root) == {"used", "newest", "elsewhere"}
    assert (tmp_path / "origin").exists()
    assert (root / "compile" / "my-team" / "used").stat().st_mtime > 2000


async def test_cache_that_an_engine_made_too_deep_is_removed(tmp_path: Path) -> None:
    """Tenants write caches; the recursion limit of Python is no limit of a file system."""
    root, node = tmp_path / "root", InMemoryNode()
    make_cache(root, "deep", 100_000, 1000.0)
    top = here = os.open(root / "compile" / "my-team" / "deep", os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        if here != top:
            os.close(here)
        here = below
    os.close(here)
    os.utime(top, (1000.0, 1000.0))
    os.close(top)
    make_cache(root, "new", 100_000, 2000.0)
    async with running(root, node, max_cache_bytes=150_000.0):
        await until(lambda: caches(root) == {"new"})


async def test_plan_removes_nothing(tmp_path: Path) -> None:
    root, node = tmp_path / "root", InMemoryNode()
    make_cache(root, "old", SIZE, 1000.0)
    async with running(root, node) as agent:
        await until(lambda: agent.cache_bytes > 0)
    agent = Agent(WeightStore(root), Objects, Transfer(), node, SystemClock(), max_cache_bytes=1.0)
    assert await agent.plan() == []
    assert caches(root) == {"old"}


async def test_agent_that_ends_leaves_no_work_behind(tmp_path: Path) -> None:
    """A thread that asks the disk must end before the lock that it asks about is closed."""
    told: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: told.append(str(context)))
    chance = random.Random(4)
    own = tmp_path / ".vllm-autoscaler"
    own.mkdir()
    for number in range(20_000):  # the answer takes some time
        (own / str(number)).touch()
    for _ in range(10):
        async with running(tmp_path, InMemoryNode(), times=replace(TIMES, probe_s=0.0)):
            await asyncio.sleep(chance.uniform(0.02, 0.1))
    gc.collect()
    await asyncio.sleep(0.1)
    assert not told


async def test_model_that_is_seen_while_it_is_published_is_counted(
    tmp_path: Path, models: Callable[..., ModelSource]
) -> None:
    """Looks at the folder find a model before its transfer has ended, and must not put the transfer off."""
    sources = [models("a" * number, 1000) for number in range(1, 9)]
    node = InMemoryNode()

    async def change() -> None:
        while True:
            node.changed.set()
            await asyncio.sleep(0)

    changes = asyncio.ensure_future(change())
    try:
        async with running(tmp_path / "root", node) as agent:
            node.wish(*sources)
            await until(lambda: all(map(node.is_ready, sources)))
            await until(lambda: agent.counts.fetched_models == len(sources))
    finally:
        changes.cancel()
