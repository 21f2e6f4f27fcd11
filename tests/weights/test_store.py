"""Weights are fetched whole or not at all, verified, and published as engines expect them."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from autoscaler.config.weights.source import parse
from autoscaler.weights import layout
from autoscaler.weights.budget import Limits
from autoscaler.weights.fetch import Transfer
from autoscaler.weights.origins.hub import Hub
from autoscaler.weights.origins.object_store import Objects
from autoscaler.weights.problems import WeightsCause, WeightsError
from autoscaler.weights.store import OWN, PARTS, PublishedModel, WeightStore
from tests.harness.hub import COMMIT, FakeHub, git_sha1, safetensors, serving

pytestmark = pytest.mark.slow

SOURCE = "hf://org/model@main"
RANGE = 64 << 10
TRANSFER = Transfer(workers=4, range_bytes=RANGE)


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    files = {
        "config.json": b'{"hidden_size": 8}',
        "model-00001-of-00002.safetensors": safetensors(700_000, 1),
        "model-00002-of-00002.safetensors": safetensors(300_000, 2),
        "sub/tokenizer.json": b"{}",
    }
    with serving(FakeHub(files)) as served:
        yield served


async def pull(root: Path, hub: FakeHub, token: str = "", source: str = SOURCE) -> PublishedModel:
    store, origin = WeightStore(root), Hub(parse(source), hub.url, token)
    with store.changing():
        return await store.pull(origin, TRANSFER, lambda _: None, await origin.describe())


FIRST_READ = """
import sys, threading
from pathlib import Path
from autoscaler.weights.store import WeightStore

