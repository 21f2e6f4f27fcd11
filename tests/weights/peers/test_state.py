"""The answers of peers are untrusted, and what is remembered of them is bounded."""

from __future__ import annotations

import pytest

from autoscaler.weights.peers.activity import ASKED_S, FETCHING_S, MAX_ASKERS, MAX_MODELS, Activity
from autoscaler.weights.peers.state import InvalidStateError, PeerState, decode, encode


def test_state_survives_its_encoding() -> None:
    state = PeerState("0" * 16, ("a" * 64, "b" * 40), True, 5, ("c" * 64,), ("10.0.0.1:8474", "[fd00::1]:8474"))
    assert decode(encode(state)) == state


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"[]", b"{}", b'{"id": 5}', b'{"id": "x"}', b"[" * 100_000),
        *(b'{"id": "\xff"}', b'{"id": "\xed\xa0\x80"}', b'{"id": "0000000000000000", "bytes": 1e999}'),
        *(b'{"id": "0000000000000000", "files": ["../x"]}', b'{"id": "0000000000000000", "bytes": "1"}'),
        *(
            b'{"id": "0000000000000000", "peers": ["example.com:80"]}',
            b'{"id": "0000000000000000", "peers": ["1.2.3.4"]}',
        ),
        b'{"id": "0000000000000000", "peers": [' + b",".join([b'"1.2.3.4:5"'] * 65) + b"]}",
    ],
)
def test_other_answers_are_refused(content: bytes) -> None:
    with pytest.raises(InvalidStateError):
        decode(content)


def test_transfer_is_forgotten_after_its_last_range() -> None:
    now = [100.0]
    activity = Activity(lambda: now[0])
    activity.touch("key", 5, "digest")
    activity.touch("key", 7)
    assert activity.fetch("key") == (True, 12, frozenset({"digest"}))
    now[0] += FETCHING_S + 1
    assert activity.fetch("key") == (False, 0, frozenset())
    activity.touch("key")
    assert activity.fetch("key") == (True, 0, frozenset())


def test_askers_are_bounded_and_forgotten() -> None:
    now = [0.0]
    activity = Activity(lambda: now[0])
    for number in range(2 * MAX_ASKERS):
        activity.note_asker("key", f"10.0.0.{number}:1")
    for number in range(2 * MAX_MODELS):
        activity.note_asker(str(number), "10.0.0.1:1")
    assert len(activity.askers("key")) == MAX_ASKERS
    assert not activity.askers(str(2 * MAX_MODELS - 1))
    now[0] += ASKED_S
    assert not activity.askers("key")
    activity.note_asker("another", "10.0.0.1:1")
    assert activity.askers("another")
