"""The report: all columns of all services, and what may be said of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from autoscaler.adapters.prometheus.owners import name_in_pods
from autoscaler.adapters.prometheus.range.own_use import GpuUseRow
from autoscaler.adapters.prometheus.range.service_queries import ServiceName
from autoscaler.config.findings import name_some
from autoscaler.core.model.spec import Spec
from autoscaler.core.table.columns import BoolColumn, FloatColumn
from autoscaler.lab.report.format import count
from autoscaler.report.columns import (
    ConstantColumn,
    PolicyColumn,
    actual,
    find_constant_counts,
)
from autoscaler.report.diagnosis import GpuStory
from autoscaler.report.facts import ServiceFacts
from autoscaler.report.fluid import Column, Course, Reserve, follow
from autoscaler.report.history import FleetHistory
from autoscaler.report.load import FleetLoad, Profiles
from autoscaler.report.outcome import ServiceFigures, sum_up
from autoscaler.report.sampled import Hour

LEAST_SEEN = 0.5
"""Share of the span below which the numbers of a service are marked."""


@dataclass(frozen=True)
class Entry:
    """One column with its figures."""

    course: Course
    outcome: ServiceFigures

    @property
    def name(self) -> str:
        return self.course.name


@dataclass(frozen=True)
class FleetReport:
    """All that a page, a table or a document says."""

    server: str
    services: tuple[ServiceName, ...]
    policies: tuple[str, ...]  # [W]
    spec: Spec
    load: FleetLoad
    profiles: Profiles
    facts: ServiceFacts
    entries: tuple[Entry, ...]  # actual, policy, least constant count, and then those of the user
    step_s: float  # of the history that was read
    notes: tuple[str, ...] = ()
    modelled: BoolColumn = field(default_factory=lambda: np.empty(0, bool))  # bool[W], False: left out of the verdict
    sampled: tuple[Hour, ...] = ()  # hours that were replayed request by request
    asked_days: float = 0.0  # days that were asked for; the server may keep less
    doubts: tuple[str, ...] = ()  # [W], why a service is not well modelled; "": it is
    holds: BoolColumn = field(default_factory=lambda: np.empty(0, bool))  # bool[W], a gateway holds requests at zero
    gpus: GpuStory | None = None  # what GPUs did; None: DCGM showed none
    gpu_use: tuple[GpuUseRow, ...] = ()  # GPU-seconds by state and by cause
    use_from: str = ""  # where `gpu_use` comes from, in words
    teams: tuple[str, ...] = ()  # [W], by a label; "": no team, (): no label names one

    def entry(self, name: str) -> Entry:
        """Return a column. Raises KeyError."""
        found = next((each for each in self.entries if each.name == name), None)
        if found is None:
            raise KeyError(name)
        return found

    @property
    def seen_share(self) -> FloatColumn:
        """Share of the span that was seen of each service; float64[W]."""
        return np.asarray(self.load.seen.mean(axis=0))

    @property
    def seen_days(self) -> float:
        """Days in which any service was seen."""
        return float(self.load.seen.any(axis=1).sum() * self.load.span.step_s / 86_400)

    @property
    def span_days(self) -> float:
        return max(self.load.span.steps * self.load.span.step_s / 86_400, self.asked_days)


def find_holding(services: Sequence[ServiceName], gateways: Collection[tuple[str, str]]) -> BoolColumn:
    """Return the services in front of which a gateway is. gateways: namespaces and names of workloads."""
    named = {(namespace, name_in_pods(name)) for namespace, name in gateways}
    return np.array([(each.namespace, each.name) in named for each in services], bool)


Stage = Callable[[str], Callable[[float], None]]


def compute(
    server: str,
    history: FleetHistory,
    load: FleetLoad,
    profiles: Profiles,
    facts: ServiceFacts,
    spec: Spec,
    policies: Sequence[str],
    columns: Sequence[Column] = (),
    notes: Sequence[str] = (),
    stage: Stage = lambda _: lambda _: None,
    doubts: Sequence[str] = (),
    holds: BoolColumn | None = None,
) -> FleetReport:
    """Compute all columns.

    columns: those of the user. doubts: [W], `FleetHistory.doubts`. holds: bool[W], services whose requests a gateway
    is known to hold at zero; None: of none. stage: names a part of the work and returns its progress.
    """
    holds = np.zeros(load.shape[1], bool) if holds is None else holds
    counts = find_constant_counts(load, profiles, spec.attainment, stage("least constant counts"))
    policy = PolicyColumn(load, profiles, spec, holds=holds)
    courses = [
        actual(load, profiles),
        follow(policy, load, profiles, stage(policy.title), reserve=Reserve.of(spec)),
        follow(ConstantColumn(counts), load, profiles, stage("constant counts"), np.nan_to_num(counts)),
        *(follow(column, load, profiles, stage(column.title)) for column in columns),
    ]
    doubts = tuple(doubts) or ("",) * len(history.services)
    return FleetReport(
        server=server,
        services=history.services,
        policies=tuple(policies),
        spec=spec,
        load=load,
        profiles=profiles,
        facts=facts,
        entries=tuple(Entry(each, sum_up(each, load, profiles, facts, spec)) for each in courses),
        step_s=history.span.step_s,
        notes=(*history.problems, *notes, *_say_ended(history), *_say_auto(spec, holds)),
        modelled=np.array([not doubt for doubt in doubts], bool),
        doubts=doubts,
        holds=holds,
    )


def _say_ended(history: FleetHistory) -> list[str]:
    """Say which services told nothing more before the span ended."""
    if not history.ended:
        return []
    names = name_some([str(name) for name in history.ended])
    return [
        f"nothing tells of {names} at the end of the span: gone, renamed or at zero. No column is charged for the time "
        "after the last report"
    ]


def _say_auto(spec: Spec, holds: BoolColumn) -> list[str]:
    """Say which services keep one replica though their policy leaves the idle time to the planner."""
    kept = int((np.isinf(spec.idle_after_s) & ~holds).sum())
    if not kept:
        return []
    return [
        f"`idleAfter: auto` counts as never for {kept} of {count(len(holds), 'service')}: no gateway is known "
        "to hold their requests at zero"
    ]
