"""Bursts: runs of steps in which far more requests arrive than around them, and which of them are noise.

A burst shorter than the cold start is over before a replica that it orders could serve: it is noise, and queues by
design. What lasts longer than `SURROUNDINGS_S` is the shape of the day and no burst.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from autoscaler.core.table.columns import BoolColumn, Columns, FloatColumn
from autoscaler.report.load import FleetLoad, Profiles

SURROUNDINGS_S = 3 * 3600.0
"""Length of the window whose median rate a burst is compared with, and the longest burst."""

BLOCK_S = 900.0
"""The surroundings move in steps of this length."""

BEGIN, END = 1.5, 1.2
"""Multiples of the surrounding rate at which a burst begins and ends."""

DEVIATIONS = 4.0
"""Standard deviations of a Poisson count that a burst exceeds, so that chance is no burst."""

GAP_STEPS = 1
"""Shorter breaks do not end a burst."""


class Burst(NamedTuple):
    """One burst of a service."""

    start_s: float  # Unix time
    duration_s: float
    height: float  # the highest step, as a multiple of the surrounding rate; inf: nothing arrived around it
    extra_replicas: float  # that the highest step kept busy beyond the surroundings


@dataclass(frozen=True)
class BurstProfile(Columns):
    """The bursts of each service; float64[W], NaN where there is none."""

    bursts: FloatColumn  # number
    noise: FloatColumn  # those shorter than the cold start
    height_p50: FloatColumn
    height_max: FloatColumn
    duration_p50_s: FloatColumn
    duration_max_s: FloatColumn
    extra_replicas: FloatColumn  # replicas beyond the surroundings, of the highest burst that is not noise; 0: none
    share_of_requests: FloatColumn  # 0..1, of the requests that arrived in bursts


def find_bursts(load: FleetLoad) -> list[list[Burst]]:
    """Return the bursts of each service, in order of time."""
    step_s = load.span.step_s
    arrivals = np.where(load.seen, load.arrivals, np.nan).astype(np.float64)
    around = surroundings(arrivals, step_s)
    demand_around = surroundings(np.where(load.seen, load.demand, np.nan).astype(np.float64), step_s)
    block = max(round(BLOCK_S / step_s), 1)
    found = []
    for w in range(load.shape[1]):
        count, usual = np.nan_to_num(arrivals[:, w]), np.nan_to_num(around[:, w])
        high = (count > BEGIN * usual) & (count - usual > DEVIATIONS * np.sqrt(usual) + DEVIATIONS)
        part = high | ((count > END * usual) & (count - usual > np.sqrt(usual)))
        bursts = []
        seen = np.flatnonzero(load.seen[:, w])
        for first, last in _runs(part):
            if first <= seen[0] or last > seen[-1]:
                continue  # it may be the rest of a level that began before, or goes on
            if not high[first:last].any() or (last - first) * step_s > SURROUNDINGS_S:
                continue
            if _is_edge(count[first:last], usual, first, last, block):
                continue
            top = first + int(np.argmax(count[first:last] - usual[first:last]))
            height = count[top] / usual[top] if usual[top] > 0 else np.inf
            extra = max(float(load.demand[top, w]) - float(np.nan_to_num(demand_around[top, w])), 0.0)
            start_s = load.span.start_s + first * step_s
            bursts.append(Burst(start_s, (last - first) * step_s, float(height), extra))
        found.append(bursts)
    return found


def _is_edge(counts: FloatColumn, usual: FloatColumn, first: int, last: int, block: int) -> bool:
    """Tell whether a run is the edge of a higher level: the surroundings of a block before or after it are as high."""
    before, after = usual[max(first - block, 0)], usual[min(last - 1 + block, len(usual) - 1)]
    return bool(counts.max() <= BEGIN * max(before, after))


def profile_bursts(bursts: list[list[Burst]], load: FleetLoad, profiles: Profiles) -> BurstProfile:
    """Sum up the bursts of each service."""
    rows = []
    total = np.where(load.seen, load.arrivals, 0.0).sum(axis=0, dtype=np.float64)
    for w, each in enumerate(bursts):
        cold_s = float(profiles.cold_start_s[w])
        long = [burst for burst in each if burst.duration_s >= cold_s]
        heights = [burst.height for burst in each]
        lengths = [burst.duration_s for burst in each]
        rows.append(
            (
                len(each),
                len(each) - len(long),
                np.median(heights) if each else np.nan,
                max(heights, default=np.nan),
                np.median(lengths) if each else np.nan,
                max(lengths, default=np.nan),
                max((burst.extra_replicas for burst in long), default=0.0),
                _requests_in(each, load, w) / total[w] if total[w] > 0 else np.nan,
            )
        )
    return BurstProfile(*np.array(rows, np.float64).reshape(-1, 8).T)


def surroundings(values: FloatColumn, step_s: float) -> FloatColumn:
    """Return the median of the blocks around each step; float64[T, W], NaN: nothing was seen around it.

    values: float64[T, W], NaN: unknown. The median of a block is not moved by a burst shorter than half of it, and the
    median of the blocks not by one shorter than half of the window.
    """
    steps, services = values.shape
    size = max(round(BLOCK_S / step_s), 1)
    blocks = -(-steps // size)
    padded = np.full((blocks * size, services), np.nan)
    padded[:steps] = values
    middle = _median(padded.reshape(blocks, size, services), 1)
    half = max(round(SURROUNDINGS_S / (size * step_s) / 2), 1)
    edged = np.full((blocks + 2 * half, services), np.nan)
    edged[half : half + blocks] = middle
    windows = np.lib.stride_tricks.sliding_window_view(edged, 2 * half + 1, axis=0)
    return np.repeat(_median(windows, -1), size, axis=0)[:steps]


def _median(values: FloatColumn, axis: int) -> FloatColumn:
    """Return the median of the known values; NaN: none is known."""
    ordered = np.sort(values, axis=axis)  # NaN comes last
    known = (~np.isnan(values)).sum(axis=axis, keepdims=True)
    low, high = np.maximum(known - 1, 0) // 2, known // 2
    high = np.minimum(high, np.maximum(known - 1, 0))
    pair = np.take_along_axis(ordered, low, axis) + np.take_along_axis(ordered, high, axis)
    return np.asarray(np.squeeze(pair / 2, axis=axis))


def _runs(part: BoolColumn) -> list[tuple[int, int]]:
    """Return the begin and the end of each run, joined across short breaks."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], part.astype(np.int8), [0]])))
    runs: list[tuple[int, int]] = []
    for first, last in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        if runs and first - runs[-1][1] <= GAP_STEPS:
            runs[-1] = (runs[-1][0], last)
        else:
            runs.append((first, last))
    return runs


def _requests_in(bursts: list[Burst], load: FleetLoad, w: int) -> float:
    total = 0.0
    for burst in bursts:
        first = round((burst.start_s - load.span.start_s) / load.span.step_s)
        last = first + round(burst.duration_s / load.span.step_s)
        total += float(np.nansum(load.arrivals[first:last, w]))
    return total
