"""Properties of sharing within quotas: a slow allocation in other words, monotony, give-back, row order, odd amounts.

The slow one keeps the GPUs of each tenant, and asks after each replica whether every owner keeps within its limits.
"""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from autoscaler.core.allocate import pools
from autoscaler.core.allocate.slots import Requests, order
from autoscaler.core.supply.running import Running
from autoscaler.core.supply.tenants import place_tenants
from tests.core.explain.stories import ExplainedStory
from tests.core.world import claims, demands, fleet, node_groups, quotas, spec

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Case:
    """Workloads of one pool, each of one tenant or of none. Each tenant has one quota."""

    gpus: int
    nominal: tuple[float, ...]  # by tenant
    borrowing: tuple[float, ...]
    lending: tuple[float, ...]
    cohort: tuple[str, ...]
    others: tuple[float, ...]
    tenant: tuple[int, ...]  # by workload
    each: tuple[float, ...]
    floor: tuple[int, ...]
    base: tuple[int, ...]
    desired: tuple[int, ...]
    priority: tuple[float, ...]
    weight: tuple[float, ...]
    current: tuple[int, ...]
    reserved: tuple[bool, ...]  # paused
    idle: tuple[bool, ...]

    def share(self, rows=None, limited=True):
        rows = list(range(len(self.tenant))) if rows is None else rows

        def column(name):
            return np.array([float(getattr(self, name)[row]) for row in rows])

        kind = quotas(
            [self.tenant[row] for row in rows], self.nominal, self.borrowing, self.lending, self.cohort, self.others
        )
        cluster = fleet(
            [0] * len(rows),
            replicas=[self.current[row] for row in rows],
            gpus_per_replica=column("each"),
            groups=node_groups([self.gpus], [0]),
            workload_id=np.array(rows),
            quotas=(kind,) if limited else (),
        )
        ranks = spec(len(rows), min_replicas=column("floor"), priority=column("priority"), weight=column("weight"))
        ours = ~column("reserved").astype(bool)
        desired = np.where(ours, column("desired"), column("current"))
        asked = demands(
            desired,
            base=np.fmin(column("base"), desired),
            scheduled=column("current"),
            ours=ours,
            idle=column("idle"),
        )
        given = pools.share(cluster, ranks, claims(len(rows)), asked)
        return given[np.argsort(rows)]

    def used(self, replicas):
        """Return the GPUs that each quota is charged for."""
        used = np.array(self.others, float)
        for tenant, gpus in zip(self.tenant, np.array(replicas) * self.each, strict=True):
            if tenant >= 0:
                used[tenant] += gpus
        return used

    def is_within(self, replicas, tenant):
        """Return whether one tenant keeps within its own limit, and its cohort within what its members lend.

        A tenant that uses none of what is lent may do so whatever others of its cohort use.
        """
        used, own = self.used(replicas), self.cohort[tenant]
        borrowing = self.borrowing[tenant] if own else 0.0
        if used[tenant] > self.nominal[tenant] + borrowing:
            return False
        lent = np.fmin(self.lending, self.nominal)
        if used[tenant] <= self.nominal[tenant] - lent[tenant]:
            return True
        members = [place for place, cohort in enumerate(self.cohort) if own and cohort == own]
        over = sum(max(used[place] - (self.nominal[place] - lent[place]), 0.0) for place in members)
        return not own or over <= sum(lent[place] for place in members)

    def paused(self):
        return np.where(self.reserved, self.current, 0)


@st.composite
def cases(draw, sizes=(1.0, 2.0, 4.0), paused=False, others=False, idle=False):
    tenants, workloads = draw(st.integers(1, 4)), draw(st.integers(1, 6))

    def column(values, count=workloads):
        return tuple(draw(st.lists(values, min_size=count, max_size=count)))

    steps = [column(st.integers(0, 3)) for _ in range(3)]
    floor, base, desired = (tuple(sum(parts) for parts in zip(*steps[:last], strict=True)) for last in (1, 2, 3))
    limits = st.sampled_from([0.0, 1.0, 2.0, 5.0, np.inf])
    return Case(
        gpus=draw(st.integers(0, 30)),
        nominal=column(st.integers(0, 9).map(float), tenants),
        borrowing=column(limits, tenants),
        lending=column(limits, tenants),
        cohort=column(st.sampled_from(["", "a", "b"]), tenants),
        others=column(st.integers(0, 9).map(float) if others else st.just(0.0), tenants),
        tenant=column(st.integers(-1, tenants - 1)),
        each=column(st.sampled_from(sizes)),
        floor=floor,
        base=base,
        desired=desired,
        priority=column(st.sampled_from([0.0, 10.0])),
        weight=column(st.sampled_from([1.0, 2.0])),
        current=column(st.integers(0, 3)),
        reserved=column(st.booleans() if paused else st.just(False)),
        idle=column(st.booleans() if idle else st.just(False)),
    )


