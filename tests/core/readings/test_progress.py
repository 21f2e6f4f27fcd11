"""Load without progress: replicas, learning and explanation with stuck pods and stale gauges."""

import math
from copy import deepcopy
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.explain.sentence import Explanation, explain
from autoscaler.core.model.types import Decision
from autoscaler.core.observe.pods import PodMeasurements, PodState, measure_pods
from autoscaler.core.readings import progress
from autoscaler.core.readings.progress import REPLACEMENT_S, STUCK_S, UNTRUSTED_S
from autoscaler.core.tick import tick
from tests.core.world import Story, fleet, samples, spec, world

pytestmark = pytest.mark.slow

NAN = math.nan
EVERY_S = 15.0
LEARNED = {
    "concurrency": NAN,
    "max_replicas": 16.0,
    "max_wait_s": 2.0,
    "up_step_fraction": 1.0,
    "down_step_fraction": 0.25,
    "down_stabilization_s": 300.0,
    "target_usage": 0.8,
    "tolerance": 0.1,
    "cold_start_s": 180.0,
}


class Service:
    """A workload whose active pods share 8 requests/s, and whose other pods are stuck with constant gauges."""

    def __init__(self, replicas: int, **rules: float) -> None:
        self.story, self.replicas = Story(spec(**{**LEARNED, **rules})), replicas
        self.done = np.zeros(64)
        self.counts: list[int] = []  # decided replicas, tick by tick

    def run(
        self,
        for_s: float,
        *,
        per_s: float = 8.0,
        stuck: int = 0,
        shows: tuple[float, float] = (26.0, 10.0),
        counts_gaps: bool = True,
        **more: Any,
    ) -> Decision:
        """Run while the oldest `stuck` pods make no progress, and show this many running and waiting requests."""
        for _ in range(round(for_s / EVERY_S)):
            stands = np.arange(self.replicas) < stuck
            moving = max(int((~stands).sum()), 1)
            self.done[: self.replicas] += np.where(stands, 0.0, per_s * EVERY_S / moving)
            done = self.done[: self.replicas]
            self.readings = {
                "running": np.where(stands, shows[0], 13.0 * per_s / moving),
                "waiting": np.where(stands, shows[1], 0.0),
                "kv_usage": np.where(stands, 0.99, 0.3),
                "finished": done.copy(),
                "first_tokens": done.copy(),
                "ttft_met": done.copy(),
                "generation_tokens": 200 * done,
                "prompt_tokens": 1000 * done,
                **({"gap_s": 4 * done, "gaps": 200 * done} if counts_gaps else {}),
                **more,
            }
            self.cluster = fleet([self.replicas])
            self.decision = self.story.tick(self.cluster, EVERY_S, **self.readings)
            self.replicas = int(self.decision.replicas[0])
            self.counts.append(self.replicas)
        return self.decision

    def explained(self) -> Explanation:
        inp = world(self.story.now_s, self.cluster, self.story.spec, **self.readings)
        return explain(inp, self.decision, ("interactive",), {}, 0)


@cache
def _six() -> Service:
    service = Service(6)
    service.run(1500)
    return service


@cache
def _single() -> Service:
    service = Service(1)
    service.run(900, per_s=0.2)
    return service


def served() -> Service:
    """Six pods that have served for a while."""
    return deepcopy(_six())


def single() -> Service:
    """One pod that has served a little for a while."""
    return deepcopy(_single())


@pytest.mark.parametrize(
    "waiting", [pytest.param(0.0, marks=pytest.mark.long), pytest.param(3.0, marks=pytest.mark.long), 15.0]
)
def test_fleet_never_grows_when_all_its_gauges_stand_still(waiting):
    service = served()
    before = service.replicas
    service.counts.clear()
    service.run(2400, per_s=0.0, stuck=before, shows=(13.0, waiting))
    assert max(service.counts) <= before
    assert service.counts[-1] <= 2


def test_nothing_shrinks_when_a_pod_may_compute_a_long_prompt():
    service = served()
    before = service.replicas
    service.run(UNTRUSTED_S - 2 * EVERY_S, stuck=before, shows=(13.0, 3.0))
    assert service.replicas == before
    assert not service.decision.trusted[0]
    assert "may compute a long prompt" in service.explained().sentence


