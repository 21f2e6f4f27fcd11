"""Requests to other agents. Whatever a peer answers, a request ends in time and in bounded memory."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from contextlib import suppress

from yarl import URL

from autoscaler.weights.connections import READ_ERRORS, Connections, ServerAnswer, ServerRequest, TooLongError
from autoscaler.weights.peers.server import PREFIX, SEALED
from autoscaler.weights.peers.state import MAX_STATE_BYTES, InvalidStateError, PeerState, decode
from autoscaler.weights.peers.token import SEAL_BYTES, ClusterToken
from autoscaler.weights.threads import in_thread

CONNECT_S = 5.0
MIN_BYTES_PER_S = 2e6  # a slower peer fails
PAUSE_S, MAX_PAUSE_S = 1.0, 10.0  # after a failure, and twice as long after each further one in a row
LEFT_OUT_S, MAX_LEFT_OUT_S = 60.0, 3600.0  # likewise, after an answer that is wrong
GIVEN_UP = 2  # failures in a row
BUSY_S = 0.2
MAX_REMEMBERED = 4096  # peers that failed


class PeerError(Exception):
    """A peer does not give what it should."""


class WrongPeerError(PeerError):
    """What a peer answers is not what it has to be."""


class BusyError(Exception):
    """A peer serves as many others as it may, or waits for the range itself."""


class PeerClient:
    """Asks other agents, and pauses for those that fail."""

    def __init__(
        self,
        token: ClusterToken,
        clock_s: Callable[[], float],
        tls: ssl.SSLContext | None = None,
        silence_s: float = 10.0,
        await_s: float = 10.0,
    ) -> None:
        """silence_s: most in which a peer sends nothing, in addition to await_s, for which it may wait for a range."""
        self._token = token
        self._clock_s = clock_s
        self._answer_s = CONNECT_S + await_s + silence_s
        self._scheme = "https" if tls else "http"
        self._connections = Connections(CONNECT_S, await_s + silence_s, tls, proxied=False)
        self._failures: dict[str, tuple[int, float]] = {}  # number in a row, and until when the peer is not asked
        self._busy_until_s: dict[str, float] = {}

    def is_left_out(self, address: str) -> bool:
        """Tell whether a peer failed a short time ago."""
        return self._failures.get(address, (0, 0.0))[1] > self._clock_s()

    def is_given_up(self, address: str) -> bool:
        """Tell whether nothing is expected from a peer: it failed again and again, or its answer was wrong."""
        return self._failures.get(address, (0, 0.0))[0] >= GIVEN_UP

    def is_busy(self, address: str) -> bool:
        """Tell whether a peer was busy a moment ago."""
        return self._busy_until_s.get(address, 0.0) > self._clock_s()

    def leave_out(self, address: str, is_wrong: bool = True) -> None:
        """Do not ask a peer for a while. is_wrong: it did worse than not to answer."""
        count = self._failures.pop(address, (0, 0.0))[0] + (GIVEN_UP if is_wrong else 1)
        first_s, most_s = (LEFT_OUT_S, MAX_LEFT_OUT_S) if is_wrong else (PAUSE_S, MAX_PAUSE_S)
        pause_s = min(first_s * 2.0 ** (min(count, 16) - (GIVEN_UP if is_wrong else 1)), most_s)
        if len(self._failures) >= MAX_REMEMBERED:
            self._failures.pop(next(iter(self._failures)))
        self._failures[address] = count, self._clock_s() + pause_s

    async def state(self, address: str, key: str, port: int) -> PeerState:
        """Return what a peer has of a model. port: under which this agent serves. Raises PeerError and BusyError."""
        answer = await self._get(address, f"{PREFIX}{key}?port={port}", "", 200, MAX_STATE_BYTES)
        try:
            state = decode(bytes(answer.content))
        except InvalidStateError as error:
            self.leave_out(address)
            raise WrongPeerError(f"the answer of {address} is no state: {error}") from error
        self._failures.pop(address, None)
        return state

    async def refuse(self, address: str, key: str) -> None:
        """Tell a peer that what it sent of a model is wrong, so that it checks its copy. It need not answer."""
        with suppress(PeerError, BusyError):
            await self._get(address, f"{PREFIX}{key}?refused=1", "", 200, MAX_STATE_BYTES)

    async def read(self, address: str, key: str, name: str, start: int, length: int, sealed: bool) -> memoryview:
        """Return a range of a file, whole. Raises PeerError and BusyError.

        sealed: the peer has to prove by the token that it is an agent: nothing else tells whether the range is right.
        """
        range_ = f"bytes={start}-{start + length - 1}"
        target = f"{PREFIX}{key}/{name}{f'?{SEALED}' if sealed else ''}"
        answer = await self._get(address, target, range_, 206, length, SEAL_BYTES if sealed else 0)
        if len(answer.content) == length and (not sealed or await self._is_sealed(answer, target, range_)):
            return answer.content
        self.leave_out(address)
        raise WrongPeerError(f"{address} sent a range that is not complete, or not of an agent")

    async def _is_sealed(self, answer: ServerAnswer, target: str, range_: str) -> bool:
        seal = self._token.sealing(target, range_)
        await in_thread(seal.update, answer.content)
        return self._token.is_seal(seal, answer.rest)

    async def _get(
        self, address: str, target: str, range_: str, wanted: int, most_bytes: int, rest: int = 0
    ) -> ServerAnswer:
        headers = {"Authorization": self._token.sign("GET", target, range_, time.time())}
        if range_:
            headers["Range"] = range_
        url = URL(f"{self._scheme}://{address}{target}", encoded=True)
        request = ServerRequest("GET", url, headers, most_bytes, lambda status, _: status == wanted, rest)
        limit_s = self._answer_s + most_bytes / MIN_BYTES_PER_S
        try:
            answer = await self._connections.send(request, limit_s)
        except TooLongError as error:
            self.leave_out(address)
            raise WrongPeerError(f"{address} sent more than {most_bytes} bytes") from error
        except READ_ERRORS as error:
            self.leave_out(address, is_wrong=False)
            raise PeerError(f"{address} cannot be read ({type(error).__name__})") from error
        if answer.status == 503:
            self._busy_until_s[address] = self._clock_s() + BUSY_S
            raise BusyError(f"{address} is busy")
        if answer.status == 404:
            raise PeerError(f"{address} does not have it")
        if answer.status != wanted:
            self.leave_out(address)
            raise WrongPeerError(f"{address} answered {answer.status}")
        return answer

    def close(self) -> None:
        """Close all connections."""
        self._connections.close()
