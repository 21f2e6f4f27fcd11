"""Pods with the same labels, which the same targets select, and how a target finds its pods."""

from __future__ import annotations

from typing import NamedTuple

from autoscaler.adapters.kubernetes.api.objects import PodObject as SeenPod
from autoscaler.adapters.kubernetes.pods.endpoint import decode_annotations
from autoscaler.adapters.kubernetes.pods.selector import Selector
from autoscaler.adapters.kubernetes.pods.status import Key
from autoscaler.adapters.kubernetes.pods.template import Facts, read_template
from autoscaler.catalog.accelerators import SHARE_ANNOTATIONS

MAX_TEMPLATES = 8  # of pods with the same labels that are remembered
# Labels with a value of their own for each pod. No scale target selects by them.
UNIQUE_LABELS = frozenset({"statefulset.kubernetes.io/pod-name", "apps.kubernetes.io/pod-index"})

Item = tuple[str, str]  # name and value of a label


class PodLookup(NamedTuple):
    """How the pods of a target are found by their labels."""

    namespace: str
    selector: Selector
    pods_per_replica: int = 1
    learns: bool = False  # its pods show what a replica needs


class LabelSet:
    """The pods of a namespace that have the same labels."""

    def __init__(self, namespace: str, labels: dict[str, str]) -> None:
        self.namespace = namespace
        self.labels = labels
        self._templates: list[tuple[object, Facts]] = []  # the last of their templates that differ
        self.pods: set[Key] = set()
        self.targets: tuple[int, ...] = ()  # those that select them; the first has them

    def facts_of(self, seen: SeenPod) -> Facts:
        """Return the facts of one of them. Pods of one template are compared, and read only once."""
        spec = seen.spec
        stated = spec.containers, spec.init_containers, spec.resources, spec.resource_claims, spec.node_selector
        for known, facts in self._templates:
            if known == stated:
                return facts
        raw = bytes(seen.metadata.annotations)
        shares = any(name.encode() in raw for name in SHARE_ANNOTATIONS)
        facts = read_template(spec, decode_annotations(raw) if shares else None)
        self._templates = [*self._templates[1 - MAX_TEMPLATES :], (stated, facts)]
        return facts


def find_anchor(selector: Selector) -> Item | None:
    """Return a label that all pods of a selector have; None: it requires none."""
    exact = (term for term in selector if term.values is not None and len(term.values) == 1 and not term.negated)
    return next(((term.key, value) for term in exact for value in term.values or ()), None)
