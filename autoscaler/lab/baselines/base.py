"""The baseline type: a documented scaling rule, and the settings over which it is tuned."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from autoscaler.lab.replay.case import Case, Scaler
from autoscaler.lab.replay.request_cost import request_work_s

Params = Mapping[str, float | str]

POSITIVE = (0.001, math.inf)  # any target; Kubernetes quantities have three decimals
MIN_REPLICAS = "min_replicas"  # the minimum replica count, a setting of every rule but `static`
MIN_REPLICAS_SHARES = (0.5, 0.75)  # fractions of the count that meets the goal alone


@dataclass(frozen=True)
class Axis:
    """One setting and the values to try, ascending. An axis with a range is refined between and beyond them.

    Steps beyond the ends keep the ratio of the last two values: after 0.25, 0.5, 1 come 2 and 4, before them 0.125.
    """

    name: str
    values: tuple[float | str, ...]
    within: tuple[float, float] | None = None  # range of the value, where less means more replicas; None: only `values`

    def beyond(self, here: float) -> float | None:
        """Return the next value outward; None if `here` is not at an end, or at the end of the range."""
        if len(self.values) < 2:
            return None
        first, second, *_ = self.values
        *_, last_but_one, last = self.values
        if here <= float(first):
            further = self.allowed(here * float(first) / float(second))
        elif here >= float(last):
            further = self.allowed(here * float(last) / float(last_but_one))
        else:
            return None
        return further if further != here else None

    def allowed(self, value: float) -> float:
        """Return the value clamped to the range, with six significant digits."""
        least, most = self.within or (-math.inf, math.inf)
        return float(f"{min(max(value, least), most):.6g}")


@dataclass(frozen=True)
class Baseline:
    """A scaling rule: its name in tables, its source, and a factory of its scaler."""

    name: str
    source: str
    make: Callable[[Case, Params], Scaler]
    axes: Callable[[Case], tuple[Axis, ...]]
    default: Callable[[Case], Params] | None = None  # the documented setting; None: there is none
    derived: str = ""  # the undocumented part of the setting and its origin; "": none
    monotone: bool = False  # it has one setting, a whole number, and higher values never do worse
    starts: Callable[[Params], int] | None = None  # its own initial replicas; None: those of the case

    def __call__(self, case: Case, params: Params) -> Scaler:
        """Make a scaler. Raises ValueError for a missing or unknown setting, naming it."""
        names = [axis.name for axis in self.axes(case)]
        if sorted(params) != sorted(names):
            raise ValueError(f"settings of {self.name} are {', '.join(sorted(params))}, wanted: {', '.join(names)}")
        return self.make(case, params)

    def starting_case(self, case: Case, params: Params) -> Case:
        """Return the case with the initial replicas of this rule, at least its minimum."""
        least = int(number(params, MIN_REPLICAS)) if MIN_REPLICAS in params else 0
        return replace(case, start_replicas=self.starts(params) if self.starts else max(case.start_replicas, least))

    def grid(self, case: Case) -> list[Params]:
        """Return every combination of settings, in a fixed order, and the default setting."""
        axes = self.axes(case)
        grid: list[Params] = [
            dict(zip([axis.name for axis in axes], values, strict=True))
            for values in itertools.product(*(axis.values for axis in axes))
        ]
        default = self.default(case) if self.default else grid[0]
        return grid if default in grid else [*grid, default]

    def ranged_axes(self, case: Case) -> list[str]:
        """Return the names of the axes with a range."""
        return [axis.name for axis in self.axes(case) if axis.within]

    def beyond(self, case: Case, params: Params) -> list[Params]:
        """Return settings one step beyond each end at which `params` lies, with all values of the other axes."""
        axes = self.axes(case)
        found: list[Params] = []
        for axis in axes:
            if axis.within and (further := axis.beyond(float(params[axis.name]))):
                tried = {other.name: dict.fromkeys((*other.values, params[other.name])) for other in axes}
                tried[axis.name] = {further: None}
                found += [dict(zip(tried, values, strict=True)) for values in itertools.product(*tried.values())]
        return found

    def around(self, case: Case, params: Params, tried: Sequence[Params] = ()) -> list[Params]:
        """Return settings half-way, by ratio, between `params` and its neighbours on each axis with a range.

        tried: settings run outside the grid; those that differ in one axis only are neighbours, too.
        """
        found: list[Params] = []
        for axis in self.axes(case):
            if axis.within is None or len(axis.values) < 2:
                continue
            here = float(params[axis.name])
            neighbours = [each[axis.name] for each in tried if {**each, axis.name: here} == params]
            values = sorted({float(value) for value in (*axis.values, *neighbours, here)})
            place = values.index(here)
            below = values[place - 1] if place else here**2 / values[1]
            above = values[place + 1] if place + 1 < len(values) else here**2 / values[-2]
            between = [axis.allowed(math.sqrt(here * other)) for other in (below, above)]
            found += [{**params, axis.name: value} for value in between if value != here]
        return found

    def with_min_replicas(self, case: Case, params: Params, enough: int) -> list[Params]:
        """Return `params` with minimum replica counts: fractions of `enough` with laxer values, and `enough` itself
        with the laxest.

        enough: constant count that meets the goal. With a minimum, settings that give more replicas than `params`
        are no cheaper.
        """
        if MIN_REPLICAS not in params:
            return []
        ranges: dict[str, Sequence[float | str]] = {}
        for axis in self.axes(case):
            if axis.within:
                here = number(params, axis.name)
                ranges[axis.name] = [value for value in axis.values if float(value) >= here] or [here]
        shares = {float(math.ceil(share * enough)) for share in MIN_REPLICAS_SHARES} - {1.0, float(enough)}
        found: list[Params] = [
            {**params, MIN_REPLICAS: floor, **dict(zip(ranges, values, strict=True))}
            for floor in sorted(shares)
            for values in itertools.product(*ranges.values())
        ]
        laxest = {name: values[-1] for name, values in ranges.items()}
        return [*found, {**params, **laxest, MIN_REPLICAS: float(enough)}] if enough > 1 else found

    def between(self, params: Params, tried: Sequence[Params]) -> list[Params]:
        """Return `params` with minimum replica counts half-way to the next lower and higher ones tried."""
        here = number(params, MIN_REPLICAS)
        tried_floors = [
            number(each, MIN_REPLICAS) for each in tried if {**each, MIN_REPLICAS: params[MIN_REPLICAS]} == params
        ]
        below = max((floor for floor in tried_floors if floor < here), default=here)
        above = min((floor for floor in tried_floors if floor > here), default=here)
        found = {float(math.floor((here + below) / 2)), float(math.ceil((here + above) / 2))}
        return [{**params, MIN_REPLICAS: floor} for floor in sorted(found - {below, here, above})]


def number(params: Params, name: str) -> float:
    """Return a numeric setting."""
    return float(params[name])


# The tried values depend on the case: a replica of a large model takes fewer requests.


def request_rates_to_try(case: Case) -> tuple[float, ...]:
    """Return requests per second and replica to try: fractions of a replica's capacity."""
    prefill_s, decode_s = request_work_s(case)
    most = 1 / max(float(np.mean(prefill_s + decode_s)), 1e-9) if len(prefill_s) else 1.0
    return tuple(float(f"{share * most:.6g}") for share in (0.25, 0.4, 0.55, 0.7, 0.85))


def concurrencies_to_try(case: Case) -> tuple[float, ...]:
    """Return requests per replica to try: powers of two up to its slots."""
    most = int(math.log2(case.profile.max_num_seqs))
    return tuple(float(2**power) for power in range(1, most + 1)) or (1.0,)


def min_replicas_to_try(case: Case, idle_s: float) -> tuple[float, ...]:
    """Return minimum replica counts to try; 0 only if the trace is ever idle for `idle_s`."""
    times_s = np.concatenate([[0.0], case.trace.arrival_s, [case.trace.duration_s]])
    return (0.0, 1.0) if float(np.diff(times_s).max()) > idle_s else (1.0,)
