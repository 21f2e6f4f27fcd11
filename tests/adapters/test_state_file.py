"""The state file on a real file system: saving, loading, and invalid files."""

import asyncio
import io
import json
import os
import resource
import stat
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autoscaler.adapters import state_file
from autoscaler.adapters.state_file import StateFile
from autoscaler.core.planner.strategies import SIGNATURE
from autoscaler.core.snapshot import ManualOverride, Snapshot, blank, restore
from autoscaler.core.state import Memory
from autoscaler.ports import Unavailable
from tests.core.serving import LEARNED, Serving
from tests.core.world import fleet, spec

WALL_S = 1_800_000_000.0
relaxed = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


def snapshot(rows: int, seed: int = 1) -> Snapshot:
    random = np.random.default_rng(seed)
    columns = {}
    for place, empty in blank().items():
        values = random.random((*empty.shape[:-1], rows)).astype(empty.dtype)
        columns[place] = np.where(values < 0.2, np.nan, values).astype(empty.dtype)
    names = tuple(("team", "Deployment", f"w{row}-ü", f"uid-{row}") for row in range(rows))
    return Snapshot(names, WALL_S + seed, columns)


def same(one: Snapshot, other: Snapshot | None) -> None:
    assert other is not None
    assert (other.workloads, other.wall_s, set(other.columns)) == (one.workloads, one.wall_s, set(one.columns))
    for place, column in one.columns.items():
        np.testing.assert_array_equal(other.columns[place], column, err_msg=place)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.npz"


def saved(path: Path, what: Snapshot | None = None) -> Snapshot:
    what = what or snapshot(3)
    asyncio.run(StateFile(path).save(what))
    return what


def load(path: Path) -> Snapshot | None:
    return asyncio.run(StateFile(path).load())


def refused(path: Path) -> str:
    """Return why the file is not used, which the message names."""
    with pytest.raises(Unavailable) as told:
        load(path)
    assert str(told.value).startswith(f"{path}: ")
    return str(told.value).removeprefix(f"{path}: ")


