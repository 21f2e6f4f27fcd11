"""The requirements of a replica on nodes: devices, node selector, required node affinity and tolerations.

Which nodes meet them is found in `inventory.node_admission`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from autoscaler.adapters.kubernetes.api.pod_objects import NodeTerm, PodSpec
from autoscaler.adapters.kubernetes.pods.requests import requested_capacity

# Set and removed by the control plane. A node that is cordoned or not ready still holds the pods that run on it.
CONTROL_PLANE_TAINTS = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")


class PodToleration(NamedTuple):
    key: str = ""  # "": every key
    operator: str = ""  # "": Equal
    value: str = ""
    effect: str = ""  # "": every effect


class NodeExpression(NamedTuple):
    key: str
    operator: str
    values: tuple[str, ...] = ()


NAME_FIELD = "field:metadata.name"
"""The key of an expression about the name of the node. No label has it, because a key has no colon."""

DEVICES_FIELD = "devices:"
"""The key, with the resource after it, of an expression about the devices that drivers publish on the node (DRA)."""


class Needs(NamedTuple):
    """The requirements of one replica on nodes."""

    resource: str = ""
    largest: float = math.nan  # devices of its largest pod, which must fit on one node
    smallest: float = math.nan  # devices of its smallest pod with devices
    total: float = math.nan  # devices of all its pods together
    selector: tuple[tuple[str, str], ...] = ()
    terms: tuple[tuple[NodeExpression, ...], ...] | None = None  # of the required node affinity; one must match
    tolerations: tuple[PodToleration, ...] = ()
    cpu: float = 0.0  # cores of one pod with devices; 0: no request
    memory: float = 0.0  # bytes
    devices: tuple[NodeExpression, ...] = ()  # about the devices of the node that its claims select
    pods: tuple[float, ...] = ()  # devices of each of its pods with devices, if these differ; descending

    def label_keys(self) -> frozenset[str]:
        """Return the keys of node labels that it reads, and those of the name and the devices of the node."""
        expressions = [*self.devices, *(each for term in self.terms or () for each in term)]
        return frozenset([key for key, _ in self.selector] + [each.key for each in expressions])


def read_needs(spec: PodSpec, devices: float) -> Needs:
    """Return the needs of a replica with one pod. devices: of the pod; NaN: not known."""
    cpu, memory = requested_capacity(spec)
    return Needs(
        cpu=cpu,
        memory=memory,
        largest=devices,
        smallest=devices,
        total=devices,
        selector=tuple(sorted((spec.node_selector or {}).items())),
        terms=_terms(spec),
        tolerations=tuple(
            PodToleration(each.key, each.operator, each.value, each.effect) for each in spec.tolerations or ()
        ),
    )


def conditions_on_nodes(spec: PodSpec) -> int:
    """Return the labels, values and tolerations that a pod compares with nodes: the work that it causes for each."""
    affinity = spec.affinity.node_affinity if spec.affinity else None
    terms = (affinity.required.node_selector_terms if affinity and affinity.required else None) or ()
    expressions = [each for term in terms for each in (*(term.match_expressions or ()), *(term.match_fields or ()))]
    values = sum(1 + len(each.values or ()) for each in expressions)
    return len(terms) + values + len(spec.node_selector or ()) + len(spec.tolerations or ())


def group_needs(leader: Needs, workers: Sequence[tuple[Needs, int]]) -> Needs:
    """Return the needs of a group of pods. Workers with GPUs decide, because most pods are workers.

    workers: with the number of pods of each, which is above 0.
    """
    pods = [each for each in (leader.total, *(worker.total for worker, _ in workers)) if each != 0]
    deciding = max(
        ((worker, count) for worker, count in workers if worker.total != 0),
        key=lambda found: found[1],
        default=(leader, 1),
    )[0]
    if any(map(math.isnan, pods)):  # the same object, so that equal needs compare as equal
        return deciding._replace(largest=math.nan, smallest=math.nan, total=math.nan)
    each = [(leader.total, 1), *((worker.total, count) for worker, count in workers)]
    return deciding._replace(
        largest=max(pods, default=0.0),
        smallest=min(pods, default=0.0),
        total=leader.total + sum(count * worker.total for worker, count in workers),
        pods=tuple(devices for devices, count in sorted(each, reverse=True) if devices for _ in range(count))
        if len(set(pods)) > 1
        else (),
    )


def _terms(spec: PodSpec) -> tuple[tuple[NodeExpression, ...], ...] | None:
    """Return the terms of the required node affinity; None: it excludes no node."""
    affinity = spec.affinity.node_affinity if spec.affinity else None
    terms = (affinity.required.node_selector_terms if affinity and affinity.required else None) or ()
    return tuple(tuple(_expressions(term)) for term in terms) or None


def _expressions(term: NodeTerm) -> Iterator[NodeExpression]:
    """Return the expressions of a term about labels and about the name of the node."""
    for each in term.match_expressions or ():
        yield NodeExpression(each.key, each.operator, tuple(each.values or ()))
    for each in term.match_fields or ():
        if each.key == "metadata.name":  # there is no other field yet
            yield NodeExpression(NAME_FIELD, each.operator, tuple(each.values or ()))
