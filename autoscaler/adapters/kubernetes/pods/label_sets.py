"""Which targets select which pods. Pods with the same labels are selected by the same targets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from autoscaler.adapters.kubernetes.api.pod_objects import PodObject as SeenPod
from autoscaler.adapters.kubernetes.pods.endpoint import decode_annotations
from autoscaler.adapters.kubernetes.pods.selector import Selector, selects
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


class PodSelections:
    """The targets that select pods by their labels."""

    def __init__(self) -> None:
        self.version = 0  # grows when other pods may show what the replicas of a target need
        self._label_sets: dict[tuple[str, frozenset[Item]], LabelSet] = {}
        self._label_set: dict[Key, LabelSet] = {}
        self._queries: dict[int, PodLookup] = {}  # by target id
        self._index: dict[tuple[str, Item | None], list[int]] = {}  # target ids by namespace and a label they require

    def select(self, queries: Mapping[int, PodLookup]) -> tuple[list[Key], set[str]]:
        """Set how targets find their pods. Return the pods that others select now, and the changed namespaces."""
        if queries == self._queries:
            return [], set()
        before, self._queries = self._queries, dict(sorted(queries.items()))
        namespaces = {
            query.namespace
            for target_id in queries.keys() | before.keys()
            for query in (before.get(target_id), queries.get(target_id))
            if query is not None and before.get(target_id) != queries.get(target_id)
        }
        self._index = {}
        for target_id, query in self._queries.items():
            self._index.setdefault((query.namespace, _find_anchor(query.selector)), []).append(target_id)
        changed = [each for each in self._label_sets.values() if each.namespace in namespaces and self._update(each)]
        return [key for label_set in changed for key in label_set.pods], namespaces

    def put(self, key: Key, labels: Mapping[str, str]) -> LabelSet | None:
        """Set the labels of a pod. Return the pods that have them; None: the pod had them before."""
        common = frozenset(item for item in labels.items() if item[0] not in UNIQUE_LABELS)
        label_set = self._label_sets.get((key[0], common))
        if label_set is None:
            label_set = self._label_sets[key[0], common] = LabelSet(key[0], dict(common))
            self._update(label_set)
        if self._label_set.get(key) is label_set:
            return None
        self.forget(key)
        self._label_set[key] = label_set
        label_set.pods.add(key)
        return label_set

    def forget(self, key: Key) -> None:
        label_set = self._label_set.pop(key, None)
        if label_set is not None:
            label_set.pods.discard(key)
            if not label_set.pods:
                del self._label_sets[label_set.namespace, frozenset(label_set.labels.items())]

    def targets_of(self, key: Key) -> tuple[int, ...]:
        """Return the targets that select a pod; the first has it."""
        return self._label_set[key].targets if key in self._label_set else ()

    def query(self, target_id: int) -> PodLookup | None:
        """Return how a target finds its pods; None: by their owners."""
        return self._queries.get(target_id)

    def overlaps(self) -> dict[int, set[int]]:
        """Return by target the others that select some of its pods."""
        found: dict[int, set[int]] = {}
        for label_set in self._label_sets.values():
            for target_id in label_set.targets if len(label_set.targets) > 1 else ():
                found.setdefault(target_id, set()).update(set(label_set.targets) - {target_id})
        return found

    def _update(self, label_set: LabelSet) -> bool:
        """Find the targets that select some pods; return whether they are others than before."""
        anchors = (None, *label_set.labels.items())
        likely = sorted(each for anchor in anchors for each in self._index.get((label_set.namespace, anchor), ()))
        targets = tuple(each for each in likely if selects(self._queries[each].selector, label_set.labels))
        if targets == label_set.targets:
            return False
        if any(self._queries[each].learns for each in targets):
            self.version += 1
        label_set.targets = targets
        return True


def _find_anchor(selector: Selector) -> Item | None:
    """Return a label that all pods of a selector have; None: it requires none."""
    exact = (term for term in selector if term.values is not None and len(term.values) == 1 and not term.negated)
    return next(((term.key, value) for term in exact for value in term.values or ()), None)
