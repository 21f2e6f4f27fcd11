"""Place replicas on node groups one after the other, each as long as it and those before it have a place."""

from __future__ import annotations

import numpy as np

from autoscaler.core.model.placement import ROUNDING_GPUS, Placement
from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn


def take(pool: IntColumn, gpus: FloatColumn, placement: Placement) -> BoolColumn:
    """Place replicas in order, each of which is left out if it and those before it have no place together; bool[L].

    pool: int64[L]. gpus: float64[L], of each replica. placement: of what is placed before.

    Tries all replicas at once. While pools are short, it tries only as many as the node groups of these pools hold.
    The next replica has no place then, nor has any other of these pools that is as large.
    """
    taken = np.zeros(len(pool), dtype=bool)
    waiting = np.arange(len(pool))
    limits: list[BoolColumn] = []  # pools that limited the last try, bool[N] each
    while len(waiting):
        end, found = len(waiting), []
        for short in limits:  # these are likely to be short again
            if (held := _count_fitting(pool[waiting[:end]], gpus[waiting[:end]], short, placement)) < end:
                end = held
                found.append(short)
        while True:
            tried = waiting[:end]
            trial = placement.copy()
            short = trial.place(np.bincount(pool[tried], gpus[tried], placement.pools).tolist())
            if not short.any():
                break
            end = min(_count_fitting(pool[tried], gpus[tried], short, placement), end - 1)
            found.append(short)
        taken[tried] = True
        waiting, placement, limits = waiting[end + 1 :], trial, found
        if found:
            room = placement.left(found[-1]) + ROUNDING_GPUS
            waiting = waiting[~found[-1][pool[waiting]] | (gpus[waiting] <= room)]
    return taken


def _count_fitting(pool: IntColumn, gpus: FloatColumn, short: BoolColumn, placement: Placement) -> int:
    """Return how many of the first replicas the groups of some pools hold, as far as replicas of these pools go."""
    ends = np.cumsum(np.where(short[pool], gpus, 0.0))
    return int(np.searchsorted(ends, placement.left(short) + ROUNDING_GPUS, side="right"))
