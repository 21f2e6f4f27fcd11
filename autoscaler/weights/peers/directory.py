"""Addresses of other agents: an interface, and its simplest implementation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Directory(Protocol):
    """Knows addresses of agents as HOST:PORT, IPv6 in brackets. Both may be stale; neither raises."""

    async def holders(self, key: str) -> Sequence[str]:
        """Return agents that hold a model."""
        ...

    async def agents(self) -> Sequence[str]:
        """Return all agents."""
        ...


class StaticDirectory:
    """A fixed list."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = tuple(addresses)

    async def holders(self, key: str) -> Sequence[str]:
        return ()

    async def agents(self) -> Sequence[str]:
        return self._addresses
