"""An origin that asks peers before the source, one range at a time. The source lists the files, and what peers send is
verified like everything else.

Agents that fetch the same model at the same time share it. Each file has one of them as its owner, by a hash that all
compute alike. The owner fetches the file from the source, and the others wait until it has verified the file. No agent
waits for one that receives nothing, nor longer than a slow source would take.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import structlog

from autoscaler.weights.listing import Listing, Origin, RemoteFile
from autoscaler.weights.peers.activity import Activity
from autoscaler.weights.peers.client import BUSY_S, AbsentError, BusyError, PeerClient, PeerError
from autoscaler.weights.peers.directory import Directory
from autoscaler.weights.peers.state import PeerState

log = structlog.get_logger(__name__)

SELDOM = 5  # times less often are peers asked while one of them sends
MAX_ASKED = 32  # peers of one model
MEETING_AGENTS = 2  # those through which agents that fetch the same model find each other


@dataclass(frozen=True)
class Patience:
    """Waiting times, in seconds."""

    settle_s: float = 0.5  # for others that begin at the same moment
    refresh_s: float = 1.0  # between two questions to the same peers
    idle_s: float = 30.0  # a peer that receives nothing for so long is not waited for
    base_s: float = 60.0  # most for one file, beside the time that it takes from a slow source
    slow_bytes_per_s: float = 50e6


@dataclass
class Counts:
    """Numbers since the start of the process."""

    peer_bytes: int = 0
    source_bytes: int = 0
    rejected_files: int = 0  # with ranges of peers, and a wrong checksum
    failures: int = 0  # of requests to peers


@dataclass
class _Peer:
    """The last answer of a peer."""

    state: PeerState
    advanced_s: float  # when it last had received more


@dataclass
class _View:
    """The peers of one model, and what they have."""

    peers: dict[str, _Peer] = field(default_factory=dict)  # by address
    asked_s: float = float("-inf")


class PeerOrigin:
    """Reads one model from peers, and else from its source."""

    def __init__(
        self,
        key: str,
        source: Origin,
        client: PeerClient,
        directory: Directory,
        activity: Activity,
        counts: Counts,
        port: Callable[[], int],
        patience: Patience,
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
        self._view = _View()
        self._asking = asyncio.Lock()
        self._joined = False
        self._known_agents: Sequence[str] = ()
        self._ranked: list[str] = []  # all agents; through the first, those that fetch this model find each other
        self._reading: Counter[str] = Counter()  # ranges under way, by address
        self._senders: dict[str, set[str]] = {}  # peers that sent ranges of a file, by its checksum
        self._rejected: set[str] = set()
        self._waits: dict[tuple[str, str], float] = {}  # by file and address, since when
        self._skipped: set[tuple[str, str]] = set()  # files and addresses that were awaited in vain

    async def describe(self) -> Listing:
        """Return the files, as the source lists them. Raises WeightsError."""
        return await self._source.describe()

    async def choose(self, files: Sequence[RemoteFile]) -> RemoteFile:
        """Return the file to fetch next: one for the source, or else one that a peer has. Wait while there is none."""
        if not self._joined:
            await self._join()
        while True:
            self._activity.touch(self._key)
            await self._refresh(self._patience.refresh_s)
            for file in files:
                if file.digest in self._rejected or not self._awaited(file):
                    self._activity.touch(self._key, 0, file.digest)  # before the first byte, so that others wait
                    return file
            if held := [file for file in files if self._holder(file) is not None]:
                return random.choice(held)
            for file in files:
                self._bound_wait(file)
            await asyncio.sleep(self._patience.refresh_s / 2)

    async def _join(self) -> None:
        """Make this agent known to others, and see those that begin at the same moment."""
        self._activity.touch(self._key)
        await self._refresh(0.0)
        if self._view.peers:
            await asyncio.sleep(self._patience.settle_s)
            await self._refresh(0.0)
        self._joined = True

    async def read(self, file: RemoteFile, start: int, length: int) -> memoryview:
        """Return a range of a file, whole. Raises WeightsError."""
        most_s = self._patience.base_s + self._clock_s()
        while file.digest and file.digest not in self._rejected and not self._is_claimed(file):
            self._activity.touch(self._key)
            address = self._holder(file)
            await self._refresh(self._patience.refresh_s * (1 if address is None else SELDOM))
            address = self._holder(file)
            if address is not None:
                content = await self._read_peer(address, file, start, length)
                if content is not None:
                    return content
            elif not (holders := self._holders(file)):
                break
            elif self._clock_s() > most_s:
                for each in holders:
                    self._leave_out(each, f"it was busy for {self._patience.base_s:.0f} s")
            else:
                await asyncio.sleep(BUSY_S)
        self._activity.touch(self._key, 0, file.digest)
        content = await self._source.read(file, start, length)
        self._activity.touch(self._key, length)
        self._counts.source_bytes += length
        return content

    def reject(self, file: RemoteFile) -> None:
        """Leave out the peers that sent ranges of a wrong file, and read it from the source only."""
        self._rejected.add(file.digest)
        senders = self._senders.pop(file.digest, set())
        for address in senders:
            self._leave_out(address, f"a file with its ranges has a wrong checksum: {file.path!r}")
        self._counts.rejected_files += bool(senders)
        self._source.reject(file)

    async def _read_peer(self, address: str, file: RemoteFile, start: int, length: int) -> memoryview | None:
        self._reading[address] += 1
        try:
            content = await self._client.read(address, self._key, file.digest, start, length)
        except BusyError:
            return None
        except PeerError as error:
            self._fail(address, error)
            return None
        finally:
            self._reading[address] -= 1
        self._senders.setdefault(file.digest, set()).add(address)
        self._activity.touch(self._key, length)
        self._counts.peer_bytes += length
        return content

    def _fail(self, address: str, error: PeerError) -> None:
        """Count a failure. The client leaves the peer out already."""
        self._counts.failures += 1
        self._view.peers.pop(address, None)
        tell = log.info if isinstance(error, AbsentError) else log.warning
        tell("peer is left out", peer=address, error=str(error))

    def _leave_out(self, address: str, why: str) -> None:
        self._view.peers.pop(address, None)
        self._client.leave_out(address)
        log.warning("peer is left out", peer=address, error=why)

    def _holders(self, file: RemoteFile) -> list[str]:
        """Return the peers that have a file."""
        return [address for address, peer in self._view.peers.items() if file.digest in peer.state.files]

    def _holder(self, file: RemoteFile) -> str | None:
        """Return a peer that has the file, the least used by this agent; None: there is none now."""
        usable = [address for address in self._holders(file) if not self._client.is_busy(address)]
        return min(usable, key=lambda address: (self._reading[address], random.random()), default=None)

    def _is_claimed(self, file: RemoteFile) -> bool:
        return file.digest in self._activity.fetch(self._key)[2]

    def _awaited(self, file: RemoteFile) -> list[str]:
        """Return the peers that have a file, or else those that fetch it, or else the one that is to fetch it."""
        if not file.digest or self._is_claimed(file):
            return []
        if holders := self._holders(file):
            return holders
        fetching, peers = self._fetching(file), self._view.peers
        if claiming := [address for address in fetching if file.digest in peers[address].state.claimed]:
            return claiming
        owner = self._owner(file)
        return [address for address in fetching if peers[address].state.id == owner]

    def _owner(self, file: RemoteFile) -> str:
        """Return which of the agents that fetch the model now is to fetch a file from the source."""
        ids = [self._activity.id, *(self._view.peers[address].state.id for address in self._fetching(file))]
        return max(ids, key=lambda each: _rank(each, file.digest))

    def _fetching(self, file: RemoteFile) -> list[str]:
        """Return the peers that fetch the model, without those that were awaited in vain for a file."""
        return [
            address
            for address, peer in self._view.peers.items()
            if peer.state.fetching and (file.digest, address) not in self._skipped
        ]

    def _bound_wait(self, file: RemoteFile) -> None:
        """Wait for a peer no more if it received nothing for a while. Then all turn to the same other one."""
        now_s = self._clock_s()
        most_s = self._patience.base_s + file.size / self._patience.slow_bytes_per_s
        for address in self._awaited(file):
            peer = self._view.peers[address]
            wait = file.digest, address  # not its process: one that restarts again and again would be awaited for ever
            begun_s = self._waits.setdefault(wait, now_s)
            if now_s - begun_s > most_s:
                self._leave_out(address, f"{file.path!r} did not come from it within {most_s:.0f} s")
            elif file.digest not in peer.state.files and now_s - max(peer.advanced_s, begun_s) > self._patience.idle_s:
                self._skipped.add(wait)

    # Questions to peers

    async def _refresh(self, older_s: float) -> None:
        """Ask peers, unless that was done so short a time ago."""
        async with self._asking:
            if self._clock_s() - self._view.asked_s < older_s:
                return
            known = list(self._view.peers)
            holders = await self._directory.holders(self._key)
            agents = await self._directory.agents()
            if agents is not self._known_agents:
                self._known_agents = agents
                self._ranked = sorted(set(agents), key=lambda address: _rank(address, self._key), reverse=True)
            meeting = self._usable(self._ranked)[: MEETING_AGENTS + 1]  # this agent may be one of them
            told = [address for peer in self._view.peers.values() for address in peer.state.peers]
            others = set(self._ranked).intersection([*self._activity.askers(self._key), *told])
            found = random.sample(list(holders), len(holders))
            asked = self._usable([*meeting, *known, *sorted(others), *found])[:MAX_ASKED]
            states = await asyncio.gather(*map(self._ask, asked))
            self._view.asked_s = self._clock_s()
            for address, state in zip(asked, states, strict=True):
                self._note(address, state)

    def _usable(self, addresses: Iterable[str]) -> list[str]:
        return [address for address in dict.fromkeys(addresses) if not self._client.is_left_out(address)]

    async def _ask(self, address: str) -> PeerState | None:
        try:
            return await self._client.state(address, self._key, self._port())
        except BusyError:
            return None
        except PeerError as error:
            self._fail(address, error)
            return None

    def _note(self, address: str, state: PeerState | None) -> None:
        if state is None or state.id == self._activity.id:
            self._view.peers.pop(address, None)
            return
        now_s = self._clock_s()
        before = self._view.peers.get(address)
        advanced = before is None or before.state.id != state.id or before.state.bytes != state.bytes
        self._view.peers[address] = _Peer(state, now_s if advanced or before is None else before.advanced_s)


def _rank(name: str, of: str) -> bytes:
    """Return a number that orders agents differently for each thing, the same in every process."""
    return hashlib.sha256(f"{name} {of}".encode()).digest()
