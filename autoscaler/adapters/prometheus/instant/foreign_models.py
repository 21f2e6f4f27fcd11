"""Series of models that their pods do not serve: asked for every 30 s, and left out until the next answer.

Such a series names a pod and is another server's: its address was given away before Prometheus knew, or its labels are
forged. All that such a target shows of the pod is left out. Where it shows the pod's own model as well, the pod is read
once more, by queries for that model alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from autoscaler.adapters.prometheus.decode import Vector, clean, parse_labels
from autoscaler.adapters.prometheus.instant.pod_join import MAX_REMEMBERED, LabelSet, PodJoin
from autoscaler.adapters.prometheus.instant.query_round import Sampling
from autoscaler.adapters.prometheus.promql.engines import PodQuery, engine_queries, models_query, narrowed
from autoscaler.adapters.prometheus.promql.expressions import Quantiles
from autoscaler.adapters.prometheus.promql.labels import Identity
from autoscaler.catalog.engines import Engine
from autoscaler.catalog.series import MOVED, own_label
from autoscaler.config.findings import foreign_models
from autoscaler.core.model.fleet import Fleet, ServedNames
from autoscaler.core.table.columns import BoolColumn, IntColumn, find

PERIOD_S = 30.0
MAX_GROUPS = 4  # of pods that report the same of their own models beside others, each of which has its own queries
_SPECIAL = frozenset("\\\"'^$*+?()[]{}|\n")  # in a name, beside the dot: such a one is not asked for

Names = tuple[str, ...]


class Models:
    """Knows which series to leave out."""

    def __init__(self) -> None:
        self._asked_s = -math.inf
        self._pod_ids: IntColumn = np.empty(0, dtype=np.int64)  # of the fleet when that was
        self._line = ""
        self._model_of: dict[bytes, str] = {}  # by labels: they are parsed once
        self._own: dict[Names, set[int]] = {}  # ids of the pods that report these models of theirs beside others

    async def read(
        self,
        sampling: Sampling,
        at_s: float,
        engines: Mapping[str, Engine],
        identities: Sequence[Identity],
        join: PodJoin,
        fleet: Fleet,
    ) -> None:
        """Ask, if it is time or there are pods that were not there, and have `join` leave out what is foreign."""
        if not any(pod.served.names for pod in fleet.pods):
            self._line, self._own = "", {}
            join.leave_out({})
            return
        new = not find(fleet.pod_id, self._pod_ids)[1].all()
        if new or sampling.started_s - self._asked_s >= PERIOD_S:
            used = sorted({workload.engine for workload in fleet.workloads})
            asked = [engines[name] for name in used if name in engines and engines[name].served_label]
            if len(self._model_of) > MAX_REMEMBERED:
                self._model_of.clear()
            seen = _Seen(self._model_of)
            for engine in asked:
                for identity in identities:
                    answer = await sampling.ask("models", models_query(engine, identity), at_s)
                    if answer is None:
                        return
                    seen.look(answer.vector, engine.served_label, join, fleet)
            self._asked_s, self._pod_ids = sampling.started_s, fleet.pod_id
            self._line, self._own = seen.tell(fleet), seen.of_own(fleet)
            join.leave_out(seen.foreign)
        if self._line:
            sampling.note("models", self._line)

    def queries(self, engine: Engine, identity: Identity, quantiles: Quantiles) -> Iterable[PodQuery]:
        """Return the queries for pods that report their own models beside others."""
        for names in list(self._own)[:MAX_GROUPS] if engine.served_label else ():
            texts = names if len(names) == 1 else tuple(name.replace(".", "[.]") for name in names)
            own = narrowed(engine, ((engine.served_label, texts),))
            for query in engine_queries(own, identity, quantiles):
                yield replace(query, models=names)

    def rows(self, names: Names, fleet: Fleet) -> BoolColumn:
        """Say which pods report these models of theirs beside others; bool[P]."""
        return np.isin(fleet.pod_id, list(self._own.get(names, ())))


class _Seen:
    """The findings of one round of answers."""

    def __init__(self, model_of: dict[bytes, str]) -> None:
        """model_of: of labels that were read before."""
        self.foreign: dict[LabelSet, int] = {}  # row of the pod that shows a foreign model
        self._model_of = model_of
        self._of_pod: dict[int, set[str]] = {}  # the foreign ones
        self._believed: dict[LabelSet, set[str]] = {}  # of the same pods

    def look(self, vector: Vector, label: str, join: PodJoin, fleet: Fleet) -> None:
        rows = join.rows(vector.labels)
        named = np.array([bool(pod.served.names) for pod in fleet.pods], dtype=bool)
        doubtful: set[int] = set()
        judged: dict[tuple[ServedNames, str, str], bool] = {}
        asked = np.flatnonzero((rows >= 0) & named[rows])
        for index, row in zip(asked.tolist(), rows[asked].tolist(), strict=True):
            stated = fleet.workloads[fleet.pod_workload[row]].model
            what = fleet.pods[row].served, stated, self._model(vector.labels[index], label)
            if what not in judged:
                judged[what] = what[0].include(what[2], stated)
            if not judged[what]:
                doubtful.add(row)
        for index in asked[np.isin(rows[asked], list(doubtful))].tolist():
            row, labels = int(rows[index]), parse_labels(vector.labels[index])
            moved, plain = labels.pop(MOVED + label, ""), labels.pop(label, "")
            model = moved or plain
            shown = frozenset(labels.items())
            if fleet.pods[row].served.include(model, fleet.workloads[fleet.pod_workload[row]].model):
                self._believed.setdefault(shown, set()).add("" if moved else model)
            else:
                self.foreign[shown] = row
                self._of_pod.setdefault(row, set()).add(model)

    def _model(self, raw: bytes, label: str) -> str:
        if raw not in self._model_of:
            self._model_of[raw] = own_label(parse_labels(raw), label)
        return self._model_of[raw]

    def tell(self, fleet: Fleet) -> str:
        """Word what is left out; "": nothing is."""
        if not self._of_pod:
            return ""
        row = min(self._of_pod)
        pod, more = fleet.pods[row], f" and {len(self._of_pod) - 1} more" if len(self._of_pod) > 1 else ""
        left_out = foreign_models(sorted(self._of_pod[row]), pod.served.names)
        return f"pod {clean(f'{pod.namespace}/{pod.name}')}{more}: {left_out}"

    def of_own(self, fleet: Fleet) -> dict[Names, set[int]]:
        """Return the ids of pods by what they report of their own models from a target that shows others, too."""
        found: dict[Names, set[int]] = {}
        for labels, row in self.foreign.items():
            own = tuple(sorted(self._believed.get(labels, ())))
            if own and all(own) and not any(_SPECIAL & set(name) for name in own):
                found.setdefault(own, set()).add(int(fleet.pod_id[row]))
        return found
