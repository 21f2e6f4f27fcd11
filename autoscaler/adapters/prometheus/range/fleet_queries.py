"""Range queries for the pods of a fleet, in batches of workloads so that no response is large.

The pods of a workload are found by their names, also those that are gone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from autoscaler.adapters.prometheus.owners import name_in_pods, owner_of, pod_name_patterns_of_any
from autoscaler.adapters.prometheus.pod_labels import Name
from autoscaler.adapters.prometheus.promql.conventions import Conventions, convention_query, read_conventions
from autoscaler.adapters.prometheus.promql.engines import with_matchers
from autoscaler.adapters.prometheus.promql.labels import METRIC, NO_POD, POD, SCRAPE_LABELS, TARGET, Identity, Matchers
from autoscaler.adapters.prometheus.range.reader import RangeReader
from autoscaler.catalog.engines import ENGINES, Engine
from autoscaler.catalog.series import POD_LABELS
from autoscaler.catalog.spellings import Spelling, engines_spelled
from autoscaler.core.model.fleet import Fleet

BATCH_PODS = 250  # present pods per query; the response then has about 1 MB
BATCH_CHARACTERS = 150  # of names per query, which is sent in a URL
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:/-]{0,251}[A-Za-z0-9])?")  # other names are not queried


@dataclass
class Batch:
    """Workloads that are queried together, all of one engine."""

    engine: str
    rows: list[int] = field(default_factory=list)
    pods: int = 0
    characters: int = 0


class FleetQueries:
    """The batches of a fleet, how the backend names their pods, and which workload a pod belongs to."""

    def __init__(self, reader: RangeReader, fleet: Fleet, spellings: tuple[Spelling, ...], at_s: float) -> None:
        """Find the conventions of the backend at a Unix time. Raises Unavailable."""
        self._fleet = fleet
        asked = reader.query(convention_query(spellings), at_s, at_s, 1.0)
        found = {row["metric"].get(METRIC, ""): float(row["values"][-1][1]) for row in asked}
        self._conventions: Conventions = read_conventions(found)
        self._workload_of: dict[Name, dict[str, int]] = {}  # by name, then by kind
        for name_of in (str, name_in_pods):
            for row, workload in enumerate(fleet.workloads):
                namespace, name, kind, _ = workload.ref
                self._workload_of.setdefault((namespace, name_of(name)), {}).setdefault(kind, row)
        self.pod_of = {(pod.namespace, pod.name): row for row, pod in enumerate(fleet.pods)}

    def batches(self, rows: Collection[int]) -> Iterator[Batch]:
        """Yield batches of these workloads, the largest first. Those with names that cannot be queried are left out."""
        most_characters = BATCH_CHARACTERS // len(self._conventions.spellings)  # each spelling adds selectors
        present = np.bincount(self._fleet.pod_workload, minlength=len(self._fleet.workloads))
        size = np.maximum(np.nan_to_num(self._fleet.replicas), present)
        batches: dict[str, Batch] = {}
        for row in np.argsort(-size, kind="stable").tolist():
            workload = self._fleet.workloads[row]
            name, namespace = workload.ref.name, workload.ref.namespace
            if row not in rows or workload.engine not in ENGINES:
                continue
            if not (_NAME.fullmatch(name) and _NAME.fullmatch(namespace)):
                continue
            batch = batches.setdefault(workload.engine, Batch(workload.engine))
            characters = len(name) + len(namespace)
            if batch.rows and (batch.pods + size[row] > BATCH_PODS or batch.characters + characters > most_characters):
                yield batch
                batch = batches[workload.engine] = Batch(workload.engine)
            batch.rows.append(row)
            batch.pods += int(size[row])
            batch.characters += characters
        yield from (batch for batch in batches.values() if batch.rows)

    def spelled_engine(self, name: str) -> Engine:
        """Return an engine of the catalog as the backend spells its metrics."""
        return engines_spelled(self._conventions.spellings)[name]

    def narrowed_engines(self, batch: Batch) -> Iterator[tuple[Identity, Engine]]:
        """Yield the engine of a batch restricted to its pods, for each pair of labels that may name them.

        Hits of the cache that preempted requests had are not corrected: with the names of all pods, the query would be
        longer than a proxy takes.
        """
        engine = self.spelled_engine(batch.engine)
        plain = {name: tuple(replace(row, again=()) for row in rows) for name, rows in engine.readings.items()}
        engine = replace(engine, readings=plain)
        for identity, where in self._matchers(batch):
            yield identity, with_matchers(engine, where, own=identity != TARGET)

    def workload_of(self, pod: Name) -> int | None:
        """Return the row of the workload of a pod, which may be gone; None if the fleet does not have it."""
        if (row := self.pod_of.get(pod)) is not None:
            return int(self._fleet.pod_workload[row])
        ref = owner_of(*pod, "", ("", ""), {})
        kinds = self._workload_of.get((ref.namespace, ref.name), {})
        return kinds.get(ref.kind, next(iter(kinds.values()), None))

    def _matchers(self, batch: Batch) -> Iterator[tuple[Identity, Matchers]]:
        """Yield label matchers for a batch. They also match a few other pods."""
        refs = [self._fleet.workloads[row].ref for row in batch.rows]
        namespaces = tuple(sorted({ref.namespace for ref in refs}))
        inside = tuple(map(_escaped, namespaces)) if len(namespaces) > 1 else namespaces
        names = pod_name_patterns_of_any(ref.name for ref in refs)
        if POD in self._conventions.identities:
            for pair in self._conventions.pod_labels:
                before = NO_POD[: POD_LABELS.index(pair)]
                yield (*pair, *SCRAPE_LABELS), (*before, (pair[0], inside), (pair[1], names))
        if TARGET in self._conventions.identities and any(not ref.api_version for ref in refs):
            yield TARGET, ((TARGET[0], inside),)


def _escaped(name: str) -> str:
    return name.replace(".", "[.]")
