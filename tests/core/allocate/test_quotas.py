"""Sharing within quotas, in worked numbers: owners, cohorts, flavors, several kinds of quotas, odd amounts."""

from dataclasses import replace

import numpy as np
import pytest

from autoscaler.core.allocate import pools
from tests.core.world import claims, demands, fleet, quotas, spec


def shared(
    desired, *kinds, gpus=np.nan, base=None, current=None, each=1.0, ours=None, idle=None, claimed=None, **columns
):
    rows = len(desired)
    present = current or [0] * rows
    cluster = fleet(
        [0] * rows,
        replicas=present,
        gpus_per_replica=np.broadcast_to(np.asarray(each, float), rows).copy(),
        pool_gpus=[gpus],
        quotas=kinds,
    )
    asked = demands(desired, base=base, scheduled=present, ours=ours, idle=idle)
    rules = spec(rows, **{"min_replicas": 0.0, **columns})
    return pools.share(cluster, rules, claims(rows, replicas=claimed), asked).tolist()


def test_a_quota_limits_a_workload_whose_pool_is_of_unknown_size():
    assert shared([6, 6], quotas([0, 1], [4, 8])) == [4, 6]


def test_a_quota_limits_a_workload_whose_pool_suffices():
    assert shared([6, 6], quotas([0, 1], [4, 8]), gpus=100) == [4, 6]


def test_a_quota_is_in_gpus_not_replicas():
    assert shared([6, 6], quotas([0, 0], [8]), each=[2.0, 4.0], priority=[0.0, 9.0]) == [0, 2]
    assert shared([6, 1], quotas([0, 0], [8]), each=[2.0, 4.0], priority=[0.0, 9.0]) == [2, 1]


def test_a_tenant_shares_its_quota_by_priority_and_weight():
    assert shared([6, 6], quotas([0, 0], [9]), priority=[0.0, 9.0]) == [3, 6]
    assert shared([9, 9], quotas([0, 0], [9]), weight=[1.0, 2.0]) == [3, 6]


def test_a_workload_without_a_quota_shares_only_the_pool():
    assert shared([3, 3], quotas([0, -1], [2]), gpus=4) == [2, 2]
    assert shared([3, 3], quotas([0, -1], [2]), gpus=4, priority=[9.0, 0.0]) == [2, 2]
    assert shared([3, 3], quotas([0, -1], [2]), gpus=4, priority=[0.0, 9.0]) == [1, 3]


def test_a_tenant_borrows_what_its_cohort_does_not_use():
    two = quotas([0, 1], [4, 8], cohort="all")
    assert shared([9, 3], two) == [9, 3]
    assert shared([9, 4], two) == [8, 4]
    assert shared([9, 12], two) == [4, 8]


def test_limits_of_borrowing_and_lending_hold():
    assert shared([9, 3], quotas([0, 1], [4, 8], cohort="all", borrowing=[1, 0])) == [5, 3]
    assert shared([9, 1], quotas([0, 1], [4, 8], cohort="all", lending=[4, 3])) == [7, 1]
    assert shared([9, 1], quotas([0, 1], [4, 8], cohort=["one", "other"])) == [4, 1]


def test_an_owner_takes_back_what_it_needs_at_once():
    """The second borrows, whatever its priority or floor."""
    two = quotas([0, 1], [8, 4], cohort="all")
    assert shared([8, 12], two, current=[2, 10]) == [8, 4]
    assert shared([8, 12], two, current=[2, 10], priority=[0.0, 9.0], min_replicas=[0.0, 9.0]) == [8, 4]
    assert shared([7, 12], two, current=[2, 10], priority=[0.0, 9.0]) == [7, 5]


def test_headroom_of_an_owner_takes_back_no_base_replica():
    two = quotas([0, 1], [8, 4], cohort="all")
    assert shared([8, 10], two, base=[2, 10], current=[2, 10]) == [2, 10]
    assert shared([8, 10], two, base=[2, 8], current=[2, 10]) == [4, 8]  # headroom of the borrower comes last


