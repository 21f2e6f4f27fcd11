"""Which workload a series of a gateway is about, and whose series count for it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Set

import numpy as np

from autoscaler.catalog.gateways import GATEWAY_NAMESPACES, GATEWAYS, HOME_LABELS, Gateway, Key
from autoscaler.catalog.series import Labels, Readings, SeriesByName, own_label
from autoscaler.core.model.fleet import Fleet
from autoscaler.core.table.columns import FloatColumn

NAMED = 3  # namespaces named in one line


def scraped_in(labels: Labels) -> frozenset[str]:
    """Return the namespaces that a series may come from; none: its target is of the operator's own list."""
    return frozenset(labels[label] for label in HOME_LABELS if labels.get(label))


class Reporters:
    """The namespaces whose gateways are believed everywhere, and what came from others about workloads not theirs."""

    def __init__(self, believed: Iterable[str] = GATEWAY_NAMESPACES) -> None:
        self._believed = frozenset(believed)
        self._refused: dict[str, set[str]] = {}

    def everywhere(self, homes: frozenset[str]) -> bool:
        """Say whether what was scraped in these namespaces counts for all workloads."""
        return ALL in self._believed or homes <= self._believed

    def refuse(self, homes: frozenset[str], workload: str) -> None:
        """Remember that a series did not count for a workload."""
        self._refused.setdefault(" and ".join(sorted(homes)), set()).add(workload)

    def problem(self) -> str:
        """Say what did not count, in one line; "": everything did."""
        if not self._refused:
            return ""
        homes = sorted(self._refused)
        more = f" and {len(homes) - NAMED} more" if len(homes) > NAMED else ""
        about = min(self._refused[homes[0]])
        return (
            f"series from namespace {', '.join(homes[:NAMED])}{more} are about workloads of other namespaces, such as "
            f"{about}, and do not count for them; --gateway-namespace {homes[0].partition(' ')[0]} lets them"
        )


class WorkloadNames:
    """Finds the workloads of one fleet by the names a gateway may know them by."""

    def __init__(self, fleet: Fleet) -> None:
        self._by_model: dict[str, list[int]] = {}
        self._by_name: dict[str, list[int]] = {}
        self.namespaces = tuple(workload.ref.namespace for workload in fleet.workloads)
        for row, workload in enumerate(fleet.workloads):
            if workload.model:
                self._by_model.setdefault(workload.model, []).append(row)
            for name in dict.fromkeys((workload.service or workload.ref.name, workload.ref.name)):
                self._by_name.setdefault(name, []).append(row)

    def rows(
        self, keys: Iterable[Key], labels: Labels, homes: Set[str] = frozenset(), *, everywhere: bool = True
    ) -> tuple[int, ...]:
        """Return the rows of the workloads a series is about; several are variants of one service; () is nobody.

        homes: the namespaces it was scraped in; everywhere: it may be about workloads of others, too.
        In each namespace the first key that finds a workload decides, so that a name takes nothing from a neighbour. A
        workload of the series' own namespace comes before all others; a key that names a namespace before keys without.
        """
        found: dict[str, list[int]] = {}
        for key in keys:
            if key.model:
                rows, namespace = self._by_model.get(own_label(labels, key.model), []), ""
            else:
                name, namespace = _named(key, labels)
                rows = self._by_name.get(name, []) if name else []
            here: dict[str, list[int]] = {}
            for row in rows:
                here.setdefault(self.namespaces[row], []).append(row)
            if key.namespace or namespace:
                if namespace in here:
                    return tuple(here[namespace]) if everywhere or homes == {namespace} else ()
                continue
            found = {**here, **found}
        home = next(iter(homes)) if len(homes) == 1 else ""
        if home in found:
            return tuple(found[home])
        if not everywhere:
            return ()
        said = own_label(labels, "namespace")  # of what the series is about, as it says itself
        return tuple(found[said] if said in found else sorted(row for rows in found.values() for row in rows))


