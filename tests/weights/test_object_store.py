"""Weights in an S3 bucket, on a real S3 server on loopback."""

from __future__ import annotations

import asyncio
import os
import zlib
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import obstore
import pytest
import pytest_asyncio
from obstore.store import S3Store
from yarl import URL

from autoscaler.app.weights import FetchOptions
from autoscaler.config.weights.allowed import PrivateSources, SourcePattern, SourceRules
from autoscaler.config.weights.source import ModelSource, parse
from autoscaler.weights.fetch import Transfer
from autoscaler.weights.listing import Listing, RemoteFile
from autoscaler.weights.origins.object_store import Objects
from autoscaler.weights.problems import WeightsCause, WeightsError
from autoscaler.weights.store import PublishedModel, WeightStore
from tests.harness.hub import safetensors
from tests.harness.s3 import ACCESS_KEY, REGION, SECRET_KEY, s3

pytestmark = pytest.mark.integration

TRANSFER = Transfer(workers=4, range_bytes=64 << 10)
FILES = {
    "config.json": b"{}",
    "model-00001-of-00002.safetensors": safetensors(300_000, 1),
    "model-00002-of-00002.safetensors": safetensors(200_000, 2),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[str, Path]]:
    """Return the URL of an S3 server, and the folder with its buckets."""
    directory = tmp_path_factory.mktemp("s3")
    url, process = s3(directory)
    await process.start()
    yield url, directory / "buckets"
    await process.stop()


