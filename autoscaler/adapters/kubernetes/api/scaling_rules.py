"""Reads the scaling rules of a cluster once: ScaledObjects, HPAs, and objects that Knative may scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autoscaler.adapters.kubernetes.api.client import Kube
from autoscaler.adapters.kubernetes.api.listing import list_all
from autoscaler.adapters.turns import in_turns
from autoscaler.config.check.manifests import text_at
from autoscaler.config.settings import KubeSettings

RESOURCES = (
    "scaledobjects.keda.sh",
    "horizontalpodautoscalers.autoscaling",
    "deployments.apps",
    "inferenceservices.serving.kserve.io",
    "services.serving.knative.dev",
)
Objects = Sequence[Mapping[str, object]]


async def read_cluster(settings: KubeSettings, namespaces: Sequence[str]) -> tuple[Objects, tuple[str, ...]]:
    """Return the objects of a cluster that may be scaling rules, and problems. Raises ApiError.

    namespaces: the only ones that are read; (): all. They take turns in the objects, so that none crowds out others.
    """
    async with Kube.connect(settings) as kube:
        listed = await list_all(kube, namespaces, RESOURCES)
    problems = (f"scaling rules of kind {kind}: {why}" for kind, why in sorted(listed.problems.items()))
    return in_turns(listed.objects, lambda each: text_at(each, "metadata", "namespace")), tuple(problems)
