"""List and watch: against a double for what a healthy server does not do, and a real server for outages."""

import asyncio
import io
import random
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from autoscaler.adapters.clock import SystemClock
from autoscaler.adapters.in_memory import LoopClock
from autoscaler.adapters.kubernetes.api import objects
from autoscaler.adapters.kubernetes.api.client import BODY_LIMIT_BYTES, ApiError, Kube
from autoscaler.adapters.kubernetes.api.reflector import Resource, Watch, WatchTimes
from autoscaler.adapters.kubernetes.fleet import KubeFleet
from autoscaler.adapters.kubernetes.own_writes import OwnWrites
from autoscaler.adapters.kubernetes.scale import ScaleActuator
from autoscaler.config.settings import Mode
from autoscaler.ports import Change, ChangeStatus
from tests.adapters.kubernetes.api.fake_server import (
    CLIENT_TIMEOUT_S,
    EXPIRED,
    ApiDouble,
    always,
    bookmark,
    event,
    page,
    pod,
    refusal,
    stream,
)
from tests.adapters.kubernetes.world import World, names, running, synced, until
from tests.harness.kube_api import KubeApi
from tests.harness.process import eventually

QUICK = WatchTimes(lifetime_s=10, silence_s=0.3, backoff_s=0.02, backoff_cap_s=0.1, absent_s=0.1)
PODS = Resource("/api/v1", "pods", objects.Pod)


class Names:
    """Keeps the names of what is there, and refuses one of them."""

    def __init__(self) -> None:
        self.there: dict[str, str] = {}
        self.puts = 0

    def put(self, seen: objects.Object, /) -> None:
        if seen.metadata.name == "poison":
            raise ValueError("this one cannot be used")
        self.puts += 1
        self.there[seen.metadata.name] = seen.metadata.uid

    def remove(self, namespace: str, name: str, /) -> None:
        if name == "stuck":
            raise KeyError(name)
        del self.there[name]


class Followed:
    def __init__(self, api: ApiDouble, watch: Watch[objects.Pod], seen: Names) -> None:
        self.api = api
        self.watch = watch
        self.seen = seen

    async def until(self, *expected: str) -> None:
        async def holds() -> bool:
            return sorted(self.seen.there) == sorted(expected)

        await eventually(holds, f"exactly {expected} are there", 5, every_s=0.01)

    async def eventually(self, what: str, holds) -> None:
        async def probe() -> bool:
            return holds()

        await eventually(probe, what, 5, every_s=0.01)


@asynccontextmanager
async def followed(api: ApiDouble, optional: bool = False, times: WatchTimes = QUICK) -> AsyncIterator[Followed]:
    seen = Names()
    async with api.client() as kube:
        resource = Resource("/api/v1", "pods", objects.Pod, optional=optional)
        watch = Watch(kube, resource, seen, SystemClock(), times=times)
        async with running(watch):
            yield Followed(api, watch, seen)


async def test_pages_are_followed_to_the_end_and_the_watch_begins_where_the_list_ended():
    api = ApiDouble()
    api.lists = [always(lambda: page(pod("a"), more="next")), always(lambda: page(pod("b"), version=7))]
    async with followed(api) as it:
        await it.until("a", "b")
        await it.eventually("it watches", lambda: bool(api.watch_versions))
        assert it.watch.synced
    assert [asked.get("continue") for asked in api.asked[:2]] == [None, "next"]
    assert api.watch_versions == ["7"]


async def test_pages_that_are_smaller_for_large_objects_grow_again_behind_them():
    api = ApiDouble()
    too_large = always(lambda: web.Response(body=io.BytesIO(b" " * (BODY_LIMIT_BYTES + 1))))
    api.lists = [too_large, *(always(lambda: page(more="next")) for _ in range(3)), always(lambda: page(pod("a")))]
    async with followed(api) as it:
        await it.until("a")
    assert [asked["limit"] for asked in api.asked if "limit" in asked] == ["500", "125", "250", "500", "500"]


async def test_events_change_what_is_there_and_a_resumed_watch_begins_after_the_last_bookmark():
    api = ApiDouble()
    api.lists = [always(lambda: page(pod("a"), pod("b")))]
    first = (event("ADDED", pod("c", 11)), event("DELETED", pod("a", 12)), bookmark(40))
    api.watches = [stream(*first), stream(then_s=60)]
    async with followed(api) as it:
        await it.until("b", "c")
        await it.eventually("it resumes", lambda: len(api.watch_versions) == 2)
        assert it.watch.live
    assert api.watch_versions == ["10", "40"]
    assert api.list_count == 1
    assert api.asked[1]["allowWatchBookmarks"] == "true"
    assert 10 <= int(api.asked[1]["timeoutSeconds"]) <= 12


