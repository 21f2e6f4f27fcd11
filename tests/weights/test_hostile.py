"""What others plant in the folder of weights, or answer as a hub, harms nothing outside it and hangs nothing."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from autoscaler.config.weights.source import InvalidSourceError, parse
from autoscaler.weights.compile_cache import CompileCaches
from autoscaler.weights.fetch import MAX_DECODED_BYTES, check_safetensors
from autoscaler.weights.origins.hub import Hub
from autoscaler.weights.problems import WeightsCause, WeightsError
from autoscaler.weights.store import OWN, PARTS, RECORDS, WeightStore
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
    assert raised.value.cause is WeightsCause.DISK
    assert not [path for path in other.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    "record", [b'{"source": "\xff"}', b"\xff", b"[" * 100_000, b'{"source": 1e999}', b'{"source": "x", "files": [NaN]}']
)
def test_record_is_left_out_when_it_cannot_be_read(tmp_path: Path, record: bytes) -> None:
    store = WeightStore(tmp_path)
    (tmp_path / OWN / RECORDS).mkdir(parents=True)
    (tmp_path / OWN / RECORDS / f"{KEY}.json").write_bytes(record)
    (tmp_path / OWN / "report.json").write_bytes(record)
    assert store.models() == []
    assert store.find(KEY) is None
    assert store.read_report() is None


SHARD = hashlib.sha256(safetensors(20_000)).hexdigest()
PART = hashlib.sha256(b"model.safetensors").hexdigest()[:32]
FOLDERS = [
    *(Path(OWN), Path(OWN) / RECORDS, Path(OWN) / PARTS, Path(OWN) / PARTS / KEY, Path("hub"), REPOSITORY),
    *(REPOSITORY / name for name in ("blobs", "refs", "trees", "snapshots", f"snapshots/{COMMIT}", "refs/refs")),
    *(REPOSITORY / "snapshots" / name for name in (f".{COMMIT}.new", f".{COMMIT}.gone")),
    *(Path("compile"), Path("compile/my-team"), Path("compile/my-team/llama")),
]
FILES = [
    *(Path(OWN) / name for name in ("lock", "agent.lock", "report.json", ".report.json.new")),
    *(Path(OWN) / RECORDS / name for name in (f"{KEY}.json", f".{KEY}.json.new")),
    *(REPOSITORY / "blobs" / name for name in (SHARD, f".{SHARD}.new")),
    *(REPOSITORY / "snapshots" / COMMIT / name for name in ("config.json", "model.safetensors")),
    *(REPOSITORY / "refs" / name for name in ("main", ".main.new")),
    *(REPOSITORY / "trees" / name for name in (f"{COMMIT}.json", f".{COMMIT}.json.new")),
    *(Path(OWN) / PARTS / KEY / f"{PART}{end}" for end in ("", ".ranges", ".verified", ".corrupt")),
    *(Path(OWN) / PARTS / KEY / f"{SHARD}{end}" for end in (".aside",)),
]


def snapshot(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Return content and time of all files and folders."""
    return {
        str(path): (path.read_bytes() if path.is_file() else b"", path.stat().st_mtime_ns)
        for path in [folder, *sorted(folder.rglob("*"))]
    }


async def use_all(root: Path, hub: FakeHub) -> None:
    """Do all that an agent and a user do in a folder. What is refused is refused."""
    expected = WeightsError, OSError
    store, caches = WeightStore(root), CompileCaches(root)
    for commit in (COMMIT, "f" * 40):
        hub.commit = commit
        with suppress(*expected):
            await pull(root, hub, source=SOURCE if commit == COMMIT else "hf://org/model@refs/pr/1")
    with suppress(*expected):
        store.write_report("{}")
        store.space()
    with suppress(*expected):
        caches.use(["compile/my-team/llama"])
        for held in caches.held():
            caches.remove(held.name)
    for change in (store.set_aside, store.remove):
        with suppress(*expected):
            for model in store.models():
                with suppress(*expected), store.changing():
                    change(model)
    with suppress(*expected):
        store.discard(KEY)


