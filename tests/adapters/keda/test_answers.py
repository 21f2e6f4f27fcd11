"""What is told, from when, and until when."""

from math import nan

import pytest

from autoscaler.adapters.keda.answers import LED_ELSEWHERE, NOBODY_LEADS, Answer, NoAnswer
from autoscaler.adapters.keda.metric_value import Tolerance
from autoscaler.ports import Change, ChangeStatus
from tests.adapters.keda.world import Row, World, ref

LLAMA = ref("llama")


@pytest.fixture
def world() -> World:
    return World()


def test_before_the_first_tick_there_is_no_answer(world: World):
    with pytest.raises(NoAnswer, match="Deployment prod/llama is not among the workloads of the last tick"):
        world.answers.answer(LLAMA)


def test_before_anybody_was_heard_there_is_no_answer_whatever_is_wanted(world: World):
    world.decide(Row("llama", 5, trusted=False, age_s=nan))
    with pytest.raises(NoAnswer, match="nobody was heard yet"):
        world.answers.answer(LLAMA)


def test_after_a_restart_beside_a_pod_that_hangs_the_count_that_is_there_stands_until_more_is_wanted(world: World):
    told = []
    for wanted in (3, 0, 9, 7):
        world.decide(Row("llama", wanted, current=5, trusted=False, age_s=15))
        told.append(world.answers.answer(LLAMA))
    assert [answer.replicas for answer in told] == [5, 5, 9, 9]
    assert all(answer.active for answer in told)


def test_a_trusted_decision_is_told(world: World):
    world.decide(Row("llama", 5, current=2, age_s=4))
    assert world.answers.answer(LLAMA) == Answer(5, 2, True, 4.0)


def test_pods_that_find_no_gpu_are_among_those_that_the_hpa_counts(world: World):
    world.decide(Row("llama", 9, current=12, blocked=3))
    assert world.answers.answer(LLAMA).current == 12


def test_at_zero_the_hpa_is_off_whatever_pods_are_still_there(world: World):
    world.decide(Row("llama", 3, current=0, pods=3))
    assert world.answers.answer(LLAMA).current == 0


def test_an_answer_lives_as_long_as_the_policy_trusts_its_inputs_and_not_a_second_more(world: World):
    world.decide(Row("llama", 5, age_s=20, max_age_s=60))
    world.clock.time_s += 40
    assert world.answers.answer(LLAMA).age_s == 60
    world.clock.time_s += 1
    with pytest.raises(NoAnswer, match="61 s old; the policy allows 60 s"):
        world.answers.answer(LLAMA)


def test_the_age_of_the_view_of_the_cluster_counts_as_well(world: World):
    world.decide(Row("llama", 0, current=0, age_s=nan), view_age_s=50)
    assert world.answers.answer(LLAMA).age_s == 50
    world.clock.time_s += 11
    with pytest.raises(NoAnswer, match="61 s old"):
        world.answers.answer(LLAMA)


def test_ticks_in_which_nobody_is_heard_do_not_make_an_answer_younger(world: World):
    world.decide(Row("llama", 5))
    for _ in range(7):
        world.clock.time_s += 10
        world.decide(Row("llama", 5, trusted=False, age_s=nan))
    with pytest.raises(NoAnswer, match="70 s old"):
        world.answers.answer(LLAMA)


def test_an_answer_that_holds_or_rises_lives_on_while_some_pods_are_heard(world: World):
    world.decide(Row("llama", 5))
    told = []
    for wanted in (5, 8, 8, 6, 8, 8, 9):  # one pod hangs for ever, and the load of the others rises
        world.clock.time_s += 20
        world.decide(Row("llama", wanted, trusted=False, age_s=15))
        told.append(world.answers.answer(LLAMA))
    assert [(answer.replicas, answer.age_s) for answer in told] == [(count, 15) for count in (5, 8, 8, 8, 8, 8, 9)]
    world.decide(Row("llama", 9, trusted=False, age_s=15), view_age_s=61)
    with pytest.raises(NoAnswer, match="61 s old"):
        world.answers.answer(LLAMA)


def test_a_decision_without_trust_raises_the_answer_and_never_lowers_it(world: World):
    world.decide(Row("llama", 5))
    told = []
    for wanted in (8, 6, 0, nan):
        world.decide(Row("llama", wanted, trusted=False))
        told.append(world.answers.answer(LLAMA).replicas)
    assert told == [8, 8, 8, 8]
    world.decide(Row("llama", 4))
    assert world.answers.answer(LLAMA).replicas == 4


def test_a_wake_up_without_trust_activates_a_workload_at_zero(world: World):
    world.decide(Row("llama", 0, current=0))
    assert not world.answers.answer(LLAMA).active
    world.decide(Row("llama", 1, current=0, trusted=False))
    assert world.answers.answer(LLAMA).active


def test_a_workload_that_should_have_replicas_is_active_because_keda_takes_an_inactive_one_from_n_to_0(world: World):
    world.decide(Row("llama", 5, active=False))
    assert world.answers.answer(LLAMA).active
    world.decide(Row("llama", 0, active=False))
    assert not world.answers.answer(LLAMA).active


def test_a_workload_without_a_policy_in_force_has_no_answer(world: World):
    world.decide(Row("llama", 5, max_age_s=nan))
    with pytest.raises(NoAnswer, match="no policy is in force"):
        world.answers.answer(LLAMA)


