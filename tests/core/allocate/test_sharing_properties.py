"""Properties of sharing node groups: a slow allocation with another maximum flow, monotony, floors, envy, row order.

The slow one takes one replica after the other, and asks SciPy each time whether all of them have a place.
"""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from autoscaler.core.allocate import pools
from autoscaler.core.allocate.slots import Requests, order
from autoscaler.core.model.fleet import NodeGroups
from autoscaler.core.supply.placement import Placement
from autoscaler.core.supply.placing import Limit, take
from autoscaler.core.supply.running import Running
from tests.core.world import claims, demands, fleet, node_groups, spec

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Case:
    """Workloads that share node groups; a column each."""

    gpus: tuple[int, ...]  # of each group
    admitted: tuple[tuple[int, ...], ...]  # groups of each pool
    pool: tuple[int, ...]
    each: tuple[float, ...]
    floor: tuple[int, ...]
    base: tuple[int, ...]
    desired: tuple[int, ...]
    priority: tuple[float, ...]
    weight: tuple[float, ...]
    current: tuple[int, ...]
    arrivals: tuple[float, ...]
    idle: tuple[bool, ...]
    ids: tuple[int, ...]

    def groups(self) -> NodeGroups:
        return node_groups(list(self.gpus), *map(list, self.admitted))

    def placement(self) -> Placement:
        return Placement(np.array([self.gpus], float), self.admitted)

    def requests(self):
        """Return what the workloads request where all pools are short."""
        return Requests(
            id=np.array(self.ids),
            pool=np.array(self.pool),
            gpus_each=np.array(self.each),
            reserved=np.zeros(len(self.pool)),
            floor=np.array(self.floor, float),
            base=np.array(self.base, float),
            most=np.array(self.desired, float),
            scheduled=np.array(self.current, float),
            confined=np.zeros(len(self.pool)),
            priority=np.array(self.priority),
            weight=np.array(self.weight),
            urgency=np.array(self.arrivals),
            guaranteed_gpus=np.zeros(len(self.pool)),
            can_wait=np.zeros(len(self.pool), dtype=bool),
            idle=np.array(self.idle),
            running=Running.none(len(self.pool)),
        )

    def share(self, rows=None, gpus=None):
        """Return the allocation, with the rows in this order and as many GPUs in the groups."""
        rows = list(range(len(self.pool))) if rows is None else rows

        def column(name):
            return np.array([float(getattr(self, name)[row]) for row in rows])

        cluster = fleet(
            [0] * len(rows),
            replicas=[self.current[row] for row in rows],
            gpus_per_replica=column("each"),
            pool=column("pool").astype(np.int64),
            pools=fleet([1]).pools * len(self.admitted),
            groups=replace(self, gpus=gpus or self.gpus).groups(),
            workload_id=column("ids").astype(np.int64),
        )
        ranks = spec(len(rows), min_replicas=column("floor"), priority=column("priority"), weight=column("weight"))
        asked = demands(
            column("desired"),
            base=column("base"),
            scheduled=column("current"),
            idle=column("idle"),
            arrivals_per_s=column("arrivals"),
        )
        given = pools.share(cluster, ranks, claims(len(rows)), asked)
        return given[np.argsort(rows)]


@st.composite
def cases(draw, sizes=(1.0,), idle=False, weights=(1.0, 2.0, 0.5, 3.0)):
    groups, workloads = draw(st.integers(1, 4)), draw(st.integers(1, 7))
    gpus = draw(st.lists(st.integers(0, 9), min_size=groups, max_size=groups))
    admitted = draw(
        st.lists(
            st.lists(st.integers(0, groups - 1), min_size=1, unique=True).map(lambda each: tuple(sorted(each))),
            min_size=1,
            max_size=4,
            unique=True,
        )
    )

    def column(values):
        return tuple(draw(st.lists(values, min_size=workloads, max_size=workloads)))

    steps = [column(st.integers(0, 3)) for _ in range(3)]
    floor, base, desired = (tuple(sum(parts) for parts in zip(*steps[:last], strict=True)) for last in (1, 2, 3))
    return Case(
        gpus=tuple(gpus),
        admitted=tuple(admitted),
        pool=column(st.integers(0, len(admitted) - 1)),
        each=column(st.sampled_from(sizes)),
        floor=floor,
        base=base,
        desired=desired,
        priority=column(st.sampled_from([0.0, 10.0])),
        weight=column(st.sampled_from(weights)),
        current=column(st.integers(0, 4)),
        arrivals=column(st.sampled_from([0.0, 1.0, 50.0])),
        idle=column(st.booleans() if idle else st.just(False)),
        ids=tuple(draw(st.permutations(range(workloads)))),
    )


