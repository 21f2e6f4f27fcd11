"""Excludes series of models that their pods do not serve. Models are queried every `PERIOD_S` and for new pods.

Such a series names a pod but comes from another server: the address of the pod was reassigned before Prometheus
noticed, or the labels are forged. All series of that target are excluded. If the target also shows the pod's own
model, the pod is read by further queries for that model only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from autoscaler.adapters.prometheus.decode import Vector, clean, parse_labels
from autoscaler.adapters.prometheus.instant.pod_join import MAX_REMEMBERED, LabelSet, PodJoin
from autoscaler.adapters.prometheus.instant.query_round import QueryRound
from autoscaler.adapters.prometheus.promql.engines import SampleQuery, engine_queries, models_query, with_matchers
from autoscaler.adapters.prometheus.promql.expressions import QuantileQuery
from autoscaler.adapters.prometheus.promql.labels import Identity
from autoscaler.catalog.engines import Engine
from autoscaler.catalog.series import MOVED, own_label
from autoscaler.config.findings import foreign_models
from autoscaler.core.model.fleet import Fleet, ServedNames
from autoscaler.core.table.columns import BoolColumn, IntColumn, find_ids

PERIOD_S = 30.0
MAX_GROUPS = 4  # groups of pods with the same own models and foreign ones; each group has its own queries
_SPECIAL = frozenset("\\\"'^$*+?()[]{}|\n")  # models with these characters in their names are not queried

Names = tuple[str, ...]


class ForeignModels:
    """Finds the series to exclude."""

    def __init__(self) -> None:
        self._queried_s = -math.inf
        self._pod_ids: IntColumn = np.empty(0, dtype=np.int64)  # pods of the fleet at that time
        self._identities: Sequence[Identity] = ()
        self._line = ""
        self._model_of: dict[bytes, str] = {}  # by labels, which are parsed once
        self._own: dict[Names, set[int]] = {}  # ids of pods by their own models, if they also report foreign ones

    async def read(
        self,
        query_round: QueryRound,
        at_s: float,
        engines: Mapping[str, Engine],
        identities: Sequence[Identity],
        join: PodJoin,
        fleet: Fleet,
    ) -> None:
        """Query the models if it is time or there are new pods, and exclude foreign series from `join`."""
        if not any(pod.served.names for pod in fleet.pods):
            self._line, self._own = "", {}
            join.exclude({})
            return
        new = not find_ids(fleet.pod_id, self._pod_ids)[1].all() or self._identities != identities
        if new or query_round.started_s - self._queried_s >= PERIOD_S:
            used = sorted({workload.engine for workload in fleet.workloads})
            asked = [engines[name] for name in used if name in engines and engines[name].served_label]
            if len(self._model_of) > MAX_REMEMBERED:
                self._model_of.clear()
            findings = _Findings(self._model_of)
            for engine in asked:
                for identity in identities:
                    answer = await query_round.query("models", models_query(engine, identity), at_s)
                    if answer is None:
                        return
                    findings.add(answer.vector, engine.served_label, join, fleet)
            self._queried_s, self._pod_ids, self._identities = query_round.started_s, fleet.pod_id, identities
            self._line, self._own = findings.describe(fleet), findings.own_models(fleet)
            join.exclude(findings.foreign)
        if self._line:
            query_round.note("models", self._line)

    def queries(
        self, engine: Engine, identity: Identity, quantiles: QuantileQuery, apart: Identity
    ) -> Iterable[SampleQuery]:
        """Return the queries for pods that report their own models and foreign ones. apart: see `engine_queries`."""
        for names in list(self._own)[:MAX_GROUPS] if engine.served_label else ():
            texts = names if len(names) == 1 else tuple(name.replace(".", "[.]") for name in names)
            own = with_matchers(engine, ((engine.served_label, texts),))
            for query in engine_queries(own, identity, quantiles, apart):
                yield replace(query, models=names)

    def has_models(self, names: Names, fleet: Fleet) -> BoolColumn:
        """Return which pods report these own models and foreign ones; bool[P]."""
        return np.isin(fleet.pod_id, list(self._own.get(names, ())))


class _Findings:
    """The foreign and own models in the answers of one round."""

    def __init__(self, model_of: dict[bytes, str]) -> None:
        """model_of: model by labels that were parsed before."""
        self.foreign: dict[LabelSet, int] = {}  # row of the pod, by labels of series with a foreign model
        self._model_of = model_of
        self._of_pod: dict[int, set[str]] = {}  # foreign models, by row of the pod
        self._own: dict[LabelSet, set[str]] = {}  # own models of the same pods, by labels

    def add(self, vector: Vector, label: str, join: PodJoin, fleet: Fleet) -> None:
        """Add one answer to `models_query`. label: that holds the model."""
        rows = join.rows(vector.labels)
        named = np.array([bool(pod.served.names) for pod in fleet.pods], dtype=bool)
        affected: set[int] = set()
        is_own: dict[tuple[ServedNames, str, str], bool] = {}
        asked = np.flatnonzero((rows >= 0) & named[rows])
        for index, row in zip(asked.tolist(), rows[asked].tolist(), strict=True):
            stated = fleet.workloads[fleet.pod_workload[row]].model
            key = fleet.pods[row].served, stated, self._model(vector.labels[index], label)
            if key not in is_own:
                is_own[key] = key[0].include(key[2], stated)
            if not is_own[key]:
                affected.add(row)
        for index in asked[np.isin(rows[asked], list(affected))].tolist():
            row, labels = int(rows[index]), parse_labels(vector.labels[index])
            moved, plain = labels.pop(MOVED + label, ""), labels.pop(label, "")
            model = moved or plain
            shown = frozenset(labels.items())
            if fleet.pods[row].served.include(model, fleet.workloads[fleet.pod_workload[row]].model):
                self._own.setdefault(shown, set()).add("" if moved else model)
            else:
                self.foreign[shown] = row
                self._of_pod.setdefault(row, set()).add(model)

    def _model(self, raw: bytes, label: str) -> str:
        if raw not in self._model_of:
            self._model_of[raw] = own_label(parse_labels(raw), label)
        return self._model_of[raw]

    def describe(self, fleet: Fleet) -> str:
        """Describe the excluded series; "" if there are none."""
        if not self._of_pod:
            return ""
        row = min(self._of_pod)
        pod, more = fleet.pods[row], f" and {len(self._of_pod) - 1} more" if len(self._of_pod) > 1 else ""
        left_out = foreign_models(sorted(self._of_pod[row]), pod.served.names)
        return f"pod {clean(f'{pod.namespace}/{pod.name}')}{more}: {left_out}"

    def own_models(self, fleet: Fleet) -> dict[Names, set[int]]:
        """Return the ids of pods by their own models, for targets that also show foreign ones."""
        found: dict[Names, set[int]] = {}
        for labels, row in self.foreign.items():
            own = tuple(sorted(self._own.get(labels, ())))
            if own and all(own) and not any(_SPECIAL & set(name) for name in own):
                found.setdefault(own, set()).add(int(fleet.pod_id[row]))
        return found
