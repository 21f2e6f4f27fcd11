"""Answers that an HPA does not follow, with a model of the HPA, in virtual time."""

from dataclasses import replace
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.allocate.answers import PATIENCE_S, AnswerState, judge
from autoscaler.core.explain.sentence import explain
from autoscaler.core.model.fleet import Fleet, HpaDelays, HpaLimits
from autoscaler.core.model.types import Decision
from tests.core.world import Story, fleet, spec, world
from tests.hpa import EXACT, SYNC_PERIOD_S, Direction, Hpa, Policy

pytestmark = pytest.mark.slow

TICK_S = 5.0
GPUS = 8
ONE_AT_A_TIME = Direction(0, (Policy("Pods", 1, 120.0),), tolerance=0)


def limits(wake_s: float = 30.0, grow_s: float = 15.0, shrink_s: float = 15.0, zero_s: float = 330.0) -> HpaLimits:
    """Return the limits of two HPAs that hold nothing. Only the first is judged."""
    delays = HpaDelays(*(np.array([value, np.inf]) for value in (wake_s, grow_s, shrink_s, zero_s)))
    no = np.zeros(2, dtype=bool)
    return HpaLimits(np.zeros(2), np.full(2, np.inf), no, no, ("", ""), delays)


class Plant:
    """Two workloads on eight GPUs: an HPA follows the answers to `chat`, and `jobs` follows its own at once."""

    def __init__(self, chat: int, jobs: int, held: HpaLimits | None = None, **columns: float) -> None:
        self.hpa = Hpa(up=EXACT, down=EXACT, replicas=chat)
        self.jobs = jobs
        self.held = held or limits()
        self.story = Story(spec(2, down_stabilization_s=0.0, **columns))
        self.answers: Decision
        self.syncs = True  # whether the HPA controller runs
        self.others_fail = False  # another metric of the HPA cannot be read, so it removes no replica
        self.notes: list[str] = []  # the warning of `chat` in each tick

    @property
    def fleet(self) -> Fleet:
        count = self.hpa.replicas
        return fleet([count, self.jobs], now_s=self.story.now_s, pool_gpus=[float(GPUS)], hpa_limits=self.held)

    def run(self, for_s: float, chat: float, jobs: float) -> tuple[tuple[int, int], tuple[int, int]]:
        """Run with load for this many replicas of each. Return both answers, and the counts that stand."""
        for _ in range(int(for_s / TICK_S)):
            seen = self.fleet
            requests = 10.0 * np.array([chat, jobs]) / np.bincount(seen.pod_workload, minlength=2)
            each = requests[seen.pod_workload]
            load = {"running": np.minimum(each, 10.0), "waiting": np.fmax(each - 10.0, 0.0)}
            self.answers = self.story.tick(seen, TICK_S, **load)
            inp = world(self.story.now_s, seen, self.story.spec, **load)
            self.notes.append("; ".join(explain(inp, self.answers, ("", ""), {}, 0).warnings))
            self.jobs = min(int(self.answers.replicas[1]), GPUS - self.hpa.replicas)
            if self.syncs and self.story.now_s % SYNC_PERIOD_S == 0:
                failing = [None] if self.others_fail else []
                self.hpa.sync(self.story.now_s, Decimal(int(self.answers.replicas[0])), *failing)
        first, second = self.answers.replicas.astype(int).tolist()
        return (first, second), (self.hpa.replicas, self.jobs)


def test_an_answer_that_is_followed_frees_its_gpus_at_once():
    plant = Plant(chat=6, jobs=2)
    assert plant.run(300, chat=2, jobs=6) == ((2, 6), (2, 6))
    assert not any(plant.notes)


def test_replicas_that_stay_beyond_the_answer_hold_their_gpus():
    plant = Plant(chat=6, jobs=2)
    plant.others_fail = True
    assert plant.run(60, chat=2, jobs=6) == ((2, 6), (6, 2))  # until then they may still go
    assert plant.run(60, chat=2, jobs=6) == ((2, 2), (6, 2))  # the answer stays, so that the HPA can follow
    assert plant.notes[-1].startswith("KEDA's HPA has kept 6 replicas for ")
    assert plant.notes[-1].endswith(", although the answer is 2, so the GPUs of these are not free")


def test_an_answer_that_is_followed_again_counts_at_once():
    plant = Plant(chat=6, jobs=2)
    plant.others_fail = True
    plant.run(240, chat=2, jobs=6)
    plant.others_fail = False
    assert plant.run(30, chat=2, jobs=6) == ((2, 6), (2, 6))
    assert not plant.notes[-1]


def test_replicas_that_the_hpa_does_not_make_withhold_no_gpus():
    plant = Plant(chat=2, jobs=2)
    plant.syncs = False
    assert plant.run(60, chat=4, jobs=6) == ((4, 4), (2, 4))
    assert plant.run(120, chat=4, jobs=6) == ((4, 6), (2, 6))
    assert plant.notes[-1].startswith("KEDA's HPA has kept 2 replicas for ")
    assert plant.notes[-1].endswith(", although the answer is 4, so other workloads may take the GPUs of the rest")
    plant.syncs = True
    assert plant.run(60, chat=4, jobs=6) == ((4, 4), (4, 4))
    assert not plant.notes[-1]