def test_a_replica_that_lost_the_lease_says_whether_another_leads(world: World):
    world.decide()
    world.lease.leading = False
    with pytest.raises(NoAnswer, match=NOBODY_LEADS):
        world.answers.answer(LLAMA)
    world.lease.has_other_leader = True
    with pytest.raises(NoAnswer, match=LED_ELSEWHERE):
        world.answers.answer(LLAMA)
    world.lease.leading = True
    assert world.answers.answer(LLAMA).replicas == 3


def test_answers_follow_their_workloads_when_rows_come_and_go(world: World):
    world.decide(Row("a", 1, id=0), Row("llama", 5, id=1), Row("z", 9, id=2))
    world.decide(Row("llama", 0, id=1, trusted=False), Row("new", 7, id=3, trusted=False, age_s=nan))
    assert world.answers.answer(LLAMA).replicas == 5
    for gone_or_new in ("a", "z", "new"):
        with pytest.raises(NoAnswer):
            world.answers.answer(ref(gone_or_new))


def test_a_workload_made_anew_under_its_old_name_does_not_inherit_the_answer(world: World):
    world.decide(Row("llama", 5, id=1))
    world.decide(Row("llama", 9, id=2, trusted=False, age_s=nan))
    with pytest.raises(NoAnswer, match="nobody was heard yet"):
        world.answers.answer(LLAMA)


def test_of_a_workload_made_anew_nothing_is_swallowed_until_keda_asks_again(world: World):
    world.decide(Row("llama", 21, current=20))
    world.answers.publish(LLAMA, Tolerance())
    assert world.answers.swallowed_workloads() == [LLAMA]
    world.decide(Row("mistral", 1, id=1))
    world.decide(Row("llama", 21, current=20, id=2))
    assert world.answers.swallowed_workloads() == []


def test_a_failed_tick_changes_nothing(world: World):
    world.decide()
    world.answers.failed(0.0, RuntimeError("boom"))
    assert world.answers.answer(LLAMA).replicas == 3


def test_the_step_that_the_tolerance_swallows_is_told_once_keda_has_asked(world: World):
    world.decide(Row("llama", 11, current=10))
    assert not world.answers.swallowed(LLAMA)
    assert world.answers.publish(LLAMA, Tolerance()).value == 11
    assert world.answers.swallowed(LLAMA)
    assert world.answers.swallowed_workloads() == [LLAMA]
    world.decide(Row("llama", 12, current=10))
    assert not world.answers.swallowed(LLAMA)
    world.answers.publish(LLAMA, Tolerance(0, 0))
    world.decide(Row("llama", 11, current=10))
    assert world.answers.swallowed_workloads() == []


def test_a_step_down_inside_the_tolerance_is_sent_lower_and_lands(world: World):
    world.decide(Row("llama", 10, current=11))
    assert world.answers.publish(LLAMA, Tolerance()) == (9.00125, True)


def test_where_a_roll_out_adds_pods_the_value_keeps_the_hpa_from_their_count(world: World):
    """It divides by the pods there are, and goes to their count where that is within its tolerance."""
    world.decide(Row("llama", 12, current=12, pods=13))
    assert world.answers.publish(LLAMA, Tolerance()) == (11.00125, True)
    assert not world.answers.swallowed(LLAMA)
    world.decide(Row("llama", 100, current=100, pods=105))
    assert not world.answers.publish(LLAMA, Tolerance()).reachable
    assert world.answers.swallowed(LLAMA)


def test_before_the_first_pod_of_a_workload_is_there_nothing_is_swallowed(world: World):
    world.decide(Row("llama", 3, current=1, pods=0))
    assert world.answers.publish(LLAMA, Tolerance()) == (3, True)


async def test_changes_are_published_and_the_outcome_says_when_the_hpa_will_not_act(world: World):
    change = Change(LLAMA, "uid", 10, 11, "reason")
    world.decide(Row("llama", 11, current=10))
    assert [(o.status, o.detail) for o in await world.answers.apply([change], 1.0)] == [(ChangeStatus.PUBLISHED, "")]
    world.answers.publish(LLAMA, Tolerance())
    (outcome,) = await world.answers.apply([change], 1.0)
    assert outcome.change == change and "tolerance of the HPA" in outcome.detail


@pytest.mark.parametrize(
    ("row", "later_s", "heard", "status", "words"),
    [
        (Row("llama", 4, trusted=False, age_s=nan), 0, False, ChangeStatus.FAILED, "nobody was heard yet"),
        (Row("llama", 4, trusted=False, age_s=nan), 0, True, ChangeStatus.PUBLISHED, ""),  # from this very tick on
        (Row("llama", 4), 30, False, ChangeStatus.PUBLISHED, ""),  # the last decision is still told
        (Row("llama", 4), 61, False, ChangeStatus.FAILED, "its inputs are too old; the policy allows 60 s"),
    ],
)
async def test_a_change_is_no_news_when_keda_gets_no_answer(
    world: World, row: Row, later_s: float, heard: bool, status: ChangeStatus, words: str
):
    world.decide(row)
    world.clock.time_s += later_s
    (outcome,) = await world.publish("llama", 4, heard)
    assert outcome.status is status
    assert words in outcome.detail


def test_watchers_hear_of_activity_and_of_nothing_else(world: World):
    heard = []
    with world.answers.watching(LLAMA, lambda: heard.append(world.clock.time_s)):
        for now_s, row in [
            (1001, Row("llama", 0, trusted=False, age_s=nan)),  # unknown
            (1002, Row("llama", 0)),  # idle
            (1003, Row("llama", 2)),  # active
            (1004, Row("llama", 7)),
            (1005, Row("other", 7, id=5)),  # gone
        ]:
            world.clock.time_s = now_s
            world.decide(row)
    world.decide(Row("llama", 2))
    assert heard == [1002, 1003, 1005]
