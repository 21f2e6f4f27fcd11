"""The answers to KEDA: their values, and when they expire."""

from math import nan

import pytest

from autoscaler.adapters.keda.answers import NO_LEADER, OTHER_LEADER, CountAnswer, HandingOver, NoAnswer
from autoscaler.adapters.keda.metric_value import Tolerance
from autoscaler.ports import Change, ChangeStatus
from tests.adapters.keda.world import Row, World, ref

LLAMA = ref("llama")


@pytest.fixture
def world() -> World:
    return World()


def test_no_answer_before_the_first_tick(world: World):
    with pytest.raises(NoAnswer, match="Deployment prod/llama is not among the workloads of the last tick"):
        world.answers.answer(LLAMA)


def test_no_answer_until_a_pod_was_read(world: World):
    world.decide(Row("llama", 5, trusted=False, age_s=nan))
    with pytest.raises(NoAnswer, match="no pod was read yet"):
        world.answers.answer(LLAMA)


def test_present_count_is_the_answer_after_a_restart(world: World):
    answers = []
    for desired in (3, 0, 9, 7):
        world.decide(Row("llama", desired, current=5, trusted=False, age_s=15))
        answers.append(world.answers.answer(LLAMA))
    assert [answer.replicas for answer in answers] == [5, 5, 9, 9]
    assert all(answer.active for answer in answers)


def test_answer_is_the_trusted_decision(world: World):
    world.decide(Row("llama", 5, current=2, age_s=4))
    assert world.answers.answer(LLAMA) == CountAnswer(5, 2, True, 4.0)


def test_current_count_includes_blocked_pods(world: World):
    world.decide(Row("llama", 9, current=12, blocked=3))
    assert world.answers.answer(LLAMA).current == 12


def test_current_count_is_zero_when_the_hpa_is_off(world: World):
    world.decide(Row("llama", 3, current=0, pods=3))
    assert world.answers.answer(LLAMA).current == 0


def test_answer_expires_with_the_age_of_its_inputs(world: World):
    world.decide(Row("llama", 5, age_s=20, max_age_s=60))
    world.clock.time_s += 40
    assert world.answers.answer(LLAMA).age_s == 60
    world.clock.time_s += 1
    with pytest.raises(NoAnswer, match="61 s old; the policy allows 60 s"):
        world.answers.answer(LLAMA)


def test_answer_expires_with_the_age_of_the_cluster_view(world: World):
    world.decide(Row("llama", 0, current=0, age_s=nan), view_age_s=50)
    assert world.answers.answer(LLAMA).age_s == 50
    world.clock.time_s += 11
    with pytest.raises(NoAnswer, match="61 s old"):
        world.answers.answer(LLAMA)


def test_answer_is_not_renewed_when_no_pod_is_read(world: World):
    world.decide(Row("llama", 5))
    for _ in range(7):
        world.clock.time_s += 10
        world.decide(Row("llama", 5, trusted=False, age_s=nan))
    with pytest.raises(NoAnswer, match="70 s old"):
        world.answers.answer(LLAMA)


def test_answer_is_renewed_when_some_pods_are_read(world: World):
    world.decide(Row("llama", 5))
    answers = []
    for desired in (5, 8, 8, 6, 8, 8, 9):  # one pod hangs for ever, and the load of the others rises
        world.clock.time_s += 20
        world.decide(Row("llama", desired, trusted=False, age_s=15))
        answers.append(world.answers.answer(LLAMA))
    assert [(answer.replicas, answer.age_s) for answer in answers] == [(count, 15) for count in (5, 8, 8, 8, 8, 8, 9)]
    world.decide(Row("llama", 9, trusted=False, age_s=15), view_age_s=61)
    with pytest.raises(NoAnswer, match="61 s old"):
        world.answers.answer(LLAMA)


def test_untrusted_decision_only_raises_the_answer(world: World):
    world.decide(Row("llama", 5))
    answers = []
    for desired in (8, 6, 0, nan):
        world.decide(Row("llama", desired, trusted=False))
        answers.append(world.answers.answer(LLAMA).replicas)
    assert answers == [8, 8, 8, 8]
    world.decide(Row("llama", 4))
    assert world.answers.answer(LLAMA).replicas == 4


def test_untrusted_wake_up_activates_a_workload_at_zero(world: World):
    world.decide(Row("llama", 0, current=0))
    assert not world.answers.answer(LLAMA).active
    world.decide(Row("llama", 1, current=0, trusted=False))
    assert world.answers.answer(LLAMA).active


def test_workload_is_active_when_it_should_have_replicas(world: World):
    world.decide(Row("llama", 5, active=False))
    assert world.answers.answer(LLAMA).active
    world.decide(Row("llama", 0, active=False))
    assert not world.answers.answer(LLAMA).active


def test_no_answer_without_a_policy(world: World):
    world.decide(Row("llama", 5, max_age_s=nan))
    with pytest.raises(NoAnswer, match="no policy is in force"):
        world.answers.answer(LLAMA)