@pytest.mark.parametrize("gone", [stream(EXPIRED), always(lambda: refusal(410))], ids=["event", "status"])
async def test_410_gone_lists_again_and_what_vanished_meanwhile_is_removed(gone):
    api = ApiDouble()
    api.lists = [always(lambda: page(pod("a"), pod("b"))), always(lambda: page(pod("b"), pod("c"), version=90))]
    api.watches = [gone, stream(then_s=60)]
    async with followed(api) as it:
        await it.until("b", "c")
        await it.eventually("it watches again", lambda: len(api.watch_versions) == 2)
    assert api.watch_versions == ["10", "90"]
    assert it.seen.puts == 3  # b had not changed, so it was not handed on again


async def test_410_in_the_middle_of_the_pages_starts_the_list_anew():
    api = ApiDouble()
    api.lists = [
        always(lambda: page(pod("a"), more="next")),
        always(lambda: refusal(410)),
        always(lambda: page(pod("b"), version=50)),
    ]
    async with followed(api) as it:
        await it.until("b")
        await it.eventually("it watches", lambda: bool(api.watch_versions))
    assert api.watch_versions == ["50"]


async def test_an_object_made_again_under_the_same_name_is_removed_first():
    api = ApiDouble()
    api.lists = [always(lambda: page(pod("a", uid="old")))]
    api.watches = [stream(event("MODIFIED", pod("a", 12, uid="new")), then_s=60)]
    async with followed(api) as it:
        await it.eventually("the new one is there", lambda: it.seen.there.get("a") == "new")


@pytest.mark.looptime
async def test_429_waits_as_long_as_the_server_asks():
    """On virtual time: a double in place of the client, as sockets do not follow virtual time."""
    random.seed(1)
    asked: list[float] = []

    class Busy(Kube):
        def __init__(self) -> None:
            pass

        async def request(self, method, path, body=None, **options):
            asked.append(asyncio.get_running_loop().time())
            raise ApiError("list", 429, "too many requests", retry_after_s=7.0)

    watch = Watch(Busy(), PODS, Names(), LoopClock())
    task = asyncio.create_task(watch.run())
    await asyncio.sleep(60)
    task.cancel()
    gaps = [later - earlier for earlier, later in pairwise(asked)]
    assert len(gaps) >= 2
    assert all(7.0 <= gap <= 7.0 + 30.0 for gap in gaps)
    assert "429" in watch.problem


async def test_a_refused_watch_keeps_what_is_known_and_says_why_until_it_works():
    api = ApiDouble()
    api.lists = [always(lambda: page(pod("a")))]
    api.watches = [always(lambda: refusal(503)), always(lambda: refusal(500)), stream(bookmark(11), then_s=60)]
    async with followed(api) as it:
        await it.eventually("it fails", lambda: "503" in it.watch.problem or "500" in it.watch.problem)
        assert list(it.seen.there) == ["a"]
        assert not it.watch.live
        await it.eventually("it works", lambda: it.watch.live and not it.watch.problem)
    assert api.list_count == 1


async def test_a_half_open_connection_is_given_up_and_the_watch_resumes():
    api = ApiDouble()
    api.watches = [stream(event("ADDED", pod("a", 11)), then_s=60), stream(event("ADDED", pod("b", 12)), then_s=60)]
    async with followed(api) as it:
        await it.until("a", "b")
    assert api.watch_versions[:2] == ["10", "11"]


async def test_a_connection_cut_in_the_middle_of_an_event_loses_nothing():
    whole = event("ADDED", pod("a", 11))

    async def cut(request: web.Request) -> web.StreamResponse:
        response = await stream(whole[:20])(request)
        assert request.transport is not None
        request.transport.close()
        return response

    api = ApiDouble()
    api.watches = [cut, stream(whole[:30], whole[30:], then_s=60)]
    async with followed(api) as it:
        await it.until("a")
    assert api.watch_versions[:2] == ["10", "10"]


async def test_a_slow_stream_that_drips_bytes_is_followed():
    whole = event("ADDED", pod("a", 11))

    api = ApiDouble()

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for index in range(0, len(whole), 40):
            await response.write(whole[index : index + 40])
            await asyncio.sleep(0.05)
        await asyncio.sleep(60)
        return response

    api.watches = [answer]
    async with followed(api) as it:
        await it.until("a")
        assert len(api.watch_versions) == 1