def _named(key: Key, labels: Labels) -> tuple[str, str]:
    """Return (name, namespace) as `key` reads them; ("", "") where it finds no name."""
    name, namespace = own_label(labels, key.name), own_label(labels, key.namespace) if key.namespace else ""
    if key.pattern is not None:
        match = key.pattern.fullmatch(name[:512])  # names of objects are far shorter
        if match is None:
            return "", ""
        parts = match.groupdict()
        name, namespace = parts["name"], parts.get("namespace") or namespace
    return (name + key.suffix, namespace) if name else ("", "")


def read_front(
    fleet: Fleet,
    waiting: SeriesByName,
    arrivals: SeriesByName,
    reporters: Reporters | None = None,
    homes: Callable[[Labels], frozenset[str]] = scraped_in,
) -> tuple[FloatColumn, FloatColumn]:
    """Bring what gateways report onto the rows of the fleet.

    waiting: gauges by metric name; arrivals: rates (or increases) of counters by metric name, each with its series.
    reporters: who is believed about which workloads, and is told what was not; None: everybody is.
    homes: the namespaces a series was scraped in, by its labels.
    Returns float64[W] twice: requests held, and arrivals in the unit they came in. NaN where no series names the
    workload. Workloads of one namespace that share a series (variants of a service) share its value equally, so that
    the sum is true. Those of several namespaces each have all of it: whose it is cannot be told, and nobody is to take
    anything from a neighbour by naming its model. Several gateways in front of one workload are added; the
    alternatives of one gateway are not.
    """
    names = WorkloadNames(fleet)
    served = np.zeros(len(fleet.workloads), dtype=bool)
    served[fleet.pod_workload[fleet.pod_ready & ~fleet.pod_terminating]] = True

    def find(gateway: Gateway, labels: Labels) -> tuple[int, ...]:
        if reporters is None:
            return names.rows(gateway.keys, labels, homes(labels))
        where = homes(labels)
        everywhere = reporters.everywhere(where)
        found = names.rows(gateway.keys, labels, where, everywhere=everywhere)
        if not found and not everywhere and (others := names.rows(gateway.keys, labels)):
            reporters.refuse(where, str(fleet.workloads[others[0]].ref))
        return found

    total_waiting = np.full(len(fleet.workloads), np.nan)
    total_arrivals = total_waiting.copy()
    for gateway in GATEWAYS.values():
        held = _read(names, gateway, gateway.waiting, waiting, find)
        if gateway.waiting_includes_served:
            held = np.where(served, np.minimum(held, 0.0), held)
        if gateway.refuses_unserved:
            held = np.where(held > 0, held, np.nan)
        total_waiting = add_known(total_waiting, held)
        came = _read(names, gateway, gateway.arrivals, arrivals, find, gateway.same_arrivals)
        total_arrivals = add_known(total_arrivals, came)
    return total_waiting, total_arrivals


def _read(
    names: WorkloadNames,
    gateway: Gateway,
    readings: Readings,
    by_name: SeriesByName,
    find: Callable[[Gateway, Labels], tuple[int, ...]],
    same: bool = False,
) -> FloatColumn:
    """Return float64[W]: in each row the first alternative that says anything about it; if `same`, the largest."""
    result = np.full(len(names.namespaces), np.nan)
    for reading in readings:
        sums: dict[int, float] = {}
        for part in (reading, *reading.plus):
            for labels, value in by_name.get(part.name, ()):
                if not (part.accepts(labels) and 0 <= value < math.inf):  # NaN fails as well
                    continue
                found = find(gateway, labels)
                beside = Counter(names.namespaces[row] for row in found)
                for row in found:
                    sums[row] = sums.get(row, 0.0) + value / beside[names.namespaces[row]]
        read = np.full(len(names.namespaces), np.nan)
        read[list(sums)] = list(sums.values())
        result = np.fmax(result, read) if same else np.where(np.isnan(result), read, result)
    return result


def add_known(a: FloatColumn, b: FloatColumn) -> FloatColumn:
    """Add two columns where both are known; where one is, take it."""
    return np.where(np.isnan(a), b, np.where(np.isnan(b), a, a + b))


ALL = "*"  # stands for every namespace