LARGER_THAN_ITS_QUOTA = Case(
    gpus=1,
    nominal=(2.0, 1.0),
    borrowing=(0.0, 0.0),
    lending=(0.0, 0.0),
    cohort=("", ""),
    others=(1.0, 0.0),
    tenant=(0, 0, 0, 1),
    each=(1.0, 2.0, 1.0, 1.0),
    floor=(0, 0, 0, 0),
    base=(0, 0, 0, 0),
    desired=(0, 1, 1, 1),
    priority=(0.0, 0.0, 0.0, 0.0),
    weight=(1.0, 1.0, 1.0, 1.0),
    current=(0, 1, 0, 0),
    reserved=(False,) * 4,
    idle=(False,) * 4,
)
"""The second workload runs a replica of two GPUs, though others leave one."""


def share_one_by_one(case):
    """Return the allocation of one replica after the other: needed ones first, and among these, nominal ones.

    Replicas that a quota does not hold even if it is empty are not requested.
    """

    def holds(row, count):
        alone = np.where(np.arange(len(case.tenant)) == row, count, 0)
        return case.tenant[row] < 0 or case.is_within(alone, case.tenant[row])

    most = [max([0, *(n for n in range(1, want + 1) if holds(row, n))]) for row, want in enumerate(case.desired)]
    plain = Requests(
        id=np.arange(len(case.tenant)),
        pool=np.zeros(len(case.tenant), dtype=np.int64),
        gpus_each=np.array(case.each),
        reserved=np.zeros(len(case.tenant)),
        floor=np.array(case.floor, float),
        base=np.array(case.base, float),
        most=np.array(most, float),
        scheduled=np.array(case.current, float),
        confined=np.zeros(len(case.tenant)),
        priority=np.array(case.priority),
        weight=np.array(case.weight),
        urgency=np.zeros(len(case.tenant)),
        guaranteed_gpus=np.zeros(len(case.tenant)),
        can_wait=np.zeros(len(case.tenant), dtype=bool),
        idle=np.zeros(len(case.tenant), dtype=bool),
        running=Running.none(len(case.tenant)),
    )
    ranked, numbers, used = [], [0] * len(case.tenant), list(case.others)
    for row in order(plain).row.tolist():
        needed, is_floor = numbers[row] < max(case.base[row], case.floor[row]), numbers[row] < case.floor[row]
        numbers[row] += 1
        borrows = False
        if (tenant := case.tenant[row]) >= 0:
            used[tenant] += case.each[row]
            borrows = used[tenant] > max(case.nominal[tenant], case.others[tenant])
        ranked.append((not needed, borrows, not is_floor, len(ranked), row))
    allocated = np.zeros(len(case.tenant))
    for *_, row in sorted(ranked):
        allocated[row] += 1
        tenant = case.tenant[row]
        if np.dot(allocated, case.each) > case.gpus or not (tenant < 0 or case.is_within(allocated, tenant)):
            allocated[row] -= 1
    return allocated


@example(LARGER_THAN_ITS_QUOTA)
@given(cases(others=True))
def test_replicas_are_those_of_a_slow_allocation_within_quotas(case):
    assert case.share().tolist() == share_one_by_one(case).tolist()


@given(cases(paused=True, others=True, idle=True))
def test_no_quota_is_exceeded_beyond_what_stays(case):
    allocated, stays = case.share(), case.paused()
    others = replace(case, tenant=(-1,) * len(case.tenant))
    for tenant in set(case.tenant) - {-1}:
        more = [row for row in np.flatnonzero(allocated > stays) if case.tenant[row] == tenant]
        assert not more or case.is_within(allocated, tenant)
    assert (allocated <= np.fmax(case.desired, case.paused())).all()
    assert np.dot(allocated, case.each) <= max(case.gpus, np.dot(stays, case.each))
    assert others.share().tolist() == case.share(limited=False).tolist()


@given(cases(others=True))
def test_no_replica_is_left_out_that_has_a_place(case):
    allocated = case.share()
    for row in np.flatnonzero(allocated < case.desired):
        with_one_more = allocated + (np.arange(len(allocated)) == row)
        tenant = case.tenant[row]
        fits = np.dot(with_one_more, case.each) <= case.gpus and (tenant < 0 or case.is_within(with_one_more, tenant))
        assert not fits


@given(cases(idle=True))
def test_quotas_that_suffice_change_nothing(case):
    ample = replace(case, nominal=(1000.0,) * len(case.nominal))
    assert ample.share().tolist() == case.share(limited=False).tolist()


@given(cases(paused=True, others=True, idle=True), st.randoms(use_true_random=False))
def test_the_order_of_rows_is_irrelevant_when_quotas_apply(case, random):
    rows = list(range(len(case.tenant)))
    random.shuffle(rows)
    assert case.share(rows).tolist() == case.share().tolist()


@given(cases(sizes=(1.0,), others=True))
def test_owners_get_their_nominal_gpus_for_what_they_need(case):
    """No borrower keeps a GPU that an owner needs, where the pool suffices and others use no more than their own."""
    case = replace(
        case,
        gpus=1000,
        borrowing=(np.inf,) * len(case.nominal),
        others=tuple(np.fmin(case.others, case.nominal).tolist()),
    )
    allocated = case.share()
    for tenant in set(case.tenant) - {-1}:
        rows = np.array(case.tenant) == tenant
        needed = np.fmax(case.base, case.floor)[rows].sum()
        own = case.nominal[tenant] - case.others[tenant]
        assert np.fmin(allocated, np.fmax(case.base, case.floor))[rows].sum() >= min(needed, own)