async def test_a_server_that_closes_at_once_is_not_hammered():
    api = ApiDouble()
    api.watches = [stream()]
    async with followed(api, times=WatchTimes(backoff_s=0.2, backoff_cap_s=10.0)) as it:
        await asyncio.sleep(1.5)
        assert "ended at once" in it.watch.problem
    assert len(api.watch_versions) < 30


async def test_nonsense_on_the_stream_reconnects_and_loses_nothing():
    api = ApiDouble()
    api.watches = [
        stream(b"<html>bad gateway</html>\n"),
        stream(b'{"type": 3}\n'),
        stream(event("ADDED", pod("a", 11)), then_s=60),
    ]
    async with followed(api) as it:
        await it.until("a")
    assert api.list_count == 1


async def test_a_list_that_is_no_list_is_asked_again():
    api = ApiDouble()
    api.lists = [always(lambda: web.Response(text="<html>proxy</html>")), always(lambda: page(pod("a")))]
    async with followed(api) as it:
        await it.until("a")


async def test_an_endless_line_is_cut_off_before_it_fills_the_memory():
    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"x" * (1 << 20))

    api = ApiDouble()
    api.watches = [endless, stream(event("ADDED", pod("a", 11)), then_s=60)]
    async with followed(api) as it:
        await it.until("a")


async def test_one_bad_object_spoils_only_itself():
    unreadable = pod("unreadable") | {"status": {"conditions": "many"}}
    api = ApiDouble()
    api.lists = [always(lambda: page(pod("a"), unreadable, pod("poison"), {"metadata": 3}, pod("b")))]
    async with followed(api) as it:
        await it.until("a", "b")
        await it.eventually("it watches", lambda: it.watch.live)
        assert it.watch.unreadable == 3


async def test_an_object_that_cannot_be_taken_out_spoils_only_itself():
    api = ApiDouble()
    api.lists = [always(lambda: page(pod("stuck"), pod("a"), pod("b")))]
    api.watches = [stream(event("DELETED", pod("stuck", 11)), event("DELETED", pod("b", 12)), then_s=60)]
    async with followed(api) as it:
        await it.until("a", "stuck")
        assert it.watch.unreadable == 1
        assert it.watch.live


@pytest.mark.parametrize(
    "line",
    [
        b'{"type":"ERROR","object":{"code":"many"}}\n',
        b'{"type":"DELETED","object":{"metadata":{"labels":3}}}\n',
        b'{"type":"MODIFIED","object":{"spec":' + b"[" * 5_000 + b"]" * 5_000 + b"}}\n",
    ],
    ids=["an error that is none", "labels that are none", "nested without end"],
)
async def test_a_line_that_no_api_server_sends_breaks_the_stream_and_not_the_daemon(line: bytes):
    api = ApiDouble()
    api.lists = [always(lambda: page(pod("a")))]
    api.watches = [stream(line), stream(event("ADDED", pod("b", 11)), then_s=60)]
    async with followed(api) as it:
        await it.until("a", "b")


async def test_an_optional_kind_that_is_not_there_counts_as_empty_and_is_found_when_it_comes():
    api = ApiDouble()
    api.lists = [always(lambda: refusal(404)), always(lambda: refusal(403)), always(lambda: page(pod("a")))]
    async with followed(api, optional=True) as it:
        await it.eventually("it is done without", lambda: it.watch.absent)
        assert (it.watch.synced, it.watch.live, it.watch.problem) == (True, True, "")
        await it.until("a")
        await it.eventually("it is there", lambda: not it.watch.absent)


@pytest.mark.parametrize("status", [403, 404])
async def test_an_optional_kind_that_was_there_is_not_forgotten_at_the_first_refusal(status: int):
    """As an API server that has just started refuses: its roles and custom resources are not loaded yet."""
    api = ApiDouble()
    api.lists = [always(lambda: page(pod("a")))]
    api.watches = [always(lambda: refusal(status)), stream(bookmark(11), then_s=60)]
    async with followed(api, optional=True, times=replace(QUICK, absent_s=60)) as it:
        await it.eventually("it works again", lambda: len(api.watch_versions) == 2 and it.watch.live)
        assert (it.watch.absent, list(it.seen.there)) == (False, ["a"])
    assert api.list_count == 1


async def test_an_optional_kind_that_stays_refused_is_forgotten_after_a_while():
    api = ApiDouble()
    api.lists = [always(lambda: page(pod("a"))), always(lambda: refusal(403))]
    api.watches = [always(lambda: refusal(403))]
    async with followed(api, optional=True, times=replace(QUICK, absent_s=0.5)) as it:
        await it.until("a")
        await it.eventually("it is done without", lambda: it.watch.absent)
        assert it.seen.there == {}
        assert len(api.watch_versions) > 1