sys.setswitchinterval(1e-6)
store, key, found = WeightStore(Path(sys.argv[1])), sys.argv[2], []
threads = [threading.Thread(target=lambda: found.append(store.find(key))) for _ in range(16)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert len(found) == 16 and all(found)
"""


def test_many_threads_may_read_a_record_first(tmp_path: Path, hub: FakeHub) -> None:
    """msgspec looks at a type when it first decodes one. Two threads that did so at once crashed the process."""
    asyncio.run(pull(tmp_path, hub))
    command = [sys.executable, "-X", "faulthandler", "-c", FIRST_READ, str(tmp_path), parse(SOURCE).key]
    ended = [subprocess.run(command, capture_output=True, text=True, timeout=60, check=False) for _ in range(6)]
    assert [(each.returncode, each.stderr) for each in ended] == [(0, "")] * len(ended)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def test_model_of_a_hub_lands_in_the_layout_of_its_cache(tmp_path: Path, hub: FakeHub) -> None:
    model = await pull(tmp_path, hub)
    repository = tmp_path / "hub" / "models--org--model"
    assert model.path == repository / "snapshots" / COMMIT
    assert contents(model.path) == hub.files
    assert (repository / "refs" / "main").read_text() == COMMIT
    assert (model.path / "config.json").readlink().name == git_sha1(hub.files["config.json"])
    tree = json.loads((repository / "trees" / f"{COMMIT}.json").read_text())
    assert tree["files"].keys() == hub.files.keys()
    assert not list((tmp_path / OWN / PARTS).iterdir())


async def test_library_of_the_hub_finds_the_model_offline(tmp_path: Path, hub: FakeHub) -> None:
    await pull(tmp_path, hub)
    code = "import sys; from huggingface_hub import snapshot_download as find; print(find('org/model'))"
    environment = {**os.environ, "HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    found = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert contents(Path(found.stdout.strip())) == hub.files


@pytest.mark.parametrize("first", ["main", "refs/pr/1", "f" * 40])
async def test_main_follows_wishes_of_main_alone(tmp_path: Path, hub: FakeHub, first: str) -> None:
    """Otherwise the first wish of any commit decides what engines load that name no revision."""
    refs = tmp_path / "hub" / "models--org--model" / "refs"
    for revision, commit in ((first, "f" * 40), ("v2", "e" * 40)):
        hub.commit = commit
        await pull(tmp_path, hub, source=f"hf://org/model@{revision}")
    assert (refs / "main").exists() == (first == "main")
    hub.commit = COMMIT
    await pull(tmp_path, hub)
    assert (refs / "main").read_text() == COMMIT


async def test_token_goes_to_the_hub_and_to_no_other_host(tmp_path: Path, hub: FakeHub) -> None:
    hub.token = "hf_secret"
    with pytest.raises(WeightsError) as refused:
        await pull(tmp_path, hub)
    assert refused.value.cause is WeightsCause.DENIED
    await pull(tmp_path, hub, "hf_secret")
    assert not hub.seen_tokens


async def test_nothing_is_fetched_again_when_the_model_is_there(tmp_path: Path, hub: FakeHub) -> None:
    await pull(tmp_path, hub)
    hub.sent.clear()
    await pull(tmp_path, hub)
    assert not hub.sent


async def test_new_commit_fetches_only_what_changed(tmp_path: Path, hub: FakeHub) -> None:
    old = await pull(tmp_path, hub)
    hub.sent.clear()
    hub.commit = "f" * 40
    hub.files["config.json"] = b'{"hidden_size": 16}'
    new = await pull(tmp_path, hub)
    assert set(hub.sent) == {"config.json"}
    assert contents(new.path) == hub.files
    assert WeightStore(tmp_path).verify(new, lambda _: None) == []
    (former,) = [each for each in WeightStore(tmp_path).models() if each.is_former]
    assert (former.path, str(former.listing.source)) == (old.path, f"hf://org/model@{COMMIT}")
    assert WeightStore(tmp_path).verify(former, lambda _: None) == []


@pytest.mark.parametrize("commits", [1, 3])
async def test_former_commit_goes_when_its_room_is_needed(tmp_path: Path, hub: FakeHub, commits: int) -> None:
    store = WeightStore(tmp_path, Limits(max_bytes=1_500_000))
    for number in range(1, 2 + commits):
        hub.commit = f"{number:040x}"
        hub.files["config.json"] = b"%d" % number
        hub.files["model-00001-of-00002.safetensors"] = safetensors(700_000, number)
        origin = Hub(parse(SOURCE), hub.url)
        with store.changing():
            model = await store.pull(origin, TRANSFER, lambda _: None, await origin.describe())
    assert contents(model.path) == hub.files
    assert store.space().held_bytes <= 1_500_000
    assert [each.path for each in store.models()] == [model.path]


async def test_model_with_a_file_that_is_gone_is_not_whole(tmp_path: Path, hub: FakeHub) -> None:
    model = await pull(tmp_path, hub)
    found = WeightStore(tmp_path).find_whole(model.listing)
    assert found is not None and found.path == model.path
    (model.path / "config.json").resolve().unlink()
    assert WeightStore(tmp_path).find_whole(model.listing) is None


async def test_wrong_checksum_is_fetched_once_more(tmp_path: Path, hub: FakeHub) -> None:
    hub.damaged["model-00001-of-00002.safetensors"] = 1
    model = await pull(tmp_path, hub)
    assert contents(model.path) == hub.files


async def test_lasting_wrong_checksum_is_reported_and_kept_aside(tmp_path: Path, hub: FakeHub) -> None:
    hub.damaged["model-00001-of-00002.safetensors"] = 1_000
    with pytest.raises(WeightsError, match="was fetched twice, and its checksum is") as raised:
        await pull(tmp_path, hub)
    assert raised.value.cause is WeightsCause.CORRUPT
    assert list((tmp_path / OWN / PARTS).rglob("*.corrupt"))
    assert WeightStore(tmp_path).models() == []
    assert not (tmp_path / "hub").exists()


@pytest.mark.parametrize(
    ("status", "cause"), [(404, WeightsCause.NOT_FOUND), (403, WeightsCause.DENIED), (401, WeightsCause.DENIED)]
)
async def test_answers_of_the_hub_have_a_cause(tmp_path: Path, hub: FakeHub, status: int, cause: WeightsCause) -> None:
    hub.status = status
    with pytest.raises(WeightsError) as raised:
        await pull(tmp_path, hub)
    assert raised.value.cause is cause


async def test_hostile_listing_writes_nothing(tmp_path: Path, hub: FakeHub) -> None:
    hub.files["../../outside"] = b"x"
    with pytest.raises(WeightsError, match="is no valid path"):
        await pull(tmp_path, hub)
    assert not (tmp_path.parent / "outside").exists()
    hub.files.pop("../../outside")
    hub.listed["config.json"] = {"blobId": "../../../outside"}
    with pytest.raises(WeightsError, match="has the checksum"):
        await pull(tmp_path, hub)


async def test_second_process_is_told_that_the_folder_is_held(tmp_path: Path, hub: FakeHub) -> None:
    with WeightStore(tmp_path).changing(), pytest.raises(WeightsError) as raised:
        await pull(tmp_path, hub)
    assert raised.value.cause is WeightsCause.BUSY
    await pull(tmp_path, hub)


async def test_too_large_model_is_refused_before_its_first_byte(tmp_path: Path, hub: FakeHub) -> None:
    store, origin = WeightStore(tmp_path, Limits(max_bytes=500_000)), Hub(parse(SOURCE), hub.url)
    with store.changing(), pytest.raises(WeightsError, match="allowed: 500000, for the rest must stay") as raised:
        await store.pull(origin, TRANSFER, lambda _: None, await origin.describe())
    assert raised.value.cause is WeightsCause.NO_SPACE
    assert not hub.sent


async def test_removal_leaves_files_of_another_commit(tmp_path: Path, hub: FakeHub) -> None:
    first = await pull(tmp_path, hub, source=f"hf://org/model@{COMMIT}")
    hub.commit = "f" * 40
    hub.files["config.json"] = b'{"hidden_size": 16}'
    second = await pull(tmp_path, hub, source=f"hf://org/model@{hub.commit}")
    store = WeightStore(tmp_path)
    with store.changing():
        store.remove(first)
    assert contents(second.path) == hub.files
    with store.changing():
        store.remove(second)
    assert store.models() == []
    assert not list((tmp_path / "hub").iterdir())


async def test_verify_finds_a_changed_byte_and_a_lost_file(tmp_path: Path, hub: FakeHub) -> None:
    model = await pull(tmp_path, hub)
    shard = (model.path / "model-00001-of-00002.safetensors").resolve()
    shard.write_bytes(shard.read_bytes()[:-1] + b"\0")
    (model.path / "config.json").unlink()
    wrong = WeightStore(tmp_path).verify(model, lambda _: None)
    assert len(wrong) == 2
    assert "No such file" in wrong[0]
    assert "its checksum is" in wrong[1]


async def test_published_file_outlives_a_transfer_of_changed_content(tmp_path: Path, hub: FakeHub) -> None:
    """Parts are linked to what is published, so that a transfer must not write into them."""
    origin = Hub(parse(SOURCE), hub.url)
    store, listing = WeightStore(tmp_path), await origin.describe()
    with store.changing():
        model = await store.pull(origin, TRANSFER, lambda _: None, listing)
        parts = tmp_path / OWN / PARTS / listing.source.key
        parts.mkdir()
        from autoscaler.weights.part_file import PartFile

        for number, file in enumerate(listing.files):
            (parts / str(number)).hardlink_to((model.path / file.path).resolve())
            PartFile(file._replace(sha256="0" * 64), parts / str(number), RANGE, threading.Semaphore(1)).close()
    assert contents(model.path) == hub.files


PULLER = """
import asyncio, sys
from pathlib import Path
from autoscaler.weights.fetch import Transfer
from autoscaler.weights.origins.hub import Hub
from autoscaler.config.weights.source import parse
from autoscaler.weights.store import WeightStore
async def main():
    root, url = sys.argv[1:]
    store, origin = WeightStore(Path(root)), Hub(parse("hf://org/model@main"), url)
    with store.changing():
        await store.pull(origin, Transfer(2, 65536), lambda _: None, await origin.describe())
asyncio.run(main())
"""


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
async def test_killed_transfers_resume_and_publish_the_whole_model(tmp_path: Path, hub: FakeHub, seed: int) -> None:
    """Each process is killed at a random moment after its first bytes. No range is fetched more often than that."""
    chance, hub.delay_s, killed = random.Random(seed), 0.01, threading.Event()
    hub.held["sub/tokenizer.json"] = killed  # so the first process cannot end before it is killed
    command, kills = [sys.executable, "-c", PULLER, str(tmp_path), hub.url], 0
    total = sum(map(len, hub.files.values()))
    published = layout.place(tmp_path, await Hub(parse(SOURCE), hub.url).describe())
    while kills < 8:
        sent = sum(hub.sent.values())
        process = await asyncio.create_subprocess_exec(*command)
        deadline = time.monotonic() + 60
        while process.returncode is None and sum(hub.sent.values()) == sent and time.monotonic() < deadline:
            await asyncio.sleep(0.005)
            if published.exists():
                assert contents(published) == hub.files
        await asyncio.sleep(chance.uniform(0, 0.1))
        if process.returncode is not None:
            break
        process.send_signal(signal.SIGKILL)
        await process.wait()
        killed.set()
        kills += 1
        assert not published.exists() or contents(published) == hub.files
    assert kills > 0
    hub.delay_s = 0
    model = await pull(tmp_path, hub)
    assert contents(model.path) == hub.files
    assert WeightStore(tmp_path).verify(model, lambda _: None) == []
    # Two ranges are under way when a process is killed.
    assert sum(hub.sent.values()) <= total + kills * 2 * RANGE


async def test_directory_is_copied_into_a_plain_folder(tmp_path: Path) -> None:
    there, root = tmp_path / "there", tmp_path / "root"
    (there / "sub").mkdir(parents=True)
    files = {"config.json": b"{}", "model.safetensors": safetensors(200_000), "sub/vocab.txt": b"a"}
    for name, content in files.items():
        (there / name).write_bytes(content)
    store, origin = WeightStore(root), Objects(parse(f"file://{there}"))
    with store.changing():
        model = await store.pull(origin, TRANSFER, lambda _: None, await origin.describe())
    assert model.path.parent == root / "models"
    assert contents(model.path) == files


async def test_changed_file_of_the_same_size_is_copied_again(tmp_path: Path) -> None:
    there, root = tmp_path / "there", tmp_path / "root"
    there.mkdir()
    (there / "model.safetensors").write_bytes(safetensors(200_000, 1))
    source = parse(f"file://{there}")
    store = WeightStore(root)
    for content in (safetensors(200_000, 1), safetensors(200_000, 2)):
        (there / "model.safetensors").write_bytes(content)
        origin = Objects(source)
        with store.changing():
            model = await store.pull(origin, TRANSFER, lambda _: None, await origin.describe())
        assert (model.path / "model.safetensors").read_bytes() == content
    listing = await Objects(source).describe()
    (there / "model.safetensors").write_bytes(safetensors(200_000, 3))
    with pytest.raises(WeightsError) as raised:
        await Objects(source).read(listing.files[0], 0, 10)
    assert raised.value.cause is WeightsCause.CHANGED


async def test_truncated_shard_is_noticed_without_a_checksum(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    (there / "model.safetensors").write_bytes(safetensors(200_000)[:-5])
    store, origin = WeightStore(tmp_path / "root"), Objects(parse(f"file://{there}"))
    with store.changing(), pytest.raises(WeightsError, match="its tensors end at byte") as raised:
        await store.pull(origin, TRANSFER, lambda _: None, await origin.describe())
    assert raised.value.cause is WeightsCause.CORRUPT


async def test_records_are_not_trusted(tmp_path: Path, hub: FakeHub) -> None:
    model = await pull(tmp_path, hub)
    record = next((tmp_path / OWN / "records").iterdir())
    content = record.read_text()
    for wrong in (content.replace("config.json", "../../x"), content[:-9], "[]", content.replace(COMMIT, "../../..")):
        record.write_text(wrong)
        assert WeightStore(tmp_path).models() == []
    record.write_text(content)
    assert WeightStore(tmp_path).models()[0].path == model.path


def test_space_can_be_read_while_transfers_begin_and_end(tmp_path: Path) -> None:
    store = WeightStore(tmp_path)
    parts, ends = tmp_path / OWN / PARTS, threading.Event()

    def transfer(name: str) -> None:
        while not ends.is_set():
            (parts / name).mkdir(parents=True)
            for number in range(5):
                (parts / name / str(number)).write_bytes(b"0")
            shutil.rmtree(parts / name)

    threads = [threading.Thread(target=transfer, args=(f"{number:016x}",)) for number in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(1000):
            assert len(store.space().held) <= len(threads)
    finally:
        ends.set()
        for thread in threads:
            thread.join()
