"""The pod or scrape target that the labels of a series name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from autoscaler.catalog.series import POD_LABELS, Labels, pod_of
from autoscaler.config.findings import name_some

Name = tuple[str, str]  # (namespace, pod), or (job, instance) if the metrics name no pods
Told = TypeVar("Told")


def names_pod(labels: Labels) -> bool:
    """Return whether a series has any label that names a pod."""
    return any(labels.get(pod) for _, pod in POD_LABELS)


def pod_name(labels: Labels) -> Name:
    """Return the pod that a series is about, else its scrape target; ("", "") if its labels name neither."""
    if names_pod(labels):
        return pod_of(labels) or ("", "")
    return (labels.get("job", ""), labels["instance"]) if labels.get("instance") else ("", "")


def namespace_label(labels: Labels) -> str:
    """Return the label that names the namespace of a series; "": none does."""
    return next((name for name in NAMESPACES if labels.get(name)), "")


def scrape_of(labels: Labels) -> str:
    """Return the namespace of the pod that wrote a series about others; "": it was scraped from what it is about.

    Any scraped pod may write labels that name others. Prometheus moves them, unless the scrape has `honor_labels`.
    """
    return "" if namespace_label(labels) in TRUSTED else labels.get("namespace", "")


def believed(told: Mapping[str, Mapping[str, Told]], what: str, problems: dict[str, None]) -> list[Told]:
    """Return what is believed of each namespace: what its own scrapes tell, else what all scrapes of others agree on.

    told: by namespace, and then by `scrape_of`. what: the subject, for `problems`, where contradictions are told.
    """
    found, odd = list[Told](), dict[str, list[str]]()
    for namespace, scrapes in told.items():
        own = scrapes.get("", scrapes.get(namespace))
        others = list(scrapes.values())
        if own is None and any(other != others[0] for other in others):
            odd.setdefault(name_some(sorted(scrapes)), []).append(namespace)
        else:
            found.append(others[0] if own is None else own)
    for scrapes_of, namespaces in odd.items():
        where = name_some(sorted(namespaces))
        problems[f"pods of {scrapes_of} contradict each other about {what} of {where}: none is believed"] = None
    return found


NAMESPACES = ("exported_namespace", "pod_namespace", "k8s_namespace_name", "namespace", "kubernetes_namespace")
TRUSTED = ("namespace", "kubernetes_namespace")
"""Those of them that a pod cannot write of others: the scrape sets them."""
