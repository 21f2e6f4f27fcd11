"""Prefill and decode pairs in words: the ratio, the larger side, and why a side has another count than alone."""

from __future__ import annotations

import numpy as np

from autoscaler.core.explain.claims import NOTHING, Words, join, tell
from autoscaler.core.explain.format import number
from autoscaler.core.explain.row import TickRow
from autoscaler.core.model.pairs import DECODE, PREFILL
from autoscaler.core.model.types import Recommender, Stage


def describe(row: TickRow) -> str:
    """Word the pair of a workload in one line: the other side, the counts, the ratio and the larger side; "": none."""
    if not _is_paired(row):
        return ""
    other = _other_side(row)
    beside = f"with the {other.inp.fleet.workloads[other.row].role} workload {_name(other)}"
    if alone := _why_alone(row) or _why_alone(other):
        return f"{beside}: {alone}, so each side is sized alone"
    sides = {_role(side): side for side in (row, other)}
    counts = (
        f"{number(sides[PREFILL].after(Stage.OWNER))} prefill and {number(sides[DECODE].after(Stage.OWNER))} decode"
    )
    larger = next((_role(_other_side(side)) for side in sides.values() if side.changed(Stage.PAIR)), "")
    smaller = DECODE if larger == PREFILL else PREFILL
    sized = f"{larger} is the larger side, so {smaller} gets more than it needs alone"
    return f"{beside}: {counts} replicas{_ratio(row)}; {sized if larger else 'each side as its own work needs'}"


def reason(stage: Stage, row: TickRow) -> Words:
    """Word that the other side needs more replicas here, or that its allocation leaves fewer of use, or more."""
    other = _other_side(row)
    partner = tell(
        "its {role} workload {partner} {gets} {partner_replicas}",
        role=_role(other),
        partner=_name(other),
        gets=Words("needs" if stage is Stage.PAIR else "gets"),
        partner_replicas=number(other.after(stage)),
    )
    after = number(row.after(stage))
    if stage is Stage.PAIR:
        return partner + tell(", so the pair needs {after} here{ratio}", after=after, ratio=_ratio(row))
    if row.after(stage) > row.before(stage):
        return partner + tell(", which {leaves:leaves GPUs} for {after}", after=after)
    return partner + tell(", so no more than {after} are of use here{ratio}", after=after, ratio=_ratio(row))


def _is_paired(row: TickRow) -> bool:
    return row.inp.pairs is not None and bool(row.inp.pairs.partner[row.row] >= 0)


def _other_side(row: TickRow) -> TickRow:
    assert row.inp.pairs is not None
    return TickRow(row.inp, row.decision, int(row.inp.pairs.partner[row.row]))


def _role(row: TickRow) -> str:
    return row.inp.fleet.workloads[row.row].role


def _name(row: TickRow) -> str:
    return row.inp.fleet.workloads[row.row].ref.name


def _why_alone(row: TickRow) -> str:
    """Word why the count of a workload is not set with that of its partner; "": it is."""
    fleet = row.inp.fleet
    if fleet.other_owner[row.row]:
        return f"{fleet.other_owner[row.row]} owns the count of {_name(row)}"
    if fleet.paused[row.row]:
        return f"{_name(row)} is paused"
    if row.recommender is Recommender.NO_POLICY:
        return f"{_name(row)} has no valid policy"
    return ""


def _ratio(row: TickRow) -> Words:
    """Word the stated ratio of a pair; nothing if none is stated."""
    both = [row.row, _other_side(row).row]
    least = float(np.fmax.reduce(row.inp.spec.min_decode_per_prefill[both]))
    most = max(float(np.fmin.reduce(row.inp.spec.max_decode_per_prefill[both])), least)
    limits = [tell("at least {least_decode}", least_decode=number(least))] if least > 0 else []
    limits += [tell("at most {most_decode}", most_decode=number(most))] if most > 0 else []
    return tell(" ({limits} decode per prefill replica)", limits=join(" and ", limits)) if limits else NOTHING
