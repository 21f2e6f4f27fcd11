"""Namespaces with more services than the answers to range queries have room for beside those of others.

A tenant may name its pods as it likes. The answer for all services would then be refused as too long, and nobody would
be seen. So services are counted by namespace first, and the most crowded namespaces are not asked for.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from autoscaler.adapters.prometheus.promql.engines import Over, over_query
from autoscaler.adapters.prometheus.promql.expressions import by
from autoscaler.adapters.prometheus.promql.labels import names_pods
from autoscaler.adapters.prometheus.promql.pod_groups import group_labels, with_group_label
from autoscaler.adapters.prometheus.range.reader import RangeReader
from autoscaler.adapters.prometheus.range.service_queries import FoundEngines, namespace_label, pod_identity
from autoscaler.config.findings import shown

MOST_SERVICES = 5_000
"""Services at a time of all namespaces that are read."""

MOST_NAMESPACES = 1_000
MOST_CHARS = 253
"""Longest name of a namespace or a pod in Kubernetes, also of those kinds with shorter ones."""

MOMENTS = 336
"""Parts of the span in which services are counted: each hour of two weeks."""

LEAST_S = 300.0


class Crowds(NamedTuple):
    """The services that are not read, and how many are left."""

    matchers: str  # that leave crowded namespaces out of each selector; "": there is none
    problems: tuple[str, ...]  # the namespaces that are left out
    services: int  # most at a time, of those that are read


def read_crowds(reader: RangeReader, found: FoundEngines, span_s: tuple[float, float]) -> Crowds:
    """Count the services of each namespace that reported at any time of each part of the span. Raises Unavailable."""
    labels = tuple(dict.fromkeys(namespace for namespace, _ in found.pairs))
    start_s, end_s = span_s
    step_s = max((end_s - start_s) / MOMENTS // 60 * 60, LEAST_S)
    first_s = end_s - (math.ceil((end_s - start_s) / step_s) - 1) * step_s  # parts end here, and reach to the begin
    counts = Counter[tuple[str, str]]()
    for engine, identity in found.engines:
        if not names_pods(identity):
            continue
        pod = pod_identity(identity)
        pods = over_query(engine, "running", identity, Over("last_over_time", step_s))
        groups = with_group_label(f"max {by(*pod)} ({pods})", pod, found.pairs)
        services = f"count {by(*labels)} (group {by(*group_labels(pod, found.pairs))} ({groups}))"
        for row in reader.query(f"topk({MOST_NAMESPACES}, {services})", first_s, end_s, step_s):
            label = namespace_label(row["metric"])
            counts[label, row["metric"].get(label, "")] += int(np.nanmax(row["values"][:, 1], initial=0.0))
    share = fair_share(counts, MOST_SERVICES)
    crowded = {place: number for place, number in counts.most_common() if number > share}
    return Crowds(
        _matchers(crowded),
        tuple(
            f"namespace {shown(name)} is left out: it has {number:,} services; "
            f"allowed: {share:,} beside those of others"
            for (_, name), number in list(crowded.items())[:5]
        )
        + ((f"{len(crowded) - 5:,} more namespaces are left out for the same reason",) if len(crowded) > 5 else ()),
        sum(number for number in counts.values() if number <= share),
    )


def fair_share(counts: Mapping[tuple[str, str], int], most: int) -> int:
    """Return the largest number up to which each may have its own, so that together they have at most `most`."""
    left = most
    for number, count in enumerate(sorted(counts.values())):
        share = left // (len(counts) - number)
        if count > share:
            return share
        left -= count
    return most


def _matchers(crowded: Mapping[tuple[str, str], int]) -> str:
    """Return matchers for all but these. One for all long names: no namespace in Kubernetes has one."""
    short = [f"{label}!={json.dumps(name, ensure_ascii=False)}" for label, name in crowded if len(name) <= MOST_CHARS]
    long = {f'{label}!~".{{{MOST_CHARS + 1},}}"' for label, name in crowded if len(name) > MOST_CHARS}
    return ",".join((*short, *sorted(long)))
