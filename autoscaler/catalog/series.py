"""How one reading is taken out of the samples of one scrape: the row format that all tables of metric names share.

The tables are data for two readers, the direct scraper and the Prometheus adapter; neither knows a metric by name.
What a row means is fixed here, so both come to the same number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property

Labels = Mapping[str, str]
SeriesByName = Mapping[str, Sequence[tuple[Labels, float]]]  # sample name to its series, of one pod or one gateway

# Labels (namespace, pod) by which a backend may name the pod that a series is about. One backend may hold all of them,
# so each series is judged alone: the first pair whose second label is set decides.
POD_LABELS: tuple[tuple[str, str], ...] = (
    # Prometheus moves a series' own labels here without `honor_labels`; `pod` is then the exporter or collector.
    ("exported_namespace", "exported_pod"),
    ("pod_namespace", "pod_name"),  # DCGM exporter with --use-old-namespace
    ("k8s_namespace_name", "k8s_pod_name"),  # resource attributes of OpenTelemetry; `pod` may be the collector
    ("namespace", "pod"),
    ("kubernetes_namespace", "kubernetes_pod_name"),  # of older scrape configurations
)


def is_moved(labels: Labels) -> bool:
    """Say whether a series names its pod in its own words, or a collector's, and not by its scrape's `pod`."""
    return any(labels.get(pod) for _, pod in POD_LABELS[: POD_LABELS.index(("namespace", "pod"))])


def pod_of(labels: Labels) -> tuple[str, str] | None:
    """Return (namespace, name) of the pod that a series is about; None: its labels do not say."""
    for namespace, pod in POD_LABELS:
        if labels.get(pod):
            return (labels[namespace], labels[pod]) if labels.get(namespace) else None
    return None


MOVED = "exported_"  # Prometheus puts it before a label of a series that its scrape target has, too


def own_label(labels: Labels, name: str) -> str:
    """Return a label as the exporter wrote it, wherever a Prometheus without `honor_labels` keeps it; "": absent."""
    return labels.get(f"{MOVED}{name}") or labels.get(name, "")


# Those of engines that scrape jobs, which know models and engines as well, give their targets.
_ALSO_OF_TARGETS = ("engine", "engine_type", "dp_rank", "model_name", "model", "version", "priority")
# Labels by which the series of one pod differ in earnest; `instance` parts two servers in one pod. Series that
# differ in other labels repeat one number: ranks of a tensor-, pipeline- or context-parallel group, processes (`pid`),
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
    *(f"{MOVED}{label}" for label in _ALSO_OF_TARGETS),
)


class Fold(StrEnum):
    """How the series of one pod (engines, data-parallel ranks, adapters, reasons) become one number."""

    SUM = "sum"
    MAX = "max"


@dataclass(frozen=True)
class Series:
    """One reading: which samples, and how they become one number.

    Nothing is read without `beside`. Computed in this order: keep the series that pass `where` and are not `foreign`;
    among those that are equal in their `DISTINCT` labels, `repeated` ones left out, keep the largest; `fold` the rest;
    add each of `plus` that is present; subtract each of `minus` that is known; then `1 - value` if `inverted`; then
    multiply by `scale`. A reading is present if `name` or one of `plus` is.
    """

    name: str  # as exposed, `_total`, `_sum` and `_count` included; of a histogram read as quantile, without `_bucket`
    fold: Fold = Fold.SUM
    where: tuple[tuple[str, tuple[str, ...]], ...] = ()  # label and the values it may have; "" is an absent label
    beside: str = ""  # metric of the same pod without which a name that products share is not believed
    foreign: tuple[str, str] | None = None  # a series with the first label and without the second is another product's
    repeated: tuple[str, ...] = ()  # of the `DISTINCT` labels, those whose series all report the same thing here
    plus: tuple[Series, ...] = ()  # further readings to add where they are present
    minus: tuple[tuple[Series, ...], ...] = ()  # further readings to subtract, each with its alternatives
    inverted: bool = False  # a gauge of the opposite
    scale: float = 1.0  # to the column's unit

    def accepts(self, labels: Labels) -> bool:
        """Say whether a series with these labels passes `where`, and is not `foreign`."""
        if self.foreign and labels.get(self.foreign[0]) and not labels.get(self.foreign[1]):
            return False
        if not self.where:  # of most rows, and this is asked of every series of every pod
            return True
        return all(labels.get(label, "") in allowed for label, allowed in self.where)

    @cached_property
    def apart(self) -> tuple[str, ...]:
        """The labels whose values tell series apart that are folded; those equal in them repeat one number."""
        return tuple(label for label in DISTINCT if label.removeprefix(MOVED) not in self.repeated)

    def parts(self) -> tuple[Series, ...]:
        """Return this row and the rows it adds or subtracts."""
        rows = (*self.plus, *(row for readings in self.minus for row in readings))
        return (self, *(part for row in rows for part in row.parts()))

    def renamed(self, rename: Callable[[str], str]) -> Series:
        """Return this row under the names that `rename` gives, with the rows it adds or subtracts."""
        return self.each(lambda row: replace(row, name=rename(row.name), beside=rename(row.beside)))

    def each(self, change: Callable[[Series], Series]) -> Series:
        """Return this row, and the rows it adds or subtracts, as `change` makes each of them."""
        plus = tuple(part.each(change) for part in self.plus)
        minus = tuple(tuple(row.each(change) for row in readings) for readings in self.minus)
        return replace(change(self), plus=plus, minus=minus)


Readings = tuple[Series, ...]  # alternatives in order: the first that is present wins, they are never added together


def first(*names: str, fold: Fold = Fold.SUM) -> Readings:
    """Make plain alternatives that differ in name only."""
    return tuple(Series(name, fold) for name in names)


def counter(name: str) -> Readings:
    """Make the alternatives for a counter named without its suffix: with `_total`, and bare as some pipelines do."""
    return first(f"{name}_total", name)


def names_of(readings: Readings) -> tuple[str, ...]:
    """Return the names of all metrics that the readings take, each once."""
    return tuple(dict.fromkeys(part.name for row in readings for part in row.parts()))


def beside_of(readings: Readings) -> tuple[str, ...]:
    """Return the names of the metrics that must be beside some of the readings."""
    return tuple(dict.fromkeys(part.beside for row in readings for part in row.parts() if part.beside))


def renamed(readings: Readings, *renames: Callable[[str], str]) -> Readings:
    """Return the alternatives with names as each of `renames` gives them, those of the first one first, each once.

    What a row subtracts may have any of these names: rows that differ in name only stay so.
    """

    def variant(row: Series, rename: Callable[[str], str]) -> Series:
        return replace(row.renamed(rename), minus=tuple(renamed(parts, *renames) for parts in row.minus))

    return tuple(dict.fromkeys(variant(row, rename) for rename in renames for row in readings))
