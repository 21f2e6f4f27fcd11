"""Agents share objects of a real S3 server as they share files of a hub; nobody without the token can send one."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import obstore
import pytest
import pytest_asyncio
from aiohttp import web
from obstore.store import S3Store

from autoscaler.config.weights.source import parse
from autoscaler.weights.fetch import Transfer
from autoscaler.weights.listing import RemoteFile
from autoscaler.weights.origins.object_store import Objects
from autoscaler.weights.peers.client import PeerClient, WrongPeerError
from autoscaler.weights.peers.peers import Peers
from autoscaler.weights.peers.token import ClusterToken
from autoscaler.weights.store import WeightStore
from tests.harness.hub import safetensors
from tests.harness.s3 import ACCESS_KEY, REGION, SECRET_KEY, s3
from tests.weights.peers.test_sharing import PATIENT, Agents

CONTENT = safetensors(400_000, 1)
SOURCE = parse("s3://models/llama")


@pytest_asyncio.fixture
async def options(tmp_path: Path) -> AsyncIterator[dict[str, object]]:
    """Serve a bucket with one model, and return how obstore reaches it."""
    url, process = s3(tmp_path)
    (tmp_path / "buckets" / "models").mkdir()
    keys = {"access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY, "region": REGION}
    await process.start()
    store = S3Store("models", endpoint=url, client_options={"allow_http": True}, **keys)
    await obstore.put_async(store, "llama/model.safetensors", CONTENT)
    yield {"endpoint": url, **keys}
    await process.stop()


@pytest.fixture
def token(tmp_path: Path) -> ClusterToken:
    (tmp_path / "token").write_text("a token of this cluster")
    return ClusterToken(tmp_path / "token")


@pytest.mark.integration
async def test_agents_share_objects_of_a_bucket(
    tmp_path: Path, options: dict[str, object], token: ClusterToken
) -> None:
    read: Counter[int] = Counter()

    class Counting(Objects):
        async def read(self, file: RemoteFile, start: int, length: int) -> memoryview:
            read[start] += 1
            return await super().read(file, start, length)

    async def pull(store: WeightStore, peers: Peers) -> bytes:
        origin = peers.wrap(lambda source: Counting(source, options=options))(SOURCE)
        with store.changing():
            model = await store.pull(origin, Transfer(4, 64 << 10), lambda _: None, await origin.describe())
        return (model.path / "model.safetensors").read_bytes()

    addresses: list[str] = []
    stores = [WeightStore(tmp_path / str(number)) for number in range(4)]
    agents = [Peers(store, Agents(addresses), token, "127.0.0.1", patience=PATIENT) for store in stores]
    async with AsyncExitStack() as stack:
        for agent in agents:
            await stack.enter_async_context(agent)
            addresses.append(f"127.0.0.1:{agent.server.port}")
        found = await asyncio.gather(*map(pull, stores[:3], agents[:3]))
        assert read.total() <= 2 * len(read)  # one is late where a busy machine keeps it from telling others in time
        read.clear()
        found.append(await pull(stores[3], agents[3]))  # from those that hold it
    assert found == [CONTENT] * 4
    assert not read


@pytest.mark.parametrize("seal", [b"", bytes(32), b"x" * 31])
async def test_object_without_the_seal_of_an_agent_is_refused(token: ClusterToken, seal: bytes) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=206, body=b"x" * 100 + seal)

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    address = f"127.0.0.1:{runner.addresses[0][1]}"
    client = PeerClient(token, asyncio.get_running_loop().time)
    with pytest.raises(WrongPeerError):
        await client.read(address, "0" * 16, "a" * 64, 0, 100, sealed=True)
    assert client.is_given_up(address)
    client.close()
    await runner.cleanup()


def test_peer_is_asked_again_soon_until_it_fails_in_a_row(token: ClusterToken) -> None:
    now = [100.0]
    client = PeerClient(token, lambda: now[0])
    client.leave_out("a", is_wrong=False)
    assert client.is_left_out("a")
    assert not client.is_given_up("a")
    now[0] += 1.5
    assert not client.is_left_out("a")
    client.leave_out("a", is_wrong=False)
    assert client.is_given_up("a")
    for _ in range(20):
        client.leave_out("a", is_wrong=False)
    now[0] += 11.0
    assert not client.is_left_out("a")
    client.leave_out("b")
    now[0] += 59.0
    assert client.is_left_out("b")
