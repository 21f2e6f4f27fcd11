"""The figures of a course: one function for all columns, so that they are judged alike."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.core.model.money import UnitCosts
from autoscaler.core.model.spec import Spec
from autoscaler.core.table.columns import BoolColumn, Columns, FloatColumn, IntColumn
from autoscaler.report.facts import ServiceFacts
from autoscaler.report.fluid import Course
from autoscaler.report.history import Steps
from autoscaler.report.load import FleetLoad, Profiles

HOUR_S = 3600.0


@dataclass(frozen=True)
class ServiceFigures(Columns):
    """Figures of each service over the steps that were seen; float64[W], NaN: not known, or the column has no count."""

    gpu_hours: FloatColumn  # from the order of a replica until it ends
    usd: FloatColumn  # NaN: no price
    output_tokens: FloatColumn  # generated; NaN: requests were answered, and no engine told their tokens
    usd_per_million_tokens: FloatColumn  # generated tokens; NaN: no price, or none was generated
    usd_per_thousand_requests: FloatColumn  # NaN: no price, or no request
    requests: FloatColumn
    missed: FloatColumn  # requests
    attainment: FloatColumn  # 0..1, NaN: no request
    breach_min: FloatColumn  # minutes in which fewer requests met the objective than the policy promises
    worst_share: FloatColumn  # 0..1, attainment of the hour with the most missed requests; NaN: none missed
    worst_s: FloatColumn  # Unix time at which this hour begins; NaN: none missed
    changes: FloatColumn  # of the count
    flaps: FloatColumn  # changes undone within one cold start
    cold_starts: FloatColumn  # replicas that were started
    loaded_h: FloatColumn  # replica-hours with the model in GPU memory
    idle_h: FloatColumn  # those of them in which a replica had nothing to compute
    mean_replicas: FloatColumn
    max_replicas: FloatColumn


def sum_up(course: Course, load: FleetLoad, profiles: Profiles, facts: ServiceFacts, spec: Spec) -> ServiceFigures:
    """Return the figures of a course."""
    dt, seen = load.span.step_s, load.seen
    hours = dt / HOUR_S
    wanted, ready = (np.where(seen, each, 0.0) for each in (course.held, course.ready))
    arrivals = np.where(seen, load.arrivals, 0.0).astype(np.float64)
    missed = np.where(seen, np.minimum(course.missed, load.arrivals), 0.0).astype(np.float64)
    asked, lost = arrivals.sum(axis=0), missed.sum(axis=0)
    allowed = (1 - spec.attainment) * arrivals
    replica_h = wanted.sum(axis=0, dtype=np.float64) * hours
    steps_seen = np.maximum(seen.sum(axis=0), 1)
    worst_share, worst_s = _worst_hour(arrivals, missed, load)
    changes, flaps, starts = _count_changes(course.wanted, seen, profiles.cold_start_s, dt)
    tokens = np.where(seen, load.output_tokens, 0.0).sum(axis=0, dtype=np.float64)
    tokens = np.where((tokens > 0) | (asked <= 0), tokens, np.nan)
    usd = replica_h * facts.usd_per_hour
    costs = [UnitCosts.of(*each) for each in zip(usd.tolist(), tokens.tolist(), asked.tolist(), strict=True)]
    idle = np.maximum(ready - np.minimum(load.demand, ready), 0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        figures = ServiceFigures(
            gpu_hours=replica_h * facts.gpus,
            usd=usd,
            output_tokens=tokens,
            usd_per_million_tokens=np.array([each.usd_per_million_tokens for each in costs], dtype=np.float64),
            usd_per_thousand_requests=np.array([each.usd_per_thousand_requests for each in costs], dtype=np.float64),
            requests=asked,
            missed=lost,
            attainment=np.where(asked > 0, 1 - lost / asked, np.nan),
            breach_min=(missed > allowed + 1e-6).sum(axis=0) * dt / 60,
            worst_share=worst_share,
            worst_s=worst_s,
            changes=changes,
            flaps=flaps,
            cold_starts=starts,
            loaded_h=ready.sum(axis=0, dtype=np.float64) * hours,
            idle_h=idle.sum(axis=0, dtype=np.float64) * hours,
            mean_replicas=wanted.sum(axis=0, dtype=np.float64) / steps_seen,
            max_replicas=wanted.max(axis=0, initial=0.0).astype(np.float64),
        )
    has_counts = course.decides & ~np.isnan(course.wanted).any(axis=0)
    return figures.with_columns({name: np.where(has_counts, each, np.nan) for name, each in figures.columns().items()})


def gpus_by_hour(course: Course, load: FleetLoad, facts: ServiceFacts) -> tuple[FloatColumn, FloatColumn]:
    """Return the Unix times of all hours, and the mean GPUs of all services in each; float64[H] both.

    NaN: none was seen. Services that were not seen in an hour, or have no counts, are left out of its sum.
    """
    starts = _hour_starts(load)
    held = np.where(load.seen & course.decides, np.nan_to_num(course.held), 0.0)
    counts, seen = (np.add.reduceat(each, starts, axis=0, dtype=np.float64) for each in (held, load.seen))
    at_s: FloatColumn = load.span.start_s + starts.astype(np.float64) * load.span.step_s
    gpus = (counts / np.maximum(seen, 1.0)) @ facts.gpus
    return at_s, np.where(seen.any(axis=1), gpus, np.nan)


def _worst_hour(arrivals: FloatColumn, missed: FloatColumn, load: FleetLoad) -> tuple[FloatColumn, FloatColumn]:
    starts = _hour_starts(load)
    asked, lost = (np.add.reduceat(each, starts, axis=0) for each in (arrivals, missed))
    worst, rows = lost.argmax(axis=0), np.arange(lost.shape[1])
    any_lost = lost[worst, rows] > 0.5
    with np.errstate(invalid="ignore", divide="ignore"):
        share = 1 - lost[worst, rows] / asked[worst, rows]
    at_s = load.span.start_s + starts[worst] * load.span.step_s
    return np.where(any_lost, share, np.nan), np.where(any_lost, at_s // HOUR_S * HOUR_S, np.nan)


def _hour_starts(load: FleetLoad) -> IntColumn:
    """Return the first step of each hour of the clock; int64[H]."""
    hour = np.floor((load.span.ends_s - load.span.step_s / 2) / HOUR_S)
    return np.flatnonzero(np.diff(hour, prepend=-1.0))


def _count_changes(
    wanted: Steps, seen: BoolColumn, cold_start_s: FloatColumn, dt: float
) -> tuple[FloatColumn, FloatColumn, FloatColumn]:
    """Return changes, flaps and started replicas; float64[W] each. A flap undoes a change younger than a cold start."""
    moved = np.diff(np.round(wanted), axis=0)
    moved = np.where(seen[1:] & seen[:-1], moved, 0.0)
    services = wanted.shape[1]
    flaps = np.zeros(services)
    for row in np.flatnonzero((moved != 0).sum(axis=0) > 1).tolist():
        at = np.flatnonzero(moved[:, row])
        turned = moved[at[1:], row] * moved[at[:-1], row] < 0
        flaps[row] = (turned & (np.diff(at) * dt < cold_start_s[row])).sum()
    return (moved != 0).sum(axis=0).astype(np.float64), flaps, np.maximum(moved, 0.0).sum(axis=0, dtype=np.float64)
