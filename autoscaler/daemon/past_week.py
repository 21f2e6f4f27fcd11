"""Learns the load of the last week by quarter of an hour at the start, as far as the daemon has not measured it.

History has no load in busy replicas, but it has tokens. The load of a token is that of the quarters of which both are
known: those that the daemon has measured itself, or that its warm start has replayed. Where no such quarter is known
yet, as of a workload that was idle, the daemon tries again after each quarter of the first day.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

import numpy as np
import structlog

from autoscaler.core.measure.step_time import weigh_tokens
from autoscaler.core.model.fleet import Fleet
from autoscaler.core.model.forecast import BIN_S
from autoscaler.core.model.recent import PastTokens
from autoscaler.core.planner.season import DAY_BINS, MIN_KNOWN_SHARE, WEEK_BINS, Season
from autoscaler.core.snapshot import Snapshot, key_of
from autoscaler.core.table.columns import FloatColumn, or_zero, replace
from autoscaler.daemon.loop import Loop
from autoscaler.ports import Clock, HistorySource, Unavailable, WorkloadSource

log = structlog.get_logger(__name__)

DEADLINE_S = 20.0
"""Time limit for reading. What was read by then is used."""

STEPS = WEEK_BINS + 1
"""Steps of a bin's length that are read: bins begin at any time, so the oldest one lies in two steps."""

POLL_S = 1.0
"""Pause between attempts to read the memory of the loop, which is unknown until a tick has used what was restored."""

ATTEMPTS = DAY_BINS
"""A workload without a busy minute in the first day keeps the bins that it has measured itself."""

MIN_BUSY_S = 60.0
"""Busy replica-seconds that show the load of a unit of work."""

MAX_LOAD = float(np.finfo(np.float16).max)

LOAD, AGE, BUSY, OBSERVED = COLUMNS = (
    "season.load",
    "season.bin_age_s",
    "season.busy_replica_s",
    "season.observed_s",
)
"""The columns of a snapshot that are a `Season`."""


class PastWeek:
    """Run `run()` in a task beside the loop."""

    def __init__(
        self,
        loop: Loop,
        history: HistorySource,
        workloads: WorkloadSource,
        clock: Clock,
        until_restored: Callable[[], Awaitable[None]],
    ) -> None:
        """until_restored: waits until the loop was given what is known from before this process."""
        self._loop = loop
        self._history = history
        self._workloads = workloads
        self._clock = clock
        self._until_restored = until_restored

    async def run(self) -> None:
        """Read the week once, and learn from it until the load of each workload is known, at most for a day."""
        try:
            await self._run()
        except Unavailable as error:
            log.warning("the load of the last week was not learned", reason=str(error))
        except Exception as error:  # odd history must not stop the daemon
            log.error("the load of the last week was not learned", exc_info=error)

    async def _run(self) -> None:
        await self._until_restored()
        snapshot, fleet = await self._snapshot(), self._workloads.fleet()
        rows = find_unknown(snapshot, fleet)
        if not rows:
            return
        began_s = self._clock.now_s()
        tokens = await self._history.past_tokens(fleet, rows, BIN_S, STEPS, DEADLINE_S)
        read_s = round(self._clock.now_s() - began_s, 1)
        past = PastWork.of(tokens, fleet)
        for attempt in range(ATTEMPTS):
            if attempt:
                await self._clock.sleep(BIN_S)
            taught = teach(past, await self._snapshot())
            if taught.workloads:
                self._loop.restore(taught.snapshot)
            if taught.workloads or not attempt:
                log.info(
                    "learned the load of the last week",
                    workloads=taught.workloads,
                    of=len(fleet.workloads),
                    hours=round(taught.bins * BIN_S / 3600),
                    waiting=taught.waiting,
                    read_s=read_s,
                    **({"problem": tokens.problem} if tokens.problem else {}),
                )
            if not taught.waiting:
                return

    async def _snapshot(self) -> Snapshot:
        """Return the memory of the loop as of its last tick; waits until there is one."""
        while (snapshot := self._loop.snapshot()) is None:
            await self._clock.sleep(POLL_S)
        return snapshot


