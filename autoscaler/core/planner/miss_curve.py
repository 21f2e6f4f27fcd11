"""How likely a request misses its objective on replicas that are so busy: learned, with a prior.

The share is kept in bins of demand over replicas, for TTFT and ITL each, older requests fading. Each bin begins with a
few requests of a prior curve, so that it says something before it was seen and is soon outweighed. How steeply that
curve rises is learned from all bins together: loads that were never seen are judged by those that were.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.core.planner.interval import Seen
from autoscaler.core.planner.offered_load import Traffic, queued_s
from autoscaler.core.planner.pod_work import Tally
from autoscaler.core.table.columns import Columns, FloatColumn, cache_sized_slices, clip, or_zero

BINS = 16
WIDTH = 1 / BINS  # of demand over replicas: the last bin holds all beyond 1, too

KINDS = 2
"""First axis of the counts: TTFT, ITL."""

STEEPNESS = np.array([0.0005, 0.003, 0.01, 0.04, 0.15, 0.5])
"""How steeply misses may rise with the load: the smaller, the more requests a replica serves at once. With the
flattest, that of requests at random in batches of a hundred and more, 0.2 % miss at 0.85."""

_LOADS = WIDTH * (np.arange(BINS) + 0.5)
SHAPES = np.minimum(STEEPNESS[:, None] * _LOADS**2 / (1 - _LOADS), 1.0)
"""The curve of each steepness, float64[STEEPNESS, BINS]: neighbours make misses in proportion to what each does and to
how many there are, and beside a full replica they queue. Of 0.15: 0.8 % at 0.2, 7.5 % at 0.5, 48 % at 0.8."""

ANYWHERE = 0.001
"""Share that may miss at any load, such as those that all meet a replica which has just become ready."""

_EXPECTED = np.clip(SHAPES, ANYWHERE, 1 - ANYWHERE).T[..., None, None]
_IF_MISSED, _IF_MET = np.log(_EXPECTED), np.log(1 - _EXPECTED)
"""What a request that missed, and one that met, tells of each steepness; float64[BINS, STEEPNESS, 1, 1] each."""

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

QUEUED_S = 0.5
"""With more work in the queue than each replica does in so long, misses are those of the queue, not of the load."""


@dataclass(frozen=True)
class Loads(Columns):
    """What was seen of each load, fading. B bins."""

    missed: FloatColumn  # float64[KINDS, B, W], requests
    seen: FloatColumn  # float64[KINDS, B, W], all of which it is known whether they missed
    prefill_judged: FloatColumn  # float64[W], requests at such loads of which it was told how long their prompt took
    prefill_late: FloatColumn  # float64[W], those whose prompt alone took longer than TTFT may be
    unavoidable: FloatColumn  # float64[W], share that misses on any number of replicas

    @classmethod
    def blank(cls, rows: int) -> Loads:
        by_load, none = np.zeros((KINDS, BINS, rows)), np.zeros(rows)
        return cls(by_load, by_load, none, none, none)


def watch(loads: Loads, seen: Seen, traffic: Traffic, step_s: FloatColumn) -> tuple[Loads, FloatColumn]:
    """Learn how the load makes requests miss. step_s: float64[W]; 0: nothing is known of it.

    Also returns the share that misses by bin of the load, float64[B, W]. A queue is modelled on its own, so what misses
    while one stands tells nothing of the load.
    """
    tally = seen.tally
    with np.errstate(divide="ignore", invalid="ignore"):
        load = traffic.demand / np.maximum(seen.served, 1.0)
        waited = seen.waiting - np.minimum(tally.queue_grown, 0.0)  # now or then: TTFT is told once a wait is over
    plain = (step_s > 0) & (load < 1.2) & ~(queued_s(traffic, seen, waited) > QUEUED_S)
    new = learn(loads.missed, loads.seen, np.where(plain, load, np.nan), *told(tally), step_s)
    fade = np.exp(-step_s / FADE_S)
    judged = loads.prefill_judged * fade + np.where(plain, tally.prefill_judged, 0.0)
    late = loads.prefill_late * fade + np.where(plain, tally.prefill_late, 0.0)
    likely, at_any_load = by_load(*new, late, judged)
    return Loads(*new, judged, late, at_any_load), likely


def told(tally: Tally) -> tuple[FloatColumn, FloatColumn]:
    """Return requests that missed, and all of which it is known whether they did; float64[KINDS, W] each."""
    return np.array([tally.ttft_missed, tally.itl_missed]), np.array([tally.ttft_judged, tally.itl_judged])


def bin_of(load: FloatColumn) -> FloatColumn:
    """Return the bin of demand over replicas; whole numbers."""
    return clip(np.floor(load / WIDTH), 0, BINS - 1)


def learn(
    missed: FloatColumn,
    seen: FloatColumn,
    load: FloatColumn,
    new_missed: FloatColumn,
    new: FloatColumn,
    passed_s: FloatColumn,
) -> tuple[FloatColumn, FloatColumn]:
    """Add requests that were served at a load; returns the counts of missed and of all, float64[KINDS, B, W] each.

    missed, seen: as returned; load, passed_s: float64[W]; new_missed, new: float64[KINDS, W]. Where the load is not
    known nothing is added.
    """
    fade = np.exp(-passed_s / FADE_S)
    missed, seen = missed * fade, seen * fade
    rows = np.flatnonzero(~np.isnan(load))
    place = bin_of(load[rows]).astype(np.int64)
    missed[:, place, rows] += new_missed[:, rows]
    seen[:, place, rows] += new[:, rows]
    return missed, seen


def by_load(
    missed: FloatColumn, seen: FloatColumn, prefill_late: FloatColumn, prefill_seen: FloatColumn
) -> tuple[FloatColumn, FloatColumn]:
    """Return the share that misses at each load beyond what is unavoidable, float64[B, W], and that, float64[W].

    What is given is as in `unavoidable`.
    """
    at_any_load = unavoidable(missed, seen, prefill_late, prefill_seen)
    of_either = either(at_any_load)
    return np.maximum(curve(missed, seen, at_any_load) - of_either, 0.0), of_either


def curve(missed: FloatColumn, seen: FloatColumn, at_any_load: FloatColumn) -> FloatColumn:
    """Return the share that misses either objective, by bin; float64[B, W], never falling with the load.

    at_any_load: float64[KINDS, W], of `unavoidable`.

    Bins that contradict the order are pooled, each with the weight of what was seen in it (isotonic regression). A bin
    has the highest, over all runs that begin at it or before, of the lowest mean with which they go on beyond it. An
    objective of which nobody tells, as there is none or the engine is silent, is not missed.
    """
    none = np.zeros_like(seen[:, :1])
    weight = np.concatenate([none, np.cumsum(seen + PRIOR_REQUESTS, axis=1)], axis=1)
    likely = PRIOR_REQUESTS * believed(missed, seen, at_any_load)
    total = np.concatenate([none, np.cumsum(missed + likely, axis=1)], axis=1)
    pooled, lowest = np.empty_like(seen), np.full_like(seen, np.inf)
    for some in cache_sized_slices(BINS, seen.size):  # of the bins that runs end at, the last ones first
        begin, end = max(BINS - some.stop, 0), BINS - some.start
        gained, of = (sums[:, begin + 1 : end + 1, None] - sums[:, None, :end] for sums in (total, weight))
        with np.errstate(invalid="ignore"):
            mean = gained / of  # also of runs that would end before they begin, which are passed over
        for last in reversed(range(begin, end)):
            lowest = np.minimum(lowest[:, : last + 1], mean[:, last - begin, : last + 1])
            pooled[:, last] = lowest.max(axis=1)
    told = seen.sum(axis=1) > 0
    return either(np.where((told | ~told.any(axis=0))[:, None], pooled, 0.0))


def believed(missed: FloatColumn, seen: FloatColumn, at_any_load: FloatColumn) -> FloatColumn:
    """Return the curve that loads which were seen suggest for those which were not; float64[KINDS, B, W].

    The mean of the curves of all steepnesses, each by how likely it makes what was seen: who misses nothing at 0.8
    misses little at 0.9. What misses at any load tells nothing of that.
    """
    missed = np.maximum(missed - at_any_load[:, None] * seen, 0.0)
    by_bin, met_by_bin = (each.swapaxes(0, 1)[:, None] for each in (missed, seen - missed))
    told = np.zeros((len(STEEPNESS), *missed[:, 0].shape))
    for some in cache_sized_slices(BINS, told.size):
        for each in _IF_MISSED[some] * by_bin[some] + _IF_MET[some] * met_by_bin[some]:
            told += each  # by hand: a sum of numpy differs with the number of rows
    likely = np.exp((told - told.max(axis=0)) / CLUSTER)
    share = np.zeros_like(missed)
    for shape, weight in zip(SHAPES, likely / likely.sum(axis=0), strict=True):
        share += shape[:, None] * weight[:, None]
    return np.minimum(share + at_any_load[:, None], 1.0)


def unavoidable(
    missed: FloatColumn, seen: FloatColumn, prefill_late: FloatColumn, prefill_seen: FloatColumn
) -> FloatColumn:
    """Return the share that misses however many replicas there are; float64[KINDS, W].

    prefill_late, prefill_seen: float64[W], requests whose prompt alone took longer to compute than TTFT may be, of so
    many of which that was told. This share says it at once, and hardly changes with the load. Where it is not told, or
    what misses is something else, it is learned from the load: neighbours make misses in proportion to it while it is
    low, so the rest is where a line through the low bins meets the axis. 2 % missed at 0.1 and 2 % at 0.4 are 2 %, 1 %
    and 4 % are none. Requests at no load that missed nothing are assumed, so that many must tell, within a day; or many
    misses, within the hour where a tenth misses: of what is two standard errors above nothing nearly all is believed.
    And no more misses at any load than did at the one where the fewest did: a burst of seconds within a reading that is
    calm on the whole bends the line.
    """
    load = _LOADS[:LOW_BINS, None]
    missed, seen = missed[:, :LOW_BINS], seen[:, :LOW_BINS]
    of, at, squared = seen.sum(axis=1), (seen * load).sum(axis=1), (seen * load**2).sum(axis=1)
    total, weighed = missed.sum(axis=1), (missed * load).sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        spread = of * squared - at**2
        share = (squared * total - at * weighed) / spread
        variance = CLUSTER * total / of * squared / spread  # of a count: not 0 where all of a few missed
        of_that = np.maximum(spread / (spread + UNLOADED_REQUESTS * squared), 1 - (variance / share**2) ** 2)
    too_long = np.where(prefill_seen >= FEWEST_PROMPTS, prefill_late / np.maximum(prefill_seen, 1.0), 0.0)
    least = ((missed + CLUSTER) / (seen + CLUSTER)).min(axis=1)
    ttft, itl = clip(np.minimum(or_zero(share * of_that), least), 0.0, 1.0)
    return np.array([np.maximum(ttft, too_long), itl])


def either(of_kinds: FloatColumn) -> FloatColumn:
    """Return how many miss at least one, of those that miss each; float64[KINDS, ...] to float64[...].

    Nobody tells how many miss both. It is between none and all of the fewer: half is taken. No more than all miss.
    """
    ttft, itl = of_kinds
    return np.asarray(np.minimum(np.maximum(ttft, itl) + np.minimum(ttft, itl) / 2, 1.0))