def two(gpus, each=(1.0, 1.0), floor=(0, 0), desired=(1, 1), priority=(0.0, 0.0), idle=(False, False)):
    """Return two workloads of one pool."""
    zeros = (0.0, 0.0)
    return Case(gpus, ((0,),), (0, 0), each, floor, desired, desired, priority, (1.0, 1.0), (0, 0), zeros, idle, (0, 1))


UNEQUAL = (1.0, 2.0, 4.0)


def has_place(case, replicas, gpus=None):
    """Return whether this many replicas have a place together, by SciPy's maximum flow."""
    gpus, counts = gpus or case.gpus, len(case.admitted)
    needed = np.bincount(case.pool, np.array(replicas) * case.each, counts).astype(np.int32)
    size = 2 + counts + len(gpus)
    edges = np.zeros((size, size), dtype=np.int32)
    edges[0, 2 : 2 + counts] = needed
    for pool, groups in enumerate(case.admitted):
        for group in groups:
            edges[2 + pool, 2 + counts + group] = needed[pool]
    edges[2 + counts :, 1] = gpus
    return maximum_flow(csr_array(edges), 0, 1).flow_value == needed.sum()


@given(cases(sizes=UNEQUAL, idle=True))
def test_allocated_replicas_have_a_place(case):
    allocated = case.share()
    assert has_place(case, allocated)
    assert (allocated <= case.desired).all()
    assert (allocated == np.floor(allocated)).all()


@given(cases(sizes=UNEQUAL, idle=True))
def test_no_gpu_is_idle_that_a_replica_could_use(case):
    allocated = case.share()
    for row in np.flatnonzero(allocated < case.desired):
        assert not has_place(case, allocated + (np.arange(len(allocated)) == row))


@given(cases(sizes=UNEQUAL, idle=True))
def test_replicas_are_those_of_a_slow_allocation(case):
    slots = order(case.requests())
    count = np.bincount(slots.row, minlength=len(case.pool))
    assert count.tolist() == list(case.desired)
    slow, taken = np.zeros(len(case.pool)), []
    for row in slots.row.tolist():
        slow[row] += 1
        taken.append(has_place(case, slow))
        slow[row] -= not taken[-1]
    placement = case.placement()
    fast = take([Limit(np.array(case.pool)[slots.row], slots.gpus, placement)])
    assert fast.tolist() == taken


@given(cases(idle=True), st.data())
def test_more_gpus_never_take_a_replica_away(case, data):
    more = tuple(gpus + data.draw(st.integers(0, 3)) for gpus in case.gpus)
    assert (case.share(gpus=more) >= case.share()).all()


@given(cases(sizes=(4.0,), idle=True), st.data())
def test_more_gpus_take_no_large_replica_when_all_are_equal(case, data):
    """Each group holds whole replicas."""
    gpus = tuple(4 * gpus for gpus in case.gpus)
    more = tuple(gpus + 4 * data.draw(st.integers(0, 3)) for gpus in gpus)
    assert (case.share(gpus=more) >= case.share(gpus=gpus)).all()


@given(cases(sizes=UNEQUAL, idle=True), st.data())
def test_replicas_are_lost_only_to_earlier_ones_of_other_sizes(case, data):
    gpus = tuple(gpus + data.draw(st.integers(0, 2)) for gpus in case.gpus)
    slots = order(case.requests())
    pool = np.array(case.pool)[slots.row]
    before, after = (take([Limit(pool, slots.gpus, each.placement())]) for each in (case, replace(case, gpus=gpus)))
    changed = np.flatnonzero(before != after)
    assert not len(changed) or after[changed[0]]


@given(cases(sizes=UNEQUAL, idle=True))
def test_one_more_gpu_takes_only_smaller_replicas_of_a_pool(case):
    case = replace(case, admitted=((0,),), pool=(0,) * len(case.pool))
    before, after = case.share(), case.share(gpus=(case.gpus[0] + 1, *case.gpus[1:]))
    if (lost := after < before).any():
        assert np.array(case.each)[lost].max() < np.array(case.each)[after > before].max()