def test_an_hpa_that_moves_step_by_step_follows():
    """One replica in two minutes, which its delay of 120 s allows."""
    plant = Plant(chat=6, jobs=2, held=limits(shrink_s=120.0))
    plant.hpa.down = ONE_AT_A_TIME
    assert plant.run(300, chat=2, jobs=6)[0] == (2, 6)
    assert 2 < plant.hpa.replicas < 6
    assert not any(plant.notes)


@pytest.mark.parametrize(("shrink_s", "told"), [(300.0, False), (15.0, True)])
def test_the_stabilization_window_of_the_hpa_is_awaited(shrink_s: float, told: bool):
    plant = Plant(chat=6, jobs=2, held=limits(shrink_s=shrink_s))
    plant.hpa.down = Direction(300, EXACT.policies, tolerance=0)
    plant.run(60, chat=6, jobs=2)
    assert plant.run(340, chat=2, jobs=6)[1] == (2, 6)
    assert any(plant.notes) == told


def test_a_tolerance_that_hides_the_answer_holds_its_replica():
    plant = Plant(chat=7, jobs=1)
    plant.hpa.down = Direction(0, EXACT.policies, tolerance=0.2)
    assert plant.run(240, chat=6, jobs=2) == ((6, 1), (7, 1))
    assert plant.notes[-1].startswith("KEDA's HPA has kept 7 replicas for ")


def test_an_answer_on_the_other_side_of_the_count_begins_again():
    plant = Plant(chat=4, jobs=1)
    plant.syncs = False
    plant.run(240, chat=2, jobs=1)
    assert plant.notes[-1]
    assert plant.run(60, chat=6, jobs=1)[0][0] == 6
    assert not plant.notes[-1]
    plant.run(60, chat=6, jobs=1)
    assert plant.notes[-1]


def test_the_cooldown_before_zero_is_awaited():
    plant = Plant(chat=1, jobs=1, idle_after_s=60.0)
    plant.syncs = False
    story, seen = plant.story, plant.fleet
    notes = {}
    for _ in range(120):
        decision = story.tick(seen, TICK_S, running=0.0, gateway_waiting=0.0)
        notes[story.now_s] = not np.isnan(decision.unfollowed_s[0])
    assert decision.replicas[0] == 0
    (first, *_) = [at for at, told in notes.items() if told]
    assert first - 1000 >= 60 + 330 + 60


def test_nothing_is_judged_without_an_hpa_or_with_another_owner():
    for columns in ({"hpa_limits": None}, {"paused": np.array([True, False])}, {"other_owner": ("HPA/x", "")}):
        seen = fleet([6, 1], **{"hpa_limits": limits(), **columns})
        decision = Story(spec(2)).watch(seen, 600, 10, running=0.0)
        assert np.isnan(decision.unfollowed_s[0])


def test_limits_of_unknown_delays_are_not_judged():
    held = limits()
    known = HpaLimits(held.min_replicas, held.max_replicas, held.to_zero, held.shared, held.reason)
    decision = Story(spec(2)).watch(fleet([6, 1], hpa_limits=known), 600, 10, running=0.0)
    assert decision.replicas[0] == 1 and np.isnan(decision.unfollowed_s).all()


MOVES = st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["still", "towards", "away"])), min_size=1, max_size=40)


@given(MOVES, st.sampled_from([0.0, 15.0, 60.0]))
def test_answer_is_not_followed_when_the_count_stands_for_long(moves: list[tuple[int, str]], delay_s: float):
    """As plain Python: time runs from the last step towards the answer, or since the answer changed sides."""
    held = limits(wake_s=delay_s, grow_s=delay_s, shrink_s=delay_s, zero_s=delay_s)
    count, state, now_s = 4, AnswerState.blank(2), 0.0
    side, since_s = 0, 0.0
    answer: int | None = None
    for asked, move in moves:
        now_s += 20.0
        before = count
        if answer is not None:
            step = {"still": 0, "towards": 1, "away": -1}[move] * int(np.sign(answer - count))
            count = max(count + step, 0)
        seen = replace(fleet([0, 0], replicas=[count, 1]), hpa_limits=held)
        standing, state = judge(seen, now_s, state)
        now_side = 0 if answer is None else int(np.sign(answer - count))
        if now_side != side or (count - before) * now_side > 0:
            since_s = now_s
        side = now_side
        unfollowed = side != 0 and now_s - since_s >= delay_s + PATIENCE_S
        assert np.isnan(standing.for_s[0]) != unfollowed
        if unfollowed:
            assert standing.for_s[0] == now_s - since_s
        answer = asked
        state = replace(state, replicas=np.array([float(asked), np.nan]))
