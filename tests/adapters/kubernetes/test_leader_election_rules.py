"""The rules of the lease one by one, on virtual time, with a fake server that stores one lease."""

import asyncio
import json
from contextlib import suppress
from typing import Any

import pytest
from structlog.testing import capture_logs

from autoscaler.adapters.kubernetes.api.client import ApiError
from autoscaler.adapters.kubernetes.leader_election import COUNTS, LONGEST_LEASE_S, Elector
from autoscaler.config.settings import LeaseSettings
from tests.adapters.kubernetes.world import running
from tests.harness.in_memory import LoopClock

pytestmark = pytest.mark.looptime


class FakeLeaseServer:
    """Stores one lease; a write with another version than the last is refused."""

    def __init__(self, answers_after_s: float = 0.0) -> None:
        self.answers_after_s = answers_after_s
        self.down = False
        self.spec: dict[str, Any] | None = None
        self.version = 0
        self.annotations: dict[str, str] | None = None
        self.competitor = ""  # acquires the lease right after it was read

    def give(self, holder: str, duration_s: float = 2.0) -> None:
        self.spec = {"holderIdentity": holder, "leaseDurationSeconds": int(duration_s)}
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


def elector_of(server: FakeLeaseServer, slower: float = 1.0, watches: str = "") -> Elector:
    settings = LeaseSettings(duration_s=2.0 * slower, renew_deadline_s=1.4 * slower, retry_s=0.2 * slower)
    return Elector(server, settings, LoopClock(), watches=watches)  # type: ignore[arg-type]


async def test_renewal_counts_from_the_moment_it_was_sent():
    server = FakeLeaseServer(answers_after_s=0.5)
    elector = elector_of(server)
    async with running(elector):
        await asyncio.sleep(0.51)  # sent at once, and answered after half a second
        server.down = True
        assert elector.leading
        await asyncio.sleep(0.9)
        assert not elector.leading


@pytest.mark.parametrize("stated_s", [2, 500, 10**9])
async def test_deleted_lease_is_waited_for_when_it_was_held(stated_s: float):
    server = FakeLeaseServer()
    server.give("other", stated_s)
    elector = elector_of(server)
    async with running(elector):
        await asyncio.sleep(0.5)
        server.spec = None
        await asyncio.sleep(1.4)
        assert not elector.leading
        await asyncio.sleep(0.6)
        assert elector.leading


async def test_leader_stops_when_another_process_took_over():
    server = FakeLeaseServer()
    elector = elector_of(server)
    async with running(elector):
        await asyncio.sleep(0.5)
        assert (elector.leading, elector.transitions) == (True, 0)  # a renewal is no change of leader
        server.give("other")
        await asyncio.sleep(0.5)
        assert (elector.leading, server.holder) == (False, "other")


async def test_lease_is_lost_when_another_process_writes_first():
    server = FakeLeaseServer()
    server.give("")
    server.competitor = "other"
    elector = elector_of(server)
    async with running(elector):
        await asyncio.sleep(0.1)
        assert (elector.leading, server.holder) == (False, "other")


@pytest.mark.parametrize(("stated_s", "duration_s"), [(1, 100.0), (500, 500.0), (10**9, LONGEST_LEASE_S)])
async def test_longer_duration_of_the_holder_is_respected(stated_s: float, duration_s: float):
    server = FakeLeaseServer()
    server.give("other", stated_s)
    elector = elector_of(server, slower=50.0)
    async with running(elector):
        await asyncio.sleep(duration_s - 1.0)
        assert not elector.leading
        await asyncio.sleep(15.0)
        assert elector.leading


async def test_only_the_leader_releases_the_lease():
    server = FakeLeaseServer()
    server.give("other")
    for held, left in ((0.5, "other"), (3.0, "")):
        elector = elector_of(server)
        task = asyncio.create_task(elector.run())
        await asyncio.sleep(held)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert (elector.leading, server.holder) == (False, left)


async def test_lease_error_and_its_end_are_logged_once():
    server = FakeLeaseServer(answers_after_s=100.0)  # no request ends by itself
    with capture_logs() as lines:
        async with running(elector_of(server)):
            await asyncio.sleep(5.0)
            server.answers_after_s = 0.0
            await asyncio.sleep(3.0)
    logged = [(line["event"], line.get("error")) for line in lines if "lease" in line["event"]]
    assert logged == [
        ("lease cannot be renewed or read", "no answer within 1.2 s"),
        ("lease is renewed or read again", None),
    ]
    assert lines[0]["lease"].endswith("/namespaces/vllm-autoscaler/leases/vllm-autoscaler")


async def test_problem_is_reported_when_leader_watches_others():
    server = FakeLeaseServer()
    leader, same, other = (elector_of(server, watches=watches) for watches in ("team-a", "team-a", "team-b"))
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


async def test_no_problem_when_the_leader_states_no_watches():
    server = FakeLeaseServer()
    async with running(elector_of(server)):
        await asyncio.sleep(0.1)
        follower = elector_of(server, watches="team-a")
        async with running(follower):
            await asyncio.sleep(0.5)
            assert follower.problem == ""


class Notes:
    def __init__(self, text: str) -> None:
        self.text = text

    def note(self) -> str:
        return self.text

    def read_note(self, text: str) -> None:
        self.text = f"{self.text}, {text}"


async def test_next_leader_reads_what_the_last_one_left():
    server = FakeLeaseServer()
    for ours, left in (("first", "first"), ("second", "second, first"), ("", ", second, first")):
        elector = elector_of(server)
        elector.counts = Notes(ours)
        async with running(elector):
            await asyncio.sleep(0.1)
            assert elector.leading
        assert server.annotations == {COUNTS: left}