@pytest.mark.parametrize("grows_per_s", [0.0, 0.5])
def test_one_replica_is_ordered_when_one_pod_hangs(grows_per_s):
    service = served()
    before, service.counts = service.replicas, []
    for step in range(120):
        service.run(EVERY_S, stuck=1, shows=(26.0, 10.0 + grows_per_s * EVERY_S * step))
    assert max(service.counts) == before + 1


def test_sentence_counts_stuck_pods_and_their_requests():
    service = served()
    service.run(90, stuck=2)
    sentence = service.explained().sentence
    reporting = f"2 of {service.replicas} reporting replicas"
    assert f"{reporting} have made no progress on 72 requests for 90 s (stuck, or stale metrics)" in sentence


def test_a_hung_single_pod_is_replaced_for_a_while_only():
    service = single()
    assert service.replicas == 1
    service.counts.clear()
    service.run(120, per_s=0.0, stuck=1)
    assert service.replicas == 2
    sentence = service.explained().sentence
    assert "wake-up recommends 2 for 165 s more, so that one replica serves beside 1 stuck" in sentence
    service.run(REPLACEMENT_S + 900, per_s=0.0, stuck=1)
    assert max(service.counts) == 2
    assert service.replicas == 1


def test_replacement_stays_when_it_is_used():
    service = single()
    service.run(1.5 * REPLACEMENT_S, per_s=0.2, stuck=1)
    assert service.replicas == 2


def test_stuck_pods_teach_nothing():
    service = served()
    before = service.story.memory
    service.run(600, stuck=service.replicas, shows=(13.0, 15.0))
    after = service.story.memory
    lasting = [f"capacity.{name}" for name in ("concurrency", "learned_s", "decode_tokens_per_s")]
    for place in (*lasting, "observe.cold_start.mean_s"):
        np.testing.assert_array_equal(before.workloads.columns()[place], after.workloads.columns()[place])
    lengths = [m.workloads.observe.lengths.output_tokens for m in (before, after)]
    np.testing.assert_allclose(*lengths, rtol=0.01)
    slots = [m.planner.strategies.speed.slots for m in (before, after)]
    np.testing.assert_array_equal(*slots)


def test_a_pod_first_read_with_a_queue_teaches_nothing():
    story = Story(spec(concurrency=NAN))
    decision = story.tick(fleet([1]), running=3.0, waiting=30.0, gaps=50.0, generation_tokens=50.0)
    assert decision.observation.saturated[0] == 0


def test_load_counts_again_when_it_moves():
    service = served()
    service.run(300, stuck=1)
    assert service.decision.observation.stuck[0] == 1
    service.run(2 * EVERY_S)
    assert service.decision.observation.stuck[0] == 0
    assert service.decision.observation.running[0] == pytest.approx(104)


def test_arrivals_do_not_jump_when_pods_get_stuck_or_move_again():
    service = served()
    per_s = service.story.memory.workloads.observe.arrivals.per_s[0]
    service.run(90, per_s=8.0, stuck=1, shows=(13.0, 0.0))
    assert service.story.memory.workloads.observe.arrivals.per_s[0] == pytest.approx(per_s, rel=0.15)
    service.run(30, per_s=8.0)
    assert service.story.memory.workloads.observe.arrivals.per_s[0] == pytest.approx(per_s, rel=0.15)


def test_engines_that_do_not_tell_gaps_are_not_called_stuck():
    service = Service(2)
    service.run(600, per_s=1.0, counts_gaps=False)
    decision = service.run(900, stuck=2, counts_gaps=False)
    assert decision.observation.stuck[0] == 0
    assert service.run(1200, stuck=2, counts_gaps=False).observation.stuck[0] == 2


@pytest.mark.parametrize("silent", ["generation_tokens"])
def test_engines_without_token_counters_become_stuck_late(silent):
    service = Service(2)
    service.run(60, per_s=1.0, counts_gaps=False, **{silent: NAN})
    assert service.run(1500, stuck=2, counts_gaps=False, **{silent: NAN}).observation.stuck[0] == 0
    assert service.run(600, stuck=2, counts_gaps=False, **{silent: NAN}).observation.stuck[0] == 2


