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
from autoscaler.core.planner.season import DAY_BINS, WEEK_BINS, Season, learn_past_load, resample_work
from autoscaler.core.snapshot import Snapshot, key_of
from autoscaler.core.table.columns import FloatColumn, replace
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
