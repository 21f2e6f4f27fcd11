"""A model of a bucket or a directory that changes: an engine keeps the version that it loads, and never sees two."""

from __future__ import annotations

import shutil
from pathlib import Path
from shutil import move

import pytest

from autoscaler.config.weights.source import ModelSource, parse
from autoscaler.weights import pod_view
from autoscaler.weights.budget import Limits
from autoscaler.weights.fetch import Transfer
from autoscaler.weights.listing import RemoteFile
from autoscaler.weights.origins.object_store import Objects
from autoscaler.weights.store import PublishedModel, WeightStore
from tests.harness.hub import safetensors

TRANSFER = Transfer(workers=4, range_bytes=64 << 10)
SHARDS = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]


class Counting(Objects):
    """An origin that counts the bytes that are read from it."""

    fetched = 0

    async def read(self, file: RemoteFile, start: int, length: int) -> memoryview:
        self.fetched += length
        return await super().read(file, start, length)


@pytest.fixture
def source(tmp_path: Path) -> ModelSource:
    return parse(f"file://{tmp_path}/there")


def change(source: ModelSource, version: int) -> None:
    there = Path(source.location)
    there.mkdir(exist_ok=True)
    for name in SHARDS:
        (there / name).write_bytes(safetensors(100_000, version))


async def pull(store: WeightStore, source: ModelSource) -> tuple[PublishedModel, int]:
    """Return the model, and how many bytes were fetched."""
    origin = Counting(source)
    with store.changing():
        model = await store.pull(origin, TRANSFER, lambda _: None, await origin.describe())
    return model, origin.fetched


def versions(folder: Path) -> list[int]:
    """Return the version of each file that an engine finds in a folder."""
    known = {safetensors(100_000, version): version for version in range(5)}
    return [known[(folder / name).read_bytes()] for name in SHARDS]


async def test_engine_keeps_its_version_when_a_model_changes(tmp_path: Path, source: ModelSource) -> None:
    store, name, pod = WeightStore(tmp_path / "root"), tmp_path / "root" / source.folder, tmp_path / "pod"
    change(source, 1)
    first, _ = await pull(store, source)
    loads = pod_view.link(pod, store.root, first)
    opened = (loads / SHARDS[0]).open("rb")
    assert versions(name) == versions(loads) == [1, 1, 1]
    change(source, 2)
    second, _ = await pull(store, source)
    assert opened.read() == safetensors(100_000, 1)
    assert versions(loads) == versions(first.path) == [1, 1, 1]
    assert versions(name) == versions(second.path) == [2, 2, 2]
    assert loads == pod / source.folder
    assert store.find(source.key) == second._replace(used_s=store.models()[-1].used_s)
    (former,) = [each for each in store.models() if each.is_former]
    assert former.path == first.path
    assert store.verify(former, lambda _: None) == []
    opened.close()


async def test_version_that_comes_back_is_not_fetched_again(tmp_path: Path, source: ModelSource) -> None:
    """A bucket that is rolled back has the same ETags; a directory has them when its files are moved back."""
    store, aside = WeightStore(tmp_path / "root"), tmp_path / "aside"
    change(source, 1)
    first, _ = await pull(store, source)
    move(source.location, aside)
    change(source, 2)
    second, _ = await pull(store, source)
    shutil.rmtree(source.location)
    move(aside, source.location)
    again, fetched = await pull(store, source)
    assert (again.path, fetched) == (first.path, 0)
    assert versions(store.root / source.folder) == [1, 1, 1]
    assert [each.path for each in store.models() if each.is_former] == [second.path]


async def test_former_version_goes_when_its_room_is_needed(tmp_path: Path, source: ModelSource) -> None:
    store = WeightStore(tmp_path / "root", Limits(max_bytes=500_000))
    change(source, 1)
    first, _ = await pull(store, source)
    change(source, 2)
    await pull(store, source)
    assert not first.path.exists()
    assert versions(store.root / source.folder) == [2, 2, 2]


async def test_all_versions_go_when_all_are_removed(tmp_path: Path, source: ModelSource) -> None:
    store = WeightStore(tmp_path / "root")
    for version in range(4):
        change(source, version)
        await pull(store, source)
    assert len([path for path in (store.root / "models").iterdir() if not path.is_symlink()]) == 4
    with store.changing():
        for model in store.models():
            store.remove(model)
    assert list((store.root / "models").iterdir()) == []


async def test_folder_of_an_earlier_release_is_used_until_it_changes(tmp_path: Path, source: ModelSource) -> None:
    """Earlier releases have the files themselves where the link is now."""
    store, name = WeightStore(tmp_path / "root"), tmp_path / "root" / source.folder
    change(source, 1)
    model, _ = await pull(store, source)
    name.unlink()
    model.path.rename(name)
    assert store.models()[0].path == name
    assert (await pull(store, source))[1] == 0
    opened = (name / SHARDS[0]).open("rb")
    change(source, 2)
    await pull(store, source)
    assert opened.read() == safetensors(100_000, 1)
    assert versions(name) == [2, 2, 2]
    (former,) = [each for each in store.models() if each.is_former]
    assert versions(former.path) == [1, 1, 1]
    opened.close()


async def test_version_without_a_record_goes_at_the_next_change(tmp_path: Path, source: ModelSource) -> None:
    store = WeightStore(tmp_path / "root")
    change(source, 1)
    model, _ = await pull(store, source)
    left = model.path.with_name(f"{Path(source.folder).name}.{'0' * 16}")
    other = model.path.with_name(f"{'0' * 16}-{Path(source.folder).name}.{'0' * 16}")
    for folder in (left, other):
        folder.mkdir()
    change(source, 2)
    await pull(store, source)
    assert not left.exists()
    assert other.exists()


async def test_own_copy_of_a_pod_stays_when_a_container_starts_again(tmp_path: Path, source: ModelSource) -> None:
    store = WeightStore(tmp_path / "pod")
    change(source, 1)
    await pull(store, source)
    pod_view.clear_links(store.root, source)
    assert (await pull(store, source))[1] == 0
    assert versions(store.root / source.folder) == [1, 1, 1]
