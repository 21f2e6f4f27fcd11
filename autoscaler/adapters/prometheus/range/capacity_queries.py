"""The daemon's own series about GPUs over a span, hour by hour: what workloads held, needed and lacked, and what pools
were used for. The series are those of `vllm-autoscaler run`; without it there are none.

A week at a time, the newest first, because a server loads all samples of a window at once.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from autoscaler.adapters.prometheus.range.fair_query import as_stored, query_fairly
from autoscaler.adapters.prometheus.range.own_use import SCRAPE, believed_scrapes, with_scrape
from autoscaler.adapters.prometheus.range.reader import RangeQueryFailed, RangeReader
from autoscaler.config.findings import name_some
from autoscaler.core.table.columns import FloatColumn
from autoscaler.core.table.fair_share import leave_out_crowds
from autoscaler.ports import Unavailable

HOUR_S = 3600.0
PIECE_H = 7 * 24
MOST_VALUES = 4_000_000
"""Hours times workloads, pools and quotas that are read: a year of 450."""

ROOM = 0.8
"""Part of them that is left after crowded namespaces lost workloads."""

LABELS = ("namespace", "workload", "kind", "resource", "product", "nodes")
LOOSE = "loaded_idle|headroom|floor|asleep"
_OF_WORKLOAD = "namespace, workload, kind"
_OF_POOL = "resource, product, nodes"
QUERIES = {
    "needed": ("needed_gpu_seconds", "", f"{_OF_WORKLOAD}, {_OF_POOL}"),
    "lacking": ("lacking_gpu_seconds", "", f"{_OF_WORKLOAD}, {_OF_POOL}"),
    "lacking_s": ("lacking_gpus_duration_seconds", "", f"{_OF_WORKLOAD}, {_OF_POOL}"),
    "beyond": ("beyond_ceiling_gpu_seconds", "", f"{_OF_WORKLOAD}, {_OF_POOL}"),
    "beyond_s": ("ceiling_duration_seconds", "", f"{_OF_WORKLOAD}, {_OF_POOL}"),
    "gpus": ("gpu_seconds", '{state!="ordered"}', _OF_WORKLOAD),
    "idle": ("gpu_seconds", f'{{state=~"{LOOSE}"}}', _OF_WORKLOAD),
    "pool": ("pool_gpu_seconds", "", _OF_POOL),
    "pool_busy": ("pool_gpu_seconds", f'{{state!~"free|{LOOSE}"}}', _OF_POOL),
    "quota_spare": ("", "", "quota, resource"),
}
_SPARE = " - ".join(f"vllm_autoscaler_quota_{name}" for name in ("gpus", "used_gpus", "others_gpus", "lent_gpus"))
"""Counter, matchers and labels of each column. Each replica of the daemon exports what it sees: the largest counts."""


Column = dict[tuple[str, ...], FloatColumn]


class ExportedUse(NamedTuple):
    """Growth of the counters in each hour: GPU-seconds, or seconds."""

    start_s: float  # the first hour begins
    hours: int
    columns: dict[str, Column]  # of QUERIES, by the values of LABELS; float64[H]
    problems: tuple[str, ...]


def read_exported_use(
    reader: RangeReader,
    span_s: tuple[float, float],
    progress: Callable[[float], None] = lambda _: None,
    most_values: int = MOST_VALUES,
) -> ExportedUse:
    """Read all columns over a span. What a server does not answer is unknown, and told in `problems`."""
    start_s = span_s[0] // HOUR_S * HOUR_S
    hours = max(int((span_s[1] - start_s) // HOUR_S), 0)
    edges = [*range(0, hours, PIECE_H), hours]
    parts: list[tuple[int, dict[str, Column]]] = []  # the hour at which each week begins, and its columns
    problems: dict[str, None] = {}
    keys, crowded = dict[tuple[str, ...], None](), dict[str, None]()
    first = hours
    for number, (begin, until) in enumerate(reversed([*pairwise(edges)])):
        progress(number / len(edges))
        part, answers = _read_part(reader, start_s + begin * HOUR_S, until - begin, problems)
        new = dict.fromkeys(key for rows in part.values() for key in rows)
        if crowded:  # what a crowd lost stays away, or its newer weeks would seem to be without it
            new = {key: None for key in new if key in keys or key[0] not in crowded}
            part = _only(part, new)
        keys |= new
        if parts and (hours - begin) * len(keys) > most_values:
            most = int(ROOM * most_values) // (hours - begin)
            kept, crowds = leave_out_crowds([key[0] for key in keys], most)
            if not kept:
                told = f"the daemon's metrics of {len(keys):,} workloads and pools are read as far as memory allows"
                problems[f"{told}: {(hours - first) / 24:.3g} days"] = None
                break
            crowded |= dict.fromkeys(map(str, crowds))
            named = [*keys]
            keys = dict.fromkeys(named[place] for place in kept)
            parts, part = [(at, _only(each, keys)) for at, each in parts], _only(part, keys)
        parts.append((begin, part))
        first = begin
        if not answers:
            break
    progress(1.0)
    if crowded:
        problems[f"of {name_some([*crowded])} there are too many workloads for memory: some are left out"] = None
    columns: dict[str, Column] = {name: {} for name in QUERIES}
    for begin, part in parts:
        for column, rows in part.items():
            for key, values in rows.items():
                whole = columns[column].setdefault(key, np.full(hours - first, np.nan))
                whole[begin - first : begin - first + len(values)] = values
    return ExportedUse(start_s + first * HOUR_S, hours - first, columns, (*problems,))


def _only(part: Mapping[str, Column], keys: Container[tuple[str, ...]]) -> dict[str, Column]:
    """Return the columns of some workloads and pools alone."""
    return {name: {key: values for key, values in rows.items() if key in keys} for name, rows in part.items()}


def _read_part(
    reader: RangeReader, start_s: float, hours: int, problems: dict[str, None]
) -> tuple[dict[str, Column], bool]:
    """Return all columns of some hours, and whether the server answers."""
    told: dict[tuple[str, ...], dict[str, FloatColumn]] = {}  # by LABELS and the column, then by the scrape
    answers = True
    for column, (name, matchers, labels) in QUERIES.items():
        grown = f"increase(vllm_autoscaler_{name}_total{matchers}[1h])" if name else _SPARE
        summed = f"sum without (state) ({with_scrape(grown)})" if name else with_scrape(grown)
        expression, counted = f"max by ({labels}, {SCRAPE}) ({summed})", as_stored(grown, *labels.split(", "))
        first_s, last_s = start_s + HOUR_S, start_s + hours * HOUR_S
        try:
            series = query_fairly(reader, expression, first_s, last_s, HOUR_S, problems, counted)
        except Unavailable as error:
            problems[f"{column} of the daemon's metrics: {error}"] = None
            if isinstance(error, RangeQueryFailed) and not (error.status or error.too_large):
                answers = False  # a server that cannot be reached is not asked again
                break
            continue
        for row in series:
            scrape, key = row["metric"].get(SCRAPE, ""), (*_key(row["metric"], column), column)
            values = told.setdefault(key, {}).setdefault(scrape, np.full(hours, np.nan))
            at = np.round((row["values"][:, 0] - start_s) / HOUR_S).astype(np.int64) - 1
            inside = (at >= 0) & (at < hours)
            values[at[inside]] = np.maximum(row["values"][inside, 1], 0.0)
    found: dict[str, Column] = {name: {} for name in QUERIES}
    for (*labels_of, column), values in believed_scrapes(told, problems).items():
        found[column][tuple(labels_of)] = values
    return found, answers


def _key(labels: dict[str, str], column: str) -> tuple[str, ...]:
    """Return the values of LABELS. A quota stands in the place of a resource, and its resource in that of a product."""
    if column == "quota_spare":
        return ("", "", "", labels.get("quota", ""), labels.get("resource", ""), "")
    return tuple(labels.get(label, "") for label in LABELS)
