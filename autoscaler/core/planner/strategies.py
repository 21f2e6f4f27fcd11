"""The set of sizing strategies: the replicas that each of them requests for a given load average.

Most strategies hold the peak of a load average for some cold starts and add a safety margin. The others keep a constant
count. Load averages and their peaks are in `load_history`, what a strategy would have cost is in `shadow_fleets`.
"""

from __future__ import annotations

import zlib
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from autoscaler.core.table.columns import FloatColumn, IntColumn, or_zero

Float32Column = npt.NDArray[np.float32]
"""Values per strategy. They take most of the planner's memory, and seven digits are plenty for them."""

UPDATE_INTERVAL_S = 30.0
"""Time between two updates: two readings of an engine. More frequent updates cost more and decide no better."""

AVERAGES_S = np.array([20.0, 60.0, 240.0, 900.0])
"""Time constants of the load averages (EWMA of demand), seconds."""

PEAK_HOLDS = ((0, 10), (2, 10), (3, 3))
"""Pairs of a load average and the number of cold starts for which its peak is held.

Holding a peak is ski rental: a replica is kept about as long as starting another one costs. No hold is shorter than a
cold start, because a replica that is removed while it still loads was never of use.
"""

BASE_PEAK_HOLD = (1, 3)
"""The same for base replicas, which have a margin of one square root. Replicas beyond them are headroom."""

LONGEST_HOLD = max(hold for _, hold in PEAK_HOLDS)
"""In cold starts."""

MAX_UTILIZATION = 0.93
"""Share of its time for which a replica of a shadow fleet can serve. The miss curve says how many requests miss an
objective close to it."""

SHARE_MARGINS = np.array([0.25, 0.6, 1.1, 2.0], np.float32)[:, None]
"""Safety margins that are a share of the load average."""

ROOT_MARGINS = np.array([0.0, 0.25, 0.5, 1.0, 1.6, 2.4, 3.3, 4.5], np.float32)[:, None]
"""Safety margins in square roots of the load average (square-root staffing)."""

SHARE_MARGIN_COUNT = len(SHARE_MARGINS)
MARGIN_COUNT = SHARE_MARGIN_COUNT + len(ROOT_MARGINS)
"""Strategies of one peak hold are in this order: margins by share, then margins by square root."""

CONSTANT_COUNTS = np.array([1, 2, 3, 4, 6, 8, 11, 15, 20, 27, 36, 48, 64], np.float32)[:, None]
"""Replicas of the strategies with a constant count, each about a third more than the one before.

A margin that covers a morning on which load rises from 0.1 to 2 replicas would add far too much at 2 replicas.
"""

PEAK_STRATEGY_COUNT = len(PEAK_HOLDS) * MARGIN_COUNT
STRATEGY_COUNT = PEAK_STRATEGY_COUNT + len(CONSTANT_COUNTS)
"""Strategies with a peak hold and a margin come first, those with a constant count last."""

_FALLBACK_HOLD = PEAK_HOLDS.index((2, 10))
FALLBACK = _FALLBACK_HOLD * MARGIN_COUNT + SHARE_MARGIN_COUNT + ROOT_MARGINS.ravel().tolist().index(0.0)
"""The strategy that replaces a constant count where it requests more: the average over 240 s, without a margin."""

PEAK_STRATEGY_OF = np.where(np.arange(STRATEGY_COUNT) < PEAK_STRATEGY_COUNT, np.arange(STRATEGY_COUNT), FALLBACK)
"""int64[STRATEGY_COUNT], the strategy with a peak hold that sizes each strategy by load: itself, or the fallback."""

MIN_REPLICAS: FloatColumn = np.append(np.zeros(PEAK_STRATEGY_COUNT), CONSTANT_COUNTS).astype(np.float64)
"""float64[STRATEGY_COUNT], replicas that each strategy requests at any load."""

_MEMBERS = (
    AVERAGES_S.tolist(),
    PEAK_HOLDS,
    SHARE_MARGINS.tolist(),
    ROOT_MARGINS.tolist(),
    CONSTANT_COUNTS.tolist(),
    FALLBACK,
)
SIGNATURE = float(zlib.crc32(repr(_MEMBERS).encode()))
"""Checksum of the strategy set. State that another version stored about its strategies has another one."""

CONSERVATIVE = np.arange(STRATEGY_COUNT) // MARGIN_COUNT == PEAK_HOLDS.index((0, LONGEST_HOLD))
"""bool[STRATEGY_COUNT], the strategies with the fastest load average and the longest peak hold."""

ONE_ROOT_MARGIN = SHARE_MARGIN_COUNT + ROOT_MARGINS.ravel().tolist().index(1.0)
"""Row of the margin of one square root."""

STEADY_LIMIT = PEAK_HOLDS.index((0, LONGEST_HOLD)) * MARGIN_COUNT + ONE_ROOT_MARGIN
"""The conservative strategy that is enough for steady traffic: the peak of ten cold starts plus one square root."""

ROUNDING_TOLERANCE = 0.02
"""Replicas by which a fraction may exceed a whole number: 3.02 are 3."""

PRIOR_MISS_SHARE = 0.2
PRIOR_MARGIN_DECAY, PRIOR_HOLD_DECAY = 1.2, 0.48
"""The prior share of misses falls as exp(-decay x): x is the margin in square roots of the load, or √hold."""

PRIOR_CONSTANT_HOLD = 1
"""Cold starts of hold that the prior assumes for a constant count. With ten, a constant count would be selected before
its shadow fleet has seen a surge."""