@pytest.fixture
def bucket(server: tuple[str, Path], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> S3Store:
    """Return a bucket with a model. Its address and keys are in the environment, as for any tool of S3."""
    url, buckets = server
    name = f"models-{zlib.crc32(request.node.name.encode()):08x}"
    (buckets / name).mkdir()
    for key, value in {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_REGION": REGION,
        "AWS_ALLOW_HTTP": "true",
    }.items():
        monkeypatch.setenv(key, value)
    store = S3Store(name, client_options={"allow_http": True})
    for path, content in FILES.items():
        obstore.put(store, f"team/llama/{path}", content)
    obstore.put(store, "team/llama-other/config.json", b"another model")
    return store


def source(bucket: S3Store, path: str = "team/llama") -> ModelSource:
    return parse(f"s3://{bucket.config['bucket']}/{path}")


async def pull(root: Path, source: ModelSource, listing: Listing | None = None) -> PublishedModel:
    store, origin = WeightStore(root), Objects(source)
    with store.changing():
        return await store.pull(origin, TRANSFER, lambda _: None, listing or await origin.describe())


async def test_model_in_a_bucket_lands_in_a_plain_folder(tmp_path: Path, bucket: S3Store) -> None:
    model = await pull(tmp_path, source(bucket))
    found = {path.name: path.read_bytes() for path in model.path.iterdir()}
    assert found == FILES
    assert model.path.name.startswith("llama-")


async def test_object_that_changes_while_it_is_fetched_is_refused(tmp_path: Path, bucket: S3Store) -> None:
    listing = await Objects(source(bucket)).describe()
    obstore.put(bucket, "team/llama/model-00002-of-00002.safetensors", safetensors(200_000, 3))
    with pytest.raises(WeightsError, match="changed while it was fetched") as raised:
        await pull(tmp_path, source(bucket), listing)
    assert raised.value.cause is WeightsCause.CHANGED
    assert WeightStore(tmp_path).models() == []


async def test_changed_object_replaces_the_model_at_the_next_pull(tmp_path: Path, bucket: S3Store) -> None:
    former = await pull(tmp_path, source(bucket))
    obstore.put(bucket, "team/llama/config.json", b'{"new": 1}')
    model = await pull(tmp_path, source(bucket))
    assert (model.path / "config.json").read_bytes() == b'{"new": 1}'
    assert (former.path / "config.json").read_bytes() == FILES["config.json"]
    assert [each.path for each in WeightStore(tmp_path).models() if not each.is_former] == [model.path]


async def test_missing_prefix_and_bucket_are_not_found(tmp_path: Path, bucket: S3Store) -> None:
    for missing in (source(bucket, "nothing"), parse("s3://no-such-bucket/team/llama")):
        with pytest.raises(WeightsError) as raised:
            await pull(tmp_path, missing)
        assert raised.value.cause is WeightsCause.NOT_FOUND


async def test_wrong_keys_are_denied(tmp_path: Path, bucket: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(WeightsError, match="may not be read with these credentials") as raised:
        await pull(tmp_path, source(bucket))
    assert raised.value.cause is WeightsCause.DENIED
    assert "wrong" not in str(raised.value)


async def test_object_shorter_than_listed_is_corrupt(bucket: S3Store) -> None:
    size = len(FILES["config.json"])
    file = RemoteFile("config.json", size + 100, address="team/llama/config.json")
    with pytest.raises(WeightsError, match=f"bytes 0-{size - 1}/{size}") as raised:
        await Objects(source(bucket)).read(file, 0, size + 100)
    assert raised.value.cause is WeightsCause.CORRUPT


async def test_objects_are_read_as_stored_when_they_state_an_encoding(tmp_path: Path, bucket: S3Store) -> None:
    names = ["model.safetensors", "a b+c%2F/é?#&.safetensors"]
    for name in names:
        obstore.put(bucket, f"packed/{name}", safetensors(100_000), attributes={"Content-Encoding": "gzip"})
    model = await pull(tmp_path, source(bucket, "packed"))
    assert all((model.path / name).read_bytes() == safetensors(100_000) for name in names)


@pytest.mark.parametrize("refused", [0, 403, 400, 307])
async def test_library_reads_a_bucket_that_takes_no_signed_address(
    tmp_path: Path, bucket: S3Store, monkeypatch: pytest.MonkeyPatch, refused: int
) -> None:
    """refused: status that a policy answers to signed addresses; 0: it takes them."""
    lines: list[bytes] = []

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while piece := await reader.read(1 << 16):
                writer.write(piece)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines.append(line := await reader.readline())
        if refused and b"X-Amz-Signature" in line:
            writer.write(b"HTTP/1.1 %d No\r\nContent-Length: 0\r\nLocation: /\r\n\r\n" % refused)
            writer.close()
            return
        there, back = await asyncio.open_connection(host, port)
        back.write(line)
        await asyncio.gather(copy(reader, back), copy(there, writer))

    host, port = URL(os.environ["AWS_ENDPOINT_URL"]).host, URL(os.environ["AWS_ENDPOINT_URL"]).port
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as policy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{policy.sockets[0].getsockname()[1]}")
        model = await pull(tmp_path, source(bucket))
    assert {path.name: path.read_bytes() for path in model.path.iterdir()} == FILES
    assert any(b"X-Amz-Signature" in line for line in lines)


async def test_ranges_are_read_in_parallel(tmp_path: Path, bucket: S3Store) -> None:
    """At most as many ranges as there are workers are read at a time, and more than one."""
    at_once = most = 0

    class Counting(Objects):
        async def read(self, file: RemoteFile, start: int, length: int) -> memoryview:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            try:
                return await super().read(file, start, length)
            finally:
                at_once -= 1

    origin, store = Counting(source(bucket)), WeightStore(tmp_path)
    with store.changing():
        await store.pull(origin, TRANSFER, lambda _: None, await origin.describe())
    assert 1 < most <= TRANSFER.workers


@pytest.mark.parametrize("private", [(), ("s3://models-*/**=a",)])
async def test_keys_of_a_bucket_are_used_for_private_sources_alone(bucket: S3Store, private: tuple[str, ...]) -> None:
    given = {"hub": "", "token_file": None, "allow_pickled": False, "workers": 1, "rate": 0}
    rules = SourceRules((SourcePattern("s3://**"),), tuple(map(PrivateSources.parse, private)))
    origin = FetchOptions(given, rules).origin(parse(f"s3://{bucket.config['bucket']}/team/llama"))
    if private:
        assert len((await origin.describe()).files) == len(FILES)
    else:
        with pytest.raises(WeightsError) as raised:
            await origin.describe()
        assert raised.value.cause is WeightsCause.DENIED
