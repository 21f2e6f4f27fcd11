"""Reads pods and their controllers from kube-state-metrics, which is optional.

Both queries are restricted to namespaces in which an engine reports or has reported.
Source: kube-state-metrics v2.20 `docs/metrics`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from autoscaler.adapters.prometheus.decode import Vector, parse_labels
from autoscaler.adapters.prometheus.pod_labels import believed, scrape_of
from autoscaler.adapters.prometheus.promql.expressions import in_namespaces
from autoscaler.adapters.prometheus.promql.gpus import MAX_DEVICES
from autoscaler.adapters.prometheus.promql.labels import METRIC
from autoscaler.catalog.accelerators import from_label
from autoscaler.catalog.accelerators import labels as accelerator_labels
from autoscaler.core.model.fleet import PendingCause

Name = tuple[str, str]  # (namespace, name)
MAX_REPLICAS = 2**31 - 1  # of the API: int32

_CONTROLLED = 'owner_is_controller=~"|true"'
_DEVICES = f'resource=~"{accelerator_labels()}"'
# Label matchers, by metric.
_POD_METRICS = {
    "kube_pod_owner": _CONTROLLED,
    "kube_pod_created": "",
    "kube_pod_deletion_timestamp": "",
    "kube_pod_status_phase": 'phase=~"Failed|Succeeded"',
    "kube_pod_status_ready": 'condition="true"',
    "kube_pod_status_ready_time": "",
    "kube_pod_status_scheduled_time": "",
    "kube_pod_status_unschedulable": "",
    "kube_pod_container_state_started": "",
    "kube_pod_container_status_restarts_total": "",
    "kube_pod_container_status_waiting_reason": "",
    "kube_pod_container_resource_requests": _DEVICES,
    "kube_pod_init_container_resource_requests": _DEVICES,
}
_POD_LABELS = ("pod", "container", "owner_kind", "owner_name", "phase", "reason", "resource")
_OWNER_METRICS = {
    "kube_replicaset_owner": _CONTROLLED,
    "kube_deployment_spec_replicas": "",
    "kube_statefulset_replicas": "",
}
_OWNER_LABELS = ("replicaset", "owner_kind", "owner_name", "deployment", "statefulset")

_TIMES = {
    "kube_pod_created": "created_s",
    "kube_pod_status_scheduled_time": "scheduled_s",
    "kube_pod_status_ready_time": "ready_s",
}
_BLOCKED = {
    "ImagePullBackOff": PendingCause.IMAGE_PULL,
    "ErrImagePull": PendingCause.IMAGE_PULL,
    "InvalidImageName": PendingCause.IMAGE_PULL,
    "CrashLoopBackOff": PendingCause.CRASH_LOOP,
    "CreateContainerConfigError": PendingCause.CONFIG_ERROR,
    "CreateContainerError": PendingCause.CONFIG_ERROR,
    "RunContainerError": PendingCause.CONFIG_ERROR,
}
_PREFIX = "exported_"
_MOVED = _PREFIX + "namespace"
_NAMESPACE = re.compile(r"[a-z0-9-]{1,63}")


@dataclass
class PodFacts:
    """Facts about one pod. Times are Unix times, NaN if unknown."""

    controller: Name = ("", "")  # (kind, name)
    ready: bool | None = None  # None: unknown
    ended: bool = False  # Failed or Succeeded; its devices are free
    terminating: bool = False
    blocked: PendingCause = PendingCause.NONE
    created_s: float = math.nan
    scheduled_s: float = math.nan
    started_s: float = math.nan
    ready_s: float = math.nan
    gpus: dict[str, float] = field(default_factory=dict)  # devices requested, by resource name


@dataclass
class _Containers:
    """Facts about the containers of a pod, by container name."""

    devices: dict[tuple[str, str], float] = field(default_factory=dict)  # requested, by container and resource
    before: dict[str, float] = field(default_factory=dict)  # requested by the largest init container, by resource
    started_s: dict[str, float] = field(default_factory=dict)
    restarted: set[str] = field(default_factory=set)

    def apply_to(self, pod: PodFacts) -> None:
        """Set the facts of a pod that depend on all its containers.

        The engine's container is the one that requests devices. After a restart only the time of the restart is known,
        so the start time of the pod is unknown.
        """
        for (_, resource), count in self.devices.items():
            pod.gpus[resource] = pod.gpus.get(resource, 0.0) + count
        for resource, count in self.before.items():
            pod.gpus[resource] = max(pod.gpus.get(resource, 0.0), count)
        engines = {container for container, _ in self.devices}
        engines &= self.started_s.keys() | self.restarted
        started_s = [at_s for name, at_s in self.started_s.items() if not engines or name in engines]
        restarted = self.restarted & engines if engines else self.restarted
        pod.started_s = max(started_s) if started_s and not restarted else math.nan


@dataclass(frozen=True)
class Controllers:
    """Facts about the controllers of pods."""

    replica_set_owners: dict[Name, Name]  # (kind, name) of the owner, by (namespace, ReplicaSet)
    replicas: dict[tuple[str, str, str], float]  # spec.replicas, by (namespace, kind, name)


def pods_query(engines: str, silent: Sequence[str] = ()) -> str:
    """Return the query for the pods of all namespaces in which `engines`, a vector expression, has a series.

    silent: further namespaces, without such series; invalid names are left out.
    """
    return _query(_POD_METRICS, _POD_LABELS, engines, silent)


def controllers_query(engines: str, silent: Sequence[str] = ()) -> str:
    """Return the query for ReplicaSets and spec.replicas in the same namespaces."""
    return _query(_OWNER_METRICS, _OWNER_LABELS, engines, silent)


def read_pods(vector: Vector, problems: dict[str, None]) -> dict[Name, PodFacts]:
    """Return the facts about each pod by (namespace, name).

    Any scraped pod may write such series about others: see `believed`, which tells `problems`.
    """
    told: dict[str, dict[str, dict[Name, PodFacts]]] = {}  # by namespace and scrape
    containers: dict[tuple[str, Name], _Containers] = {}  # by scrape and pod
    for raw, value in zip(vector.labels, vector.values.tolist(), strict=True):
        scraped = parse_labels(raw)
        labels, scrape = _own_labels(scraped), scrape_of(scraped)
        namespace, name, metric = labels.get("namespace", ""), labels.get("pod", ""), labels.get(METRIC, "")
        if not namespace or not name or not math.isfinite(value):
            continue
        pods = told.setdefault(namespace, {}).setdefault(scrape, {})
        pod = pods.setdefault((namespace, name), PodFacts())
        if "container_" in metric:
            of_pod = containers.setdefault((scrape, (namespace, name)), _Containers())
            _update_container(pod, of_pod, metric, labels, value)
        elif metric == "kube_pod_owner":
            pod.controller = labels.get("owner_kind", ""), labels.get("owner_name", "")
        elif metric == "kube_pod_status_ready":
            pod.ready = value == 1
        elif metric == "kube_pod_deletion_timestamp":
            pod.terminating = True
        elif metric == "kube_pod_status_phase":
            pod.ended |= value == 1
        elif metric == "kube_pod_status_unschedulable":
            pod.blocked = PendingCause.UNSCHEDULABLE if value == 1 else pod.blocked
        elif metric in _TIMES:
            setattr(pod, _TIMES[metric], value)
    for (scrape, pod_name), of_pod in containers.items():
        of_pod.apply_to(told[pod_name[0]][scrape][pod_name])
    return {name: pod for pods in believed(told, "pods", problems) for name, pod in pods.items()}


def _update_container(
    pod: PodFacts, containers: _Containers, metric: str, labels: Mapping[str, str], value: float
) -> None:
    """Update the facts from a series of one container."""
    container, resource = labels.get("container", ""), from_label(labels.get("resource", ""))
    if metric == "kube_pod_container_status_waiting_reason":
        pod.blocked = _BLOCKED.get(labels.get("reason", ""), pod.blocked) if value == 1 else pod.blocked
    elif metric == "kube_pod_container_status_restarts_total":
        if value > 0:
            containers.restarted.add(container)
    elif metric == "kube_pod_container_state_started":
        containers.started_s[container] = value
    elif not resource or not 0 <= value <= MAX_DEVICES:
        return
    elif metric == "kube_pod_container_resource_requests":
        containers.devices[container, resource] = value
    elif metric == "kube_pod_init_container_resource_requests":
        containers.before[resource] = max(containers.before.get(resource, 0.0), value)


def read_controllers(vector: Vector, problems: dict[str, None]) -> Controllers:
    """Return the owners of ReplicaSets and the spec.replicas of controllers; `problems` as in `read_pods`."""
    told: dict[str, dict[str, Controllers]] = {}  # by namespace and scrape
    for raw, value in zip(vector.labels, vector.values.tolist(), strict=True):
        scraped = parse_labels(raw)
        labels = _own_labels(scraped)
        namespace = labels.get("namespace", "")
        controllers = told.setdefault(namespace, {}).setdefault(scrape_of(scraped), Controllers({}, {}))
        if replica_set := labels.get("replicaset"):
            if labels.get("owner_name"):  # "<none>" for ReplicaSets without an owner, which is no known kind
                controllers.replica_set_owners[namespace, replica_set] = (
                    labels.get("owner_kind", ""),
                    labels["owner_name"],
                )
        elif 0 <= value <= MAX_REPLICAS:
            for kind, label in (("Deployment", "deployment"), ("StatefulSet", "statefulset")):
                if name := labels.get(label):
                    controllers.replicas[namespace, kind, name] = value
    found = Controllers({}, {})
    for controllers in believed(told, "controllers", problems):
        found.replica_set_owners.update(controllers.replica_set_owners)
        found.replicas.update(controllers.replicas)
    return found


def _own_labels(labels: dict[str, str]) -> dict[str, str]:
    """Return the labels as kube-state-metrics wrote them; without `honor_labels` some were moved."""
    if not labels.get(_MOVED):
        return labels
    moved = {name.removeprefix(_PREFIX): text for name, text in labels.items() if name.startswith(_PREFIX)}
    return {**labels, **moved}


def _query(metrics: Mapping[str, str], labels: tuple[str, ...], engines: str, silent: Sequence[str]) -> str:
    """Return a query that works whether the scrape kept the labels of kube-state-metrics or moved them."""
    kept = f"group by (namespace) ({in_namespaces(engines)})"
    moved = f'label_replace({kept}, "{_MOVED}", "$1", "namespace", "(.+)")'
    names = [name for name in silent if _NAMESPACE.fullmatch(name)]
    alternatives = []
    for label, matcher, present in (
        ("namespace", f'{_MOVED}=""', kept),
        (_MOVED, f'{_MOVED}!=""', moved),
    ):
        alternatives.append(f"({_series_of(metrics, matcher)}) and on ({label}) {present}")
        if names:
            alternatives.append(_series_of(metrics, f'{matcher},{label}=~"{"|".join(names)}"'))
    plain = ("namespace", *labels)
    by = ", ".join((METRIC, *plain, *(_PREFIX + label for label in plain)))
    return f"max by ({by}) ({' or '.join(alternatives)})"


def _series_of(metrics: Mapping[str, str], matcher: str) -> str:
    """Return an expression for all series of these metrics, with their names in the label `metric`."""
    return " or ".join(
        f'label_replace({name}{{{",".join(filter(None, (matchers, matcher)))}}}, "{METRIC}", "{name}", "", "")'
        for name, matchers in metrics.items()
    )
