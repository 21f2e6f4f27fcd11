"""Use of quotas by ours and by others, and how a moment of disagreement between two watches is passed over."""

import numpy as np
import pytest

from autoscaler.adapters.kubernetes.quotas.columns import SETTLE_S, Count, QuotaLayout, QuotaRow, lay_out
from autoscaler.core.model.quotas import Quota, Quotas
from tests.adapters.kubernetes.quotas.world import GPU


def rows(*flavors: str, nominal: float = 8.0) -> list[QuotaRow]:
    return [QuotaRow(Quota("q", GPU, flavor), nominal, key=flavor) for flavor in flavors]


def laid_out(rows: list[QuotaRow], *charging: list[int]) -> QuotaLayout:
    layout = lay_out(rows, charging)
    assert layout is not None
    return layout


def counted(layout: QuotaLayout, held: list[float], used: dict[str, float]) -> Quotas:
    return Count().quotas(layout, np.array(held), used, 0.0)


def test_others_use_what_our_pods_do_not():
    quotas = counted(laid_out(rows("a"), [0], [0], []), [2.0, 1.0, 9.0], {"a": 7.0})
    assert quotas.used_by_others.tolist() == [4.0]
    assert quotas.tenant.tolist() == [0, 0, -1]


@pytest.mark.parametrize("used", [{}, {"a": 0.0}, {"a": 1.0}])
def test_others_use_nothing_when_the_source_lags_behind(used: dict[str, float]):
    assert counted(laid_out(rows("a"), [0]), [3.0], used).used_by_others.tolist() == [0.0]


def test_workloads_with_one_flavor_take_it_first():
    layout = laid_out(rows("a", "b"), [0, 1], [0])
    quotas = counted(layout, [4.0, 6.0], {"a": 8.0, "b": 5.0})
    assert quotas.used_by_others.tolist() == [0.0, 3.0]  # 6 and 2 of a, 2 of b


def test_quotas_without_a_share_in_a_cohort_are_left_out():
    shared = [QuotaRow(Quota(name, GPU, cohort="c"), 8.0) for name in "ab"]
    other = [
        QuotaRow(Quota("c", GPU, cohort="d"), 8.0),
        QuotaRow(Quota("d", "nvidia.com/mig-1g.10gb", cohort="c"), 8.0),
    ]
    layout = laid_out([*other, *shared], [2])
    assert [row.quota.source for row in layout.rows] == ["a", "b"]
    assert layout.charged.tolist() == [[True, False]]


def test_nothing_is_laid_out_when_no_workload_is_charged():
    assert lay_out(rows("a"), [[], []]) is None
    assert lay_out([], []) is None


def test_stopped_queue_keeps_what_its_pods_hold():
    layout = laid_out([QuotaRow(Quota("q", GPU), 0.0, keeps=True), QuotaRow(Quota("r", GPU), 0.0)], [0], [1])
    assert counted(layout, [3.0, 2.0], {}).nominal.tolist() == [3.0, 0.0]


def test_growth_of_others_is_believed_when_it_lasts():
    """A pod of ours that was deleted still counts in the status of its quota for a moment."""
    count, layout = Count(), laid_out(rows("a"), [0])

    def others(held: float, used: float, now_s: float) -> float:
        return count.quotas(layout, np.array([held]), {"a": used}, now_s).used_by_others.tolist()[0]

    assert others(4.0, 5.0, 0.0) == 1.0
    assert others(3.0, 5.0, 1.0) == 1.0
    assert others(3.0, 4.0, 2.0) == 1.0
    assert others(3.0, 6.0, 3.0) == 1.0  # another pod of others
    assert others(3.0, 5.0, 4.0) == 1.0
    assert others(3.0, 6.0, 3.0 + SETTLE_S) == 2.0  # the least since it grew
    assert others(3.0, 6.0, 4.0 + SETTLE_S) == 2.0
    assert others(3.0, 6.0, 4.0 + 2 * SETTLE_S) == 3.0
    assert others(3.0, 3.0, 5.0 + 2 * SETTLE_S) == 0.0


def test_belief_lasts_when_quotas_are_laid_out_again():
    count, held = Count(), np.array([0.0])
    count.quotas(laid_out(rows("a", "b"), [1]), held, {"b": 2.0}, 0.0)
    again = laid_out(rows("b", "c"), [0, 1])
    assert count.quotas(again, held, {"b": 5.0, "c": 4.0}, 1.0).used_by_others.tolist() == [2.0, 4.0]
