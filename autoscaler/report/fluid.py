"""Serves the load with counts that someone decides: the planner's shadow-fleet arithmetic, service by service.

A `Column` is a way of deciding counts. Each sees what its own counts make of the queue, and a replica serves one cold
start after it was ordered. One function makes the course of any column, so that all are judged alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from autoscaler.core.measure.capacity import compute_carried_load
from autoscaler.core.measure.miss_curve import compute_mean_queue
from autoscaler.core.model.spec import Spec
from autoscaler.core.starts.wake_ups import FIRST_WAKE_S
from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn, or_zero
from autoscaler.report.history import Steps
from autoscaler.report.load import FleetLoad, Profiles

MOST_BUSY = 0.95
"""Load up to which requests in a replica are computed; beyond it they queue."""


class FleetView(NamedTuple):
    """What a column sees at the beginning of a step: its own fleet as of the step before; float64[W] unless stated."""

    step: int  # 0..T-1
    time_s: float  # Unix time at which the step begins
    step_s: float
    wanted: FloatColumn  # replicas that it has ordered
    ready: FloatColumn  # replicas that serve
    arrivals_per_s: FloatColumn  # requests, over the step before
    demand: FloatColumn  # replicas that they keep busy
    waiting: FloatColumn  # requests in its queue
    running: FloatColumn  # requests in its replicas
    kv_usage: FloatColumn  # 0..1, mean of its replicas; NaN: not known
    missed_share: FloatColumn  # 0..1, of the requests of the step before


class Column(Protocol):
    """A way of deciding counts."""

    name: str  # key in JSON: "policy", "constant", "rule"
    title: str  # on the page: "this policy"

    def decide(self, view: FleetView) -> FloatColumn:
        """Return the replicas to order from this step on; float64[W], whole numbers. NaN keeps the count."""
        ...


@dataclass(frozen=True)
class Course:
    """What a column decided and what became of it; float32[T, W]."""

    name: str
    title: str
    wanted: Steps  # replicas that are paid for: ordered, whether they serve yet or not
    ready: Steps  # replicas that serve
    waiting: Steps  # requests in the queue, at the end of the step
    missed: Steps  # requests of the step that missed their objective
    decides: BoolColumn  # bool[W], services for which the column has counts; figures of others are NaN
    notes: tuple[str, ...] = ()
    asleep: FloatColumn | float = 0.0  # float64[W], replicas that sleep in addition and hold their GPUs

    @property
    def held(self) -> Steps:
        """Replicas that hold GPUs, asleep or not; float32[T, W]."""
        return np.asarray(self.wanted + np.float32(self.asleep))


class Reserve(NamedTuple):
    """Replicas that a policy keeps asleep, and until when one serves; float64[W]."""

    replicas: FloatColumn
    wake_s: FloatColumn

    @classmethod
    def of(cls, spec: Spec) -> Reserve:
        """Return that of policies. No history shows how long waking takes, so the daemon's first guess stands in."""
        return cls(or_zero(spec.sleep_replicas), FIRST_WAKE_S[(spec.sleep_level == 2).astype(np.int64)])


@dataclass
class FluidQueue:
    """The queue of one fleet per service, moved on step by step."""

    backlog_s: FloatColumn  # float64[W], replica-seconds of waiting work
    arrived: FloatColumn | float = 0.0  # float64[W], requests so far

    def serve(
        self, demand: FloatColumn, arrivals: FloatColumn, ready: FloatColumn, p: Profiles, dt: float
    ) -> FloatColumn:
        """Serve one step; return the requests that missed, float64[W]. Also for [K, W], K fleets at once.

        Source: `core.planner.shadow_fleets`. The queue changes evenly within the step, so the part of it in which
        requests wait for too long is known.
        """
        carried = compute_carried_load(ready)
        before = self.backlog_s
        after = np.maximum(before + (demand - carried) * dt, 0.0)
        most = or_zero(np.where(np.isnan(p.max_queue_s), np.inf, p.max_queue_s) * carried) + p.batch_room_s * ready
        low, high = np.minimum(before, after), np.maximum(before, after)
        with np.errstate(invalid="ignore", divide="ignore"):
            queued = np.where(high > low, np.clip((high - most) / (high - low), 0.0, 1.0), 1.0 * (high > most))
            busy = np.where(ready > 0, demand / ready, 1.0)
        beside = np.minimum(p.unavoidable + p.steepness * compute_mean_queue(busy), 1.0)
        self.backlog_s, self.arrived = after, self.arrived + arrivals
        return np.asarray(arrivals * (queued + (1 - queued) * beside))

    def count_waiting(self, work_s: FloatColumn, p: Profiles) -> FloatColumn:
        """Return the requests that wait, at most all that came; float64[W].

        work_s: float[W], of a request in the step; 0: nothing shows it, and that of a mean request counts.
        """
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.minimum(or_zero(self.backlog_s / np.where(work_s > 0, work_s, p.work_s)), self.arrived)


