"""What the GPUs of each service did over a span, by the daemon's own rules, and one change to consider.

What a change saves is replayed (`change_replay`), and one is offered that keeps what is promised. GPU activity alone
never changes a count, here as in the daemon.
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
from autoscaler.report.change_replay import MOST_REPLAYS, ReplayInputs, TriedChange, replay_changes
from autoscaler.report.changes import Service, ServiceChange, find_changes
from autoscaler.report.outcome import ServiceFigures

LEAST_SHARE = 0.01
"""Share of the hours below which it is not said that they are not known."""

NO_SAVING = "its saving is not known: history does not show what its engine waits for"


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
    """One change to consider for a service, and all that were tried."""

    change: str  # "": none
    effect: str  # what it would do; "": there is none to consider
    saved_gpu_hours: float = math.nan  # that this policy uses less with the change, over the span; NaN: not replayed
    attainment: float = math.nan  # with the change, 0..1; NaN: not replayed
    tried: tuple[TriedChange, ...] = ()

    @property
    def words(self) -> str:
        """Return the change and what it would do; "": none."""
        if not self.effect:
            return self.change.replace("none: ", "No change: ", 1)
        return f"Consider {self.change}; {self.effect}"

    @classmethod
    def of(cls, tried: Sequence[TriedChange]) -> Proposal:
        """Return the change that is offered and saves most, else why none is."""
        offered = [each for each in tried if not each.refusal]
        if offered:
            best = max(offered, key=lambda each: each.saved)
            return cls(best.change.words, best.effect, best.saved, best.attainment, tuple(tried))
        unknown = next((each for each in tried if each.change.why), None)
        if unknown is not None and all(each.change.why for each in tried):
            return cls(unknown.change.words, unknown.effect, tried=tuple(tried))
        return cls(
            f"none: {'; '.join(f'{each.change.words}: {each.refusal}' for each in tried)}", "", tried=tuple(tried)
        )


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
        said = f"{main.title}, in {states[main.state] / total:.0%} of {total:,.1f} replica-hours"
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
    inputs: ReplayInputs,
    by_policy: ServiceFigures,
    doubts: Sequence[str] = (),
) -> GpuStory:
    """Return the story with one change for each service.

    by_policy: the figures under this policy. doubts: [W], why a service is not well modelled; "": it is.
    """
    load, profiles, facts, spec, holds = inputs
    story = GpuStory(hours, step_s)
    wanted: list[tuple[int, ServiceChange]] = []
    for row in _by_gpu_hours(by_policy):
        found = find_changes(story.main(row), Service(load, profiles, facts, spec, row))
        if _is_settled(story.main(row), spec, row, bool(holds[row])):
            continue
        if doubts and doubts[row]:
            found = tuple(each._replace(why=f"it is not well modelled: {doubts[row]}") for each in found)
        wanted += [(row, each) for each in found]
    late = [place for place, (_, each) in enumerate(wanted) if not each.why][MOST_REPLAYS:]
    for place in late:
        row, change = wanted[place]
        why = f"only {MOST_REPLAYS} changes are replayed, of the services with most GPUs"
        wanted[place] = row, change._replace(why=why)
    figures = by_policy.gpu_hours, by_policy.attainment
    tried: dict[int, list[TriedChange]] = {}
    made = replay_changes(wanted, inputs, figures)
    for (row, _), each in zip(wanted, made, strict=True):
        tried.setdefault(row, []).append(each)
    proposals = (_propose(story, spec, row, tried.get(row), bool(holds[row])) for row in range(load.shape[1]))
    return replace(story, proposals=tuple(proposals))


def _by_gpu_hours(figures: ServiceFigures) -> list[int]:
    rows: list[int] = np.argsort(-np.nan_to_num(figures.gpu_hours), kind="stable").tolist()
    return rows


def _is_settled(main: Diagnosis, spec: Spec, row: int, holds: bool) -> bool:
    """Return whether the policy of an idle service lets it rest already."""
    by_time = math.isfinite(spec.idle_after_s[row]) or (holds and math.isinf(spec.idle_after_s[row]))
    rests = by_time or spec.sleep_replicas[row] > 0
    return main is Diagnosis.IDLE_AND_LOADED and bool(rests)


def _propose(story: GpuStory, spec: Spec, row: int, tried: Sequence[TriedChange] | None, holds: bool) -> Proposal:
    if tried:
        return Proposal.of(tried)
    now = Circumstances(
        kv_usage=math.nan,
        waiting=math.nan,
        is_side=False,  # a pair is no part of history
        max_wait_s=float(spec.max_wait_s[row]),
        sleep_replicas=float(spec.sleep_replicas[row]),
        asleep=float(spec.sleep_replicas[row]),
        idle_after_s=float(spec.idle_after_s[row]),
        holds_requests=holds,
    )
    change = find_change(story.main(row), now)
    return Proposal(change, "" if not change or change.startswith("none") else NO_SAVING)