def test_sizes_cannot_be_mixed_without_loss():
    """Three replicas of 1 GPU, or one of 4 that comes first: the fourth GPU takes three replicas away."""
    case = two(each=(4.0, 1.0), desired=(1, 3), priority=(9.0, 0.0), gpus=(3,))
    assert case.share().tolist() == [0, 3]
    assert case.share(gpus=(4,)).tolist() == [1, 0]


@given(cases(sizes=UNEQUAL, idle=True), st.randoms(use_true_random=False))
def test_the_order_of_rows_is_irrelevant(case, random):
    rows = list(range(len(case.pool)))
    random.shuffle(rows)
    assert case.share(rows).tolist() == case.share().tolist()


@given(cases())
def test_floors_come_first(case):
    """Base replicas and headroom change no floor that is met."""
    allocated = case.share()
    met = np.fmin(allocated, case.floor)
    only_floors = replace(case, base=case.floor, desired=case.floor).share()
    assert met.tolist() == only_floors.tolist()


@given(cases())
def test_base_replicas_come_before_headroom(case):
    base = np.fmax(case.base, case.floor)
    alone = replace(case, desired=tuple(base.tolist())).share()
    assert np.fmin(case.share(), base).tolist() == alone.tolist()


@given(cases())
def test_higher_priorities_lose_nothing_to_lower_ones(case):
    """Without lower priorities a higher one gets the same, where there are no floors."""
    case = replace(case, floor=(0,) * len(case.pool), base=case.desired)
    high = np.array(case.priority) > 0
    alone = replace(case, desired=tuple((np.array(case.desired) * high).astype(int).tolist()))
    assert case.share()[high].tolist() == alone.share()[high].tolist()


@given(cases())
def test_no_workload_envies_another_by_more_than_one_replica(case):
    """Among equals of one pool, a workload that is cut has at most one replica less for its weight than any other."""
    case = replace(case, floor=(0,) * len(case.pool), base=case.desired)
    allocated = case.share()
    for cut in np.flatnonzero(allocated < case.desired):
        for other in range(len(case.pool)):
            if (case.pool[other], case.priority[other]) == (case.pool[cut], case.priority[cut]):
                assert (allocated[other] - 1) / case.weight[other] <= allocated[cut] / case.weight[cut]


@given(cases(sizes=UNEQUAL, idle=True), st.data())
def test_a_replica_without_a_place_takes_none_that_serves(case, data):
    """A workload whose replicas are larger than all GPUs of its pool changes nothing for others, whatever its rank."""
    row = data.draw(st.integers(0, len(case.pool) - 1))
    too_large = 1.0 + sum(case.gpus[group] for group in case.admitted[case.pool[row]])

    def with_row(name, value):
        return tuple(value if place == row else other for place, other in enumerate(getattr(case, name)))

    large = replace(case, each=with_row("each", too_large), priority=with_row("priority", 99.0))
    without = replace(large, desired=with_row("desired", 0), base=with_row("base", 0), floor=with_row("floor", 0))
    assert large.share()[row] == 0
    assert large.share().tolist() == without.share().tolist()


@given(cases(idle=True))
@example(two(gpus=(1,), floor=(1, 0), idle=(True, False)))
def test_idleness_moves_no_gpu_between_pools_or_priorities(case):
    busy = replace(case, idle=(False,) * len(case.pool)).share()
    among = np.unique(np.stack([case.pool, case.priority]), axis=1, return_inverse=True)[1].ravel()
    assert np.bincount(among, case.share()).tolist() == np.bincount(among, busy).tolist()


@given(cases(sizes=UNEQUAL), st.sampled_from([np.nan, np.inf]))
def test_a_group_of_unknown_size_limits_no_pool(case, unknown):
    unlimited = np.array([0 in case.admitted[pool] for pool in case.pool])
    allocated = case.share(gpus=(unknown, *case.gpus[1:]))
    assert (allocated == case.desired)[unlimited].all()
    others = replace(case, desired=tuple(np.where(unlimited, 0, case.desired).tolist()))
    assert (allocated == others.share())[~unlimited].all()
