"""One tick as a table: what the API lists, the page shows and the stream compares. Columns in, JSON values out.

What a field means is in `FIELDS`, once; the table in `docs/reference/api.md` is held equal to it by a test.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from autoscaler.adapters.web.tick_values import (
    DIAGNOSES,
    PENDING_CLASSES,
    RECOMMENDERS,
    SIGNALS,
    STAGES,
    binding_stage,
    bounded,
    strongest_signal,
)
from autoscaler.core.model.fleet import Workload
from autoscaler.core.model.money import Money, Price
from autoscaler.core.model.types import Stage, TickInput
from autoscaler.core.model.variants import Variants
from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn
from autoscaler.ports import TickRecord

Column = npt.NDArray[Any]  # float64, int64, bool or str objects, [W]
Cells = dict[str, Any]  # one row, or the part of it that changed, as JSON values; NaN becomes null when encoded

FIELDS = {
    "id": "number of the workload, fixed while the daemon runs",
    "namespace": "namespace",
    "name": "name of the scale target",
    "kind": "kind of the scale target",
    "service": "model endpoint of which it is a variant, or one side of a pair; empty: itself",
    "role": "what it does in a prefill and decode pair: prefill, decode; empty: both",
    "partner": "name of the other workload of its pair; empty: none",
    "model": "model name as engine or gateway report it; empty: unknown",
    "policy": "policy in force",
    "other_owner": "another owner of the replica count; empty: none",
    "paused": "the operator has paused it",
    "trusted": "inputs are known and fresh enough to shrink on",
    "recommender": "recommender that the count comes from; see below",
    "signal": "signal with the largest recommendation; empty: none has an opinion",
    "bound": "last stage that changed the count; empty: none did",
    "current": "spec.replicas in the cluster",
    "ready": "ready pods that are not leaving, and are awake",
    "asleep": "pods whose engine sleeps",
    "starting": "pods that are starting",
    "pending": "pods that cannot become ready without a change",
    "missing_pods": "replicas that should exist, have no pod, and are not being created",
    "pending_by_class": "replicas that are not ready, by class; classes without one are left out; see below",
    "demand": "replicas that the strongest signal recommends, before any limit",
    "load": "replicas that the arriving requests keep busy, as measured; null: unknown",
    "wanted": "desired replicas, as decided",
    "running": "requests in the running batches",
    "waiting": "requests held by the engines",
    "gateway_waiting": "requests held by the gateway",
    "ttft_s": "time to first token, seconds: 95th percentile of the requests of all pods; null: no requests",
    "ttft_objective_s": "its objective",
    "itl_s": "inter-token latency, seconds: 95th percentile of the gaps between tokens of all pods",
    "itl_objective_s": "its objective",
    "used_budgets": "requests that missed within about its window, in error budgets: above 1 the budget is exceeded",
    "gpu_loaded": "replicas whose GPU memory is in use; null: no GPU metrics",
    "gpu_active": "replicas whose tensor cores work",
    "gpu_diagnosis": "what most of its serving replicas do with their GPU; see below",
    "loaded_idle_s": "replica-seconds loaded and idle since the workload was first seen",
    "flaps": "changes of the count that were undone within one cold start, since the workload was first seen",
    "gpus_per_replica": "GPUs of one replica; null: unknown",
    "usd_per_hour": "what its current replicas cost in an hour, USD; null: they have no price",
    "price_note": "why the price is unknown, or why it may be too high; empty: it is known",
    "fits": "replicas that fit on the nodes that admit it, next to pods of others; null: no limit is known",
    "room": "further replicas for which these nodes have room now; null: unknown",
    "age_s": "age of the oldest trusted engine reading, seconds",
}
SORTABLE = tuple(FIELDS)
QUIET = ("age_s", "loaded_idle_s")  # change on every tick; not worth a message
SEARCHED = ("namespace", "name", "policy", "service", "model")


@dataclass(frozen=True)
class Names:
    """Columns of the table that stay the same from tick to tick."""

    workloads: tuple[Workload, ...]
    columns: dict[str, Column]
    row: dict[tuple[str, str], dict[str, int]]  # (namespace, name) to kind to row; the first of a kind wins

    @classmethod
    def of(cls, workloads: tuple[Workload, ...]) -> Names:
        columns = {
            "namespace": _words(bounded(workload.ref.namespace) for workload in workloads),
            "name": _words(bounded(workload.ref.name) for workload in workloads),
            "kind": _words(bounded(workload.ref.kind) for workload in workloads),
            "service": _words(bounded(workload.service) for workload in workloads),
            "role": _words(bounded(workload.role) for workload in workloads),
            "model": _words(bounded(workload.model) for workload in workloads),
        }
        rows: dict[tuple[str, str], dict[str, int]] = {}
        for row, (namespace, name, kind) in enumerate(
            zip(columns["namespace"], columns["name"], columns["kind"], strict=True)
        ):
            rows.setdefault((namespace, name), {}).setdefault(kind, row)
        return cls(workloads, columns, rows)


@dataclass(frozen=True)
class Table:
    """The fields of all workloads after one tick. It holds no reference to the tick, whose pods use much memory."""

    number: int  # of the tick
    wall_s: float
    leading: bool
    names: Names
    columns: dict[str, Column]  # in the order of FIELDS
    usd_per_hour: FloatColumn  # float64[W], not rounded

    @classmethod
    def of(cls, tick: TickRecord, before: Table | None = None) -> Table:
        """Build the table of a tick. Unchanged columns are shared with `before`."""
        fleet, decision, seen = tick.input.fleet, tick.decision, tick.decision.observation
        kept = before is not None and before.names.workloads is fleet.workloads
        names = before.names if before is not None and kept else Names.of(fleet.workloads)
        variants = tick.input.variants or Variants.none(len(fleet.workloads))
        # No replicas cost nothing, whatever one costs.
        usd_per_hour = np.where(fleet.replicas > 0, variants.cost * fleet.replicas, 0.0)
        columns = names.columns | {
            "id": fleet.workload_id,
            "policy": _words(bounded(policy) for policy in tick.policies),
            "other_owner": _words(bounded(owner) for owner in fleet.other_owner),
            "partner": _words(_partners(tick.input)),
            "paused": fleet.paused,
            "trusted": decision.trusted,
            "recommender": _words(RECOMMENDERS)[decision.recommender],
            "signal": _words((*SIGNALS, ""))[strongest_signal(decision.recommendations)],
            "bound": _words((*STAGES, ""))[binding_stage(decision)],
            "current": fleet.replicas,
            "pending_by_class": _words(_by_class(decision.pending_by_class)),
            "demand": decision.stages[Stage.DEMAND],
            "load": decision.plan.demand,
            "wanted": decision.replicas,
            "ttft_objective_s": tick.input.spec.ttft_objective_s,
            "itl_objective_s": tick.input.spec.itl_objective_s,
            "used_budgets": _used_budgets(decision.plan.missed_fraction, tick.input.spec.error_budget),
            "gpu_diagnosis": _words(DIAGNOSES)[decision.diagnosed.diagnosis],
            "gpus_per_replica": fleet.gpus_per_replica,
            "usd_per_hour": usd_per_hour,
            "price_note": _words(bounded(why) for why in variants.reasons()),
            "fits": fleet.obstacles.fits,
            "room": np.full(len(fleet.workloads), np.nan) if fleet.obstacles.room is None else fleet.obstacles.room,
        }
        for field in FIELDS.keys() - columns.keys():
            columns[field] = getattr(seen, field)
        shown = {field: _shown(columns[field]) for field in FIELDS}
        return cls(tick.number, tick.wall_s, tick.leading, names, shown, usd_per_hour)

    @cached_property
    def money(self) -> dict[str, Any]:
        """What all current replicas cost in an hour, and what this leaves out."""
        columns = (self.columns[field].tolist() for field in ("namespace", "name", "price_note", "current"))
        rows = zip(*columns, self.usd_per_hour.tolist(), strict=True)
        sum_ = Money.sum((f"{space}/{name}", Price(usd, why)) for space, name, why, count, usd in rows if count)
        return sum_.to_json() | {"text": sum_.say("workload", "an hour")}

    def __len__(self) -> int:
        return len(self.columns["id"])

    def find(self, namespace: str, name: str) -> dict[str, int]:
        """Return the rows of the workloads of a name, by kind."""
        return self.names.row.get((namespace, name), {})

    def search(self, text: str) -> IntColumn:
        """Return the rows whose name, policy, service or model contains `text`, ignoring case."""
        needle = text.casefold()
        texts = zip(*(self.columns[field].tolist() for field in SEARCHED), strict=True)
        hits = [row for row, (namespace, name, *rest) in enumerate(texts) if _contains(needle, namespace, name, rest)]
        return np.array(hits, dtype=np.int64)

    def order(self, rows: IntColumn, field: str, descending: bool) -> IntColumn:
        """Sort rows by a field. Unknown values come last in both directions; the sort is stable."""
        keys: Column = self.columns[field][rows]
        if keys.dtype == object:
            keys = np.unique(keys.astype(str), return_inverse=True)[1]
        numbers = keys.astype(np.float64)
        return rows[np.argsort(-numbers if descending else numbers, kind="stable")]

    def rows(self, rows: IntColumn) -> list[Cells]:
        """Return whole rows."""
        columns = [self.columns[field][rows].tolist() for field in FIELDS]
        return [dict(zip(FIELDS, values, strict=True)) for values in zip(*columns, strict=True)]

    def changes(self, before: Table) -> tuple[list[Cells], list[int]]:
        """Return what differs from an earlier table, QUIET fields left out: changed cells by row with their id, whole
        rows for new workloads, and the ids of workloads that are gone.
        """
        ids, old_ids = self.columns["id"], before.columns["id"]
        known = np.isin(ids, old_ids)
        old_rows = np.searchsorted(old_ids, ids[known])
        rows = np.flatnonzero(known)
        changed: dict[int, Cells] = {}
        for field, column in self.columns.items():
            if field in QUIET:
                continue
            new, old = column[rows], before.columns[field][old_rows]
            for row in rows[_differs(new, old)].tolist():
                changed.setdefault(row, {"id": int(ids[row])})[field] = column[row : row + 1].tolist()[0]
        cells = [changed[row] for row in sorted(changed)]
        return cells + self.rows(np.flatnonzero(~known)), old_ids[~np.isin(old_ids, ids)].tolist()


def _partners(inp: TickInput) -> list[str]:
    """Return the name of the other workload of each pair; "" without one."""
    workloads = inp.fleet.workloads
    if inp.pairs is None:
        return [""] * len(workloads)
    return [bounded(workloads[row].ref.name) if row >= 0 else "" for row in inp.pairs.partner.tolist()]


def _used_budgets(missed: FloatColumn, budget: FloatColumn) -> FloatColumn:
    """Return error budgets used, rounded to whole percent: finer steps would change on every tick."""
    return np.round(missed / np.where(budget > 0, budget, np.nan), 2)


def _by_class(counts: FloatColumn) -> list[dict[str, float]]:
    """Return the classes that a workload has replicas of, with their number. counts: float64[C, W]."""
    found: list[dict[str, float]] = [{} for _ in range(counts.shape[1])]
    for each, row in np.argwhere(counts > 0).tolist():
        found[row][PENDING_CLASSES[each]] = float(counts[each, row])
    return found


def _contains(needle: str, namespace: str, name: str, rest: list[str]) -> bool:
    return needle in f"{namespace}/{name}".casefold() or any(needle in text.casefold() for text in rest)


def _words(words: Any) -> Column:
    listed = list(words)
    column = np.empty(len(listed), dtype=object)
    column[:] = listed
    return column


def _shown(column: Column) -> Column:
    """Round numbers to the displayed digits, so that noise in further digits is no change."""
    if column.dtype != np.float64:
        return column
    with np.errstate(divide="ignore", invalid="ignore"):
        digits = np.floor(np.log10(np.abs(column)))
    scale = 10.0 ** np.clip(3 - np.where(np.isfinite(digits), digits, 0), 0, 6)
    rounded: Column = np.round(column * scale) / scale
    return rounded


def _differs(new: Column, old: Column) -> BoolColumn:
    different: BoolColumn = np.asarray(new != old, dtype=bool)
    if new.dtype == np.float64:
        different &= ~(np.isnan(new) & np.isnan(old))
    return different
