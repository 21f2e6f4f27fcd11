"""Replays changes to services (`changes`) on their own history. One replay follows the changes of all services.

So each is judged as this policy is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from autoscaler.core.measure.miss_curve import compute_mean_queue
from autoscaler.core.model.spec import Spec
from autoscaler.core.table.columns import BoolColumn, FloatColumn
from autoscaler.report.changes import SLEEP, ServiceChange
from autoscaler.report.columns import PolicyColumn
from autoscaler.report.facts import ServiceFacts
from autoscaler.report.fluid import Reserve, follow
from autoscaler.report.load import FleetLoad, Profiles
from autoscaler.report.outcome import sum_up

LEAST_SAVED_H = 0.05
"""GPU-hours below which nothing is saved, as figures have one digit."""

LOST = 1e-4
"""Attainment that a change may lose by rounding."""

MOST_REPLAYS = 200
"""Changes of all services that are replayed; those of services that hold most GPUs come first."""

CELLS = 2_100_000
"""Steps times changes that are replayed at once, so that memory is bounded."""


class TriedChange(NamedTuple):
    """A change with what its replay made of it. NaN: not replayed."""

    change: ServiceChange
    gpu_hours: float  # held over the span, those of sleeping replicas too
    asleep_gpu_hours: float
    attainment: float  # 0..1
    gpu_hours_today: float  # under this policy without the change
    attainment_today: float
    promised: float  # attainment by the policy

    @property
    def saved(self) -> float:
        """Return the GPU-hours that it saves; negative: it costs some; NaN: not replayed."""
        return self.gpu_hours_today - self.gpu_hours

    @property
    def refusal(self) -> str:
        """Return why it is not offered; "": it is. Sleep is, where more GPU-hours are asleep than it holds beyond."""
        if self.change.why:
            return self.change.why
        if math.isnan(self.saved):
            return "would take GPU-hours that are not known"
        if self.attainment < min(self.attainment_today, self.promised) - LOST:
            return f"would keep {self.attainment:.2%} in place of {self.attainment_today:.2%}"
        if self.saved + (self.asleep_gpu_hours if self.change.name == SLEEP else 0.0) < LEAST_SAVED_H:
            more = -self.saved
            return f"would take {more:,.1f} GPU-hours more" if more >= LEAST_SAVED_H else "would save no GPU-hours"
        return ""

    @property
    def effect(self) -> str:
        """Say what it would do, against today."""
        if self.change.why:
            return f"its saving is not known: {self.change.why}"
        if self.change.name == SLEEP:
            held = "no more" if self.saved >= 0 else f"{-self.saved:,.1f} GPU-hours more"
            said = f"{self.asleep_gpu_hours:,.1f} GPU-hours asleep, which still hold their GPUs, {held} in all"
        else:
            said = f"{self.saved:,.1f} GPU-hours less than this policy"
        return f"replayed: {said}, {self._kept}"

    @property
    def _kept(self) -> str:
        if math.isnan(self.attainment) or math.isnan(self.attainment_today):
            return "while no request came"
        return f"at {self.attainment:.2%} in place of {self.attainment_today:.2%}"

    @property
    def line(self) -> str:
        """Say what the replay made of it, and whether it is offered."""
        if self.change.why:
            return f"{self.change.words}: not replayed: {self.change.why}"
        asleep = f", {self.asleep_gpu_hours:,.1f} of them asleep" if self.asleep_gpu_hours else ""
        said = (
            f"{self.change.words}: {self.gpu_hours:,.1f} GPU-hours{asleep} in place of {self.gpu_hours_today:,.1f}, "
            f"{self._kept}"
        )
        return f"{said}; not offered, as it {self.refusal}" if self.refusal else said


class ReplayInputs(NamedTuple):
    """The services of which some are changed, W of them."""

    load: FleetLoad
    profiles: Profiles
    facts: ServiceFacts
    spec: Spec
    holds: BoolColumn  # bool[W], a gateway holds requests at zero


def lighten(load: FleetLoad, profiles: Profiles, work: FloatColumn) -> tuple[FleetLoad, Profiles]:
    """Return the load and the speed if a request keeps a replica busy for `work` times as long; float64[W]."""
    lighter = replace(
        load, demand=(load.demand * work).astype(np.float32), work_s=(load.work_s * work).astype(np.float32)
    )
    room_s = profiles.batch_room_s * np.minimum(work, 1.0)
    faster = replace(
        profiles, work_s=profiles.work_s * work, idle_gap_s=profiles.idle_gap_s * work, batch_room_s=room_s
    )
    return lighter, faster


def slow_down(profiles: Profiles, times: FloatColumn) -> Profiles:
    """Return the speed of replicas on which a request takes `times` as long alone; float64[W].

    Under processor sharing a request takes 1 / (1 - load) times as long. One that takes twice as long alone misses at
    load x as another does at 1 - (1 - x) / 2. So the curve that was learned gives the other; a line through it at 0.5
    and 0.9 stands for it, which is above it at lower loads.
    """
    half, most = (compute_mean_queue(1 - (1 - at) / np.maximum(times, 1.0)) for at in (0.5, 0.9))
    usual = [float(compute_mean_queue(np.array([at]))[0]) for at in (0.5, 0.9)]
    slope = (most - half) / (usual[1] - usual[0])
    intercept = np.where(times > 1, profiles.steepness * (half - slope * usual[0]), 0.0)
    return replace(
        profiles,
        unavoidable=np.minimum(profiles.unavoidable + np.maximum(intercept, 0.0), 1.0),
        steepness=np.where(times > 1, profiles.steepness * slope, profiles.steepness),
    )


def replay_changes(
    wanted: Sequence[tuple[int, ServiceChange]], inputs: ReplayInputs, today: tuple[FloatColumn, FloatColumn]
) -> list[TriedChange]:
    """Replay changes, each of the service in a row.

    today: float64[W], GPU-hours and attainment under this policy.
    """
    load, profiles, facts, spec, holds = inputs
    columns = [
        (place, row, kind, not number)
        for place, (row, change) in enumerate(wanted)
        if not change.why
        for number, kind in enumerate(change.kinds)
    ]
    hours, asleep_h, missed, asked = np.zeros((4, len(wanted)))
    size = max(CELLS // max(load.shape[0], 1), 1)
    for begin in range(0, len(columns), size):
        part = columns[begin : begin + size]
        places, rows = [each[0] for each in part], [each[1] for each in part]
        work, slower, devices = np.array([each[2] for each in part], np.float64).T
        is_first = np.array([each[3] for each in part], bool)
        changes = [wanted[place][1] for place in places]
        few, speed = lighten(load.only(rows), profiles.take(np.array(rows)), work)
        speed = slow_down(speed, slower)
        # A request that misses on any number of replicas misses once, even if it passes several kinds of them.
        speed = replace(speed, unavoidable=np.where(is_first, speed.unavoidable, 0.0))
        theirs = _changed_spec(spec.take(np.array(rows)), changes, few, work)
        held = facts.only(rows)
        held = replace(held, gpus=held.gpus * devices)
        reserve = Reserve.of(theirs)
        start = np.ceil(few.ordered[0] * np.maximum(work, 1.0)).astype(np.float64)
        policy = PolicyColumn(few, speed, theirs, holds=holds[rows])
        course = follow(policy, few, speed, start=start, reserve=reserve)
        figures = sum_up(course, few, speed, held, theirs)
        seen_h = few.seen.sum(axis=0) * few.span.step_s / 3600
        np.add.at(hours, places, figures.gpu_hours)
        np.add.at(missed, places, figures.missed)
        np.add.at(asleep_h, places, reserve.replicas * seen_h * held.gpus)
        asked[places] = figures.requests
    with np.errstate(invalid="ignore", divide="ignore"):
        kept = np.where(asked > 0, 1 - np.minimum(missed / asked, 1.0), np.nan)
    is_known = [not change.why for _, change in wanted]
    made = np.where(is_known, [hours, asleep_h, kept], np.nan).T.tolist()
    return [
        TriedChange(
            change, held_h, sleep_h, share, float(today[0][row]), float(today[1][row]), float(spec.attainment[row])
        )
        for (row, change), (held_h, sleep_h, share) in zip(wanted, made, strict=True)
    ]


def _changed_spec(spec: Spec, changes: Sequence[ServiceChange], load: FleetLoad, work: FloatColumn) -> Spec:
    """Return the policies under changes. Where more replicas do the same work, the ceiling is higher alike."""
    idle_s = np.array([each.idle_after_s for each in changes])
    asleep = np.array([each.asleep for each in changes])
    ceiling = np.ceil(np.fmax(spec.max_replicas, load.ordered.max(axis=0, initial=0.0)) * work)
    return spec.with_columns(
        {
            "max_replicas": np.where(work > 1, ceiling, spec.max_replicas),
            "idle_after_s": np.where(np.isnan(idle_s), spec.idle_after_s, idle_s),
            "sleep_replicas": np.where(asleep > 0, asleep, spec.sleep_replicas),
            "sleep_level": np.where(asleep > 0, 1.0, spec.sleep_level),
        }
    )
