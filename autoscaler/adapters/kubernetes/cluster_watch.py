"""All watches of one cluster, and since when the view that they give is known to be true."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import structlog

from autoscaler.adapters.kubernetes.api.client import ApiError, Kube
from autoscaler.adapters.kubernetes.api.discovery import ServedKind, discover
from autoscaler.adapters.kubernetes.api.reflector import ObjectStore, Reflector, Resource, WatchTimes
from autoscaler.ports import Clock, Unavailable

log = structlog.get_logger(__name__)

TOLD_S = 3600.0  # versions that went back are reported for this long
HEARTBEAT_PATH = "/version"  # every authenticated client may read it, so no role needs to name it
NOT_ALIVE = (401, 429)
FORBIDDEN = 403


class KindStore(ObjectStore[Any], Protocol):
    """Receives the objects of a kind that may come and go."""

    def clear(self) -> None: ...


OpenKind = Callable[[ServedKind], tuple[Resource[Any], KindStore]]


class Watched(NamedTuple):
    """The kinds to watch, and the stores that they fill."""

    stores: Sequence[tuple[Resource[Any], ObjectStore[Any]]]
    kinds: Mapping[str, str] = MappingProxyType({})
    """Custom kinds with the version to use where it is served ("rollouts.argoproj.io": "v1alpha1")."""
    open_kind: OpenKind | None = None  # called when one of them is served, or served in another way than before
    cluster_scoped: Collection[str] = ()  # those of them whose objects are in no namespace


class _Running(NamedTuple):
    """The watches of a kind that was found by discovery."""

    served: ServedKind
    store: KindStore
    reflectors: list[Reflector[Any]]
    tasks: list[asyncio.Task[None]]


class ClusterWatch:
    """Keeps stores in step with the cluster: `run` it in a task.

    A silent watch may mean a quiet cluster or a dead server, so a request is sent every few seconds. Custom kinds are
    looked up in the API server's discovery, and watched as long as they are served. A custom kind whose watch fails
    does not make the view of all others old, but it is reported. Of several namespaces, one that forbids a required
    kind is left out: its workloads are not managed.
    """

    def __init__(
        self,
        kube: Kube,
        clock: Clock,
        watched: Watched,
        namespaces: Sequence[str] = (),
        times: WatchTimes | None = None,
        on_sync: Callable[[], None] | None = None,
    ) -> None:
        """namespaces: (): all of them. on_sync: called when the whole cluster is known for the first time."""
        self.true_s = math.nan  # when the view was last known to be true
        self._kube = kube
        self._clock = clock
        self._on_sync = on_sync
        self._times = times or WatchTimes()
        self._namespaces = tuple(dict.fromkeys(namespaces)) or ("",)
        self._reflectors = [
            Reflector(kube, resource, store, clock, namespace, times, self._note_sync)
            for resource, store in watched.stores
            for namespace in self._namespaces_of(resource)
        ]
        self._kinds, self._open_kind = dict(watched.kinds), watched.open_kind
        self._cluster_scoped = watched.cluster_scoped
        self._running: dict[str, _Running] = {}  # by resource
        self._missed: set[str] = set()  # resources that were not served when last looked up
        self._discovered = not self._kinds or self._open_kind is None
        self._discovery_problem = ""

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for reflector in self._reflectors:
                tasks.create_task(reflector.run(), name=_name(reflector))
            tasks.create_task(self._send_heartbeats(), name="heartbeat")
            if self._kinds and self._open_kind is not None:
                tasks.create_task(self._discover(tasks, self._open_kind), name="discovery")

    def require_sync(self) -> None:
        """Raise Unavailable, naming the missing kind, until everything was listed once."""
        if not math.isnan(self.true_s):
            return
        unlisted = [each for each in self._reflectors if not self._is_settled(each)]
        missing = next(iter(unlisted or [each for each in self._found() if not _is_tried(each)]), None)
        if missing is None:
            reason = self._discovery_problem or "the kinds that it serves are not known yet"
            raise Unavailable(f"the cluster is not known yet: {reason}")
        where = f" in {missing.namespace}" if missing.namespace else ""
        reason = missing.problem or "its first list is not complete yet"
        raise Unavailable(f"the cluster is not known yet: {missing.resource.plural}{where}: {reason}")

    def problems(self) -> list[str]:
        """Return why watches do not work now, one line each."""
        refused = self.refused()
        found = [f"workloads of namespace {name} are not managed: {why}" for name, why in sorted(refused.items())]
        watches = [each for each in (*self._reflectors, *self._found()) if each.namespace not in refused]
        found += [each.problem for each in watches if each.problem]
        now_s = self._clock.now_s()
        found += [each.went_back for each in watches if each.went_back and now_s - each.went_back_s < TOLD_S][:1]
        return [*found, self._discovery_problem] if self._discovery_problem else found

    def refused(self) -> dict[str, str]:
        """Return why a required kind may not be read, by namespace; {} if no namespace is left."""
        found = {each.namespace: each.problem for each in self._reflectors if each.refused and each.namespace}
        return found if found.keys() < set(self._namespaces) else {}

    def unlisted(self) -> dict[str, str]:
        """Return why objects of custom kinds that are served cannot be listed, by resource."""
        return {
            resource: reflector.absent_reason
            for resource, running in self._running.items()
            for reflector in running.reflectors
            if reflector.absent
        }

    def refusals(self, plural: str) -> list[str]:
        """Return why objects of an optional kind of every cluster cannot be listed."""
        return [each.absent_reason for each in self._reflectors if each.resource.plural == plural and each.absent]

    @property
    def namespaces(self) -> list[str]:
        """The namespaces that are watched; empty: all of them."""
        return sorted(set(self._namespaces) - {""})

    def _found(self) -> list[Reflector[Any]]:
        """Return the watches of custom kinds."""
        return [reflector for running in self._running.values() for reflector in running.reflectors]

    async def _discover(self, tasks: asyncio.TaskGroup, open_kind: OpenKind) -> None:
        failures = 0
        while True:
            try:
                found = await discover(self._kube, self._kinds, self._cluster_scoped)
            except ApiError as error:
                if not self._discovery_problem:
                    log.warning("kinds cannot be looked up", error=str(error))
                self._discovery_problem = str(error)
                if error.status == FORBIDDEN:  # without discovery there are only the kinds of every cluster
                    self._discovered = True
                    self._note_sync()
                pause_s = min(self._times.backoff_s * 2.0**failures, self._times.backoff_cap_s)
                failures = min(failures + 1, 16)
            else:
                failures, self._discovery_problem = 0, ""
                for resource, served in found.items():
                    self._follow(tasks, open_kind, resource, served)
                pause_s = self._times.absent_s
                self._discovered = True
                self._note_sync()
            await self._clock.sleep(pause_s * random.uniform(1.0, 1.2))

    def _follow(self, tasks: asyncio.TaskGroup, open_kind: OpenKind, resource: str, served: ServedKind | None) -> None:
        """Start or end the watches of a kind, as it is served now.

        A server that has just started does not serve all kinds yet. So a kind is forgotten only if it is missing twice.
        """
        running = self._running.get(resource)
        if served is None:
            if running is not None and resource in self._missed:
                log.info("kind is not served any more", resource=resource)
                self._stop(resource)
            self._missed.add(resource)
            return
        self._missed.discard(resource)
        if running is not None and running.served == served:
            return
        if running is not None:
            self._stop(resource)
        opened, store = open_kind(served)
        reflectors = [
            Reflector(self._kube, opened, store, self._clock, namespace, self._times, self._note_sync)
            for namespace in self._namespaces_of(opened)
        ]
        started = [tasks.create_task(reflector.run(), name=_name(reflector)) for reflector in reflectors]
        self._running[resource] = _Running(served, store, reflectors, started)

    def _stop(self, resource: str) -> None:
        running = self._running.pop(resource)
        for task in running.tasks:
            task.cancel()
        running.store.clear()

    def _namespaces_of(self, resource: Resource[Any]) -> Sequence[str]:
        if resource.only is not None:
            return resource.only[:1]
        return self._namespaces if resource.namespaced else ("",)

    async def _send_heartbeats(self) -> None:
        missed = False
        while True:
            sent_s = self._clock.now_s()
            alive = await self._is_alive()
            if alive and missed:  # connections from before the outage may be half-open
                for reflector in (*self._reflectors, *self._found()):
                    reflector.reconnect()
            missed = not alive
            if alive and self._is_known() and self._is_live():
                was_known, self.true_s = not math.isnan(self.true_s), sent_s
                if not was_known and self._on_sync is not None:
                    self._on_sync()
            await self._clock.sleep(self._times.heartbeat_s)

    async def _is_alive(self) -> bool:
        try:
            await self._kube.request("GET", HEARTBEAT_PATH)
        except ApiError as error:
            return 0 < error.status < 500 and error.status not in NOT_ALIVE
        return True

    def _is_live(self) -> bool:
        """Return whether all required watches work, but those of namespaces that are left out."""
        refused = self.refused()
        return all(each.live or each.resource.auxiliary or each.namespace in refused for each in self._reflectors)

    def _is_settled(self, reflector: Reflector[Any]) -> bool:
        """Return whether a kind was listed, or the others do not wait for it."""
        if reflector.resource.auxiliary:
            return _is_tried(reflector)
        return reflector.synced or reflector.namespace in self.refused()

    def _is_known(self) -> bool:
        """Return whether everything was listed. A custom kind whose first list fails does not delay the others."""
        if not math.isnan(self.true_s):
            return True
        is_listed = all(map(self._is_settled, self._reflectors))
        return is_listed and self._discovered and all(map(_is_tried, self._found()))

    def _note_sync(self) -> None:
        if math.isnan(self.true_s) and self._is_known():
            self.true_s = self._clock.now_s()
            if self._on_sync is not None:
                self._on_sync()


def _name(reflector: Reflector[Any]) -> str:
    return f"watch {reflector.resource.plural} {reflector.namespace}".strip()


def _is_tried(reflector: Reflector[Any]) -> bool:
    """Return whether a kind was listed, or cannot be."""
    return reflector.synced or bool(reflector.problem)
