"""The weights that each node holds, from the labels and the annotation that the agent of the node writes.

Both are untrusted: everybody who may patch a node can write them. A report that cannot be used is listed as a problem.
It affects no other node, and the labels of its node count all the same.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from statistics import median_low
from sys import intern
from typing import NamedTuple

import msgspec

from autoscaler.adapters.kubernetes.api.node_objects import NodeObject as SeenNode
from autoscaler.adapters.kubernetes.inventory.nodes import Node
from autoscaler.config.findings import UNREADABLE
from autoscaler.config.weights.report import (
    ANNOTATION,
    LABEL_PREFIX,
    MAX_MODELS,
    READY_LABEL,
    InvalidReportError,
    ModelReport,
    Report,
    State,
    decode,
)
from autoscaler.config.weights.source import KEY_CHARS
from autoscaler.core.model.weights import FetchFailure, PodCache, SourceStatus
from autoscaler.ports import Clock

MAX_SHARED = 10_000  # models whose equal reports by many nodes are kept once
MAX_FAILURES = 5  # of one model that are listed
ALWAYS_S = -math.inf


class _Annotations(msgspec.Struct, frozen=True):
    report: str = msgspec.field(default="", name=ANNOTATION)


_ANNOTATIONS = msgspec.json.Decoder(_Annotations | None)


class NodeWeights(NamedTuple):
    """The weights of one node, in its own words."""

    held: Mapping[str, float]  # keys of sources, and since when they are held; -infinity: when the node was first seen
    report: Report | None  # None: there is none, or it cannot be used
    problem: str  # why it cannot be used; "": it can, or there is none
    first_s: float  # when the node was first seen to say anything


class _StatedReport(NamedTuple):
    """The words of the agent of one node."""

    ready: frozenset[str] = frozenset()  # keys, by labels
    report: Report | None = None
    problem: str = ""


class ReportStore:
    """The weights of nodes, in their own words. A node that says nothing is not in it."""

    def __init__(self, clock: Clock) -> None:
        self.version = 0
        self.nodes: dict[str, NodeWeights] = {}
        self.holders: dict[str, set[str]] = {}  # nodes by key of the source that they hold
        self._clock = clock
        self._texts: dict[str, int] = {}  # hash of each node's annotation
        self._stated: dict[str, _StatedReport] = {}  # by node: what its agent says
        self._caches: dict[str, dict[str, Mapping[str, ModelReport]]] = {}  # by node: models by key of other caches
        self._summarized = -1  # version of the sums below
        self._sizes: dict[str, float] = {}  # bytes by key
        self._status: dict[str, SourceStatus] = {}  # by key
        self._budget_bytes = 0.0
        self._shared: dict[ModelReport, ModelReport] = {}

    def put(self, seen: SeenNode, /) -> None:
        name = seen.metadata.name
        text = _annotation(seen)
        ready = frozenset(_labelled(seen))
        if not text and not ready:
            self.remove("", name)
            return
        digest = hash(text)
        before = self._stated.get(name)
        if before is not None and self._texts.get(name) == digest:
            self._stated[name] = before._replace(ready=ready)
        else:
            self._stated[name] = _StatedReport(ready, *self._read(text))
        self._texts[name] = digest
        self._merge(name)

    def remove(self, namespace: str, name: str, /) -> None:
        self._texts.pop(name, None)
        if self._stated.pop(name, None) is not None:
            self._merge(name)

    def put_cache(self, cache: str, name: str, models: Mapping[str, ModelReport]) -> None:
        """Note what another cache of weights holds on a node, by key; empty: nothing."""
        found = self._caches.setdefault(name, {})
        if models:
            found[cache] = {intern(key): model for key, model in models.items()}
        else:
            found.pop(cache, None)
        if not found:
            del self._caches[name]
        self._merge(name)

    def _merge(self, name: str) -> None:
        """Join what the agent and other caches say about a node. If both have a model, the agent's word counts.

        Of two caches the one that is ready counts.
        """
        before = self.nodes.get(name)
        stated = self._stated.get(name, _StatedReport())
        cached: dict[str, ModelReport] = {}
        for _, models in sorted(self._caches.get(name, {}).items()):
            cached |= {key: model for key, model in models.items() if key not in cached or model.state is State.READY}
        if name not in self._stated and not cached:
            if self.nodes.pop(name, None) is not None and before is not None:
                for key in before.held:
                    self._drop(key, name)
                self.version += 1
            return
        report = stated.report
        if cached:
            of_agent = report.models if report is not None else {}
            report = (report or Report({}))._replace(models={**cached, **of_agent})
        held = (
            {key for key, model in report.models.items() if model.state is State.READY} if report is not None else set()
        )
        self._set(name, before, stated.ready | held, report, stated.problem)

    def size_bytes(self, key: str) -> float:
        """Return the bytes of a model, the median of all reports, so that no node deceives others; NaN: unknown."""
        self._summarize()
        return self._sizes.get(key, math.nan)

    def status(self, key: str) -> SourceStatus:
        """Return how many nodes hold or fetch a model, and why some cannot."""
        self._summarize()
        return self._status.get(key, SourceStatus())._replace(held=len(self.holders.get(key, ())))

    def budget_bytes(self) -> float:
        """Return the bytes that all nodes may use."""
        self._summarize()
        return self._budget_bytes

    def _summarize(self) -> None:
        """Sum up the reports of all nodes by model, if they have changed."""
        if self._summarized == self.version:
            return
        sizes: dict[str, list[int]] = {}
        states: dict[str, Counter[State]] = {}
        failures: dict[str, list[FetchFailure]] = {}
        for name, node in self.nodes.items():
            for key, model in node.report.models.items() if node.report is not None else ():
                if model.size:
                    sizes.setdefault(key, []).append(model.size)
                if model.state is not State.READY:
                    states.setdefault(key, Counter())[model.state] += 1
                if model.state is State.FAILED and len(failures.setdefault(key, [])) < MAX_FAILURES:
                    failures[key].append(FetchFailure(name, model.cause, model.text))
        self._sizes = {key: float(median_low(each)) for key, each in sizes.items()}
        self._status = {
            key: SourceStatus(
                waiting=count[State.WAITING],
                fetching=count[State.FETCHING],
                failed=count[State.FAILED],
                failures=tuple(failures.get(key, ())),
            )
            for key, count in states.items()
        }
        budgets = (node.report.budget_bytes for node in self.nodes.values() if node.report is not None)
        self._budget_bytes = float(sum(budgets))
        self._summarized = self.version

    def cache_of(self, node: str, key: str, bound_s: float) -> PodCache:
        """Return whether a node held a model when a pod was bound to it.

        It is not known of a pod that was bound before the node was first seen.
        """
        said = self.nodes.get(node)
        if said is None or not bound_s >= said.first_s:
            return PodCache.UNKNOWN
        return PodCache.HELD if said.held.get(key, math.inf) <= bound_s else PodCache.ABSENT

    def label(self, nodes: Mapping[str, Node], names: Collection[str]) -> Mapping[str, Node]:
        """Return the nodes with those labels of weights that templates require.

        names: of these labels. The other stores ignore labels of weights, because no usual template reads them.
        """
        if not names:
            return nodes
        labelled = dict(nodes)
        for name in names:
            for each in self.holders.get(name.removeprefix(LABEL_PREFIX), ()):
                if each in nodes:
                    labelled[each] = labelled[each]._replace(labels={**labelled[each].labels, name: READY_LABEL})
        return labelled

    def problems(self) -> Iterator[str]:
        """Yield why the reports of nodes cannot be used, one line each."""
        for name, node in self.nodes.items():
            if node.problem:
                yield f"node {name}: {node.problem}"

    def _set(
        self, name: str, before: NodeWeights | None, ready: frozenset[str], report: Report | None, problem: str
    ) -> None:
        if before is not None and before.held.keys() == ready and (before.report, before.problem) == (report, problem):
            return
        now_s = self._clock.now_s()
        known = before.held if before is not None else dict.fromkeys(ready, ALWAYS_S)
        held = {key: known.get(key, now_s) for key in ready}
        for key in known.keys() - ready:
            self._drop(key, name)
        for key in ready:
            self.holders.setdefault(key, set()).add(name)
        first_s = before.first_s if before is not None else now_s
        self.nodes[name] = NodeWeights(held, report, problem, first_s)
        self.version += 1

    def _drop(self, key: str, name: str) -> None:
        nodes = self.holders.get(key, set())
        nodes.discard(name)
        if not nodes:
            self.holders.pop(key, None)

    def _read(self, text: str) -> tuple[Report | None, str]:
        """Return the report of a node, which shares equal models with those of others, and what is wrong with it."""
        if not text:
            return None, ""
        try:
            report = decode(text)
        except InvalidReportError as error:
            return None, str(error)
        if len(self._shared) > MAX_SHARED:
            self._shared.clear()
        models = {intern(key): self._shared.setdefault(model, model) for key, model in report.models.items()}
        return report._replace(models=models), ""


def _annotation(seen: SeenNode) -> str:
    """Return the annotation with the report; "": there is none."""
    raw = seen.metadata.annotations
    if ANNOTATION.encode() not in memoryview(raw).tobytes():
        return ""
    try:
        found = _ANNOTATIONS.decode(raw)
    except UNREADABLE:
        return ""
    return found.report if found is not None else ""


def _labelled(seen: SeenNode) -> set[str]:
    """Return the keys of the models that the labels of a node say to be ready."""
    found = {
        intern(name.removeprefix(LABEL_PREFIX))
        for name, value in (seen.metadata.labels or {}).items()
        if name.startswith(LABEL_PREFIX) and value == READY_LABEL and len(name) == len(LABEL_PREFIX) + KEY_CHARS
    }
    return set(sorted(found)[:MAX_MODELS])
