"""Guaranteed headroom: who gets it, who pays for it, and that nobody else does, in generated orders."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.allocate.slots import Requests, order
from autoscaler.core.supply.running import Running
from autoscaler.core.supply.tenants import Nominal


def requests(rows: int, **columns: object) -> Requests:
    """Return what workloads of one pool request, each of one GPU a replica; a value is one number, or one per row."""
    values = {
        "id": np.arange(rows),
        "pool": 0,
        "gpus_each": 1.0,
        "reserved": 0.0,
        "floor": 0.0,
        "base": 0.0,
        "most": 0.0,
        "scheduled": 0.0,
        "confined": 0.0,
        "priority": 0.0,
        "weight": 1.0,
        "urgency": 0.0,
        "guaranteed_gpus": 0.0,
        "can_wait": True,
        "idle": False,
        **columns,
    }
    nominal = values.pop("nominal", ())
    named = {name: np.broadcast_to(np.asarray(value), rows).copy() for name, value in values.items()}
    return Requests(**named, running=Running.none(rows), nominal=nominal)


def fill(asked: Requests, gpus: float, pool: int = 0) -> np.ndarray:
    """Return how many replicas each workload gets of this many GPUs of a pool, in order until one does not fit."""
    slots = order(asked)
    own = asked.pool[slots.row] == pool
    fits = np.cumsum(np.where(own, slots.gpus, 0.0)) <= gpus
    return np.bincount(slots.row[own & fits], minlength=len(asked.id))


TIERS = {"floor": [1, 1, 1], "base": [3, 3, 3], "most": [9, 4, 3], "priority": [1000, 500, 100]}


@pytest.mark.parametrize(
    ("gpus", "guaranteed", "allocated"),
    [
        (9, 0.0, (3, 3, 3)),
        (9, 2.25, (5, 3, 1)),  # the lowest tier pays first, and keeps its floor
        (8, 4.0, (6, 1, 1)),
        (9, 9.0, (7, 1, 1)),
        (12, 2.0, (6, 3, 3)),  # all have their base replicas, and headroom is left
    ],
)
def test_headroom_comes_before_lower_tiers_when_guaranteed(gpus, guaranteed, allocated):
    assert tuple(fill(requests(3, **TIERS, guaranteed_gpus=[guaranteed, 0.0, 0.0]), gpus)) == allocated


@pytest.mark.parametrize(
    ("can_wait", "gpus", "allocated"),
    [
        ([False, False, True], 9, (5, 3, 1)),
        ([False, False, True], 7, (3, 3, 1)),  # the lowest tier has no more to give, and the middle one cannot wait
        ([False, True, False], 9, (5, 1, 3)),  # the lowest tier that can wait pays
        ([False, True, False], 7, (5, 1, 1)),
        ([True, False, False], 9, (3, 3, 3)),  # it depends on who pays, and not on who has headroom
    ],
)
def test_only_patient_tiers_pay_when_headroom_is_guaranteed(can_wait, gpus, allocated):
    asked = requests(3, **TIERS, guaranteed_gpus=[9.0, 0.0, 0.0], can_wait=can_wait)
    assert tuple(fill(asked, gpus)) == allocated


def test_higher_tier_keeps_shared_headroom_when_lower_guarantees():
    """The middle tier takes the last replica from the lowest one. The headroom of the highest stays where it was."""
    asked = requests(3, base=[2, 2, 2], most=[5, 3, 2], priority=[3, 2, 1], guaranteed_gpus=[0.0, 1.0, 0.0])
    assert tuple(fill(asked, 6)) == (2, 3, 1)
    assert tuple(fill(asked, 7)) == (3, 3, 1)
    assert tuple(fill(asked, 9)) == (5, 3, 1)
    assert tuple(fill(asked, 10)) == (5, 3, 2)


def test_guaranteed_headroom_takes_nothing_back_from_borrowers():
    """The lower tier has lent nothing, and its last replica borrows as the headroom would."""
    owners = (Nominal(np.array([0, 1]), np.array([2.0, 3.0])),)
    asked = requests(2, base=[2, 3], most=[4, 3], priority=[2, 1], guaranteed_gpus=[9.0, 0.0], nominal=owners)
    assert tuple(fill(asked, 5)) == (2, 3)


@st.composite
def worlds(draw):
    rows = draw(st.integers(1, 6))

    def column(values):
        return np.array(draw(st.lists(values, min_size=rows, max_size=rows)))

    floor, more, headroom = (column(st.integers(0, 3)).astype(float) for _ in range(3))
    owners = Nominal(column(st.integers(-1, 1)), np.array(draw(st.tuples(st.integers(0, 6), st.integers(0, 6))), float))
    return requests(
        rows,
        pool=column(st.integers(-1, 1)),
        gpus_each=column(st.sampled_from([1.0, 1.0, 2.0, 4.0])),
        floor=floor,
        base=floor + more,
        most=floor + more + headroom,
        scheduled=column(st.integers(0, 4)).astype(float),
        priority=column(st.sampled_from([0.0, 10.0, 20.0])),
        urgency=column(st.sampled_from([0.0, 1.0])),
        idle=column(st.booleans()),
        guaranteed_gpus=column(st.sampled_from([0.0, 0.0, 1.0, 2.5, 20.0])),
        can_wait=column(st.booleans()),
        nominal=(owners,) if draw(st.booleans()) else (),
    )


def gpus_before(asked: Requests) -> dict[tuple[int, int], float]:
    """Return the GPUs of its pool with which each replica, by workload and number, has its place."""
    slots = order(asked)
    pool = asked.pool[slots.row]
    ends = np.zeros(len(pool))
    for each in np.unique(pool):
        ends[pool == each] = np.cumsum(slots.gpus[pool == each])
    return dict(zip(zip(slots.row.tolist(), slots.number.tolist(), strict=True), ends.tolist(), strict=True))


@given(worlds())
def test_only_base_replicas_of_lower_tiers_that_can_wait_pay(asked):
    shared = replace(asked, guaranteed_gpus=np.zeros(len(asked.id)))
    before, after = gpus_before(shared), gpus_before(asked)
    assert before.keys() == after.keys()
    numbers = order(asked)
    for row in range(len(asked.id)):
        own = numbers.number[numbers.row == row]
        assert (np.diff(own) > 0).all()
    for (row, number), gpus in after.items():
        if gpus > before[row, number]:
            assert asked.floor[row] <= number < asked.base[row] and asked.can_wait[row]
            higher = (asked.priority > asked.priority[row]) & (asked.pool == asked.pool[row])
            assert (higher & (asked.guaranteed_gpus > 0)).any()


@given(worlds(), st.integers(0, 30))
def test_a_pool_pays_no_more_than_its_largest_stated_amount(asked, gpus):
    """With replicas of one GPU, so that a replica that is lost is one that another has."""
    asked = replace(asked, gpus_each=np.ones(len(asked.id)))
    shared = replace(asked, guaranteed_gpus=np.zeros(len(asked.id)))
    for pool in (0, 1):
        lost = np.fmax(fill(shared, gpus, pool) - fill(asked, gpus, pool), 0).sum()
        assert lost <= asked.guaranteed_gpus[asked.pool == pool].max(initial=0.0)
