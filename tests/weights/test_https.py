"""Weights of an https folder, on a real TLS server that states ETags, dates, or nothing."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from autoscaler.config.weights.source import ModelSource, parse
from autoscaler.weights.fetch import Transfer
from autoscaler.weights.listing import Listing
from autoscaler.weights.origins.https import Https
from autoscaler.weights.problems import WeightsCause, WeightsError
from autoscaler.weights.store import PublishedModel, WeightStore
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

    def answer(self, stated: str, range_: str) -> tuple[int, bytes, dict[str, str]]:
        """Return status, content and headers. stated: the header If-Match."""
        if stated and (stated.startswith("W/") or stated != self.headers.get("ETag")):  # as RFC 9110 says
            return 412, b"", {}
        if not range_:
            return 200, self.content, self.headers
        first, _, last = range_.removeprefix("bytes=").partition("-")
        found = self.content[int(first) : int(last) + 1]
        place = f"bytes {first}-{int(first) + len(found) - 1}/{len(self.content)}"
        return 206, found, {**self.headers, "Content-Range": place}


def handler(folder: Folder) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            status, content, headers = folder.answer(self.headers.get("If-Match", ""), self.headers.get("Range", ""))
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            pass

    return Handler


@pytest.fixture
def folder(certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.ca))
    pair = certificates.issue("localhost")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.certificate, pair.key)
    made = Folder()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(made))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    made.port = server.server_port
    yield made
    server.shutdown()
    server.server_close()
    thread.join()


async def pull(root: Path, source: ModelSource, listing: Listing | None = None) -> PublishedModel:
    store, origin = WeightStore(root), Https(source)
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
    before = await Https(folder.source).describe()
    folder.content, folder.headers = safetensors(200_000, 2), version(1)
    with pytest.raises(WeightsError, match="changed while it was fetched") as raised:
        await pull(tmp_path / "other", folder.source, before)
    assert raised.value.cause is WeightsCause.CHANGED
    model = await pull(tmp_path / "root", folder.source)
    assert (model.path / "model.safetensors").read_bytes() == folder.content


async def test_file_without_etag_and_date_is_refused(tmp_path: Path, folder: Folder) -> None:
    with pytest.raises(WeightsError, match="states neither an ETag nor a date") as raised:
        await pull(tmp_path, folder.source)
    assert raised.value.cause is WeightsCause.NOT_ALLOWED


@pytest.mark.parametrize(
    "index", [b'{"weight_map": {"a": "\xff"}}', b"\xff", b"[" * 100_000, b'{"weight_map": {"a": 1e999}}']
)
async def test_index_is_refused_when_it_cannot_be_read(tmp_path: Path, folder: Folder, index: bytes) -> None:
    folder.content, folder.headers = index, {"ETag": '"1"'}
    with pytest.raises(WeightsError, match="is no index of safetensors") as raised:
        await Https(parse(f"https://localhost:{folder.port}/models")).describe()
    assert raised.value.cause is WeightsCause.INVALID


@pytest.mark.parametrize("name", ["../secret", "a/../../b", "a\\u0000b", "a//b", "\\u007f"])
async def test_index_is_refused_when_it_names_no_file(tmp_path: Path, folder: Folder, name: str) -> None:
    folder.content, folder.headers = f'{{"weight_map": {{"a": "{name}"}}}}'.encode(), {"ETag": '"1"'}
    with pytest.raises(WeightsError) as raised:
        await Https(parse(f"https://localhost:{folder.port}/models")).describe()
    assert raised.value.cause is WeightsCause.INVALID
