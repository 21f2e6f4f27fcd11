"""A hub is asked once for each file and as often as it allows; no server makes an agent read more than it asked for."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from email.message import Message
from pathlib import Path
from typing import Any

import pytest

from autoscaler.config.weights.source import parse
from autoscaler.weights.listing import RemoteFile
from autoscaler.weights.origins.hub import Hub
from autoscaler.weights.origins.object_store import Objects
from autoscaler.weights.origins.signed import SignedReader
from autoscaler.weights.problems import WeightsCause, WeightsError
from autoscaler.weights.rate_limit import BUDGET, MAX_PAUSE_S, RequestLimit, told_pause_s
from tests.harness.hub import COMMIT, LIES, FakeHub, safetensors, serving
from tests.weights.test_store import SOURCE, contents, pull

RANGE = 1 << 16
SHARD = "model.safetensors"
KEYS = {"access_key_id": "a", "secret_access_key": "b"}


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with serving(FakeHub({"config.json": b"{}", SHARD: safetensors(1_000_000)})) as served:
        yield served


def shard(hub: FakeHub) -> RemoteFile:
    content = hub.files[SHARD]
    return RemoteFile(
        SHARD, len(content), hashlib.sha256(content).hexdigest(), address=f"org/model/resolve/{COMMIT}/{SHARD}"
    )


async def test_hub_is_asked_once_for_each_file(tmp_path: Path, hub: FakeHub) -> None:
    model = await pull(tmp_path, hub)
    assert contents(model.path) == hub.files
    assert hub.resolved == {"config.json": 1, SHARD: 1}


async def test_address_is_asked_for_again_when_it_has_expired(hub: FakeHub) -> None:
    origin, file = Hub(parse(SOURCE), hub.url), shard(hub)
    for number in range(3):
        hub.signature = str(number)
        content = await origin.read(file, number * RANGE, RANGE)
        assert content == hub.files[SHARD][number * RANGE : (number + 1) * RANGE]
    assert hub.resolved[SHARD] == 3
    await origin.close()


async def test_store_that_always_refuses_is_not_asked_for_ever(hub: FakeHub) -> None:
    hub.lie = "text of an error"
    origin = Hub(parse(SOURCE), hub.url)
    with pytest.raises(WeightsError, match="refused by the store") as raised:
        await origin.read(shard(hub), 0, RANGE)
    assert raised.value.cause is WeightsCause.DENIED
    assert hub.resolved[SHARD] == 3
    await origin.close()


async def test_hub_is_asked_again_after_the_time_that_it_tells(hub: FakeHub) -> None:
    hub.limits = [(429, {"RateLimit": '"resolvers";r=0;t=1'}), (503, {"Retry-After": "1"}), (429, {"Retry-After": "0"})]
    hub.limits[2] = 429, {"RateLimit": "limit=3000, remaining=0, reset=1"}
    origin = Hub(parse(SOURCE), hub.url)
    assert await origin.read(shard(hub), 0, RANGE) == hub.files[SHARD][:RANGE]
    assert hub.resolved[SHARD] == 4
    await origin.close()


@pytest.mark.parametrize("lie", LIES)
async def test_no_more_is_read_than_asked_for_when_a_store_lies(hub: FakeHub, lie: str) -> None:
    hub.lie = lie
    origin = Hub(parse(SOURCE), hub.url)
    with pytest.raises(WeightsError):
        await origin.read(shard(hub), 0, RANGE)
    assert hub.lied_bytes < 64 << 20  # the kernel's buffers, for each of three attempts
    await origin.close()


@pytest.mark.parametrize("keys", [KEYS, {"skip_signature": True}], ids=["library", "own connections"])
@pytest.mark.parametrize("lie", ["no length", "in chunks", "longer", "another range", "whole"])
async def test_no_more_is_read_than_asked_for_when_a_bucket_lies(hub: FakeHub, lie: str, keys: dict[str, Any]) -> None:
    """This host refuses addresses that are signed, so that the library reads from it."""
    hub.lie, hub.signature = lie, ""
    origin = Objects(parse("s3://org/model"), options={"endpoint": hub.store_url, "region": "us-east-1", **keys})
    file = RemoteFile(SHARD, len(hub.files[SHARD]), address=f"model/resolve/{COMMIT}/{SHARD}")
    with pytest.raises(WeightsError):
        await origin.read(file, 0, RANGE)
    assert hub.lied_bytes < 64 << 20


async def test_object_is_signed_again_when_its_address_has_expired(hub: FakeHub) -> None:
    signed: list[str] = []

    async def sign(key: str) -> str:
        signed.append(key)
        return f"{hub.store_url}/{key}?{hub.signature}"

    origin, file = SignedReader(parse("s3://org/model"), sign), shard(hub)
    for number in range(4):
        hub.signature = str(number // 2)
        content = await origin.read(file, number * RANGE, RANGE)
        assert content == hub.files[SHARD][number * RANGE : (number + 1) * RANGE]
    assert len(signed) == 2
    await origin.close()


async def test_unsigned_address_is_read_when_a_bucket_is_public(hub: FakeHub) -> None:
    hub.signature = ""
    origin = Objects(parse("s3://org/model"), options={"endpoint": hub.store_url, "skip_signature": True})
    file = shard(hub)._replace(address=f"model/resolve/{COMMIT}/{SHARD}")
    assert await origin.read(file, RANGE, RANGE) == hub.files[SHARD][RANGE : 2 * RANGE]
    assert not hub.seen_tokens
    await origin.close()


@pytest.mark.parametrize(
    ("status", "headers", "pause_s"),
    [
        (200, {}, 0.0),
        (429, {}, 10.0),
        (429, {"Retry-After": "7"}, 7.0),
        (503, {"Retry-After": "7"}, 7.0),
        (503, {}, 0.0),
        (429, {"Retry-After": "Thu, 01 Jan 2015 00:00:00 GMT"}, 10.0),
        (429, {"Retry-After": "Thu, 01 Jan 2999 00:00:00 GMT"}, MAX_PAUSE_S),
        (429, {"Retry-After": "9" * 5000}, MAX_PAUSE_S),
        (429, {"Retry-After": "-5"}, 10.0),
        (302, {"RateLimit": '"resolvers";r=0;t=123'}, 123.0),
        (429, {"RateLimit": '"resolvers" ; r = 0 ; t = 55'}, 55.0),
        (302, {"RateLimit": '"api";r=10;t=200, "resolvers";r=0;t=55'}, 55.0),
        (302, {"RateLimit": '"resolvers";r=5;t=123'}, 0.0),
        (429, {"RateLimit": "limit=100, remaining=0, reset=50"}, 50.0),
        (429, {"RateLimit-Limit": "100", "RateLimit-Remaining": "0", "RateLimit-Reset": "50"}, 50.0),
        (429, {"RateLimit": '"resolvers";r=0;t=5', "Retry-After": "9"}, 9.0),
        (429, {"RateLimit": "r=" * 100_000}, 10.0),
        (429, {"RateLimit": '"x";r=zero;t=many'}, 10.0),
    ],
)
def test_pause_is_what_an_answer_tells(status: int, headers: dict[str, str], pause_s: float) -> None:
    stated = Message()
    for name, value in headers.items():
        stated[name] = value
    assert told_pause_s(status, stated) == pause_s


def test_requests_wait_when_the_budget_of_redirects_is_spent() -> None:
    now = [1000.0]
    limit = RequestLimit(lambda: now[0])
    for _ in range(BUDGET):
        assert limit.wait_s() <= 0
        limit.note(302, Message())
    limit.note(302, Message())
    assert limit.wait_s() > 0
    now[0] += 1.0
    assert limit.wait_s() <= 0
    limit.note(206, Message())
    assert limit.wait_s() <= 0


async def test_last_requests_of_a_window_are_spread_over_it() -> None:
    now = [1000.0]
    limit, stated = RequestLimit(lambda: now[0]), Message()
    stated["RateLimit"] = '"resolvers";r=10;t=100'
    limit.note(302, stated)
    await limit.take()
    assert limit.wait_s() == 10.0