def members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def written(path: Path, parts: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, body in parts.items():
            archive.writestr(name, body)


def npy(array: np.ndarray, **more) -> bytes:
    body = io.BytesIO()
    np.save(body, array, **more)
    return body.getvalue()


def about(**fields) -> bytes:
    told = {"format": 2, "wall_s": WALL_S, "workloads": [["team", "Deployment", f"w{row}", ""] for row in range(3)]}
    return npy(np.frombuffer(json.dumps({**told, **fields}).encode(), np.uint8))


@pytest.mark.slow
@relaxed
@given(st.integers(0, 12), st.integers(0, 2**32 - 1))
def test_loaded_snapshot_equals_the_saved_one(tmp_path: Path, rows: int, seed: int):
    path = tmp_path / "state.npz"
    what = saved(path, snapshot(rows, seed))
    same(what, load(path))


def test_manual_overrides_are_loaded_and_optional(path: Path):
    overrides = (ManualOverride("uid-0", "a manual change by ü", WALL_S + 300, 300.0),)
    saved(path, replace(snapshot(1), manual_overrides=overrides))
    assert load(path).manual_overrides == overrides
    written(path, members(path) | {"about.npy": about(workloads=[])})  # as an older version wrote it
    assert load(path).manual_overrides == ()


def test_columns_in_fortran_order_are_loaded(path: Path):
    what = snapshot(5)
    turned = {place: np.asfortranarray(column) for place, column in what.columns.items()}
    wide = {f"workloads.{name}": np.asfortranarray(np.arange(15.0).reshape(3, 5)) for name in ("table",)}
    saved(path, replace(what, columns={**turned, **wide}))
    same(what, load(path))  # and what no table of memory has is left out


def test_load_returns_none_without_a_file(path: Path):
    assert load(path) is None


def test_only_the_owner_may_read_the_file(path: Path):
    saved(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_only_files_of_killed_processes_are_removed(path: Path):
    left = path.with_name("state.npz.0123abcd.new")
    left.write_bytes(b"half")
    others = {path.with_name(name) for name in ("state.npz.b.0123abcd.new", "state.npz.new", "other")}
    for other in others:
        other.write_text("precious")
    saved(path)
    assert set(path.parent.iterdir()) == {path, *others}


def test_old_file_stays_when_the_new_cannot_be_written(path: Path):
    before = saved(path)
    path.with_name("state.npz.0123abcd.new").mkdir()
    with pytest.raises(Unavailable, match=r"state\.npz: not written: Is a directory"):
        saved(path, snapshot(4))
    same(before, load(path))


@pytest.fixture
def little_room() -> Iterator[None]:
    """Writing fails in the middle of a file, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("little_room")
def test_old_file_stays_and_no_other_when_the_disk_is_full(path: Path):
    before = saved(path)
    with pytest.raises(Unavailable, match=r"state\.npz: not written: File too large"):
        saved(path, snapshot(1000))
    same(before, load(path))
    assert list(path.parent.iterdir()) == [path]


async def test_concurrent_saves_leave_a_complete_file(path: Path):
    # This happens if the daemon is stopped during a save, or if two processes share a file.
    one, other = snapshot(2000, 1), snapshot(2000, 2)
    for _ in range(5):
        saves = (StateFile(path).save(one), StateFile(path).save(other))
        failures = [error for error in await asyncio.gather(*saves, return_exceptions=True) if error]
        assert len(failures) < 2
        assert all(isinstance(error, Unavailable) for error in failures)
        found = await StateFile(path).load()
        assert found is not None
        same(one if found.wall_s == one.wall_s else other, found)
        assert list(path.parent.iterdir()) == [path]


def test_symlink_at_the_new_file_is_not_followed(path: Path):
    other = path.with_name("other")
    other.write_text("precious")
    path.symlink_to(other)
    path.with_name("state.npz.0123abcd.new").symlink_to(other)
    same(saved(path), load(path))
    assert other.read_text() == "precious"


def test_error_names_a_missing_directory(path: Path):
    with pytest.raises(Unavailable, match="No such file or directory"):
        saved(path.parent / "gone" / "state.npz")


def test_too_many_workloads_are_not_written(path: Path):
    many = Snapshot((("team", "Deployment", "w", ""),) * 50_001, WALL_S, {})
    with pytest.raises(Unavailable, match=r"50,001 workloads in .* allowed: at most 50,000"):
        saved(path, many)
    assert not path.exists()


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "zip"),
        (b"learned: nothing\n", "zip"),
        (os.urandom(5000), "zip"),
        (b"PK\x05\x06" + bytes(18), "about"),  # an empty archive
    ],
    ids=["empty", "text", "noise", "an empty archive"],
)
def test_other_file_types_are_refused(path: Path, body: bytes, reason: str):
    path.write_bytes(body)
    assert reason in refused(path)


def test_truncated_file_is_refused(path: Path):
    saved(path)
    whole = path.read_bytes()
    for length in [*range(0, len(whole), 97), len(whole) - 1]:
        path.write_bytes(whole[:length])
        refused(path)


@pytest.mark.slow
@relaxed
@given(st.data())
def test_damaged_file_is_refused_or_equal(tmp_path: Path, data: st.DataObject):
    path = tmp_path / "state.npz"
    what = saved(path)
    body = bytearray(path.read_bytes())
    for place in data.draw(st.lists(st.integers(0, len(body) - 1), min_size=1, max_size=4)):
        body[place] ^= data.draw(st.integers(1, 255))
    path.write_bytes(body)
    try:
        found = load(path)
    except Unavailable:
        return
    for place, column in found.columns.items():  # the names of members have no checksum: one may be lost
        np.testing.assert_array_equal(column, what.columns[place])


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ({"format": 3}, "format 3; this version reads 2"),
        ({"format": 1}, "format 1; this version reads 2"),
        ({"wall_s": "now"}, "wall_s"),
        ({"wall_s": None}, "wall_s"),
        ({"workloads": [["team", "Deployment"]]}, "length 4"),
        ({"workloads": [["team", "Deployment", "w", 7]]}, "`str`"),
        ({"workloads": 3}, "`array`"),
        ({"holds": [["uid", "somebody", "soon", 300]]}, "holds"),
    ],
)
def test_invalid_header_is_refused(path: Path, told: dict, reason: str):
    saved(path)
    written(path, {**members(path), "about.npy": about(**told)})
    assert reason in refused(path)


def test_objects_are_never_unpickled(path: Path):
    class Trap:
        def __reduce__(self):
            return (Path.touch, (path.with_name("sprung"),))

    saved(path)
    trap = npy(np.array([Trap()] * 3, dtype=object), allow_pickle=True)
    written(path, {**members(path), "capacity.requests_per_replica.npy": trap})
    found = load(path)
    assert found is not None
    assert "capacity.requests_per_replica" not in found.columns
    written(path, {**members(path), "about.npy": trap})
    refused(path)
    assert not path.with_name("sprung").exists()


def test_compressed_file_is_refused_without_unpacking_it(path: Path):
    saved(path)
    written(path, {**members(path), "capacity.requests_per_replica.npy": bytes(1 << 24)}, zipfile.ZIP_DEFLATED)
    assert "compressed" in refused(path)


def test_member_shorter_than_its_header_is_refused(path: Path):
    saved(path)
    head = npy(np.zeros(3)).replace(b"(3,), ", b"(9999999999999,), ").replace(b"          \n", b"\n", 1)
    written(path, {**members(path), "about.npy": head.replace(b"<f8", b"|u1")})
    refused(path)


@pytest.mark.parametrize("header", ["(((", "  x\n y", "'" * 3, "{[]:1}", "x y"])
def test_unparsable_member_header_is_refused(path: Path, header: str):
    saved(path)
    body = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + b"abc"
    written(path, {**members(path), "about.npy": body})
    refused(path)


def test_oversized_file_is_refused_without_reading_it(path: Path):
    with path.open("wb") as file:
        file.truncate(state_file.MAX_BYTES + 1)
    assert refused(path) == "268,435,457 bytes; allowed: at most 268,435,456"


def test_special_files_are_refused_at_once(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    assert refused(tmp_path / "pipe") == "not a file"
    assert refused(tmp_path) == "Is a directory"


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(npy(np.zeros(2)), id="other rows"),
        pytest.param(npy(np.zeros((4, 3))), id="other shape"),
        pytest.param(npy(np.zeros(3, np.float32)), id="other type"),
        pytest.param(npy(np.array([1.0, np.inf, 2.0])), id="endless"),
        pytest.param(npy(np.array([1.0, -1e6, 2.0])), id="less than nothing"),
        pytest.param(npy(np.zeros(3000)), id="far too long"),
        pytest.param(npy(np.zeros(3)).replace(b"\x93NUMPY\x01", b"\x93NUMPY\x03", 1), id="other version"),
    ],
)
def test_column_of_another_shape_is_left_out(path: Path, body: bytes):
    what = saved(path)
    written(path, {**members(path), "capacity.requests_per_replica.npy": body})
    others = {place: column for place, column in what.columns.items() if place != "capacity.requests_per_replica"}
    same(replace(what, columns=others), load(path))


def test_column_of_a_newer_version_is_blank(path: Path):
    what = saved(path)
    parts = members(path)
    del parts["capacity.requests_per_replica.npy"]
    written(path, {**parts, "capacity.of_a_later_version.npy": npy(np.zeros(3))})
    others = {place: column for place, column in what.columns.items() if place != "capacity.requests_per_replica"}
    same(replace(what, columns=others), load(path))


DATA = Path(__file__).parent.parent / "data" / "state"


def test_only_strategy_columns_are_blank_for_other_strategies():
    """A file of the version with 36 strategies: one workload with two replicas and an hour of demand."""
    found = load(DATA / "36_strategies.npz")
    assert found is not None
    story = Serving(spec(cold_start_s=60.0, **LEARNED))
    story.memory, count = restore(found, Memory.empty(), fleet([2]), story.now_s, found.wall_s + 60.0)
    assert count == 1
    state = story.memory.planner.strategies
    assert (state.shadow.observed_s[0], state.signature[0]) == (0, SIGNATURE)
    assert state.speed.readings[0] == found.columns["replica.readings"][0] > 200
    assert state.budget.counted[0] > 1000
    decision = story.serve(fleet([2]), 1.1, 120)
    assert decision.plan.replicas[0] >= 2
