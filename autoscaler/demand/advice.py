"""Ways to the GPUs that a pool lacks, each with what it gains, its evidence, and whether it keeps what is promised.

Where GPUs are taken away, the replay of `report` over the whole history decides whether that is offered.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from autoscaler.catalog.devices import Product, device_share, find_device, is_mig, mig_parts, mig_profile
from autoscaler.config.prices import find_price
from autoscaler.core.gpu_totals import PoolKey
from autoscaler.core.model.fleet import SPOT, Pool
from autoscaler.core.supply.mig_layout import STARTS, Cut, Kind, MigLayout, count_gpus, find_layouts
from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn, or_zero
from autoscaler.demand.capacity import HOUR_S, USUAL, GpuHistory
from autoscaler.demand.draft import TOLERANCE
from autoscaler.demand.model import DemandModel
from autoscaler.lab.report.format import amount, count
from autoscaler.report.change_replay import lighten
from autoscaler.report.changes import Service, eight_bit_work
from autoscaler.report.columns import ACTUAL, POLICY, PolicyColumn
from autoscaler.report.fluid import Course, Reserve, follow
from autoscaler.report.outcome import ServiceFigures, sum_up

MONTH_H = 730.0
MOST_NAMED = 5

IDLE, LEND, QUANTIZE, LAYOUT, SPOT_NODES, BUY = KINDS = (
    *("idle_elsewhere", "lend", "quantize", "layout", "spot_above_floor", "buy"),
)


class Advice(NamedTuple):
    """One way to the GPUs that a pool lacks."""

    kind: str  # of KINDS
    gpus: float  # gained; NaN: not known
    usd_per_month: float  # saved, or spent where it is negative; NaN: no price
    offered: bool
    sentence: str  # with its evidence, or why it is not offered
    covers: bool = False  # with those offered before it, the shortage is covered


class Replays(NamedTuple):
    """Courses over the hours, float64[H, W] of GPUs, and whether each service keeps its promise, bool[W]."""

    held: FloatColumn
    policy: FloatColumn
    quantized: FloatColumn  # the policy, if weights had 8 bits
    keeps: BoolColumn  # under the policy of today
    keeps_quantized: BoolColumn
    hour: IntColumn  # int64[H], hours since 1970


class Shortage(NamedTuple):
    """A pool, and what it lacks."""

    pool: PoolKey
    rows: IntColumn  # of its services
    same: BoolColumn  # bool[W], services of any pool whose GPUs are of the same kind
    gpus: float  # NaN: not known
    hours: BoolColumn  # bool[H], of the replays, in which it was short; all, where that is not known


def replay(demand: DemandModel) -> Replays:
    """Return today's counts, those of the policy, and those of the policy if weights had 8 bits."""
    report = demand.report
    load, profiles = report.load, report.profiles
    was, policy = report.entry(ACTUAL), report.entry(POLICY)
    services = (Service(load, profiles, report.facts, report.spec, w) for w in range(len(report.services)))
    factor = np.array([eight_bit_work(service) for service in services], np.float64)
    course, quantized = policy.course, policy.outcome
    if (factor < 1).any():
        lighter, faster = lighten(load, profiles, factor)
        planner = PolicyColumn(lighter, faster, report.spec, holds=report.holds)
        course = follow(planner, lighter, faster, reserve=Reserve.of(report.spec))
        quantized = sum_up(course, lighter, faster, report.facts, report.spec)
    starts = demand.hours.starts
    seen = np.maximum(np.add.reduceat(load.seen, starts, axis=0, dtype=np.float64), 1.0)

    def gpus(of: Course) -> FloatColumn:
        wanted = np.where(load.seen, np.nan_to_num(of.held), 0.0)
        return np.asarray(np.add.reduceat(wanted, starts, axis=0, dtype=np.float64) / seen * report.facts.gpus)

    return Replays(
        gpus(was.course),
        gpus(policy.course),
        gpus(course),
        _keeps(policy.outcome, was.outcome, demand),
        np.asarray(_keeps(quantized, was.outcome, demand) & (factor < 1)),
        ((load.span.start_s + (starts + 0.5) * load.span.step_s) // HOUR_S).astype(np.int64),
    )


def _keeps(outcome: ServiceFigures, was: ServiceFigures, demand: DemandModel) -> BoolColumn:
    """Return the services that keep what is promised, or what they had if that is less; bool[W]."""
    least = np.fmin(or_zero(was.attainment), demand.report.spec.attainment) - TOLERANCE
    return np.asarray(demand.report.modelled & ~(outcome.attainment < least))


def advise(
    demand: DemandModel, capacity: GpuHistory | None, short: Shortage, replays: Replays, prices: Mapping[str, float]
) -> tuple[Advice, ...]:
    """Return all advice but what to buy, in order. prices: stated ones, by `config.prices.key_of`."""
    found = [*_idle_elsewhere(demand, short, replays)]
    if capacity is not None:
        found += _lend(capacity, short)
    found += _quantize(demand, short, replays)
    if capacity is not None:
        found += _layout(capacity, short, prices)
    return (*found, *_spot(demand, short, prices))


def _idle_elsewhere(demand: DemandModel, short: Shortage, replays: Replays) -> Iterator[Advice]:
    """GPUs that services of any pool held while this one was short, and that the policy would not have held."""
    facts = demand.report.facts
    spare = _in_most_hours(replays.held - replays.policy, short.hours)
    whole = np.floor((spare + 1e-6) / facts.gpus) * facts.gpus
    rows = np.flatnonzero((whole >= facts.gpus) & short.same)
    offered = rows[replays.keeps[rows]]
    if len(offered):
        usd = float((whole * facts.usd_per_hour / facts.gpus)[offered].sum()) * MONTH_H
        words = _named(demand, offered, whole)
        gpus = float(whole[offered].sum())
        said = f"{count(gpus, 'GPU')} held and not needed in {USUAL:.0%} of these hours: {words}; the replay of their "
        yield Advice(IDLE, gpus, usd, True, said + "policy keeps what is promised.")
    if len(lost := rows[~replays.keeps[rows]]):
        words = _named(demand, lost, whole)
        said = f"{count(float(whole[lost].sum()), 'GPU')} that look idle: the replay without them loses attainment, or "
        yield Advice(IDLE, 0.0, 0.0, False, f"{said}does not model the service: {words}.")
    if not len(rows):
        yield Advice(
            IDLE,
            0.0,
            0.0,
            False,
            f"No service held GPUs of this kind that it did not need in {USUAL:.0%} of these hours.",
        )


def _in_most_hours(values: FloatColumn, hours: BoolColumn) -> FloatColumn:
    """Return what is reached in most of some hours; float64[W]. values: [H, W]."""
    return np.quantile(values[hours], 1 - USUAL, axis=0) if hours.any() else np.zeros(values.shape[1])


def _named(demand: DemandModel, rows: IntColumn, gpus: FloatColumn) -> str:
    order = rows[np.argsort(-gpus[rows], kind="stable")]
    named = [f"{demand.services[w]} {amount(float(gpus[w]))}" for w in order[:MOST_NAMED].tolist()]
    rest = len(order) - MOST_NAMED
    return ", ".join(named) + (f" and {rest} more" if rest > 0 else "")


def _lend(capacity: GpuHistory, short: Shortage) -> Iterator[Advice]:
    """GPUs of quotas that their owners neither use nor lend."""
    rows = [row for row, quota in enumerate(capacity.quotas) if quota[1] == short.pool[0]]
    spare = capacity.quota_spare[:, rows] if rows else np.empty((1, 0))
    known: BoolColumn = np.asarray(~np.isnan(spare).all(axis=0))
    if not known.any():
        yield Advice(LEND, math.nan, math.nan, False, "No quota of this resource is known, so none can be lent.")
        return
    least = np.floor(np.nanquantile(spare[:, known], 1 - USUAL, axis=0))
    names = [capacity.quotas[row][0] for row, is_known in zip(rows, known.tolist(), strict=True) if is_known]
    lends = [(name, gpus) for name, gpus in zip(names, least.tolist(), strict=True) if gpus >= 1]
    if not lends:
        yield Advice(
            LEND, 0.0, 0.0, False, f"Quotas leave nothing that is neither used nor lent in {USUAL:.0%} of the hours."
        )
        return
    gpus = sum(each for _, each in lends)
    words = ", ".join(f"{name} {amount(each)}" for name, each in sorted(lends, key=lambda each: -each[1])[:MOST_NAMED])
    said = (
        f"{amount(gpus)} GPUs of quotas are neither used nor lent in {USUAL:.0%} of the hours: {words}. Their owners "
    )
    said += "may take them back at any time."
    yield Advice(LEND, gpus, 0.0, True, said)


def _quantize(demand: DemandModel, short: Shortage, replays: Replays) -> Iterator[Advice]:
    """GPUs that services of the pool would not need with weights of 8 bits."""
    facts, rows = demand.report.facts, short.rows
    unknown = [w for w in rows.tolist() if not facts.model[w]]
    rows = rows[replays.keeps_quantized[rows]]
    saved = (replays.policy - replays.quantized)[:, rows]
    gpus = math.floor(_in_most_hours(saved.sum(axis=1, keepdims=True), short.hours).item() + 1e-6) if len(rows) else 0
    if gpus < 1:
        why = "no model of it is known by name" if len(unknown) == len(short.rows) else "it would free no whole GPU"
        yield Advice(
            QUANTIZE, 0.0, 0.0, False, f"Weights of 8 bits: {why}, or the replay does not keep what is promised."
        )
        return
    usd = float(np.mean(facts.usd_per_hour[rows] / facts.gpus[rows])) * gpus * MONTH_H
    names = _named(demand, rows, (replays.policy - replays.quantized).mean(axis=0))
    said = (
        f"Weights of 8 bits would free {amount(gpus)} GPUs in these hours ({names}): reading them takes half as long. "
    )
    said += "The replay keeps what is promised; whether the answers stay as good is not measured here."
    yield Advice(QUANTIZE, float(gpus), usd, True, said)


def _layout(capacity: GpuHistory, short: Shortage, prices: Mapping[str, float]) -> Iterator[Advice]:
    """GPUs that the slices of a product would leave free, cut as its workloads need them."""
    device = find_device(short.pool[1])
    if device is None or not is_mig(*short.pool[:2]):
        yield Advice(LAYOUT, 0.0, 0.0, False, "Its GPUs are not cut into slices.")
        return
    found = measure_slices(capacity, device)
    if found is None:
        yield Advice(
            LAYOUT, math.nan, math.nan, False, "The profile of some slices, or how many there are, is not known."
        )
        return
    cut, today, needed = found
    now, then = count_gpus(today, cut), count_gpus(needed, cut)
    loose = now - sum(kind.memory * each for kind, each in today.items()) / cut.value
    words = f"Slices of today take at least {count(now, 'GPU')} of {device.name} and leave {loose:.2g} of them uncut; "
    words += f"those that were needed in {USUAL:.0%} of the hours fit on {then}"
    freed = now - then
    if freed < 0 or (freed == 0 and today == needed):
        yield Advice(LAYOUT, 0.0, 0.0, False, f"{words}: another layout frees none.")
        return
    usd = find_price(Pool("nvidia.com/gpu", device.name), prices, {}).usd * freed * MONTH_H
    gained = freed + (short.gpus if short.gpus > 0 else 0.0)
    said = f"{words}, cut as {describe_layouts(find_layouts(needed, cut))}. Cutting a GPU again needs it empty."
    yield Advice(LAYOUT, gained, usd, True, said)


def measure_slices(capacity: GpuHistory, device: Product) -> tuple[Cut, dict[Kind, int], dict[Kind, int]] | None:
    """Return the cut, and the slices of a device that there are and that were needed; None: not known."""
    today: Counter[Kind] = Counter()
    needed: Counter[Kind] = Counter()
    parts = mig_parts(device)
    if not parts:
        return None
    cut = Cut(parts)
    for place, pool in enumerate(capacity.pools):
        found = find_device(pool[1])
        if found != device or not is_mig(*pool[:2]):
            continue
        profile, share = mig_profile(found, pool[0], pool[1]), device_share(pool[0], pool[1])
        if profile is None or np.isnan(capacity.pool_gpus[:, place]).all():
            return None
        kind = Kind(round(profile.compute * min(cut.value, 7)), round(profile.memory * cut.value))
        rows = capacity.of_pool(pool)
        want = (or_zero(capacity.needed[:, rows]) + or_zero(capacity.lacking[:, rows])).sum(axis=1)
        today[kind] += round(float(np.nanmax(capacity.pool_gpus[:, place])) / share)
        needed[kind] += math.ceil(float(np.quantile(want, USUAL, method="higher")) / share - 0.05)
    if not today or any(kind not in STARTS[cut] for kind in (*today, *needed)):
        return None
    return cut, dict(today), dict(needed)


def describe_layouts(layouts: tuple[MigLayout, ...]) -> str:
    """Return layouts in words, such as "2 x (3g + 3g)"; `1g+` has double memory."""
    said = []
    for layout in layouts[:MOST_NAMED]:
        names = [f"{kind.compute}g" + "+" * (kind.memory == 2 * kind.compute) for kind, _ in layout.slices]
        said.append(f"{layout.gpus} x ({' + '.join(names)})")
    rest = len(layouts) - MOST_NAMED
    return ", ".join(said) + (f" and {rest} more" if rest > 0 else "")


def _spot(demand: DemandModel, short: Shortage, prices: Mapping[str, float]) -> Iterator[Advice]:
    """GPUs above the floor of services that can wait for a cold start: they may run on spot nodes."""
    report, c = demand.report, demand.concurrency
    can_wait = report.spec.can_wait(report.profiles.cold_start_s)
    above = or_zero(np.floor(c.high_replicas) - np.ceil(c.floor_replicas)) * report.facts.gpus
    rows = short.rows[(above[short.rows] >= 1) & can_wait[short.rows]]
    if not len(rows):
        why = "no service of it can wait for a cold start, as when a node is taken away, and has GPUs above its floor"
        yield Advice(SPOT_NODES, 0.0, 0.0, False, f"Spot nodes: {why}.")
        return
    gpus = float(above[rows].sum())
    resource, product, _ = short.pool
    spot = find_price(Pool(resource or "nvidia.com/gpu", product, capacity_type=SPOT), prices, {})
    firm = find_price(Pool(resource or "nvidia.com/gpu", product), prices, {})
    usd = math.nan if spot.why else (firm.usd - spot.usd) * gpus * MONTH_H
    gained = min(gpus, short.gpus) if short.gpus > 0 else 0.0
    part = f": up to {amount(gained)} of the GPUs that are lacking may be spot" if short.gpus > 0 else ""
    price = f" {spot.why}." if spot.why else ""
    said = (
        f"{amount(gpus)} GPUs lie above the floors of {_named(demand, rows, above)}, which can wait for a cold start"
        f"{part}.{price}"
    )
    yield Advice(SPOT_NODES, gained, usd, True, said)
