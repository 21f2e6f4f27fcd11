"""The model of demand of all services: seven inputs, and the four answers that follow from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple
from zoneinfo import ZoneInfo

import numpy as np

from autoscaler.adapters.prometheus.range.service_queries import ServiceName
from autoscaler.config.policy.parse import PolicyBook
from autoscaler.config.policy.schema import Policy
from autoscaler.core.table.columns import Columns, FloatColumn, or_zero
from autoscaler.demand.bursts import Burst, BurstProfile, find_bursts, profile_bursts
from autoscaler.demand.draft import Draft, make_drafts
from autoscaler.demand.durations import Durations, Latencies, ReachedLatency, measure_durations, measure_tolerance
from autoscaler.demand.halves import halves
from autoscaler.demand.next_week import WeekBand, band_of_weeks
from autoscaler.demand.renames import say_renames
from autoscaler.demand.shape import Concurrency, Hours, QueueDepth, hours_of, measure_concurrency, measure_queue
from autoscaler.report.columns import POLICY
from autoscaler.report.history import FleetHistory
from autoscaler.report.load import FleetLoad
from autoscaler.report.outcome import gpus_by_hour
from autoscaler.report.report import FleetReport

JUDGED = "the whole span is judged by the objectives of today's policies, also before they were changed"


@dataclass(frozen=True)
class Residency(Columns):
    """How long weights were in GPU memory, and how much of that time they were used; float64[W]."""

    loaded_h: FloatColumn  # replica-hours with the model loaded
    active_h: FloatColumn  # those of them in which the engine computed, by its token gaps
    ratio: FloatColumn  # 0..1, active over loaded; NaN: never loaded
    silent_h: FloatColumn  # replica-hours in which no request arrived for a whole hour
    longest_silence_h: FloatColumn  # hours


@dataclass(frozen=True)
class Mix(Columns):
    """What the requests ask for; float64[W]."""

    requests: FloatColumn
    prompt_tokens: FloatColumn  # of a mean request; NaN: not reported
    output_tokens: FloatColumn


class TierShare(NamedTuple):
    """What the services of one policy take together."""

    policy: str
    services: int
    priority: float
    gpu_hours: float  # share of all, 0..1
    requests: float  # share of all, 0..1
    can_wait: bool  # its requests may wait for a cold start


class GpuExcess(NamedTuple):
    """GPUs of all services beside what their shape needs."""

    held: float  # most GPUs held at any hour
    needed_high: float  # most GPUs that the policy would have held at any hour
    needed_usual: float  # that it would not have exceeded in 95 % of the hours
    week: WeekBand  # of the highest hour of weeks like the seen ones

    @property
    def band(self) -> tuple[float, float]:
        """Return by how many GPUs the cluster is larger than its shape, least and most; negative: smaller."""
        return self.held - self.needed_high, self.held - self.needed_usual


@dataclass(frozen=True)
class DemandModel:
    """The whole model."""

    report: FleetReport
    policies: tuple[Policy, ...]  # [W], of today
    zone: ZoneInfo
    hours: Hours
    concurrency: Concurrency
    queue: QueueDepth
    bursts: tuple[tuple[Burst, ...], ...]  # [W]
    burst_profile: BurstProfile
    tolerance: ReachedLatency
    mix: Mix
    tiers: tuple[TierShare, ...]
    residency: Residency
    durations: Durations
    excess: GpuExcess
    drafts: tuple[Draft, ...]  # [W]; empty: the history is too short
    notes: tuple[str, ...]

    @property
    def services(self) -> tuple[ServiceName, ...]:
        return self.report.services


class DemandHistory(NamedTuple):
    """The past of all services, as it was read."""

    steps: FleetHistory  # that of the report
    latencies: Latencies
    notes: tuple[str, ...] = ()  # what could not be read


def model_demand(
    report: FleetReport,
    past: DemandHistory,
    book: PolicyBook,
    zone: ZoneInfo,
    progress: Callable[[float], None] = lambda _: None,
) -> DemandModel:
    """Compute the model. book: it has the policies of the report."""
    load, spec, latencies = report.load, report.spec, past.latencies
    hours, bursts = hours_of(load, zone), find_bursts(load)
    policies = tuple(book.policies.get(name, book.policies[book.default]) for name in report.policies)
    found = halves(past.steps, spec, zone, policies)
    drafts = make_drafts(*found, spec, report.facts, progress) if found else []
    short = [] if found else ["less than a day of history: no draft can be judged on a half that it has not seen"]
    return DemandModel(
        report=report,
        policies=policies,
        zone=zone,
        hours=hours,
        concurrency=measure_concurrency(hours),
        queue=measure_queue(load),
        bursts=tuple(map(tuple, bursts)),
        burst_profile=profile_bursts(bursts, load, report.profiles),
        tolerance=measure_tolerance(report.services, latencies, spec),
        mix=_mix(load),
        tiers=_tiers(report),
        residency=_residency(load, hours),
        durations=measure_durations(report.services, latencies),
        excess=_excess(report, zone),
        drafts=tuple(drafts),
        notes=(*past.notes, JUDGED, *short, *say_renames(load, report.services, report.facts.model)),
    )


def _residency(load: FleetLoad, hours: Hours) -> Residency:
    step_h = load.span.step_s / 3600
    pods = np.where(load.seen, load.pods, 0.0).astype(np.float64)
    loaded_h = pods.sum(axis=0) * step_h
    active_h = (pods * np.minimum(or_zero(load.busy), 1.0)).sum(axis=0) * step_h
    by_hour = np.add.reduceat(pods, hours.starts, axis=0) * step_h
    silent = hours.rate == 0.0
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.where(loaded_h > 0, active_h / loaded_h, np.nan)
    longest = [_longest_run(silent[:, w]) for w in range(load.shape[1])]
    return Residency(
        loaded_h, active_h, ratio, np.where(silent, by_hour, 0.0).sum(axis=0), np.array(longest, np.float64)
    )


def _longest_run(part: np.ndarray) -> int:
    edges = np.flatnonzero(np.diff(np.concatenate([[0], part.astype(np.int8), [0]])))
    return int((edges[1::2] - edges[::2]).max(initial=0))


def _mix(load: FleetLoad) -> Mix:
    requests = np.where(load.seen, load.arrivals, 0.0).sum(axis=0, dtype=np.float64)
    prompt, output = (
        np.where(load.seen, tokens, 0.0).sum(axis=0, dtype=np.float64)
        for tokens in (load.prompt_tokens, load.output_tokens)
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = [np.where((requests > 0) & (tokens > 0), tokens / requests, np.nan) for tokens in (prompt, output)]
    return Mix(requests, *mean)


def _tiers(report: FleetReport) -> tuple[TierShare, ...]:
    was = report.entry("actual").outcome
    can_wait = report.spec.can_wait(report.profiles.cold_start_s)
    of_all = [float(np.nansum(values)) or 1.0 for values in (was.gpu_hours, was.requests)]
    found = []
    for policy in dict.fromkeys(report.policies):
        rows = np.array([name == policy for name in report.policies])
        gpu_hours, requests = (
            float(np.nansum(values[rows])) / whole
            for values, whole in zip((was.gpu_hours, was.requests), of_all, strict=True)
        )
        priority = float(report.spec.priority[rows][0])
        found.append(TierShare(policy, int(rows.sum()), priority, gpu_hours, requests, bool(can_wait[rows].all())))
    return tuple(sorted(found, key=lambda tier: -tier.priority))


def _excess(report: FleetReport, zone: ZoneInfo) -> GpuExcess:
    _, held = gpus_by_hour(report.entry("actual").course, report.load, report.facts)
    at_s, needed = gpus_by_hour(report.entry(POLICY).course, report.load, report.facts)
    seen = ~np.isnan(needed)
    at_s, held, needed = at_s[seen], held[seen], needed[seen]
    return GpuExcess(
        held=float(held.max(initial=0.0)),
        needed_high=float(needed.max(initial=0.0)),
        needed_usual=float(np.quantile(needed, 0.95, method="higher")) if len(needed) else 0.0,
        week=band_of_weeks(at_s, needed, zone),
    )