def follow(
    column: Column,
    load: FleetLoad,
    profiles: Profiles,
    progress: Callable[[float], None] = lambda _: None,
    start: FloatColumn | None = None,
    reserve: Reserve | None = None,
) -> Course:
    """Let a column decide the counts of each step, and return its course.

    start: float64[W], replicas that serve at the beginning; None: as many as really did. reserve: sleeping replicas,
    of which that many serve one wake-up after they are ordered, as in `core.planner.shadow_fleets`.
    """
    steps, services = load.shape
    dt = load.span.step_s
    delay = np.maximum(np.round(profiles.cold_start_s / dt), 1).astype(np.int64)
    wake = delay if reserve is None else np.maximum(np.round(reserve.wake_s / dt), 1).astype(np.int64)
    asleep = np.zeros(services) if reserve is None else reserve.replicas
    wanted = load.ordered[0].astype(np.float64) if start is None else start
    ready, missed_share = wanted.copy(), np.zeros(services)
    queue = FluidQueue(np.zeros(services))
    out = {name: np.zeros((steps, services), np.float32) for name in ("wanted", "ready", "waiting", "missed")}
    orders = np.repeat(wanted[None], int(delay.max(initial=1)) + 1, axis=0)  # of the last steps, a ring
    decides = np.zeros(services, bool)
    requests = arrivals = demand = np.zeros(services)
    for step in range(steps):
        if step % 256 == 0:
            progress(step / steps)
        in_flight = _in_flight(load, max(step - 1, 0), demand, ready, profiles)
        at_s, rate_per_s = load.span.start_s + step * dt, arrivals / dt
        view = FleetView(step, at_s, dt, wanted, ready, rate_per_s, demand, requests, *in_flight, missed_share)
        decided = column.decide(view)
        decides |= ~np.isnan(decided)
        wanted = np.where(np.isnan(decided), wanted, decided)
        orders[step % len(orders)] = wanted
        ready = np.minimum(wanted, _least_of(orders, step, delay))
        if asleep.any():
            woken = np.minimum(wanted, _least_of(orders, step, np.minimum(wake, delay)))
            ready = np.maximum(ready, np.minimum(woken, ready + asleep))
        demand, arrivals = (np.asarray(each[step], np.float64) for each in (load.demand, load.arrivals))
        missed = queue.serve(demand, arrivals, ready, profiles, dt)
        with np.errstate(invalid="ignore", divide="ignore"):
            missed_share = np.where(arrivals > 0, missed / arrivals, 0.0)
        requests = queue.count_waiting(load.work_s[step], profiles)
        for name, values in (("wanted", wanted), ("ready", ready), ("waiting", requests), ("missed", missed)):
            out[name][step] = values
    progress(1.0)
    found = out["wanted"], out["ready"], out["waiting"], out["missed"]
    return Course(column.name, column.title, *found, decides, asleep=asleep)


def _least_of(orders: FloatColumn, step: int, delay: IntColumn) -> FloatColumn:
    """Return the least that was ordered within the last cold start: replicas beyond it are not ready."""
    back = np.arange(len(orders))
    recent = orders[(step - back) % len(orders)]
    recent = np.where(back[:, None] <= delay, recent, np.inf)
    return np.asarray(recent.min(axis=0))


def _in_flight(
    load: FleetLoad, step: int, demand: FloatColumn, ready: FloatColumn, profiles: Profiles
) -> tuple[FloatColumn, FloatColumn]:
    """Return the requests in the replicas and their use of the KV cache, had these replicas served the step.

    By Little's law as many run as arrive in the time that a request takes. Under processor sharing that time grows as
    1 / (1 - busy share), so it follows from the time that was measured with the real replicas.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        real_busy = np.minimum(load.busy[step], MOST_BUSY)
        busy = np.minimum(np.where(ready > 0, demand / ready, MOST_BUSY), MOST_BUSY)
        running = load.running[step] * (1 - real_busy) / (1 - busy)
        running = np.fmin(running, profiles.slots * ready)
        of_real = (running / ready) / (load.running[step] / load.pods[step])
        kv_usage = np.clip(load.kv_usage[step] * of_real, 0.0, 1.0)
    return or_zero(np.where(ready > 0, running, 0.0)), kv_usage
