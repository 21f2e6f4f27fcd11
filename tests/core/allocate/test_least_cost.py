"""Whole replicas at least cost: never too few, and near to what an exact solver finds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp

from autoscaler.core.allocate.least_cost import cover, shed


def exact(requests, room, each, cost):
    """Return the least cost of replicas that carry the requests, by branch and bound."""
    found = milp(
        cost,
        integrality=np.ones(len(cost)),
        bounds=Bounds(0, room),
        constraints=LinearConstraint(each, requests, np.inf),
        options={"mip_rel_gap": 0},
    )
    return found.fun


def problems(seed, services, variants):
    """Return services whose variants differ in size, price per request and room, and a load that they can carry."""
    rng = np.random.default_rng(seed)
    each = rng.uniform(3, 60, (services, variants))
    cost = each ** rng.uniform(0.6, 1.2, each.shape)
    room = rng.integers(1, 12, each.shape).astype(float)
    return rng.uniform(0.02, 1, services) * (room * each).sum(axis=1), room, each, cost


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variants", "mean", "most"),
    [(2, 0.001, 0.05), pytest.param(3, 0.005, 0.15, marks=pytest.mark.long), (6, 0.01, 0.2)],
)
def test_cost_is_within_the_stated_gap_of_an_exact_solver(variants, mean, most):
    requests, room, each, cost = problems(1, 150, variants)
    found = (cover(requests, room, each, cost) * cost).sum(axis=1)
    least = np.array([exact(*problem) for problem in zip(requests, room, each, cost, strict=True)])
    gap = found / np.fmax(least, 1e-9) - 1
    assert (gap > -1e-6).all()
    assert gap.mean() <= mean
    assert gap.max() <= most


sizes = st.tuples(st.integers(0, 9), st.floats(1, 50), st.floats(0, 20))


@given(st.lists(sizes, min_size=1, max_size=5), st.floats(0, 500))
def test_cover_carries_the_load_with_the_room_there_is(table, requests):
    room, each, cost = (np.array([column], float) for column in zip(*table, strict=True))
    replicas = cover(np.array([requests]), room, each, cost)
    assert (replicas == np.floor(replicas)).all()
    assert ((replicas >= 0) & (replicas <= room)).all()
    assert (replicas * each).sum() >= min(requests, (room * each).sum()) - 1e-4


@given(st.lists(sizes, min_size=1, max_size=5), st.floats(0, 500))
def test_shed_carries_no_more_than_the_surplus(table, requests):
    spare, each, cost = (np.array([column], float) for column in zip(*table, strict=True))
    replicas = shed(np.array([requests]), spare, each, cost)
    assert (replicas == np.floor(replicas)).all()
    assert ((replicas >= 0) & (replicas <= spare)).all()
    assert (replicas * each).sum() <= requests + 1e-4
