"""The metrics endpoint of a pod: what its target declares, what it states itself, and what its template says."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from autoscaler.adapters.kubernetes.api.pod_objects import PodObject as SeenPod
from autoscaler.adapters.kubernetes.pods.model_source import annotated_source
from autoscaler.adapters.kubernetes.pods.template import MESH_PORTS, Facts
from autoscaler.catalog.engines import DEFAULT_PORT, ENGINES
from autoscaler.catalog.weights import KSERVE_SOURCES
from autoscaler.config.annotations import WEIGHTS, read_prometheus_annotations
from autoscaler.config.findings import UNREADABLE

PROMETHEUS_PREFIX = b"prometheus.io/"
SOURCE_ANNOTATIONS = tuple(name.encode() for name in (WEIGHTS, *KSERVE_SOURCES))


class Endpoint(NamedTuple):
    """A metrics endpoint, and the model behind it. The fields are those of `core.model.fleet.Pod`."""

    metrics_port: int = DEFAULT_PORT
    metrics_scheme: str = "http"
    metrics_path: str = ""
    engine: str = ""  # "": that of the workload
    weights: str = ""


UNSTATED = Endpoint(0, "", "", "")


class Endpoints(NamedTuple):
    """The metrics endpoints of a target's pods.

    A pod that its template no longer describes states its own: it was made by an earlier one.
    """

    declared: Endpoint = UNSTATED  # for all pods
    otherwise: Endpoint = Endpoint()  # by the template

    def of_pod(self, own: Endpoint) -> Endpoint:
        """Return the endpoint of a pod. own: what it states itself."""
        if not own.metrics_port and own.engine and not self.declared.engine:
            own = own._replace(metrics_port=ENGINES[own.engine].port)
        declared, otherwise = self.declared, self.otherwise
        return Endpoint(
            declared.metrics_port or own.metrics_port or otherwise.metrics_port,
            declared.metrics_scheme or own.metrics_scheme or otherwise.metrics_scheme,
            declared.metrics_path or own.metrics_path or otherwise.metrics_path,
            declared.engine or own.engine or otherwise.engine,
            declared.weights or own.weights or otherwise.weights,
        )


def stated_endpoint(seen: SeenPod, facts: Facts) -> Endpoint:
    """Return the metrics endpoint that a pod states itself. Ports that a service mesh adds to pods are none."""
    raw = bytes(seen.metadata.annotations)
    stated = read_prometheus_annotations(decode_annotations(raw)) if PROMETHEUS_PREFIX in raw else {}
    weights = annotated_source(decode_annotations(raw)) if any(name in raw for name in SOURCE_ANNOTATIONS) else None
    port = stated.get("metrics-port", 0)
    if port in MESH_PORTS:
        port, stated = 0, {}
    port = port or (facts.port if facts.states_port else 0)
    scheme, path = stated.get("metrics-scheme", ""), stated.get("metrics-path", "")
    return Endpoint(port, scheme, path, facts.engine, str(weights or facts.source))


def decode_annotations(raw: bytes) -> dict[str, str]:
    """Return the annotations of a pod; none where they cannot be read."""
    try:
        return msgspec.json.decode(raw, type=dict[str, str] | None) or {}
    except UNREADABLE:
        return {}