def test_replicas_within_nominal_gpus_come_first_in_a_pool_too():
    """The quotas of both together are more than the pool. The first borrows with its third replica."""
    assert shared([5, 5], quotas([0, 1], [2, 8], cohort="all"), gpus=6, priority=[9.0, 0.0]) == [2, 4]


def test_reserved_replicas_count_and_may_exceed_a_quota():
    paused = {"ours": [False, True], "current": [5, 1]}
    assert shared([5, 4], quotas([0, 0], [4]), **paused) == [5, 0]
    assert shared([5, 4], quotas([0, 0], [7]), **paused) == [5, 2]
    assert shared([5, 4], quotas([0, 1], [4, 4], cohort="all"), **paused) == [5, 3]


def test_use_by_others_counts_and_may_exceed_a_quota():
    assert shared([5], quotas([0], [4], others=[3])) == [1]
    assert shared([5], quotas([0], [4], others=[9])) == [0]
    assert shared([5, 0], quotas([0, 1], [4, 4], cohort="all", others=[0, 6])) == [2, 0]
    assert shared([5, 0], quotas([0, 1], [4, 4], cohort="all", others=[0, 6], lending=[0, 4])) == [4, 0]


def test_a_replica_keeps_within_every_kind_of_quota():
    namespace, cluster = quotas([0, 0], [7]), quotas([0, 1], [5, 3], cohort="all")
    assert shared([9, 9], namespace, cluster) == [4, 3]
    assert shared([9, 0], namespace, cluster) == [7, 0]
    assert shared([9, 9], quotas([0, 0], [20]), cluster) == [5, 3]


def test_one_of_several_flavors_suffices():
    """The first tenant may use the first quota, the second either of both."""
    flavors = quotas([0, 1], [2, 3], charged=[[0], [0, 1]])
    assert shared([9, 0], flavors) == [2, 0]
    assert shared([0, 9], flavors) == [0, 5]
    assert shared([2, 9], flavors) == [2, 3]
    assert shared([1, 9], flavors, priority=[0.0, 9.0]) == [0, 5]


def test_idle_workloads_yield_within_their_quota():
    assert shared([2, 2], quotas([0, 0], [3]), idle=[True, False]) == [1, 2]


def test_replicas_without_pods_stay_only_within_the_quota():
    """Two of seven replicas have a pod. The others could have one if the quota of five were empty."""
    assert shared([7, 6], quotas([0, 1], [5, 9]), claimed=[2, np.inf]) == [5, 6]
    assert shared([7, 6], quotas([0, 0], [5]), claimed=[2, np.inf], priority=[9.0, 0.0]) == [5, 3]


def test_a_workload_of_unknown_gpus_is_not_limited():
    assert shared([6, 6], quotas([0, 0], [4]), each=[np.nan, 1.0]) == [6, 4]
    assert shared([6, 6], quotas([0, 0], [4]), each=[0.0, 1.0]) == [6, 4]


@pytest.mark.parametrize("nominal", [np.nan, np.inf])
def test_an_unknown_quota_limits_nothing(nominal):
    assert shared([6, 6], quotas([0, 1], [nominal, 2])) == [6, 2]
    assert shared([6, 6], quotas([0, 1], [nominal, 2], cohort="all")) == [6, 6]
    assert shared([6, 6], quotas([0, 1], [nominal, 2], cohort="all", borrowing=[0, 1], lending=[0, 0])) == [6, 2]


def test_a_zero_or_negative_quota_allows_nothing():
    assert shared([6, 6], quotas([0, 1], [0, -3])) == [0, 0]


def test_a_tenant_without_quotas_is_not_limited():
    two = quotas([0, 1], [4, 4])
    assert shared([6, 6], replace(two, charged=np.array([[False, False], [False, True]]))) == [6, 4]
    assert shared([6, 6], replace(two, tenant=np.array([9, 1]))) == [6, 4]
    assert shared([6, 6], quotas([-1, -1], [])) == [6, 6]
