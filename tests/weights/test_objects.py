"""Weights in an S3 bucket, on a real S3 server on loopback (moto's)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import obstore
import pytest
from moto.server import ThreadedMotoServer
from obstore.store import S3Store

from autoscaler.weights.fetch import Transfer
from autoscaler.weights.listing import Listing, RemoteFile
from autoscaler.weights.origins.objects import Objects
from autoscaler.weights.problems import Cause, WeightsError
from autoscaler.weights.source import parse
from autoscaler.weights.store import Model, Store
from tests.harness.hub import safetensors

pytestmark = pytest.mark.integration

TRANSFER = Transfer(workers=4, range_bytes=64 << 10)
FILES = {
    "config.json": b"{}",
    "model-00001-of-00002.safetensors": safetensors(300_000, 1),
    "model-00002-of-00002.safetensors": safetensors(200_000, 2),
}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    moto = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    moto.start()
    host, port = moto.get_host_and_port()
    yield f"http://{host}:{port}"
    moto.stop()


@pytest.fixture
def bucket(server: str, monkeypatch: pytest.MonkeyPatch) -> S3Store:
    """Return a bucket with a model. Its address and keys are in the environment, as for any tool of S3."""
    import urllib.request

    for name, value in {
        "AWS_ENDPOINT_URL": server,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }.items():
        monkeypatch.setenv(name, value)
    urllib.request.urlopen(urllib.request.Request(f"{server}/moto-api/reset", method="POST")).close()
    urllib.request.urlopen(urllib.request.Request(f"{server}/models", method="PUT")).close()
    store = S3Store("models", client_options={"allow_http": True})
    for name, content in FILES.items():
        obstore.put(store, f"team/llama/{name}", content)
    obstore.put(store, "team/llama-other/config.json", b"another model")
    return store


async def pull(root: Path, listing: Listing | None = None, source: str = "s3://models/team/llama") -> Model:
    store, origin = Store(root), Objects(parse(source))
    with store.changing():
        return await store.pull(origin, TRANSFER, lambda _: None, listing or await origin.describe())


async def test_model_in_a_bucket_lands_in_a_plain_folder(tmp_path: Path, bucket: S3Store) -> None:
    model = await pull(tmp_path)
    found = {path.name: path.read_bytes() for path in model.path.iterdir()}
    assert found == FILES
    assert model.path.name.startswith("llama-")


async def test_object_that_changes_while_it_is_fetched_is_refused(tmp_path: Path, bucket: S3Store) -> None:
    listing = await Objects(parse("s3://models/team/llama")).describe()
    obstore.put(bucket, "team/llama/model-00002-of-00002.safetensors", safetensors(200_000, 3))
    with pytest.raises(WeightsError, match="changed while it was fetched") as raised:
        await pull(tmp_path, listing)
    assert raised.value.cause is Cause.CHANGED
    assert Store(tmp_path).models() == []


async def test_changed_object_replaces_the_model_at_the_next_pull(tmp_path: Path, bucket: S3Store) -> None:
    await pull(tmp_path)
    obstore.put(bucket, "team/llama/config.json", b'{"new": 1}')
    model = await pull(tmp_path)
    assert (model.path / "config.json").read_bytes() == b'{"new": 1}'
    assert len(Store(tmp_path).models()) == 1


async def test_missing_prefix_and_bucket_are_not_found(tmp_path: Path, bucket: S3Store) -> None:
    for source in ("s3://models/nothing", "s3://no-such-bucket/team/llama"):
        with pytest.raises(WeightsError) as raised:
            await pull(tmp_path, source=source)
        assert raised.value.cause is Cause.NOT_FOUND


async def test_object_shorter_than_listed_is_corrupt(tmp_path: Path, bucket: S3Store) -> None:
    source = parse("s3://models/team/llama")
    size = len(FILES["config.json"])
    file = RemoteFile("config.json", size + 100, address="team/llama/config.json")
    with pytest.raises(WeightsError, match=f"ends after {size} of {size + 100} bytes"):
        await Objects(source).read(file, 0, size + 100)


async def test_ranges_are_read_in_parallel(tmp_path: Path, bucket: S3Store) -> None:
    """At most as many ranges as there are workers are read at a time, and more than one."""
    source, at_once, most = parse("s3://models/team/llama"), 0, 0
    lock = threading.Lock()

    class Counting(Objects):
        async def read(self, file: RemoteFile, start: int, length: int) -> memoryview:
            nonlocal at_once, most
            with lock:
                at_once += 1
                most = max(most, at_once)
            try:
                return await super().read(file, start, length)
            finally:
                at_once -= 1

    origin, store = Counting(source), Store(tmp_path)
    with store.changing():
        await store.pull(origin, TRANSFER, lambda _: None, await origin.describe())
    assert 1 < most <= TRANSFER.workers
