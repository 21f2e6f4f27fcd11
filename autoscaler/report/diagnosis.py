"""What the GPUs of each service did over a span, by the daemon's own rules, and one change to consider.

What a change saves is replayed where the replay knows it: that of going to zero. GPU activity alone never changes a
count, here as in the daemon.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from autoscaler.adapters.prometheus.range.gpu_readings import PodMoments
from autoscaler.adapters.prometheus.range.service_queries import ServiceName
from autoscaler.core.explain.diagnosis import WEAK, Circumstances, find_change
from autoscaler.core.model.diagnosis import STATES, UNKNOWN, Diagnosis
from autoscaler.core.model.spec import Spec
from autoscaler.core.observe import gpu_activity
from autoscaler.core.observe.diagnosis import GpuFacts, classify
from autoscaler.core.table.columns import Columns, FloatColumn, IntColumn, or_zero, replace
from autoscaler.report.columns import PolicyColumn
from autoscaler.report.facts import ServiceFacts
from autoscaler.report.fluid import follow
from autoscaler.report.idle import find_rest
from autoscaler.report.load import FleetLoad, Profiles
from autoscaler.report.outcome import ServiceFigures, sum_up

QUEUED = 0.5
"""Mean number of waiting requests from which a service had a queue."""

LEAST_SHARE = 0.01
"""Share of the hours below which it is not said that they are not known."""

LOST = 1e-4
"""Attainment that a change may lose by rounding."""

NOT_TO_ZERO = (
    "sleep of idle replicas, or a smaller slice: to zero, waking up costs more of its error budget than it has"
)
NO_SAVING = "its saving is not measured: no replay knows it"


@dataclass(frozen=True)
class GpuHours(Columns):
    """Replica-hours of the moments at which engines reported; float64[W] unless stated."""

    by_diagnosis: FloatColumn  # float64[D, W], of Diagnosis
    weak_h: FloatColumn  # those that GPU_UTIL alone tells
    loaded_h: FloatColumn  # half of the framebuffer or more was used
    active_h: FloatColumn  # of those whose activity was read, those that computed
    idle_h: FloatColumn  # loaded, without activity and without requests
    judged_h: FloatColumn  # framebuffer, activity and requests were read

    @classmethod
    def blank(cls, services: int) -> GpuHours:
        none = np.zeros(services)
        return cls(np.zeros((len(Diagnosis), services)), none, none, none, none, none)


class Proposal(NamedTuple):
    """One change to consider for a service."""

    change: str  # "": none
    saved_gpu_hours: float  # that this policy uses less with the change, over the span; NaN: not replayed
    attainment: float  # with the change, 0..1; NaN: not replayed

    @property
    def words(self) -> str:
        """Return the change and what it saves; "": none."""
        if not self.effect:
            return self.change.replace("none: ", "No change: ")
        return f"Consider {self.change}; {self.effect}"

    @property
    def effect(self) -> str:
        """Return what the change saves, in words; "": there is none to consider."""
        if not self.change or self.change.startswith("none"):
            return ""
        if math.isnan(self.saved_gpu_hours):
            return NO_SAVING
        return f"replayed: {self.saved_gpu_hours:,.1f} GPU-hours less than this policy, at {self.attainment:.2%}"


NONE = Proposal("", math.nan, math.nan)


@dataclass(frozen=True)
class GpuStory:
    """What the GPUs did, and what to do about it."""

    hours: GpuHours
    step_s: float  # between the moments that were looked at
    proposals: tuple[Proposal, ...] = ()  # [W]

    def main(self, row: int) -> Diagnosis:
        """Return what a service did for most of the hours in which this is known, else why it is not."""
        hours = self.hours.by_diagnosis[:, row]
        known = [each for each in Diagnosis if each.known and hours[each] > 0]
        return max(known or list(Diagnosis), key=lambda each: (hours[each], each))

    def by_state(self, row: int) -> Mapping[str, float]:
        """Return the replica-hours by published state, "unknown" for all reasons why it is not known."""
        found = dict.fromkeys(STATES, 0.0)
        for each, hours in zip(Diagnosis, self.hours.by_diagnosis[:, row].tolist(), strict=True):
            found[each.state] += hours
        return found

    def sentence(self, row: int) -> str:
        """Say in one sentence what the GPUs of a service did, without a full stop; "": no engine told."""
        total = float(self.hours.by_diagnosis[:, row].sum())
        if not total:
            return ""
        main, states = self.main(row), self.by_state(row)
        if not main.known:
            return f"not known, because {main.title}"
        said = f"{main.title} in {states[main.state] / total:.0%} of {total:,.1f} replica-hours"
        if states[UNKNOWN] >= LEAST_SHARE * total:
            said += f", and {states[UNKNOWN] / total:.0%} are not known"
        return said + (WEAK if self.hours.weak_h[row] > 0 else "")


def count_hours(days: Iterable[PodMoments], services: Sequence[ServiceName], step_s: float) -> GpuHours:
    """Add up the readings of all days, each for the time until the next. Those of other services are left out."""
    place = {name: row for row, name in enumerate(services)}
    size, hours = len(services), step_s / 3600

    def summed(rows: IntColumn, values: FloatColumn) -> FloatColumn:
        return np.asarray(np.bincount(rows, values, size) * hours)

    total = GpuHours.blank(size)
    for day in days:
        of_service = np.array([place.get(name, -1) for name in day.services], np.int64)
        row = of_service[day.service] if len(of_service) else day.service
        facts = GpuFacts(0.0, day.samples, day.stuck)
        diagnosis = classify(facts)
        loaded, active, idle = gpu_activity.classify(0.0, day.samples, np.ones(len(row), bool))
        ours = row >= 0
        parts = (1.0 * (facts.weak & ~facts.stuck), or_zero(loaded), or_zero(active), or_zero(idle), ~np.isnan(idle))
        counts = np.bincount(diagnosis[ours] * size + row[ours], minlength=len(Diagnosis) * size)
        sums = (summed(row[ours], each[ours].astype(np.float64)) for each in parts)
        added = GpuHours((counts * hours).reshape(len(Diagnosis), size).astype(np.float64), *sums)
        total = GpuHours(*(a + b for a, b in zip(vars(total).values(), vars(added).values(), strict=True)))
    return total


def tell(
    hours: GpuHours,
    step_s: float,
    load: FleetLoad,
    profiles: Profiles,
    facts: ServiceFacts,
    spec: Spec,
    by_policy: ServiceFigures,
) -> GpuStory:
    """Return the story with one change for each service. by_policy: the figures under this policy."""
    story = GpuStory(hours, step_s)
    with np.errstate(invalid="ignore", divide="ignore"):
        alive = np.maximum((load.pods > 0).sum(axis=0), 1)
        kv_usage = np.where(load.pods > 0, or_zero(load.kv_usage), 0.0).sum(axis=0) / alive
        waiting = np.where(load.seen, or_zero(load.waiting), 0.0).sum(axis=0) / alive
    to_zero = _replay_zero(story, load, profiles, facts, spec, by_policy)
    found = []
    for row in range(load.shape[1]):
        now = Circumstances(
            kv_usage=float(kv_usage[row]),
            waiting=float(waiting[row]) if waiting[row] >= QUEUED else 0.0,
            is_side=False,  # a pair is no part of history
            max_wait_s=float(spec.max_wait_s[row]),
            sleep_replicas=float(spec.sleep_replicas[row]),
            asleep=0.0,
            idle_after_s=float(spec.idle_after_s[row]),
            holds_requests=False,
        )
        change = find_change(story.main(row), now)
        if (
            story.main(row) is Diagnosis.IDLE_AND_LOADED
            and not math.isfinite(now.idle_after_s)
            and not now.sleep_replicas > 0
        ):
            change = NOT_TO_ZERO  # unless a replay shows that it is worth it
        found.append(to_zero.get(row) or Proposal(change, math.nan, math.nan))
    return replace(story, proposals=tuple(found))


def _replay_zero(
    story: GpuStory,
    load: FleetLoad,
    profiles: Profiles,
    facts: ServiceFacts,
    spec: Spec,
    by_policy: ServiceFigures,
) -> dict[int, Proposal]:
    """Replay the way to zero of services that were idle and loaded for most of the time, where that saves something."""
    rests = {
        row: rest
        for row in range(load.shape[1])
        if story.main(row) is Diagnosis.IDLE_AND_LOADED and not math.isfinite(spec.idle_after_s[row])
        if (rest := find_rest(load, row, float(profiles.cold_start_s[row]), float(spec.error_budget[row])))
    }
    if not rests:
        return {}
    rows = list(rests)
    few, their = load.only(rows), profiles.take(np.array(rows))
    resting = replace(spec.take(np.array(rows)), idle_after_s=np.array([rest.idle_s for rest in rests.values()]))
    course = follow(PolicyColumn(few, their, resting), few, their)
    figures = sum_up(course, few, their, facts.only(rows), resting)
    found = {}
    for place, (row, rest) in enumerate(rests.items()):
        saved = float(by_policy.gpu_hours[row] - figures.gpu_hours[place])
        kept, before = float(figures.attainment[place]), float(by_policy.attainment[row])
        if saved > 0 and kept >= min(before, float(spec.attainment[row])) - LOST:
            change = f"scale to zero after {rest.idle_s / 60:.0f} min without a request (scaleToZero.idleAfter)"
            found[row] = Proposal(change, saved, kept)
    return found