def test_reason_tells_whether_another_replica_leads(world: World):
    world.lease.leading = False
    world.decide()
    with pytest.raises(NoAnswer, match=NO_LEADER):
        world.answers.answer(LLAMA)
    world.lease.has_other_leader = True
    with pytest.raises(NoAnswer, match=OTHER_LEADER):
        world.answers.answer(LLAMA)
    world.lease.leading = True
    with pytest.raises(HandingOver):  # what was decided without the lead may differ from what the leader answered
        world.answers.answer(LLAMA)
    world.decide()
    assert world.answers.answer(LLAMA).replicas == 3


def test_answers_move_with_the_rows_of_their_workloads(world: World):
    world.decide(Row("a", 1, id=0), Row("llama", 5, id=1), Row("z", 9, id=2))
    world.decide(Row("llama", 0, id=1, trusted=False), Row("new", 7, id=3, trusted=False, age_s=nan))
    assert world.answers.answer(LLAMA).replicas == 5
    for gone_or_new in ("a", "z", "new"):
        with pytest.raises(NoAnswer):
            world.answers.answer(ref(gone_or_new))


def test_recreated_workload_does_not_inherit_the_answer(world: World):
    world.decide(Row("llama", 5, id=1))
    world.decide(Row("llama", 9, id=2, trusted=False, age_s=nan))
    with pytest.raises(NoAnswer, match="no pod was read yet"):
        world.answers.answer(LLAMA)


def test_recreated_workload_does_not_inherit_the_tolerance(world: World):
    world.decide(Row("llama", 21, current=20))
    world.answers.publish(LLAMA, Tolerance())
    assert world.answers.swallowed_workloads() == [LLAMA]
    world.decide(Row("mistral", 1, id=1))
    world.decide(Row("llama", 21, current=20, id=2))
    assert world.answers.swallowed_workloads() == []


def test_failed_tick_changes_nothing(world: World):
    world.decide()
    world.answers.failed(0.0, RuntimeError("boom"))
    assert world.answers.answer(LLAMA).replicas == 3


def test_hidden_step_is_reported_after_keda_read_the_value(world: World):
    world.decide(Row("llama", 11, current=10))
    assert not world.answers.is_swallowed(LLAMA)
    assert world.answers.publish(LLAMA, Tolerance()).value == 11
    assert world.answers.is_swallowed(LLAMA)
    assert world.answers.swallowed_workloads() == [LLAMA]
    world.decide(Row("llama", 12, current=10))
    assert not world.answers.is_swallowed(LLAMA)
    world.answers.publish(LLAMA, Tolerance(0, 0))
    world.decide(Row("llama", 11, current=10))
    assert world.answers.swallowed_workloads() == []


def test_value_is_lowered_when_a_step_down_is_hidden(world: World):
    world.decide(Row("llama", 10, current=11))
    assert world.answers.publish(LLAMA, Tolerance()) == (9.00125, True)


def test_value_allows_for_pods_that_a_roll_out_added(world: World):
    """The HPA divides by the number of pods, and keeps their count within its tolerance."""
    world.decide(Row("llama", 12, current=12, pods=13))
    assert world.answers.publish(LLAMA, Tolerance()) == (11.00125, True)
    assert not world.answers.is_swallowed(LLAMA)
    world.decide(Row("llama", 100, current=100, pods=105))
    assert not world.answers.publish(LLAMA, Tolerance()).reachable
    assert world.answers.is_swallowed(LLAMA)


def test_no_step_is_hidden_before_the_first_pod(world: World):
    world.decide(Row("llama", 3, current=1, pods=0))
    assert world.answers.publish(LLAMA, Tolerance()) == (3, True)


async def test_outcome_tells_when_the_hpa_will_not_act(world: World):
    change = Change(LLAMA, "uid", 10, 11, "reason")
    world.decide(Row("llama", 11, current=10))
    assert [(o.status, o.detail) for o in await world.answers.apply([change], 1.0)] == [(ChangeStatus.PUBLISHED, "")]
    world.answers.publish(LLAMA, Tolerance())
    (outcome,) = await world.answers.apply([change], 1.0)
    assert outcome.change == change and "tolerance of the HPA" in outcome.detail


@pytest.mark.parametrize(
    ("row", "later_s", "has_fresh_input", "status", "words"),
    [
        (Row("llama", 4, trusted=False, age_s=nan), 0, False, ChangeStatus.FAILED, "no pod was read yet"),
        (Row("llama", 4, trusted=False, age_s=nan), 0, True, ChangeStatus.PUBLISHED, ""),  # from this very tick on
        (Row("llama", 4), 30, False, ChangeStatus.PUBLISHED, ""),  # the last decision is still the answer
        (Row("llama", 4), 61, False, ChangeStatus.FAILED, "its inputs are too old; the policy allows 60 s"),
    ],
)
async def test_change_fails_when_keda_gets_no_answer(
    world: World, row: Row, later_s: float, has_fresh_input: bool, status: ChangeStatus, words: str
):
    world.decide(row)
    world.clock.time_s += later_s
    (outcome,) = await world.publish("llama", 4, has_fresh_input)
    assert outcome.status is status
    assert words in outcome.detail


def test_streams_are_notified_only_of_activity(world: World):
    notified_s = []
    with world.answers.watching(LLAMA, lambda: notified_s.append(world.clock.time_s)):
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
    assert notified_s == [1002, 1003, 1005]
