"""Fluid's Datasets: the models that its runtimes keep in a cache on nodes.

A Dataset mounts sources, and a runtime caches them on the nodes that carry the Dataset's label. With several workers
each node has a share, and reads the rest from the others. Fluid's webhook steers pods by the same label.
Source: Fluid 1.0.8, `api/v1alpha1/dataset_types.go`, `pkg/utils/label.go`, `pkg/utils/dataset/lifecycle/node.go`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from sys import intern
from typing import NamedTuple

from autoscaler.adapters.kubernetes.api.node_objects import NodeObject as SeenNode
from autoscaler.adapters.kubernetes.api.objects import Dataset
from autoscaler.adapters.kubernetes.pods.model_source import FLUID_LABEL, parsed_source
from autoscaler.adapters.kubernetes.weights.reports import ReportStore
from autoscaler.config.annotations import WEIGHTS
from autoscaler.config.check.manifests import at, text_at
from autoscaler.config.quantities import read_quantity
from autoscaler.config.weights.report import MAX_MODELS, ModelReport, State

DATASETS = "datasets.data.fluid.io"
VERSION = "v1alpha1"
KINDS = {DATASETS: VERSION}
CACHE = "fluid"

MAX_LABEL_CHARS = 63  # from this length on a label has the UID of the Dataset in place of its name
MAX_BYTES = 1e15
WHOLE_PERCENT = 99.5
"""A Dataset with this much in its cache counts as held: runtimes round, and leave out what no reader has asked for."""

_PERCENT = re.compile(r"([0-9]{1,3}(?:\.[0-9]+)?)%")


class _Content(NamedTuple):
    """The models of a Dataset, and the label of the nodes that hold them."""

    label: str
    models: dict[str, ModelReport]  # by key of the source


class Datasets:
    """Receives Datasets, and gives their models to the nodes that carry their labels. Never raises."""

    def __init__(self, reports: ReportStore) -> None:
        self.nodes = _LabelStore(self)
        self._reports = reports
        self._contents: dict[tuple[str, str], _Content] = {}  # by namespace and name
        self._sharers: dict[str, set[tuple[str, str]]] = {}  # by label; more than one where names run together
        self._carriers: dict[str, set[str]] = {}  # nodes by label
        self._labels: dict[str, frozenset[str]] = {}  # by node

    def put(self, seen: Dataset, /) -> None:
        place = seen.metadata.namespace, seen.metadata.name
        content = _Content(_label_of(seen), dict(_models(seen)))
        before = self._contents.get(place)
        if before == content:
            return
        self._drop(place)
        self._contents[place] = content
        self._sharers.setdefault(content.label, set()).add(place)
        self._tell(content.label)

    def remove(self, namespace: str, name: str, /) -> None:
        self._drop((namespace, name))

    def clear(self) -> None:
        """Forget all Datasets: the API server does not serve the kind any more."""
        for place in list(self._contents):
            self._drop(place)

    def label(self, node: str, labels: frozenset[str]) -> None:
        """Note the labels of Datasets that a node carries."""
        before = self._labels.get(node, frozenset())
        if labels == before:
            return
        for label in before - labels:
            self._carriers[label].discard(node)
            if not self._carriers[label]:
                del self._carriers[label]
        for label in labels - before:
            self._carriers.setdefault(label, set()).add(node)
        if labels:
            self._labels[node] = labels
        else:
            del self._labels[node]
        self._tell_node(node)

    def _drop(self, place: tuple[str, str]) -> None:
        content = self._contents.pop(place, None)
        if content is not None:
            self._sharers[content.label].discard(place)
            if not self._sharers[content.label]:
                del self._sharers[content.label]
            self._tell(content.label)

    def _tell(self, label: str) -> None:
        for node in self._carriers.get(label, ()):
            self._tell_node(node)

    def _tell_node(self, node: str) -> None:
        models: dict[str, ModelReport] = {}
        for label in sorted(self._labels.get(node, ())):
            for place in sorted(self._sharers.get(label, ())):
                models |= self._contents[place].models
        self._reports.put_cache(CACHE, node, dict(list(models.items())[:MAX_MODELS]))


class _LabelStore:
    """Receives nodes, and notes the labels of Datasets that they carry."""

    def __init__(self, datasets: Datasets) -> None:
        self._datasets = datasets

    def put(self, seen: SeenNode, /) -> None:
        labels = seen.metadata.labels or {}
        found = sorted(name for name, value in labels.items() if name.startswith(FLUID_LABEL) and value == "true")
        self._datasets.label(seen.metadata.name, frozenset(map(intern, found[:MAX_MODELS])))

    def remove(self, namespace: str, name: str, /) -> None:
        self._datasets.label(name, frozenset())


def _label_of(seen: Dataset) -> str:
    """Return the label of the nodes with a worker of the runtime of a Dataset."""
    label = f"{FLUID_LABEL}{seen.metadata.namespace}-{seen.metadata.name}"
    return label if len(label) < MAX_LABEL_CHARS else f"{FLUID_LABEL}{seen.metadata.uid}"


def _models(seen: Dataset) -> Iterator[tuple[str, ModelReport]]:
    """Yield the models of a Dataset: the one that its annotation names, else those that it mounts by themselves."""
    mounts = at(seen.spec, "mounts")
    points = [text_at(each, "mountPoint") for each in mounts[:MAX_MODELS]] if isinstance(mounts, list) else []
    stated = parsed_source((seen.metadata.annotations or {}).get(WEIGHTS, ""))
    sources = [stated] if stated else [found for each in points if (found := parsed_source(each))]
    state = _state(seen)
    cause, text = (
        ("fluid", f"see Dataset {seen.metadata.namespace}/{seen.metadata.name}") if state is State.FAILED else ("", "")
    )
    size = _bytes(text_at(seen.status, "ufsTotal")) if len(sources) == len(points) == 1 else 0
    for source in sources:
        yield source.key, ModelReport(str(source), state, size=size, cause=cause, text=text)


def _state(seen: Dataset) -> State:
    """Return the state of the models of a Dataset. A runtime that does not say how much it holds counts as fetching."""
    phase = at(seen.status, "phase")
    if phase == "Failed":
        return State.FAILED
    if phase != "Bound":
        return State.WAITING
    percent = _PERCENT.fullmatch(text_at(seen.status, "cacheStates", "cachedPercentage"))
    return State.READY if percent and float(percent[1]) >= WHOLE_PERCENT else State.FETCHING


def _bytes(text: str) -> int:
    """Return the bytes of a text such as "11.72GiB"; 0: it states none."""
    size = read_quantity(text.removesuffix("B"))
    return int(size) if 0 < size < MAX_BYTES else 0  # NaN: it is no quantity