def plant(place: Path, kind: str, outside: Path) -> None:
    """Put a link in place of what is there."""
    if place.is_symlink() or place.exists():
        place.rename(outside.with_name("moved"))
    place.parent.mkdir(parents=True, exist_ok=True)
    if kind == "hard":
        place.hardlink_to(outside / "main")
        return
    targets = {"folder": outside, "file": outside / "main", "dangling": outside / "absent"}
    place.symlink_to(targets.get(kind) or os.path.relpath(outside, place.parent.resolve()))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "later"),
    [("folder", False), ("relative", True), ("file", False), ("hard", False), ("hard", True), ("dangling", True)],
)
async def test_nothing_outside_changes_when_links_are_planted(
    tmp_path: Path, hub: FakeHub, kind: str, later: bool
) -> None:
    for number, planted in enumerate(FOLDERS if kind in ("folder", "relative") else FILES):
        root, outside = tmp_path / str(number) / "root", tmp_path / str(number) / "outside"
        for name in ("main", "config.json", f"{COMMIT}.json", SHARD, "llama/x", "pr/1"):
            (outside / name).parent.mkdir(parents=True, exist_ok=True)
            (outside / name).write_text(COMMIT)
        hub.commit = COMMIT
        if later:
            await pull(root, hub)
        expected = snapshot(outside)
        plant(root / planted, kind, outside)
        await use_all(root, hub)
        assert snapshot(outside) == expected, planted


async def test_pipes_in_place_of_files_hang_nothing(tmp_path: Path, hub: FakeHub) -> None:
    model = await pull(tmp_path, hub)
    os.mkfifo(tmp_path / OWN / RECORDS / "0123456789abcdef.json")
    os.mkfifo(tmp_path / REPOSITORY / "refs" / "pipe")
    store = WeightStore(tmp_path)
    assert [found.path for found in store.models()] == [model.path]
    blob = (model.path / "config.json").resolve()
    blob.unlink()
    os.mkfifo(blob)
    assert store.verify(model, lambda _: None) == ["'config.json': it is no file"]
    with store.changing():
        store.remove(model)
    assert store.models() == []


@pytest.mark.parametrize("name", ["lone\ud800.json", "é" * 200 + ".json"])
async def test_name_that_no_disk_takes_is_refused_at_first(tmp_path: Path, hub: FakeHub, name: str) -> None:
    hub.files[name] = b"x"
    with pytest.raises(WeightsError, match="is no valid path") as raised:
        await pull(tmp_path, hub)
    assert raised.value.cause is WeightsCause.INVALID
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
    assert raised.value.cause is WeightsCause.INVALID
    assert not hub.sent


async def test_list_of_files_that_is_too_long_is_not_read_whole(tmp_path: Path, hub: FakeHub) -> None:
    siblings = [{"rfilename": f"{number}{'a' * 100}", "size": 1, "blobId": "0" * 40} for number in range(100_000)]
    hub.siblings = lambda: siblings  # type: ignore[method-assign]
    with pytest.raises(WeightsError, match="the list of files has more than") as raised:
        await pull(tmp_path, hub)
    assert raised.value.cause is WeightsCause.NOT_ALLOWED


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
    assert raised.value.cause is WeightsCause.UNREACHABLE


async def test_listing_that_never_ends_is_given_up(tmp_path: Path, hub: FakeHub) -> None:
    hub.drip_s = 0.01
    hub.files |= {f"{number}.json": b"{}" for number in range(1000)}
    with pytest.raises(WeightsError, match="the hub cannot be read") as raised:
        await Hub(parse(SOURCE), hub.url, list_s=0.5).describe()
    assert raised.value.cause is WeightsCause.UNREACHABLE
    hub.drip_s = 0.0
    assert len((await Hub(parse(SOURCE), hub.url).describe()).files) == 1002


async def test_commit_of_two_sources_stays_until_both_are_removed(tmp_path: Path, hub: FakeHub) -> None:
    pinned = f"hf://org/model@{COMMIT}"
    await pull(tmp_path, hub, source=pinned)
    model, store = await pull(tmp_path, hub), WeightStore(tmp_path)
    with store.changing():
        store.remove(model)
    assert [str(found.listing.source) for found in store.models()] == [pinned]
    with store.changing():
        store.remove(store.models()[0])
    assert not list((tmp_path / "hub").iterdir())


async def test_commit_of_another_source_stays_when_a_branch_moves(tmp_path: Path, hub: FakeHub) -> None:
    pinned = await pull(tmp_path, hub, source=f"hf://org/model@{COMMIT}")
    before = dict(hub.files)
    await pull(tmp_path, hub)
    hub.commit, hub.files["config.json"] = "f" * 40, b'{"hidden_size": 16}'
    await pull(tmp_path, hub)
    assert contents(pinned.path) == before
    assert len(WeightStore(tmp_path).models()) == 2
