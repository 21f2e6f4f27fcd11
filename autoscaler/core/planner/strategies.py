"""The set of sizing strategies: base-stock levels with a square-root safety stock.

For a predicted load P, in busy replicas, a strategy requests

    max(constant count, (P + share x P + roots x √P) / maximum utilization) replicas.

Predictions are in `load_history`. What a strategy would have cost is in `shadow_fleets`.
"""

from __future__ import annotations

import zlib
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from autoscaler.core.measure.capacity import compute_carried_load, count_carrying
from autoscaler.core.table.columns import FloatColumn, IntColumn, or_zero

Float32Column = npt.NDArray[np.float32]
"""Values per strategy. They take most of the planner's memory, and seven digits are plenty for them."""

UPDATE_INTERVAL_S = 30.0
"""Time between two updates: two readings of an engine. More frequent updates cost more and decide no better."""

AVERAGES_S = np.array([20.0, 60.0, 240.0])
"""Time constants of the load averages (EWMA of demand), seconds."""

PEAK_HOLDS = ((0, 10), (2, 10), (2, 3))
"""A prediction is the peak of a load average over some cold starts: pairs of the average and the cold starts.
Holding a peak is ski rental: a replica is kept about as long as starting another one costs. No hold is shorter than a
cold start, because a replica that is removed while it still loads was never of use."""

SEASONAL = 2
"""The prediction that is also no lower than the load of a day and of a week ago, over the next cold start."""

BASE_PEAK_HOLD = (1, 3)
"""The peak hold of base replicas, which have a margin of one square root. Replicas beyond them are headroom."""

LONGEST_HOLD = max(hold for _, hold in PEAK_HOLDS)
"""In cold starts."""

MARGINS = ((0.0, 0.0), (0.0, 0.25), (0.0, 0.5), (0.0, 1.0), (0.0, 2.4), (1.1, 0.0))
"""Safety margins: a share of the load, and square roots of it (square-root staffing)."""

CONSTANTS, COUNT_STEP, COUNTS_BELOW = 19, 1.185, 4
"""Constant counts of a workload; each is one more than the one before, or a fifth more. At most four are below its mean
load, so the largest is some ten times that. A margin that covers a rise from 0.1 to 2 replicas, or from 30 to 90, would
add far too much from then on."""

LADDER = np.array([*accumulate(range(70), lambda count, _: max(count + 1, round(COUNT_STEP * count)), initial=2)])
CONSTANT_COUNTS = tuple(LADDER[:CONSTANTS].tolist())
"""All constant counts, 71, 84 and so on, and those of a small workload: 2 to 9, 11, 13, 15, 18, 21, 25, ... 51, 60."""

ROUNDING_TOLERANCE = 0.02
"""Replicas by which a fraction may exceed a whole number: 3.02 are 3."""

PRIOR_MISS_SHARE = 0.2
PRIOR_MARGIN_DECAY, PRIOR_HOLD_DECAY = 1.2, 0.48
"""The prior share of misses falls as exp(-decay x): x is the margin in square roots of the load, or √hold."""


class Strategy(NamedTuple):
    """The parameters of one sizing strategy."""

    prediction: int  # row of `PEAK_HOLDS`
    margin_share: float  # added share of the load
    margin_roots: float  # added square roots of the load
    min_replicas: int  # the constant count of a small workload; 0: the strategy has none

    @property
    def average_s(self) -> float:
        """The time constant of the load average."""
        return float(AVERAGES_S[PEAK_HOLDS[self.prediction][0]])

    @property
    def hold(self) -> float:
        """The cold starts for which its peak is held."""
        return PEAK_HOLDS[self.prediction][1]


STRATEGIES = (
    *(Strategy(prediction, *margin, 0) for prediction in range(len(PEAK_HOLDS)) for margin in MARGINS),
    *(Strategy(PEAK_HOLDS.index((2, 10)), 0.0, 0.0, count) for count in CONSTANT_COUNTS),
)
"""M strategies; those with a constant count come last. The counts are those of a small workload."""

SIGNATURE = float(zlib.crc32(repr((AVERAGES_S.tolist(), PEAK_HOLDS, SEASONAL, STRATEGIES)).encode()))
"""Checksum of the strategy set. State that another version stored about its strategies has another one."""

