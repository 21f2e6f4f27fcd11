"""Transfers of this agent, and of others that fetch the same: kept in memory, bounded, forgotten after some seconds."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable
from pathlib import Path

MAX_MODELS = 256
MAX_ASKERS = 64  # of one model
FETCHING_S = 15.0  # after the last range, or the last attempt to get one
ASKED_S = 15.0  # after the last question
SHARE_BYTES = 128 << 20
"""What one agent fetches of a file for all. So a source is asked for each file a few times, by however many agents."""


class _FetchedFile:
    """A file that is being fetched: what of it this agent can give to others, now or soon."""

    def __init__(self) -> None:
        self.path = Path()
        self.coming: set[int] = set()  # first bytes of ranges that are still to be read
        self.stored: dict[int, int] = {}  # length of ranges that came from the source, by their first bytes


class _Fetch:
    def __init__(self) -> None:
        self.touched_s = 0.0
        self.bytes = 0
        self.claimed: dict[str, set[int]] = {}
        self.files: dict[str, _FetchedFile] = {}


class PeerActivity:
    """Transfers of this agent, and of those that asked it. Files are named as agents share them."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        """clock_s: returns seconds that never go back."""
        self.id = secrets.token_hex(8)
        self._clock_s = clock_s
        self._fetches: dict[str, _Fetch] = {}
        self._askers: dict[str, dict[str, float]] = {}
        self._news = asyncio.Event()

    # This agent

    def touch(self, key: str, received: int = 0) -> None:
        """Record that this agent fetches a model."""
        fetch = self._begun(key)
        fetch.touched_s = self._clock_s()
        fetch.bytes += received

    def _begun(self, key: str) -> _Fetch:
        now_s = self._clock_s()
        fetch = self._fetches.get(key)
        if fetch is None or now_s - fetch.touched_s > FETCHING_S:
            self._fetches = {name: each for name, each in self._fetches.items() if now_s - each.touched_s <= FETCHING_S}
            fetch = self._fetches[key] = _Fetch()
            fetch.touched_s = now_s
        return fetch

    def begin(self, key: str, name: str, starts: Iterable[int]) -> None:
        """Record that ranges of a file are going to be read. The others are not told from what peers sent."""
        self._begun(key).files.setdefault(name, _FetchedFile()).coming = set(starts)

    def claim(self, key: str, name: str, start: int) -> None:
        """Record that this agent reads the share of a range from the source, so that others wait for it."""
        self._begun(key).claimed.setdefault(name, set()).add(start // SHARE_BYTES)

    def is_claimed(self, key: str, name: str, start: int) -> bool:
        """Tell whether this agent reads the share of a range from the source."""
        return start // SHARE_BYTES in self._begun(key).claimed.get(name, ())

    def store(self, key: str, name: str, start: int, length: int, path: Path, from_source: bool) -> None:
        """Record that a range is on the disk. Others get it only if it came from the source."""
        file = self._begun(key).files.setdefault(name, _FetchedFile())
        file.coming.discard(start)
        if from_source:
            file.path = path
            file.stored[start] = length
        self._tell()

    def drop(self, key: str, name: str) -> None:
        """Give nothing of a file any more: it is wrong, or complete."""
        fetch = self._begun(key)
        fetch.files.pop(name, None)
        fetch.claimed.pop(name, None)
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def fetch(self, key: str) -> tuple[bool, int, dict[str, tuple[int, ...]]]:
        """Return whether this agent fetches a model, the bytes it received, and the shares that it claims, by file."""
        found = self._fetches.get(key)
        if found is None or self._clock_s() - found.touched_s > FETCHING_S:
            return False, 0, {}
        return True, found.bytes, {name: tuple(sorted(shares)) for name, shares in found.claimed.items()}

    # Others

    async def find(self, key: str, name: str, start: int, length: int, wait_s: float) -> Path | None:
        """Return a file in which a range is. Wait while this agent is to read the range; None: it is not.

        Raises TimeoutError.
        """
        async with asyncio.timeout(wait_s):
            while self.fetch(key)[0]:
                file = self._fetches[key].files.get(name)
                if file is not None and file.stored.get(start, 0) >= length:
                    return file.path
                if file is not None and start not in file.coming:
                    return None
                await self._news.wait()
        return None

    def note_asker(self, key: str, address: str) -> None:
        """Record the address of an agent that fetches a model."""
        now_s = self._clock_s()
        askers = self._askers.get(key)
        if askers is None:
            if len(self._askers) >= MAX_MODELS:
                self._askers = {name: each for name, each in self._askers.items() if _living(each, now_s)}
            if len(self._askers) >= MAX_MODELS:
                return
            askers = self._askers[key] = {}
        if len(askers) >= MAX_ASKERS:
            self._askers[key] = askers = _living(askers, now_s)
        if len(askers) < MAX_ASKERS or address in askers:
            askers[address] = now_s + ASKED_S

    def askers(self, key: str) -> tuple[str, ...]:
        """Return the addresses of agents that fetch a model."""
        return tuple(_living(self._askers.get(key, {}), self._clock_s()))


def _living(askers: dict[str, float], now_s: float) -> dict[str, float]:
    return {address: until_s for address, until_s in askers.items() if until_s > now_s}
