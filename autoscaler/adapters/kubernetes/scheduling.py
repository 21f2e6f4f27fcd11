"""Which nodes a pod template admits, as the scheduler decides it: node selector, required node affinity, taints.

Pure. Nodes that no template can tell apart form one group, so that thousands of nodes are a few groups. What is free on
a node now is the scheduler's business; here is what a node could ever hold.
Source: Kubernetes, "Assigning Pods to Nodes", "Taints and Tolerations".
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from autoscaler.adapters.kubernetes.api.objects import PodSpec
from autoscaler.core.model.fleet import Joint

EXCLUDING = ("NoSchedule", "NoExecute")
# Put on and taken off by the control plane: a node that is cordoned, or that the control plane lost sight of, still
# holds what runs on it.
OF_THE_CONTROL_PLANE = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
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
    """The demands of one replica on nodes."""

    resource: str = ""
    largest: float = math.nan  # devices of its largest pod, which one node must hold
    smallest: float = math.nan  # devices of its smallest pod that has any
    total: float = math.nan  # devices of all its pods
    selector: tuple[tuple[str, str], ...] = ()
    terms: tuple[tuple[Expression, ...], ...] | None = None  # of the required node affinity, any of which must hold
    tolerations: tuple[Toleration, ...] = ()

    def looked_at(self) -> set[str]:
        """Return the labels of nodes that it looks at."""
        return {key for key, _ in self.selector} | {each.key for term in self.terms or () for each in term}


def read_needs(spec: PodSpec, devices: float) -> Needs:
    """Return what a replica of one pod asks of its node. devices: of the pod; NaN: not known."""
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
    """Return what a group asks of its nodes: those of the workers, which are most of its pods, if these have GPUs."""
    pods = [each for each in (leader.total, worker.total if workers else 0.0) if each != 0]
    asking = worker if workers and worker.total != 0 else leader
    return asking._replace(
        largest=max(pods, default=0.0),
        smallest=min(pods, default=0.0),
        total=leader.total + (workers * worker.total if workers else 0.0),
    )


class Group(NamedTuple):
    """Nodes that are alike to every template."""

    labels: tuple[tuple[str, str], ...]  # those that some template looks at
    taints: frozenset[Taint]
    devices: tuple[tuple[str, int], ...]  # of one node, by resource
    product: str
    provisioned: bool  # made when pods ask for them, so that their number is no limit

    def devices_of(self, resource: str) -> int:
        return dict(self.devices).get(resource, 0)


def admits(group: Group, needs: Needs) -> bool:
    """Say whether a node of this group could hold a pod of such a template if it were empty."""
    labels = dict(group.labels)
    return (
        0 < group.devices_of(needs.resource) >= _or_one(needs.largest)
        and all(labels.get(key) == value for key, value in needs.selector)
        and (needs.terms is None or any(_term(term, labels) for term in needs.terms))
        and all(_tolerated(taint, needs) for taint in group.taints)
    )


def _or_one(devices: float) -> float:
    """Return a number of devices, 1 where it is not known."""
    return 1.0 if math.isnan(devices) else devices


def fitting(groups: Mapping[Group, int], needs: Needs) -> float:
    """Return how many replicas the nodes of some groups hold if nothing else is on them.

    groups: with the number of nodes of each. A replica of several pods may be spread over nodes.
    """
    if not needs.total > 0 or not needs.smallest > 0:
        return math.inf
    usable = sum(
        nodes * math.floor(group.devices_of(needs.resource) / needs.smallest) * needs.smallest
        for group, nodes in groups.items()
    )
    return float(math.floor(usable / needs.total + 1e-9))


def joints(sets: Sequence[frozenset[int]], sizes: Mapping[int, float]) -> list[Joint]:
    """Return which sets of groups have some in common, and what they have together; the smallest first.

    sets: the groups of each pool. sizes: devices by group. A pool inside another draws on the larger one's nodes, and
    pools that overlap otherwise draw on those of all that are linked by overlaps.
    """
    found: dict[tuple[int, ...], frozenset[int]] = {}

    def together(members: Iterable[int]) -> None:
        pools = tuple(sorted(set(members)))
        if len(pools) > 1:
            found[pools] = frozenset().union(*(sets[pool] for pool in pools))

    linked: list[set[int]] = []
    for pool, own in enumerate(sets):
        together(other for other, groups in enumerate(sets) if groups and groups <= own)
        near = [each for each in linked if any(sets[other] & own for other in each)]
        linked = [each for each in linked if each not in near] + [{pool}.union(*near)]
    for each in linked:
        together(each)
    made = (Joint(pools, sum(sizes[group] for group in groups)) for pools, groups in found.items())
    return sorted(made, key=lambda joint: (len(found[joint.pools]), joint.pools))


def described(needs: Needs) -> str:
    """Say in words what tells the nodes for a template from others."""
    words = [f"{key}={value}" for key, value in needs.selector]
    words += ["a required node affinity"] * (needs.terms is not None)
    return (", ".join(words) or "those it tolerates and fits on")[:WORDS_LIMIT]


def _terms(spec: PodSpec) -> tuple[tuple[Expression, ...], ...] | None:
    """Return the terms of the required node affinity; None: any node will do.

    A term on fields alone names single nodes. Those are not looked up, so that it excludes nothing.
    """
    affinity = spec.affinity.node_affinity if spec.affinity else None
    terms = (affinity.required.node_selector_terms if affinity and affinity.required else None) or ()
    if not terms or not all(term.match_expressions for term in terms):
        return None
    return tuple(
        tuple(Expression(each.key, each.operator, tuple(each.values or ())) for each in term.match_expressions or ())
        for term in terms
    )


def _term(term: tuple[Expression, ...], labels: Labels) -> bool:
    """Say whether all expressions of a term hold; a term without any admits no node."""
    return bool(term) and all(_holds(each, labels) for each in term)


def _holds(expression: Expression, labels: Labels) -> bool:
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
    return True  # an operator of a later Kubernetes: what is not understood excludes nothing


def _is_integer(text: str) -> bool:
    return len(text) <= 20 and re.fullmatch(r"[-+]?[0-9]+", text) is not None


def _tolerated(taint: Taint, needs: Needs) -> bool:
    """Say whether a taint keeps no such pod away.

    Clusters that taint GPU nodes by the name of the resource let an admission plugin tolerate it, which no template
    shows (`ExtendedResourceToleration`).
    """
    if taint.effect not in EXCLUDING or taint.key.startswith(OF_THE_CONTROL_PLANE) or taint.key == needs.resource:
        return True
    return any(_matches(each, taint) for each in needs.tolerations)


def _matches(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect not in ("", taint.effect) or toleration.key not in ("", taint.key):
        return False
    if toleration.operator in ("", "Equal"):
        return bool(toleration.key) and toleration.value == taint.value
    return True  # Exists, or an operator of a later Kubernetes
