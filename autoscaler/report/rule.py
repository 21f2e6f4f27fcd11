"""The column of the rules that services are scaled by today: each evaluated on what its own counts make of the queue.

The fluid model knows no single replica and no single request. So replicas are alike, the queue waits in engines while
a replica serves, else at the gateway, and a latency is its mean: waiting before the first token, the time of a step
between tokens.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from autoscaler.adapters.prometheus.range.crowds import fair_share
from autoscaler.adapters.prometheus.range.service_queries import ServiceName
from autoscaler.config.rules.query import lookback_s, work_of
from autoscaler.config.rules.rule import SYNC_S, Closed, Rule
from autoscaler.core.table.columns import FloatColumn
from autoscaler.lab.baselines.own_rule import OpenSeries, OwnRule, RuleSetting
from autoscaler.lab.baselines.signals import GAPS, TTFT
from autoscaler.lab.replay.case import Totals
from autoscaler.report.fluid import MOST_BUSY, FleetView
from autoscaler.report.load import FleetLoad, Profiles

NAME, TITLE = "rule", "your rule"
MOST_WORK = 60_000_000
"""Samples and steps of the queries of all rules: about ten minutes of processor time. A usual rule takes 80,000 over
two weeks, one with a maximum over an hour 5 million."""

_LATENCIES = frozenset({"ttft", "ttft_sum_s", "ttft_count", "itl", "itl_sum_s", "itl_count", "first_tokens"})


def assign(rules: Sequence[Rule], services: Sequence[ServiceName]) -> tuple[list[Rule | None], list[str]]:
    """Return the rule of each service, [W], and notes about rules that are not used."""
    chosen: list[Rule | None] = []
    notes: list[str] = []
    used: set[str] = set()
    for service in services:
        ours = [rule for rule in rules if rule.is_for(service.namespace, service.name)]
        chosen.append(ours[0] if ours else None)
        used.update(rule.title for rule in ours)
        if len(ours) > 1:
            notes.append(f"{service}: {ours[0].title} is evaluated; other rules that name it: {len(ours) - 1}")
    unused = [rule.title for rule in rules if rule.title not in used]
    if unused:
        notes.append(f"no service in the history for {', '.join(unused[:5])}" + " and others" * (len(unused) > 5))
    return chosen, notes


def settings_of(
    rules: Sequence[Rule | None], start_s: float, series: Mapping[str, OpenSeries], steps: int = 1
) -> tuple[list[RuleSetting | None], list[str]]:
    """Return what is evaluated for each service, [W], and what became of each part of the rules.

    steps: of the history. A rule that would take more than its share of the time is left out.
    """
    found: list[RuleSetting | None] = []
    notes: list[str] = []
    for rule in rules:
        setting = None if rule is None else RuleSetting(rule, start_s, series)
        if setting is not None:
            notes += setting.lines()
            notes += _selects_all(setting.rule) if len(rules) > 1 else []
            try:
                setting.check()
            except ValueError as error:
                notes.append(str(error))
                setting = None
        found.append(setting)
    work = {("", str(row)): steps * _work(each.rule) for row, each in enumerate(found) if each is not None}
    share = fair_share(work, MOST_WORK)
    for (_, row), samples in work.items():
        setting = found[int(row)]
        if samples > share and setting is not None:
            notes.append(
                f"{setting.rule.title} is left out: its queries take {samples:,} samples and steps over the span; "
                f"allowed: {share:,} beside those of other rules"
            )
            found[int(row)] = None
    return found, list(dict.fromkeys(notes))


def _work(rule: Rule) -> int:
    """Return the samples and steps that its queries take at one time."""
    return round(sum(work_of(each.source.node) for each in rule.metrics if isinstance(each.source, Closed)))


def _selects_all(rule: Rule) -> list[str]:
    """Say which queries have no label matcher: in the cluster they count every workload."""
    places = [each.place for each in rule.metrics if isinstance(each.source, Closed) and "{" not in each.query]
    if not places or rule.keda is None:
        return []
    return [f"{rule.title}: {', '.join(places)}: no label selects the workload; here only its own series count"]


@dataclass
class _FluidPast:
    """The past of one service as its rule sees it; implements `ScrapedPast`."""

    totals: Totals
    keeps_s: float  # how far the queries look back
    latencies: bool  # whether any query is about them
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


_NONE = np.zeros(0)


def _nothing() -> Totals:
    return Totals(0.0, _NONE, _NONE, _NONE, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, np.zeros(len(TTFT)), 0.0, np.zeros(len(GAPS)))


class RuleColumn:
    """The rules of all services; NaN for services without one."""

    name, title = NAME, TITLE

    def __init__(self, settings: Sequence[RuleSetting | None], load: FleetLoad, profiles: Profiles) -> None:
        """settings: [W]. Raises nothing; rules were checked before."""
        self._load, self._profiles = load, profiles
        self._settings = {row: setting for row, setting in enumerate(settings) if setting is not None}
        self._rules: dict[int, OwnRule] = {}
        self._pasts = {row: _past_of(setting) for row, setting in self._settings.items()}

    def decide(self, view: FleetView) -> FloatColumn:
        decided = np.full(len(view.wanted), np.nan)
        for row, setting in self._settings.items():
            if view.step == 0:
                started = setting.start_replicas(int(view.wanted[row]))
                self._rules[row] = OwnRule(setting, started)
                decided[row] = started
            else:
                decided[row] = self._decide(row, view)
        return decided

    def _decide(self, row: int, view: FleetView) -> float:
        """Return the count of one service. While its history is unknown the count stays."""
        current = int(view.wanted[row])
        if not self._load.seen[view.step - 1, row] or math.isnan(view.arrivals_per_s[row]):
            return float(current)
        past, rule = self._pasts[row], self._rules[row]
        now_s = view.time_s - self._load.span.start_s
        past.now_s, past.ready = now_s, int(view.ready[row])
        past.add(self._totals(row, view, past, now_s))
        # Within a step the view does not change, so the first sync that keeps the count ends it.
        every_s = max(rule.period_s, SYNC_S)
        for after_s in np.arange(0.0, view.step_s, every_s).tolist():
            past.now_s, past.desired = now_s + after_s, current
            wanted = rule.step(now_s + after_s, past, current)
            if wanted == current:
                break
            current = wanted
        return float(current)

    def _totals(self, row: int, view: FleetView, past: _FluidPast, now_s: float) -> Totals:
        """Return what a scrape would show at the end of the step before."""
        before, step = past.totals, view.step - 1
        pods = past.ready
        arrived = float(view.arrivals_per_s[row]) * view.step_s
        waiting, running = float(view.waiting[row]), float(view.running[row])
        arrivals = before.arrivals + arrived
        finished = max(arrivals - waiting - running, before.finished)
        ttft, gaps, gap_sum_s = before.ttft_buckets, before.itl_buckets, before.itl_sum_s
        generated = _known(self._load.output_tokens[step, row])
        if past.latencies:
            first_s, gap_s = self._latencies(row, view, pods)
            ttft = ttft + np.where(first_s <= TTFT, arrived, 0.0)
            gaps, gap_sum_s = gaps + np.where(gap_s <= GAPS, generated, 0.0), gap_sum_s + generated * gap_s
        return Totals(
            time_s=now_s,
            running=np.full(pods, running / max(pods, 1)),
            waiting=np.full(pods, waiting / max(pods, 1)),
            kv_usage=np.full(pods, float(view.kv_usage[row])),
            gateway_waiting=0.0 if pods else waiting,
            arrivals=arrivals,
            finished=finished,
            first_tokens=max(arrivals - waiting, before.first_tokens),
            prompt_tokens=before.prompt_tokens + _known(self._load.prompt_tokens[step, row]),
            generation_tokens=before.generation_tokens + generated,
            ttft_buckets=ttft,
            itl_sum_s=gap_sum_s,
            itl_buckets=gaps,
        )

    def _latencies(self, row: int, view: FleetView, pods: int) -> tuple[float, float]:
        """Return the mean time to the first token, and between tokens, in seconds."""
        p, step = self._profiles, view.step - 1
        busy = min(float(view.demand[row]) / pods, MOST_BUSY) if pods else MOST_BUSY
        gap_s = float(p.idle_gap_s[row]) / (1 - busy)
        arrived = _known(self._load.arrivals[step, row])
        prompt = _known(self._load.prompt_tokens[step, row]) / arrived if arrived else 0.0
        own_s = gap_s + prompt * _known(p.prompt_token_s[row])
        queued_s = float(view.waiting[row]) * _known(self._load.work_s[step, row]) / max(pods, 1)
        return own_s + queued_s, gap_s


def _known(value: float) -> float:
    return 0.0 if math.isnan(value) else float(value)


def _past_of(setting: RuleSetting) -> _FluidPast:
    nodes = [metric.source.node for metric in setting.rule.metrics if isinstance(metric.source, Closed)]
    columns = frozenset[str]().union(*(node.columns() for node in nodes))
    keeps_s = max((lookback_s(node) for node in nodes), default=0.0)
    return _FluidPast(_nothing(), keeps_s, bool(columns & _LATENCIES))
