"""What a baseline is: a documented rule for the number of replicas, and the settings over which it is tuned."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from autoscaler.lab.replay.case import Case, Scaler
from autoscaler.lab.replay.request_cost import request_work_s

Params = Mapping[str, float | str]

POSITIVE = (0.001, math.inf)  # any target: quantities of Kubernetes have three decimals
FLOOR = "min_replicas"  # the setting of every rule but a constant count that says how many there are at least
FLOOR_SHARES = (0.5, 0.75)  # of the count that meets the goal alone


@dataclass(frozen=True)
class Axis:
    """One setting and the values it is tried at, ascending. One with a range is refined between them and beyond them.

    Steps beyond the ends go by the ratio of the last two values: after 0.25, 0.5, 1 come 2 and 4, before them 0.125.
    """

    name: str
    values: tuple[float | str, ...]
    within: tuple[float, float] | None = None  # what it may be, the less the more replicas; None: these values alone
    beside: tuple[float | str, ...] = ()  # values that are tried only beside the best setting of the others

    def beyond(self, here: float) -> float | None:
        """Return the next value outward; None where `here` lies inside, or there is nothing further."""
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
        """Return the value, cut to the range, as it is written."""
        least, most = self.within or (-math.inf, math.inf)
        return float(f"{min(max(value, least), most):.6g}")


@dataclass(frozen=True)
class Baseline:
    """A rule with its name in tables, where it is written down, and how to make a scaler of it."""

    name: str
    source: str
    make: Callable[[Case, Params], Scaler]
    axes: Callable[[Case], tuple[Axis, ...]]
    default: Callable[[Case], Params] | None = None  # the documented setting; None: there is nothing like it
    derived: str = ""  # what of it no documentation states, and how it was found; "": all is stated
    monotone: bool = False  # it has one setting, a whole number, and more of it is never worse
    starts: Callable[[Params], int] | None = None  # replicas that it has from the start; None: those of the case

    def __call__(self, case: Case, params: Params) -> Scaler:
        """Make a scaler. Raises ValueError for a setting that is missing or unknown, naming it."""
        names = [axis.name for axis in self.axes(case)]
        if sorted(params) != sorted(names):
            raise ValueError(f"settings of {self.name} are {', '.join(sorted(params))}, wanted: {', '.join(names)}")
        return self.make(case, params)

    def starting_case(self, case: Case, params: Params) -> Case:
        """Return the case as it begins under this rule: who has so many at least has had them before."""
        least = int(number(params, FLOOR)) if FLOOR in params else 0
        return replace(case, start_replicas=self.starts(params) if self.starts else max(case.start_replicas, least))

    def grid(self, case: Case) -> list[Params]:
        """Return every combination of settings, always in the same order, and the default if it is none of them."""
        axes = self.axes(case)
        grid: list[Params] = [
            dict(zip([axis.name for axis in axes], values, strict=True))
            for values in itertools.product(*(axis.values for axis in axes))
        ]
        default = self.default(case) if self.default else grid[0]
        return grid if default in grid else [*grid, default]

    def ranged(self, case: Case) -> list[str]:
        """Return the names of the axes that have a range."""
        return [axis.name for axis in self.axes(case) if axis.within]

    def beyond(self, case: Case, params: Params) -> list[Params]:
        """Return settings one step beyond each end at which `params` lies, with every value of the other axes."""
        axes = self.axes(case)
        found: list[Params] = []
        for axis in axes:
            if axis.within and (further := axis.beyond(float(params[axis.name]))):
                tried = {other.name: dict.fromkeys((*other.values, params[other.name])) for other in axes}
                tried[axis.name] = {further: None}
                found += [dict(zip(tried, values, strict=True)) for values in itertools.product(*tried.values())]
        return found

    def around(self, case: Case, params: Params, tried: Sequence[Params] = ()) -> list[Params]:
        """Return settings half-way, by ratio, to the neighbours of each setting of `params` that has a range.

        tried: what was run beside the grid; of these, the ones that differ in nothing else are neighbours, too.
        """
        found: list[Params] = []
        for axis in self.axes(case):
            if axis.within is None or len(axis.values) < 2:
                continue
            here = float(params[axis.name])
            beside = [each[axis.name] for each in tried if {**each, axis.name: here} == params]
            values = sorted({float(value) for value in (*axis.values, *beside, here)})
            place = values.index(here)
            below = values[place - 1] if place else here**2 / values[1]
            above = values[place + 1] if place + 1 < len(values) else here**2 / values[-2]
            between = [axis.allowed(math.sqrt(here * other)) for other in (below, above)]
            found += [{**params, axis.name: value} for value in between if value != here]
        return found

    def beside(self, case: Case, params: Params) -> list[Params]:
        """Return `params` at the values that are tried only beside the best, alone and with what lies around it."""
        return [
            {**each, axis.name: value}
            for axis in self.axes(case)
            for value in axis.beside
            for each in (params, *self.around(case, params))
        ]

    def floored(self, case: Case, params: Params, enough: int) -> list[Params]:
        """Return `params` above floors: some shares of `enough`, with what has a range asking for less, and all of it.

        enough: replicas that meet the goal alone. What has a range then asks for the fewest that the grid knows. Above
        a floor what asks for more than `params` does is no cheaper.
        """
        if FLOOR not in params:
            return []
        ranges: dict[str, Sequence[float | str]] = {}
        for axis in self.axes(case):
            if axis.within:
                here = number(params, axis.name)
                ranges[axis.name] = [value for value in axis.values if float(value) >= here] or [here]
        shares = {float(math.ceil(share * enough)) for share in FLOOR_SHARES} - {1.0, float(enough)}
        found: list[Params] = [
            {**params, FLOOR: floor, **dict(zip(ranges, values, strict=True))}
            for floor in sorted(shares)
            for values in itertools.product(*ranges.values())
        ]
        laxest = {name: values[-1] for name, values in ranges.items()}
        return [*found, {**params, **laxest, FLOOR: float(enough)}] if enough > 1 else found

    def between(self, params: Params, tried: Sequence[Params]) -> list[Params]:
        """Return `params` with floors half-way to the next ones that were tried beside it, if any lies between."""
        here = number(params, FLOOR)
        beside = [number(each, FLOOR) for each in tried if {**each, FLOOR: params[FLOOR]} == params]
        below = max((floor for floor in beside if floor < here), default=here)
        above = min((floor for floor in beside if floor > here), default=here)
        found = {float(math.floor((here + below) / 2)), float(math.ceil((here + above) / 2))}
        return [{**params, FLOOR: floor} for floor in sorted(found - {below, here, above})]


def number(params: Params, name: str) -> float:
    """Return a setting that is a number."""
    return float(params[name])


# What settings are tried at depends on the case: a replica of a large model takes fewer requests than one of a small.


def request_rates(case: Case) -> tuple[float, ...]:
    """Requests per second and replica: shares of what a replica could do if it were always full."""
    prefill_s, decode_s = request_work_s(case)
    most = 1 / max(float(np.mean(prefill_s + decode_s)), 1e-9) if len(prefill_s) else 1.0
    return tuple(float(f"{share * most:.6g}") for share in (0.25, 0.4, 0.55, 0.7, 0.85))


def concurrencies(case: Case) -> tuple[float, ...]:
    """Requests inside one replica: powers of two up to its slots."""
    most = int(math.log2(case.profile.max_num_seqs))
    return tuple(float(2**power) for power in range(1, most + 1)) or (1.0,)


def least_replicas(case: Case, idle_s: float) -> tuple[float, ...]:
    """Whether to scale to zero: only tried where somebody could be idle for so long."""
    times_s = np.concatenate([[0.0], case.trace.arrival_s, [case.trace.duration_s]])
    return (0.0, 1.0) if float(np.diff(times_s).max()) > idle_s else (1.0,)
