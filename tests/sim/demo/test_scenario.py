from dataclasses import replace

import numpy as np
import pytest

from autoscaler.config.policy.compile import Compiled, compile_specs
from autoscaler.config.policy.parse import load, shipped
from autoscaler.core.table.columns import FloatColumn
from autoscaler.sim.demo.clock import MORNING_S
from autoscaler.sim.demo.scenario import GPU, POLICIES, demo_scenario
from autoscaler.sim.demo.simulation import Scenario, Simulation, WorkloadSetup
from autoscaler.sim.engine.traffic import DAY_S, Traffic

SEEDS = (1, 2, 3)


def compiled(made: Scenario) -> Compiled:
    return compile_specs(Simulation(made, MORNING_S).fleet().workloads, load((shipped(), POLICIES)))


def requests_per_s(workload: WorkloadSetup) -> float:
    """Return the requests per second of one full replica, from decode steps and prefills of a batch."""
    profile, shape = workload.deployment.profile, workload.shape
    prompt, output = (lengths.median_tokens * np.exp(lengths.sigma**2 / 2) for lengths in (shape.prompt, shape.output))
    batch = profile.max_num_seqs
    step_s = profile.step_s + batch * (profile.sequence_s + profile.kv_token_s * (prompt + output / 2))
    return float(batch / (output * step_s + batch * prompt * profile.prompt_token_s))


def rates(made: Scenario) -> FloatColumn:
    """Return float64[W, T], requests per second over one day, in steps of ten seconds."""
    time_s = np.arange(0, DAY_S, 10, dtype=np.float64)
    return np.array([Traffic(w.shape, made.seed, row).rate_per_s(time_s) for row, w in enumerate(made.workloads)])


def replicas_needed(made: Scenario) -> FloatColumn:
    """Return float64[W, T], replicas over one day within the bounds of the policies."""
    spec = compiled(made).spec
    capacity = np.array([requests_per_s(workload) for workload in made.workloads]) * spec.target_usage
    needed = np.ceil(rates(made) / capacity[:, None])
    return np.clip(needed, spec.min_replicas[:, None], spec.max_replicas[:, None])


def test_every_workload_has_a_valid_policy_and_overrides() -> None:
    found = compiled(demo_scenario(1))
    assert found.problems == {}
    assert set(found.names) == {"realtime", "interactive", "batch", "development", "office-hours"}


def test_objectives_are_those_of_the_policies() -> None:
    made, spec = demo_scenario(1), compiled(demo_scenario(1)).spec
    for row, workload in enumerate(made.workloads):
        promised = (spec.ttft_objective_s[row], spec.itl_objective_s[row])
        assert (workload.objective.ttft_s, workload.objective.itl_s) == pytest.approx(promised, nan_ok=True)


def test_pre_warmed_workload_has_requests_when_its_window_opens() -> None:
    made = demo_scenario(1)
    (row,) = (row for row, workload in enumerate(made.workloads) if workload.policy == "office-hours")
    (window,) = load((shipped(), POLICIES)).policies["office-hours"].spec.prewarm
    assert (window.from_, window.timezone) == ("30 8 * * mon-fri", "UTC")
    opening = int(8.5 * 360)
    rate = rates(made)[row]
    assert not rate[:opening].any()
    assert rate[opening] > requests_per_s(made.workloads[row])  # more than one replica serves, at once


@pytest.mark.parametrize("seed", SEEDS)
def test_gpus_are_slightly_short_at_peaks(seed: int) -> None:
    made = demo_scenario(seed)
    gpus = replicas_needed(made) * np.array([[workload.deployment.devices] for workload in made.workloads])
    full = np.array([workload.deployment.pool == GPU for workload in made.workloads])
    have = Simulation(made, 0.0).fleet().pool_gpus
    needed, sliced = gpus[full].sum(axis=0), gpus[~full].sum(axis=0)
    assert 0.001 < np.mean(needed > have[0]) < 0.2
    assert needed.max() <= 1.3 * have[0]
    assert needed.mean() < 0.75 * have[0]
    assert sliced.max() <= have[1]


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_one_workload_is_idle_long_enough_for_zero(seed: int) -> None:
    made = demo_scenario(seed)
    found = compiled(made)
    (row,) = np.flatnonzero(np.isfinite(found.spec.idle_after_s) & (np.array(found.names) == "development"))
    traffic = Traffic(made.workloads[row].shape, seed, int(row))
    times = np.concatenate([traffic.block(block).time_s for block in range(DAY_S // 60)])
    gaps = np.diff(times)
    assert len(times) > 100
    assert np.count_nonzero(gaps > 2 * found.spec.idle_after_s[row]) >= 3
    assert made.workloads[row].deployment.replicas == 0


@pytest.mark.slow
def test_every_objective_is_met_with_enough_replicas() -> None:
    made = demo_scenario(1)
    pools = tuple(replace(pool, nodes=pool.nodes + 4) for pool in made.pools)
    plenty = tuple(
        replace(w, deployment=replace(w.deployment, replicas=replicas, crash_every_s=np.inf))
        for w, replicas in zip(made.workloads, (10, 4, 10, 8, 1, 4), strict=True)
    )
    simulation = Simulation(replace(made, pools=pools, workloads=plenty), 10 * 3600.0)
    simulation.advance(10 * 3600.0 + 300)
    attainment = {row.name: row.attainment for row in simulation.summary().workloads}
    assert attainment.pop("models/playground-8b") is None  # no requests yet
    assert min(attainment.values()) > 0.995, attainment


def test_negative_seed_is_refused() -> None:
    with pytest.raises(ValueError, match="seed is -1; it must be 0 or more"):
        demo_scenario(-1)