@given(cases(sizes=(1.0,)), st.data())
def test_headroom_of_an_owner_takes_no_base_replica(case, data):
    without = replace(case, desired=tuple(np.fmax(case.base, case.floor).tolist()))
    assert np.fmin(case.share(), without.desired).tolist() == without.share().tolist()


@given(cases(sizes=(1.0,)), st.data())
def test_more_gpus_take_a_replica_only_within_a_tenant_or_cohort(case, data):
    """With one size of replicas, a tenant without a cohort loses none to others, and a cohort none to other cohorts."""
    more = replace(case, gpus=case.gpus + data.draw(st.integers(1, 4)))
    assert sum(more.share()) >= sum(case.share())
    before, after = case.share(), more.share()
    for row in np.flatnonzero(after < before):
        tenant = case.tenant[row]
        assert tenant >= 0
        of = [
            place
            for place, other in enumerate(case.tenant)
            if other == tenant or (other >= 0 and case.cohort[tenant] and case.cohort[other] == case.cohort[tenant])
        ]
        assert (after > before)[of].any()


@pytest.mark.parametrize("unknown", [np.nan, np.inf])
@given(case=cases())
def test_a_nominal_quota_that_is_unknown_limits_nothing(unknown, case):
    unlimited = replace(case, nominal=(unknown,) * len(case.nominal))
    assert unlimited.share().tolist() == case.share(limited=False).tolist()


@given(cases(), st.sampled_from([-1.0, -np.inf]))
def test_negative_gpus_count_as_none(case, negative):
    nothing, count = replace(case, nominal=(0.0,) * len(case.nominal)), len(case.nominal)
    assert replace(case, nominal=(negative,) * count).share().tolist() == nothing.share().tolist()
    alone = replace(case, borrowing=(0.0,) * count, others=(0.0,) * count)
    odd = replace(case, borrowing=(negative,) * count, others=(negative,) * count)
    assert odd.share().tolist() == alone.share().tolist()


@given(cases())
def test_limits_that_are_unknown_do_not_limit(case):
    count = len(case.nominal)
    free = replace(case, borrowing=(np.inf,) * count, lending=(np.inf,) * count)
    odd = replace(case, borrowing=(np.nan,) * count, lending=(np.nan,) * count, others=(np.nan,) * count)
    assert odd.share().tolist() == free.share().tolist()


AMOUNTS = st.one_of(st.integers(0, 9).map(float), st.sampled_from([np.nan, np.inf, -np.inf, -2.0, 0.5, 1e12]))


@st.composite
def kinds(draw, workloads, amounts):
    """Return one to three kinds of quotas, whose tenants have several quotas each, or none."""
    found = []
    for _ in range(draw(st.integers(1, 3))):
        count, tenants = draw(st.integers(0, 4)), draw(st.integers(1, 3))
        charged = [draw(st.lists(st.integers(0, count - 1), unique=True)) if count else [] for _ in range(tenants)]

        def column(values, count=count):
            return draw(st.lists(values, min_size=count, max_size=count))

        found.append(
            quotas(
                draw(st.lists(st.integers(-1, tenants), min_size=workloads, max_size=workloads)),
                column(amounts),
                column(amounts),
                column(amounts),
                column(st.sampled_from(["", "a", "b"])),
                column(amounts),
                charged,
            )
        )
    return tuple(found)


def played(data, amounts):
    """Tick twice on workloads with load and quotas, and return the story."""
    workloads = data.draw(st.integers(1, 5))
    column = st.lists(st.integers(0, 4), min_size=workloads, max_size=workloads)
    cluster = fleet(
        data.draw(column),
        data.draw(column),
        pool_gpus=[data.draw(st.sampled_from([4.0, 12.0, np.nan]))],
        gpus_per_replica=np.array(data.draw(column), dtype=float),
        quotas=data.draw(kinds(workloads, amounts)),
        drain_s=np.full(workloads, 30.0),
    )
    story = ExplainedStory(spec(workloads, min_replicas=0.0))
    for _ in range(2):
        story.tick(cluster, running=10.0, waiting=data.draw(st.sampled_from([0.0, 5.0, 30.0])))
    return story


@given(st.data())
def test_odd_amounts_break_no_tick_and_no_explanation(data):
    story = played(data, AMOUNTS)
    assert (story.decision.replicas >= 0).all()
    for row in range(len(story.spec.weight)):
        assert story.explain(row).sentence


@given(st.data())
def test_further_replicas_keep_within_quotas_of_every_kind(data):
    """No quota lacks room for what is allocated, unless its tenant only has what stays."""
    story = played(data, st.integers(0, 9).map(float))
    cluster, gpus = story.input.fleet, story.decision.replicas * story.input.fleet.gpus_per_replica
    for limit in place_tenants(cluster.quotas):
        assert not limit.copy_with(gpus)[1].any()