class PastWork(NamedTuple):
    """The work of each workload in steps of a quarter of an hour."""

    row_of: dict[tuple[str, str, str, str], int]  # by what identifies a workload
    work: FloatColumn  # float64[T, W], in idle gaps, the last step first; NaN: not known
    until_wall_s: float  # Unix time, end of the last step

    @classmethod
    def of(cls, tokens: PastTokens, fleet: Fleet) -> PastWork:
        rows = {key_of(workload): row for row, workload in enumerate(fleet.workloads)}
        return cls(rows, weigh_tokens(tokens.prompt, tokens.generated), tokens.until_wall_s)


class Taught(NamedTuple):
    """The result of teaching past work."""

    snapshot: Snapshot  # the seasons that know more than before
    workloads: int  # number of these
    bins: int  # number of bins that are known now and were not before
    waiting: int  # workloads whose past work is known, and not its load


def find_unknown(snapshot: Snapshot, fleet: Fleet) -> frozenset[int]:
    """Return the rows of `fleet` that have a bin whose load is not known, among the workloads of a snapshot."""
    unknown = np.flatnonzero(np.isnan(snapshot.columns[LOAD]).any(axis=0))
    keys = {snapshot.workloads[row] for row in unknown.tolist()}
    return frozenset(row for row, workload in enumerate(fleet.workloads) if key_of(workload) in keys)


def teach(past: PastWork, snapshot: Snapshot) -> Taught:
    """Fill in the seasons of a snapshot with what past work shows."""
    row_of = np.array([past.row_of.get(key, -1) for key in snapshot.workloads], dtype=np.int64)
    work = np.where(row_of >= 0, past.work[:, row_of], np.nan)
    before = replace(
        Season.blank(len(snapshot.workloads)),
        load=snapshot.columns[LOAD].astype(np.float16),
        bin_since_s=snapshot.wall_s - snapshot.columns[AGE].astype(np.float64),
        busy_s=snapshot.columns[BUSY].astype(np.float64),
        observed_s=snapshot.columns[OBSERVED].astype(np.float64),
    )
    work = resample_work(before, work, past.until_wall_s)
    after = learn_past_load(before, work)
    new = np.isnan(before.load) & ~np.isnan(after.load)
    rows = np.flatnonzero(new.any(axis=0))
    is_waiting = (np.isnan(after.load) & (work > 0)).any(axis=0)
    columns = {name: snapshot.columns[name][..., rows] for name in COLUMNS} | {LOAD: after.load[:, rows]}
    keys = tuple(snapshot.workloads[row] for row in rows.tolist())
    return Taught(Snapshot(keys, snapshot.wall_s, columns), len(keys), int(new.sum()), int(is_waiting.sum()))


def learn_past_load(season: Season, work: FloatColumn) -> Season:
    """Fill in the bins whose load is not known from the work that was done in them.

    work: float64[WEEK_BINS, W], in any unit; NaN: not known.

    The load of a unit of work is a ratio estimate: the load of all bins of which both are known, over their work. Load
    that was measured is never replaced.
    """
    load = season.load.astype(np.float64)
    is_known = ~np.isnan(load)
    has_both = is_known & ~np.isnan(work)
    busy, done = (np.where(has_both, each, 0.0).sum(axis=0) for each in (load, work))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        learned = work * np.where((busy * BIN_S >= MIN_BUSY_S) & (done > 0), busy / done, np.nan)
    learned = np.where(learned <= MAX_LOAD, learned, np.nan)
    return replace(season, load=np.where(is_known, season.load, learned.astype(np.float16)))


def resample_work(season: Season, work: FloatColumn, until_s: float) -> FloatColumn:
    """Return the work of each bin; float64[WEEK_BINS, W], NaN: less than `MIN_KNOWN_SHARE` of the bin is known.

    work: float64[T, W], by steps of `BIN_S` until `until_s`, the last step first; NaN: not known.
    """
    since_s = np.where(np.isnan(season.bin_since_s), until_s, season.bin_since_s)
    steps = np.arange(float(WEEK_BINS))[:, None] + (until_s - since_s) / BIN_S  # from the end of a bin until `until_s`
    whole = np.floor(steps)
    total = known = np.zeros_like(steps)
    for step, share in ((whole, 1 - (steps - whole)), (whole + 1, steps - whole)):
        row = np.clip(step, 0, len(work) - 1).astype(np.int64)
        part = np.where(step == row, work[row, np.arange(work.shape[1])], np.nan)
        total, known = total + share * or_zero(part), known + share * ~np.isnan(part)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(known >= MIN_KNOWN_SHARE, total / known, np.nan)
