"""The nodes that admit a pod template, by the scheduler's rules: node selector, required node affinity, taints.

Pure functions. Only the capacity of nodes counts here, not what is free on them now.
Source: Kubernetes, "Assigning Pods to Nodes", "Taints and Tolerations".
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from autoscaler.adapters.kubernetes.inventory.groups import GroupKey
from autoscaler.adapters.kubernetes.inventory.nodes import Taint
from autoscaler.adapters.kubernetes.pods.needs import CONTROL_PLANE_TAINTS, Expression, Needs, Toleration

EXCLUDING = ("NoSchedule", "NoExecute")

Labels = Mapping[str, str]


def admits(group: GroupKey, needs: Needs) -> bool:
    """Return whether an empty node of this group could run a pod with these needs."""
    labels = dict(group.labels)
    return (
        0 < group.devices_of(needs.resource) >= (1.0 if math.isnan(needs.largest) else needs.largest)
        and all(labels.get(key) == value for key, value in needs.selector)
        and (needs.terms is None or any(_matches_term(term, labels) for term in needs.terms))
        and all(_is_tolerated(taint, needs) for taint in group.taints)
    )


def count_fitting(groups: Mapping[GroupKey, int], needs: Needs) -> float:
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
