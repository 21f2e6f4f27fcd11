"""The team of each service, from a label of Kubernetes that kube-state-metrics shows.

It shows labels only where `--metric-labels-allowlist` names them. The label of a workload goes before that of its pods,
and both before that of the namespace.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from autoscaler.adapters.prometheus.promql.expressions import by
from autoscaler.adapters.prometheus.promql.labels import CLUSTER_LABELS, Identity
from autoscaler.adapters.prometheus.promql.pod_groups import GROUP, with_group_label
from autoscaler.adapters.prometheus.range.node_costs import metric_label
from autoscaler.adapters.prometheus.range.reader import RangeReader
from autoscaler.adapters.prometheus.range.service_queries import ServiceName, moments_s, service_of
from autoscaler.ports import Unavailable

MOST_OF_NAMESPACE = 300
"""Workloads and labels of one namespace that are read, so that none crowds out the others."""

MAX_VALUE = 63
"""Characters of a label's value in Kubernetes; a longer one is cut."""

_POD_PAIR = (("namespace", "pod"),)
_POD: Identity = tuple(chain.from_iterable(_POD_PAIR))


def read_teams(
    reader: RangeReader, label: str, services: Sequence[ServiceName], span_s: tuple[float, float]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the team of each service as last seen, "": none, and what could not be read, one line each.

    label: of Kubernetes, such as `team` or `example.com/team`.
    """
    value = metric_label(label)
    found: dict[ServiceName, str] = {}
    problems = []
    for name, series in _sources(value):
        labels = by("namespace", *CLUSTER_LABELS, GROUP, value)
        query = f"topk {by('namespace', *CLUSTER_LABELS)} ({MOST_OF_NAMESPACE}, group {labels} ({series}))"
        try:
            rows = reader.query(query, *span_s, moments_s(span_s))
        except Unavailable as error:
            problems.append(f"the label {label} in {name} could not be read: {error}")
            continue
        seen: dict[ServiceName, tuple[float, str]] = {}
        for row in rows:
            key = service_of(row["metric"])
            last_s = float(row["values"][-1, 0])
            seen[key] = max(seen.get(key, (0.0, "")), (last_s, _clean(row["metric"].get(value, ""))))
        found |= {key: team for key, (_, team) in seen.items() if team}
    whole = (name._replace(name="") for name in services)
    teams = (found.get(name) or found.get(space, "") for name, space in zip(services, whole, strict=True))
    return tuple(teams), tuple(problems)


def _sources(value: str) -> tuple[tuple[str, str], ...]:
    """Return the metrics with labels, the strongest last, and their series with the name of the service."""

    def grouped(name: str, label: str) -> str:
        return f'label_replace({name}{{{value}!=""}}, "{GROUP}", "$1", "{label}", "(.+)")'

    pods = with_group_label(f'kube_pod_labels{{{value}!=""}}', _POD, _POD_PAIR)
    return (
        ("kube_namespace_labels", f'kube_namespace_labels{{{value}!=""}}'),
        ("kube_pod_labels", pods),
        ("kube_statefulset_labels", grouped("kube_statefulset_labels", "statefulset")),
        ("kube_deployment_labels", grouped("kube_deployment_labels", "deployment")),
    )


def _clean(text: str) -> str:
    """Return a value that can be printed, as long as Kubernetes allows it."""
    shown = "".join(each if each.isprintable() else "?" for each in text[: MAX_VALUE + 1])
    return shown if len(shown) <= MAX_VALUE else shown[: MAX_VALUE - 1] + "…"
