"""Tells ReplicaSets which pods to remove first, by the annotation `controller.kubernetes.io/pod-deletion-cost`.

The pods that should leave get negative costs just before a shrink, and others lose a negative cost of an earlier one. A
positive cost is never changed: it protects its pod. Only pods of ReplicaSets are annotated, because all other
controllers ignore the cost. Scaling does not depend on it: a failure is logged and counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

import structlog

from autoscaler.adapters.kubernetes.api.client import ApiError, Kube, object_path
from autoscaler.adapters.kubernetes.pods.status import DELETION_COST, Key
from autoscaler.core.model.fleet import WorkloadRef
from autoscaler.ports import Actuator, Change, Clock, Leadership, Outcome

log = structlog.get_logger(__name__)

MAX_PATCHES = 50
"""Most pods that are patched for one change. The first victims come first."""

CONCURRENCY = 16
DEADLINE_S = 1.0  # for all patches of one change
PAUSE_S = 30.0  # without patches after one failed, so that a slow API server delays few changes
FORBIDDEN_PAUSE_S = 600.0  # likewise for a namespace whose pods may not be patched
REPEAT_S = 15.0  # the HPA acts at any later moment; the usual period of its sync
UNSEEN_S = 30.0  # until the watch shows an own patch
MAX_REMEMBERED = 10_000  # own patches
MERGE_PATCH = "application/merge-patch+json"
FORBIDDEN, NOT_FOUND = 403, 404
WRITTEN, FAILED, DENIED = "written", "failed", "forbidden"  # outcomes that are counted

Costs = Callable[[Key], float | None]
"""Returns the present cost of a pod; None: it belongs to no ReplicaSet, or is gone."""


class _Written(NamedTuple):
    """A cost that was written lately."""

    cost: int
    at_s: float


def costs_to_write(victims: Sequence[Key], leaving: int, costs: Costs) -> dict[Key, int]:
    """Return the costs that differ from the present ones, by pod; 0: without the annotation.

    victims: serving pods in the order in which they should leave. leaving: how many of them do.
    """
    found: dict[Key, int] = {}
    for place, key in enumerate(victims):
        present = costs(key)
        wanted = min(place - leaving, 0)
        if present is not None and present <= 0 and present != wanted:
            found[key] = wanted
    return found


class DeletionCosts:
    """Writes deletion costs. `leadership` is checked before each patch."""

    def __init__(
        self,
        kube: Kube,
        clock: Clock,
        costs: Costs,
        leadership: Leadership | None = None,
        manager: str = "",
        count: Callable[[str], None] = lambda outcome: None,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        """manager: field manager of the patches. count: called with the outcome of each patch.

        deadline_s: for all patches of one change.
        """
        self._kube = kube
        self._clock = clock
        self._costs = costs
        self._leadership = leadership
        self._manager = manager
        self._count = count
        self._deadline_s = deadline_s
        self._slots = asyncio.Semaphore(CONCURRENCY)
        self._written: dict[Key, _Written] = {}
        self._paused_until_s = -1.0
        self._denied_until_s: dict[str, float] = {}  # by namespace
        self._denied = False  # a missing permission was logged

    async def write(self, change: Change) -> None:
        """Write the costs for a shrink within the deadline. Never raises for a patch that failed."""
        namespace, now_s = change.ref.namespace, self._clock.now_s()
        if not change.victims or now_s < max(self._paused_until_s, self._denied_until_s.get(namespace, -1.0)):
            return
        keys = [(pod.namespace, pod.name) for pod in change.victims]
        due = costs_to_write(keys, change.before - change.after, self._present)
        try:
            async with asyncio.timeout(self._deadline_s), asyncio.TaskGroup() as tasks:
                for key, cost in list(due.items())[:MAX_PATCHES]:
                    tasks.create_task(self._patch(key, cost))
        except TimeoutError:
            count = min(len(due), MAX_PATCHES)
            self._fail(f"not done within {self._deadline_s:g} s, {count} pods of {change.ref} were due")

    def _present(self, key: Key) -> float | None:
        """Return the cost of a pod, which the watch may not show yet."""
        seen, written = self._costs(key), self._written.get(key)
        if written is None or seen is None:
            return seen
        if written.cost == seen or self._clock.now_s() - written.at_s > UNSEEN_S:
            del self._written[key]
            return seen
        return written.cost

    async def _patch(self, key: Key, cost: int) -> None:
        namespace, name = key
        async with self._slots:
            now_s = self._clock.now_s()
            if now_s < max(self._paused_until_s, self._denied_until_s.get(namespace, -1.0)):
                return
            if self._leadership is not None and not self._leadership.leading:
                return
            body = {"metadata": {"annotations": {DELETION_COST: str(cost) if cost else None}}}
            try:
                await self._kube.request(
                    "PATCH",
                    object_path("/api/v1", namespace, "pods", name),
                    body,
                    query=[("fieldManager", self._manager)] if self._manager else [],
                    content_type=MERGE_PATCH,
                    timeout_s=self._deadline_s,
                )
            except ApiError as error:
                if error.status == FORBIDDEN:
                    self._deny(namespace, error)
                elif error.status != NOT_FOUND:
                    self._fail(str(error))
                return
        self._count(WRITTEN)
        if len(self._written) > MAX_REMEMBERED:
            self._written.clear()
        self._written[key] = _Written(cost, now_s)

    def _deny(self, namespace: str, error: ApiError) -> None:
        self._count(DENIED)
        self._denied_until_s[namespace] = self._clock.now_s() + FORBIDDEN_PAUSE_S
        if not self._denied:
            log.warning(
                "pods may not be patched, so ReplicaSets choose which pods to remove; "
                "grant manifests/shrink/rbac.yaml, or run with --no-deletion-cost",
                namespace=namespace,
                error=error.message,
            )
        self._denied = True

    def _fail(self, error: str) -> None:
        self._count(FAILED)
        now_s = self._clock.now_s()
        if now_s >= self._paused_until_s:
            log.warning("deletion costs were not written; the ReplicaSet chooses which pods to remove", error=error)
        self._paused_until_s = now_s + PAUSE_S


class CostsBefore:
    """An actuator that writes deletion costs before another one hands out lower counts, which the HPA follows later."""

    def __init__(self, inner: Actuator, costs: DeletionCosts, clock: Clock) -> None:
        self._inner = inner
        self._deletion_costs = costs
        self._clock = clock
        self._last: dict[WorkloadRef, tuple[int, float]] = {}  # count for which costs were written, and when

    async def apply(self, changes: Sequence[Change], deadline_s: float) -> list[Outcome]:
        now_s = self._clock.now_s()
        shrinks = {change.ref: change for change in changes if change.victims}
        self._last = {ref: last for ref, last in self._last.items() if ref in shrinks}
        due = [change for change in shrinks.values() if self._is_due(change, now_s)]
        self._last |= {change.ref: (change.after, now_s) for change in due}
        await asyncio.gather(*(self._deletion_costs.write(change) for change in due))
        return await self._inner.apply(changes, deadline_s)

    def _is_due(self, change: Change, now_s: float) -> bool:
        """Return whether the count has fallen, or the last costs are old enough to be renewed."""
        count, at_s = self._last.get(change.ref, (change.before, now_s))
        return change.after < count or now_s - at_s >= REPEAT_S
