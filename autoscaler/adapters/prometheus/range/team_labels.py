"""The team of each service, from a label of Kubernetes that kube-state-metrics shows.

It shows labels only where `--metric-labels-allowlist` names them. The label of a workload goes before that of its pods,
and both before that of the namespace.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import chain

from autoscaler.adapters.prometheus.promql.expressions import by
from autoscaler.adapters.prometheus.promql.labels import CLUSTER_LABELS, Identity
from autoscaler.adapters.prometheus.promql.pod_groups import GROUP, with_group_label
from autoscaler.adapters.prometheus.range.node_costs import metric_label
from autoscaler.adapters.prometheus.range.reader import RangeReader
from autoscaler.adapters.prometheus.range.service_queries import ServiceName, moments_s, service_of
from autoscaler.config.findings import name_some
from autoscaler.ports import Unavailable

MOST_OF_NAMESPACE = 300
"""Workloads and labels of one namespace that are read, so that none crowds out the others."""

NAMESPACES_AT_ONCE = 50
"""Namespaces of one query: their answer is within what a reader takes."""

MAX_VALUE = 63
"""Characters of a label's value in Kubernetes; a longer one is cut."""

NAMESPACE = re.compile(r"[a-z0-9-]{1,63}")
_POD_PAIR = (("namespace", "pod"),)
_POD: Identity = tuple(chain.from_iterable(_POD_PAIR))


def read_teams(
    reader: RangeReader, label: str, services: Sequence[ServiceName], span_s: tuple[float, float]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the team of each service as last seen, "": none, and what could not be read, one line each.

    label: of Kubernetes, such as `team` or `example.com/team`.
    """
    value = metric_label(label)
    spaces = sorted({name.namespace for name in services if NAMESPACE.fullmatch(name.namespace)})
    found: dict[str, dict[ServiceName, dict[str, float]]] = {name: {} for name, _ in label_sources("")}
    problems: dict[str, None] = {}
    for first in range(0, len(spaces), NAMESPACES_AT_ONCE):
        places = "|".join(spaces[first : first + NAMESPACES_AT_ONCE])
        for name, series in label_sources(f'{value}!="",namespace=~"{places}"'):
            labels = by("namespace", *CLUSTER_LABELS, GROUP, value)
            query = f"topk {by('namespace', *CLUSTER_LABELS)} ({MOST_OF_NAMESPACE}, group {labels} ({series}))"
            try:
                rows = reader.query(query, *span_s, moments_s(span_s))
            except Unavailable as error:
                problems[f"the label {label} in {name} could not be read: {error}"] = None
                continue
            for row in rows:
                seen = found[name].setdefault(service_of(row["metric"]), {})
                seen[_clean(row["metric"].get(value, ""))] = float(row["values"][-1, 0])
            crowded = Counter(row["metric"].get("namespace", "") for row in rows)
            for space, number in crowded.items():
                if number >= MOST_OF_NAMESPACE:
                    most = f"allowed: {MOST_OF_NAMESPACE} in a namespace"
                    problems[f"the label {label} of some workloads of {space} is not read from {name}; {most}"] = None
    problems |= dict.fromkeys(reader.left_out)
    last_s = {key: own for seen in found.values() for key, own in seen.items() if any(own)}
    named = [last_s.get(name) or last_s.get(name._replace(name=""), {"": 0.0}) for name in services]
    moved = [str(name) for name, own in zip(services, named, strict=True) if len(own) > 1]
    return tuple(max(own, key=lambda team: (own[team], team)) for own in named), (*problems, *say_moved(moved))


def say_moved(services: Sequence[str]) -> tuple[str, ...]:
    """Say which services changed their team within the span: whoever sets the label on its last day gets all of it."""
    if not services:
        return ()
    of = "its whole span counts for its" if len(services) == 1 else "their whole spans count for their"
    return (f"{name_some(services)}: the team changed within the span, and {of} last one",)


def label_sources(where: str) -> tuple[tuple[str, str], ...]:
    """Return the metrics with labels, the strongest last, and their series with the name of the service."""

    def grouped(name: str, label: str) -> str:
        return f'label_replace({name}{{{where}}}, "{GROUP}", "$1", "{label}", "(.+)")'

    pods = with_group_label(f"kube_pod_labels{{{where}}}", _POD, _POD_PAIR)
    return (
        ("kube_namespace_labels", f"kube_namespace_labels{{{where}}}"),
        ("kube_pod_labels", pods),
        ("kube_statefulset_labels", grouped("kube_statefulset_labels", "statefulset")),
        ("kube_deployment_labels", grouped("kube_deployment_labels", "deployment")),
    )


def _clean(text: str) -> str:
    """Return a value that can be printed, as long as Kubernetes allows it."""
    shown = "".join(each if each.isprintable() else "?" for each in text[: MAX_VALUE + 1])
    return shown if len(shown) <= MAX_VALUE else shown[: MAX_VALUE - 1] + "…"