def test_engines_that_count_nothing_are_never_called_stuck():
    service = Service(2)
    nothing = dict.fromkeys(progress.PROGRESS_COUNTERS, NAN)
    assert service.run(2400, stuck=2, counts_gaps=False, **nothing).observation.stuck[0] == 0


def test_engines_that_count_batches_are_called_stuck_at_once():
    """TGI counts tokens when a request ends, and every batch that it computes."""
    service = Service(2)
    service.run(60, per_s=1.0, counts_gaps=False, steps=0.0)
    for step in range(10):
        assert service.run(EVERY_S, stuck=2, counts_gaps=False, steps=float(step)).observation.stuck[0] == 0
    assert service.run(60, stuck=2, counts_gaps=False, steps=9.0).observation.stuck[0] == 2


def test_stuck_requests_on_pods_that_stop_serving_are_no_load():
    cluster = replace(fleet([2]), pod_ready=np.array([True, False]), pod_ready_s=np.array([-9_940.0, NAN]))
    story = Story(spec(concurrency=NAN))
    for step in range(12):
        inp = world(story.now_s + 5.0, cluster, story.spec, running=0.0, gaps=7.0, generation_tokens=7.0)
        pods = inp.samples.pods
        gauges = {"time_s": np.full(2, inp.now_s), "running": np.array([0.0, 26.0]), "waiting": np.array([0.0, 10.0])}
        counters = {"gaps": np.full(2, 7.0), "generation_tokens": np.full(2, 7.0), "finished": np.zeros(2)}
        inp = replace(inp, samples=replace(inp.samples, pods=replace(pods, **gauges, **counters)))
        decision, story.memory = tick(inp, story.memory)
        story.now_s = inp.now_s
        assert decision.observation.draining_requests[0] == (36 if step < 6 else 0)


def test_sleeping_engines_are_not_stuck():
    service = Service(2)
    assert service.run(600, stuck=2, asleep=1.0).observation.stuck[0] == 0


@pytest.mark.parametrize("counter", ["prompt_tokens", "first_tokens", "finished", "rejections", "gaps", "steps"])
def test_any_counter_that_moves_is_progress(counter):
    service = Service(2)
    service.run(60, per_s=1.0)
    for step in range(20):
        decision = service.run(EVERY_S, stuck=2, **{counter: np.full(service.replicas, 1e7 + step)})
    assert decision.observation.stuck[0] == 0


# --- a queue that no other pod can take


def _beside(queue: float, service: Service) -> dict[str, Any]:
    """Return readings of a fleet whose first pod serves half of the requests and has a queue."""
    first = np.arange(service.replicas) == 0
    return {"waiting": np.where(first, queue, 0.0), "kv_usage": np.where(first, 0.99, 0.3)}


@pytest.mark.parametrize("grows_per_s", [pytest.param(0.0, marks=pytest.mark.long), 0.6])
def test_the_fleet_comes_back_down_when_one_rank_of_a_pod_hangs(grows_per_s):
    service = served()
    before, service.counts = service.replicas, []
    for step in range(240):
        service.run(EVERY_S, **_beside(15.0 + grows_per_s * EVERY_S * step, service))
    assert service.counts[-1] <= before + 4
    sentence = service.explained().sentence
    assert "that has not shrunk for" in sentence
    assert "(a stuck rank, or uneven routing)" in sentence
    assert service.decision.observation.running[0] > 90  # running requests count


def test_a_queue_counts_when_others_have_one_or_when_it_shrinks():
    service = served()
    for step in range(60):
        everywhere = np.full(service.replicas, 10.0 + step)
        assert service.run(EVERY_S, waiting=everywhere).observation.queue_outliers[0] == 0
    for step in range(60):
        assert service.run(EVERY_S, **_beside(300.0 - 4 * step, service)).observation.queue_outliers[0] == 0


def test_the_queue_of_a_single_pod_is_never_apart():
    service = single()
    for step in range(60):
        service.replicas = 1
        assert service.run(EVERY_S, waiting=10.0 + step).observation.queue_outliers[0] == 0


