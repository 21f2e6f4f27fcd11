"""`weights wait`, as an init container: the engine finds its weights, whatever the agent of the node does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from huggingface_hub import snapshot_download

from autoscaler.app import weights_wait
from autoscaler.weights import pod_view
from autoscaler.weights.store import WeightStore
from tests.harness.hub import FakeHub, safetensors, serving
from tests.weights.test_store import pull

SOURCE = "hf://org/model@main"


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with serving(FakeHub({"config.json": b"{}", "model.safetensors": safetensors(200_000)})) as served:
        yield served


@pytest.fixture
def into(tmp_path: Path) -> Path:
    folder = tmp_path / "pod"
    folder.mkdir()
    return folder


def weights(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from autoscaler.cli.main import main; main()", "weights", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def loaded(into: Path) -> bytes:
    """Return what an engine would load: offline, from the cache that its variables name."""
    snapshot = Path(snapshot_download("org/model", cache_dir=into / "hub", local_files_only=True))
    return (snapshot / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_engine_loads_what_the_agent_of_the_node_fetches(tmp_path: Path, hub: FakeHub, into: Path) -> None:
    node = tmp_path / "node"
    with ThreadPoolExecutor() as pool:
        waits = pool.submit(weights, "wait", SOURCE, "--root", node, "--into", into, "--hub", "http://127.0.0.1:1")
        pulled = weights("pull", SOURCE, "--root", node, "--hub", hub.url)
    assert pulled.returncode == 0
    done = waits.result()
    assert (done.returncode, done.stderr) == (0, "")
    assert loaded(into) == safetensors(200_000)
    assert not (into / ".vllm-autoscaler").exists()


async def test_pods_of_a_node_resolve_to_their_own_source(tmp_path: Path, hub: FakeHub) -> None:
    node, found = tmp_path / "node", {}
    for revision, seed in (("f" * 40, 1), ("main", 2), ("v2", 3)):
        hub.files["model.safetensors"] = safetensors(200_000, seed)
        hub.commit = revision if len(revision) == 40 else f"{seed:040x}"
        found[revision] = await pull(node, hub, source=f"hf://org/model@{revision}"), seed
    for revision, (model, seed) in found.items():
        into = tmp_path / revision
        for _ in range(2):  # as the kubelet starts the container again
            pod_view.link(into, node, model)
        assert loaded(into) == safetensors(200_000, seed)
        named = Path(snapshot_download("org/model", revision=revision, cache_dir=into / "hub", local_files_only=True))
        assert (named / "model.safetensors").read_bytes() == safetensors(200_000, seed)
        for other in found.keys() - {revision, "main"}:
            with pytest.raises(FileNotFoundError):
                snapshot_download("org/model", revision=other, cache_dir=into / "hub", local_files_only=True)
        assert [each.name for each in (into / "hub" / "models--org--model" / "snapshots").iterdir()] == [
            model.path.name
        ]


async def test_wait_goes_on_when_the_files_of_a_record_are_gone(tmp_path: Path, hub: FakeHub) -> None:
    model = await pull(tmp_path, hub)
    (model.path / "config.json").resolve().unlink()
    assert await weights_wait.published(WeightStore(tmp_path), model.listing.source.key, 0.1) is None


@pytest.mark.slow
def test_pod_fetches_for_itself_when_nothing_arrives(tmp_path: Path, hub: FakeHub, into: Path) -> None:
    node = tmp_path / "node"  # without an agent
    arguments = ("wait", SOURCE, "--root", node, "--into", into, "--timeout", "100ms")
    failed = weights(*arguments, "--hub", "http://127.0.0.1:1")
    assert failed.returncode == 1
    assert "unreachable: " in failed.stdout
    for _ in range(2):  # as the kubelet starts it again
        done = weights(*arguments, "--hub", hub.url)
        assert (done.returncode, done.stderr) == (0, "")
    assert f"nothing arrived in {node} for 0.1 s; {SOURCE} is fetched for this pod alone" in done.stdout
    assert not node.exists()
    assert loaded(into) == safetensors(200_000)


@pytest.mark.slow
def test_copy_of_the_node_replaces_one_that_was_begun(tmp_path: Path, hub: FakeHub, into: Path) -> None:
    node = tmp_path / "node"
    (into / "hub" / "models--org--model").mkdir(parents=True)
    weights("pull", SOURCE, "--root", node, "--hub", hub.url)
    for _ in range(2):
        assert weights("wait", SOURCE, "--root", node, "--into", into).returncode == 0
    assert loaded(into) == safetensors(200_000)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "why"), [("hf://org/model", "its revision is missing"), ("hf://org/other@main", "no such model")]
)
def test_wrong_sources_are_reported(tmp_path: Path, hub: FakeHub, into: Path, source: str, why: str) -> None:
    done = weights("wait", source, "--root", tmp_path, "--into", into, "--timeout", "10ms", "--hub", hub.url)
    assert done.returncode != 0
    assert why in done.stdout + done.stderr
