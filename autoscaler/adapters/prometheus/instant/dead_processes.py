"""Gauges of pods in which a dead process left series behind, evaluated by the rule of direct scraping.

A process writes its gauges to a file that outlives it, and labels them with its number. PromQL cannot tell which number
is the highest. So the series of such pods are read as they are, and their values replace those that PromQL computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from autoscaler.adapters.prometheus.decode import Vector, parse_labels
from autoscaler.adapters.prometheus.instant.pod_join import LabelSet
from autoscaler.adapters.prometheus.instant.query_round import QueryRound
from autoscaler.adapters.prometheus.promql.labels import METRIC, Identity
from autoscaler.adapters.prometheus.promql.sources import dead_processes_query
from autoscaler.catalog.engines import GAUGES, Engine
from autoscaler.catalog.evaluate import read
from autoscaler.catalog.series import Labels

Values = Mapping[str, Mapping[LabelSet, float]]  # by column, and by the labels of the answer for the column


async def read_dead_processes(
    query_round: QueryRound, at_s: float, engines: Sequence[Engine], identities: Sequence[Identity], apart: Identity
) -> Values:
    """Return the gauges of these pods. apart: labels that tell the sources of a pod apart."""
    values: dict[str, dict[LabelSet, float]] = {}
    for engine in engines:
        for identity in identities if engine.process_labels else ():
            answer = await query_round.query("processes", dead_processes_query(engine, identity), at_s)
            pods: dict[LabelSet, dict[str, list[tuple[Labels, float]]]] = {}
            for raw, value in zip(answer.vector.labels, answer.vector.values.tolist(), strict=True) if answer else ():
                labels = parse_labels(raw)
                pod = frozenset((name, text) for name in (*identity, *apart) if (text := labels.get(name)))
                pods.setdefault(pod, {}).setdefault(labels.pop(METRIC, ""), []).append((labels, value))
            for column in GAUGES & engine.readings.keys():
                found = values.setdefault(column, {})
                found |= {pod: read(engine.readings[column], series) for pod, series in pods.items()}
    return values


def without_dead_processes(vector: Vector, values: Mapping[LabelSet, float]) -> Vector:
    """Return the vector with these values in place of its own."""
    if not values:
        return vector
    kept = vector.values.copy()
    for index, raw in enumerate(vector.labels):
        kept[index] = values.get(frozenset(parse_labels(raw).items()), kept[index])
    return replace(vector, values=kept)
