"""All watches of one cluster, and since when the view that they give is known to be true."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Any

from autoscaler.adapters.kubernetes.api.client import ApiError, Kube
from autoscaler.adapters.kubernetes.api.reflector import Reflector, Resource, Store, WatchTimes
from autoscaler.ports import Clock, Unavailable

HEARTBEAT_S = 5.0
HEARTBEAT_PATH = "/version"  # every authenticated client may read it, so no role needs to name it
NOT_ALIVE = (401, 429)


class ClusterWatch:
    """Keeps stores in step with the cluster: `run` it in a task.

    A silent watch may mean a quiet cluster or a dead server, so a request is sent every few seconds.
    """

    def __init__(
        self,
        kube: Kube,
        clock: Clock,
        stores: Sequence[tuple[Resource[Any], Store[Any]]],
        namespaces: Sequence[str] = (),
        times: WatchTimes | None = None,
        heartbeat_s: float = HEARTBEAT_S,
        on_sync: Callable[[], None] | None = None,
    ) -> None:
        """namespaces: (): all of them. on_sync: called when the whole cluster is known for the first time."""
        self.true_s = math.nan  # when the view was last known to be true
        self._kube = kube
        self._clock = clock
        self._heartbeat_s = heartbeat_s
        self._on_sync = on_sync
        self._namespaces = tuple(dict.fromkeys(namespaces)) or ("",)
        self._reflectors = [
            Reflector(kube, resource, store, clock, namespace, times, self._on_reflector_sync)
            for resource, store in stores
            for namespace in (self._namespaces if resource.namespaced else ("",))
        ]

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for reflector in self._reflectors:
                name = f"watch {reflector.resource.plural} {reflector.namespace}".strip()
                tasks.create_task(reflector.run(), name=name)
            tasks.create_task(self._send_heartbeats(), name="heartbeat")

    def require_sync(self) -> None:
        """Raise Unavailable, naming the missing kind, until everything was listed once."""
        if not math.isnan(self.true_s):
            return
        missing = next(reflector for reflector in self._reflectors if not reflector.synced)
        where = f" in {missing.namespace}" if missing.namespace else ""
        reason = missing.problem or "its first list is not complete yet"
        raise Unavailable(f"the cluster is not known yet: {missing.resource.plural}{where}: {reason}")

    def problems(self) -> list[str]:
        """Return why watches do not work now, one line each."""
        return [reflector.problem for reflector in self._reflectors if reflector.problem]

    @property
    def namespaces(self) -> list[str]:
        """The namespaces that are watched; empty: all of them."""
        return sorted(set(self._namespaces) - {""})

    async def _send_heartbeats(self) -> None:
        missed = False
        while True:
            sent_s = self._clock.now_s()
            alive = await self._is_alive()
            if alive and missed:  # connections from before the outage may be half-open
                for reflector in self._reflectors:
                    reflector.reconnect()
            missed = not alive
            if alive and all(reflector.synced and reflector.live for reflector in self._reflectors):
                self.true_s = sent_s
            await self._clock.sleep(self._heartbeat_s)

    async def _is_alive(self) -> bool:
        try:
            await self._kube.request("GET", HEARTBEAT_PATH)
        except ApiError as error:
            return 0 < error.status < 500 and error.status not in NOT_ALIVE
        return True

    def _on_reflector_sync(self) -> None:
        if all(reflector.synced for reflector in self._reflectors):
            self.true_s = self._clock.now_s()
            if self._on_sync is not None:
                self._on_sync()
