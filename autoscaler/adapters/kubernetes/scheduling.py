"""The nodes that admit a pod template, by the scheduler's rules: node selector, required node affinity, taints.

Pure functions. Nodes that are equal for every template form one group, so thousands of nodes become a few groups. Only
the capacity of nodes counts here, not what is free on them now.
Source: Kubernetes, "Assigning Pods to Nodes", "Taints and Tolerations".
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from autoscaler.adapters.kubernetes.api.objects import PodSpec
from autoscaler.core.model.fleet import PoolOverlap

EXCLUDING = ("NoSchedule", "NoExecute")
# Set and removed by the control plane. A node that is cordoned or not ready still holds the pods that run on it.
CONTROL_PLANE_TAINTS = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
WORDS_LIMIT = 128  # characters that describe the nodes of a pool

Labels = Mapping[str, str]


class Taint(NamedTuple):
    key: str
    value: str
    effect: str


class Toleration(NamedTuple):
    key: str = ""  # "": every key
    operator: str = ""  # "": Equal
    value: str = ""
    effect: str = ""  # "": every effect


class Expression(NamedTuple):
    key: str
    operator: str
    values: tuple[str, ...] = ()


class Needs(NamedTuple):
    """The requirements of one replica on nodes."""

    resource: str = ""
    largest: float = math.nan  # devices of its largest pod, which must fit on one node
    smallest: float = math.nan  # devices of its smallest pod with devices
    total: float = math.nan  # devices of all its pods together
    selector: tuple[tuple[str, str], ...] = ()
    terms: tuple[tuple[Expression, ...], ...] | None = None  # of the required node affinity; one must match
    tolerations: tuple[Toleration, ...] = ()

    def label_keys(self) -> set[str]:
        """Return the keys of node labels that it reads."""
        return {key for key, _ in self.selector} | {each.key for term in self.terms or () for each in term}


def read_needs(spec: PodSpec, devices: float) -> Needs:
    """Return the needs of a replica with one pod. devices: of the pod; NaN: not known."""
    return Needs(
        largest=devices,
        smallest=devices,
        total=devices,
        selector=tuple(sorted((spec.node_selector or {}).items())),
        terms=_terms(spec),
        tolerations=tuple(
            Toleration(each.key, each.operator, each.value, each.effect) for each in spec.tolerations or ()
        ),
    )


def group_needs(leader: Needs, worker: Needs, workers: int) -> Needs:
    """Return the needs of a LeaderWorkerSet's group. Workers with GPUs decide, because most pods are workers."""
    pods = [each for each in (leader.total, worker.total if workers else 0.0) if each != 0]
    deciding = worker if workers and worker.total != 0 else leader
    return deciding._replace(
        largest=max(pods, default=0.0),
        smallest=min(pods, default=0.0),
        total=leader.total + (workers * worker.total if workers else 0.0),
    )


class NodeGroup(NamedTuple):
    """Nodes that are equal for every template."""

    labels: tuple[tuple[str, str], ...]  # those that some template reads
    taints: frozenset[Taint]
    devices: tuple[tuple[str, int], ...]  # of one node, by resource
    product: str
    provisioned: bool  # created on demand, so their number is no limit

    def devices_of(self, resource: str) -> int:
        return dict(self.devices).get(resource, 0)


def admits(group: NodeGroup, needs: Needs) -> bool:
    """Return whether an empty node of this group could run a pod with these needs."""
    labels = dict(group.labels)
    return (
        0 < group.devices_of(needs.resource) >= (1.0 if math.isnan(needs.largest) else needs.largest)
        and all(labels.get(key) == value for key, value in needs.selector)
        and (needs.terms is None or any(_matches_term(term, labels) for term in needs.terms))
        and all(_is_tolerated(taint, needs) for taint in group.taints)
    )


def count_fitting(groups: Mapping[NodeGroup, int], needs: Needs) -> float:
    """Return how many replicas fit on the empty nodes of some groups; infinity: no limit is known.

    groups: with the number of nodes of each. The pods of a replica may be on different nodes.
    """
    if not needs.total > 0 or not needs.smallest > 0:
        return math.inf
    usable = sum(
        nodes * math.floor(group.devices_of(needs.resource) / needs.smallest) * needs.smallest
        for group, nodes in groups.items()
    )
    return float(math.floor(usable / needs.total + 1e-9))


