"""Which pod a series is about."""

from __future__ import annotations

from autoscaler.catalog.series import POD_LABELS, Labels, pod_of

Name = tuple[str, str]  # (namespace, pod), or (job, instance) where metrics know no pods


def names_pod(labels: Labels) -> bool:
    """Say whether a series has a label for a pod at all."""
    return any(labels.get(pod) for _, pod in POD_LABELS)


def pod_name(labels: Labels) -> Name:
    """Return the pod that a series is about, else its scrape target; ("", "") where its labels name neither."""
    if names_pod(labels):
        return pod_of(labels) or ("", "")
    return (labels.get("job", ""), labels["instance"]) if labels.get("instance") else ("", "")
