"""List and watch: against a fake server for faults, and a real one for outages."""

import asyncio
import io
import random
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from autoscaler.adapters.clock import SystemClock
from autoscaler.adapters.kubernetes.api import objects, pod_objects
from autoscaler.adapters.kubernetes.api.client import BODY_LIMIT_BYTES, ApiError, Kube
from autoscaler.adapters.kubernetes.api.reflector import QUICK_END_S, Reflector, Resource, WatchTimes
from autoscaler.adapters.kubernetes.fleet import KubeFleet
from autoscaler.adapters.kubernetes.own_writes import OwnWrites
from autoscaler.adapters.kubernetes.scale import ScaleActuator
from autoscaler.adapters.kubernetes.stores import Scope
from autoscaler.config.settings import Mode
from autoscaler.ports import Change, ChangeStatus
from tests.adapters.kubernetes.api.fake_server import (
    CLIENT_TIMEOUT_S,
    EXPIRED,
    Answer,
    FakeApiServer,
    always,
    bookmark,
    event,
    page,
    pod,
    refusal,
    stream,
)
from tests.adapters.kubernetes.world import World, names, running, synced, until
from tests.harness.in_memory import LoopClock
from tests.harness.kube_api import KubeApi
from tests.harness.loop_time import pass_time
from tests.harness.process import PATIENCE_S, eventually

QUICK = WatchTimes(
    lifetime_s=10, silence_s=PATIENCE_S, backoff_s=0.02, backoff_cap_s=0.1, absent_s=0.1, heartbeat_s=0.2
)
IMPATIENT = replace(QUICK, silence_s=0.3)  # opens silent streams again
PODS = Resource("/api/v1", "pods", pod_objects.PodObject)


