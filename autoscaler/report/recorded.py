"""The history of all services from a record, in place of Prometheus: the same columns, in steps of its traffic rows."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from textwrap import indent
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from autoscaler.adapters.prometheus.range.own_use import GpuUseRow
from autoscaler.adapters.prometheus.range.service_queries import COLUMNS, PODS, ServiceName
from autoscaler.adapters.prometheus.range.team_labels import say_moved
from autoscaler.adapters.record.reader import Record, moment
from autoscaler.adapters.record.rows import COUNTS_ORDER, LEAST_STEPS, TRAFFIC_S, first_step_s
from autoscaler.config.policy.namespace_limits import LIMITS_KIND
from autoscaler.config.policy.parse import read_policy
from autoscaler.config.policy.schema import API_VERSION, KIND, Policy
from autoscaler.config.yaml import read_documents
from autoscaler.core.table.columns import BoolColumn, FloatColumn, or_zero
from autoscaler.ports import Unavailable
from autoscaler.report.facts import ServiceFacts
from autoscaler.report.gpu_use import of_services, read_use
from autoscaler.report.history import FleetHistory, Span, Steps
from autoscaler.report.last_tick import LastTick

GROWN = ("finished", "first_tokens", "prompt_tokens", "generation_tokens", "gap_s", "gaps")
JUDGED = ("ttft_judged", "ttft_met", "itl_judged", "itl_met")
TRAFFIC = ("running_s", "waiting_s", "kv_s", *GROWN, *JUDGED)


class Recorded(NamedTuple):
    """What a record tells of all services; [W]."""

    history: FleetHistory
    facts: ServiceFacts
    policies: tuple[str, ...]  # names, the last one of each service; "": none
    teams: tuple[str, ...]  # likewise
    gpu_use: tuple[GpuUseRow, ...]
    last: LastTick

    def of_teams(self, wanted: Sequence[str]) -> Recorded:
        """Return the services of these teams; (): all. Raises ValueError if there is none."""
        if not wanted:
            return self
        rows = [row for row, team in enumerate(self.teams) if team in wanted]
        if not rows:
            known = ", ".join(sorted({*self.teams} - {""})[:10]) or "no team in the record"
            raise ValueError(f"no service of team {' or '.join(wanted)}; found: {known}")
        return self.take(rows)

    def take(self, rows: Sequence[int]) -> Recorded:
        """Return some services, in this order."""
        history = self.history.take(rows)
        policies, teams = (tuple(each[row] for row in rows) for each in (self.policies, self.teams))
        gpu_use = of_services(self.gpu_use, history.services, whole_namespaces=False)
        return Recorded(history, self.facts.only(rows), policies, teams, gpu_use, self.last.take(list(rows)))


def read_record(
    record: Record,
    start_s: float,
    end_s: float,
    namespaces: tuple[str, ...],
    prices: Mapping[str, float] = MappingProxyType({}),
) -> Recorded:
    """Read what is recorded between two Unix times, whole steps. Raises Unavailable if it is less than an hour.

    prices: stated ones, by `config.prices.key_of`; without any the recorded ones stand.
    """
    first_s, last_s = record.span()
    start = first_step_s(max(start_s, first_s))
    steps = int((min(end_s, last_s) - start) // TRAFFIC_S)
    if steps < LEAST_STEPS:
        raise Unavailable(
            f"--record {record.folder}: it has {moment(first_s)} to {moment(last_s)}; needed: an hour in whole "
            "steps of five minutes of the clock"
        )
    span = Span(float(start), float(TRAFFIC_S), steps)
    names = "SELECT id, namespace, name FROM workloads ORDER BY id"
    row_of: dict[tuple[object, int], int] = {}  # by file and number
    rows: dict[ServiceName, int] = {}
    for file, (number, namespace, name) in record.query(names):
        if not namespaces or namespace in namespaces:
            row_of[file.path, number] = rows.setdefault(ServiceName("", namespace, name), len(rows))
    columns = {name: np.full((steps, len(rows)), np.nan, np.float32) for name in COLUMNS}
    ticked = _ticked(record, span)
    _fill_counts(record, span, row_of, columns, ticked)
    _fill_traffic(record, span, row_of, columns)
    facts, policies, teams, moved = _read_facts(record, row_of, len(rows))
    gpu_use = read_use(record, span, namespaces)
    last = LastTick.of(record, last_s, tuple(rows))
    facts, problems = last.price(facts, prices) if prices else (facts, [])
    if last.why_not:
        problems.append(f"what single workloads override is not known, nor the slots of their engines: {last.why_not}")
    problems += [*say_moved([str(name) for name, row in rows.items() if row in moved]), *record.problems]
    if missing := int((~ticked).sum()):
        problems.append(f"record: in {missing} of {steps} steps no tick was recorded")
    recorded = Recorded(
        FleetHistory(span, tuple(rows), columns, tuple(problems)), facts, policies, teams, gpu_use, last
    )
    here = np.flatnonzero(~np.isnan(columns[PODS]).all(axis=0)).tolist()  # the others were gone before
    return recorded if len(here) == len(rows) else recorded.take(here)


def _ticked(record: Record, span: Span) -> BoolColumn:
    """Return the steps in which ticks were recorded; bool[T]."""
    ticked = np.zeros(span.steps, dtype=bool)
    for _, (at_s, until_s) in record.query("SELECT at_s, until_s FROM ticks WHERE until_s >= ?", span.start_s):
        first, last = ((each - span.start_s) // span.step_s for each in (at_s, until_s))
        ticked[max(int(first), 0) : max(int(last) + 1, 0)] = True
    return ticked


def _fill_counts(
    record: Record, span: Span, row_of: dict[tuple[object, int], int], columns: dict[str, Steps], ticked: BoolColumn
) -> None:
    """Fill the means of replicas over each step, from the moments at which they changed; nothing is served at first."""
    known: dict[int, list[tuple[float, ...]]] = {}
    unknown = [(begin_s, math.nan, math.nan) for begin_s in record.begins()]
    query = f"SELECT workload, at_s, ready, current FROM counts {COUNTS_ORDER}"
    for file, (number, at_s, *counts_of) in record.query(query):
        if (row := row_of.get((file.path, number))) is not None:
            values = (math.nan if value is None else value for value in counts_of)
            known.setdefault(row, [*unknown]).append((at_s, *values))
    edges = np.append(span.start_s, span.ends_s)
    for row, changes in known.items():
        at_s, *counts = np.array(changes, dtype=np.float64).T
        order = np.argsort(at_s, kind="stable")
        for name, values in zip(("pods", "ordered"), counts, strict=True):
            columns[name][:, row] = np.where(ticked, _mean(at_s[order], values[order], edges), np.nan)
    for name in columns.keys() & {*GROWN, "running", "waiting", *JUDGED}:
        columns[name][ticked] = 0.0


def _mean(at_s: FloatColumn, values: FloatColumn, edges: FloatColumn) -> FloatColumn:
    """Return the mean of a step function between edges; NaN before its first value, and where it has none."""
    moments, known = np.append(at_s, max(edges[-1], at_s[-1]) + 1.0), ~np.isnan(values)

    def mean(of: FloatColumn) -> FloatColumn:
        integral = np.concatenate([[0.0], np.cumsum(of * np.diff(moments))])
        return np.asarray(np.diff(np.interp(edges, moments, integral)) / np.diff(edges))

    is_unknown = (edges[:-1] < at_s[known].min(initial=np.inf)) | (mean(1.0 * known) <= 0)
    return np.where(is_unknown, np.nan, mean(or_zero(values)))


def _fill_traffic(record: Record, span: Span, row_of: dict[tuple[object, int], int], columns: dict[str, Steps]) -> None:
    query = f"SELECT workload, from_s, {', '.join(TRAFFIC)} FROM traffic WHERE from_s >= ? AND from_s < ?"
    for file, (number, from_s, running_s, waiting_s, kv_s, *grown) in record.query(query, span.start_s, span.end_s):
        row, step = row_of.get((file.path, number)), int((from_s - span.start_s) // span.step_s)
        if row is None:
            continue
        told = dict(zip((*GROWN, *JUDGED), grown, strict=True))
        for met, judged in (("ttft_met", "ttft_judged"), ("itl_met", "itl_judged")):
            if not told[judged] and told["first_tokens"]:
                told[met] = math.nan  # it is not known which requests met the objective, or there is none
        for name in columns.keys() & told.keys():
            columns[name][step, row] = np.nan_to_num(columns[name][step, row]) + told[name]
        columns["running"][step, row] = running_s / span.step_s
        columns["waiting"][step, row] = waiting_s / span.step_s
        if (pods := columns["pods"][step, row]) > 0:
            columns["kv_usage"][step, row] = min(kv_s / span.step_s / pods, 1.0)


def _read_facts(
    record: Record, row_of: dict[tuple[object, int], int], rows: int
) -> tuple[ServiceFacts, tuple[str, ...], tuple[str, ...], set[int]]:
    """Return the last facts of each service, the names of their policies and teams, and which changed their team."""
    moved = set[int]()
    gpus, usd = np.full(rows, np.nan), np.full(rows, np.nan)
    policies, teams, models, products = ([""] * rows for _ in range(4))
    for file, (number, policy, team, model, each, product, price) in record.query(
        "SELECT workload, policy, team, model, gpus, product, usd_per_hour FROM facts ORDER BY tick"
    ):
        if (row := row_of.get((file.path, number))) is not None:
            moved |= {row} if teams[row] not in ("", team or "") else set()
            policies[row], teams[row] = policy or "", team or ""
            models[row], products[row] = model or "", product or ""
            gpus[row], usd[row] = (math.nan if value is None else value for value in (each, price))
    reasons = tuple("" if known else "the record has no price" for known in ~np.isnan(usd))
    facts = ServiceFacts(
        model=tuple(models),
        gpus=np.where(np.isnan(gpus), 1.0, gpus),
        assumed_gpus=np.isnan(gpus),
        usd_per_hour=usd,
        reasons=reasons,
        products=tuple(products),
    )
    return facts, tuple(policies), tuple(teams), moved


def read_recorded_policies(record: Record) -> tuple[dict[str, Policy], list[str]]:
    """Return the policies that were last in force, by name, and which of them this version cannot read."""
    query = f"SELECT name, text FROM policies WHERE text != '' AND name != '{LIMITS_KIND}' ORDER BY tick"
    texts = {name: text for _, (name, text) in record.query(query)}
    found, unread = dict[str, Policy](), list[str]()
    for name, text in texts.items():
        head = f"apiVersion: {API_VERSION}\nkind: {KIND}\nmetadata:\n  name: {json.dumps(name)}\nspec:\n"
        documents, findings = read_documents("the record", head + indent(text, "  "))
        policy = read_policy(documents[0], findings) if documents and not findings else None
        if policy is not None:
            found[name] = policy
        else:
            unread.append(f"policy {name[:100]!r} of the record cannot be read: {str(findings[0])[:200]}")
    return found, unread
