"""List and watch one kind of object: pages, bookmarks, expiry, refusals and broken connections.

The client library's watch reconnects without a pause, resumes at an expired version, and waits for ever on a half-open
connection. This one, named after client-go's Reflector, does not.
Source: Kubernetes API concepts, "Efficient detection of changes".
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import aiohttp
import msgspec
import structlog

from autoscaler.adapters.kubernetes.api.client import (
    BODY_LIMIT_BYTES,
    JSON,
    ApiError,
    Interrupted,
    Kube,
    TooLarge,
    object_path,
)
from autoscaler.adapters.kubernetes.api.decode import decode
from autoscaler.adapters.kubernetes.api.objects import Event, Object, Page, StatusObject
from autoscaler.config.findings import UNREADABLE
from autoscaler.outage import Outage
from autoscaler.ports import Clock

log = structlog.get_logger(__name__)

PAGE_OBJECTS = 500  # fewer if a page would be too large
LIST_TIMEOUT_S = 60.0  # for one page: the API server's own limit (--request-timeout)
RETRY_AFTER_LIMIT_S = 60.0
QUICK_END_S = 1.0  # a stream that ends sooner counts as a failure, so that reconnecting slows down
ACCEPT_METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
ACCEPT_METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
FORBIDDEN = 403
ABSENT = (FORBIDDEN, 404)
GONE = 410
_PAGE, _EVENT, _OBJECT = msgspec.json.Decoder(Page), msgspec.json.Decoder(Event), msgspec.json.Decoder(Object)

Kind = TypeVar("Kind", bound=Object)
Kind_contra = TypeVar("Kind_contra", bound=Object, contravariant=True)


@dataclass(frozen=True)
class WatchTimes:
    """Time limits of a watch, in seconds."""

    lifetime_s: float = 300.0  # requested from the server, plus up to a fifth, so that watches do not end together
    silence_s: float = 90.0  # after this time without a byte a new stream is opened; bookmarks come about every 60 s
    backoff_s: float = 0.8  # first pause after a failure, before jitter; doubles
    backoff_cap_s: float = 30.0
    absent_s: float = 60.0  # pause before an optional kind that is missing or forbidden is listed again
    heartbeat_s: float = 5.0  # between requests that show whether the server answers


@dataclass(frozen=True)
class Resource(Generic[Kind]):
    """A kind of object and its API path."""

    root: str  # "/apis/apps/v1"
    plural: str
    type: type[Kind]
    namespaced: bool = True
    optional: bool = False  # 403 and 404 are no errors: the kind is listed again later
    metadata_only: bool = False  # the server sends nothing else
    auxiliary: bool = False  # a failing watch of it neither delays the others nor makes the view old
    only: tuple[str, str] | None = None  # namespace and name of the only object that is watched
    selector: str = ""  # field selector of the objects that are watched; "": all


class ObjectStore(Protocol[Kind_contra]):
    """Holds the last known state of each object. Called from the event loop, so it must not wait."""

    def put(self, seen: Kind_contra, /) -> None: ...

    def remove(self, namespace: str, name: str, /) -> None: ...


class Stores(Generic[Kind]):
    """Gives each object to several stores, in this order."""

    def __init__(self, *stores: ObjectStore[Kind]) -> None:
        self._stores = stores

    def put(self, seen: Kind, /) -> None:
        for store in self._stores:
            store.put(seen)

    def remove(self, namespace: str, name: str, /) -> None:
        for store in self._stores:
            store.remove(namespace, name)


class _Expired(Exception):
    """The version to resume from has expired; the objects must be listed again."""


class Reflector(Generic[Kind]):
    """Keeps a store in step with the API server: `run` it in a task.

    When the first list is complete, `synced` becomes true and `on_sync` is called.
    """

    def __init__(
        self,
        kube: Kube,
        resource: Resource[Kind],
        store: ObjectStore[Kind],
        clock: Clock,
        namespace: str = "",
        times: WatchTimes | None = None,
        on_sync: Callable[[], None] | None = None,
    ) -> None:
        self.resource = resource
        self.namespace = namespace if resource.namespaced else ""
        self.synced = False
        self.live = False  # the last stream opened, and no attempt has failed since
        self.absent = False  # the kind is optional, and missing or forbidden
        self.absent_reason = ""  # in the words of the API server
        self.refused = False  # the kind is required, and has been forbidden for a while
        self.went_back, self.went_back_s = "", 0.0  # what is told of versions that went back, and since when
        self.unreadable = 0  # objects that could not be decoded, since the start
        self._kube = kube
        self._store = store
        self._clock = clock
        self._times = times or WatchTimes()
        self._on_sync = on_sync
        self._path = object_path(resource.root, self.namespace, resource.plural)
        self._outage = Outage(log, "watch is failing", "watch has recovered", path=self._path)
        selector = f"metadata.name={resource.only[1]}" if resource.only else resource.selector
        self._selector = [("fieldSelector", selector)] if selector else []
        self._decoder = msgspec.json.Decoder(resource.type)
        self._known: dict[tuple[str, str], tuple[str, str]] = {}  # (namespace, name) to (uid, resourceVersion)
        self._version = ""  # resume from here; "": list first
        self._failures = 0
        self._refused_s: float | None = None  # when an optional kind was first refused
        self._retry_after_s = 0.0  # the moment until which the server asked to wait
        self._attempt_timeout: asyncio.Timeout | None = None  # ends the current attempt; None: no attempt

    @property
    def problem(self) -> str:
        """Why it is not live; "": it is."""
        return self._outage.problem

    async def run(self) -> None:
        """List and watch until cancelled."""
        while True:
            try:
                async with asyncio.timeout(None) as self._attempt_timeout:
                    await self._attempt()
            except TimeoutError:
                pass  # by `reconnect`
            finally:
                self._attempt_timeout = None

    async def _attempt(self) -> None:
        """List if necessary, and watch one stream until it ends."""
        await self._clock.sleep(max(self._retry_after_s - self._clock.now_s(), 0.0))
        try:
            if self._version:
                await self._check_version()
            if not self._version:
                await self._list()
            await self._watch()
        except _Expired:
            self._version = ""
            await self._clock.sleep(self._backoff_s())
        except ApiError as error:
            await self._handle_failure(error)

    def reconnect(self) -> None:
        """Open a new stream at once, from the last version: the server was unreachable and is back.

        The old stream may be half-open, a request may never be answered, and a pause is no longer needed.
        """
        self.live = False
        self._failures = 0
        if self._attempt_timeout is not None and not self._attempt_timeout.expired():
            self._attempt_timeout.reschedule(asyncio.get_running_loop().time())

    async def _check_version(self) -> None:
        """Forget the last version if the API server's is lower, as after a restore of etcd.

        A watch from a version to come is silent, and looks like one without changes.
        """
        known = _number(self._version)
        query = [("limit", "1"), *self._selector]
        body = await self._kube.request("GET", self._path, query=query, accept=ACCEPT_METADATA_LIST)
        try:
            now = _number(decode(_PAGE, body).metadata.resource_version)
        except UNREADABLE as error:
            raise ApiError(f"list {self._path}", 0, f"not a list: {error}") from error
        if 0 < now < known:
            log.error("versions went back, so objects are listed again", path=self._path, before=known, now=now)
            self.went_back = f"the API server's versions went back from {known} to {now}, as after a restore of etcd"
            self.went_back_s = self._clock.now_s()
            self.live = False
            self._version = ""
            self._known = {key: (uid, "") for key, (uid, _) in self._known.items()}  # they may mean other content now

    async def _list(self) -> None:
        """Read all pages; afterwards the store holds exactly the listed objects."""
        seen: set[tuple[str, str]] = set()
        limit, token = PAGE_OBJECTS, ""
        while True:
            query = [("limit", str(limit)), *self._selector]
            try:
                body = await self._kube.request(
                    "GET",
                    self._path,
                    query=[*query, ("continue", token)] if token else query,
                    accept=ACCEPT_METADATA_LIST if self.resource.metadata_only else JSON,
                    timeout_s=LIST_TIMEOUT_S,
                )
                page = decode(_PAGE, body)
            except TooLarge:
                if limit == 1:
                    raise
                limit = max(limit // 4, 1)
                continue
            except UNREADABLE as error:
                raise ApiError(f"list {self._path}", 0, f"not a list: {error}") from error
            except ApiError as error:
                if error.status == GONE:  # the pages took too long, and the version has expired
                    raise _Expired from error
                raise
            for raw in page.items or ():
                key = self._put(raw)
                if key is not None:
                    seen.add(key)
            token = page.metadata.continue_ or ""
            if not token:
                break
            limit = min(2 * limit, PAGE_OBJECTS)  # large objects may all be on one page
            await asyncio.sleep(0)  # let the tick run between pages
        for key in [key for key in self._known if key not in seen]:
            self._remove(key)
        self._version = page.metadata.resource_version
        self._sync()

    async def _watch(self) -> None:
        """Handle the events of one stream until it ends.

        A silent or broken stream is no failure by itself: a kind without events is silent, and an API server whose etcd
        reports no progress sends no bookmarks either. The next stream resumes at the same version. If it opens, nothing
        was missed; if it does not, that is the failure.
        """
        lifetime_s = self._times.lifetime_s * random.uniform(1.0, 1.2)
        query = [
            *self._selector,
            ("watch", "1"),
            ("allowWatchBookmarks", "true"),
            ("resourceVersion", self._version),
            ("timeoutSeconds", str(max(1, int(lifetime_s)))),
        ]
        accept = ACCEPT_METADATA if self.resource.metadata_only else JSON
        began_s = self._clock.now_s()
        has_events = False
        quick_end = ApiError(f"watch {self._path}", 0, "the stream ended at once")
        try:
            async with self._kube.stream(
                self._path, query=query, accept=accept, silence_s=self._times.silence_s
            ) as response:
                self._recover()
                async for line in _lines(response):
                    has_events = True
                    self._failures = 0
                    self._handle_event(line)
        except Interrupted as error:
            quick_end = error
        except ApiError as error:
            if error.status == GONE:
                raise _Expired from error
            raise
        if not has_events and self._clock.now_s() - began_s < min(QUICK_END_S, self._times.silence_s):
            raise quick_end
        self._failures = 0
        await self._clock.sleep(random.uniform(0.0, 0.5))

    def _handle_event(self, line: bytes) -> None:
        try:
            event = decode(_EVENT, line)
            if event.type == "ERROR":
                status = msgspec.json.decode(event.object, type=StatusObject)
                if status.code == GONE or status.reason in ("Expired", "Gone"):
                    raise _Expired
                raise ApiError(f"watch {self._path}", status.code, status.message[:300])
            metadata = decode(_OBJECT, event.object).metadata
        except UNREADABLE as error:
            raise ApiError(f"watch {self._path}", 0, f"not a watch event: {error}") from error
        if event.type == "DELETED":
            self._remove((metadata.namespace, metadata.name))
        elif event.type != "BOOKMARK":
            self._put(event.object)
        if metadata.resource_version:
            self._version = metadata.resource_version

    def _put(self, raw: msgspec.Raw) -> tuple[str, str] | None:
        """Store one object unless it is unchanged; return its key. An unreadable object keeps its last state."""
        try:
            seen = decode(self._decoder, raw)
        except UNREADABLE as error:
            self.unreadable += 1
            try:
                metadata = decode(_OBJECT, raw).metadata
            except UNREADABLE:
                return None
            log.warning(
                "object cannot be read",
                resource=self.resource.plural,
                object=f"{metadata.namespace}/{metadata.name}",
                error=str(error),
            )
            return metadata.namespace, metadata.name
        metadata = seen.metadata
        key = metadata.namespace, metadata.name
        before = self._known.get(key)
        now = metadata.uid, metadata.resource_version
        if before == now:
            return key
        if before is not None and before[0] != metadata.uid:  # deleted and created again in between
            self._remove(key)
        self._known[key] = now
        try:
            self._store.put(seen)
        except Exception:  # an error in one object must not stop the watch of all others
            self.unreadable += 1
            log.exception("object cannot be used", resource=self.resource.plural, object="/".join(key))
        return key

    def _remove(self, key: tuple[str, str]) -> None:
        if self._known.pop(key, None) is None:
            return
        try:
            self._store.remove(*key)
        except Exception:  # as in `_put`
            self.unreadable += 1
            log.exception("object cannot be removed", resource=self.resource.plural, object="/".join(key))

    def _sync(self) -> None:
        first, self.synced = not self.synced, True
        if first and self._on_sync is not None:
            self._on_sync()

    def _recover(self) -> None:
        self.live = True
        self.refused = False
        self.absent, self.absent_reason = False, ""
        self._refused_s = None
        self._outage.end()

    async def _handle_failure(self, error: ApiError) -> None:
        """Wait before the next attempt. The store keeps its objects, unless the kind no longer exists."""
        is_lasting = error.status in ABSENT and self._is_lasting_refusal()
        if self.resource.optional and is_lasting:
            for key in list(self._known):
                self._remove(key)
            self._version = ""
            if not self.absent:
                log.info("optional resource is not available", path=self._path, error=str(error))
            self.absent = self.live = True
            self.absent_reason = str(error)
            self._sync()
            self._outage.problem = ""
            await self._clock.sleep(self._times.absent_s * random.uniform(1.0, 1.2))
            return
        if error.status not in ABSENT:
            self._refused_s = None  # the API server may have restarted in between
        self.live = False
        self.refused = self.refused or (is_lasting and error.status == FORBIDDEN)
        self._outage.fail(str(error))
        server_s = min(error.retry_after_s or 0.0, RETRY_AFTER_LIMIT_S)
        self._retry_after_s = self._clock.now_s() + server_s
        await self._clock.sleep(server_s + self._backoff_s())

    def _is_lasting_refusal(self) -> bool:
        """Return whether a refused kind is really gone or forbidden. One with objects must be refused for a while.

        An API server that has just started refuses roles and custom resources that it has not loaded yet. If HPAs were
        forgotten for a minute, the daemon would change counts that belong to them.
        """
        now_s = self._clock.now_s()
        self._refused_s = now_s if self._refused_s is None else self._refused_s
        return not self._known or now_s - self._refused_s >= self._times.absent_s / 2

    def _backoff_s(self) -> float:
        """Return a random pause up to a bound that doubles with each failure in a row (full jitter)."""
        bound_s = min(self._times.backoff_cap_s, self._times.backoff_s * 2.0 ** min(self._failures, 16))
        self._failures += 1
        return random.uniform(0.0, bound_s)


def _number(version: str) -> int:
    """Return a resource version as a number, as those of Kubernetes are; 0: it is none."""
    return int(version) if version.isdecimal() and version.isascii() and len(version) <= 19 else 0


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Split a stream at newlines. A line without end is an error; an unfinished last line is dropped."""
    rest = bytearray()
    async for part in response.content.iter_any():
        begin = 0
        while (end := part.find(b"\n", begin)) >= 0:
            rest += part[begin:end]
            if rest.strip():
                yield bytes(rest)
            rest.clear()
            begin = end + 1
        rest += part[begin:]
        if len(rest) > BODY_LIMIT_BYTES:
            raise ApiError(f"watch {response.url.path}", 0, f"an event is larger than {BODY_LIMIT_BYTES} bytes")