# --- the queue of a gateway
def test_gateway_queue_adds_one_replica_when_all_are_stuck():
    service = served()
    before, service.counts = service.replicas, []
    service.run(3000, per_s=0.0, stuck=before, shows=(13.0, 3.0), gateway_waiting=200.0)
    assert max(service.counts) <= before + 1
    assert service.counts[-1] <= 2


def test_unused_replacement_of_a_stuck_pod_is_given_up():
    """A replacement gets two cold starts of 180 s and two minutes, but at most half an hour."""
    service = served()
    before, service.counts = service.replicas, []
    service.run(600, per_s=0.0, stuck=before, shows=(13.0, 3.0), gateway_waiting=200.0)
    assert max(service.counts) == before + 1
    service.run(840, per_s=0.0, stuck=before, shows=(13.0, 3.0), gateway_waiting=200.0)
    assert service.counts[-1] <= 2


def test_gateway_queue_is_ignored_when_idle_engines_get_nothing():
    service = Service(2)
    service.run(1200, per_s=1.0, gateway_waiting=0.0)
    service.run(180, per_s=0.0, gateway_waiting=0.0)
    service.counts.clear()
    service.run(900, per_s=0.0, gateway_waiting=200.0)
    assert service.decision.observation.gateway_stuck[0] == 1
    assert "200 requests at the gateway are not counted, because no engine works" in service.explained().sentence
    assert service.counts[-1] <= 2


def test_queue_at_the_gateway_counts_when_engines_work():
    service = Service(2)
    service.run(1200, per_s=1.0, gateway_waiting=0.0)
    service.run(600, per_s=4.0, gateway_waiting=200.0)
    assert service.decision.observation.gateway_stuck[0] == 0
    assert service.replicas > 2


# --- one pod


class OnePod:
    """Reads one pod again and again."""

    def __init__(self) -> None:
        self.state = PodState.blank(1)

    def read(self, time_s: float, **columns: float) -> PodMeasurements:
        measured = measure_pods(samples(fleet([1]), time_s, **columns).pods, time_s, self.state)
        self.state = replace(self.state, readings=measured.readings, progress=measured.progress)
        return measured


def tokens_per_s_after(*readings: dict[str, float]) -> float:
    """Return the token rate after the last of these readings."""
    pod = OnePod()
    measured = [pod.read(1000.0 + 5.0 * number, **columns) for number, columns in enumerate(readings)][-1]
    return float(progress.tokens_per_s(measured.progress, measured.readings)[0])


QUIET = {"running": 0.0, "waiting": 0.0, "generation_tokens": 1000.0, "gaps": 1000.0}


def test_rate_begins_with_the_work():
    """350 tokens/s for 5 s after a quiet night are 350, not a mean over the night."""
    busy = {**QUIET, "running": 4.0, "waiting": 27.0, "generation_tokens": 2750.0, "gaps": 2750.0}
    assert tokens_per_s_after(*[QUIET] * 100, busy) == pytest.approx(350)


def test_first_part_of_an_interval_does_not_lower_the_rate():
    """Work began in the last second before a reading: what was written by then says little of the rate."""
    began = {**QUIET, "running": 4.0, "generation_tokens": 1100.0, "gaps": 1100.0}
    then = {**QUIET, "running": 4.0, "generation_tokens": 2850.0, "gaps": 2850.0}
    assert tokens_per_s_after(QUIET, began, then) == pytest.approx(350)


def test_idle_pods_have_no_rate():
    assert np.isnan(tokens_per_s_after(QUIET, QUIET))


@given(
    moves=st.lists(st.booleans(), min_size=1, max_size=30),
    every_s=st.sampled_from([1.0, 5.0, 15.0, 60.0]),
)
def test_a_pod_is_stuck_when_its_last_readings_show_no_progress(moves, every_s):
    pod, counted, since_s, still = OnePod(), 0.0, 0.0, 0
    for number, moved in enumerate(moves):
        counted += 10.0 * moved
        time_s = 1000.0 + every_s * number
        measured = pod.read(time_s, running=2.0, gaps=counted, generation_tokens=counted)
        if number == 0 or moved:
            since_s, still = time_s, 0
        else:
            still += 1
        assert measured.is_stuck[0] == (time_s - since_s >= STUCK_S and still >= 2)
