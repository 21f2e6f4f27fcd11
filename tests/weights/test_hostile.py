"""What others plant in the folder of weights, or answer as a hub, harms nothing outside it and hangs nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from autoscaler.config.weights.source import InvalidSourceError, parse
from autoscaler.weights.fetch import MAX_DECODED_BYTES, check_safetensors
from autoscaler.weights.origins.hub import Hub
from autoscaler.weights.problems import Cause, WeightsError
from autoscaler.weights.store import OWN, PARTS, RECORDS, Store
from tests.harness.hub import COMMIT, FakeHub, safetensors, serving
from tests.weights.test_store import SOURCE, contents, pull

KEY = parse(SOURCE).key
REPOSITORY = Path("hub") / "models--org--model"


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with serving(FakeHub({"config.json": b"{}", "model.safetensors": safetensors(20_000)})) as served:
        yield served


@pytest.mark.parametrize(
    "planted",
    [
        Path(OWN) / RECORDS / f".{KEY}.json.new",
        Path(OWN) / RECORDS / f"{KEY}.new",
        Path(OWN) / RECORDS / f"{KEY}.json",
        REPOSITORY / "refs" / ".main.new",
        REPOSITORY / "refs" / "main",
        REPOSITORY / "trees" / f".{COMMIT}.json.new",
    ],
)
async def test_links_in_the_folder_are_not_written_through(tmp_path: Path, hub: FakeHub, planted: Path) -> None:
    root, other = tmp_path / "root", tmp_path / "other"
    other.write_text("of another user")
    (root / planted).parent.mkdir(parents=True)
    (root / planted).symlink_to(other)
    model = await pull(root, hub)
    assert contents(model.path) == hub.files
    assert other.read_text() == "of another user"


async def test_marks_of_transfers_are_not_written_through_links(tmp_path: Path, hub: FakeHub) -> None:
    root, other = tmp_path / "root", tmp_path / "other"
    other.write_text("of another user")
    hub.damaged["model.safetensors"] = 2
    with pytest.raises(WeightsError):
        await pull(root, hub)
    for path in (root / OWN / PARTS / KEY).glob("*.corrupt"):
        path.with_name(path.name.replace("corrupt", "verified")).symlink_to(other)
    await pull(root, hub)
    assert other.read_text() == "of another user"


@pytest.mark.parametrize(
    "planted", [Path(OWN), Path(OWN) / PARTS, Path(OWN) / RECORDS, Path(OWN) / PARTS / KEY, Path("hub"), REPOSITORY]
)
async def test_folder_that_leads_elsewhere_is_refused(tmp_path: Path, hub: FakeHub, planted: Path) -> None:
    root, other = tmp_path / "root", tmp_path / "other"
    other.mkdir()
    (root / planted).parent.mkdir(parents=True, exist_ok=True)
    (root / planted).symlink_to(other)
    with pytest.raises(WeightsError, match="leads out of") as raised:
        await pull(root, hub)
    assert raised.value.cause is Cause.DISK
    assert not [path for path in other.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    "record", [b'{"source": "\xff"}', b"\xff", b"[" * 100_000, b'{"source": 1e999}', b'{"source": "x", "files": [NaN]}']
)
def test_record_is_left_out_when_it_cannot_be_read(tmp_path: Path, record: bytes) -> None:
    store = Store(tmp_path)
    (tmp_path / OWN / RECORDS).mkdir(parents=True)
    (tmp_path / OWN / RECORDS / f"{KEY}.json").write_bytes(record)
    (tmp_path / OWN / "report.json").write_bytes(record)
    assert store.models() == []
    assert store.find(KEY) is None
    assert store.read_report() is None


async def test_pipes_in_place_of_files_hang_nothing(tmp_path: Path, hub: FakeHub) -> None:
    model = await pull(tmp_path, hub)
    os.mkfifo(tmp_path / OWN / RECORDS / "0123456789abcdef.json")
    os.mkfifo(tmp_path / REPOSITORY / "refs" / "pipe")
    store = Store(tmp_path)
    assert [found.path for found in store.models()] == [model.path]
    blob = (model.path / "config.json").resolve()
    blob.unlink()
    os.mkfifo(blob)
    assert store.verify(model, lambda _: None) == ["'config.json': it is no file"]
    with store.changing():
        store.remove(model)
    assert store.models() == []


@pytest.mark.parametrize("name", ["lone\ud800.json", "é" * 200 + ".json"])
async def test_name_that_no_disk_takes_is_refused_before_the_first_byte(
    tmp_path: Path, hub: FakeHub, name: str
) -> None:
    hub.files[name] = b"x"
    with pytest.raises(WeightsError, match="is no valid path") as raised:
        await pull(tmp_path, hub)
    assert raised.value.cause is Cause.INVALID
    assert not hub.sent


def test_source_that_is_no_text_is_refused() -> None:
    with pytest.raises(InvalidSourceError, match="not printable"):
        parse(os.fsdecode(b"file:///weights/\xff"))


@pytest.mark.parametrize(
    "stated",
    [
        {"size": "large"},
        {"size": float("inf")},
        {"size": -5},
        {"size": 1 << 70},
        {"blobId": 7},
        {"blobId": None},
        {"lfs": {"sha256": None, "size": 2, "pointerSize": 1}},
        {"lfs": {"sha256": 5, "size": 2, "pointerSize": 1}},
    ],
)
async def test_listing_with_odd_values_is_refused(tmp_path: Path, hub: FakeHub, stated: dict[str, object]) -> None:
    hub.listed["config.json"] = stated
    with pytest.raises(WeightsError) as raised:
        await pull(tmp_path, hub)
    assert raised.value.cause is Cause.INVALID
    assert not hub.sent


async def test_list_of_files_that_is_too_long_is_not_read_whole(tmp_path: Path, hub: FakeHub) -> None:
    siblings = [{"rfilename": f"{number}{'a' * 100}", "size": 1, "blobId": "0" * 40} for number in range(100_000)]
    hub.siblings = lambda: siblings  # type: ignore[method-assign]
    with pytest.raises(WeightsError, match="the list of files has more than") as raised:
        await pull(tmp_path, hub)
    assert raised.value.cause is Cause.NOT_ALLOWED


@pytest.mark.parametrize(("length", "is_judged"), [(1000, True), (MAX_DECODED_BYTES + 1, False)])
def test_header_that_would_fill_the_memory_is_not_decoded(tmp_path: Path, length: int, is_judged: bool) -> None:
    header = b'{"weight": {"data_offsets": [0, 99]}}'.ljust(length)
    path = tmp_path / "model.safetensors"
    path.write_bytes(length.to_bytes(8, "little") + header)
    assert bool(check_safetensors(path, path.stat().st_size)) == is_judged


async def test_packed_listing_that_was_not_asked_for_is_refused(tmp_path: Path, hub: FakeHub) -> None:
    """A few packed bytes may become gigabytes."""
    hub.encoding = "gzip"
    with pytest.raises(WeightsError) as raised:
        await pull(tmp_path, hub)
    assert raised.value.cause is Cause.UNREACHABLE


async def test_listing_that_never_ends_is_given_up(tmp_path: Path, hub: FakeHub) -> None:
    hub.drip_s = 0.01
    hub.files |= {f"{number}.json": b"{}" for number in range(1000)}
    origin = Hub(parse(SOURCE), hub.url, list_s=0.5)
    with pytest.raises(WeightsError, match="the hub cannot be read") as raised:
        await origin.describe()
    assert raised.value.cause is Cause.UNREACHABLE
    hub.drip_s = 0.0
    assert len((await origin.describe()).files) == 1002


async def test_commit_that_two_sources_name_stays_until_both_are_removed(tmp_path: Path, hub: FakeHub) -> None:
    pinned = f"hf://org/model@{COMMIT}"
    await pull(tmp_path, hub, source=pinned)
    model, store = await pull(tmp_path, hub), Store(tmp_path)
    with store.changing():
        store.remove(model)
    assert [str(found.listing.source) for found in store.models()] == [pinned]
    with store.changing():
        store.remove(store.models()[0])
    assert not list((tmp_path / "hub").iterdir())


async def test_branch_that_moves_leaves_the_commit_that_another_source_names(tmp_path: Path, hub: FakeHub) -> None:
    pinned = await pull(tmp_path, hub, source=f"hf://org/model@{COMMIT}")
    before = dict(hub.files)
    await pull(tmp_path, hub)
    hub.commit, hub.files["config.json"] = "f" * 40, b'{"hidden_size": 16}'
    await pull(tmp_path, hub)
    assert contents(pinned.path) == before
    assert len(Store(tmp_path).models()) == 2
