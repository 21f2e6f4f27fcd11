"""The rules of the lease one by one, on virtual time: a double keeps the lease, as no real server can be made to."""

import asyncio
import json
from contextlib import suppress
from typing import Any

import pytest
from structlog.testing import capture_logs

from autoscaler.adapters.in_memory import LoopClock
from autoscaler.adapters.kubernetes.api.client import ApiError
from autoscaler.adapters.kubernetes.leader_election import LONGEST_LEASE_S, Elector
from autoscaler.config.settings import LeaseSettings
from tests.adapters.kubernetes.world import running

pytestmark = pytest.mark.looptime


class Server:
    """Keeps one lease; a write under another version than its last is refused."""

    def __init__(self, answers_after_s: float = 0.0) -> None:
        self.answers_after_s = answers_after_s
        self.down = False
        self.spec: dict[str, Any] | None = None
        self.version = 0
        self.annotations: dict[str, str] | None = None
        self.competitor = ""  # takes the lease as soon as it was read

    def give(self, holder: str, lasts_s: float = 2.0) -> None:
        self.spec = {"holderIdentity": holder, "leaseDurationSeconds": int(lasts_s)}
        self.version += 1

    async def request(self, method: str, path: str, body: Any = None, **_: Any) -> bytes:
        if self.down:
            raise ApiError(method, 0, "down")
        missing, exists = self.spec is None, self.spec is not None
        if method == "GET" and missing:
            raise ApiError(method, 404, "not found")
        if method == "PUT":
            current = body["metadata"].get("resourceVersion", str(self.version)) == str(self.version)
            if missing or not current:
                raise ApiError(method, 404 if missing else 409, "refused")
        if method == "POST" and exists:
            raise ApiError(method, 409, "exists")
        if method != "GET":
            self.spec = body["spec"]
            self.annotations = body["metadata"].get("annotations")
            self.version += 1
        metadata = {"resourceVersion": str(self.version), "annotations": self.annotations}
        answer = json.dumps({"metadata": metadata, "spec": self.spec}).encode()
        if self.competitor and method == "GET":
            self.give(self.competitor)
        await asyncio.sleep(self.answers_after_s)
        return answer

    @property
    def holder(self) -> str:
        return self.spec["holderIdentity"] if self.spec else ""


def elects(server: Server, slower: float = 1.0, watches: str = "") -> Elector:
    settings = LeaseSettings(duration_s=2.0 * slower, renew_deadline_s=1.4 * slower, retry_s=0.2 * slower)
    return Elector(server, settings, LoopClock(), watches=watches)  # type: ignore[arg-type]


async def test_a_renewal_counts_from_when_it_was_sent():
    server = Server(answers_after_s=0.5)
    elector = elects(server)
    async with running(elector):
        await asyncio.sleep(0.51)  # sent at once, and answered after half a second
        server.down = True
        assert elector.leading
        await asyncio.sleep(0.9)
        assert not elector.leading


@pytest.mark.parametrize("claimed_s", [2, 500, 10**9])
async def test_a_lease_that_was_held_when_it_was_deleted_is_waited_out(claimed_s: float):
    server = Server()
    server.give("other", claimed_s)
    elector = elects(server)
    async with running(elector):
        await asyncio.sleep(0.5)
        server.spec = None
        await asyncio.sleep(1.4)
        assert not elector.leading
        await asyncio.sleep(0.6)
        assert elector.leading


async def test_who_finds_that_another_took_over_stops_and_takes_nothing_back():
    server = Server()
    elector = elects(server)
    async with running(elector):
        await asyncio.sleep(0.5)
        assert (elector.leading, elector.transitions) == (True, 0)  # renewals are no change of leader
        server.give("other")
        await asyncio.sleep(0.5)
        assert (elector.leading, server.holder) == (False, "other")


async def test_who_is_faster_between_a_look_and_a_write_keeps_the_lease():
    server = Server()
    server.give("")
    server.competitor = "other"
    elector = elects(server)
    async with running(elector):
        await asyncio.sleep(0.1)
        assert (elector.leading, server.holder) == (False, "other")


@pytest.mark.parametrize(("claimed_s", "lasts_s"), [(1, 100.0), (500, 500.0), (10**9, LONGEST_LEASE_S)])
async def test_a_holder_with_longer_settings_is_believed_within_reason(claimed_s: float, lasts_s: float):
    server = Server()
    server.give("other", claimed_s)
    elector = elects(server, slower=50.0)
    async with running(elector):
        await asyncio.sleep(lasts_s - 1.0)
        assert not elector.leading
        await asyncio.sleep(15.0)
        assert elector.leading


async def test_a_follower_that_ends_leaves_the_lease_to_its_holder_and_a_leader_gives_it_back():
    server = Server()
    server.give("other")
    for held, left in ((0.5, "other"), (3.0, "")):
        elector = elects(server)
        task = asyncio.create_task(elector.run())
        await asyncio.sleep(held)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert (elector.leading, server.holder) == (False, left)


async def test_trouble_with_the_lease_is_told_once_with_its_reason_and_so_is_its_end():
    server = Server(answers_after_s=100.0)  # no request of this double ends by itself
    with capture_logs() as lines:
        async with running(elects(server)):
            await asyncio.sleep(5.0)
            server.answers_after_s = 0.0
            await asyncio.sleep(3.0)
    told = [(line["event"], line.get("error")) for line in lines if "lease" in line["event"]]
    assert told == [
        ("lease cannot be held or read", "no answer within 1.2 s"),
        ("lease is held or read again", None),
    ]
    assert lines[0]["lease"].endswith("/namespaces/vllm-autoscaler/leases/vllm-autoscaler")


async def test_a_follower_says_so_when_the_leader_watches_something_else():
    server = Server()
    leader, same, other = (elects(server, watches=watches) for watches in ("team-a", "team-a", "team-b"))
    with capture_logs() as logs:
        async with running(leader):
            await asyncio.sleep(0.1)
            async with running(same, other):
                await asyncio.sleep(0.5)
                assert (leader.problem, same.problem) == ("", "")
                assert leader.identity in other.problem
                assert "watches team-a" in other.problem
                assert "watches team-b" in other.problem
    assert [each["event"] for each in logs].count("the leader watches something else") == 1


async def test_a_leader_that_does_not_say_what_it_watches_is_not_reported():
    server = Server()
    async with running(elects(server)):
        await asyncio.sleep(0.1)
        follower = elects(server, watches="team-a")
        async with running(follower):
            await asyncio.sleep(0.5)
            assert follower.problem == ""