PREDICTION = np.array([each.prediction for each in STRATEGIES])
"""int64[M], the prediction of each strategy."""

IS_SEASONAL = PREDICTION == SEASONAL
"""bool[M], the strategies that need the load of a day ago."""

STEADY_LIMIT = STRATEGIES.index(Strategy(PEAK_HOLDS.index((0, LONGEST_HOLD)), 0.0, 1.0, 0))
"""The strategy that is enough for steady traffic: the peak of ten cold starts plus one square root."""

_BY_MARGIN = np.array([each.prediction * len(MARGINS) + MARGINS.index(each[1:3]) for each in STRATEGIES])
_, _SHARE, _ROOTS, MIN_REPLICAS = np.array(STRATEGIES, np.float32).T[..., None]  # [M, 1] each
# A hold of ten cold starts would select a constant count before it saw a surge.
_PRIOR_HOLDS = np.array([[1.0 if each.min_replicas else each.hold] for each in STRATEGIES])
_PRIOR_BY_HOLD = PRIOR_MISS_SHARE * np.exp(-PRIOR_HOLD_DECAY * np.sqrt(_PRIOR_HOLDS))


def find_highest_load(strategy: IntColumn, replicas: FloatColumn) -> FloatColumn:
    """Return the highest load for which a strategy, int64[W], requests at most this many replicas; float64[W].

    With load x, margin share s and r margin roots this solves (1 + s) x + r √x = busy replicas.
    """
    share, roots = 1 + _SHARE[strategy, 0].astype(np.float64), _ROOTS[strategy, 0].astype(np.float64)
    busy = compute_carried_load(np.maximum(replicas + ROUNDING_TOLERANCE, 0.0))
    return np.asarray(((np.sqrt(roots**2 + 4 * share * busy) - roots) / (2 * share)) ** 2)


def compute_replicas_of(strategy: IntColumn, count: Float32Column, load: Float32Column) -> Float32Column:
    """Return the replicas that one strategy of each workload requests for a load; float32[B, W], 0 for none.

    strategy: int64[W]. count: float32[W], its constant count. load: float32[B, W]; NaN stays.
    """
    replicas = add_margin(load, _SHARE[strategy, 0], _ROOTS[strategy, 0])
    return np.where(replicas > 0, np.maximum(replicas, count), replicas)


def compute_replicas(
    predicted: Float32Column, counts: Float32Column, floor: FloatColumn, ceiling: FloatColumn
) -> Float32Column:
    """Return the replicas that each strategy requests; float32[M, W], whole numbers.

    predicted: float32[J, W], load; NaN: unknown. counts: float32[M, W]. floor, ceiling: [W], replicas.
    """
    share, roots = np.array(MARGINS, np.float32).T[..., None]
    by_margin = add_margin(predicted[:, None], share, roots)  # [J, margins, W]
    replicas = by_margin.reshape(-1, predicted.shape[-1])[_BY_MARGIN]
    np.maximum(replicas, np.maximum(counts, floor.astype(np.float32)), out=replicas)
    return np.asarray(np.minimum(replicas, ceiling.astype(np.float32), out=replicas))


def add_margin(load: Float32Column, share: Float32Column | float, roots: Float32Column | float) -> Float32Column:
    """Return the replicas for a load and a safety margin; float32, whole numbers, NaN where the load is unknown."""
    busy = (load + share * load + roots * np.sqrt(load)).astype(np.float32, copy=False)
    return np.asarray(np.ceil(count_carrying(busy) - np.float32(ROUNDING_TOLERANCE)))


def compute_prior_misses(average: FloatColumn, counts: Float32Column) -> FloatColumn:
    """Return the share of requests that the pessimistic prior assumes to miss; float64[M, W].

    average: float64[W], the slowest, in replicas. counts: float32[M, W]; the margin of a count is its excess over this.
    """
    average = np.maximum(or_zero(average), 0.05)
    margin = np.maximum(_SHARE * average, compute_carried_load(counts) - average)
    return np.asarray(_PRIOR_BY_HOLD * np.exp(-PRIOR_MARGIN_DECAY * (margin / np.sqrt(average) + _ROOTS)))
