"""Weights of an https folder, on a real TLS server that states ETags, dates, or nothing."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from aiohttp import web

from autoscaler.config.weights.source import ModelSource, parse
from autoscaler.weights.fetch import Transfer
from autoscaler.weights.listing import Listing
from autoscaler.weights.origins.objects import Objects
from autoscaler.weights.problems import Cause, WeightsError
from autoscaler.weights.store import Model, Store
from tests.harness.certificates import Certificates
from tests.harness.hub import safetensors

TRANSFER = Transfer(workers=4, range_bytes=64 << 10)
DATES = "Thu, 01 Jan 2026 00:00:00 GMT", "Thu, 01 Jan 2026 00:00:01 GMT"


class Folder:
    """One file on an https server."""

    def __init__(self) -> None:
        self.content = safetensors(200_000, 1)
        self.headers: dict[str, str] = {}  # that say which version it is
        self.port = 0

    @property
    def source(self) -> ModelSource:
        return parse(f"https://localhost:{self.port}/models/model.safetensors")

    async def answer(self, request: web.Request) -> web.Response:
        part = request.http_range
        found = self.content[part]
        start = part.start or 0
        whole = len(found) == len(self.content)
        headers = self.headers | {"Accept-Ranges": "bytes"}
        if not whole:
            headers["Content-Range"] = f"bytes {start}-{start + len(found) - 1}/{len(self.content)}"
        stated = request.headers.get("If-Match", "")
        if stated and (stated.startswith("W/") or stated != self.headers.get("ETag")):  # as RFC 9110 says
            return web.Response(status=412)
        return web.Response(status=200 if whole else 206, body=found, headers=headers)


@pytest_asyncio.fixture
async def folder(certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Folder]:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.ca))
    pair = certificates.issue("localhost")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.certificate, pair.key)
    made, app = Folder(), web.Application()
    app.router.add_get("/models/model.safetensors", made.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "localhost", 0, ssl_context=context).start()
    made.port = runner.addresses[0][1]
    yield made
    await runner.cleanup()


async def pull(root: Path, source: ModelSource, listing: Listing | None = None) -> Model:
    store, origin = Store(root), Objects(source)
    with store.changing():
        return await store.pull(origin, TRANSFER, lambda _: None, listing or await origin.describe())


VERSIONS: list[Callable[[int], dict[str, str]]] = [
    lambda number: {"ETag": f'"{number}"'},
    lambda number: {"ETag": f'W/"{number}"'},
    lambda number: {"Last-Modified": DATES[number]},
]


@pytest.mark.parametrize("version", VERSIONS, ids=["strong", "weak", "date"])
async def test_changed_file_of_the_same_size_is_noticed(
    tmp_path: Path, folder: Folder, version: Callable[[int], dict[str, str]]
) -> None:
    folder.headers = version(0)
    model = await pull(tmp_path / "root", folder.source)
    assert (model.path / "model.safetensors").read_bytes() == folder.content
    before = await Objects(folder.source).describe()
    folder.content, folder.headers = safetensors(200_000, 2), version(1)
    with pytest.raises(WeightsError, match="changed while it was fetched") as raised:
        await pull(tmp_path / "other", folder.source, before)
    assert raised.value.cause is Cause.CHANGED
    model = await pull(tmp_path / "root", folder.source)
    assert (model.path / "model.safetensors").read_bytes() == folder.content


async def test_file_without_etag_and_date_is_refused_before_the_first_byte(tmp_path: Path, folder: Folder) -> None:
    with pytest.raises(WeightsError, match="states neither an ETag nor a date") as raised:
        await pull(tmp_path, folder.source)
    assert raised.value.cause is Cause.NOT_ALLOWED
