"""Namespaces with more services than the answers to range queries have room for.

A tenant may name its pods as it likes. The answer for all services would then be refused as too long, and nobody would
be seen. So services are counted by namespace first, and the most crowded namespaces are not asked for.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np

from autoscaler.adapters.prometheus.pod_labels import namespace_label, scrape_of
from autoscaler.adapters.prometheus.promql.engines import Over, over_query
from autoscaler.adapters.prometheus.promql.expressions import by
from autoscaler.adapters.prometheus.promql.labels import names_pods
from autoscaler.adapters.prometheus.promql.matchers import Place, leave_out
from autoscaler.adapters.prometheus.promql.pod_groups import group_labels, with_group_label
from autoscaler.adapters.prometheus.range.fair_query import MOST_NAMESPACES, MOST_SERVICES
from autoscaler.adapters.prometheus.range.reader import RangeReader
from autoscaler.adapters.prometheus.range.service_queries import FoundEngines, pod_identity
from autoscaler.config.findings import shown
from autoscaler.core.table.fair_share import fair_share

MOMENTS = 336
"""Parts of the span in which services are counted: each hour of two weeks."""

LEAST_S = 300.0
MOST_LEFT_OUT = 100
"""Namespaces that are left out by name. More are a pod's that invents them, so those of scrapes are counted."""

MOST_TOLD = 5


class Crowd(NamedTuple):
    """The services of one namespace, at a time."""

    services: int
    allowed: int


class Crowds(NamedTuple):
    """The services that are not read, and how many are left."""

    matchers: str  # that leave crowded namespaces out of each selector; "": there is none
    problems: tuple[str, ...]  # the namespaces that are left out
    services: int  # most at a time, of those that are read


def read_crowds(
    reader: RangeReader,
    found: FoundEngines,
    span_s: tuple[float, float],
    wanted: Collection[str] = (),
    most: int = MOST_SERVICES,
) -> Crowds:
    """Count the services of each namespace that reported at any time of each part of the span. Raises Unavailable.

    wanted: namespaces that are reported; none: all.
    most: services for which steps are short. A few namespaces because of which there are more are left out, too.
    """
    labels = tuple(dict.fromkeys(namespace for namespace, _ in found.pairs))
    start_s, end_s = span_s
    step_s = max((end_s - start_s) / MOMENTS // 60 * 60, LEAST_S)
    first_s = end_s - (math.ceil((end_s - start_s) / step_s) - 1) * step_s  # parts end here, and reach to the begin
    seen, of_scrapes = dict[Place, Counter[str]](), Counter[Place]()
    for engine, identity in found.engines:
        if not names_pods(identity):
            continue
        pod = pod_identity(identity)
        pods = over_query(engine, "running", identity, Over("last_over_time", step_s))
        groups = with_group_label(f"max {by(*pod)} ({pods})", pod, found.pairs)
        services = f"count {by(*labels)} (group {by(*group_labels(pod, found.pairs))} ({groups}))"
        for row in reader.query(f"topk({MOST_NAMESPACES}, {services})", first_s, end_s, step_s):
            label, scrape = namespace_label(row["metric"]), scrape_of(row["metric"])
            about, number = (label, row["metric"].get(label, "")), int(np.nanmax(row["values"][:, 1], initial=0.0))
            seen.setdefault(about, Counter())[scrape] += number
            of_scrapes[("namespace", scrape) if scrape else about] += number
    counts = _charge(seen, most)
    if len(_crowded(counts, MOST_SERVICES)) > MOST_LEFT_OUT:
        counts = of_scrapes
    asked = Counter({place: number for place, number in counts.items() if not wanted or place[1] in wanted})
    crowded = _crowded(asked, MOST_SERVICES) | _crowded(counts - asked, MOST_SERVICES)
    asked = Counter({place: number for place, number in asked.items() if place not in crowded})
    slow = _crowded(asked, most)
    slow = slow if 2 * len(slow) <= len(asked) else {}  # else the steps are long because there are many
    return Crowds(
        leave_out(crowded | slow),
        (
            *_told(crowded, "those of others have room"),
            *_told(slow, "steps stay short for others (--namespace reads it)"),
        ),
        sum(number for place, number in asked.items() if place not in slow),
    )


def _charge(seen: Mapping[Place, Counter[str]], most: int) -> Counter[Place]:
    """Return the services of each namespace. seen: by the namespace that they are in, and by `scrape_of`.

    Any pod may write of others. Where that makes one crowded whose own pods are scraped, it counts for the scrape.
    """
    counts = Counter({place: scrapes.total() for place, scrapes in seen.items()})
    for place in _crowded(counts, most):
        if ("namespace", place[1]) in seen:
            counts[place] = seen[place][""]
            counts.update({("namespace", scrape): number for scrape, number in seen[place].items() if scrape})
    return counts


def _told(crowded: Mapping[Place, Crowd], why: str) -> tuple[str, ...]:
    """Say of which namespaces nothing is read."""
    said = [
        f"namespace {shown(name)} is left out: it has {number:,} services; allowed: {allowed:,}, so that {why}"
        for (_, name), (number, allowed) in crowded.items()
    ]
    more = len(said) - MOST_TOLD
    return (*said[:MOST_TOLD], *([f"{more:,} more namespaces are left out for the same reason"] if more > 0 else ()))


def _crowded(counts: Counter[Place], most: int) -> dict[Place, Crowd]:
    """Return the namespaces that have more services than their share of `most`, the largest first."""
    share = fair_share(counts.values(), most)
    return {place: Crowd(number, share) for place, number in counts.most_common() if number > share}
