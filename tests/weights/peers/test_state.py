"""The answers of peers are untrusted, and what is remembered of them is bounded."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from autoscaler.weights.peers.activity import ASKED_S, FETCHING_S, MAX_ASKERS, MAX_MODELS, SHARE_BYTES, PeerActivity
from autoscaler.weights.peers.state import InvalidStateError, PeerState, decode, encode


def test_state_survives_its_encoding() -> None:
    state = PeerState("0" * 16, ("a" * 64, "b" * 40), True, 5, {"c" * 64: (0, 7)}, ("10.0.0.1:8474", "[fd00::1]:8474"))
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
    activity = PeerActivity(lambda: now[0])
    activity.touch("key", 5)
    activity.claim("key", "digest", 2 * SHARE_BYTES + 5)
    activity.touch("key", 7)
    assert activity.fetch("key") == (True, 12, {"digest": (2,)})
    now[0] += FETCHING_S + 1
    assert activity.fetch("key") == (False, 0, {})
    activity.touch("key")
    assert activity.fetch("key") == (True, 0, {})


def test_askers_are_bounded_and_forgotten() -> None:
    now = [0.0]
    activity = PeerActivity(lambda: now[0])
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


async def test_range_is_given_when_it_has_come_from_the_source() -> None:
    activity = PeerActivity(lambda: 100.0)
    activity.touch("key")
    activity.begin("key", "name", [0, 8, 16])
    asked = [asyncio.create_task(activity.find("key", "name", start, 8, 60.0)) for start in (0, 8)]
    await asyncio.sleep(0)
    activity.store("key", "name", 0, 8, Path("part"), from_source=True)
    activity.store("key", "name", 8, 8, Path("part"), from_source=False)
    assert await asyncio.gather(*asked) == [Path("part"), None]
    assert await activity.find("key", "name", 24, 8, 60.0) is None
    assert await activity.find("another", "name", 0, 8, 60.0) is None
    with pytest.raises(TimeoutError):
        await activity.find("key", "name", 16, 8, 0.0)
    activity.drop("key", "name")
    with pytest.raises(TimeoutError):
        await activity.find("key", "name", 0, 8, 0.0)
