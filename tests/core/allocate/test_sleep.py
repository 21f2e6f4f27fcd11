"""Replicas that are kept asleep: their number, and which pods sleep and wake."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from autoscaler.core.allocate.sleep import IDLE_S, order
from autoscaler.core.model.fleet import Fleet
from autoscaler.core.model.types import Decision, Stage
from autoscaler.core.starts.wake_ups import PodSleep, is_overdue
from autoscaler.core.state import Memory
from autoscaler.core.tick import tick
from tests.core.world import fleet, spec, world

pytestmark = pytest.mark.slow

RULES = {"sleep_replicas": 2.0, "concurrency": 10.0, "down_stabilization_s": 60.0, "max_wait_s": 5.0}


class Site:
    """One workload whose pods obey: they sleep and wake at the next tick, and the count follows at once."""

    def __init__(self, pods: int, **rules: float) -> None:
        self.rules = spec(**{**RULES, **rules})
        self.asleep = np.zeros(pods)
        self.now_s, self.memory, self.probe = 1000.0, Memory.empty(), True
        self.decision: Decision

    @property
    def cluster(self) -> Fleet:
        """Pods that sleep are not ready; those that wake became ready just now."""
        pods = len(self.asleep)
        ready = ~((self.asleep > 0) & self.probe)
        plain = fleet([pods], replicas=[pods])
        return replace(
            plain,
            pod_ready=ready,
            pod_ready_s=np.where(ready, self.ready_s, np.nan),
            pod_started_s=np.zeros(pods),
            time_s=self.now_s,
        )

    ready_s, leaves = 0.0, False

    def run(self, for_s: float, running: float = 0.0, obeys: bool = True, **readings: object) -> Decision:
        """Tick every 10 s. running: requests, spread evenly over the pods that are awake."""
        for _ in range(int(for_s // 10)):
            awake = np.flatnonzero(self.asleep == 0)
            load = np.zeros(len(self.asleep))
            load[awake] = running / max(len(awake), 1)
            load = readings.get("load", load)
            cluster = self.cluster
            inp = world(
                self.now_s, cluster, self.rules, running=load, asleep=self.asleep, gateway_waiting=0.0,
                **{name: value for name, value in readings.items() if name != "load"},
            )  # fmt: skip
            self.decision, self.memory = tick(inp, self.memory)
            self.now_s += 10.0
            if obeys:
                self.obey()
        return self.decision

    def obey(self) -> None:
        orders = self.decision.sleep_orders
        asleep = np.where(orders.wake, 0.0, np.where(orders.sleep, 1.0, self.asleep))
        self.asleep = asleep[: int(self.decision.replicas[0])] if self.leaves else asleep

    @property
    def counts(self) -> tuple[int, int]:
        """Decided replicas, and pods asleep."""
        return int(self.decision.replicas[0]), int(self.asleep.sum())


def test_nothing_sleeps_when_the_policy_keeps_none():
    site = Site(4, sleep_replicas=np.nan, min_replicas=4)
    site.run(300)
    assert site.counts == (4, 0)


def test_idle_replicas_sleep_instead_of_leaving():
    site = Site(4)
    site.leaves = True
    site.run(400)
    assert site.counts == (3, 2)


def test_replicas_with_requests_do_not_sleep():
    """One replica would be enough for 4 requests, but each of the three has some."""
    site = Site(3)
    site.run(300, running=4)
    assert site.counts == (3, 0)


def test_replica_sleeps_only_after_a_while_without_requests():
    site = Site(3)
    site.run(120, load=np.array([1.0, 1.0, 1.0]))
    site.run(20, load=np.array([1.0, 0.0, 0.0]))
    assert site.counts == (3, 0)
    site.run(30, load=np.array([1.0, 0.0, 0.0]))
    assert site.asleep.tolist() == [0, 1, 1]


def test_sleeping_replicas_wake_before_new_ones_are_requested():
    site = Site(3)
    site.run(300)
    assert site.counts == (3, 2)
    decision = site.run(10, running=25)
    assert site.counts == (3, 0)
    assert decision.stages[Stage.EXCHANGE][0] == 3


def test_new_replicas_are_requested_when_all_are_awake():
    site = Site(3)
    site.run(300)
    site.run(10, running=45)
    assert site.counts == (5, 0)


def test_reserve_is_filled_up_again_when_the_load_stays():
    site = Site(3)
    site.run(300)
    site.run(30, running=25)
    assert site.counts[0] == 3
    site.run(60, running=25)
    assert site.counts == (5, 0)


def test_reserve_stays_within_the_maximum():
    site = Site(3, max_replicas=4)
    site.run(300)
    site.run(120, running=25)
    assert site.counts == (4, 0)


def test_floor_is_of_replicas_that_serve():
    site = Site(4, min_replicas=2)
    site.run(300)
    assert site.counts == (4, 2)


def test_workload_at_zero_keeps_its_sleeping_replica():
    site = Site(1, min_replicas=0, idle_after_s=100.0, sleep_replicas=1.0)
    site.run(400)
    assert site.counts == (1, 1)
    decision = site.run(10, gateway_arrivals_per_s=1.0)
    assert (site.counts, bool(decision.active[0])) == ((1, 0), True)


def test_paused_workload_is_left_as_it_is():
    site = Site(3)
    paused = replace(site.cluster, paused=np.array([True]))
    decision, _ = tick(world(1000.0, paused, site.rules, asleep=np.array([0, 0, 1.0])), Memory.empty())
    assert not (decision.sleep_orders.wake.any() or decision.sleep_orders.sleep.any())


def test_silent_engines_put_none_to_sleep_and_wake_none():
    site = Site(3)
    site.run(300)
    before = site.asleep.copy()
    site.run(300, time_s=np.nan)
    assert site.counts[0] == 3
    np.testing.assert_array_equal(site.asleep, before)


def test_pod_that_does_not_wake_is_replaced():
    site = Site(3)
    site.run(300)
    for _ in range(30):
        decision = site.run(10, running=25, obeys=False)
    assert decision.observation.wakeable[0] == 0
    assert decision.replicas[0] >= 5
    assert decision.sleep_orders.wake.sum() == 2


@pytest.mark.parametrize("probe", [True, False])
def test_time_of_a_wake_up_is_learned(probe):
    site = Site(3)
    site.probe = probe
    site.run(300)
    assert site.decision.observation.wake_s[0] == 15
    site.run(10, running=25, obeys=False)  # ordered at the end of this tick
    ordered_s = site.now_s - 10
    site.run(10, running=25, obeys=True)
    site.ready_s = ordered_s + 12.0 if probe else 0.0
    decision = site.run(10, running=25)
    mean_s = 12.0 if probe else 20.0
    assert decision.observation.wake_s[0] == pytest.approx(mean_s + 2 * mean_s / 4)
    assert decision.observation.cold_start_s[0] == 60


@pytest.mark.parametrize(
    ("wake_s", "since_s", "overdue"),
    [(15, 120, False), (15, 121, True), (60, 180, False), (60, 181, True), (60, 1080, True), (60, 1081, False)],
)
def test_a_wake_up_is_overdue_after_three_times_the_usual(wake_s: float, since_s: float, overdue: bool):
    pods = replace(PodSleep.blank(1), last_wake_ordered_s=np.array([1000.0 - since_s]))
    inp = world(1000.0, fleet([1]), spec())
    assert is_overdue(inp, np.array([float(wake_s)]), pods).tolist() == [overdue]


# --- orders of many workloads


def order_plainly(inp, observed, serving, replicas, pods):
    """Say which pods wake and which sleep, one workload after the other: the slow second source."""
    fleet, observation = inp.fleet, observed.observation
    overdue = is_overdue(inp, observation.wake_s, pods).tolist()
    wake, sleep = set(), set()
    for row, rule in enumerate(inp.spec.sleep_replicas.tolist()):
        if not rule > 0 or np.isnan(serving[row]):
            continue
        own = np.flatnonzero(fleet.pod_workload == row).tolist()
        asleep = [pod for pod in own if pods.asleep[pod]]
        awake = observation.ready[row] - observation.stuck[row]
        asleep.sort(key=lambda pod: (overdue[pod], np.isnan(pods.last_wake_ordered_s[pod])))
        wake |= set(asleep[: max(int(serving[row] - awake), 0)])
        excess = min(awake - serving[row], min(rule, replicas[row] - serving[row]) - observation.asleep[row])
        if not observed.trusted[row] or replicas[row] < fleet.replicas[row]:
            excess = 0
        idle = [pod for pod in own if inp.now_s - pods.idle_since_s[pod] >= IDLE_S]
        idle.sort(key=lambda pod: pods.idle_since_s[pod])
        sleep |= (set(idle[: max(int(excess), 0)]) - set(asleep)) | (set(asleep) - wake)
    return wake, sleep


@pytest.mark.parametrize("seed", range(20))
def test_orders_of_many_workloads_equal_a_plain_version(seed):
    random, rows, of_each = np.random.default_rng(seed), 20, 7
    cluster = fleet([of_each] * rows)
    kept = np.where(random.random(rows) < 0.7, random.integers(1, 4, rows), np.nan)
    inp = world(1000.0, cluster, spec(rows, sleep_replicas=kept.tolist(), max_replicas=50.0))
    asleep = random.random(len(cluster.pods)) < 0.25
    idle_since_s = np.where(asleep | (random.random(len(asleep)) < 0.5), np.nan, random.choice([900.0, 960.0, 990.0]))
    ordered_s = np.where(asleep & (random.random(len(asleep)) < 0.4), random.choice([100.0, 500.0, 980.0]), np.nan)
    pods = PodSleep(asleep.astype(float), idle_since_s, ordered_s)
    ready = np.bincount(cluster.pod_workload, ~asleep, rows)
    observation = SimpleNamespace(
        ready=ready, stuck=random.integers(0, 2, rows), asleep=of_each - ready, wake_s=np.full(rows, 15.0)
    )
    observed = SimpleNamespace(observation=observation, trusted=random.random(rows) < 0.9)
    serving = np.where(random.random(rows) < 0.1, np.nan, random.integers(0, of_each + 2, rows))
    replicas = np.fmax(serving, of_each) + random.integers(-1, 3, rows)
    orders, _ = order(inp, observed, serving, replicas, pods)
    found = set(np.flatnonzero(orders.wake).tolist()), set(np.flatnonzero(orders.sleep).tolist())
    assert found == order_plainly(inp, observed, serving, replicas, pods)
    assert (orders.asleep == asleep).all()
