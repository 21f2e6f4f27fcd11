"""The two sides of a prefill and decode pair: their ratio, and no side without the other.

The side that is too small for the stated ratio is raised, and no side is lowered for it. If GPUs are short, both
sides are cut together. A ratio that whole replicas cannot keep is kept with decode replicas rounded up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from autoscaler.core.model.fleet import Fleet
from autoscaler.core.model.types import TickInput
from autoscaler.core.table.columns import REPLICA_ROUNDING, BoolColumn, FloatColumn, IntColumn, ceil_replicas, or_zero

MOST_ROUNDS = 4
"""The GPUs that a cut frees may go to the other side, so they are allocated again, at most this many times."""


class PairRows(NamedTuple):
    """The pairs whose counts the daemon sets; N pairs."""

    prefill: IntColumn  # int64[N], rows
    decode: IntColumn  # int64[N], rows
    least: FloatColumn  # float64[N], decode replicas per prefill replica; 0: no limit
    most: FloatColumn  # float64[N], likewise; infinity: no limit
    ceiling: FloatColumn  # float64[2, N], most replicas of each side

    @classmethod
    def of(cls, inp: TickInput, ours: BoolColumn) -> PairRows | None:
        """Return None without any. ours: bool[W], the daemon sets the count. The stricter limit of the two applies."""
        if inp.pairs is None:
            return None
        prefill, decode = inp.pairs.sides(ours)
        if not len(prefill):
            return None
        spec, both = inp.spec, np.array([prefill, decode])
        least = or_zero(np.fmax.reduce(spec.min_decode_per_prefill[both]))
        most = np.fmin(np.fmin.reduce(spec.max_decode_per_prefill[both]), np.inf)
        return cls(prefill, decode, least, np.maximum(least, most), spec.max_replicas[both])

    def raise_smaller(self, replicas: FloatColumn) -> FloatColumn:
        """Raise the side that the other needs more of, within its ceiling; float64[W]. Both are at zero, or neither."""
        before_prefill, before_decode = replicas[self.prefill], replicas[self.decode]
        ceilings = np.fmax(self.ceiling, [before_prefill, before_decode])
        awake = np.where((before_prefill > 0) | (before_decode > 0), 1.0, 0.0)
        prefill, decode = np.fmax(before_prefill, awake), np.fmax(before_decode, awake)
        decode = np.fmin(np.fmax(decode, self._fewest_decode(prefill)), ceilings[1])
        too_few = decode > self._most_decode(prefill)
        prefill = np.where(too_few, np.fmin(np.fmax(prefill, ceil_replicas(decode / self.most)), ceilings[0]), prefill)
        decode = np.fmin(np.fmax(decode, self._fewest_decode(prefill)), ceilings[1])
        raised = replicas.copy()
        raised[self.prefill], raised[self.decode] = prefill, decode
        return raised

    def least_of_both(self, column: FloatColumn) -> FloatColumn:
        """Return the column with the smaller value of both sides on each of them; float64[W]."""
        smaller = column.copy()
        smaller[self.prefill] = smaller[self.decode] = np.fmin(column[self.prefill], column[self.decode])
        return smaller

    def keep_sides(self, column: FloatColumn, others: FloatColumn) -> FloatColumn:
        """Return the column on both sides of each pair, and `others` elsewhere; float64[W]."""
        kept = others.copy()
        for rows in (self.prefill, self.decode):
            kept[rows] = column[rows]
        return kept

    def cut_together(
        self,
        desired: FloatColumn,
        allocated: FloatColumn,
        trusted: BoolColumn,
        fleet: Fleet,
        share: Callable[[FloatColumn], FloatColumn],
    ) -> FloatColumn:
        """Cut the sides whose partner was cut, and allocate again; float64[W].

        desired, allocated: float64[W], replicas. trusted: bool[W]; a side whose inputs are not trusted is not cut.
        share: returns the allocation of other desired replicas.
        """
        for number in range(MOST_ROUNDS):
            counts = allocated[self.prefill], allocated[self.decode]
            fitting = self._fit(*counts)
            is_short = (counts[0] < desired[self.prefill]) | (counts[1] < desired[self.decode])
            is_broken = is_short & ((fitting[0] < counts[0]) | (fitting[1] < counts[1]))
            if number == 0:
                fitting = self._fit(*self._divide_gpus(desired, *counts, is_broken, fleet))
            limited = desired.copy()
            for rows, fits in zip((self.prefill, self.decode), fitting, strict=True):
                limited[rows] = np.where(is_broken & trusted[rows], np.fmin(fits, desired[rows]), desired[rows])
            if not (limited < allocated).any():
                break
            desired, allocated = limited, share(limited)
        return allocated

    def _fewest_decode(self, prefill: FloatColumn) -> FloatColumn:
        return ceil_replicas(prefill * self.least)

    def _most_decode(self, prefill: FloatColumn) -> FloatColumn:
        """Return the decode replicas that this many prefill replicas allow, those that `least` rounds up included."""
        with np.errstate(invalid="ignore"):
            most = np.where(prefill > 0, np.floor(prefill * self.most + REPLICA_ROUNDING), 0.0)
        return np.asarray(np.fmax(most, self._fewest_decode(prefill)))

    def _fit(self, prefill: FloatColumn, decode: FloatColumn) -> tuple[FloatColumn, FloatColumn]:
        """Return the most replicas within these that keep the ratio: at least one of each side, or none of either."""
        both = (prefill >= 1) & (decode >= 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            needed = np.fmax(np.floor(decode / self.least + REPLICA_ROUNDING), 1.0)
        prefill = np.where(both, np.fmin(prefill, needed), 0.0)
        return prefill, np.where(both, np.fmin(decode, np.fmax(self._most_decode(prefill), 1.0)), 0.0)

    def _divide_gpus(
        self, desired: FloatColumn, prefill: FloatColumn, decode: FloatColumn, is_broken: BoolColumn, fleet: Fleet
    ) -> tuple[FloatColumn, FloatColumn]:
        """Divide the GPUs that a pair got between its sides, in proportion to what they desire.

        That is where its sides compete: in one pool, or within quotas.
        """
        pool, gpus = fleet.pool, fleet.gpus_per_replica
        each = gpus[self.prefill], gpus[self.decode]
        wanted = desired[self.prefill], desired[self.decode]
        total = prefill * each[0] + decode * each[1]
        competes = ((pool[self.prefill] == pool[self.decode]) & (pool[self.prefill] >= 0)) | bool(fleet.quotas)
        with np.errstate(divide="ignore", invalid="ignore"):
            part = total / (wanted[0] * each[0] + wanted[1] * each[1])
            most = np.floor((total - each[1]) / each[0])  # one decode replica stays
            of_prefill = np.fmin(np.fmax(np.floor(wanted[0] * part), 1.0), most)
            of_decode = np.fmin(np.floor((total - of_prefill * each[0]) / each[1]), wanted[1])
            of_prefill = np.fmin(np.floor((total - of_decode * each[1]) / each[0]), wanted[0])
        divides = is_broken & competes & (total >= sum(each)) & np.isfinite(part)
        return np.where(divides, of_prefill, prefill), np.where(divides, of_decode, decode)
