"""An agent serves ranges of published and of verified files, by key and checksum, to those with the token."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from autoscaler.app.process import allow_many_connections
from autoscaler.weights.peers import server as served
from autoscaler.weights.peers.activity import PeerActivity
from autoscaler.weights.peers.server import PeerServer
from autoscaler.weights.peers.shared import Shared
from autoscaler.weights.peers.state import PeerState, decode
from autoscaler.weights.peers.token import ClusterToken
from autoscaler.weights.problems import WeightsError
from autoscaler.weights.store import WeightStore
from tests.harness.hub import FakeHub, git_sha1, safetensors, serving
from tests.harness.hung_disk import hung, may_freeze
from tests.harness.process import eventually
from tests.weights.peers.test_sharing import KEY
from tests.weights.test_store import pull

SHARD = safetensors(100_000)
DIGEST = hashlib.sha256(SHARD).hexdigest()


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with serving(FakeHub({"config.json": b"{}", "model.safetensors": SHARD})) as found:
        yield found


@pytest.fixture
def token(tmp_path: Path) -> ClusterToken:
    (tmp_path / "token").write_text("a token of this cluster")
    return ClusterToken(tmp_path / "token")


@pytest_asyncio.fixture
async def server(tmp_path: Path, token: ClusterToken) -> AsyncIterator[PeerServer]:
    shared = Shared(WeightStore(tmp_path / "root"))
    async with PeerServer(shared, PeerActivity(time.monotonic), token, "127.0.0.1") as running:
        yield running


async def get(server: PeerServer, token: ClusterToken | None, target: str, range_: str = "") -> tuple[int, bytes]:
    headers = {"Range": range_} if range_ else {}
    if token is not None:
        headers["Authorization"] = token.sign("GET", target, range_, time.time())
    url = f"http://127.0.0.1:{server.port}{target}"
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers, allow_redirects=False) as response:
        return response.status, await response.read()


def running(server: PeerServer, count: int) -> Callable[[], Awaitable[bool]]:
    async def probe() -> bool:
        return server.transfers.running == count

    return probe


async def state(server: PeerServer, token: ClusterToken, query: str = "") -> PeerState:
    status, content = await get(server, token, f"/weights/{KEY}{query}")
    assert status == 200
    return decode(content)


async def test_ranges_of_published_files_are_served(
    tmp_path: Path, hub: FakeHub, server: PeerServer, token: ClusterToken
) -> None:
    await pull(tmp_path / "root", hub)
    assert set((await state(server, token)).files) == {DIGEST, git_sha1(b"{}")}
    assert await get(server, token, f"/weights/{KEY}/{DIGEST}", "bytes=7-99") == (206, SHARD[7:100])
    assert (await get(server, token, f"/weights/{KEY}/{DIGEST}", f"bytes={len(SHARD)}-{len(SHARD)}"))[0] == 416
    assert server.transfers.running == 0


async def test_verified_files_of_a_transfer_that_failed_are_served(
    tmp_path: Path, hub: FakeHub, server: PeerServer, token: ClusterToken
) -> None:
    hub.damaged["model.safetensors"] = 1000
    with pytest.raises(WeightsError):
        await pull(tmp_path / "root", hub)
    small = git_sha1(b"{}")
    assert (await state(server, token)).files == (small,)
    assert await get(server, token, f"/weights/{KEY}/{small}", "bytes=0-1") == (206, b"{}")
    assert (await get(server, token, f"/weights/{KEY}/{DIGEST}", "bytes=0-1"))[0] == 404


@pytest.mark.parametrize(
    "target",
    [
        *(f"/weights/{KEY}/../../token", f"/weights/{KEY}/..%2f..%2ftoken", "/weights/../token", "/", "/metrics"),
        *(f"/weights/{KEY}/{'0' * 64}", f"/weights/{'0' * 16}/{DIGEST}", f"/weights/{KEY}/{DIGEST}/x"),
    ],
)
async def test_nothing_else_is_served(
    tmp_path: Path, hub: FakeHub, server: PeerServer, token: ClusterToken, target: str
) -> None:
    await pull(tmp_path / "root", hub)
    status, content = await get(server, token, target, "bytes=0-1")
    assert status in (401, 404)
    assert b"token of" not in content


async def test_link_in_place_of_a_file_is_not_followed(
    tmp_path: Path, hub: FakeHub, server: PeerServer, token: ClusterToken
) -> None:
    model = await pull(tmp_path / "root", hub)
    blob = (model.path / "model.safetensors").resolve()
    blob.unlink()
    blob.symlink_to(tmp_path / "token")
    assert (await get(server, token, f"/weights/{KEY}/{DIGEST}", "bytes=0-1"))[0] == 404


@pytest.mark.parametrize("range_", ["", "bytes=0-", "bytes=-5", "bytes=5-2", "bytes=0-99999999999", "bytes=0-1,3-4"])
async def test_request_without_one_bounded_range_is_refused(
    tmp_path: Path, hub: FakeHub, server: PeerServer, token: ClusterToken, range_: str
) -> None:
    await pull(tmp_path / "root", hub)
    assert await get(server, token, f"/weights/{KEY}/{DIGEST}", range_) == (416, b"")


async def test_request_without_a_signature_is_refused(
    tmp_path: Path, hub: FakeHub, server: PeerServer, token: ClusterToken
) -> None:
    await pull(tmp_path / "root", hub)
    (tmp_path / "other").write_text("the token of another cluster")
    for wrong in (None, ClusterToken(tmp_path / "other")):
        assert await get(server, wrong, f"/weights/{KEY}/{DIGEST}", "bytes=0-1") == (401, b"")
        assert await get(server, wrong, f"/weights/{KEY}") == (401, b"")


@pytest.mark.slow
@pytest.mark.parametrize(
    "request_", [b"", b"GET /weights", b"POST /weights/x HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"]
)
async def test_connections_without_a_signature_lock_nobody_out(
    tmp_path: Path, hub: FakeHub, server: PeerServer, token: ClusterToken, request_: bytes
) -> None:
    allow_many_connections()
    await pull(tmp_path / "root", hub)
    writers = []
    for _ in range(served.MAX_CONNECTIONS + 100):
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(request_)
        writers.append(writer)
    for _ in range(3):
        assert await get(server, token, f"/weights/{KEY}/{DIGEST}", "bytes=7-99") == (206, SHARD[7:100])
    for writer in writers:
        writer.close()


async def test_refusal_is_told_to_the_agent_when_it_is_signed(server: PeerServer, token: ClusterToken) -> None:
    told: list[str] = []
    server.on_refused = told.append
    assert (await get(server, None, f"/weights/{KEY}?refused=1"))[0] == 401
    await state(server, token)
    assert not told
    await state(server, token, "?refused=1")
    assert told == [KEY]


async def test_agents_that_ask_are_named_to_each_other(server: PeerServer, token: ClusterToken) -> None:
    assert (await state(server, token, "?port=8474")).peers == ()
    assert (await state(server, token, "?port=9999")).peers == ("127.0.0.1:8474",)
    assert (await state(server, token, "?port=x")).peers == ("127.0.0.1:8474", "127.0.0.1:9999")


@pytest.mark.slow
async def test_peer_that_reads_nothing_holds_one_place_only(
    tmp_path: Path, hub: FakeHub, server: PeerServer, token: ClusterToken
) -> None:
    hub.files["model.safetensors"] = large = safetensors(20_000_000)
    await pull(tmp_path / "root", hub)
    target = f"/weights/{KEY}/{hashlib.sha256(large).hexdigest()}"
    range_ = f"bytes=0-{len(large) - 1}"
    header = token.sign("GET", target, range_, time.time())
    request = f"GET {target} HTTP/1.1\r\nHost: x\r\nRange: {range_}\r\nAuthorization: {header}\r\n\r\n".encode()
    writers = []
    for _ in range(served.MAX_TRANSFERS):
        _, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1)
        writer.write(request)
        writers.append(writer)
    await eventually(running(server, served.MAX_TRANSFERS), "all transfers run")
    assert (await get(server, token, target, "bytes=0-1"))[0] == 503
    assert (await state(server, token)).files
    for writer in writers:
        writer.close()
    await eventually(running(server, 0), "all transfers end")
    assert (await get(server, token, target, "bytes=0-1"))[0] == 206


@pytest.mark.skipif(not may_freeze(), reason="this process may mount no disk that hangs")
async def test_peers_hold_up_nothing_else_when_a_disk_hangs(
    tmp_path: Path, hub: FakeHub, server: PeerServer, token: ClusterToken
) -> None:
    await pull(tmp_path / "root", hub)
    with hung(tmp_path / "root"):
        targets = [(f"/weights/{KEY}", ""), (f"/weights/{KEY}/{DIGEST}", "bytes=0-1")] * 40
        asked = [asyncio.ensure_future(get(server, token, *target)) for target in targets]
        await asyncio.sleep(0.5)
        assert not any(each.done() for each in asked)
        assert await asyncio.get_running_loop().getaddrinfo("localhost", 80)
        assert (await get(server, None, f"/weights/{KEY}"))[0] == 401
    await asyncio.gather(*asked)
    assert (await get(server, token, f"/weights/{KEY}/{DIGEST}", "bytes=0-1"))[0] == 206
