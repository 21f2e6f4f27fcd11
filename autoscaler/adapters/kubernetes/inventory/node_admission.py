"""The scheduler's rules: which nodes admit a pod, and how many pods a node holds.

Pure functions. Pod affinity, topology spread and the number of pods of a node are not evaluated.
Source: Kubernetes, "Assigning Pods to Nodes", "Taints and Tolerations".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import numpy as np

from autoscaler.adapters.kubernetes.inventory.nodes import NodeTaint
from autoscaler.adapters.kubernetes.pods.needs import Needs, NodeExpression, PodToleration
from autoscaler.core.table.columns import FloatColumn

EXCLUDING = ("NoSchedule", "NoExecute")
CLOSE = 1e-9  # relative; for sums of CPU quantities

Labels = Mapping[str, str]


def admits(labels: Labels, taints: Iterable[NodeTaint], needs: Needs) -> bool:
    """Return whether the labels and taints of a node admit a pod.

    labels: with the node's name as `NAME_FIELD`, and the devices of drivers as `DEVICES_FIELD`.
    """
    return (
        all(labels.get(key) == value for key, value in needs.selector)
        and all(_matches_expression(each, labels) for each in needs.devices)
        and (needs.terms is None or any(_matches_term(term, labels) for term in needs.terms))
        and all(_is_tolerated(taint, needs) for taint in taints)
    )


def count_pods(devices: FloatColumn, cpu: FloatColumn, memory: FloatColumn, needs: Needs) -> FloatColumn:
    """Return how many of the smallest pods with devices each node holds. The needs of devices must be known.

    devices, cpu, memory: float64[nodes], what is free, or what the nodes have.
    """
    pods = np.floor(devices / needs.smallest + CLOSE)
    for free, need in ((cpu, needs.cpu), (memory, needs.memory)):
        if need > 0:
            pods = np.minimum(pods, np.floor(free / need + CLOSE))
    return np.maximum(pods, 0.0)


def count_replicas(pods: float, needs: Needs) -> float:
    """Return how many replicas this many of the smallest pods make. The pods of a replica may be on different nodes."""
    return float(np.floor(pods * needs.smallest / needs.total + CLOSE))


def _matches_term(term: tuple[NodeExpression, ...], labels: Labels) -> bool:
    """Return whether all expressions of a term match. A term without expressions matches no node."""
    return bool(term) and all(_matches_expression(each, labels) for each in term)


def _matches_expression(expression: NodeExpression, labels: Labels) -> bool:
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


def _is_tolerated(taint: NodeTaint, needs: Needs) -> bool:
    """Return whether a taint does not exclude such pods.

    If GPU nodes are tainted with the name of the resource, an admission plugin adds the toleration
    (`ExtendedResourceToleration`), and the template does not show it. It adds none for claims.
    """
    if taint.effect not in EXCLUDING or (taint.key == needs.resource and not needs.devices):
        return True
    return any(_tolerates(each, taint) for each in needs.tolerations)


def _tolerates(toleration: PodToleration, taint: NodeTaint) -> bool:
    if toleration.effect not in ("", taint.effect) or toleration.key not in ("", taint.key):
        return False
    if toleration.operator in ("", "Equal"):
        return bool(toleration.key) and toleration.value == taint.value
    return True  # Exists, or an unknown operator of a newer Kubernetes
