"""An origin that asks peers before the source, one range at a time. The source lists the files, and what peers send is
verified like everything else.

Agents that fetch the same model at the same time share it. Each share of a file has one of them as its owner, by a hash
that all compute alike. The owner reads the share from the source, and gives each range to the others once it has it.
No agent waits for one that receives nothing, nor longer than a slow source would take.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import structlog

from autoscaler.weights.listing import Listing, Origin, RemoteFile
from autoscaler.weights.peers.activity import SHARE_BYTES, PeerActivity
from autoscaler.weights.peers.client import BUSY_S, BusyError, PeerClient, PeerError
from autoscaler.weights.peers.directory import Directory
from autoscaler.weights.peers.state import PeerState

log = structlog.get_logger(__name__)

MAX_ASKED = 32  # peers of one model
MEETING_AGENTS = 2  # of more agents than that, those through which agents that fetch the same model find each other


@dataclass(frozen=True)
class WaitLimits:
    """Waiting times, in seconds."""

    settle_s: float = 0.5  # for others that begin at the same moment
    join_s: float = 5.0  # most for the first answers of others
    refresh_s: float = 1.0  # between two questions to the same peers
    silence_s: float = 10.0  # of a peer that is asked for something
    await_s: float = 10.0  # most for which a peer keeps a request while it fetches the range itself
    idle_s: float = 30.0  # a peer that receives nothing for this long is not waited for
    base_s: float = 60.0  # most for one share, in addition to the time that it takes from a slow source
    slow_bytes_per_s: float = 50e6


@dataclass
class OriginCounts:
    """Numbers since the start of the process."""

    peer_bytes: int = 0
    rejected_files: int = 0  # with ranges of peers, and a wrong checksum
    failures: int = 0  # of requests to peers


@dataclass
class _Peer:
    """The last answer of a peer."""

    state: PeerState
    advanced_s: float  # when it last had received more


class _Share(NamedTuple):
    """A part of a file that one agent reads from the source for all."""

    name: str  # of the file, as agents share it
    number: int


@dataclass
class _Waits:
    """For which shares of which peers this agent waits."""

    begun_s: dict[tuple[_Share, str], float] = field(default_factory=dict)
    in_vain: set[tuple[_Share, str]] = field(default_factory=set)


class PeerOrigin:
    """Reads one model from peers, and else from its source."""

    def __init__(
        self,
        key: str,
        source: Origin,
        client: PeerClient,
        directory: Directory,
        activity: PeerActivity,
        counts: OriginCounts,
        port: Callable[[], int],
        patience: WaitLimits,
        clock_s: Callable[[], float],
    ) -> None:
        """port: returns the one under which this agent serves."""
        self._key = key
        self._source = source
        self._client = client
        self._directory = directory
        self._activity = activity
        self._counts = counts
        self._port = port
        self._patience = patience
        self._clock_s = clock_s
        self._peers: dict[str, _Peer] = {}  # that have something of the model, by address
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._refreshing: asyncio.Task[None] | None = None
        self._asked_s = float("-inf")
        self._joining = asyncio.Lock()
        self._joined = False
        self._known_agents: Sequence[str] = ()
        self._ranked: list[str] = []  # all agents; through the first, those that fetch this model find each other
        self._reading: Counter[str] = Counter()  # ranges under way, by address
        self._senders: dict[str, set[str]] = {}  # peers that sent ranges of a file
        self._from_source: set[tuple[str, int]] = set()  # ranges that are not on the disk yet
        self._rejected: set[str] = set()
        self._refusals: set[asyncio.Future[None]] = set()
        self._waits = _Waits()

    async def describe(self) -> Listing:
        """Return the files, as the source lists them. Raises WeightsError."""
        return await self._source.describe()

    async def begin(self, file: RemoteFile, starts: Sequence[int]) -> Collection[int]:
        """Return the ranges that this agent reads from the source. For the others it may have to wait."""
        async with self._joining:
            if not self._joined:
                await self._join()
        name = file.shared_as
        if not name or name in self._rejected:
            return starts
        self._activity.begin(self._key, name, starts)
        return {start for start in starts if not self._awaited(_Share(name, start // SHARE_BYTES))}

    async def _join(self) -> None:
        """Make this agent known to others, and see those that begin at the same moment."""
        self._activity.touch(self._key)
        for pause_s in (0.0, self._patience.settle_s):
            await asyncio.sleep(pause_s if self._peers else 0.0)
            await self._refresh()
            if self._asking:
                await asyncio.wait(self._asking.values(), timeout=self._patience.join_s)
        self._joined = True

    async def read(self, file: RemoteFile, start: int, length: int) -> memoryview:
        """Return a range of a file, whole. Raises WeightsError."""
        name = file.shared_as
        if name and name not in self._rejected:
            content = await self._read_shared(file, start, length)
            if content is not None:
                return content
            self._activity.claim(self._key, name, start)
            self._from_source.add((name, start))
        content = await self._source.read(file, start, length)
        self._activity.touch(self._key, length)
        return content

    async def _read_shared(self, file: RemoteFile, start: int, length: int) -> memoryview | None:
        """Return a range that a peer has, or will have; None: this agent is to read it from the source."""
        share = _Share(file.shared_as, start // SHARE_BYTES)
        while True:
            self._activity.touch(self._key)
            self._refresh_soon()
            awaited = self._awaited(share)
            if not awaited:
                return None
            able = [each for each in awaited if not (self._client.is_busy(each) or self._client.is_left_out(each))]
            if not able:
                await asyncio.sleep(min(BUSY_S, self._patience.refresh_s))
            else:
                address = min(able, key=lambda each: (self._reading[each], random.random()))
                content = await self._read_peer(address, share, start, length, sealed=not file.digest)
                if content is not None:
                    return content
            for each in awaited:
                self._bound_wait(share, each)

    async def _read_peer(self, address: str, share: _Share, start: int, length: int, sealed: bool) -> memoryview | None:
        self._reading[address] += 1
        self._waits.begun_s.setdefault((share, address), self._clock_s())
        try:
            content = await self._client.read(address, self._key, share.name, start, length, sealed)
        except BusyError:
            return None
        except PeerError as error:
            self._fail(address, error)
            if not self._client.is_left_out(address):  # it has no such range
                self._waits.in_vain.add((share, address))
            return None
        finally:
            self._reading[address] -= 1
        self._waits.begun_s.pop((share, address), None)
        self._senders.setdefault(share.name, set()).add(address)
        self._activity.touch(self._key, length)
        self._counts.peer_bytes += length
        return content

    def stored(self, file: RemoteFile, start: int, length: int, path: Path) -> None:
        """Give a range to peers, if it came from the source: what others sent is not verified yet."""
        name = file.shared_as
        if name:
            is_own = (name, start) in self._from_source
            self._from_source.discard((name, start))
            self._activity.store(self._key, name, start, length, path, is_own)

    def reject(self, file: RemoteFile) -> None:
        """Leave out the peers that sent ranges of a wrong file, and read it from the source only."""
        name = file.shared_as
        self._rejected.add(name)
        self._activity.drop(self._key, name)
        senders = self._senders.pop(name, set())
        for address in senders:
            self._leave_out(address, f"a file with its ranges has a wrong checksum: {file.path!r}")
            self._refusals.add(asyncio.ensure_future(self._client.refuse(address, self._key)))
        self._counts.rejected_files += bool(senders)
        self._source.reject(file)

    async def close(self) -> None:
        """Ask nobody any more."""
        if self._refusals:
            await asyncio.wait(self._refusals, timeout=self._patience.join_s)
        tasks = [task for task in (self._refreshing, *self._asking.values(), *self._refusals) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._source.close()

    # Whom to wait for

    def _awaited(self, share: _Share) -> list[str]:
        """Return the peers that have a file, or else those that read the share, or else the one that is to read it."""
        usable = {
            address: peer.state for address, peer in self._peers.items() if (share, address) not in self._waits.in_vain
        }
        if holders := [address for address, state in usable.items() if share.name in state.files]:
            return holders
        if self._activity.is_claimed(self._key, share.name, share.number * SHARE_BYTES):
            return []
        fetching = {address: state for address, state in usable.items() if state.fetching}
        if claiming := [
            address for address, state in fetching.items() if share.number in state.claimed.get(share.name, ())
        ]:
            return claiming
        ids = [self._activity.id, *(state.id for state in fetching.values())]
        owner = max(ids, key=lambda each: _rank(each, f"{share.name} {share.number}"))
        return [address for address, state in fetching.items() if state.id == owner]

    def _bound_wait(self, share: _Share, address: str) -> None:
        """Wait for a peer no more if it received nothing for a while. Then all turn to the same other one."""
        now_s = self._clock_s()
        wait = share, address  # not its process: one that restarts again and again would be awaited for ever
        begun_s = self._waits.begun_s.setdefault(wait, now_s)
        peer = self._peers.get(address)
        most_s = self._patience.base_s + SHARE_BYTES / self._patience.slow_bytes_per_s
        if peer is None:
            return
        if now_s - begun_s > most_s:
            self._leave_out(address, f"a range did not come from it within {most_s:.0f} s")
        elif share.name not in peer.state.files and now_s - max(peer.advanced_s, begun_s) > self._patience.idle_s:
            self._waits.in_vain.add(wait)

    def _fail(self, address: str, error: PeerError) -> None:
        """Count a failure. The client pauses for the peer already; what it has stays known until it is given up."""
        self._counts.failures += 1
        if self._client.is_given_up(address) and address in self._peers:
            del self._peers[address]
            log.warning("peer is left out", peer=address, error=str(error))

    def _leave_out(self, address: str, why: str) -> None:
        self._peers.pop(address, None)
        self._client.leave_out(address)
        log.warning("peer is left out", peer=address, error=why)

    # Questions to peers

    def _refresh_soon(self) -> None:
        """Ask peers in the background, unless that was done so short a time ago."""
        if self._clock_s() - self._asked_s >= self._patience.refresh_s and (
            self._refreshing is None or self._refreshing.done()
        ):
            self._refreshing = asyncio.create_task(self._refresh())

    async def _refresh(self) -> None:
        """Ask peers that have answered the last question."""
        self._asked_s = self._clock_s()
        for address in await self._addresses():
            if address not in self._asking:
                self._asking[address] = asyncio.create_task(self._ask(address))

    async def _addresses(self) -> list[str]:
        """Return whom to ask: all agents, or of very many those that hold the model, fetch it, or may know who does."""
        holders = await self._directory.holders(self._key)
        agents = await self._directory.agents()
        if agents is not self._known_agents:
            self._known_agents = agents
            self._ranked = sorted(set(agents), key=lambda address: _rank(address, self._key), reverse=True)
        if len(self._ranked) <= MAX_ASKED:
            return self._usable([*self._ranked, *holders])[:MAX_ASKED]
        meeting = self._usable(self._ranked)[: MEETING_AGENTS + 1]  # this agent may be one of them
        told = [address for peer in self._peers.values() for address in peer.state.peers]
        others = set(self._ranked).intersection([*self._activity.askers(self._key), *told])
        found = random.sample(list(holders), len(holders))
        return self._usable([*meeting, *self._peers, *sorted(others), *found])[:MAX_ASKED]

    def _usable(self, addresses: Iterable[str]) -> list[str]:
        return [address for address in dict.fromkeys(addresses) if not self._client.is_left_out(address)]

    async def _ask(self, address: str) -> None:
        try:
            state = await self._client.state(address, self._key, self._port())
        except BusyError:
            return
        except PeerError as error:
            self._fail(address, error)
            return
        finally:
            del self._asking[address]
        if state.id == self._activity.id:
            self._peers.pop(address, None)
            return
        now_s, before = self._clock_s(), self._peers.get(address)
        advanced = before is None or before.state.id != state.id or before.state.bytes != state.bytes
        self._peers[address] = _Peer(state, now_s if advanced or before is None else before.advanced_s)


def _rank(name: str, of: str) -> bytes:
    """Return a number that orders agents differently for each thing, the same in every process."""
    return hashlib.sha256(f"{name} {of}".encode()).digest()
