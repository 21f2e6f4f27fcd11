"""The state of one model at an agent, as agents tell each other. Answers of peers are untrusted."""

from __future__ import annotations

import re

import msgspec

from autoscaler.config.findings import UNREADABLE
from autoscaler.weights.listing import MAX_FILES

MAX_STATE_BYTES = 4 << 20
MAX_NAMED_PEERS = 64
DIGEST = re.compile(r"[0-9a-f]{64}|[0-9a-f]{40}")
_ADDRESS = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,3}){3}|\[[0-9a-fA-F:.]{2,45}\]):[0-9]{1,5}")
_ID = re.compile(r"[0-9a-f]{16}")


class PeerState(msgspec.Struct, frozen=True, omit_defaults=True):
    """One model at one agent, as JSON."""

    id: str  # of the agent's process
    files: tuple[str, ...] = ()  # checksums of verified files
    fetching: bool = False
    bytes: int = 0  # received so far, while it is fetching
    claimed: dict[str, tuple[int, ...]] = {}  # shares of files that it fetches from the source, by checksum
    peers: tuple[str, ...] = ()  # addresses of others that fetch the model


class InvalidStateError(ValueError):
    """An answer is no state."""


_decoder = msgspec.json.Decoder(PeerState)
_encoder = msgspec.json.Encoder()


def encode(state: PeerState) -> bytes:
    """Return a state as JSON."""
    return _encoder.encode(state)


def decode(content: bytes) -> PeerState:
    """Parse the state of a peer. Raises InvalidStateError."""
    try:
        state = _decoder.decode(content)
    except UNREADABLE as error:
        raise InvalidStateError("it is no valid JSON") from error
    digests = (*state.files, *state.claimed)
    if not _ID.fullmatch(state.id) or len(digests) > 2 * MAX_FILES or not all(map(DIGEST.fullmatch, digests)):
        raise InvalidStateError("it names no valid files")
    if len(state.peers) > MAX_NAMED_PEERS or not all(map(_ADDRESS.fullmatch, state.peers)):
        raise InvalidStateError("it names no valid addresses")
    return state
