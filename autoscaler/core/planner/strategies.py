"""The family of rules: what each asks for, given the level of demand.

Most rules take the level of demand over some time, hold its peak for some cold starts, and add a margin: a predictor
and a margin. The others ask for a constant count. Levels and their peaks are in `levels`, what becomes of a rule is in
`paper`, which is followed in `rules`.
"""

from __future__ import annotations

import zlib
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from autoscaler.core.table.columns import FloatColumn, IntColumn, or_zero

PaperColumn = npt.NDArray[np.float32]
"""What is kept for each rule: the large part of it all, for which seven digits are plenty."""

LEVELS_S = np.array([20.0, 60.0, 240.0, 900.0])
"""Time constants of the level of demand."""

PREDICTORS = ((0, 10), (2, 10), (3, 3))
"""Which level, and for how many cold starts its peak is held: ski rental, in which a replica is kept about as long as
another costs. At least for one: what is given up while it still loads was never of use."""

OF_LOAD = (1, 3)
"""Likewise, of what the load that is there needs: with one root on top. What a rule asks for beyond it is a reserve."""

LONGEST_HOLD = max(hold for _, hold in PREDICTORS)

MOST_BUSY = 0.93
"""Share of its time that a replica can serve on paper. How many miss near it, for their queue or for the gaps between
their tokens, the curve of `misses` says."""

SHARE_MARGINS = np.array([0.25, 0.6, 1.1, 2.0], np.float32)[:, None]
"""Margins on the level that are a share of it."""

ROOT_MARGINS = np.array([0.0, 0.25, 0.5, 1.0, 1.6, 2.4, 3.3, 4.5], np.float32)[:, None]
"""Margins of so many times its square root (square-root staffing); none where load is steady."""

BY_SHARE = len(SHARE_MARGINS)
MARGINS = BY_SHARE + len(ROOT_MARGINS)
"""So many are by share, and so many in all: the row order of what is kept for each rule."""

COUNTS = np.array([1, 2, 3, 4, 6, 8, 11, 15, 20, 27, 36, 48, 64], np.float32)[:, None]
"""Constant counts, each about a third more than the one before. No margin covers a morning that goes from a tenth of a
replica to two without adding far too much to the two."""

BY_MARGIN = len(PREDICTORS) * MARGINS
RULES = BY_MARGIN + len(COUNTS)
"""So many rules have a predictor and a margin, and so many there are in all: constant counts come last."""

STEADY_PREDICTOR = PREDICTORS.index((2, 10))
STEADY = STEADY_PREDICTOR * MARGINS + BY_SHARE + ROOT_MARGINS.ravel().tolist().index(0.0)
"""The rule that a constant count gives way to where it asks for more: the level of four minutes, without a margin."""

BY_LEVEL = np.where(np.arange(RULES) < BY_MARGIN, np.arange(RULES), STEADY)
"""int64[RULES], the rule that each is where a level asks for the replicas."""

LEAST: FloatColumn = np.append(np.zeros(BY_MARGIN), COUNTS).astype(np.float64)
"""float64[RULES], replicas that each asks for whatever comes."""

_MEMBERS = LEVELS_S.tolist(), PREDICTORS, SHARE_MARGINS.tolist(), ROOT_MARGINS.tolist(), COUNTS.tolist(), STEADY
SIGNATURE = float(zlib.crc32(repr(_MEMBERS).encode()))
"""Of this family: what another version wrote about its rules is not about these."""

CAREFUL = np.arange(RULES) // MARGINS == PREDICTORS.index((0, LONGEST_HOLD))
"""Rules on the fastest level with the longest hold."""

ONE_ROOT = BY_SHARE + ROOT_MARGINS.ravel().tolist().index(1.0)
"""Of the margins, once the square root."""

ENOUGH = PREDICTORS.index((0, LONGEST_HOLD)) * MARGINS + ONE_ROOT
"""The careful rule that does for calm traffic: the highest of the last ten cold starts, and one square root more."""

EVERY_S = 30.0
"""How often rules are judged: two readings of an engine. Oftener costs more and decides no better on the whole."""

NEARLY = 0.02
"""Replicas that a fraction may lack: 3.02 are 3."""

DOUBT = 0.2
DOUBT_MARGIN, DOUBT_HOLD = 1.2, 0.48
"""Believed misses fall as exp of so much per square root of demand in the margin, and per root of the hold."""

COUNT_HOLD = 1
"""A constant count is believed to miss as much as a rule of its margin that holds a peak for so many cold starts: with
the belief in a hold of ten it is chosen before it has seen a surge."""