class NameStore:
    """Stores the names of objects, and fails for some of them."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.puts = 0

    def put(self, seen: objects.Object, /) -> None:
        if seen.metadata.name == "poison":
            raise ValueError("this one cannot be used")
        self.puts += 1
        self.names[seen.metadata.name] = seen.metadata.uid

    def remove(self, namespace: str, name: str, /) -> None:
        if name == "stuck":
            raise KeyError(name)
        del self.names[name]


class RunningReflector:
    def __init__(self, api: FakeApiServer, reflector: Reflector[pod_objects.PodObject], store: NameStore) -> None:
        self.api = api
        self.reflector = reflector
        self.store = store

    async def until(self, *expected: str) -> None:
        async def holds() -> bool:
            return sorted(self.store.names) == sorted(expected)

        await eventually(holds, f"exactly {expected} are there", every_s=0.01)

    async def eventually(self, what: str, holds) -> None:
        async def probe() -> bool:
            return holds()

        await eventually(probe, what, every_s=0.01)


@asynccontextmanager
async def running_reflector(
    api: FakeApiServer, optional: bool = False, times: WatchTimes = QUICK
) -> AsyncIterator[RunningReflector]:
    store = NameStore()
    async with api.client() as kube:
        resource = Resource("/api/v1", "pods", pod_objects.PodObject, optional=optional)
        reflector = Reflector(kube, resource, store, SystemClock(), times=times)
        async with running(reflector):
            yield RunningReflector(api, reflector, store)


async def test_watch_begins_at_the_version_of_the_last_page():
    api = FakeApiServer()
    api.lists = [always(lambda: page(pod("a"), more="next")), always(lambda: page(pod("b"), version=7))]
    async with running_reflector(api) as it:
        await it.until("a", "b")
        await it.eventually("it watches", lambda: bool(api.watch_versions))
        assert it.reflector.synced
    assert [query.get("continue") for query in api.queries[:2]] == [None, "next"]
    assert api.watch_versions == ["7"]


async def test_pages_shrink_for_large_objects_and_grow_again():
    api = FakeApiServer()
    too_large = always(lambda: web.Response(body=io.BytesIO(b" " * (BODY_LIMIT_BYTES + 1))))
    api.lists = [too_large, *(always(lambda: page(more="next")) for _ in range(3)), always(lambda: page(pod("a")))]
    async with running_reflector(api) as it:
        await it.until("a")
    assert [query["limit"] for query in api.queries if "limit" in query] == ["500", "125", "250", "500", "500"]


async def test_watch_resumes_after_the_last_bookmark():
    api = FakeApiServer()
    api.lists = [always(lambda: page(pod("a"), pod("b")))]
    first = (event("ADDED", pod("c", 11)), event("DELETED", pod("a", 12)), bookmark(40))
    api.watches = [stream(*first), stream(then_s=60)]
    async with running_reflector(api) as it:
        await it.until("b", "c")
        await it.eventually("it resumes", lambda: len(api.watch_versions) == 2)
        assert it.reflector.live
    assert api.watch_versions == ["10", "40"]
    assert api.list_count == 1
    assert api.queries[1]["allowWatchBookmarks"] == "true"
    assert 10 <= int(api.queries[1]["timeoutSeconds"]) <= 12


@pytest.mark.parametrize("gone", [stream(EXPIRED), always(lambda: refusal(410))], ids=["event", "status"])
async def test_objects_are_listed_again_after_410_gone(gone):
    api = FakeApiServer()
    api.lists = [always(lambda: page(pod("a"), pod("b"))), always(lambda: page(pod("b"), pod("c"), version=90))]
    api.watches = [gone, stream(then_s=60)]
    async with running_reflector(api) as it:
        await it.until("b", "c")
        await it.eventually("it watches again", lambda: len(api.watch_versions) == 2)
    assert api.watch_versions == ["10", "90"]
    assert it.store.puts == 3  # b was unchanged, so it was not stored again


async def test_list_starts_again_after_410_between_pages():
    api = FakeApiServer()
    api.lists = [
        always(lambda: page(pod("a"), more="next")),
        always(lambda: refusal(410)),
        always(lambda: page(pod("b"), version=50)),
    ]
    async with running_reflector(api) as it:
        await it.until("b")
        await it.eventually("it watches", lambda: bool(api.watch_versions))
    assert api.watch_versions == ["50"]


async def test_object_with_a_new_uid_replaces_the_old_one():
    api = FakeApiServer()
    api.lists = [always(lambda: page(pod("a", uid="old")))]
    api.watches = [stream(event("MODIFIED", pod("a", 12, uid="new")), then_s=60)]
    async with running_reflector(api) as it:
        await it.eventually("the new one is there", lambda: it.store.names.get("a") == "new")


@pytest.mark.looptime
async def test_429_waits_as_long_as_the_server_asks():
    """On virtual time with a fake client, because sockets do not follow virtual time."""
    random.seed(1)
    asked: list[float] = []

    class Busy(Kube):
        def __init__(self) -> None:
            pass

        async def request(self, method, path, body=None, **options):
            asked.append(asyncio.get_running_loop().time())
            raise ApiError("list", 429, "too many requests", retry_after_s=7.0)

    reflector = Reflector(Busy(), PODS, NameStore(), LoopClock())
    task = asyncio.create_task(reflector.run())
    await asyncio.sleep(60)
    task.cancel()
    gaps = [later - earlier for earlier, later in pairwise(asked)]
    assert len(gaps) >= 2
    assert all(7.0 <= gap <= 7.0 + 30.0 for gap in gaps)
    assert "429" in reflector.problem


async def test_objects_stay_while_the_watch_is_refused():
    api = FakeApiServer()
    api.lists = [always(lambda: page(pod("a")))]
    codes, was_seen = cycle((503, 500)), False

    async def answer(request: web.Request) -> web.StreamResponse:
        return await stream(bookmark(11), then_s=60)(request) if was_seen else refusal(next(codes))

    api.watches = [answer]
    async with running_reflector(api) as it:
        await it.eventually("it fails", lambda: "503" in it.reflector.problem or "500" in it.reflector.problem)
        assert list(it.store.names) == ["a"]
        assert not it.reflector.live
        was_seen = True
        await it.eventually("it works", lambda: it.reflector.live and not it.reflector.problem)
    assert api.list_count == 1


async def test_watch_resumes_after_a_half_open_connection():
    api = FakeApiServer()
    api.watches = [stream(event("ADDED", pod("a", 11)), then_s=60), stream(event("ADDED", pod("b", 12)), then_s=60)]
    async with running_reflector(api) as it:
        await it.until("a")
        pass_time(QUICK.silence_s + 1)
        await it.until("a", "b")
    assert api.watch_versions[:2] == ["10", "11"]


async def test_no_event_is_lost_when_a_connection_is_cut():
    whole = event("ADDED", pod("a", 11))

    async def cut(request: web.Request) -> web.StreamResponse:
        response = await stream(whole[:20])(request)
        assert request.transport is not None
        request.transport.close()
        return response

    api = FakeApiServer()
    api.watches = [cut, stream(whole[:30], whole[30:], then_s=60)]
    async with running_reflector(api) as it:
        await it.until("a")
    assert api.watch_versions[:2] == ["10", "10"]


async def test_slow_stream_is_read():
    whole = event("ADDED", pod("a", 11))

    api = FakeApiServer()

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for index in range(0, len(whole), 40):
            await response.write(whole[index : index + 40])
            await asyncio.sleep(0.05)
        await asyncio.sleep(60)
        return response

    api.watches = [answer]
    async with running_reflector(api) as it:
        await it.until("a")
        assert len(api.watch_versions) == 1


async def test_reconnects_slow_down_when_streams_end_at_once():
    api = FakeApiServer()
    api.watches = [stream()]
    async with running_reflector(api, times=WatchTimes(backoff_s=0.2, backoff_cap_s=10.0)) as it:
        await asyncio.sleep(1.5)
        await it.eventually("it says why", lambda: "ended at once" in it.reflector.problem)
    assert len(api.watch_versions) < 30


async def test_watch_reconnects_after_an_invalid_line():
    api = FakeApiServer()
    api.watches = [
        stream(b"<html>bad gateway</html>\n"),
        stream(b'{"type": 3}\n'),
        stream(event("ADDED", pod("a", 11)), then_s=60),
    ]
    async with running_reflector(api) as it:
        await it.until("a")
    assert api.list_count == 1


async def test_list_is_repeated_after_an_invalid_answer():
    api = FakeApiServer()
    api.lists = [always(lambda: web.Response(text="<html>proxy</html>")), always(lambda: page(pod("a")))]
    async with running_reflector(api) as it:
        await it.until("a")


async def test_line_without_end_is_cut_off():
    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"x" * (1 << 20))

    api = FakeApiServer()
    api.watches = [endless, stream(event("ADDED", pod("a", 11)), then_s=60)]
    async with running_reflector(api) as it:
        await it.until("a")


async def test_invalid_object_does_not_affect_others():
    unreadable = pod("unreadable") | {"status": {"conditions": "many"}}
    api = FakeApiServer()
    api.lists = [always(lambda: page(pod("a"), unreadable, pod("poison"), {"metadata": 3}, pod("b")))]
    async with running_reflector(api) as it:
        await it.until("a", "b")
        await it.eventually("it watches", lambda: it.reflector.live)
        assert it.reflector.unreadable == 3


async def test_failed_removal_does_not_affect_others():
    api = FakeApiServer()
    api.lists = [always(lambda: page(pod("stuck"), pod("a"), pod("b")))]
    api.watches = [stream(event("DELETED", pod("stuck", 11)), event("DELETED", pod("b", 12)), then_s=60)]
    async with running_reflector(api) as it:
        await it.until("a", "stuck")
        assert it.reflector.unreadable == 1
        assert it.reflector.live


@pytest.mark.parametrize(
    "line",
    [
        b'{"type":"ERROR","object":{"code":"many"}}\n',
        b'{"type":"DELETED","object":{"metadata":{"labels":3}}}\n',
        b'{"type":"MODIFIED","object":{"spec":' + b"[" * 5_000 + b"]" * 5_000 + b"}}\n",
    ],
    ids=["invalid error", "invalid labels", "deep nesting"],
)
async def test_malformed_line_only_ends_the_stream(line: bytes):
    api = FakeApiServer()
    api.lists = [always(lambda: page(pod("a")))]
    api.watches = [stream(line), stream(event("ADDED", pod("b", 11)), then_s=60)]
    async with running_reflector(api) as it:
        await it.until("a", "b")


async def test_missing_optional_kind_is_found_later():
    api = FakeApiServer()
    api.lists = [always(lambda: refusal(404)), always(lambda: refusal(403)), always(lambda: page(pod("a")))]
    async with running_reflector(api, optional=True) as it:
        await it.eventually("it counts as absent", lambda: it.reflector.absent)
        assert (it.reflector.synced, it.reflector.live, it.reflector.problem) == (True, True, "")
        await it.until("a")
        await it.eventually("it is there", lambda: not it.reflector.absent)


@pytest.mark.parametrize("status", [403, 404])
async def test_optional_kind_stays_at_the_first_refusal(status: int):
    """An API server that has just started refuses roles and custom resources that are not loaded yet."""
    api = FakeApiServer()
    api.lists = [always(lambda: page(pod("a")))]
    api.watches = [always(lambda: refusal(status)), stream(bookmark(11), then_s=60)]
    async with running_reflector(api, optional=True, times=replace(QUICK, absent_s=60)) as it:
        await it.eventually("it works again", lambda: len(api.watch_versions) == 2 and it.reflector.live)
        assert (it.reflector.absent, list(it.store.names)) == (False, ["a"])
    assert api.list_count == 1


async def test_optional_kind_is_removed_after_a_lasting_refusal():
    api = FakeApiServer()
    api.lists = [always(lambda: page(pod("a"))), always(lambda: refusal(403))]
    api.watches = [always(lambda: refusal(403))]
    async with running_reflector(api, optional=True, times=replace(QUICK, absent_s=0.5)) as it:
        await it.until("a")
        await it.eventually("it counts as absent", lambda: it.reflector.absent)
        assert it.store.names == {}
        assert len(api.watch_versions) > 1


async def test_reconnect_ends_a_pause():
    api = FakeApiServer()
    api.lists = [always(lambda: refusal(404)), always(lambda: page(pod("a")))]
    async with running_reflector(api, optional=True, times=replace(QUICK, absent_s=3600)) as it:
        await it.eventually("it counts as absent", lambda: it.reflector.absent)
        await asyncio.sleep(0.05)
        it.reflector.reconnect()
        await it.until("a")


async def silent(request: web.Request) -> web.StreamResponse:
    """Accept a request and never answer, as a server that has just started may do."""
    await asyncio.sleep(60)
    return web.Response()


async def opened_then_cut(request: web.Request) -> web.StreamResponse:
    """Open a stream, and end its connection later without an event, as a proxy with an idle time-out does."""
    response = await stream(then_s=QUICK_END_S)(request)
    assert request.transport is not None
    request.transport.abort()
    return response


@pytest.mark.parametrize("quiet", [stream(then_s=60), opened_then_cut], ids=["silent", "cut"])
async def test_watch_stays_live_when_a_kind_is_quiet(quiet: Answer):
    """An API server whose etcd sends no progress notifications sends no bookmarks for a kind without events."""
    api = FakeApiServer()
    api.watches = [quiet]
    times = replace(IMPATIENT, backoff_s=60.0, backoff_cap_s=60.0)  # a failure would end the test
    async with running_reflector(api, times=times) as it:
        await it.eventually("it opens a stream three times", lambda: len(api.watch_versions) >= 3)
        assert (it.reflector.live, it.reflector.problem) == (True, "")
    assert api.list_count == 1


async def test_watch_fails_when_a_stream_is_not_opened_again():
    api = FakeApiServer()
    api.watches = [stream(then_s=60), silent]
    async with running_reflector(api, times=IMPATIENT) as it:
        await it.eventually("it says why", lambda: "nothing within" in it.reflector.problem)
        assert not it.reflector.live


async def test_reconnect_ends_a_stream_that_does_not_open():
    api = FakeApiServer()
    api.lists = [always(lambda: page(pod("a")))]
    api.watches = [silent, stream(event("ADDED", pod("b", 11)), then_s=60)]
    async with running_reflector(api) as it:
        await it.eventually("it opens a stream", lambda: len(api.watch_versions) == 1)
        it.reflector.reconnect()
        await it.until("a", "b")
        assert it.reflector.live


async def test_reconnect_ends_a_list_without_an_answer():
    api = FakeApiServer()
    api.lists = [silent, always(lambda: page(pod("a")))]
    async with running_reflector(api) as it:
        await it.eventually("it lists", lambda: api.list_count == 1)
        it.reflector.reconnect()
        it.reflector.reconnect()
        await it.until("a")


async def test_reconnect_respects_retry_after():
    api = FakeApiServer()
    api.lists = [always(lambda: refusal(429, Retry_After="2")), always(lambda: page(pod("a")))]
    began_s = asyncio.get_running_loop().time()
    async with running_reflector(api) as it:
        await it.eventually("it is refused", lambda: "429" in it.reflector.problem)
        it.reflector.reconnect()
        await it.until("a")
    assert asyncio.get_running_loop().time() - began_s >= 2
    assert api.list_count == 2


async def test_required_kind_is_not_synced_while_refused():
    api = FakeApiServer()
    api.lists = [always(lambda: refusal(403))]
    async with running_reflector(api) as it:
        await it.eventually("it says why", lambda: "403: refused" in it.reflector.problem)
        assert (it.reflector.synced, it.reflector.refused) == (False, True)


async def test_required_kind_is_refused_only_after_a_while():
    """An API server that has just started refuses roles that it has not loaded yet."""
    api = FakeApiServer()
    api.lists = [always(lambda: page(pod("a")))]
    api.watches = [
        stream(),
        always(lambda: refusal(403)),
        always(lambda: refusal(403)),
        stream(bookmark(11), then_s=60),
    ]
    async with running_reflector(api, times=replace(QUICK, absent_s=60.0)) as it:
        await it.eventually("it works again", lambda: len(api.watch_versions) == 4 and it.reflector.live)
        assert not it.reflector.refused
        api.watches = [always(lambda: refusal(403))]
    async with running_reflector(api) as it:
        await it.eventually("it is refused", lambda: it.reflector.refused)
        assert list(it.store.names) == ["a"]  # they are kept


@pytest.mark.parametrize("version", [9, 10])
async def test_objects_are_listed_again_when_versions_went_back(version: int):
    """A restored etcd. The object has its old version, and other content."""
    api = FakeApiServer()
    api.lists = [always(lambda: page(pod("a"), pod("b"))), always(lambda: page(pod("a"), version=version))]
    api.watches = [stream(), stream(then_s=60)]
    api.version = version
    async with running_reflector(api) as it:
        await it.eventually("the second stream is open", lambda: len(api.watch_versions) == 2 and it.reflector.live)
        went_back = version < 10
        assert (api.list_count, it.store.puts, bool(it.reflector.went_back)) == (
            (2, 3, True) if went_back else (1, 2, False)
        )
        assert api.watch_versions == ["10", str(version)]
        assert ("from 10 to 9" in it.reflector.went_back) is went_back


async def test_list_may_take_longer_than_other_requests():
    """An API server under load may need a minute for a page. With a shorter time-out it would never be read."""
    api = FakeApiServer()

    async def slow(request: web.Request) -> web.Response:
        await asyncio.sleep(2 * CLIENT_TIMEOUT_S)
        return page(pod("a"))

    api.lists, api.timeout_s = [slow], CLIENT_TIMEOUT_S
    async with running_reflector(api) as it:
        await it.until("a")
    assert api.list_count == 1


async def test_refusals_with_an_outage_between_do_not_add_up():
    """An API server that restarts twice refuses at each start. The objects stay."""
    api = FakeApiServer()
    api.lists = [always(lambda: page(pod("a"))), always(lambda: refusal(403))]
    away = [always(lambda: refusal(503, Retry_After="1"))]
    starts = [always(lambda: refusal(403))]
    api.watches = [*starts, *away, *starts, stream(bookmark(11), then_s=60)]
    async with running_reflector(api, optional=True, times=replace(QUICK, absent_s=1.0)) as it:
        await it.eventually("it works again", lambda: len(api.watch_versions) == 4 and it.reflector.live)
        assert (it.reflector.absent, list(it.store.names)) == (False, ["a"])


@pytest.mark.integration
@pytest.mark.parametrize("crash", [True, False], ids=["killed", "frozen"])
async def test_fleet_is_unchanged_after_an_outage(
    kube_api: KubeApi, kube: Kube, clock: SystemClock, world: World, crash: bool
):
    """The outage is longer than every pause and time-out of the watch."""
    created = await world.deployment("llama", replicas=2)
    for index in range(3):
        await world.pod("llama", f"llama-{index}")
    writes = OwnWrites(clock)
    fleet = KubeFleet(kube, clock, Scope(Mode.DIRECT, [world.namespace], times=IMPATIENT), writes=writes)
    actuator = ScaleActuator(kube, writes)
    async with running(fleet):
        before = await synced(fleet)
        async with kube_api.outage(crash=True) if crash else kube_api.frozen():
            await asyncio.sleep(2.5)
            during = fleet.fleet()
            assert names(during) == ["llama"]
            assert len(during.pods) == 3
            assert during.replicas.tolist() == [2.0]
            assert clock.now_s() - during.time_s > 1.5  # the view tells its age
            change = Change(during.workloads[0].ref, created["metadata"]["uid"], 2, 5, "more")
            (outcome,) = await actuator.apply([change], 0.5)
            assert outcome.status is ChangeStatus.FAILED
            ended_s = clock.now_s()
        await until(fleet, "the view is true again", lambda view: view.time_s > ended_s)
        await world.deployment("second")
        await world.pod("llama", "llama-3")
        after = await until(fleet, "news arrive", lambda view: len(view.workloads) == 2 and len(view.pods) == 4)
    assert after.workload_id[0] == before.workload_id[0]
    assert after.pod_id[:3].tolist() == before.pod_id.tolist()
    assert sorted(pod.name for pod in after.pods) == [f"llama-{index}" for index in range(4)]


async def sees(reflector: Reflector[Any], store: NameStore, *expected: str) -> None:
    async def holds() -> bool:
        return reflector.live and sorted(store.names) == sorted(expected)

    await eventually(holds, f"exactly {expected} are there")


@pytest.mark.slow
@pytest.mark.integration
async def test_objects_are_listed_again_when_etcd_was_restored(clock: SystemClock, tmp_path: Path):
    async with KubeApi.running(tmp_path) as api, Kube.using(api.configuration(), PATIENCE_S) as kube:
        await api.install_crds()
        world = World(api, await api.namespace())
        await world.deployment("llama", replicas=2)
        fleet = KubeFleet(kube, clock, Scope(Mode.DIRECT, [world.namespace], times=QUICK))
        async with api.forgotten(), AsyncExitStack() as stack:
            await stack.enter_async_context(running(fleet))
            for number in range(3):
                await world.deployment(f"later-{number}")
            await until(fleet, "all are known", lambda view: len(view.workloads) == 4)
            watching = stack.pop_all()
        async with watching:
            await until(fleet, "the later ones are gone", lambda view: names(view) == ["llama"])
            assert [line for line in fleet.watch_problems() if "versions went back" in line]
            await world.deployment("next")
            await until(fleet, "news arrive", lambda view: names(view) == ["llama", "next"])


@pytest.mark.integration
async def test_new_certificates_interrupt_no_watch(kube: Kube, clock: SystemClock, world: World):
    await world.deployment("llama")
    await world.pod("llama", "a")
    store = NameStore()
    reflector = Reflector(kube, PODS, store, clock, world.namespace)
    async with running(reflector):
        await sees(reflector, store, "a")
        await kube.reconnect()
        await world.pod("llama", "b")
        await sees(reflector, store, "a", "b")


@pytest.mark.integration
async def test_objects_are_listed_again_when_version_expired(kube: Kube, clock: SystemClock, world: World):
    await world.deployment("llama")
    await world.pod("llama", "a")
    store = NameStore()
    reflector = Reflector(kube, PODS, store, clock, world.namespace, QUICK)
    reflector._version = "1"  # as after a long sleep of this machine
    async with running(reflector):

        async def there() -> bool:
            return list(store.names) == ["a"] and reflector.live

        await eventually(there, "the pod is seen")
    assert reflector.synced


def with_environment(name: str, value: str) -> dict[str, Any]:
    container = {"name": "c", "image": "c", "env": [{"name": "LARGE", "value": value}]}
    return {"metadata": {"name": name}, "spec": {"containers": [container]}}


@pytest.mark.integration
async def test_pages_shrink_for_large_objects_of_a_real_server(kube: Kube, clock: SystemClock, world: World):
    """A user who may create pods must not be able to stop the daemon with a few dozen large ones."""
    large = "x" * 1_000_000
    names = [f"large-{index}" for index in range(BODY_LIMIT_BYTES // len(large) + 2)]
    pods = f"/api/v1/namespaces/{world.namespace}/pods"
    for name in names:
        await world.api.request("POST", pods, with_environment(name, large))
    store = NameStore()
    reflector = Reflector(kube, PODS, store, clock, world.namespace, QUICK)
    async with running(reflector):

        async def listed() -> bool:
            return reflector.synced

        await eventually(listed, "all are listed")
    assert sorted(store.names) == sorted(names)
    for name in names:
        await world.delete("Pod", name, "v1")


@pytest.mark.integration
async def test_largest_possible_object_is_listed_and_watched(kube: Kube, clock: SystemClock, world: World):
    """etcd accepts 1.5 MiB, and one byte may become six in JSON."""
    pods = f"/api/v1/namespaces/{world.namespace}/pods"
    largest = "<" * 1_500_000
    await world.api.request("POST", pods, with_environment("first", largest))
    store = NameStore()
    reflector = Reflector(kube, PODS, store, clock, world.namespace)
    async with running(reflector):
        await sees(reflector, store, "first")
        await world.api.request("POST", pods, with_environment("second", largest))
        await sees(reflector, store, "first", "second")
    for name in ("first", "second"):
        await world.delete("Pod", name, "v1")


@pytest.mark.integration
async def test_deeply_nested_managed_fields_are_listed_and_watched(kube: Kube, clock: SystemClock, world: World):
    """A user who may create pods can write them, and the API server keeps thousands of levels."""
    fields = '{"f:x":' * 5_000 + "{}" + "}" * 5_000
    owner = '"manager": "m", "operation": "Update", "apiVersion": "v1", "time": "2026-01-01T00:00:00Z"'
    managed = f'[{{{owner}, "fieldsType": "FieldsV1", "fieldsV1": {{"f:spec": {fields}}}}}]'
    spec = '{"containers": [{"name": "c", "image": "c"}]}'
    headers = {"Authorization": f"Bearer {world.api.admin.token}", "Content-Type": "application/json"}
    trust = ssl.create_default_context(cafile=world.api.ca)

    async def make(name: str) -> None:
        url = f"{world.api.url}/api/v1/namespaces/{world.namespace}/pods"
        pod = f'{{"metadata": {{"name": "{name}", "managedFields": {managed}}}, "spec": {spec}}}'
        async with (
            aiohttp.ClientSession() as session,
            session.post(url, data=pod, headers=headers, ssl=trust) as answer,
        ):
            assert (await answer.text()).count("f:x") == 5_000

    store = NameStore()
    reflector = Reflector(kube, PODS, store, clock, world.namespace)

    await make("first")
    async with running(reflector):
        await sees(reflector, store, "first")
        await make("second")
        await sees(reflector, store, "first", "second")