async def test_told_to_renew_a_watch_does_not_wait_for_the_end_of_its_pause():
    api = ApiDouble()
    api.lists = [always(lambda: refusal(404)), always(lambda: page(pod("a")))]
    async with followed(api, optional=True, times=replace(QUICK, absent_s=3600)) as it:
        await it.eventually("it is done without", lambda: it.watch.absent)
        await asyncio.sleep(0.05)
        it.watch.renew()
        await it.until("a")


async def silent(request: web.Request) -> web.StreamResponse:
    """Take a request and say nothing, as a server that has just started may."""
    await asyncio.sleep(60)
    return web.Response()


async def test_told_to_renew_a_watch_does_not_wait_for_a_stream_that_does_not_open():
    api = ApiDouble()
    api.lists = [always(lambda: page(pod("a")))]
    api.watches = [silent, stream(event("ADDED", pod("b", 11)), then_s=60)]
    async with followed(api, times=replace(QUICK, silence_s=3600)) as it:
        await it.eventually("it opens a stream", lambda: len(api.watch_versions) == 1)
        it.watch.renew()
        await it.until("a", "b")
        assert it.watch.live


async def test_told_to_renew_a_watch_does_not_wait_for_a_list_without_an_answer():
    api = ApiDouble()
    api.lists = [silent, always(lambda: page(pod("a")))]
    async with followed(api, times=replace(QUICK, silence_s=3600)) as it:
        await it.eventually("it lists", lambda: api.list_count == 1)
        it.watch.renew()
        it.watch.renew()
        await it.until("a")


async def test_told_to_renew_a_watch_still_waits_for_as_long_as_the_server_had_asked_for():
    api = ApiDouble()
    api.lists = [always(lambda: refusal(429, Retry_After="1")), always(lambda: page(pod("a")))]
    began_s = asyncio.get_running_loop().time()
    async with followed(api) as it:
        await it.eventually("it is refused", lambda: "429" in it.watch.problem)
        it.watch.renew()
        await it.until("a")
    assert asyncio.get_running_loop().time() - began_s >= 1
    assert api.list_count == 2


async def test_a_kind_that_is_needed_is_not_synced_while_it_is_refused():
    api = ApiDouble()
    api.lists = [always(lambda: refusal(403))]
    async with followed(api) as it:
        await it.eventually("it says why", lambda: "403: refused" in it.watch.problem)
        assert not it.watch.synced


async def test_a_list_may_take_longer_than_other_answers():
    """An API server under load, or far away, may need a minute for a page; cut off and asked anew it never ends."""
    api = ApiDouble()

    async def slow(request: web.Request) -> web.Response:
        await asyncio.sleep(2 * CLIENT_TIMEOUT_S)
        return page(pod("a"))

    api.lists = [slow]
    async with followed(api) as it:
        await it.until("a")
    assert api.list_count == 1


async def test_refusals_with_an_outage_between_them_are_not_one_that_lasts():
    """An API server that starts twice refuses at each start; what was there is there when it works again."""
    api = ApiDouble()
    api.lists = [always(lambda: page(pod("a"))), always(lambda: refusal(403))]
    away = [always(lambda: refusal(503, Retry_After="1"))]
    starts = [always(lambda: refusal(403))]
    api.watches = [*starts, *away, *starts, stream(bookmark(11), then_s=60)]
    async with followed(api, optional=True, times=replace(QUICK, absent_s=1.0)) as it:
        await it.eventually("it works again", lambda: len(api.watch_versions) == 4 and it.watch.live)
        assert (it.watch.absent, list(it.seen.there)) == (False, ["a"])


