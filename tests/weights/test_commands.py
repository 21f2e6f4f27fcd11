"""`weights pull`, `ls`, `verify` and `rm`, as a user runs them."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from autoscaler.weights.store import WeightStore
from tests.harness.forked import run_forked
from tests.harness.hub import FakeHub, safetensors, serving

SOURCE = "hf://org/model@main"


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with serving(FakeHub({"config.json": b"{}", "model.safetensors": safetensors(200_000)})) as served:
        yield served


def weights(*arguments: str | Path, under: Sequence[str | Path] = ()) -> subprocess.CompletedProcess[str]:
    """Run a command. under: a command that runs it."""
    if not under:
        return run_forked("weights", *arguments)
    command = [*under, sys.executable, "-c", "from autoscaler.cli.main import main; main()", "weights", *arguments]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120, check=False)


READ_ONLY = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && ! touch "$0/x" 2>/dev/null && exec "$@"'
"""Makes a folder read-only for one command, in a mount namespace of its own."""

MAY_MOUNT = subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True).returncode == 0


@pytest.mark.slow
def test_model_is_pulled_listed_verified_and_removed(tmp_path: Path, hub: FakeHub) -> None:
    root = tmp_path / "ssd"
    pulled = weights("pull", SOURCE, "--root", root, "--hub", hub.url, "--rate", "50MB")
    assert (pulled.returncode, pulled.stderr) == (0, "")
    path = pulled.stdout.strip().removeprefix(f"{SOURCE}: ")
    assert (Path(path) / "config.json").read_bytes() == b"{}"
    assert weights("ls", "--root", root).stdout == f"{SOURCE}  0.0002 GB  {path}\n"
    assert weights("verify", "--root", root).stdout == f"{SOURCE}: complete, all checksums right\n"
    (Path(path) / "model.safetensors").resolve().write_bytes(b"x")
    damaged = weights("verify", SOURCE, "--root", root)
    assert damaged.returncode == 1
    assert "'model.safetensors': it has 1 bytes; expected: 200" in damaged.stdout
    assert weights("rm", SOURCE, "--root", root).stdout == f"{SOURCE}: removed, 0.0002 GB\n"
    assert weights("ls", "--root", root).stdout == ""


@pytest.mark.slow
@pytest.mark.skipif(not MAY_MOUNT, reason="this process may mount nothing")
def test_present_models_are_pulled_when_the_disk_is_read_only(tmp_path: Path, hub: FakeHub) -> None:
    root, there, pod = tmp_path / "ssd", tmp_path / "there", tmp_path / "pod"
    there.mkdir()
    pod.mkdir()
    (there / "model.safetensors").write_bytes(safetensors(100_000))
    sources = SOURCE, f"file://{there}"
    pull = "pull", *sources, "--root", root, "--hub", hub.url
    pulled = weights(*pull)
    under = "unshare", "--mount", "sh", "-c", READ_ONLY, root
    again = weights(*pull, under=under)
    assert (again.returncode, again.stdout) == (pulled.returncode, pulled.stdout) == (0, pulled.stdout)
    waited = weights("wait", sources[1], "--root", root, "--into", pod, under=under)
    assert (waited.returncode, waited.stderr) == (0, "")
    for command, lines in (("ls", 2), ("verify", 2)):
        done = weights(command, "--root", root, under=under)
        assert (done.returncode, len(done.stdout.splitlines()), done.stderr) == (0, lines, "")
    (there / "model.safetensors").write_bytes(safetensors(100_000, 1))
    refused = weights(*pull, under=under)
    assert refused.returncode == 1
    assert "Read-only file system" in refused.stdout
    assert "Traceback" not in refused.stderr


@pytest.mark.slow
def test_versions_of_a_folder_are_listed_and_removed(tmp_path: Path) -> None:
    root, there = tmp_path / "ssd", tmp_path / "there"
    there.mkdir()
    for version in (1, 2):
        (there / "model.safetensors").write_bytes(safetensors(100_000, version))
        assert weights("pull", f"file://{there}", "--root", root).returncode == 0
    listed = weights("ls", "--root", root).stdout.splitlines()
    assert [line.endswith("  former") for line in listed].count(True) == len(listed) - 1 == 1
    assert weights("rm", f"file://{there}", "--root", root).returncode == 0
    assert weights("ls", "--root", root).stdout == ""
    assert list((root / "models").iterdir()) == []


@pytest.mark.slow
def test_one_wrong_source_does_not_keep_the_others_out(tmp_path: Path, hub: FakeHub) -> None:
    done = weights("pull", "hf://org/other@main", SOURCE, "--root", tmp_path, "--hub", hub.url)
    assert done.returncode == 1
    assert done.stdout.splitlines()[0] == "not_found: hf://org/other@main: the hub has no such model or revision"
    assert done.stdout.splitlines()[1].startswith(f"{SOURCE}: ")


@pytest.mark.slow
def test_pull_waits_while_another_process_holds_the_folder(tmp_path: Path, hub: FakeHub) -> None:
    with ThreadPoolExecutor() as pool:
        with WeightStore(tmp_path).changing():
            refused = weights("pull", SOURCE, "--root", tmp_path, "--hub", hub.url, "--wait", "10ms")
            assert (refused.returncode, "another process changes" in refused.stderr) == (2, True)
            waiting = pool.submit(weights, "pull", SOURCE, "--root", tmp_path, "--hub", hub.url)
            time.sleep(0.5)
            assert not hub.sent
        assert waiting.result().returncode == 0


@pytest.mark.slow
def test_invalid_source_is_bad_usage(tmp_path: Path) -> None:
    done = weights("pull", "hf://org/model", "--root", tmp_path)
    assert done.returncode == 2
    assert "error: 'hf://org/model' is no source of weights: its revision is missing" in done.stderr
    missing = weights("rm", SOURCE, "--root", tmp_path)
    assert (missing.returncode, "is not in" in missing.stderr) == (2, True)


@pytest.mark.slow
def test_what_a_failed_transfer_has_left_can_be_removed(tmp_path: Path, hub: FakeHub) -> None:
    hub.damaged["model.safetensors"] = 2
    assert weights("pull", SOURCE, "--root", tmp_path, "--hub", hub.url).returncode == 1
    assert weights("rm", SOURCE, "--root", tmp_path).stdout == f"{SOURCE}: removed what a transfer has left\n"
    assert not list((tmp_path / ".vllm-autoscaler" / "parts").iterdir())


@pytest.mark.slow
def test_disallowed_source_is_refused_before_any_request(tmp_path: Path, hub: FakeHub) -> None:
    allowed = ("--allow-source", "hf://org/other", "--allow-source", "s3://models/**")
    hub.status = 500
    done = weights("pull", SOURCE, "--root", tmp_path, "--hub", hub.url, *allowed)
    expected = f"not_allowed: {SOURCE} may not be fetched; allowed: hf://org/other, s3://models/**\n"
    assert (done.returncode, done.stdout) == (1, expected)
    wrong = weights("pull", SOURCE, "--root", tmp_path, "--allow-source", "org/*")
    assert (wrong.returncode, "'org/*' is no pattern of sources; allowed: SCHEME://" in wrong.stderr) == (2, True)


@pytest.mark.slow
def test_present_model_is_pulled_when_nothing_can_be_written(tmp_path: Path, hub: FakeHub) -> None:
    assert weights("pull", SOURCE, "--root", tmp_path, "--hub", hub.url).returncode == 0
    lock = tmp_path / ".vllm-autoscaler" / "lock"
    lock.unlink()
    lock.mkdir()
    done = weights("pull", SOURCE, "--root", tmp_path, "--hub", hub.url)
    assert (done.returncode, done.stdout.startswith(f"{SOURCE}: {tmp_path}")) == (0, True)
    for blob in (tmp_path / "hub").rglob("blobs/*"):
        blob.unlink()
    listed = weights("ls", "--root", tmp_path)
    assert (listed.returncode, "incomplete: 'config.json': No such file" in listed.stdout) == (0, True)
