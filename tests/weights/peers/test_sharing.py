"""Agents that fetch one model share it over real sockets; peers that misbehave harm nothing."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
import pytest_asyncio
from aiohttp import web

from autoscaler.config.weights.source import parse
from autoscaler.weights.fetch import Transfer
from autoscaler.weights.origins.hub import Hub
from autoscaler.weights.peers.origin import WaitLimits
from autoscaler.weights.peers.peers import Peers, Tls
from autoscaler.weights.peers.token import ClusterToken
from autoscaler.weights.store import PublishedModel, WeightStore
from tests.harness.certificates import Certificates
from tests.harness.hub import FakeHub, safetensors, serving
from tests.weights.test_store import SOURCE, contents

pytestmark = pytest.mark.slow

TRANSFER = Transfer(workers=4, range_bytes=64 << 10)
PATIENCE = WaitLimits(settle_s=0.2, refresh_s=0.1, silence_s=1.0, await_s=1.0, idle_s=2.0, base_s=2.0)
LONG = WaitLimits(refresh_s=0.1)
PATIENT = replace(LONG, settle_s=0.2)  # a busy machine makes no agent give up another
KEY = parse(SOURCE).key


class Agents:
    """A list of agents, which may grow."""

    def __init__(self, addresses: list[str]) -> None:
        self._addresses = addresses

    async def holders(self, key: str) -> Sequence[str]:
        return ()

    async def agents(self) -> Sequence[str]:
        return tuple(self._addresses)


class Agent:
    """A folder of weights that shares with the agents of a list, which may grow."""

    def __init__(
        self,
        root: Path,
        hub: FakeHub,
        addresses: list[str],
        token: Path,
        tls: Tls | None = None,
        patience: WaitLimits = PATIENCE,
    ) -> None:
        self.store = WeightStore(root)
        self.hub = hub
        self.peers = Peers(self.store, Agents(addresses), ClusterToken(token), "127.0.0.1", tls=tls, patience=patience)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.peers.server.port}"

    async def pull(self) -> PublishedModel:
        origin = self.peers.wrap(lambda source: Hub(source, self.hub.url))(parse(SOURCE))
        with self.store.changing():
            return await self.store.pull(origin, TRANSFER, lambda _: None, await origin.describe())


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    files = {f"model-{number:05d}-of-00004.safetensors": safetensors(400_000, number) for number in range(1, 5)}
    with serving(FakeHub({"config.json": b"{}", **files})) as served:
        yield served


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("a token of this cluster\n")
    return path


@pytest_asyncio.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as opened:
        yield opened


async def start(stack: AsyncExitStack, agents: list[Agent], addresses: list[str]) -> None:
    for agent in agents:
        await stack.enter_async_context(agent.peers)
        addresses.append(agent.address)


def size(hub: FakeHub) -> int:
    return sum(map(len, hub.files.values()))


async def test_ten_agents_that_start_at_once_fetch_at_most_two_copies(
    tmp_path: Path, hub: FakeHub, token: Path, stack: AsyncExitStack
) -> None:
    addresses: list[str] = []
    agents = [Agent(tmp_path / str(number), hub, addresses, token, patience=LONG) for number in range(10)]
    await start(stack, agents, addresses)
    models = await asyncio.gather(*(agent.pull() for agent in agents))
    assert sum(hub.sent.values()) <= 2 * size(hub)
    for agent, model in zip(agents, models, strict=True):
        assert contents(model.path) == hub.files
        assert agent.store.verify(model, lambda _: None) == []


async def test_holder_is_asked_before_the_source(
    tmp_path: Path, hub: FakeHub, token: Path, stack: AsyncExitStack
) -> None:
    addresses: list[str] = []
    agents = [Agent(tmp_path / str(number), hub, addresses, token, patience=PATIENT) for number in range(2)]
    await start(stack, agents, addresses)
    await agents[0].pull()
    hub.sent.clear()
    model = await agents[1].pull()
    assert contents(model.path) == hub.files
    assert not hub.sent
    assert agents[1].peers.counts.peer_bytes == size(hub)


async def test_agent_that_dies_is_replaced_by_the_source(
    tmp_path: Path, hub: FakeHub, token: Path, stack: AsyncExitStack
) -> None:
    addresses: list[str] = []
    agents = [Agent(tmp_path / str(number), hub, addresses, token) for number in range(2)]
    await start(stack, agents, addresses)
    first = asyncio.create_task(agents[0].pull())
    await asyncio.sleep(0.1)
    second = asyncio.create_task(agents[1].pull())
    await asyncio.sleep(0.3)
    first.cancel()
    await asyncio.wait({first})
    await agents[0].peers.server.__aexit__()
    assert contents((await second).path) == hub.files


async def test_agents_of_one_authority_share_over_tls(
    tmp_path: Path, hub: FakeHub, token: Path, stack: AsyncExitStack, certificates: Certificates
) -> None:
    addresses: list[str] = []
    pair = certificates.issue("agent")
    tls = Tls(pair.certificate, pair.key, certificates.ca)
    agents = [Agent(tmp_path / str(number), hub, addresses, token, tls, PATIENT) for number in range(2)]
    plain = Agent(tmp_path / "plain", hub, addresses, token)
    await start(stack, [*agents, plain], addresses)
    await agents[0].pull()
    hub.sent.clear()
    await agents[1].pull()
    assert not hub.sent
    await plain.pull()
    assert sum(hub.sent.values()) == size(hub)


async def wrong_state(_: web.Request) -> web.StreamResponse:
    return web.Response(body=b'{"id": "../../../etc", "files": ["x"]}')


async def huge_state(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b"[" * (1 << 20))


async def hangs(_: web.Request) -> web.StreamResponse:
    await asyncio.sleep(3600)
    raise AssertionError


async def moved(_: web.Request) -> web.StreamResponse:
    raise web.HTTPFound("http://127.0.0.1:1/")


def state_of(hub: FakeHub, **more: object) -> web.Response:
    files = [hashlib.sha256(hub.files[name]).hexdigest() for name in hub.lfs]
    return web.json_response({"id": "0" * 16, "files": files, **more})


def holding(hub: FakeHub, kind: str):  # type: ignore[no-untyped-def]
    """Return a peer that states to have all files, and answers with something else."""

    async def answer(request: web.Request) -> web.StreamResponse:
        if "/" not in request.path.removeprefix("/weights/"):
            return state_of(hub)
        first, _, last = request.headers["Range"].removeprefix("bytes=").partition("-")
        length = int(last) - int(first) + 1
        if kind == "wrong bytes":
            return web.Response(status=206, body=b"x" * length)
        if kind == "short":
            return web.Response(status=206, body=b"x" * (length // 2))
        if kind == "long":
            return web.Response(status=206, body=b"x" * (length * 2))
        if kind == "refuses":
            return web.Response(status=404)
        if kind == "busy":
            return web.Response(status=503)
        response = web.StreamResponse(status=206, headers={"Content-Length": str(length)})
        await response.prepare(request)
        await response.write(b"x")
        await asyncio.sleep(3600)
        return response

    return answer


async def never_done(_: web.Request) -> web.StreamResponse:
    return web.json_response({"id": "f" * 16, "fetching": True, "bytes": 5})


def claiming(hub: FakeHub, restarts: bool):  # type: ignore[no-untyped-def]
    """Return a peer that states to fetch each file from the source, and to receive more and more.

    restarts: it answers as a process that has just been started, each time.
    """
    claimed = {hashlib.sha256(content).hexdigest(): [0] for content in hub.files.values()}
    received = count()

    async def answer(_: web.Request) -> web.StreamResponse:
        state = {
            "id": secrets.token_hex(8) if restarts else "f" * 16,
            "fetching": True,
            "bytes": next(received),
            "claimed": claimed,
        }
        return web.json_response(state)

    return answer


@pytest.mark.parametrize(
    "kind",
    [
        *("wrong state", "huge state", "hangs", "moved", "never done", "claims all", "restarts"),
        *("wrong bytes", "short", "long", "refuses", "busy", "slow"),
    ],
)
async def test_peer_that_misbehaves_is_left_out(
    tmp_path: Path, hub: FakeHub, token: Path, stack: AsyncExitStack, kind: str
) -> None:
    plain = {"wrong state": wrong_state, "huge state": huge_state, "hangs": hangs, "moved": moved}
    plain |= {"never done": never_done, "claims all": claiming(hub, False), "restarts": claiming(hub, True)}
    answer = plain.get(kind) or holding(hub, kind)
    told = []

    async def note(request: web.Request) -> web.StreamResponse:
        told.extend(["refused"] if "refused" in request.query else [])
        return await answer(request)

    app = web.Application()
    app.router.add_get("/{path:.*}", note)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    addresses = [f"127.0.0.1:{runner.addresses[0][1]}"]
    patience = PATIENT if kind == "wrong bytes" else PATIENCE
    agent = Agent(tmp_path / "agent", hub, addresses, token, patience=patience)
    await start(stack, [agent], addresses)
    model = await agent.pull()
    assert contents(model.path) == hub.files
    assert agent.peers.counts.peer_bytes == 0 or kind == "wrong bytes"
    assert bool(told) == (kind == "wrong bytes"), "the sender checks its copy"


async def test_agent_with_another_token_is_refused(
    tmp_path: Path, hub: FakeHub, token: Path, stack: AsyncExitStack
) -> None:
    addresses: list[str] = []
    other = tmp_path / "other"
    other.write_text("the token of another cluster")
    agents = [Agent(tmp_path / "a", hub, addresses, token), Agent(tmp_path / "b", hub, addresses, other)]
    await start(stack, agents, addresses)
    await agents[0].pull()
    hub.sent.clear()
    model = await agents[1].pull()
    assert contents(model.path) == hub.files
    assert sum(hub.sent.values()) == size(hub)
    assert agents[0].peers.server.transfers.sent_bytes == 0
