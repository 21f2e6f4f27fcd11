"""How one reading is taken out of the samples of one scrape: the row format that all tables of metric names share.

The tables are data for two readers, the direct scraper and the Prometheus adapter; neither knows a metric by name.
What a row means is fixed here, so both come to the same number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum


class Fold(StrEnum):
    """How the series of one pod (engines, data-parallel ranks, adapters, reasons) become one number."""

    SUM = "sum"
    MAX = "max"


@dataclass(frozen=True)
class Series:
    """One reading: which samples, and how they become one number.

    Computed in this order: keep the series that pass `where`; take the value, or the product of `labels`; among series
    that differ only in `repeated` labels keep the largest; `fold` the rest; multiply by `times`; add each of `plus`
    that is present; then `1 - value` if `inverted`; then multiply by `scale`.
    """

    name: str  # as exposed, `_total`, `_sum` and `_count` included; of a histogram read as quantile, without `_bucket`
    fold: Fold = Fold.SUM
    where: tuple[tuple[str, tuple[str, ...]], ...] = ()  # label and the values it may have; "" is an absent label
    labels: tuple[str, ...] = ()  # read the product of these labels' numbers; the sample's own value is then always 1
    repeated: tuple[str, ...] = ()  # labels whose series all report the same thing
    times: Series | None = None  # a second reading to multiply with; absent, there is no reading at all
    plus: tuple[Series, ...] = ()  # further readings to add where they are present
    inverted: bool = False  # a gauge of the opposite
    scale: float = 1.0  # to the column's unit

    def accepts(self, labels: Mapping[str, str]) -> bool:
        """Say whether a series with these labels passes `where`."""
        return all(labels.get(label, "") in allowed for label, allowed in self.where)

    def parts(self) -> tuple[Series, ...]:
        """Return this row and the rows it multiplies with or adds."""
        nested = (*((self.times,) if self.times else ()), *self.plus)
        return (self, *(part for row in nested for part in row.parts()))


Readings = tuple[Series, ...]  # alternatives in order: the first that is present wins, they are never added together


def first(*names: str, fold: Fold = Fold.SUM) -> Readings:
    """Make plain alternatives that differ in name only."""
    return tuple(Series(name, fold) for name in names)


def counter(name: str) -> Readings:
    """Make the alternatives for a counter named without its suffix: with `_total`, and bare as some pipelines do."""
    return first(f"{name}_total", name)


def renamed(readings: Readings, rename: Callable[[str], str]) -> Readings:
    """Return the alternatives followed by the same ones under the names `rename` gives, where it changes anything.

    The original comes first, so a server that has both names is still read once.
    """

    def variant(row: Series) -> Series:
        return replace(
            row,
            name=rename(row.name),
            times=variant(row.times) if row.times else None,
            plus=tuple(variant(part) for part in row.plus),
        )

    return readings + tuple(row for row in map(variant, readings) if row not in readings)


def underscored(name: str) -> str:
    """Rename as pipelines do that allow no colon in a metric name: `vllm:x` becomes `vllm_x`."""
    return name.replace(":", "_")
