"""Format of the rows in tables of metrics: which samples make a reading, and how they are combined.

The scraper evaluates rows directly, the Prometheus adapter compiles them to PromQL; both give the same number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property

Labels = Mapping[str, str]
SeriesByName = Mapping[str, Sequence[tuple[Labels, float]]]  # sample name to its series, of one pod or one gateway

# Pairs of labels (namespace, pod) that may name the pod of a series. One backend may use all of them, so for each
# series the first pair whose second label is set decides.
POD_LABELS: tuple[tuple[str, str], ...] = (
    # Without `honor_labels`, Prometheus moves a series' own labels here; `pod` is then the exporter or collector.
    ("exported_namespace", "exported_pod"),
    ("pod_namespace", "pod_name"),  # DCGM exporter with --use-old-namespace
    ("k8s_namespace_name", "k8s_pod_name"),  # resource attributes of OpenTelemetry; `pod` may be the collector
    ("namespace", "pod"),
    ("kubernetes_namespace", "kubernetes_pod_name"),  # older scrape configurations
)


def is_moved(labels: Labels) -> bool:
    """Return whether labels of the exporter or a collector name the pod, instead of the `pod` of the scrape."""
    return any(labels.get(pod) for _, pod in POD_LABELS[: POD_LABELS.index(("namespace", "pod"))])


def pod_of(labels: Labels) -> tuple[str, str] | None:
    """Return (namespace, name) of the pod that a series is about; None if its labels name none."""
    for namespace, pod in POD_LABELS:
        if labels.get(pod):
            return (labels[namespace], labels[pod]) if labels.get(namespace) else None
    return None


MOVED = "exported_"  # prefix that Prometheus adds to labels which the scrape target has, too


def own_label(labels: Labels, name: str) -> str:
    """Return a label as the exporter wrote it, also if Prometheus moved it; "" if absent."""
    return labels.get(f"{MOVED}{name}") or labels.get(name, "")


# Labels of engines that scrape jobs may also give to targets.
_ALSO_OF_TARGETS = ("engine", "engine_type", "dp_rank", "model_name", "model", "version", "priority")
WORKER = ("WorkerId", "ReplicaId")  # unique names: Ray exposes all model replicas of a node on one port
# Labels that tell series of one pod apart; `instance` separates two servers in one pod. Series that differ only in
# other labels repeat one number: ranks of a tensor-, pipeline- or context-parallel group, processes (`pid`) and
# Prometheus replicas.
DISTINCT = (
    "instance",
    "engine",
    "engine_type",
    "dp_rank",
    "model_name",
    "model",
    "version",
    "lora_name",
    "finished_reason",
    "reason",
    "err",
    "is_streaming",
    "priority",
    "cache_source",
    *WORKER,
    *(f"{MOVED}{label}" for label in _ALSO_OF_TARGETS),
)


class Aggregation(StrEnum):
    """How the series of one pod (engines, data-parallel ranks, adapters, reasons) are combined."""

    SUM = "sum"
    MAX = "max"


@dataclass(frozen=True)
class Series:
    """One reading: which samples it uses, and how they are combined.

    Without `beside` there is no reading. The steps are: keep the series that pass `where` and are not `foreign`; among
    series equal in their `DISTINCT` labels, without `repeated`, keep the largest; aggregate the rest; add each `plus`
    that is present; subtract each of `minus` that is known, less what `again` exceeds the value by; then `1 - value` if
    `inverted`; then multiply by `scale`. A reading is present if `name` or one of `plus` is.
    """

    name: str  # as exposed, with `_total`, `_sum` or `_count`; for histograms without `_bucket`
    aggregation: Aggregation = Aggregation.SUM
    where: tuple[tuple[str, tuple[str, ...]], ...] = ()  # labels and their allowed values; "" is an absent label
    beside: str = ""  # metric that the pod must also have, for names that several products use
    foreign: tuple[str, str] | None = (
        None  # series with the first label and without the second belong to another product
    )
    repeated: tuple[str, ...] = ()  # `DISTINCT` labels whose series repeat one number here
    plus: tuple[Series, ...] = ()  # readings to add if they are present
    minus: tuple[tuple[Series, ...], ...] = ()  # readings to subtract, each with its alternatives
    again: tuple[Series, ...] = ()  # alternatives that exceed the value by what `minus` wrongly contains
    inverted: bool = False  # the gauge measures the opposite
    scale: float = 1.0  # to the unit of the column

    def accepts(self, labels: Labels) -> bool:
        """Return whether a series with these labels passes `where` and is not `foreign`."""
        if self.foreign and labels.get(self.foreign[0]) and not labels.get(self.foreign[1]):
            return False
        if not self.where:  # the common case, called for every series of every pod
            return True
        return all(labels.get(label, "") in allowed for label, allowed in self.where)

    @cached_property
    def distinct_labels(self) -> tuple[str, ...]:
        """The labels that tell series apart before aggregation; series equal in them repeat one number."""
        return tuple(label for label in DISTINCT if label.removeprefix(MOVED) not in self.repeated)

    def parts(self) -> tuple[Series, ...]:
        """Return this row and the rows it adds or subtracts."""
        rows = (*self.plus, *(row for readings in self.minus for row in readings), *self.again)
        return (self, *(part for row in rows for part in row.parts()))

    def renamed(self, rename: Callable[[str], str]) -> Series:
        """Return this row, and the rows it adds or subtracts, with renamed metrics."""
        return self.each(lambda row: replace(row, name=rename(row.name), beside=rename(row.beside)))

    def each(self, change: Callable[[Series], Series]) -> Series:
        """Apply `change` to this row and to the rows it adds or subtracts."""
        plus = tuple(part.each(change) for part in self.plus)
        minus = tuple(tuple(row.each(change) for row in readings) for readings in self.minus)
        return replace(change(self), plus=plus, minus=minus, again=tuple(row.each(change) for row in self.again))


Readings = tuple[Series, ...]  # alternatives in order; the first that is present counts


def first(*names: str, aggregation: Aggregation = Aggregation.SUM) -> Readings:
    """Return alternatives that differ only in name."""
    return tuple(Series(name, aggregation) for name in names)


def counter(name: str) -> Readings:
    """Return the alternatives for a counter: with `_total`, and without it as in some pipelines."""
    return first(f"{name}_total", name)


def names_of(readings: Readings) -> tuple[str, ...]:
    """Return the names of all metrics in the readings, each once."""
    return tuple(dict.fromkeys(part.name for row in readings for part in row.parts()))


def beside_of(readings: Readings) -> tuple[str, ...]:
    """Return the names of the metrics in `beside`."""
    return tuple(dict.fromkeys(part.beside for row in readings for part in row.parts() if part.beside))


def renamed(readings: Readings, *renames: Callable[[str], str]) -> Readings:
    """Return the alternatives under the names of each of `renames`, in that order, each once.

    Subtracted rows, and `again`, get all names as alternatives, so that rows which differ only in name still do.
    """

    def variant(row: Series, rename: Callable[[str], str]) -> Series:
        minus = tuple(renamed(parts, *renames) for parts in row.minus)
        return replace(row.renamed(rename), minus=minus, again=renamed(row.again, *renames))

    return tuple(dict.fromkeys(variant(row, rename) for rename in renames for row in readings))
