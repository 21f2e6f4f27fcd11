import asyncio
from dataclasses import replace

import numpy as np
import pytest

from autoscaler.core.model.fleet import Fleet, PendingCause, WorkloadRef
from autoscaler.ports import Change, ChangeStatus, Outcome
from autoscaler.sim.demo.simulation import Simulation
from autoscaler.sim.engine.traffic import Lengths, Shape
from tests.sim.demo.scenarios import CHAT, FETCHED_S, STEADY, WARM_S, make_scenario, silent


def scale(simulation: Simulation, after: int, name: str = "chat") -> Outcome:
    before = int(simulation.fleet().replicas[[w.ref.name for w in simulation.fleet().workloads].index(name)])
    change = Change(WorkloadRef("models", name), "", before, after, "test")
    return asyncio.run(simulation.apply([change], 1.0))[0]


def pods_of(fleet: Fleet) -> list[tuple[bool, bool]]:
    return list(zip(fleet.pod_ready.tolist(), fleet.pod_terminating.tolist(), strict=True))


def test_fleet_hides_start_times_in_the_future() -> None:
    simulation = Simulation(make_scenario(silent()), 1000.0)
    assert scale(simulation, 2).status is ChangeStatus.APPLIED
    fleet = simulation.fleet()
    assert fleet.time_s == 1000.0
    assert fleet.replicas.tolist() == [2]
    assert fleet.pod_created_s[1] == 1000.0
    assert np.isnan(fleet.pod_scheduled_s[1])
    simulation.advance(1002.0)
    fleet = simulation.fleet()
    assert fleet.pod_scheduled_s[1] == 1000.5
    assert fleet.pod_started_s[1] == 1001.5
    assert np.isnan(fleet.pod_ready_s[1])
    simulation.advance(1000.0 + WARM_S)
    fleet = simulation.fleet()
    assert fleet.pod_ready_s[1] == pytest.approx(1000.0 + WARM_S)
    assert pods_of(fleet) == [(True, False), (True, False)]


def test_initial_pods_show_their_past_start() -> None:
    fleet = Simulation(make_scenario(silent()), 1000.0).fleet()
    assert fleet.pod_ready_s.tolist() == [1000.0]
    moments = fleet.pod_created_s[0], fleet.pod_scheduled_s[0], fleet.pod_started_s[0], fleet.pod_ready_s[0]
    assert moments == tuple(sorted(moments))
    assert moments[-1] - moments[0] == pytest.approx(FETCHED_S)


def test_pod_ids_ascend_and_are_never_reused() -> None:
    simulation = Simulation(make_scenario(silent()), 0.0)
    seen: set[int] = set()
    for round_number in range(4):
        scale(simulation, 3)
        ids = simulation.fleet().pod_id.tolist()
        assert ids == sorted(ids)
        fresh = set(ids) - seen
        assert not seen or min(fresh) > max(seen)
        seen |= fresh
        scale(simulation, 0)
        simulation.advance(100.0 * (round_number + 1))
        assert simulation.fleet().pods == ()


def test_pod_without_a_gpu_is_unschedulable() -> None:
    simulation = Simulation(make_scenario(silent()), 0.0)
    scale(simulation, 5)
    fleet = simulation.fleet()
    assert fleet.pod_pending.tolist() == [PendingCause.NONE] * 4 + [PendingCause.UNSCHEDULABLE]
    assert fleet.pool_gpus.tolist() == [4]
    assert fleet.pods[4].ip == ""


def test_terminating_pod_holds_its_gpu_until_it_is_empty() -> None:
    simulation = Simulation(
        make_scenario(replace(CHAT, shape=Shape(0.7, Lengths(10, 0, 10), Lengths(1500, 0, 1500)))), 0.0
    )
    scale(simulation, 2)
    simulation.advance(60.0)
    scale(simulation, 1)
    simulation.advance(61.5)
    assert pods_of(simulation.fleet()) == [(True, False), (True, True)]
    terminating = simulation.cluster.pods[1].replica
    assert terminating is not None
    held = terminating.held
    simulation.advance(70.0)
    assert 0 < terminating.held < held  # it receives no new requests
    simulation.advance(120.0)
    assert pods_of(simulation.fleet()) == [(True, False)]
    assert simulation.summary().workloads[0].failed == 0


def test_outdated_change_is_a_conflict() -> None:
    simulation = Simulation(make_scenario(silent()), 0.0)
    stale = Change(WorkloadRef("models", "chat"), "", 7, 2, "test")
    (outcome,) = asyncio.run(simulation.apply([stale], 1.0))
    assert (outcome.status, outcome.detail) == (ChangeStatus.CONFLICT, "it has 1 replicas now, not 7")
    assert simulation.fleet().replicas.tolist() == [1]
    assert simulation.summary().workloads[0].scale_ups == 0


