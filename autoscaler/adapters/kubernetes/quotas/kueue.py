"""Kueue's quotas: ClusterQueues, their cohorts and flavors, and the LocalQueues by which workloads choose a queue.

Kueue admits pods. Its quotas are read so that no more replicas are requested than it would admit.
Source: Kueue 0.14, APIs v1beta1 and v1beta2, which differ in the name of the cohort alone as far as they are read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from autoscaler.adapters.kubernetes.api import objects
from autoscaler.adapters.kubernetes.inventory.node_admission import admits
from autoscaler.adapters.kubernetes.inventory.nodes import NodeTaint
from autoscaler.adapters.kubernetes.pods.needs import Needs, PodToleration
from autoscaler.adapters.kubernetes.quotas.columns import (
    Applicant,
    QuotaLayout,
    QuotaRow,
    allow,
    lay_out,
    read_amount,
    share_of,
)
from autoscaler.catalog.accelerators import is_accelerator
from autoscaler.config.check.manifests import at, mapping
from autoscaler.config.findings import shown
from autoscaler.config.quantities import Quantity, read_quantity
from autoscaler.core.model.quotas import Allowance, Quota

GROUP = "kueue.x-k8s.io"
VERSION = "v1beta2"  # preferred; an older one is read in the same way
CLUSTER_QUEUES, LOCAL_QUEUES, COHORTS, FLAVORS = (
    f"{plural}.{GROUP}" for plural in ("clusterqueues", "localqueues", "cohorts", "resourceflavors")
)
KINDS = (CLUSTER_QUEUES, LOCAL_QUEUES, COHORTS, FLAVORS)
CLUSTER_SCOPED = (CLUSTER_QUEUES, COHORTS, FLAVORS)
QUEUE_LABEL = f"{GROUP}/queue-name"
HOLD, DRAIN, INACTIVE = "stopPolicy Hold", "stopPolicy HoldAndDrain", "inactive"
STOPS = {"Hold": HOLD, "HoldAndDrain": DRAIN}
MAX_QUANTITY = 64
MAX_ITEMS = 256  # of one list that is read; Kueue allows no more flavors in one queue
MAX_PARENTS = 64
MAX_NAME = 253
OTHERS = ("pods", "cpu", "memory")  # what else pods are charged for


class _Limits(NamedTuple):
    """The quota of one flavor and resource, as stated; NaN: no limit is stated."""

    nominal: float
    borrowing: float
    lending: float


class _ClusterQueue(NamedTuple):
    """A ClusterQueue or a Cohort."""

    parent: str  # cohort that it belongs to; "": none
    stop: str  # why it admits nothing: `HOLD`, `DRAIN`, `INACTIVE`; "": it admits
    quotas: Mapping[tuple[str, str], _Limits]  # of accelerators and `OTHERS`, by resource and flavor, in their order
    problem: str


class _LocalQueue(NamedTuple):
    cluster_queue: str
    stop: str


class _Flavor(NamedTuple):
    labels: Mapping[str, str]
    taints: tuple[NodeTaint, ...]
    tolerations: tuple[PodToleration, ...]


class KueueStore:
    """The queues, cohorts and flavors of Kueue."""

    def __init__(self) -> None:
        self.version = 0  # of all but the use
        self.used: dict[Hashable, float] = {}  # by ClusterQueue, resource and flavor
        self._charging: dict[str, list[tuple[str, tuple[str, ...]] | None]] = {}  # as of the last layout, by `OTHERS`
        self.problems: list[str] = []  # as of the last layout, one line each
        self.of_workloads: dict[int, str] = {}  # likewise, by the place of the workload
        self._used_keys: dict[str, list[Hashable]] = {}  # by ClusterQueue
        self._queues: dict[str, _ClusterQueue] = {}
        self._local: dict[tuple[str, str], _LocalQueue] = {}
        self._cohorts: dict[str, _ClusterQueue] = {}
        self._flavors: dict[str, _Flavor] = {}

    def open(self, resource: str) -> KueueKindStore:
        """Return the store that receives the objects of one kind."""
        if resource == CLUSTER_QUEUES:
            return KueueKindStore(self, self._queues, self._read_queue, self.forget_use)
        if resource == COHORTS:
            return KueueKindStore(self, self._cohorts, _read_queue)
        if resource == LOCAL_QUEUES:
            return KueueKindStore(self, self._local, _read_local_queue)
        return KueueKindStore(self, self._flavors, _read_flavor)

    def lay_out(self, workloads: Sequence[Applicant]) -> QuotaLayout | None:
        """Return the quotas of the queues that workloads are in; None: they are in none."""
        self.problems, self.of_workloads, self._charging = [], {}, {}
        places = [
            self._find_queue(number, workload) if QUEUE_LABEL in workload.labels and workload.resource else None
            for number, workload in enumerate(workloads)
        ]
        if not any(places):
            return None
        rows = [row for name, queue in self._queues.items() for row in self._rows_of(name, queue)]
        rows += [row for name, cohort in self._cohorts.items() for row in self._rows_of_cohort(name, cohort)]
        place = {row.key: number for number, row in enumerate(rows)}
        known: dict[tuple[Any, ...], tuple[str, ...]] = {}
        charging: list[list[int]] = []
        for number, (workload, found) in enumerate(zip(workloads, places, strict=True)):
            if found is None:
                charging.append([])
                continue
            name, stop = found
            needs = workload.needs
            of_resource = {}
            for resource in (workload.resource, *OTHERS):
                question = name, resource, needs.selector, needs.terms, needs.tolerations
                if question not in known:
                    known[question] = self._flavors_for(name, needs, resource)
                of_resource[resource] = known[question]
            flavors = of_resource.pop(workload.resource)
            for resource, usable in of_resource.items() if not stop else ():
                if usable:
                    self._charging.setdefault(resource, [None] * len(workloads))[number] = name, usable
            if stop:
                charging.append([self._stopped(rows, place, workload.resource, name, stop)])
                self.of_workloads[number] = f"its queue is stopped ({stop}), so Kueue admits no pod"
                continue
            charging.append([place[name, workload.resource, flavor] for flavor in flavors])
            if not flavors:
                self.of_workloads[number] = self._why_not(name, workload.resource)
        for name in sorted({found[0] for found in places if found is not None}):
            if self._queues[name].problem:
                self.problems.append(f"ClusterQueue/{name}: {self._queues[name].problem}")
            self._note_cohorts(self._queues[name].parent)
        self.problems = list(dict.fromkeys(self.problems))
        return lay_out(rows, charging)

    def allowances(self, workloads: Sequence[Applicant]) -> tuple[Allowance, ...]:
        """Return what queues leave of pods, CPU and memory, in all flavors together. workloads: as laid out."""
        if not self._charging:
            return ()
        rows = [row for name, queue in self._queues.items() for row in self._rows_of(name, queue)]
        rows += [row for name, cohort in self._cohorts.items() for row in self._rows_of_cohort(name, cohort)]
        rows = [row for row in rows if row.quota.resource in OTHERS]
        own = {row.key: row.nominal - self.used.get(row.key, 0.0) for row in rows}  # negative: it has borrowed
        lent: dict[Hashable, float] = {}  # what the members of a cohort together still lend
        for row in rows:
            lent[share_of(row.quota)] = lent.get(share_of(row.quota), 0.0) + min(own[row.key], row.lending_limit)
        left = {row.key: max(own[row.key], 0.0) + _loan(row, own[row.key], lent[share_of(row.quota)]) for row in rows}
        found = []
        for resource, chosen in self._charging.items():
            of_queues = {
                key: math.fsum(left.get((key[0], resource, flavor), 0.0) for flavor in key[1])
                for key in chosen
                if key is not None
            }
            found.append(allow(workloads, resource, chosen, of_queues))
        return tuple(found)

    def _find_queue(self, number: int, workload: Applicant) -> tuple[str, str] | None:
        """Return the ClusterQueue of a workload, and how it is stopped; None: it is not known."""
        stated = workload.labels[QUEUE_LABEL]
        local = self._local.get((workload.namespace, stated))
        if local is None:
            if self._local or self._queues:  # else Kueue is not installed, or may not be read
                self.of_workloads[number] = f"no quota applies: LocalQueue {shown(stated)} is not known"
            return None
        queue = self._queues.get(local.cluster_queue)
        if queue is None:
            self.of_workloads[number] = f"no quota applies: ClusterQueue {shown(local.cluster_queue)} is not known"
            return None
        stops = (local.stop, queue.stop)
        return local.cluster_queue, next((stop for stop in (DRAIN, HOLD, INACTIVE) if stop in stops), "")

    def _stopped(self, rows: list[QuotaRow], place: dict[Hashable, int], resource: str, name: str, stop: str) -> int:
        """Return the place of the quota of a stopped queue. It admits nothing, so its pods keep what they hold."""
        key = name, resource, stop
        if key not in place:
            place[key] = len(rows)
            rows.append(QuotaRow(Quota(f"ClusterQueue/{name} ({stop})", resource), 0.0, keeps=stop != DRAIN))
        return place[key]

    def _flavors_for(self, name: str, needs: Needs, resource: str) -> tuple[str, ...]:
        """Return the flavors of a resource of a ClusterQueue whose nodes a workload may use, in their order.

        As in Kueue, requirements on labels that no flavor of the group states are left to the scheduler.
        """
        offered = [flavor for each, flavor in self._queues[name].quotas if each == resource]
        described = {flavor: self._flavors.get(flavor, _Flavor({}, (), ())) for flavor in offered}
        keys = {key for flavor in described.values() for key in flavor.labels}
        needs = _only(needs, keys)
        return tuple(
            name
            for name, flavor in described.items()
            if admits(
                flavor.labels, flavor.taints, needs._replace(tolerations=(*needs.tolerations, *flavor.tolerations))
            )
        )

    def _why_not(self, name: str, resource: str) -> str:
        """Say why no quota of a ClusterQueue charges a workload."""
        if any(resource == each for each, _ in self._queues[name].quotas):
            return f"no quota applies: no flavor of ClusterQueue/{name} fits its node selector and tolerations"
        return f"no quota applies: ClusterQueue/{name} has none for {resource}"

    def _rows_of(self, name: str, queue: _ClusterQueue) -> Iterator[QuotaRow]:
        for (resource, flavor), limits in queue.quotas.items():
            root = self._root(queue.parent, resource, flavor)
            nominal = limits.nominal
            borrowing = 0.0 if not root else math.inf if math.isnan(limits.borrowing) else limits.borrowing
            lending = 0.0 if not root else nominal if math.isnan(limits.lending) else min(limits.lending, nominal)
            quota = Quota(f"ClusterQueue/{name}", resource, flavor, root)
            yield QuotaRow(quota, nominal, borrowing, lending, (name, resource, flavor))

    def _rows_of_cohort(self, name: str, cohort: _ClusterQueue) -> Iterator[QuotaRow]:
        """Return the devices that belong to a cohort itself: they are lent to its members, and no queue owns them."""
        for (resource, flavor), limits in cohort.quotas.items():
            if limits.nominal > 0:
                quota = Quota(f"Cohort/{name}", resource, flavor, self._root(name, resource, flavor))
                yield QuotaRow(quota, limits.nominal, 0.0, limits.nominal, ("", "Cohort", name, resource, flavor))

    def _root(self, cohort: str, resource: str, flavor: str) -> str:
        """Return the cohort whose members lend each other a resource.

        A cohort without limits of its own is a part of its parent. A cohort may limit how much its members together
        borrow or lend. It counts as one without a parent, so that no more is borrowed than Kueue allows.
        """
        seen = {cohort}
        while cohort in self._cohorts:
            above = self._cohorts[cohort]
            limits = above.quotas.get((resource, flavor))
            is_limited = limits is not None and not (math.isnan(limits.borrowing) and math.isnan(limits.lending))
            if not above.parent or is_limited or above.parent in seen or len(seen) > MAX_PARENTS:
                break
            cohort = above.parent
            seen.add(cohort)
        return cohort

    def _note_cohorts(self, cohort: str) -> None:
        """Note what is not believed, or not read, of a cohort and those above it."""
        seen: set[str] = set()
        while cohort in self._cohorts and cohort not in seen and len(seen) < MAX_PARENTS:
            seen.add(cohort)
            above = self._cohorts[cohort]
            if above.problem:
                self.problems.append(f"Cohort/{cohort}: {above.problem}")
            limited = [
                each for each in above.quotas.values() if not (math.isnan(each.borrowing) and math.isnan(each.lending))
            ]
            if above.parent and limited:
                self.problems.append(
                    f"Cohort/{cohort}: it has limits of its own, so nothing is borrowed from Cohort/{above.parent}"
                )
            cohort = above.parent
        if cohort in seen:
            self.problems.append(f"Cohort/{cohort}: it is its own parent, so Kueue admits nothing")

    def _read_queue(self, seen: objects.Untyped) -> _ClusterQueue:
        """Read a ClusterQueue, and note its use: reserved devices count, because Kueue admits no others on them."""
        name, queue = seen.metadata.name, _read_queue(seen)
        self.forget_use(name)
        keys = self._used_keys[name] = []
        for flavor in _items(at(seen.status, "flavorsReservation")) or _items(at(seen.status, "flavorsUsage")):
            for each in _items(at(flavor, "resources")):
                resource, total = _text(at(each, "name")), read_quantity(_text(at(each, "total")))
                if (is_accelerator(resource) or resource in OTHERS) and total >= 0:
                    keys.append((name, resource, _text(at(flavor, "name"))))
                    self.used[keys[-1]] = total
        return queue

    def forget_use(self, name: str) -> None:
        """Forget the use of a ClusterQueue."""
        for key in self._used_keys.pop(name, ()):
            self.used.pop(key, None)


class KueueKindStore:
    """Receives the objects of one kind."""

    def __init__(
        self,
        store: KueueStore,
        known: dict[Any, Any],
        read: Callable[[objects.Untyped], Any],
        forget: Callable[[str], None] = lambda name: None,
    ) -> None:
        """known: the objects by name, or by namespace and name. read: never raises, whatever the object holds."""
        self._store = store
        self._known = known
        self._read = read
        self._forget = forget

    def put(self, seen: objects.Untyped, /) -> None:
        key, found = _key(seen.metadata.namespace, seen.metadata.name), self._read(seen)
        if self._known.get(key) != found:
            self._known[key] = found
            self._store.version += 1

    def remove(self, namespace: str, name: str, /) -> None:
        if self._known.pop(_key(namespace, name), None) is not None:
            self._forget(name)
            self._store.version += 1

    def clear(self) -> None:
        """Remove all objects: the API server does not serve the kind any more."""
        for key in list(self._known):
            self.remove(*(key if isinstance(key, tuple) else ("", key)))


def _key(namespace: str, name: str) -> Any:
    return (namespace, name) if namespace else name


def _read_queue(seen: objects.Untyped) -> _ClusterQueue:
    """Read a ClusterQueue or a Cohort."""
    quotas: dict[tuple[str, str], _Limits] = {}
    problem = ""
    for group in _items(at(seen.spec, "resourceGroups")):
        for flavor in _items(at(group, "flavors")):
            for each in _items(at(flavor, "resources")):
                resource, name = _text(at(each, "name")), _text(at(flavor, "name"))
                if not is_accelerator(resource) and resource not in OTHERS:
                    continue
                read = _read_other if resource in OTHERS else read_amount
                nominal, why = read(_amount(at(each, "nominalQuota")), 0.0, math.inf)
                borrowing, no_loan = read(_amount(at(each, "borrowingLimit")), math.nan, 0.0)
                lending, no_lending = read(_amount(at(each, "lendingLimit")), math.nan, 0.0)
                if nominal < math.inf:
                    quotas[resource, name] = _Limits(nominal, borrowing, lending)
                problem = problem or next(
                    (f"{resource} of {name}: {text}" for text in (why, no_loan, no_lending) if text), ""
                )
    parents = (at(seen.spec, key) for key in ("cohortName", "cohort", "parentName", "parent"))
    return _ClusterQueue(
        parent=next((_text(parent) for parent in parents if parent), ""),
        stop=_stop(seen),
        quotas=quotas,
        problem=problem,
    )


def _read_local_queue(seen: objects.Untyped) -> _LocalQueue:
    return _LocalQueue(_text(at(seen.spec, "clusterQueue")), _stop(seen))


def _stop(seen: objects.Untyped) -> str:
    """Return why a queue admits nothing; "": it admits. A flavor that is missing makes it inactive, for example."""
    conditions = [_words(each, "type", "status") for each in _items(at(seen.status, "conditions"))]
    is_inactive = ["Active", "False"] in conditions
    return STOPS.get(_text(at(seen.spec, "stopPolicy")), INACTIVE if is_inactive else "")


def _read_flavor(seen: objects.Untyped) -> _Flavor:
    labels = mapping(at(seen.spec, "nodeLabels"))
    return _Flavor(
        {key: value for key, value in labels.items() if isinstance(value, str)},
        tuple(NodeTaint(*_words(each, "key", "value", "effect")) for each in _items(at(seen.spec, "nodeTaints"))),
        tuple(
            PodToleration(*_words(each, "key", "operator", "value", "effect"))
            for each in _items(at(seen.spec, "tolerations"))
        ),
    )


def _only(needs: Needs, keys: set[str]) -> Needs:
    """Return the needs without requirements on other labels. A term without any left matches every node."""
    terms = tuple(tuple(each for each in term if each.key in keys) for term in needs.terms or ())
    return needs._replace(
        selector=tuple(item for item in needs.selector if item[0] in keys),
        terms=terms if terms and all(terms) else None,
    )


def _loan(row: QuotaRow, own: float, lent: float) -> float:
    """Return what a queue may still borrow. own: left of its quota, negative if it borrows; lent: by its cohort."""
    if not row.quota.cohort:
        return 0.0
    by_others = lent - min(own, row.lending_limit)
    return max(min(row.borrowing_limit, by_others) + min(own, 0.0), 0.0)


def _items(value: object) -> list[object]:
    return value[:MAX_ITEMS] if isinstance(value, list) else []


def _amount(value: object) -> str | int | float | None:
    """Return a quantity as written; None: there is none. Anything else is text that is no quantity."""
    return value if value is None or isinstance(value, str | int | float) else str(type(value))


def _read_other(stated: Quantity | None, absent: float, invalid: float) -> tuple[float, str]:
    """Parse an amount of CPU, memory or pods. Return it, and what is wrong with it."""
    if stated is None:
        return absent, ""
    amount = read_quantity(str(stated)) if len(str(stated)) <= MAX_QUANTITY else math.nan
    return (amount, "") if amount >= 0 else (invalid, f"{shown(str(stated))} is no quantity; allowed: 0 or more")


def _text(value: object) -> str:
    return str(value)[:MAX_NAME] if isinstance(value, str | int | float) else ""


def _words(value: object, *keys: str) -> list[str]:
    return [_text(at(value, key)) for key in keys]
