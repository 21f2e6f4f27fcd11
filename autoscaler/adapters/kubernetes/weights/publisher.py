"""Plans the wishes of nodes again and again, and publishes them in ConfigMaps that the agents watch.

Only the leader writes, only what differs, and at a bounded rate. Every process plans, so that followers show the plan
as well. Nothing here delays a tick.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import structlog

from autoscaler.adapters.kubernetes.api.client import ApiError, Kube, object_path
from autoscaler.adapters.kubernetes.api.objects import ConfigMap
from autoscaler.adapters.kubernetes.weights import kserve
from autoscaler.adapters.kubernetes.weights.kserve import Cache, LocalModels
from autoscaler.adapters.kubernetes.weights.planning import (
    SeenFleet,
    Wants,
    count_copies,
    models_of_kserve,
    nodes_to_warm,
    plan_wishes,
)
from autoscaler.adapters.kubernetes.weights.reports import ReportStore
from autoscaler.adapters.kubernetes.weights.view import PublishedPlan
from autoscaler.config.findings import UNREADABLE
from autoscaler.config.weights.allowed import DEFAULT_RULES, SourceRules
from autoscaler.config.weights.source import parse
from autoscaler.config.weights.wishes import CONFIG_MAP_PREFIX, CONFIG_MAPS, Wish, config_map_of, decode, encode
from autoscaler.core.model.fleet import WorkloadRef
from autoscaler.core.model.weights import NO_SOURCE, WishStatus
from autoscaler.core.table.columns import BoolColumn
from autoscaler.core.wishes.wants import Peaks, add_expected, needed_replicas, peak_of_copies
from autoscaler.outage import Outage
from autoscaler.ports import Clock, Leadership, TickRecord

log = structlog.get_logger(__name__)

STEP_S = 5.0  # between two looks at what is due
PLAN_S = 30.0  # between two plans
WRITE_S = 2.0  # between two writes: at most 1,800 an hour, whatever happens
SAME_S = 60.0  # between two writes of one ConfigMap
READ_S = 300.0  # between two readings by a follower
UNWANTED_S = 3600.0  # after which a cache of KServe that no workload wants any more is deleted
FAILED_S = 30.0  # without requests after one failed
READERS = 8  # requests at once
HOUR_S = 3600.0
MAX_DATA_BYTES = 900 << 10  # of one ConfigMap; the API server takes 1 MiB
APPLY = "application/apply-patch+yaml"
NOT_FOUND = 404
LABELS = {"app.kubernetes.io/name": "vllm-autoscaler", "app.kubernetes.io/component": "weights"}
NAMES = tuple(f"{CONFIG_MAP_PREFIX}{number:02d}" for number in range(CONFIG_MAPS))
_CONFIG_MAP = msgspec.json.Decoder(ConfigMap)


class WishPublisher:
    """A recorder that remembers the last tick, and a task that plans and publishes: `run` it.

    inventory: returns the fleet as of its last view; None: nothing is known yet. namespace: of the ConfigMaps.
    publishes: False in dry-run: the plan is only shown. local_models: of KServe, where they are read.
    may_pin: returns whether the workloads of a namespace may pin weights. rules: which sources are planned, for whom.
    """

    def __init__(
        self,
        kube: Kube,
        clock: Clock,
        inventory: Callable[[], SeenFleet | None],
        reports: ReportStore,
        leadership: Leadership,
        namespace: str,
        manager: str,
        publishes: bool = True,
        local_models: LocalModels | None = None,
        may_pin: Callable[[str], bool] = lambda namespace: True,
        rules: SourceRules = DEFAULT_RULES,
    ) -> None:
        self._kube = kube
        self._clock = clock
        self._inventory = inventory
        self._reports = reports
        self._leadership = leadership
        self._namespace = namespace
        self._manager = manager
        self._publishes = publishes
        self._local_models = local_models
        self._may_pin = may_pin
        self._rules = rules
        self.warmed: Mapping[WorkloadRef, Sequence[str]] = {}  # nodes to which weights are fetched for each workload
        self._caches: dict[str, Cache] = {}  # of KServe, that should exist
        self._unwanted_s: dict[str, float] = {}  # since when a cache of ours is not wanted
        self._tick: TickRecord | None = None
        self._peaks = Peaks.none()
        self._has_former_plan = False  # of a process before, whose peaks are not known
        self._wished: dict[str, int] = {}  # nodes by source, of the last plan
        self._missing: dict[str, float] = {}
        self._texts: dict[str, dict[str, str]] = {}  # by ConfigMap, then by node, as they are in the cluster
        self._wanted: dict[str, dict[str, str]] = {}  # likewise, as they should be
        self._wishes: dict[str, tuple[Wish, ...]] = {}  # by node, of the last plan or as published
        self._written_s: dict[str, float] = {}
        self._read_s = -READ_S
        self._read_as_leader = False
        self._planned_s = -PLAN_S
        self._writes = 0
        self._recent: deque[float] = deque()  # times of writes
        self._outage = Outage(log, "wishes of weights cannot be published", "wishes of weights are published again")

    def record(self, tick: TickRecord) -> None:
        """Remember what the workloads want."""
        self._tick = tick

    def failed(self, wall_s: float, error: BaseException) -> None:
        """Do nothing: the last tick stays."""

    @property
    def wishes(self) -> Mapping[str, tuple[Wish, ...]]:
        """The present plan by node, as far as it is known."""
        return self._wishes

    def published(self) -> PublishedPlan:
        """Return what is planned for each source, and how it is published."""
        while self._recent and self._recent[0] < self._clock.now_s() - HOUR_S:
            self._recent.popleft()
        status = WishStatus(self._publishes, len(self._recent), self._writes, self._outage.problem)
        return PublishedPlan(self._wished, self._missing, status)

    async def run(self) -> None:
        """Plan and publish until cancelled."""
        while True:
            pause_s = STEP_S
            try:
                await self.step()
            except ApiError as error:
                self._outage.fail(str(error))
                pause_s = FAILED_S
            await self._clock.sleep(pause_s)

    async def step(self) -> None:
        """Do what is due now. Raises ApiError."""
        leads = self._leadership.leading and self._publishes
        now_s = self._clock.now_s()
        if leads > self._read_as_leader or (not leads and now_s - self._read_s >= READ_S):
            await self._read()
            self._read_as_leader = leads
        self._read_as_leader &= leads
        seen, tick = self._inventory(), self._tick
        if seen is None or tick is None:
            return
        if now_s - self._planned_s >= PLAN_S:
            self._planned_s = now_s
            self._replan(seen, tick)
        if leads:
            await self._write_due()
            await self._write_caches()

    async def _read(self) -> None:
        """Read all ConfigMaps. Their wishes are the plan of before: another process may have written them."""
        slots = asyncio.Semaphore(READERS)

        async def read(name: str) -> dict[str, str]:
            async with slots:
                try:
                    body = await self._kube.request("GET", object_path("/api/v1", self._namespace, "configmaps", name))
                except ApiError as error:
                    if error.status == NOT_FOUND:
                        return {}
                    raise
            try:
                return dict(_CONFIG_MAP.decode(body).data or {})
            except UNREADABLE:
                return {}

        self._texts = dict(zip(NAMES, await asyncio.gather(*map(read, NAMES)), strict=True))
        self._wishes = {node: _decoded(text) for data in self._texts.values() for node, text in data.items()}
        if not len(self._peaks.workload_id):
            self._has_former_plan = True
        self._read_s, self._planned_s = self._clock.now_s(), -PLAN_S
        self._outage.end()

    def _replan(self, seen: SeenFleet, tick: TickRecord) -> None:
        fleet = tick.input.fleet
        place = np.searchsorted(fleet.workload_id, seen.workload_id)
        known = np.append(fleet.workload_id, -1)[place] == seen.workload_id
        rows = np.where(known, place, -1)
        needed = needed_replicas(tick.input, tick.decision)
        if self._has_former_plan:
            copies = count_copies(seen, self._wishes, np.append(needed, 0.0)[rows])
            self._peaks = self._peaks.update(seen.workload_id, peak_of_copies(copies), tick.wall_s)
            self._has_former_plan = False
        self._peaks = self._peaks.update(fleet.workload_id, needed, tick.wall_s)
        needed = add_expected(tick.input, tick.decision, needed)
        columns = np.vstack([needed, self._peaks.spare(needed), tick.input.spec.priority])
        columns = np.where(known, np.hstack([columns, np.zeros((3, 1))])[:, rows], 0.0)
        pinned = [each.pins_weights and self._may_pin(each.ref.namespace) for each in seen.workloads]
        served, to_all = self._served(seen)
        wants = Wants(columns[0], columns[1], columns[2], np.array(pinned, dtype=bool), served, to_all)
        plan = plan_wishes(seen, wants, self._reports, self._wishes)
        if self._local_models is not None:
            has_agent = frozenset(plan.of_node)
            self._caches = self._local_models.wanted(models_of_kserve(seen, wants), seen.nodes, has_agent)
        self._wishes = dict(plan.of_node) | {
            node: wishes
            for node, wishes in self._wishes.items()
            if node not in plan.of_node and node in seen.nodes  # its agent says nothing now
        }
        self._wished = dict(_by_source(self._wishes))
        self.warmed = nodes_to_warm(seen, self._wishes, served)
        self._wanted = self._documents()
        self._missing = {}
        for row, replicas in plan.missing.items():
            source = seen.workloads[row].weights
            self._missing[source] = self._missing.get(source, 0.0) + replicas

    def _served(self, seen: SeenFleet) -> tuple[BoolColumn, BoolColumn]:
        """Return which workloads may have their sources fetched, and which of these sources everybody may have."""
        sources = [parse(text) for text in seen.weights.sources]
        to_all = [self._rules.serves_everybody(source) for source in sources]
        rows = seen.weights.source.tolist()
        served = [
            row != NO_SOURCE and self._rules.serves(sources[row], each.ref.namespace)
            for row, each in zip(rows, seen.workloads, strict=True)
        ]
        return np.array(served, dtype=bool), np.array([row != NO_SOURCE and to_all[row] for row in rows], dtype=bool)

    async def _write_caches(self) -> None:
        """Write the caches of KServe that differ, and delete those of ours that nothing has wanted for a while."""
        known = self._local_models.own() if self._local_models is not None else {}
        now_s = self._clock.now_s()
        self._unwanted_s = {name: self._unwanted_s.get(name, now_s) for name in known.keys() - self._caches.keys()}
        due = [name for name, cache in self._caches.items() if known.get(name) != cache]
        gone = [name for name, since_s in self._unwanted_s.items() if now_s - since_s >= UNWANTED_S]
        for name in (*due, *gone):
            if not self._leadership.leading or now_s - self._written_s.get(name, -SAME_S) < SAME_S:
                continue
            path = object_path(kserve.ROOT, "", "localmodelcaches", name)
            if name in self._caches:
                await self._apply(path, name, kserve.manifest(name, self._caches[name]))
            else:
                await self._kube.request("DELETE", path)
                self._written_s[name] = now_s
            await self._clock.sleep(WRITE_S)

    def _documents(self) -> dict[str, dict[str, str]]:
        """Return the documents of all nodes, by ConfigMap and then by node."""
        wanted: dict[str, dict[str, str]] = {name: {} for name in NAMES}
        for node, wishes in self._wishes.items():
            name = config_map_of(node)
            before = self._texts.get(name, {}).get(node)
            wanted[name][node] = self._text(node, wishes, before)
        return {name: _bounded(texts) for name, texts in wanted.items()}

    async def _write_due(self) -> None:
        for name, texts in self._wanted.items():
            due = texts != self._texts.get(name, {})
            if not due or self._clock.now_s() - self._written_s.get(name, -SAME_S) < SAME_S:
                continue
            if not self._leadership.leading:
                return
            await self._write(name, texts)
            await self._clock.sleep(WRITE_S)

    async def _write(self, name: str, texts: Mapping[str, str]) -> None:
        """Replace the wishes of a ConfigMap. Nodes without wishes of ours lose their entry."""
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "labels": LABELS},
            "data": texts,
        }
        await self._apply(object_path("/api/v1", self._namespace, "configmaps", name), name, body)
        self._texts[name] = dict(texts)

    async def _apply(self, path: str, name: str, body: Mapping[str, Any]) -> None:
        """Apply an object, and count the write."""
        query = [("fieldManager", self._manager), ("force", "true")]
        await self._kube.request("PATCH", path, body, query=query, content_type=APPLY)
        self._written_s[name] = self._clock.now_s()
        self._recent.append(self._clock.now_s())
        self._writes += 1
        self._outage.end()

    def _text(self, node: str, wishes: Iterable[Wish], before: str | None) -> str:
        """Return the document of a node. The order alone is no reason to write, if the node holds everything."""
        text = encode(wishes)
        if before is None or text == before:
            return text
        said = self._reports.nodes.get(node)
        known = _decoded(before)
        same = set(known) == set(wishes)
        return before if same and said is not None and all(wish.source.key in said.held for wish in known) else text


def _by_source(wishes: Mapping[str, Iterable[Wish]]) -> Counter[str]:
    """Return the nodes that should hold each source."""
    return Counter(str(wish.source) for each in wishes.values() for wish in each)


def _decoded(text: str) -> tuple[Wish, ...]:
    """Return the wishes of a document; (): it cannot be used."""
    try:
        return decode(text).wishes
    except ValueError:
        return ()


def _bounded(texts: Mapping[str, str]) -> dict[str, str]:
    """Return documents that one ConfigMap can hold. The last wishes of long ones are left out if there are too many."""
    most = MAX_DATA_BYTES // max(len(texts), 1)
    return {node: text if len(text) <= most else _cut(text, most) for node, text in texts.items()}


def _cut(text: str, most: int) -> str:
    wishes = list(_decoded(text))
    while wishes and len(encode(wishes).encode()) > most:
        wishes.pop()
    return encode(wishes)
