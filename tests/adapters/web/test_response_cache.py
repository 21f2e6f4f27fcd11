"""`answers`: one body for all that ask, remade for a new tick, and refused where too many differ."""

import asyncio
import gzip
from collections.abc import AsyncIterator, Callable

import pytest

from autoscaler.adapters.web.response_cache import MAX_KEPT, MAX_PENDING, Body, Busy, ResponseCache
from tests.harness.process import eventually


class Maker:
    """Makes a body of two parts and counts how often."""

    def __init__(self, took_s: float = 0.01) -> None:
        self.made = 0
        self._took_s = took_s

    def __call__(self) -> AsyncIterator[bytes]:
        return self._parts()

    async def _parts(self) -> AsyncIterator[bytes]:
        self.made += 1
        yield b"first,"
        await asyncio.sleep(self._took_s)
        yield b"second"


async def test_a_body_is_made_once_when_many_ask_at_once():
    answers, make = ResponseCache(), Maker()
    bodies = await asyncio.gather(*(answers.body("list", 1, make) for _ in range(10 * MAX_PENDING)))
    assert make.made == 1
    assert {gzip.decompress(body.zipped) for body in bodies} == {b"first,second"}


@pytest.mark.parametrize("change", ["version", "key", "age"])
async def test_a_body_is_made_again_when_it_is_another_or_old(change: str):
    answers, make = ResponseCache(max_age_s=0.0 if change == "age" else 60.0), Maker()
    await answers.body("list", 1, make)
    await answers.body("other" if change == "key" else "list", 2 if change == "version" else 1, make)
    assert make.made == 2


async def test_requests_are_refused_when_too_many_differ():
    answers, make = ResponseCache(), Maker(took_s=0.0)
    asked = (answers.body(number, 1, make) for number in range(MAX_PENDING + 10))
    got = await asyncio.gather(*asked, return_exceptions=True)
    assert any(isinstance(each, Busy) for each in got)
    assert all(isinstance(each, Busy | Body) for each in got)

    async def later() -> Body | None:
        try:
            return await answers.body("later", 1, make)
        except Busy:  # on a busy machine those before it still wait
            return None

    await eventually(later, "it goes on after that")


async def test_all_requests_for_a_body_fail_when_it_cannot_be_made():
    async def broken() -> AsyncIterator[bytes]:
        yield b"half of it"
        raise LookupError("gone")

    answers = ResponseCache()
    got = await asyncio.gather(*(answers.body("list", 1, broken) for _ in range(3)), return_exceptions=True)
    assert [str(each) for each in got] == ["gone"] * 3
    assert (await answers.body("list", 1, Maker())).unzipped_bytes == 12


async def test_the_loop_rests_between_bodies_as_long_as_one_took():
    answers, make = ResponseCache(), Maker(took_s=0.05)
    began_s = asyncio.get_running_loop().time()
    for number in range(3):
        await answers.body(number, 1, make)
    assert asyncio.get_running_loop().time() - began_s >= 0.25


async def test_only_the_last_bodies_are_kept():
    answers, make = ResponseCache(), Maker(took_s=0.0)
    for number in range(MAX_KEPT + 1):
        await answers.body(number, 1, make)
    await answers.body(MAX_KEPT, 1, make)
    assert make.made == MAX_KEPT + 1
    await answers.body(0, 1, make)
    assert make.made == MAX_KEPT + 2


@pytest.mark.parametrize("unzipped", [False, True])
def test_pieces_together_are_the_body(unzipped: bool):
    content = bytes(range(256)) * 4096
    read: Callable[[bytes], bytes] = bytes if unzipped else gzip.decompress
    pieces = list(Body(gzip.compress(content), len(content)).pieces(unzipped=unzipped))
    assert read(b"".join(pieces)) == content
