"""Watches of custom kinds as an API server stops serving them, refuses them, or fails."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from autoscaler.adapters.clock import SystemClock
from autoscaler.adapters.kubernetes.api.client import ApiError
from autoscaler.adapters.kubernetes.api.discovery import ServedKind
from autoscaler.adapters.kubernetes.api.reflector import Resource, WatchTimes
from autoscaler.adapters.kubernetes.api.target_objects import CustomTarget
from autoscaler.adapters.kubernetes.cluster_watch import ClusterWatch, Watched
from autoscaler.ports import Unavailable
from tests.adapters.kubernetes.api.test_discovery import groups, resources
from tests.adapters.kubernetes.world import running
from tests.harness.process import eventually

TIMES = WatchTimes(backoff_s=0.01, backoff_cap_s=0.02, absent_s=0.05, heartbeat_s=0.05)
THING = {"metadata": {"name": "a", "namespace": "ns", "uid": "u", "resourceVersion": "1"}}
LIST = "/apis/example.com/v1/things"


class Server:
    """An API server with one custom kind. A path answers with a document, or with the status of a refusal."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {
            "/version": {},
            "/apis": groups(example_com=["v1"]),
            "/apis/example.com/v1": resources("things", "things/scale"),
            LIST: {"metadata": {"resourceVersion": "1"}, "items": [THING]},
        }
        self.looked_up = 0

    async def request(self, method: str, path: str, **_: Any) -> bytes:
        self.looked_up += path == "/apis"
        answer = self.answers.get(path, 404)
        if isinstance(answer, int):
            raise ApiError(f"{method} {path}", answer, "refused")
        return msgspec.json.encode(answer)

    @asynccontextmanager
    async def stream(self, path: str, **_: Any) -> AsyncIterator[None]:
        await asyncio.sleep(3600)
        yield

    async def look_up(self, times: int) -> None:
        """Wait until the kinds were looked up this many more times."""
        end = self.looked_up + times + 1

        async def done() -> bool:
            return self.looked_up >= end

        await eventually(done, f"{times} more look-ups")


class Things:
    """The store of the kind."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.opened: list[ServedKind] = []

    def open(self, served: ServedKind) -> tuple[Resource[Any], "Things"]:
        self.opened.append(served)
        return Resource(f"/apis/example.com/{served.version}", "things", CustomTarget, optional=True), self

    def put(self, seen: CustomTarget, /) -> None:
        self.names.add(seen.metadata.name)

    def remove(self, namespace: str, name: str, /) -> None:
        self.names.discard(name)

    def clear(self) -> None:
        self.names.clear()


def watch_of(server: Server, things: Things) -> ClusterWatch:
    kinds = {"things.example.com": "v1"}
    return ClusterWatch(server, SystemClock(), Watched([], kinds, things.open), times=TIMES)  # type: ignore[arg-type]


async def known(watch: ClusterWatch) -> bool:
    try:
        watch.require_sync()
    except Unavailable:
        return False
    return True


async def test_kind_is_forgotten_when_it_is_missing_twice():
    server, things = Server(), Things()
    watch = watch_of(server, things)
    async with running(watch):
        await eventually(lambda: known(watch), "the cluster is known")
        assert things.names == {"a"}
        server.answers["/apis/example.com/v1"] = resources("others")
        await server.look_up(3)
        assert things.names == set()
        server.answers["/apis/example.com/v1"] = resources("things", "things/scale")
        await server.look_up(2)
        assert things.names == {"a"}
    assert len(things.opened) == 2


async def test_kind_is_opened_again_when_it_is_served_otherwise():
    server, things = Server(), Things()
    watch = watch_of(server, things)
    async with running(watch):
        await eventually(lambda: known(watch), "the cluster is known")
        server.answers["/apis/example.com/v1"] = resources("things")
        await server.look_up(2)
    assert [each.scalable for each in things.opened] == [True, False]


@pytest.mark.parametrize("status", [500, 0])
async def test_kind_whose_watch_fails_delays_no_other(status: int):
    server, things = Server(), Things()
    server.answers[LIST] = status
    watch = watch_of(server, things)
    async with running(watch):
        await eventually(lambda: known(watch), "the cluster is known")
        assert LIST in " ".join(watch.problems())
        since_s = watch.true_s

        async def newer() -> bool:
            return watch.true_s > since_s

        await eventually(newer, "the view stays current")


async def test_kind_that_is_forbidden_is_named():
    server, things = Server(), Things()
    server.answers[LIST] = 403
    watch = watch_of(server, things)
    async with running(watch):
        await eventually(lambda: known(watch), "the cluster is known")
        assert watch.unlisted() == {"things.example.com": f"GET {LIST}: 403: refused"}
        assert watch.problems() == []


async def test_forbidden_discovery_leaves_the_kinds_of_every_cluster():
    server, things = Server(), Things()
    server.answers["/apis"] = 403
    watch = watch_of(server, things)
    async with running(watch):
        await eventually(lambda: known(watch), "the cluster is known")
        assert watch.problems() == ["GET /apis: 403: refused"]
    assert things.opened == []


async def test_view_waits_for_a_discovery_that_fails():
    server, things = Server(), Things()
    server.answers["/apis"] = 503
    watch = watch_of(server, things)
    async with running(watch):
        await server.look_up(2)
        with pytest.raises(Unavailable, match="the cluster is not known yet: GET /apis: 503: refused"):
            watch.require_sync()
        server.answers["/apis"] = groups(example_com=["v1"])
        await eventually(lambda: known(watch), "the cluster is known")
    assert things.names == {"a"}


@pytest.mark.parametrize("status", [500, 0])
async def test_auxiliary_kind_that_fails_makes_no_view_old(status: int):
    """So a broken webhook of Karpenter does not stop the daemon from scaling."""
    server, things = Server(), Things()
    server.answers[LIST] = status
    aside = Resource("/apis/example.com/v1", "things", CustomTarget, optional=True, auxiliary=True)
    watch = ClusterWatch(server, SystemClock(), Watched([(aside, things)]), ("ns",), TIMES)  # type: ignore[arg-type]
    server.answers["/apis/example.com/v1/namespaces/ns/things"] = status
    async with running(watch):
        await eventually(lambda: known(watch), "the cluster is known")
        since_s = watch.true_s

        async def newer() -> bool:
            return watch.true_s > since_s

        await eventually(newer, "the view is true again")
        assert any("things" in problem for problem in watch.problems())
