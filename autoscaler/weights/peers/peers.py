"""Peers of one agent: the server for them, and the origins that ask them."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from autoscaler.config.weights.source import ModelSource
from autoscaler.weights.listing import Origin
from autoscaler.weights.peers.activity import PeerActivity
from autoscaler.weights.peers.client import PeerClient
from autoscaler.weights.peers.directory import Directory
from autoscaler.weights.peers.origin import OriginCounts, PeerOrigin, WaitLimits
from autoscaler.weights.peers.server import PeerServer
from autoscaler.weights.peers.shared import Shared
from autoscaler.weights.peers.token import ClusterToken
from autoscaler.weights.store import WeightStore


class Tls(NamedTuple):
    """Files of mutual TLS: agents trust whom this authority signed."""

    certificate: Path
    key: Path
    authority: Path

    def context(self, purpose: ssl.Purpose) -> ssl.SSLContext:
        """Return a context that requires the certificate of the other side. Raises OSError and ssl.SSLError."""
        context = ssl.create_default_context(purpose, cafile=str(self.authority))
        context.load_cert_chain(self.certificate, self.key)
        context.verify_mode = ssl.CERT_REQUIRED
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        return context


class Peers:
    """Serves, and makes origins ask others first. Use it as a context."""

    def __init__(
        self,
        store: WeightStore,
        directory: Directory,
        token: ClusterToken,
        host: str = "",
        port: int = 0,
        bytes_per_s: float = 0.0,
        tls: Tls | None = None,
        patience: WaitLimits | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """bytes_per_s: to all others together; 0: no limit. Raises OSError and ssl.SSLError for files of TLS."""
        self.counts = OriginCounts()
        self._activity = PeerActivity(clock_s)
        self._directory = directory
        self._patience = patience or WaitLimits()
        self._clock_s = clock_s
        served = tls.context(ssl.Purpose.CLIENT_AUTH) if tls else None
        asked = tls.context(ssl.Purpose.SERVER_AUTH) if tls else None
        if asked is not None:
            asked.check_hostname = False  # peers are known by addresses, and one authority signs agents only
        self.server = PeerServer(
            Shared(store), self._activity, token, host, port, bytes_per_s, served, self._patience.await_s
        )
        self._client = PeerClient(token, clock_s, asked, self._patience.silence_s, self._patience.await_s)

    async def __aenter__(self) -> Self:
        """Serve. Raises CannotServe."""
        await self.server.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()
        await self.server.__aexit__(kind, error, trace)

    def wrap(self, open_origin: Callable[[ModelSource], Origin]) -> Callable[[ModelSource], Origin]:
        """Return a function that opens the same origins, but asks peers before them."""

        def open_with_peers(source: ModelSource) -> Origin:
            if source.scheme == "file":  # a disk of this node
                return open_origin(source)
            return PeerOrigin(
                source.key,
                open_origin(source),
                self._client,
                self._directory,
                self._activity,
                self.counts,
                lambda: self.server.port,
                self._patience,
                self._clock_s,
            )

        return open_with_peers
