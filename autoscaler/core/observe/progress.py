"""Whether the requests that each pod shows move, and how fast it has written since it has had some.

Gauges stand still where an engine hangs, and in some engines after clients have gone. A pod that holds requests and
counts nothing is stuck, or what it says is stale. Either way its load says nothing about how many replicas are needed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.core.model.samples import PodSamples
from autoscaler.core.table.columns import BoolColumn, Columns, FloatColumn, TimestampColumn, or_zero, replace
from autoscaler.core.table.groupby import GroupBy

COUNTS = ("gaps", "generation_tokens", "steps", "first_tokens", "finished", "prompt_tokens", "rejections")
"""Counters of which any that moves is progress."""

STUCK_S, STUCK_READINGS = 30.0, 2
"""Without progress for so long, and in so many readings in a row, the load of a pod no longer counts. The prompt of a
request that runs alone may be computed for longer, 30,000 tokens for some 10 s and a million for some minutes."""

APART_S = 600.0
"""A queue that has not shrunk for so long while most other pods have none is no load: a rank of its pod is stuck, or
requests are not spread. No other replica can take them. Replicas that came for its sake have had time to start."""

QUEUED = 0.25
"""Waiting requests for each running one from which a pod has a queue; fewer may wait for the next step's tokens."""

GIVEN_UP_S = 180.0
"""Until a pod has been stuck for so long nothing shrinks: a million prompt tokens take 125 s at 8,000 tokens/s."""

ANSWER_S = 1800.0
"""Where nothing is counted between the first token of a request and its end, the longest answer may take so long:
32,000 tokens 50 ms apart."""

REPLACED_S = 1800.0
"""A replacement that nobody has used for so long is given up. It covers two cold starts of the slowest models."""

GROWING_S = 120.0
"""A stuck queue that grew within so long still gets requests."""

RATE_WINDOW_S = 30.0
"""Time constant of the rate of writing."""


@dataclass(frozen=True)
class Progress(Columns):
    """What each pod showed at its last reading, and since when; float64[P]."""

    last_read_s: TimestampColumn  # that reading; NaN: none
    counted: FloatColumn  # its counters, added up
    held: FloatColumn  # requests running and waiting
    still: FloatColumn  # readings in a row without progress
    last_moved_s: TimestampColumn  # the last reading with progress, or without requests; NaN: none
    last_grown_s: TimestampColumn  # the last reading at which a pod without progress held more requests; NaN: none
    tokens: FloatColumn  # counter, generated tokens
    written: FloatColumn  # tokens since work began, older ones fading
    worked_s: FloatColumn  # seconds in which they were written, fading alike
    began: FloatColumn  # 1 where work began between the two readings that those seconds lie between
    apart_since_s: TimestampColumn  # since when its queue has not shrunk while most others have none; NaN: it is not so
    apart_waiting: FloatColumn  # requests waiting then

    @classmethod
    def blank(cls, rows: int) -> Progress:
        none = np.zeros(rows)
        return replace(super().blank(rows), still=none, written=none, worked_s=none, began=none)


def follow(before: Progress, samples: PodSamples) -> Progress:
    """Compare each pod with its last reading.

    A counter that goes back is progress as well: the engine has started again. A sleeping engine holds requests without
    an error.
    """
    taken = (samples.time_s > before.last_read_s) | (np.isnan(before.last_read_s) & ~np.isnan(samples.time_s))
    if not taken.any():  # as in most ticks
        return before
    counted, held = np.zeros(len(taken)), samples.running + samples.waiting
    for name in COUNTS:
        counted += or_zero(getattr(samples, name))
    still = (held > 0) & (counted == before.counted) & ~(samples.asleep > 0)
    grew = still & (before.still > 0) & (held > before.held)
    written, worked_s, began = _written(before, samples, held)
    new = {
        "last_read_s": samples.time_s,
        "counted": counted,
        "held": held,
        "still": np.where(still, before.still + 1, 0.0),
        "last_moved_s": np.where(still, before.last_moved_s, samples.time_s),
        "last_grown_s": np.where(grew, samples.time_s, np.where(still, before.last_grown_s, np.nan)),
        "tokens": samples.generation_tokens,
        "written": written,
        "worked_s": worked_s,
        "began": began,
        "apart_since_s": before.apart_since_s,
        "apart_waiting": before.apart_waiting,
    }
    return Progress(**{name: np.where(taken, column, getattr(before, name)) for name, column in new.items()})


def compare(progress: Progress, samples: PodSamples, by_workload: GroupBy, counts: BoolColumn) -> Progress:
    """Compare the queue of each pod with those of its workload. counts: bool[P], pods that move and are awake."""
    queueing = counts & (samples.waiting > QUEUED * samples.running)
    if not queueing.any() and np.isnan(progress.apart_since_s).all():  # as in most ticks
        return progress
    queues, pods = by_workload.count([queueing, counts])
    few = queueing & (2 * queues <= pods)[by_workload.pod_workload]
    holds = few & (samples.waiting >= progress.apart_waiting)
    return replace(
        progress,
        apart_since_s=np.where(holds, progress.apart_since_s, np.where(few, progress.last_read_s, np.nan)),
        apart_waiting=np.where(holds, progress.apart_waiting, np.where(few, samples.waiting, np.nan)),
    )


def apart(progress: Progress) -> BoolColumn:
    """Say which pods have a queue that does not shrink while most others have none; bool[P]."""
    return np.asarray(progress.last_read_s - progress.apart_since_s >= APART_S)


def stuck(progress: Progress, samples: PodSamples) -> BoolColumn:
    """Say which pods hold requests that do not move; bool[P].

    Where an engine counts neither gaps nor steps, its answer may just be a long one. One that counts nothing at all is
    never called stuck.
    """
    unseen = np.isnan(samples.gaps) & np.isnan(samples.steps)
    silent = np.all([np.isnan(getattr(samples, name)) for name in COUNTS], axis=0)
    patience_s = np.where(unseen, ANSWER_S, STUCK_S)
    long = progress.last_read_s - progress.last_moved_s >= patience_s
    return np.asarray(long & (progress.still >= STUCK_READINGS) & ~silent)


def tokens_per_s(progress: Progress) -> FloatColumn:
    """Return how fast each pod has written since it has had work; float64[P], NaN: without work or progress now.

    350 tokens/s in the 5 s since it began are 350, however quiet it was before.
    """
    working = (progress.worked_s > 0) & (progress.held > 0) & (progress.still == 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(working, progress.written / progress.worked_s, np.nan)


def _written(before: Progress, samples: PodSamples, held: FloatColumn) -> tuple[FloatColumn, FloatColumn, FloatColumn]:
    """Add what was written since the last reading, and its time; float64[P] each.

    Work that began in between may have begun at any moment of it, so what was written then only says the least. It is
    left out as soon as there is a better one.
    """
    step_s, grown = samples.time_s - before.last_read_s, samples.generation_tokens - before.tokens
    known = (step_s > 0) & (grown >= 0)
    begins = ~(before.held > 0)
    fade = np.where(known & ~begins & (before.began == 0), np.exp(-np.fmin(or_zero(step_s), 1e3) / RATE_WINDOW_S), 0.0)
    weight_s = np.where(known, RATE_WINDOW_S * -np.expm1(-step_s / RATE_WINDOW_S), 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        written = before.written * fade + np.where(known, grown * weight_s / step_s, 0.0)
    worked_s = before.worked_s * fade + weight_s
    at_work = known & ((held > 0) | (grown > 0))
    return np.where(at_work, written, 0.0), np.where(at_work, worked_s, 0.0), (begins & at_work).astype(np.float64)
