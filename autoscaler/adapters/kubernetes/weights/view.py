"""The weights of a fleet as columns: sources, sizes, free places on holders, and what the nodes of pods held."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np

from autoscaler.adapters.kubernetes.inventory.pools import Layout
from autoscaler.adapters.kubernetes.inventory.usage import UsedOnNodes
from autoscaler.adapters.kubernetes.pods.rows import PodRows
from autoscaler.adapters.kubernetes.weights.places import count_places, places_of_templates
from autoscaler.adapters.kubernetes.weights.reports import ReportStore
from autoscaler.config.remembered import Remembered
from autoscaler.config.weights.source import ModelSource, parse
from autoscaler.core.model.fleet import Workload
from autoscaler.core.model.weights import NO_SOURCE, PodCache, SourceStatus, WeightPlaces, Weights, WishStatus
from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn
from autoscaler.ports import Clock

_UNJUDGED = -1


class SizeIndex(Protocol):
    """Looks up the size of weights, without waiting."""

    @property
    def version(self) -> int:
        """A number that grows with each size that becomes known."""

    def size_bytes(self, source: ModelSource) -> float:
        """Return the bytes; NaN: unknown."""


class PublishedPlan(NamedTuple):
    """The plan for each source."""

    wished: Mapping[str, int]  # nodes that should hold it
    missing: Mapping[str, float]  # replicas without a place on such a node
    status: WishStatus


@lru_cache(maxsize=20_000)
def key_of(source: str) -> str:
    """Return the key of a valid source."""
    return parse(source).key


class WeightsView:
    """The columns of the last fleet. They are counted again only if something has changed."""

    def __init__(self, clock: Clock, weights_gb: Callable[[Workload], float] = lambda _: 0.0) -> None:
        """weights_gb: returns the weights that a workload or its policy states, in 10^9 bytes; 0: none."""
        self.reports = ReportStore(clock)
        self.last: Weights | None = None  # the last columns
        self.index: SizeIndex | None = None  # where sizes are looked up that nothing else states
        self.published: Callable[[], PublishedPlan] | None = None  # returns the plan; None: nothing is planned
        self._status = Remembered[tuple[SourceStatus, ...]]()
        self._weights_gb = weights_gb
        self._named: tuple[object, ...] | None = None  # as of the columns below
        self._sources: tuple[str, ...] = ()
        self._source: IntColumn = np.zeros(0, dtype=np.int64)
        self._sizes: FloatColumn = np.zeros(0)
        self._counted: tuple[Layout, UsedOnNodes] | None = None  # as of the places
        self._places = WeightPlaces.none()
        self._pod_id: IntColumn = np.zeros(0, dtype=np.int64)
        self._pod_cache: IntColumn = np.zeros(0, dtype=np.int64)

    def problems(self) -> list[str]:
        """Return why wishes cannot be published."""
        problem = self.published().status.problem if self.published is not None else ""
        return [f"wishes of weights: {problem}"] if problem else []

    def columns(
        self,
        workloads: tuple[Workload, ...],
        steered: BoolColumn,
        layout: Layout,
        held: UsedOnNodes,
        pods: PodRows,
        pod_workload: IntColumn,
    ) -> Weights | None:
        """Return the columns of a fleet; None: no source is known.

        steered: bool[W], by their templates. A webhook may steer pods instead. held: by all present pods.
        pod_workload: int64[P], row of the workload.
        """
        named = workloads, self.reports.version, self.index.version if self.index is not None else 0
        if self._named != named:
            self._name(workloads)
            self._named, self._counted = named, None
        if not self._sources:
            self.last = None
            return None
        if self._counted is None or self._counted[0] is not layout or self._counted[1] is not held:
            self._places = self._count(layout, held)
            self._counted = layout, held
        steered = steered | (np.bincount(pod_workload[pods.steered], minlength=len(workloads)) > 0)
        cache = self._judge_pods(pods, pod_workload)
        published = self.published() if self.published is not None else None
        self.last = Weights(
            self._sources,
            self._source,
            self._sizes,
            steered,
            self._places,
            cache,
            self._statuses(published),
            len(self.reports.nodes),
            self.reports.budget_bytes(),
            published.status if published is not None else None,
        )
        return self.last

    def _statuses(self, published: PublishedPlan | None) -> tuple[SourceStatus, ...]:
        """Return the status of each source. It is counted again only if reports or the plan have changed."""

        def count() -> tuple[SourceStatus, ...]:
            of_nodes = [self.reports.status(key_of(source)) for source in self._sources]
            if published is None:
                return tuple(of_nodes)
            return tuple(
                each._replace(wished=published.wished.get(source, 0), missing=published.missing.get(source, 0.0))
                for source, each in zip(self._sources, of_nodes, strict=True)
            )

        wished = tuple(published.wished.items()) if published is not None else ()
        return self._status.get(count, self._sources, self.reports.version, published is not None, wished)

    def _name(self, workloads: tuple[Workload, ...]) -> None:
        """Note the source of each workload, and its bytes: as stated, as nodes report them, or by the index."""
        self._sources = tuple(sorted({workload.weights for workload in workloads} - {""}))
        place = {source: index for index, source in enumerate(self._sources)}
        self._source = np.array([place.get(workload.weights, NO_SOURCE) for workload in workloads], dtype=np.int64)
        reported = np.array([*map(self._size_of, self._sources), np.nan])
        stated = np.array([self._weights_gb(workload) * 1e9 for workload in workloads], dtype=np.float64)
        self._sizes = np.where(stated > 0, stated, reported[self._source])

    def _size_of(self, source: str) -> float:
        reported = self.reports.size_bytes(key_of(source))
        return self.index.size_bytes(parse(source)) if np.isnan(reported) and self.index is not None else reported

    def _count(self, layout: Layout, held: UsedOnNodes) -> WeightPlaces:
        if not self.reports.nodes:
            return WeightPlaces.none()
        is_known = np.zeros(len(layout.group), dtype=bool)
        is_known[[layout.place[name] for name in self.reports.nodes if name in layout.place]] = True
        holders = []
        for source in self._sources:
            names = self.reports.holders.get(key_of(source), ())
            holders.append(np.array([layout.place[name] for name in names if name in layout.place], dtype=np.int64))
        return count_places(places_of_templates(layout, held, is_known), layout, self._source, holders)

    def _judge_pods(self, pods: PodRows, workload: IntColumn) -> IntColumn:
        """Return whether the nodes of pods held their weights. Each pod is judged once, when it is first seen bound.

        A pod of an earlier template may load others than its workload does now.
        """
        if self._pod_id is pods.pod_id:
            cache = self._pod_cache
        else:
            place = np.searchsorted(self._pod_id, pods.pod_id)
            known = np.append(self._pod_id, -1)[place] == pods.pod_id
            cache = np.where(known, np.append(self._pod_cache, _UNJUDGED)[place], _UNJUDGED)
        is_due = (cache == _UNJUDGED) & ~np.isnan(pods.scheduled_s)
        due = np.flatnonzero(is_due & (self._source[workload] != NO_SOURCE)) if self.reports.nodes else ()
        for row in due:
            pod = pods.pods[row]
            cache[row] = self.reports.cache_of(pod.node, key_of(pod.weights), float(pods.scheduled_s[row]))
        self._pod_id, self._pod_cache = pods.pod_id, cache
        return np.maximum(cache, int(PodCache.UNKNOWN))
