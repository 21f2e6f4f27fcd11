"""Maps series of gateways to workloads, for the scraper and the Prometheus adapter alike.

Labels are untrusted, because any scraped pod can claim to be the gateway of another tenant. So a series counts only
for workloads of the namespace in which it was scraped. Trusted namespaces may report on workloads of all namespaces.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Set

import numpy as np

from autoscaler.catalog.gateways import GATEWAY_NAMESPACES, GATEWAYS, NAMESPACE_LABELS, Gateway, Key
from autoscaler.catalog.series import Labels, Readings, SeriesByName, own_label
from autoscaler.core.model.fleet import Fleet
from autoscaler.core.table.columns import FloatColumn

ALL = "*"  # stands for every namespace
MAX_NAMED = 3  # namespaces named in one line


def scrape_namespaces(labels: Labels) -> frozenset[str]:
    """Return the namespaces in which a series was scraped; empty if the operator listed its target."""
    return frozenset(labels[label] for label in NAMESPACE_LABELS if labels.get(label))


class TrustedNamespaces:
    """The namespaces whose gateways are trusted about all workloads, and the series that did not count."""

    def __init__(self, trusted: Iterable[str] = GATEWAY_NAMESPACES) -> None:
        self._trusted = frozenset(trusted)
        self._ignored: dict[str, set[str]] = {}

    def include(self, scraped_in: frozenset[str]) -> bool:
        """Return whether series scraped in these namespaces count for all workloads."""
        return ALL in self._trusted or scraped_in <= self._trusted

    def record_ignored(self, scraped_in: frozenset[str], workload: str) -> None:
        """Record that a series did not count for a workload."""
        self._ignored.setdefault(" and ".join(sorted(scraped_in)), set()).add(workload)

    def problem(self) -> str:
        """Describe the series that did not count, in one line; "" if all counted."""
        if not self._ignored:
            return ""
        sources = sorted(self._ignored)
        more = f" and {len(sources) - MAX_NAMED} more" if len(sources) > MAX_NAMED else ""
        named, about = ", ".join(sources[:MAX_NAMED]), min(self._ignored[sources[0]])
        return (
            f"series from namespace {named}{more} are about workloads of other namespaces, such "
            f"as {about}, and do not count for them; --gateway-namespace {sources[0].partition(' ')[0]} lets them"
        )


class WorkloadLookup:
    """Finds the workloads of a fleet by the names that gateways use for them."""

    def __init__(self, fleet: Fleet) -> None:
        self._by_model: dict[str, list[int]] = {}
        self._by_name: dict[str, list[int]] = {}
        self.namespaces = tuple(workload.ref.namespace for workload in fleet.workloads)
        self.roles = tuple(workload.role for workload in fleet.workloads)
        for row, workload in enumerate(fleet.workloads):
            if workload.model:
                self._by_model.setdefault(workload.model, []).append(row)
            for name in dict.fromkeys((workload.service or workload.ref.name, workload.ref.name)):
                self._by_name.setdefault(name, []).append(row)

    def rows(
        self, keys: Iterable[Key], labels: Labels, scraped_in: Set[str] = frozenset(), *, everywhere: bool = True
    ) -> tuple[int, ...]:
        """Return the rows of the workloads that a series is about; several rows are variants of one service.

        scraped_in: namespaces in which the series was scraped. everywhere: it may be about workloads of others, too.
        In each namespace the first key that finds a workload decides, so a name in one namespace cannot hide workloads
        of another. A workload in the namespace of the series comes before all others. A key that names a namespace
        comes before keys without.
        """
        found: dict[str, list[int]] = {}
        for key in keys:
            if key.model:
                rows, namespace = self._by_model.get(own_label(labels, key.model), []), ""
            else:
                name, namespace = _named(key, labels)
                rows = self._by_name.get(name, []) if name else []
            by_namespace: dict[str, list[int]] = {}
            for row in rows:
                by_namespace.setdefault(self.namespaces[row], []).append(row)
            if key.namespace or namespace:
                if namespace in by_namespace:
                    return tuple(by_namespace[namespace]) if everywhere or scraped_in == {namespace} else ()
                continue
            found = {**by_namespace, **found}
        own = next(iter(scraped_in)) if len(scraped_in) == 1 else ""
        if own in found:
            return tuple(found[own])
        if not everywhere:
            return ()
        stated = own_label(labels, "namespace")  # as the series states it
        return tuple(found[stated] if stated in found else sorted(row for rows in found.values() for row in rows))


def _named(key: Key, labels: Labels) -> tuple[str, str]:
    """Return (name, namespace) as `key` reads them; ("", "") if it finds no name."""
    name, namespace = own_label(labels, key.name), own_label(labels, key.namespace) if key.namespace else ""
    if key.pattern is not None:
        match = key.pattern.fullmatch(name[:512])  # object names are far shorter
        if match is None:
            return "", ""
        parts = match.groupdict()
        name, namespace = parts["name"], parts.get("namespace") or namespace
    return (name + key.suffix, namespace) if name else ("", "")


def read_gateways(
    fleet: Fleet,
    waiting: SeriesByName,
    arrivals: SeriesByName,
    trusted: TrustedNamespaces | None = None,
    scraped_in: Callable[[Labels], frozenset[str]] = scrape_namespaces,
) -> tuple[FloatColumn, FloatColumn]:
    """Map the series of gateways onto the rows of a fleet.

    waiting: gauges by metric name. arrivals: rates (or increases) of counters by metric name.
    trusted: namespaces trusted about all workloads; it records the series that did not count. None: all are trusted.
    scraped_in: returns the namespaces in which a series was scraped, by its labels.
    Returns float64[W] twice: requests held, and arrivals in the unit of the input; NaN for workloads without a series.
    Variants of a service in one namespace share a series equally, so that their sum is correct. Every request passes
    through both sides of a prefill and decode pair, so each of these gets the whole value. Workloads in several
    namespaces each get the whole value: the owner is ambiguous, and a tenant must not take requests from another by
    naming its model. Several gateways in front of one workload are added; alternatives of one gateway are not.
    """
    lookup = WorkloadLookup(fleet)
    served = np.zeros(len(fleet.workloads), dtype=bool)
    served[fleet.pod_workload[fleet.pod_ready & ~fleet.pod_terminating]] = True

    def find(gateway: Gateway, labels: Labels) -> tuple[int, ...]:
        if trusted is None:
            return lookup.rows(gateway.keys, labels, scraped_in(labels))
        where = scraped_in(labels)
        everywhere = trusted.include(where)
        found = lookup.rows(gateway.keys, labels, where, everywhere=everywhere)
        if not found and not everywhere and (others := lookup.rows(gateway.keys, labels)):
            trusted.record_ignored(where, str(fleet.workloads[others[0]].ref))
        return found

    total_waiting = np.full(len(fleet.workloads), np.nan)
    total_arrivals = total_waiting.copy()
    for gateway in GATEWAYS.values():
        held = _read(lookup, gateway, gateway.waiting, waiting, find)
        if gateway.waiting_includes_served:
            held = np.where(served, np.minimum(held, 0.0), held)
        if gateway.refuses_unserved:
            held = np.where(held > 0, held, np.nan)
        total_waiting = add_known(total_waiting, held)
        arrived = _read(lookup, gateway, gateway.arrivals, arrivals, find, gateway.same_arrivals)
        total_arrivals = add_known(total_arrivals, arrived)
    return total_waiting, total_arrivals


def _read(
    lookup: WorkloadLookup,
    gateway: Gateway,
    readings: Readings,
    by_name: SeriesByName,
    find: Callable[[Gateway, Labels], tuple[int, ...]],
    same: bool = False,
) -> FloatColumn:
    """Return float64[W], the first alternative with a series for each row; the largest if `same`."""
    result = np.full(len(lookup.namespaces), np.nan)
    for reading in readings:
        sums: dict[int, float] = {}
        for part in (reading, *reading.plus):
            for labels, value in by_name.get(part.name, ()):
                if not (part.accepts(labels) and 0 <= value < math.inf):  # also false for NaN
                    continue
                found = find(gateway, labels)
                sharing = Counter((lookup.namespaces[row], lookup.roles[row]) for row in found)
                for row in found:
                    place = lookup.namespaces[row], lookup.roles[row]
                    sums[row] = sums.get(row, 0.0) + value / sharing[place]
        read = np.full(len(lookup.namespaces), np.nan)
        read[list(sums)] = list(sums.values())
        result = np.fmax(result, read) if same else np.where(np.isnan(result), read, result)
    return result


def add_known(a: FloatColumn, b: FloatColumn) -> FloatColumn:
    """Add two columns; an unknown value counts as absent."""
    return np.where(np.isnan(a), b, np.where(np.isnan(b), a, a + b))