@pytest.mark.parametrize(
    ("ref", "uid", "detail"),
    [
        (WorkloadRef("models", "gone"), "", "models/gone does not exist"),
        (
            WorkloadRef("models", "chat"),
            "of-a-former-one",
            "models/chat is another object: uid 00000000-0000-4000-8000-000000000000",
        ),
    ],
)
def test_change_of_an_unknown_workload_fails(ref: WorkloadRef, uid: str, detail: str) -> None:
    simulation = Simulation(make_scenario(silent()), 0.0)
    (outcome,) = asyncio.run(simulation.apply([Change(ref, uid, 1, 2, "test")], 1.0))
    assert (outcome.status, outcome.detail) == (ChangeStatus.FAILED, detail)
    assert simulation.fleet().replicas.tolist() == [1]


def test_impossible_count_fails_and_other_changes_apply() -> None:
    simulation = Simulation(make_scenario(silent(), silent(replace(CHAT, model="b"), name="b")), 0.0)
    changes = [Change(WorkloadRef("models", name), "", 1, after, "") for name, after in (("chat", 5000), ("b", 2))]
    outcomes = asyncio.run(simulation.apply(changes, 1.0))
    assert [outcome.status for outcome in outcomes] == [ChangeStatus.FAILED, ChangeStatus.APPLIED]
    assert simulation.fleet().replicas.tolist() == [1, 2]


def test_every_request_is_accounted_for() -> None:
    crashing = replace(CHAT, deployment=replace(CHAT.deployment, crash_every_s=1080.0), patience_s=5.0)
    simulation = Simulation(make_scenario(crashing, replace(silent(name="b"), shape=STEADY, model="b")), 0.0)
    for step in range(1, 120):
        simulation.advance(step * 15.0)
        if step % 7 == 0:
            scale(simulation, (step // 7) % 4)
        for sim_workload, row in zip(simulation.sim_workloads, simulation.summary().workloads, strict=True):
            engines = [
                pod.replica
                for pod in simulation.cluster.pods
                if pod.deployment is sim_workload.setup.deployment and pod.replica
            ]
            assert row.open == sim_workload.router.held + sum(engine.held for engine in engines)
            assert row.arrived == row.finished + row.rejected + row.given_up + row.failed + row.open
    chat = simulation.summary().workloads[0]
    assert min(chat.finished, chat.given_up, chat.failed) > 0
    assert simulation.summary().crashes > 0


def test_traffic_is_independent_of_the_step_size() -> None:
    far, near = Simulation(make_scenario(), 0.0), Simulation(make_scenario(), 0.0)
    far.advance(600.0)
    for step in range(1, 801):
        near.advance(step * 0.75)
    one, other = far.summary().workloads[0], near.summary().workloads[0]
    assert one.arrived == other.arrived > 1000
    assert one.attainment == pytest.approx(other.attainment)
    assert one.gpu_hours == pytest.approx(other.gpu_hours)


def test_past_time_changes_nothing() -> None:
    simulation = Simulation(make_scenario(), 100.0)
    simulation.advance(200.0)
    before = simulation.summary()
    simulation.advance(150.0)
    assert simulation.now_s == 200.0
    assert simulation.summary() == before


def test_requests_at_zero_are_served_after_the_cold_start() -> None:
    simulation = Simulation(
        make_scenario(replace(CHAT, deployment=replace(CHAT.deployment, replicas=0), patience_s=300.0)), 0.0
    )
    simulation.advance(10.0)
    assert simulation.sim_workloads[0].router.held > 5
    scale(simulation, 1)
    simulation.advance(200.0)
    row = simulation.summary().workloads[0]
    assert simulation.sim_workloads[0].router.held == 0
    assert row.given_up == row.rejected == 0
    assert row.attainment_ttft is not None
    assert 0.5 < row.attainment_ttft < 0.95  # requests that waited for the start missed it


def test_gpu_hours_run_from_binding_to_the_end() -> None:
    simulation = Simulation(make_scenario(silent(devices=2)), 0.0)
    simulation.advance(1800.0)
    scale(simulation, 2)
    simulation.advance(2700.0)
    scale(simulation, 1)
    simulation.advance(3600.0)
    row = simulation.summary().workloads[0]
    assert row.gpu_hours == pytest.approx(2 * 1.0 + 2 * 901 / 3600, rel=1e-3)
    assert row.static_gpu_hours == pytest.approx(4.0)
    assert (row.scale_ups, row.scale_downs) == (1, 1)


def test_scenario_with_too_long_requests_is_refused() -> None:
    long = replace(CHAT, shape=Shape(1.0, Lengths(100, 1, 4000), Lengths(100, 1, 97)))
    with pytest.raises(ValueError, match="requests of chat may have 4097 tokens, its profile allows 4096"):
        Simulation(make_scenario(long), 0.0)
