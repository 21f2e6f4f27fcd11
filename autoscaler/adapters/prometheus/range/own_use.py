"""What GPUs were used for over a span, from the series that the daemon exports."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeVar

import numpy as np

from autoscaler.adapters.prometheus.promql.expressions import by, duration, in_namespaces
from autoscaler.adapters.prometheus.promql.labels import CLUSTER_LABELS
from autoscaler.adapters.prometheus.promql.pod_groups import GROUP
from autoscaler.adapters.prometheus.range.fair_query import as_stored, query_fairly
from autoscaler.adapters.prometheus.range.reader import RangeReader
from autoscaler.adapters.prometheus.range.service_queries import service_of
from autoscaler.config.findings import name_some
from autoscaler.core.table.columns import BoolColumn, FloatColumn

PREFIX = "vllm_autoscaler_"
WINDOW_S, PIECE_HOURS = 3600.0, 24
MOST_ROWS = 100_000
MOST_SECONDS = 1e12
STATE, CAUSE, USD = "state", "cause", "usd"
SERIES = (
    (STATE, "gpu_seconds_total", "state"),
    (CAUSE, "idle_gpu_seconds_total", "cause"),
    (USD, "gpu_cost_dollars_total", "state"),
)
"""Kind of a sum, its series, and the label that divides it."""


UseKey = tuple[str, str, str, str]
"""Namespace, workload, kind of a sum, and its name."""


class GpuUseRow(NamedTuple):
    """GPU-seconds of one workload in one state, or by one cause, over a span."""

    namespace: str  # as `ServiceName.space`
    workload: str
    kind: str  # STATE or CAUSE
    name: str  # published, of a GpuState or an IdleCause
    gpu_s: float
    usd: float  # NaN: no price, or not of a state


def _windows(start_s: float, end_s: float) -> Iterator[tuple[float, float, float]]:
    """Yield windows that cover a span once: their length, and the ends of the first and the last one of a query."""
    hours = int((end_s - start_s) // WINDOW_S)
    for first in range(0, hours, PIECE_HOURS):
        last = min(first + PIECE_HOURS, hours)
        yield WINDOW_S, start_s + (first + 1) * WINDOW_S, start_s + last * WINDOW_S
    if (rest_s := end_s - start_s - hours * WINDOW_S) >= 1:
        yield rest_s, end_s, end_s


def read_own_use(reader: RangeReader, span_s: tuple[float, float], problems: dict[str, None]) -> tuple[GpuUseRow, ...]:
    """Return what the daemon counted; (): it exported nothing. Raises Unavailable.

    problems: namespaces that were left out are told here.
    """
    sums: defaultdict[UseKey, float] = defaultdict(float)  # by workload, kind and name
    seen: defaultdict[str, set[UseKey]] = defaultdict(set)  # by scrape
    for window_s, first_s, last_s in _windows(*span_s):
        windows = round((last_s - first_s) / WINDOW_S) + 1
        told: dict[UseKey, dict[str, FloatColumn]] = {}
        for kind, series, label in SERIES:
            own = ("namespace", "workload", label, *CLUSTER_LABELS)
            grown = f"increase({PREFIX}{series}[{duration(window_s)}])"
            # Followers count the same time as the leader.
            query = f"sum {by(*own, SCRAPE)} (max {by(*own, 'kind', SCRAPE)} ({with_scrape(grown)}))"
            for row in query_fairly(reader, query, first_s, last_s, WINDOW_S, problems, as_stored(grown, *own)):
                labels, (at_s, added) = row["metric"], row["values"].T
                service, scrape = service_of({**labels, GROUP: labels.get("workload", "")}), labels.get(SCRAPE, "")
                key = service.space, service.name, kind, labels.get(label, "")
                if key in seen[scrape] or len(seen[scrape]) < MOST_ROWS:
                    seen[scrape].add(key)
                    at = np.round((at_s - first_s) / WINDOW_S).astype(np.int64)
                    usable = (added >= 0) & (added < MOST_SECONDS) & (at >= 0) & (at < windows)  # False for NaN
                    values = told.setdefault(key, {}).setdefault(scrape, np.full(windows, np.nan))
                    values[at[usable]] = added[usable]
        for each, values in believed_scrapes(told, problems).items():
            sums[each] += float(np.nansum(values))
    dollars = {(space, name, of): usd for (space, name, kind, of), usd in sums.items() if kind == USD and usd}
    return tuple(
        GpuUseRow(*key, gpu_s, dollars.get((key[0], key[1], key[3]), math.nan) if key[2] == STATE else math.nan)
        for key, gpu_s in sums.items()
        if key[2] != USD and gpu_s
    )


SCRAPE = "scrape"  # label with the namespace of the pod that exported a series
OF_NO_WORKLOAD = "pools and quotas"
Name = TypeVar("Name", bound=tuple[str, ...])


def with_scrape(series: str) -> str:
    """Return an expression with the namespace that series are about, and the label SCRAPE."""
    return in_namespaces(f'label_replace({series}, "{SCRAPE}", "$1", "namespace", "(.+)")')


def believed_scrapes(
    told: Mapping[Name, Mapping[str, FloatColumn]], problems: dict[str, None]
) -> dict[Name, FloatColumn]:
    """Return what is believed of each workload or pool: any scraped pod may export series of the daemon.

    told: by namespace, which its cluster may precede, name and further parts, and then by SCRAPE; float64[H], NaN:
    nothing. What a pod of the same namespace tells goes before all else. While several others tell of a workload, none
    is believed; one after the other, as where the daemon moves, all are. Both is told in `problems`. Pools and quotas
    have no namespace, and count as one: an invented one would enter sums over all.
    """
    tells: dict[tuple[str, ...], dict[str, BoolColumn]] = {}
    for key, scrapes in told.items():
        of = tells.setdefault(key[:2], {})
        for scrape, values in scrapes.items():
            of[scrape] = of.get(scrape, False) | ~np.isnan(values)
    odd, moved = dict[str, list[str]](), dict[str, list[str]]()
    for subject, of in tells.items():
        if (own := subject[0].rpartition("/")[2]) in of:
            tells[subject] = {own: of[own]}
            continue
        several = np.sum([*of.values()], axis=0) > 1
        tells[subject] = {scrape: each & ~several for scrape, each in of.items()}
        if len(of) > 1:
            named = "/".join(filter(None, subject)) or OF_NO_WORKLOAD
            (odd if several.any() else moved).setdefault(name_some(sorted(of)), []).append(named)
    for named, subjects in odd.items():
        about = f"pods of {named} all export metrics of the daemon about {name_some(subjects)}"
        problems[f"{about}: none is believed while several do"] = None
    for named, subjects in moved.items():
        problems[f"pods of {named} exported metrics of the daemon about {name_some(subjects)} at different times"] = (
            None
        )
    found = dict[Name, FloatColumn]()
    for key, scrapes in told.items():
        of = tells[key[:2]]
        parts = [np.where(of[scrape], values, np.nan) for scrape, values in scrapes.items() if scrape in of]
        if parts and not np.isnan(values := np.fmax.reduce(parts)).all():
            found[key] = values
    return found


def read_gateways(
    reader: RangeReader, span_s: tuple[float, float], problems: dict[str, None]
) -> frozenset[tuple[str, str]]:
    """Return namespace and name of the workloads that the daemon saw behind a gateway. Raises Unavailable.

    problems: namespaces that were left out are told here.
    """
    own = ("namespace", "workload")
    starts_s = np.arange(span_s[0], span_s[1], PIECE_HOURS * WINDOW_S).tolist()
    told: dict[tuple[str, str], dict[str, FloatColumn]] = {}
    for number, first_s in enumerate(starts_s):
        last_s = min(first_s + PIECE_HOURS * WINDOW_S, span_s[1])
        seen = f"max_over_time({PREFIX}gateway_waiting_requests[{duration(last_s - first_s)}])"
        query = f"count {by(*own, SCRAPE)} ({with_scrape(seen)})"
        for row in query_fairly(reader, query, last_s, last_s, WINDOW_S, problems, as_stored(seen, *own)):
            labels = row["metric"]
            if len(told) < MOST_ROWS:
                workload = labels.get("namespace", ""), labels.get("workload", "")
                of_scrape = told.setdefault(workload, {})
                of_scrape.setdefault(labels.get(SCRAPE, ""), np.full(len(starts_s), np.nan))[number] = 1.0
    return frozenset(believed_scrapes(told, problems))