def find_joints(sets: Sequence[frozenset[int]], sizes: Mapping[int, float]) -> list[PoolOverlap]:
    """Return the pools that have node groups in common, and their size together; the smallest first.

    sets: the node groups of each pool. sizes: devices by node group. A pool inside another one uses the larger pool's
    nodes. Pools that overlap otherwise form one joint pool with all pools that are linked by overlaps.
    """
    groups_of: dict[tuple[int, ...], frozenset[int]] = {}

    def add(members: Iterable[int]) -> None:
        pools = tuple(sorted(set(members)))
        if len(pools) > 1:
            groups_of[pools] = frozenset().union(*(sets[pool] for pool in pools))

    linked: list[set[int]] = []
    for pool, own in enumerate(sets):
        add(other for other, groups in enumerate(sets) if groups and groups <= own)
        overlapping = [each for each in linked if any(sets[other] & own for other in each)]
        linked = [each for each in linked if each not in overlapping] + [{pool}.union(*overlapping)]
    for each in linked:
        add(each)
    joints = (PoolOverlap(pools, sum(sizes[group] for group in groups)) for pools, groups in groups_of.items())
    return sorted(joints, key=lambda joint: (len(groups_of[joint.pools]), joint.pools))


def describe(needs: Needs) -> str:
    """Describe the nodes that a template requires."""
    words = [f"{key}={value}" for key, value in needs.selector]
    words += ["a required node affinity"] * (needs.terms is not None)
    return (", ".join(words) or "those it tolerates and fits on")[:WORDS_LIMIT]


def _terms(spec: PodSpec) -> tuple[tuple[Expression, ...], ...] | None:
    """Return the terms of the required node affinity; None: it excludes no node.

    A term with only matchFields names single nodes. It is not evaluated, and excludes no node.
    """
    affinity = spec.affinity.node_affinity if spec.affinity else None
    terms = (affinity.required.node_selector_terms if affinity and affinity.required else None) or ()
    if not terms or not all(term.match_expressions for term in terms):
        return None
    return tuple(
        tuple(Expression(each.key, each.operator, tuple(each.values or ())) for each in term.match_expressions or ())
        for term in terms
    )


def _matches_term(term: tuple[Expression, ...], labels: Labels) -> bool:
    """Return whether all expressions of a term match. A term without expressions matches no node."""
    return bool(term) and all(_matches_expression(each, labels) for each in term)


def _matches_expression(expression: Expression, labels: Labels) -> bool:
    value = labels.get(expression.key)
    match expression.operator:
        case "In":
            return value is not None and value in expression.values
        case "NotIn":
            return value is None or value not in expression.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            stated = expression.values[0] if len(expression.values) == 1 else ""
            if value is None or not (_is_integer(value) and _is_integer(stated)):
                return False
            return int(value) > int(stated) if expression.operator == "Gt" else int(value) < int(stated)
    return True  # an unknown operator of a newer Kubernetes excludes no node


def _is_integer(text: str) -> bool:
    return len(text) <= 20 and re.fullmatch(r"[-+]?[0-9]+", text) is not None


def _is_tolerated(taint: Taint, needs: Needs) -> bool:
    """Return whether a taint does not exclude such pods.

    If GPU nodes are tainted with the name of the resource, an admission plugin adds the toleration
    (`ExtendedResourceToleration`), and the template does not show it.
    """
    if taint.effect not in EXCLUDING or taint.key.startswith(CONTROL_PLANE_TAINTS) or taint.key == needs.resource:
        return True
    return any(_tolerates(each, taint) for each in needs.tolerations)


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect not in ("", taint.effect) or toleration.key not in ("", taint.key):
        return False
    if toleration.operator in ("", "Equal"):
        return bool(toleration.key) and toleration.value == taint.value
    return True  # Exists, or an unknown operator of a newer Kubernetes
