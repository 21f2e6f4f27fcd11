"""Series of an answer: whose they are, whether a selector takes them, and which name was meant."""

from __future__ import annotations

import re
from difflib import get_close_matches

from autoscaler.config.preflight.facts import Answer, Labels, QueryFacts, Sample
from autoscaler.config.preflight.patterns import fits
from autoscaler.config.preflight.promql import MetricSelector
from autoscaler.config.preflight.workloads import ModelWorkload

_PLACES = (("exported_namespace", "exported_pod"), ("namespace", "pod"), ("k8s_namespace_name", "k8s_pod_name"))
"""Labels that name a pod; the last are those of the OpenTelemetry collector."""


def samples_of(workload: ModelWorkload, facts: QueryFacts, answer: Answer) -> list[Sample]:
    """Return the series of an answer that are about a workload."""
    index, namespace = facts.index(answer), workload.thing.namespace
    found_samples = [each for each in index.of_owner(namespace, workload.owner_name) if is_of(workload, each.labels)]
    if found_samples or not workload.model_label:
        return found_samples
    return [each for each in index.of_label("model_name", workload.model_label) if is_of(workload, each.labels)]


def is_of(workload: ModelWorkload, labels: Labels) -> bool:
    """Return whether a series is of a pod of a workload: by pod, else by namespace and model."""
    for namespace, pod in _PLACES:
        if labels.get(pod):
            return labels.get(namespace) == workload.thing.namespace and bool(
                workload.pod_pattern().fullmatch(labels[pod])
            )
    model = workload.model_label
    return bool(model) and labels.get("model_name") == model and labels.get("namespace") == workload.thing.namespace


def nearest_name(name: str, names: frozenset[str]) -> str:
    """Return the name that was probably meant; "": there is none like it."""
    plain = _plain_name(name)
    same = sorted(each for each in names if _plain_name(each) == plain and each != name)
    if same:
        return same[0]
    ends = sorted(
        (
            each
            for each in names
            if each != name and (_plain_name(each).endswith(plain) or plain.endswith(_plain_name(each)))
        ),
        key=len,
    )
    ends = [each for each in ends if len(_plain_name(each)) >= 8]
    if ends:
        return ends[-1]
    close = get_close_matches(name, [each for each in names if abs(len(each) - len(name)) < 12], n=1, cutoff=0.8)
    return close[0] if close else ""


def _plain_name(name: str) -> str:
    return re.sub(r"^(ray_|kserve_|otel_)", "", name.replace(":", "_").replace(".", "_").lower())


def takes(op: str, wanted: str, value: str) -> bool:
    if op in ("=", "!="):
        return (value == wanted) == (op == "=")
    fit = fits(wanted, value)
    return fit is None or fit == (op == "=~")


def takes_series(selector: MetricSelector, labels: Labels) -> bool:
    return all(takes(m.op, m.value, labels.get(m.name, "")) for m in selector.matchers)


def takes_namespace(selector: MetricSelector, labels: Labels) -> bool:
    """Return whether series fit all matchers on namespaces, so that others are compared within it."""
    spaces = [m for m in selector.matchers if m.name in ("namespace", "exported_namespace")]
    return all(takes(m.op, m.value, labels.get(m.name, "")) for m in spaces)
