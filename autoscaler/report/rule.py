"""The column of the rules that services are scaled by today: each evaluated on what its own counts make of the queue.

The fluid model knows no single replica and no single request. So replicas are alike, the queue waits in engines while
a replica serves, else at the gateway, and a latency is its mean: waiting before the first token, the time of a step
between tokens, and the times of a request made of these.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from autoscaler.adapters.prometheus.range.service_queries import ServiceName
from autoscaler.adapters.turns import in_turns
from autoscaler.config.rules.query import QueryPart, lookback_s, work_of
from autoscaler.config.rules.rule import SYNC_S, Closed, Rule, RuleNote
from autoscaler.core.table.columns import FloatColumn, or_zero
from autoscaler.core.table.fair_share import fair_share
from autoscaler.lab.baselines.own_rule import OpenSeries, OwnRule, Reader, RuleSetting
from autoscaler.lab.baselines.signals import BOUNDS
from autoscaler.lab.replay.case import ObservedLatency, Totals
from autoscaler.report.fleet_queries import FleetPast, FleetQuery, FleetTotals, FleetValues, NotAlike
from autoscaler.report.fluid import MOST_BUSY, FleetView
from autoscaler.report.load import FleetLoad, Profiles

NAME, TITLE = "rule", "your rule"
MOST_WORK = 60_000_000
"""Samples and steps of the queries of all rules: about ten minutes of processor time. A usual rule takes 80,000 over
two weeks, one with a maximum over an hour 5 million."""

FORMULA_WORK, OTHER_WORK = 0.2, 3.0
"""Time of a step of a formula, which KEDA and the HPA each compute, and of a trigger without such a query (cron, or a
query over the past), over that of a sample."""

MOST_KEPT = 25_000_000
"""Numbers of all services that are kept for queries, 200 MB. For a longer look back each service keeps its own."""


def assign(rules: Sequence[Rule], services: Sequence[ServiceName]) -> tuple[list[Rule | None], list[RuleNote]]:
    """Return the rule of each service, [W], and notes about rules that are not used."""
    chosen: list[Rule | None] = []
    notes: list[RuleNote] = []
    used: set[str] = set()
    for service in services:
        ours = [rule for rule in rules if rule.is_for(service.namespace, service.name)]
        chosen.append(ours[0] if ours else None)
        used.update(rule.title for rule in ours)
        if len(ours) > 1:
            said = f"{service}: {ours[0].title} is evaluated; other rules that name it: {len(ours) - 1}"
            notes.append(RuleNote(service.namespace, said))
    unused = [rule.title for rule in in_turns(rules, lambda each: each.namespace) if rule.title not in used]
    if unused:
        named = f"{', '.join(unused[:5])}{' and others' * (len(unused) > 5)}"
        notes.append(RuleNote("", f"no service in the history for {named}"))
    return chosen, notes


def settings_of(
    rules: Sequence[Rule | None], start_s: float, series: Mapping[str, OpenSeries], steps: int = 1
) -> tuple[list[RuleSetting | None], list[RuleNote]]:
    """Return what is evaluated for each service, [W], and what became of each part of the rules.

    steps: of the history. Namespaces have equal shares of the time, and so have the rules of each. A rule that would
    take more is left out.
    """
    found: list[RuleSetting | None] = []
    notes: list[RuleNote] = []
    for rule in rules:
        setting = None if rule is None else RuleSetting(rule, start_s, series)
        if rule is not None and setting is not None:
            told = setting.lines()
            told += _selects_all(setting.rule) if len(rules) > 1 else []
            told += _takes_means(setting.rule)
            try:
                setting.check()
            except ValueError as error:
                told.append(str(error))
                setting = None
            notes += (RuleNote(rule.namespace, text) for text in told)
        found.append(setting)
    work: dict[str, dict[int, int]] = {}  # by namespace and row
    for row, each in enumerate(found):
        if each is not None:
            work.setdefault(each.rule.namespace, {})[row] = steps * _work(each.rule)
    most = fair_share([sum(of.values()) for of in work.values()], MOST_WORK)
    for namespace, of in work.items():
        share = fair_share(of.values(), most)
        for row, samples in of.items():
            if samples > share and (refused := found[row]) is not None:
                said = f"its triggers and formula take {samples:,} samples and steps over the span"
                allowed = f"allowed: {share:,}, so that other rules have time"
                notes.append(RuleNote(namespace, f"{refused.rule.title} is left out: {said}; {allowed}"))
                found[row] = None
    return found, list(dict.fromkeys(notes))


def _work(rule: Rule) -> int:
    """Return the samples and steps that its triggers and its formula take at one time."""
    sources = [each.source for each in rule.metrics]
    triggers = sum(work_of(each.node) if isinstance(each, Closed) else OTHER_WORK for each in sources)
    modifiers = rule.keda.modifiers if rule.keda else None
    return round(triggers + (modifiers.formula.most_steps * FORMULA_WORK if modifiers else 0))


def _selects_all(rule: Rule) -> list[str]:
    """Say which queries have no label matcher: in the cluster they count every workload."""
    places = [each.place for each in rule.metrics if isinstance(each.source, Closed) and "{" not in each.query]
    if not places or rule.keda is None:
        return []
    return [f"{rule.title}: {', '.join(places)}: no label selects the workload; here only its own series count"]


def _takes_means(rule: Rule) -> list[str]:
    """Say which queries are about latencies, whose spread the fluid model does not know."""
    closed = [(each.place, each.source.node) for each in rule.metrics if isinstance(each.source, Closed)]
    places = [place for place, node in closed if _latencies_of(node)]
    if not places:
        return []
    return [
        f"{rule.title}: {', '.join(places)}: here each latency is one mean per step, so a quantile lies near that mean "
        "and low of the true one; `replay` and `simulate` have the latency of each request"
    ]


def _latencies_of(node: QueryPart) -> set[str]:
    """Return the latencies that a query is about, by their names in `BOUNDS`."""
    return {column.partition("_")[0] for column in node.columns()} & BOUNDS.keys()


@dataclass
class ServicePast:
    """The past of one service as its rule sees it; implements `ScrapedPast`."""

    keeps_s: float  # how far the queries look back
    totals: Totals = field(default_factory=lambda: totals_of(0, FleetTotals.nothing(1)))
    now_s: float = 0.0
    desired: int = 0
    ready: int = 0
    _kept: deque[Totals] = field(default_factory=deque)

    def live_concurrency(self) -> float:
        totals = self.totals
        return float(totals.running.sum() + totals.waiting.sum()) + totals.gateway_waiting

    def totals_ago(self, seconds: float) -> Totals:
        found = self._kept[0] if self._kept else self.totals
        for totals in reversed(self._kept):
            if totals.time_s <= self.now_s - seconds + 1e-6:
                return totals
        return found

    def add(self, totals: Totals) -> None:
        """Add the totals of a step."""
        self.totals = totals
        self._kept.append(totals)
        while len(self._kept) > 1 and self._kept[1].time_s <= totals.time_s - self.keeps_s:
            self._kept.popleft()


def totals_of(row: int, totals: FleetTotals) -> Totals:
    """Return the totals of one service."""
    pods = int(totals.pods[row])
    *columns, latencies = totals
    of = {name: float(column[row]) for name, column in zip(totals._fields, columns, strict=False)}
    return Totals(
        time_s=of["time_s"],
        running=np.full(pods, of["running"]),
        waiting=np.full(pods, of["waiting"]),
        kv_usage=np.full(pods, of["kv_usage"]),
        gateway_waiting=of["gateway_waiting"],
        arrivals=of["arrivals"],
        finished=of["finished"],
        first_tokens=of["first_tokens"],
        prompt_tokens=of["prompt_tokens"],
        generation_tokens=of["generation_tokens"],
        latencies={
            name: ObservedLatency(each.counts[row].copy(), float(each.sum_s[row])) for name, each in latencies.items()
        },
    )


@dataclass
class _SharedQuery:
    """One query of several services, computed for all of them when the first one asks."""

    query: FleetQuery
    index_of: Mapping[int, int]  # of a row of the fleet
    _asked: tuple[int, float] = (-1, 0.0)  # step, and time
    _values: FleetValues | None = None

    def read(self, row: int, step: int, now_s: float, past: FleetPast) -> FloatColumn:
        """Return the values of the elements for one service, float64[n]."""
        if self._values is None or self._asked != (step, now_s):
            self._asked, self._values = (step, now_s), self.query.values(past, now_s)
        return self._values.elements(self.index_of[row])


class RuleColumn:
    """The rules of all services; NaN for services without one."""

    name, title = NAME, TITLE

    def __init__(
        self,
        settings: Sequence[RuleSetting | None],
        load: FleetLoad,
        profiles: Profiles,
        most_kept: int = MOST_KEPT,
    ) -> None:
        """settings: [W]. Raises nothing; rules were checked before."""
        self._load, self._profiles = load, profiles
        self._settings = {row: setting for row, setting in enumerate(settings) if setting is not None}
        self._rules: dict[int, OwnRule] = {}
        self._offsets_s: dict[int, tuple[float, ...]] = {}  # of the syncs within a step
        nodes = {row: _nodes_of(setting) for row, setting in self._settings.items()}
        keeps_s = {row: max(map(lookback_s, of.values()), default=0.0) for row, of in nodes.items()}
        latencies = set[str]().union(*(_latencies_of(node) for of in nodes.values() for node in of.values()))
        services = len(settings)
        nothing = FleetTotals.nothing(services, latencies)
        most_s = _shared_past_s([*keeps_s.values()], services, most_kept // max(nothing.size, 1) * load.span.step_s)
        near = {
            row: {place: node for place, node in of.items() if lookback_s(node) <= most_s} for row, of in nodes.items()
        }
        self._readers = _shared(near)
        shared = (nodes[row][place] for row, of in self._readers.items() for place in of)
        self._past = FleetPast(nothing, max(map(lookback_s, shared), default=0.0), np.zeros(services, bool))
        self._pasts = {row: ServicePast(keeps_s[row]) for row in self._settings}
        # Other queries, and Knative, look at the past of the service itself.
        self._looks_itself = {
            row
            for row, setting in self._settings.items()
            if setting.rule.knative or nodes[row].keys() - self._readers[row].keys()
        }
        self._step = 0

    def decide(self, view: FleetView) -> FloatColumn:
        decided = np.full(len(view.wanted), np.nan)
        if view.step == 0:
            for row, setting in self._settings.items():
                decided[row] = self._begin(row, setting, int(view.wanted[row]), view.step_s)
            return decided
        self._step = view.step
        scraped = self._load.seen[view.step - 1] & ~np.isnan(view.arrivals_per_s)
        now_s = view.time_s - self._load.span.start_s
        self._past.add(now_s, self._totals(view, now_s), scraped)
        for row in self._settings:  # while its history is unknown the count stays
            decided[row] = self._decide(row, view, now_s) if scraped[row] else view.wanted[row]
        return decided

    def _begin(self, row: int, setting: RuleSetting, replicas: int, step_s: float) -> int:
        started = setting.start_replicas(replicas)

        def reader(shared: _SharedQuery) -> Reader:
            return lambda past: shared.read(row, self._step, past.now_s, self._past)

        readers = {place: reader(shared) for place, shared in self._readers[row].items()}
        rule = self._rules[row] = OwnRule(setting, started, readers=readers)
        self._offsets_s[row] = tuple(np.arange(0.0, step_s, max(rule.period_s, SYNC_S)).tolist())
        return started

    def _decide(self, row: int, view: FleetView, now_s: float) -> float:
        """Return the count of one service."""
        current = int(view.wanted[row])
        past, rule = self._pasts[row], self._rules[row]
        past.now_s, past.ready = now_s, int(view.ready[row])
        if row in self._looks_itself:
            past.add(totals_of(row, self._past.totals))
        # Within a step the view does not change, so the first sync that keeps the count ends it.
        for after_s in self._offsets_s[row]:
            past.now_s, past.desired = now_s + after_s, current
            wanted = rule.step(now_s + after_s, past, current)
            if wanted == current:
                break
            current = wanted
        return float(current)

    def _totals(self, view: FleetView, now_s: float) -> FleetTotals:
        """Return what a scrape would show at the end of the step before."""
        before, step = self._past.totals, view.step - 1
        pods = view.ready
        arrived = view.arrivals_per_s * view.step_s
        arrivals = before.arrivals + arrived
        finished = np.maximum(arrivals - view.waiting - view.running, before.finished)
        prompt, generated = (
            or_zero(np.asarray(tokens[step], np.float64))
            for tokens in (self._load.prompt_tokens, self._load.output_tokens)
        )
        latencies = dict(before.latencies)
        if latencies:
            times, ended = {"ttft": arrived, "itl": generated}, finished - before.finished
            mean_s = self._latencies(view, prompt, generated)
            latencies = {
                name: each.observe(BOUNDS[name], mean_s[name], times.get(name, ended))
                for name, each in latencies.items()
            }
        return FleetTotals(
            time_s=np.full(len(pods), now_s),
            pods=pods,
            running=view.running / np.maximum(pods, 1),
            waiting=view.waiting / np.maximum(pods, 1),
            kv_usage=view.kv_usage,
            gateway_waiting=np.where(pods > 0, 0.0, view.waiting),
            arrivals=arrivals,
            finished=finished,
            first_tokens=np.maximum(arrivals - view.waiting, before.first_tokens),
            prompt_tokens=before.prompt_tokens + prompt,
            generation_tokens=before.generation_tokens + generated,
            latencies=latencies,
        )

    def _latencies(self, view: FleetView, prompt: FloatColumn, output: FloatColumn) -> dict[str, FloatColumn]:
        """Return the mean of each latency in seconds, float64[W], as `BOUNDS` names them.

        prompt, output: float64[W], tokens of the step before.
        """
        p, step, pods = self._profiles, view.step - 1, view.ready
        arrived = or_zero(np.asarray(self._load.arrivals[step], np.float64))
        with np.errstate(divide="ignore", invalid="ignore"):
            busy = np.where(pods > 0, np.minimum(view.demand / pods, MOST_BUSY), MOST_BUSY)
            prompt, output = (np.where(arrived > 0, tokens / arrived, 0.0) for tokens in (prompt, output))
        gap_s = p.idle_gap_s / (1 - busy)
        prefill_s, decode_s = gap_s + prompt * or_zero(p.prompt_token_s), np.maximum(output - 1, 0.0) * gap_s
        queue_s = view.waiting * or_zero(np.asarray(self._load.work_s[step], np.float64)) / np.maximum(pods, 1)
        return {
            "ttft": queue_s + prefill_s,
            "itl": gap_s,
            "tpot": gap_s,
            "e2e": queue_s + prefill_s + decode_s,
            "queue": queue_s,
            "inference": prefill_s + decode_s,
            "prefill": prefill_s,
            "decode": decode_s,
        }


def _shared_past_s(lookbacks_s: Sequence[float], services: int, most_s: float) -> float:
    """Return how far back the totals of all services are kept; a service that looks back further keeps its own.

    lookbacks_s: of the services with a rule. One rule that looks back for hours does not keep hours of all services:
    that takes at most twice the least that is possible.
    """

    def kept_s(shared_s: float) -> float:
        return shared_s * services + sum(each for each in lookbacks_s if each > shared_s)

    choices = sorted({0.0, *(each for each in lookbacks_s if each <= most_s)})
    least_s = min(map(kept_s, choices))
    return max(each for each in choices if kept_s(each) <= 2 * least_s)


def _nodes_of(setting: RuleSetting) -> dict[str, QueryPart]:
    """Return the queries of simulated signals by the place of their metric."""
    return {each.place: each.source.node for each in setting.rule.metrics if isinstance(each.source, Closed)}


def _shared(nodes: Mapping[int, Mapping[str, QueryPart]]) -> dict[int, dict[str, _SharedQuery]]:
    """Return the queries that are computed for many services at once, by row and place."""
    rows_of: dict[QueryPart, list[int]] = {}
    for row, by_place in nodes.items():
        for node in dict.fromkeys(by_place.values()):
            rows_of.setdefault(node, []).append(row)
    shared: dict[QueryPart, _SharedQuery] = {}
    for node, rows in rows_of.items():
        with suppress(NotAlike):
            index_of = {row: index for index, row in enumerate(rows)}
            shared[node] = _SharedQuery(FleetQuery(node, np.array(rows)), index_of)
    return {
        row: {place: shared[node] for place, node in by_place.items() if node in shared}
        for row, by_place in nodes.items()
    }
