"""ResourceQuotas: how many devices the pods of a namespace may request.

The API server refuses pods beyond a quota. It charges a pod from its creation until it ends, gated or not.
Source: Kubernetes, "Resource Quotas", 1.36.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

from autoscaler.adapters.kubernetes.api import node_objects
from autoscaler.adapters.kubernetes.quotas.columns import Applicant, QuotaLayout, QuotaRow, allow, lay_out, read_amount
from autoscaler.catalog.accelerators import is_accelerator
from autoscaler.config.findings import shown
from autoscaler.config.quantities import Quantity, read_quantity
from autoscaler.core.model.quotas import Allowance, Quota

PREFIX = "requests."
MAX_LAYERS = 4  # quotas of different scopes for one resource of a namespace that are read, the tightest first
MAX_SCOPES = 16
MAX_QUANTITY = 64
OTHERS = {
    "pods": ("pods", "count/pods"),
    "cpu": ("cpu", "requests.cpu"),
    "memory": ("memory", "requests.memory"),
}
"""What else pods are charged for, and the names by which a quota limits it."""

PRIORITY_CLASS = "PriorityClass"
OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")
# Whether pods match that serve: the API server allows no activeDeadlineSeconds in their templates.
FIXED = {"Terminating": False, "NotTerminating": True}
BY_REQUESTS = {"BestEffort": False, "NotBestEffort": True}  # whether pods match that request CPU or memory


class _Scope(NamedTuple):
    name: str
    operator: str = "Exists"
    values: tuple[str, ...] = ()

    @property
    def is_known(self) -> bool:
        if self.name == PRIORITY_CLASS:
            return self.operator in OPERATORS
        return self.name in FIXED | BY_REQUESTS and self.operator == "Exists"

    def matches(self, workload: Applicant) -> bool:
        """Return whether the pods of a workload are in the scope."""
        if self.name in FIXED:
            return FIXED[self.name]
        if self.name in BY_REQUESTS:
            requests = workload.needs.cpu > 0 or workload.needs.memory > 0
            return requests is BY_REQUESTS[self.name]
        name = workload.priority_class
        match self.operator:
            case "In":
                return name in self.values
            case "NotIn":
                return name not in self.values
            case "DoesNotExist":
                return not name
        return bool(name)


class _Quota(NamedTuple):
    hard: Mapping[str, float]  # devices by resource
    scopes: frozenset[_Scope]
    problem: str
    others: Mapping[str, float]  # the tightest limits on what else is charged for a pod, by `OTHERS`


class ResourceQuotaStore:
    """The ResourceQuotas that limit accelerators, and other things for which pods are charged."""

    def __init__(self) -> None:
        self.version = 0  # of all but the use
        self.used: dict[Hashable, float] = {}  # devices by namespace, name and resource
        self._quotas: dict[str, dict[str, _Quota]] = {}  # by namespace and name

    def put(self, seen: node_objects.ResourceQuota, /) -> None:
        namespace, name = seen.metadata.namespace, seen.metadata.name
        quota = _read(seen)
        if not quota.hard and not quota.others and not quota.problem:
            self.remove(namespace, name)
            return
        known = self._quotas.setdefault(namespace, {})
        if known.get(name) != quota:
            self._forget_use(namespace, name)
            known[name] = quota
            self.version += 1
        stated = seen.status.used or {}
        for resource, names in {**{each: (PREFIX + each,) for each in quota.hard}, **OTHERS}.items():
            used = max(_amounts(stated, names), default=math.nan)
            if used >= 0:  # else it is not known yet
                self.used[namespace, name, resource] = used

    def remove(self, namespace: str, name: str, /) -> None:
        if name not in self._quotas.get(namespace, {}):
            return
        self._forget_use(namespace, name)
        del self._quotas[namespace][name]
        if not self._quotas[namespace]:
            del self._quotas[namespace]
        self.version += 1

    def _forget_use(self, namespace: str, name: str) -> None:
        quota = self._quotas[namespace].get(name)
        for resource in (*quota.hard, *OTHERS) if quota is not None else ():
            self.used.pop((namespace, name, resource), None)

    def lay_out(self, workloads: Sequence[Applicant]) -> list[QuotaLayout]:
        """Return the quotas of the namespaces of workloads.

        A pod must be within all quotas that match it. The tightest counts among those with equal scopes. Others are
        in layouts of their own, each with at most one quota for a workload.
        """
        rows: list[QuotaRow] = []
        place: dict[tuple[str, str, str], int] = {}
        charging: list[list[list[int]]] = [[[] for _ in workloads] for _ in range(MAX_LAYERS)]
        for number, workload in enumerate(workloads):
            if not workload.resource or workload.namespace not in self._quotas:
                continue
            for layer, name in enumerate(self._tightest(workload)[:MAX_LAYERS]):
                key = workload.namespace, name, workload.resource
                if key not in place:
                    place[key] = len(rows)
                    hard = self._quotas[workload.namespace][name].hard[workload.resource]
                    source = f"ResourceQuota {workload.namespace}/{name}"
                    rows.append(QuotaRow(Quota(source, workload.resource), hard, key=key))
                charging[layer][number] = [place[key]]
        return [layout for layer in charging if (layout := lay_out(rows, layer)) is not None]

    def _tightest(self, workload: Applicant) -> list[str]:
        """Return the quotas that match a workload, the tightest first: one for each set of scopes."""
        found: dict[frozenset[_Scope], tuple[float, str]] = {}
        for name, quota in self._quotas[workload.namespace].items():
            hard = quota.hard.get(workload.resource)
            if hard is not None and all(scope.matches(workload) for scope in quota.scopes):
                found[quota.scopes] = min((hard, name), found.get(quota.scopes, (hard, name)))
        return [name for _, name in sorted(found.values())]

    def allowances(self, workloads: Sequence[Applicant]) -> tuple[Allowance, ...]:
        """Return what the tightest quotas of workloads leave of pods, CPU and memory. Unknown use counts as none."""
        found = []
        limited = {namespace for namespace, its in self._quotas.items() if any(quota.others for quota in its.values())}
        for resource in OTHERS if limited else ():
            left: dict[tuple[str, str], float] = {}
            chosen = [
                self._least_left(workload, resource, left) if workload.namespace in limited else None
                for workload in workloads
            ]
            if left:
                found.append(allow(workloads, resource, chosen, left))
        return tuple(found)

    def _least_left(
        self, workload: Applicant, resource: str, left: dict[tuple[str, str], float]
    ) -> tuple[str, str] | None:
        """Return the quota that leaves a workload the least, and note what it leaves; None: none limits it."""
        namespace = workload.namespace
        found = [
            (quota.others[resource] - self.used.get((namespace, name, resource), 0.0), name)
            for name, quota in self._quotas.get(namespace, {}).items()
            if resource in quota.others and all(scope.matches(workload) for scope in quota.scopes)
        ]
        if not found:
            return None
        amount, name = min(found)
        left[namespace, name] = amount
        return namespace, name

    def problems(self, namespaces: set[str]) -> list[str]:
        """Return what is not believed, or not read, of the quotas of some namespaces, one line each."""
        return [
            f"ResourceQuota {namespace}/{name}: {quota.problem}"
            for namespace in sorted(namespaces & self._quotas.keys())
            for name, quota in sorted(self._quotas[namespace].items())
            if quota.problem
        ]


def _amounts(stated: Mapping[str, Quantity], names: Sequence[str]) -> list[float]:
    """Return the amounts that are stated by any of some names. One that cannot be read is left out."""
    found = [read_quantity(stated[name]) for name in names if name in stated and len(str(stated[name])) <= MAX_QUANTITY]
    return [amount for amount in found if amount >= 0]


def _read(seen: node_objects.ResourceQuota) -> _Quota:
    """Read the limits on accelerators. A quota with a scope that is not known is ignored, and named."""
    selector = seen.spec.scope_selector
    expressions = (selector.match_expressions if selector is not None else None) or ()
    scopes = frozenset(
        [_Scope(name) for name in (seen.spec.scopes or ())[:MAX_SCOPES]]
        + [
            _Scope(each.scope_name, each.operator, tuple(sorted(each.values or ())))
            for each in expressions[:MAX_SCOPES]
        ]
    )
    stated = {
        name.removeprefix(PREFIX): amount
        for name, amount in (seen.spec.hard or {}).items()
        if name.startswith(PREFIX) and is_accelerator(name.removeprefix(PREFIX))
    }
    unknown = sorted({scope.name for scope in scopes if not scope.is_known})
    is_unread = bool(unknown) or max(len(seen.spec.scopes or ()), len(expressions)) > MAX_SCOPES
    if stated and is_unread:
        names = ", ".join(shown(name) for name in unknown) or f"more than {MAX_SCOPES}"
        return _Quota({}, scopes, f"its scopes are not read, so it is no limit here: {names}", {})
    amounts = {resource: read_amount(amount, float("inf"), float("inf")) for resource, amount in stated.items()}
    problem = next((f"{PREFIX}{resource}: {why}" for resource, (_, why) in sorted(amounts.items()) if why), "")
    hard = {resource: amount for resource, (amount, _) in amounts.items() if amount < float("inf")}
    limits = {} if is_unread else {each: _amounts(seen.spec.hard or {}, names) for each, names in OTHERS.items()}
    return _Quota(hard, scopes, problem, {each: min(amounts) for each, amounts in limits.items() if amounts})
