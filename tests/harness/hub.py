"""A hub on loopback: the two addresses of Hugging Face's API that are read, and its redirect to another host.

The real hub cannot be reached by tests. Names of fields follow `huggingface_hub.HfApi.model_info` and the hub's OpenAPI
page; `git_sha1` and `sha256` are computed as Git and Git LFS do.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.harness.process import PATIENCE_S

MAX_LIE_BYTES = 256 << 20
LIES: dict[str, tuple[int, dict[str, str]]] = {
    "no length": (206, {"Content-Range": "bytes 0-65535/1000000"}),
    "no length, no range": (206, {}),
    "in chunks": (206, {"Transfer-Encoding": "chunked"}),
    "longer": (206, {"Content-Length": "2684354560"}),
    "another range": (206, {"Content-Range": "bytes 0-2684354559/2684354560"}),
    "whole": (200, {"Content-Length": "2684354560"}),
    "whole, no length": (200, {}),
    "packed": (206, {"Content-Encoding": "gzip"}),
    "text of an error": (404, {"Transfer-Encoding": "chunked"}),
    "text of a failure": (400, {"Content-Length": "2684354560"}),
}
"""Answers to a request for the first 65,536 bytes of a file, all with a body without end."""

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub:
    """One model, org/model, at one commit. Its attributes may change while it serves."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.lfs = {name for name in files if name.endswith(".safetensors")}
        self.commit = COMMIT
        self.token = ""  # required of requests, if not empty
        self.status = 0  # answered instead of files, if not 0
        self.damaged: Counter[str] = Counter()  # answers with a wrong byte still to give, by file
        self.listed: dict[str, dict[str, Any]] = {}  # fields that the listing states instead of true ones
        self.delay_s = 0.0
        self.drip_s = 0.0  # between two bytes of the listing, if not 0
        self.encoding = ""  # Content-Encoding of the listing, if not empty
        self.held: dict[str, threading.Event] = {}  # sent once its event is set, by file
        self.sent: Counter[str] = Counter()  # bytes sent, by file
        self.seen_tokens: set[str] = set()  # Authorization headers that reached the other host
        self.url = self.store_url = ""
        self.signature = "1"  # of addresses to which it redirects: the other host refuses those with another one
        self.resolved: Counter[str] = Counter()  # requests to the hub itself, by file
        self.limits: list[tuple[int, dict[str, str]]] = []  # status and headers of the next of them; 0: no refusal
        self.lie = ""  # kind of wrong answer of the other host, a key of LIES
        self.lied_bytes = 0  # that were sent of it

    def siblings(self) -> list[dict[str, Any]]:
        """Return the list of files as the API gives it."""
        found = []
        for name, content in self.files.items():
            entry: dict[str, Any] = {"rfilename": name, "size": len(content), "blobId": git_sha1(content)}
            if name in self.lfs:
                entry["lfs"] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
            found.append(entry | self.listed.get(name, {}))
        return found


def git_sha1(content: bytes) -> str:
    """Return the name that Git gives a file."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def safetensors(size: int, seed: int = 0) -> bytes:
    """Return a valid file of safetensors with one tensor of `size` bytes."""
    header = json.dumps({"weight": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    block = hashlib.sha256(b"%d" % seed).digest() * 4096
    return len(header).to_bytes(8, "little") + header + (block * (size // len(block) + 1))[:size]


@contextmanager
def serving(hub: FakeHub) -> Iterator[FakeHub]:
    """Serve the hub, and the host to which it redirects, on two ports."""
    store = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub, ""))
    front = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub, f"http://localhost:{store.server_port}"))
    threads = [threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True) for server in (store, front)]
    for thread in threads:
        thread.start()
    hub.url = f"http://127.0.0.1:{front.server_port}"
    hub.store_url = f"http://127.0.0.1:{store.server_port}"
    try:
        yield hub
    finally:
        for server, thread in zip((store, front), threads, strict=True):
            server.shutdown()
            server.server_close()
            thread.join()


def _handler(hub: FakeHub, redirect: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            token = self.headers.get("Authorization", "")
            if not redirect and token:
                hub.seen_tokens.add(token)
            if redirect and hub.token and token != f"Bearer {hub.token}":
                return self._answer(401, b'{"error":"denied"}')
            if path.startswith("/api/models/org/model"):
                info = {"_id": "1", "id": "org/model", "sha": hub.commit, "siblings": hub.siblings()}
                body = json.dumps(info).encode()
                if hub.encoding:
                    return self._answer(200, gzip.compress(body), {"Content-Encoding": hub.encoding})
                return self._answer(200, body)
            name = path.removeprefix(f"/org/model/resolve/{hub.commit}/")
            if name == path or name not in hub.files:
                return self._answer(404, b'{"error":"not found"}')
            if hub.status:
                return self._answer(hub.status, b"")
            if redirect:
                hub.resolved[name] += 1
                status, headers = hub.limits.pop(0) if hub.limits else (0, {})
                if status:
                    return self._answer(status, b"", headers)
                if name in hub.lfs:
                    return self._answer(302, b"", {"Location": f"{redirect}{self.path}?{hub.signature}", **headers})
            elif urlsplit(self.path).query != hub.signature:
                return self._answer(403, b"")
            elif hub.lie:
                return self._lie(*LIES[hub.lie])
            return self._send(name)

        def _lie(self, status: int, headers: dict[str, str]) -> None:
            """Send a body without end, whatever the headers state."""
            self.close_connection = True
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value)
            self.end_headers()
            piece = b"10000\r\n" + bytes(1 << 16) + b"\r\n" if "Transfer-Encoding" in headers else bytes(1 << 16)
            with suppress(BrokenPipeError, ConnectionResetError):
                while hub.lied_bytes < MAX_LIE_BYTES:
                    self.wfile.write(piece)
                    hub.lied_bytes += len(piece)

        def _send(self, name: str) -> None:
            time.sleep(hub.delay_s)
            if name in hub.held:
                hub.held[name].wait(PATIENCE_S)
            content = hub.files[name]
            first, _, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
            start, end = int(first), min(int(last or len(content)), len(content) - 1) + 1
            part = bytearray(content[start:end])
            if hub.damaged[name] > 0 and part:
                hub.damaged[name] -= 1
                part[-1] ^= 1
            hub.sent[name] += len(part)
            self._answer(206, bytes(part), {"Content-Range": f"bytes {start}-{end - 1}/{len(content)}"})

        def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for key, value in {"Content-Length": str(len(body)), "ETag": '"x"', **(headers or {})}.items():
                self.send_header(key, value)
            self.end_headers()
            try:
                while hub.drip_s and body:
                    self.wfile.write(body[:1])
                    body = body[1:]
                    time.sleep(hub.drip_s)
                self.wfile.write(body)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True

        def log_message(self, *_: object) -> None:
            pass

    return Handler
