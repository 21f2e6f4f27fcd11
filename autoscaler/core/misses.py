"""How likely a request misses its objective on replicas that are so busy: learned, with a prior.

The share is kept in bins of demand over replicas, for TTFT and ITL each, older requests fading. Each bin begins with a
few requests of a prior curve, so that it says something before it was seen and is soon outweighed. Where that curve
begins to rise is learned from all bins together: loads that were never seen are judged by those that were.
"""

from __future__ import annotations

import numpy as np

from autoscaler.core.columns import FloatColumn, or_zero

BINS = 16
WIDTH = 1 / BINS  # of demand over replicas: the last bin holds all beyond 1, too

KINDS = 2
"""First axis of the counts: TTFT, ITL."""

KNEES = np.array([0.6, 0.75, 0.88])
"""From which load on requests may begin to miss: later, the more of them a replica serves at once."""

SHAPES = np.clip((WIDTH * (np.arange(BINS) + 0.5) - KNEES[:, None]) / (1 - KNEES[:, None]), 0.0, 1.0) ** 4
"""The curve of each knee, float64[KNEES, BINS]. Of 0.6: 2 % at 0.75, half at 0.94."""

ANYWHERE = 0.003
"""Share that may miss at any load, such as those that all meet a replica which has just become ready."""

CLUSTER = 20.0
"""Requests that tell as much as one would alone: neighbours miss together."""

PRIOR_REQUESTS = 30.0

LOW_BINS = 8
"""In which misses grow in proportion to the load: below a half."""

UNLOADED_REQUESTS = 1000.0
"""Assumed to have been served on idle replicas, without a miss."""

FEWEST_PROMPTS = 100.0
"""Before the share of those that took too long is believed."""

FADE_S = 86_400.0
"""Time constant with which what was seen is forgotten."""


def bin_of(load: FloatColumn) -> FloatColumn:
    """Return the bin of demand over replicas; whole numbers."""
    return np.asarray(np.clip(np.floor(load / WIDTH), 0, BINS - 1))


def learn(
    missed: FloatColumn,
    seen: FloatColumn,
    load: FloatColumn,
    new_missed: FloatColumn,
    new: FloatColumn,
    passed_s: FloatColumn,
) -> tuple[FloatColumn, FloatColumn]:
    """Add requests that were served at a load; returns the counts of missed and of all, float64[KINDS, B, W] each.

    load, passed_s: float64[W]; new_missed, new: float64[KINDS, W]. Where the load is not known nothing is added.
    """
    fade = np.exp(-passed_s / FADE_S)
    missed, seen = missed * fade, seen * fade
    rows = np.flatnonzero(~np.isnan(load))
    place = bin_of(load[rows]).astype(np.int64)
    missed[:, place, rows] += new_missed[:, rows]
    seen[:, place, rows] += new[:, rows]
    return missed, seen


def curve(missed: FloatColumn, seen: FloatColumn) -> FloatColumn:
    """Return the share that misses either objective, by bin; float64[B, W], never falling with the load.

    Bins that contradict the order are pulled together: half way between the largest to the left and the smallest to
    the right, which is what pooling them would give if they weighed the same.
    """
    rising = (missed + PRIOR_REQUESTS * _believed(missed, seen)) / (seen + PRIOR_REQUESTS)
    falling = rising.copy()
    for place in range(1, BINS):  # by hand: `accumulate` is slow on an axis that is not the last
        np.maximum(rising[:, place], rising[:, place - 1], out=rising[:, place])
        np.minimum(falling[:, -1 - place], falling[:, -place], out=falling[:, -1 - place])
    return either((rising + falling) / 2)


def _believed(missed: FloatColumn, seen: FloatColumn) -> FloatColumn:
    """Return the curve that loads which were seen suggest for those which were not; float64[KINDS, B, W].

    The mean of the curves of all knees, each by how likely it makes what was seen: who misses nothing at 0.8 begins to
    miss later than at 0.6.
    """
    expected = np.clip(SHAPES, ANYWHERE, 1 - ANYWHERE)
    told = np.tensordot(np.log(expected), missed, (1, 1)) + np.tensordot(np.log(1 - expected), seen - missed, (1, 1))
    likely = np.exp((told - told.max(axis=0)) / CLUSTER)  # float64[KNEES, KINDS, W]
    return np.moveaxis(np.tensordot(SHAPES, likely / likely.sum(axis=0), (0, 0)), 0, 1)


def unavoidable(
    missed: FloatColumn, seen: FloatColumn, prefill_late: FloatColumn, prefill_seen: FloatColumn
) -> FloatColumn:
    """Return the share that misses however many replicas there are; float64[W].

    prefill_late, prefill_seen: float64[W], requests whose prompt alone took longer to compute than TTFT may be, of so
    many of which that was told. This share says it at once, and hardly changes with the load. Where it is not told, or
    what misses is something else, it is learned from the load, within a day: neighbours make misses in proportion to it
    while it is low, so the rest is where a line through the low bins meets the axis. 2 % missed at 0.1 and 2 % at 0.4
    are 2 %, 1 % and 4 % are none. Requests at no load that missed nothing are assumed, so that many must tell.
    """
    load = (WIDTH * (np.arange(LOW_BINS) + 0.5))[:, None]
    missed, seen = missed[:, :LOW_BINS], seen[:, :LOW_BINS]
    at, squared = (seen * load).sum(axis=1), (seen * load**2).sum(axis=1)
    total, weighed = missed.sum(axis=1), (missed * load).sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = (squared * total - at * weighed) / ((seen.sum(axis=1) + UNLOADED_REQUESTS) * squared - at**2)
    too_long = np.where(prefill_seen >= FEWEST_PROMPTS, prefill_late / np.maximum(prefill_seen, 1.0), 0.0)
    ttft, itl = np.clip(or_zero(share), 0.0, 1.0)
    return either(np.stack([np.maximum(ttft, too_long), itl]))


def either(of_kinds: FloatColumn) -> FloatColumn:
    """Return how many miss at least one, of those that miss each; float64[KINDS, ...] to float64[...].

    Nobody tells how many miss both. It is between none and all of the fewer: half is taken. No more than all miss.
    """
    ttft, itl = of_kinds
    return np.asarray(np.minimum(np.maximum(ttft, itl) + np.minimum(ttft, itl) / 2, 1.0))
