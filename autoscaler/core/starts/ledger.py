"""The ledger of cold starts: the last starts of each workload by phase, and quantiles of what the next one takes.

The quantiles are those of a weighted sample, in logarithms. The newest start weighs 1 and each older one 0.9 times as
much as the next. A start in another cell (cache state, node group, loader) weighs a tenth, and its weights count by
their ratio to what the prior says for its cell. The prior itself counts as half a start, spread around the mean of what
was seen and the prior's own value. So one start already tells much, and other cells tell something.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autoscaler.core.model.phases import PHASES, Phase
from autoscaler.core.model.weights import PodCache
from autoscaler.core.starts.start_prior import IMAGE_THERE, PRIOR_SPREAD, SLOTS, WEIGHTS_ABSENT, WEIGHTS_HELD, Prior
from autoscaler.core.table.columns import BoolColumn, Columns, FloatColumn, IntColumn, Transient, or_zero, replace

Float32Column = npt.NDArray[np.float32]

ENTRIES = 16
"""Starts that are kept of each workload. The 17th would weigh 0.9^16 = 0.19 of the newest."""

DECAY = 0.9
OTHER_CELL = 0.1  # weight of a start in another cell
SIMILAR_CELL = 0.3  # likewise, if only the node group differs, or one of the cache states is unknown
PRIOR_STARTS = 0.5
LEAST_S = 0.1
QUANTILES = (0.5, 0.9)

TOTAL = np.array([phase for phase in Phase if phase is not Phase.FIRST_TOKEN])
"""The phases of a start until the pod is ready."""


@dataclass(frozen=True)
class Expected(Columns):
    """Quantiles of what the phases of the next start take, by state of its node, and what they were computed for."""

    p50_s: FloatColumn  # float64[SLOTS, W]
    p90_s: FloatColumn  # float64[SLOTS, W]
    mean_s: FloatColumn  # float64[W], mean of a whole start, whichever node it gets
    basis: FloatColumn  # float64[SLOTS + 3, W]: prior, loader, node group and stated cold start

    @classmethod
    def blank(cls, rows: int) -> Expected:
        unknown = np.full((SLOTS, rows), np.nan)
        return cls(unknown, unknown, np.full(rows, np.nan), np.full((SLOTS + 3, rows), np.nan))


@dataclass(frozen=True)
class Ledger(Columns):
    """The last starts of each workload, the newest first."""

    took_s: Float32Column  # float32[PHASES, ENTRIES, W], seconds of each phase; NaN: not part of that start
    cache: Float32Column  # float32[ENTRIES, W], PodCache; NaN: no start
    weights_prior_s: Float32Column  # float32[ENTRIES, W], seconds that the prior said for the weights of that start
    loader: Float32Column  # float32[ENTRIES, W], identity of the load format
    group: Float32Column  # float32[ENTRIES, W], identity of the node group; 0: unknown
    bare: Float32Column  # float32[ENTRIES, W], 1: its node was new and had no image; NaN: NODE tells
    expected: Transient[Expected]

    @classmethod
    def blank(cls, rows: int) -> Ledger:
        nothing = np.full((ENTRIES, rows), np.nan, np.float32)
        took_s = np.full((PHASES, ENTRIES, rows), np.nan, np.float32)
        return cls(took_s, nothing, nothing, nothing, nothing, nothing, Expected.blank(rows))

    @property
    def starts(self) -> IntColumn:
        """The number of starts of each workload, int64[W], up to ENTRIES."""
        return np.asarray((~np.isnan(self.cache)).sum(axis=0))

    def add(self, rows: IntColumn, took_s: FloatColumn, of_start: FloatColumn) -> Ledger:
        """Add one start to each of the given workloads.

        took_s: float64[PHASES, R]. of_start: float64[5, R]: cache, prior of the weights, loader, group, bare. A phase
        that took several times its 90th percentile counts for no more: a single long one may be a fault, not a start.
        """
        columns = {}
        for name, newest in (
            ("took_s", took_s),
            *zip(("cache", "weights_prior_s", "loader", "group", "bare"), of_start, strict=True),
        ):
            column = getattr(self, name).copy()
            column[..., 1:, rows] = column[..., :-1, rows]
            column[..., 0, rows] = newest
            columns[name] = column
        basis = self.expected.basis.copy()
        basis[:, rows] = np.nan  # computed again
        return replace(self, **columns, expected=replace(self.expected, basis=basis))

    def set_first_token(self, rows: IntColumn, took_s: FloatColumn) -> Ledger:
        """Set the time from ready to the first token of the newest start of workloads, unless it is known."""
        rows, took_s = (each[np.isnan(self.took_s[Phase.FIRST_TOKEN, 0, rows])] for each in (rows, took_s))
        if not len(rows):
            return self
        column, basis = self.took_s.copy(), self.expected.basis.copy()
        column[Phase.FIRST_TOKEN, 0, rows] = took_s
        basis[:, rows] = np.nan
        return replace(self, took_s=column, expected=replace(self.expected, basis=basis))

    def expect(self, prior: Prior, group: FloatColumn) -> Ledger:
        """Return the ledger with quantiles for this prior and node group; only those that changed are computed.

        group: float64[W], identity of the node group of the next replica; 0: unknown.
        """
        basis = np.vstack([prior.slots_s, prior.loader, group, or_zero(prior.stated_s)])
        rows = np.flatnonzero((basis != self.expected.basis).any(axis=0))
        if not len(rows):
            return self
        p50_s, p90_s, mean_s = (getattr(self.expected, name).copy() for name in ("p50_s", "p90_s", "mean_s"))
        for some in np.array_split(rows, -(-len(rows) // 1024)):  # arrays that fit the processor's cache
            p50_s[:, some], p90_s[:, some] = self._quantiles(some, basis[:, some])
            mean_s[some] = self._mean_s(some, basis[-1, some])
        return replace(self, expected=Expected(p50_s, p90_s, mean_s, basis))

    def _mean_s(self, rows: IntColumn, stated_s: FloatColumn) -> FloatColumn:
        """Return the mean of whole starts of some workloads, in any cell; float64[R], NaN: none seen or stated.

        The prior counts as half a start, around the mean of what was seen and of what the policy states. One start of
        240 s after 180 s were stated gives 233 s. stated_s: float64[R], 0: not stated.
        """
        starts_s = np.nansum(self.took_s[TOTAL][..., rows].astype(np.float64), axis=0)
        weight = np.where(np.isnan(self.cache[:, rows]), 0.0, DECAY ** np.arange(ENTRIES)[:, None])
        of_prior = np.where(stated_s > 0, PRIOR_STARTS, 0.0)
        every, seen_s = weight.sum(axis=0) + of_prior, (weight * starts_s).sum(axis=0)
        every = np.where(every > 0, every, np.nan)
        middle_s = (seen_s + of_prior * stated_s) / every
        return np.asarray((seen_s + of_prior * middle_s) / every)

    def _quantiles(self, rows: IntColumn, basis: FloatColumn) -> tuple[FloatColumn, FloatColumn]:
        """Return both quantiles of every slot for some workloads; float64[SLOTS, R] each."""
        took_s = self.took_s[..., rows].astype(np.float64)
        cache, weights_prior_s = self.cache[:, rows], self.weights_prior_s[:, rows].astype(np.float64)
        loader = basis[SLOTS].astype(np.float32)
        group = basis[SLOTS + 1].astype(np.float32)
        same_group = (self.group[:, rows] == group) | (self.group[:, rows] == 0) | (group == 0)
        by_group = np.where(same_group, 1.0, SIMILAR_CELL)
        by_loader = np.where(self.loader[:, rows] == loader, 1.0, OTHER_CELL)
        on_new_node = np.where(np.isnan(self.bare[:, rows]), ~np.isnan(took_s[Phase.NODE]), self.bare[:, rows] > 0)
        p50_s, p90_s = np.empty((2, SLOTS, len(rows)))
        for slot, (phase, state) in enumerate(_SLOTS):
            similar, values = np.ones(cache.shape), took_s[phase]
            if phase is Phase.IMAGE:
                similar = np.where(on_new_node == (slot != IMAGE_THERE), by_group, 0.0)
            elif phase is Phase.WEIGHTS:
                similar = _by_cache(cache, state) * by_loader * by_group
                values = values / weights_prior_s * basis[slot]
            elif phase is Phase.ENGINE:
                similar = by_group
            p50_s[slot], p90_s[slot] = _weighted_quantiles(values, similar, basis[slot])
        return p50_s, np.maximum(p90_s, p50_s)


_SLOTS = (
    *((phase, PodCache.UNKNOWN) for phase in Phase),
    (Phase.IMAGE, PodCache.UNKNOWN),
    (Phase.WEIGHTS, PodCache.ABSENT),
    (Phase.WEIGHTS, PodCache.HELD),
)
"""Phase and cache state of each slot."""

_SLOT_OF_CACHE = np.array([Phase.WEIGHTS, WEIGHTS_ABSENT, WEIGHTS_HELD])  # by PodCache

ON_OLD_NODE = [
    [Phase.SCHEDULE, IMAGE_THERE, Phase.CONTAINER, int(weights), Phase.ENGINE, Phase.READY]
    for weights in _SLOT_OF_CACHE
]
"""Slots of the phases until ready on a node that existed before, by PodCache."""


def select(
    slots: FloatColumn, rows: IntColumn, cache: IntColumn, new_node: BoolColumn, bare: BoolColumn | None = None
) -> FloatColumn:
    """Return the phases of starts in a state from a table by slot; float64[PHASES, N].

    slots: float64[SLOTS, W]. rows: int64[N], workloads. NODE is 0 on a node that existed before, SCHEDULE on a new one.
    bare: bool[N], the node has no image; None: so it is on a new node, and not on others.
    """
    chosen = slots[:PHASES, rows]
    chosen[Phase.NODE] = np.where(new_node, chosen[Phase.NODE], 0.0)
    chosen[Phase.SCHEDULE] = np.where(new_node, 0.0, chosen[Phase.SCHEDULE])
    chosen[Phase.IMAGE] = np.where(new_node if bare is None else bare, chosen[Phase.IMAGE], slots[IMAGE_THERE, rows])
    chosen[Phase.WEIGHTS] = slots[_SLOT_OF_CACHE[cache], rows]
    return chosen


def split(total_s: FloatColumn, p50_s: FloatColumn, p90_s: FloatColumn) -> FloatColumn:
    """Divide the time of several phases among them; float64[K, N].

    total_s: float64[N]. p50_s, p90_s: float64[K, N], what they should take. The difference goes to those that vary
    most, by variance: the mean of independent normal variables whose sum is known. 60 s for phases of 10 to 12 s and
    of 30 to 70 s give about 10 s and 50 s.
    """
    variance = np.maximum(p90_s - p50_s, 1e-3) ** 2
    parts_s = p50_s + variance / variance.sum(axis=0) * (total_s - p50_s.sum(axis=0))
    parts_s = np.maximum(parts_s, 0.02 * total_s)
    return np.asarray(parts_s * (total_s / np.maximum(parts_s.sum(axis=0), 1e-9)))


def _by_cache(cache: Float32Column, state: PodCache) -> FloatColumn:
    """Return how much starts in other cache states count for one in this state; float64[ENTRIES, R]."""
    if state is PodCache.UNKNOWN:
        return np.ones(cache.shape)
    either_unknown = np.where(cache == PodCache.UNKNOWN, SIMILAR_CELL, OTHER_CELL)
    return np.where(cache == state, 1.0, either_unknown)


def _weighted_quantiles(values: FloatColumn, similar: FloatColumn, prior: FloatColumn) -> tuple[FloatColumn, ...]:
    """Return the quantiles of starts and prior together, one column for each of QUANTILES; float64[R].

    values: float64[ENTRIES, R], seconds; NaN: none. similar: float64[ENTRIES, R], 0..1. prior: float64[R], seconds.
    """
    similar = np.where(np.isnan(values), 0.0, similar)
    same = similar == 1.0
    older = np.where(same, np.cumsum(same, axis=0) - 1, np.arange(len(values))[:, None])
    weight = similar * DECAY**older
    known = weight > 0
    logs = np.log(np.where(known, np.maximum(values, LEAST_S), 1.0))
    middle = (weight * logs).sum(axis=0) + PRIOR_STARTS * np.log(np.maximum(prior, LEAST_S))
    middle = middle / (weight.sum(axis=0) + PRIOR_STARTS)
    points = middle + PRIOR_SPREAD * np.array([-1.0, 0.0, 1.0])[:, None]
    every = np.concatenate([np.where(known, logs, middle), points])
    weights = np.concatenate([weight, np.full(points.shape, PRIOR_STARTS / len(points))])
    order = np.argsort(every, axis=0)
    every, weights = np.take_along_axis(every, order, axis=0), np.take_along_axis(weights, order, axis=0)
    below = np.cumsum(weights, axis=0)
    rank = (below - weights / 2) / below[-1]
    return tuple(np.exp(_interpolate(fraction, rank, every)) for fraction in QUANTILES)


def _interpolate(fraction: float, rank: FloatColumn, values: FloatColumn) -> FloatColumn:
    """Return the value at a rank, by linear interpolation in each column. rank: float64[K, R], ascending."""
    column = np.arange(rank.shape[1])
    upper = np.minimum((rank < fraction).sum(axis=0), len(rank) - 1)
    lower = np.maximum(upper - 1, 0)
    width = rank[upper, column] - rank[lower, column]
    share = np.where(width > 0, (fraction - rank[lower, column]) / np.where(width > 0, width, 1.0), 1.0)
    share = np.clip(share, 0.0, 1.0)
    return np.asarray(values[lower, column] + share * (values[upper, column] - values[lower, column]))
