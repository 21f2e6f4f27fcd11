"""The pod or scrape target that the labels of a series name."""

from __future__ import annotations

from autoscaler.catalog.series import POD_LABELS, Labels, pod_of

Name = tuple[str, str]  # (namespace, pod), or (job, instance) if the metrics name no pods


def names_pod(labels: Labels) -> bool:
    """Return whether a series has any label that names a pod."""
    return any(labels.get(pod) for _, pod in POD_LABELS)


def pod_name(labels: Labels) -> Name:
    """Return the pod that a series is about, else its scrape target; ("", "") if its labels name neither."""
    if names_pod(labels):
        return pod_of(labels) or ("", "")
    return (labels.get("job", ""), labels["instance"]) if labels.get("instance") else ("", "")