_DOUBT_BY_HOLD = np.exp(-DOUBT_HOLD * np.sqrt([hold for _, hold in PREDICTORS]))[:, None, None]
_DOUBT_OF_COUNT = float(np.exp(-DOUBT_HOLD * np.sqrt(COUNT_HOLD)))


class Described(NamedTuple):
    """What a rule is."""

    level_s: float  # time constant of its level
    hold: float  # cold starts for which it holds the peak of that
    share: float  # of the level, which it adds
    root: float  # so many square roots of the level, which it adds
    least: float  # replicas that it asks for whatever comes; 0: it is no constant count


def describe(rule: int) -> Described:
    """Return what a rule is, by its row."""
    if rule >= BY_MARGIN:
        return describe(STEADY)._replace(least=float(COUNTS[rule - BY_MARGIN, 0]))
    predictor, margin = divmod(rule, MARGINS)
    level, hold = PREDICTORS[predictor]
    share = float(SHARE_MARGINS[margin, 0]) if margin < BY_SHARE else 0.0
    root = 0.0 if margin < BY_SHARE else float(ROOT_MARGINS[margin - BY_SHARE, 0])
    return Described(float(LEVELS_S[level]), hold, share, root, 0.0)


def level_for(rule: IntColumn, replicas: FloatColumn) -> FloatColumn:
    """Return the highest level for which a rule asks for no more than so many replicas; float64[W].

    rule: int64[W], of `BY_LEVEL`. Of level x with a share s and r roots: (1 + s) x + r sqrt(x) = replicas in use.
    """
    margin = rule % MARGINS
    share = np.append(1 + SHARE_MARGINS, np.ones_like(ROOT_MARGINS))[margin].astype(np.float64)
    roots = np.append(np.zeros_like(SHARE_MARGINS), ROOT_MARGINS)[margin].astype(np.float64)
    busy = np.maximum((replicas + NEARLY) * MOST_BUSY, 0.0)
    return np.asarray(((np.sqrt(roots**2 + 4 * share * busy) - roots) / (2 * share)) ** 2)


def asked(predicted: npt.NDArray[np.floating], floor: FloatColumn, ceiling: FloatColumn) -> PaperColumn:
    """Return the replicas that each rule asks for; float32[RULES, W], whole.

    predicted: [J, W], of each predictor. floor, ceiling: [W], replicas. NaN where nothing is predicted.
    """
    by_rule = np.empty((RULES, len(floor)), np.float32)
    fleets(predicted, floor, ceiling, by_rule[:BY_MARGIN].reshape(len(PREDICTORS), MARGINS, -1))
    counts = np.maximum(by_rule[STEADY], COUNTS, out=by_rule[BY_MARGIN:])
    np.minimum(counts, ceiling.astype(np.float32), out=counts)
    return by_rule


def fleets(
    predicted: npt.NDArray[np.floating], floor: FloatColumn, ceiling: FloatColumn, out: PaperColumn | None = None
) -> PaperColumn:
    """Return the replicas that each margin makes of each prediction; float32[N, MARGINS, W], whole.

    predicted: [N, W], floor, ceiling: [W], replicas. NaN where nothing is predicted. out: written to where given.
    """
    share = (predicted / MOST_BUSY).astype(np.float32)[:, None]
    root = (np.sqrt(predicted) / MOST_BUSY).astype(np.float32)[:, None]
    wanted = np.empty((len(predicted), MARGINS, len(floor)), np.float32) if out is None else out
    least = share - np.float32(NEARLY)
    np.add(share * SHARE_MARGINS, least, out=wanted[:, :BY_SHARE])
    np.add(root * ROOT_MARGINS, least, out=wanted[:, BY_SHARE:])
    np.ceil(wanted, out=wanted)
    np.maximum(wanted, floor.astype(np.float32), out=wanted)
    return np.minimum(wanted, ceiling.astype(np.float32), out=wanted)


def doubted(level: FloatColumn) -> FloatColumn:
    """Return which share of requests each rule is believed to miss before anything was seen; float64[RULES, W].

    level: float64[W], replicas. The margin of a constant count is what it has beyond this level.
    """
    level = np.maximum(or_zero(level), 0.05)
    roots = np.sqrt(level)
    in_roots = np.empty((MARGINS, len(roots)))
    in_roots[:BY_SHARE], in_roots[BY_SHARE:] = SHARE_MARGINS * roots, ROOT_MARGINS
    by_margin = _DOUBT_BY_HOLD * np.exp(-DOUBT_MARGIN * in_roots)
    beyond = np.maximum(MOST_BUSY * COUNTS - level, 0.0) / roots
    by_count = _DOUBT_OF_COUNT * np.exp(-DOUBT_MARGIN * beyond)
    return np.asarray(DOUBT * np.concatenate([by_margin.reshape(BY_MARGIN, -1), by_count]))