@pytest.mark.integration
@pytest.mark.parametrize("crash", [True, False], ids=["killed", "frozen"])
async def test_api_server_away_and_back_nothing_shrank_and_nothing_doubled(
    kube_api: KubeApi, kube: Kube, clock: SystemClock, world: World, crash: bool
):
    """A minute, shortened: what counts is that it is longer than every pause and time-out of the watch."""
    made = await world.deployment("llama", replicas=2)
    for index in range(3):
        await world.pod("llama", f"llama-{index}")
    writes = OwnWrites(clock)
    fleet = KubeFleet(kube, clock, Mode.DIRECT, [world.namespace], writes, QUICK, heartbeat_s=0.2)
    actuator = ScaleActuator(kube, writes)
    async with running(fleet):
        before = await synced(fleet)
        async with kube_api.outage(crash=True) if crash else kube_api.frozen():
            await asyncio.sleep(2.5)
            during = fleet.fleet()
            assert names(during) == ["llama"]
            assert len(during.pods) == 3
            assert during.replicas.tolist() == [2.0]
            assert clock.now_s() - during.time_s > 1.5  # the view says how old it is
            change = Change(during.workloads[0].ref, made["metadata"]["uid"], 2, 5, "more")
            (outcome,) = await actuator.apply([change], 0.5)
            assert outcome.status is ChangeStatus.FAILED
        await until(fleet, "the view is true again", lambda view: clock.now_s() - view.time_s < 0.5, 20)
        await world.deployment("second")
        await world.pod("llama", "llama-3")
        after = await until(fleet, "news arrive", lambda view: len(view.workloads) == 2 and len(view.pods) == 4, 20)
    assert after.workload_id[0] == before.workload_id[0]
    assert after.pod_id[:3].tolist() == before.pod_id.tolist()
    assert sorted(pod.name for pod in after.pods) == [f"llama-{index}" for index in range(4)]


async def sees(watch: Watch[Any], seen: Names, *expected: str) -> None:
    async def holds() -> bool:
        return watch.live and sorted(seen.there) == sorted(expected)

    await eventually(holds, f"exactly {expected} are there")


@pytest.mark.integration
async def test_certificates_that_are_replaced_interrupt_no_watch(kube: Kube, clock: SystemClock, world: World):
    await world.deployment("llama")
    await world.pod("llama", "a")
    seen = Names()
    watch = Watch(kube, PODS, seen, clock, world.namespace)
    async with running(watch):
        await sees(watch, seen, "a")
        await kube.reconnect()
        await world.pod("llama", "b")
        await sees(watch, seen, "a", "b")


@pytest.mark.integration
async def test_a_version_that_the_real_server_has_forgotten_lists_again(kube: Kube, clock: SystemClock, world: World):
    await world.deployment("llama")
    await world.pod("llama", "a")
    seen = Names()
    watch = Watch(kube, PODS, seen, clock, world.namespace, QUICK)
    watch._version = "1"  # as after a long sleep of this machine
    async with running(watch):

        async def there() -> bool:
            return list(seen.there) == ["a"] and watch.live

        await eventually(there, "the pod is seen")
    assert watch.synced


def with_environment(name: str, value: str) -> dict[str, Any]:
    container = {"name": "c", "image": "c", "env": [{"name": "LARGE", "value": value}]}
    return {"metadata": {"name": name}, "spec": {"containers": [container]}}


@pytest.mark.integration
async def test_objects_so_large_that_a_whole_page_of_them_is_too_much_are_read_in_smaller_ones(
    kube: Kube, clock: SystemClock, world: World
):
    """Whoever may make pods must not be able to blind the daemon with a few dozen large ones."""
    large = "x" * 1_000_000
    names = [f"large-{index}" for index in range(BODY_LIMIT_BYTES // len(large) + 2)]
    pods = f"/api/v1/namespaces/{world.namespace}/pods"
    for name in names:
        await world.api.request("POST", pods, with_environment(name, large))
    seen = Names()
    watch = Watch(kube, PODS, seen, clock, world.namespace, QUICK)
    async with running(watch):

        async def listed() -> bool:
            return watch.synced

        await eventually(listed, "all are listed", 20)
    assert sorted(seen.there) == sorted(names)
    for name in names:
        await world.delete("Pod", name, "v1")


@pytest.mark.integration
async def test_the_largest_object_that_an_api_server_takes_can_be_listed_and_watched(
    kube: Kube, clock: SystemClock, world: World
):
    """etcd takes 1.5 MiB, and what stands there as one byte may be six in JSON."""
    pods = f"/api/v1/namespaces/{world.namespace}/pods"
    largest = "<" * 1_500_000
    await world.api.request("POST", pods, with_environment("first", largest))
    seen = Names()
    watch = Watch(kube, PODS, seen, clock, world.namespace)
    async with running(watch):
        await sees(watch, seen, "first")
        await world.api.request("POST", pods, with_environment("second", largest))
        await sees(watch, seen, "first", "second")
    for name in ("first", "second"):
        await world.delete("Pod", name, "v1")


@pytest.mark.integration
async def test_an_object_with_managed_fields_nested_without_end_can_be_listed_and_watched(
    kube: Kube, clock: SystemClock, world: World
):
    """Whoever may make pods writes them, and the API server keeps thousands of levels."""
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

    seen = Names()
    watch = Watch(kube, PODS, seen, clock, world.namespace)

    await make("first")
    async with running(watch):
        await sees(watch, seen, "first")
        await make("second")
        await sees(watch, seen, "first", "second")
