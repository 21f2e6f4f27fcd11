from dataclasses import replace

import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from autoscaler.adapters.gateways import read_gateways
from autoscaler.catalog.gateways import metric_names
from autoscaler.core.table.columns import FloatColumn
from autoscaler.sim.demo import gateway
from autoscaler.sim.demo.simulation import Simulation
from tests.sim.demo.scenarios import CHAT, make_scenario, silent

AT_ZERO = replace(CHAT, deployment=replace(CHAT.deployment, replicas=0), patience_s=500.0)


def read_page(simulation: Simulation) -> tuple[FloatColumn, FloatColumn]:
    """Read the page by the table of gateways, as the adapters do."""
    series: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(gateway.render(simulation)):
        for sample in family.samples:
            if sample.name in metric_names():
                series.setdefault(sample.name, []).append((sample.labels, sample.value))
    return read_gateways(simulation.fleet(), series, series)


def test_held_requests_count_once_under_two_names() -> None:
    simulation = Simulation(make_scenario(AT_ZERO), 0.0)
    simulation.advance(20.0)
    waiting, arrivals = read_page(simulation)
    held = simulation.sim_workloads[0].router.held
    assert held > 10
    assert waiting.tolist() == arrivals.tolist() == [held]


def test_each_workload_has_its_own_queue() -> None:
    other = replace(AT_ZERO, model="org/b", deployment=replace(AT_ZERO.deployment, name="b", replicas=1))
    simulation = Simulation(make_scenario(AT_ZERO, other), 0.0)
    simulation.advance(20.0)
    waiting, arrivals = read_page(simulation)
    assert waiting.tolist() == [simulation.sim_workloads[0].router.held, 0]
    assert arrivals.tolist() == [sim_workload.router.arrived for sim_workload in simulation.sim_workloads]


def test_model_without_requests_has_no_series() -> None:
    simulation = Simulation(make_scenario(silent()), 0.0)
    simulation.advance(100.0)
    waiting, arrivals = read_page(simulation)
    assert np.isnan(waiting).all()
    assert np.isnan(arrivals).all()


def test_page_shows_outcomes_and_ready_endpoints() -> None:
    simulation = Simulation(make_scenario(), 0.0)
    simulation.advance(20.0)
    lines = gateway.render(simulation).splitlines()
    arrived = simulation.sim_workloads[0].router.arrived
    for prefix, pods in (
        ("llm_d_epp", "llm_d_epp_ready_endpoints"),
        ("inference_extension", "inference_pool_ready_pods"),
    ):
        labels = '{inference_pool="chat",outcome="Dispatched",priority="0"}'
        assert f"{prefix}_flow_control_requests_total{labels} {float(arrived)}" in lines
        assert f'{pods}{{name="chat"}} 1.0' in lines