_PRIOR_BY_HOLD = np.exp(-PRIOR_HOLD_DECAY * np.sqrt([hold for _, hold in PEAK_HOLDS]))[:, None, None]
_PRIOR_OF_CONSTANT = float(np.exp(-PRIOR_HOLD_DECAY * np.sqrt(PRIOR_CONSTANT_HOLD)))


class Strategy(NamedTuple):
    """The parameters of one sizing strategy."""

    average_s: float  # time constant of the load average
    hold: float  # cold starts for which its peak is held
    margin_share: float  # added share of the load average
    margin_roots: float  # added square roots of the load average
    min_replicas: float  # the constant count; 0: the strategy has none


def describe(strategy: int) -> Strategy:
    """Return the parameters of a strategy, given its row."""
    if strategy >= PEAK_STRATEGY_COUNT:
        return describe(FALLBACK)._replace(min_replicas=float(CONSTANT_COUNTS[strategy - PEAK_STRATEGY_COUNT, 0]))
    peak_hold, margin = divmod(strategy, MARGIN_COUNT)
    average, hold = PEAK_HOLDS[peak_hold]
    share = float(SHARE_MARGINS[margin, 0]) if margin < SHARE_MARGIN_COUNT else 0.0
    roots = 0.0 if margin < SHARE_MARGIN_COUNT else float(ROOT_MARGINS[margin - SHARE_MARGIN_COUNT, 0])
    return Strategy(float(AVERAGES_S[average]), hold, share, roots, 0.0)


def find_highest_load(strategy: IntColumn, replicas: FloatColumn) -> FloatColumn:
    """Return the highest load average for which a strategy requests at most this many replicas; float64[W].

    strategy: int64[W], of `PEAK_STRATEGY_OF`. With load average x, margin share s and r margin roots this solves
    (1 + s) x + r sqrt(x) = busy replicas.
    """
    margin = strategy % MARGIN_COUNT
    share = np.append(1 + SHARE_MARGINS, np.ones_like(ROOT_MARGINS))[margin].astype(np.float64)
    roots = np.append(np.zeros_like(SHARE_MARGINS), ROOT_MARGINS)[margin].astype(np.float64)
    busy = np.maximum((replicas + ROUNDING_TOLERANCE) * MAX_UTILIZATION, 0.0)
    return np.asarray(((np.sqrt(roots**2 + 4 * share * busy) - roots) / (2 * share)) ** 2)


def compute_replicas(peaks: npt.NDArray[np.floating], floor: FloatColumn, ceiling: FloatColumn) -> Float32Column:
    """Return the replicas that each strategy requests; float32[STRATEGY_COUNT, W], whole numbers.

    peaks: [J, W], held peak of each of `PEAK_HOLDS`. floor, ceiling: [W], replicas. NaN where the peak is unknown.
    """
    replicas = np.empty((STRATEGY_COUNT, len(floor)), np.float32)
    add_margins(peaks, floor, ceiling, replicas[:PEAK_STRATEGY_COUNT].reshape(len(PEAK_HOLDS), MARGIN_COUNT, -1))
    constant = np.maximum(replicas[FALLBACK], CONSTANT_COUNTS, out=replicas[PEAK_STRATEGY_COUNT:])
    np.minimum(constant, ceiling.astype(np.float32), out=constant)
    return replicas


def add_margins(
    peaks: npt.NDArray[np.floating], floor: FloatColumn, ceiling: FloatColumn, out: Float32Column | None = None
) -> Float32Column:
    """Return the replicas for each peak with each margin; float32[N, MARGIN_COUNT, W], whole numbers.

    peaks: [N, W]. floor, ceiling: [W], replicas. out: array to write to. NaN where the peak is unknown.
    """
    share = (peaks / MAX_UTILIZATION).astype(np.float32)[:, None]
    root = (np.sqrt(peaks) / MAX_UTILIZATION).astype(np.float32)[:, None]
    replicas = np.empty((len(peaks), MARGIN_COUNT, len(floor)), np.float32) if out is None else out
    without_margin = share - np.float32(ROUNDING_TOLERANCE)
    np.add(share * SHARE_MARGINS, without_margin, out=replicas[:, :SHARE_MARGIN_COUNT])
    np.add(root * ROOT_MARGINS, without_margin, out=replicas[:, SHARE_MARGIN_COUNT:])
    np.ceil(replicas, out=replicas)
    np.maximum(replicas, floor.astype(np.float32), out=replicas)
    return np.minimum(replicas, ceiling.astype(np.float32), out=replicas)


def compute_prior_misses(average: FloatColumn) -> FloatColumn:
    """Return the share of requests that the pessimistic prior assumes to miss; float64[STRATEGY_COUNT, W].

    average: float64[W], slowest load average, in replicas. The margin of a constant count is its excess over this.
    """
    average = np.maximum(or_zero(average), 0.05)
    roots = np.sqrt(average)
    in_roots = np.empty((MARGIN_COUNT, len(roots)))
    in_roots[:SHARE_MARGIN_COUNT], in_roots[SHARE_MARGIN_COUNT:] = SHARE_MARGINS * roots, ROOT_MARGINS
    by_margin = _PRIOR_BY_HOLD * np.exp(-PRIOR_MARGIN_DECAY * in_roots)
    beyond = np.maximum(MAX_UTILIZATION * CONSTANT_COUNTS - average, 0.0) / roots
    by_count = _PRIOR_OF_CONSTANT * np.exp(-PRIOR_MARGIN_DECAY * beyond)
    return np.asarray(PRIOR_MISS_SHARE * np.concatenate([by_margin.reshape(PEAK_STRATEGY_COUNT, -1), by_count]))
