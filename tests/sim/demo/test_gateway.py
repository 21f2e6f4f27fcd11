from dataclasses import replace

import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from autoscaler.adapters.gateways import read_gateways
from autoscaler.catalog.gateways import metric_names
from autoscaler.core.table.columns import FloatColumn
from autoscaler.sim.demo import gateway
from autoscaler.sim.demo.plant import Plant
from tests.sim.demo.worlds import CHAT, a_world, silent

AT_ZERO = replace(CHAT, setup=replace(CHAT.setup, replicas=0), patience_s=500.0)


def front(plant: Plant) -> tuple[FloatColumn, FloatColumn]:
    """Read the page as the adapters do: by the table of gateways."""
    series: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(gateway.render(plant)):
        for sample in family.samples:
            if sample.name in metric_names():
                series.setdefault(sample.name, []).append((sample.labels, sample.value))
    return read_gateways(plant.fleet(), series, series)


def test_requests_held_for_a_workload_at_zero_are_seen_once_though_both_spellings_show_them() -> None:
    plant = Plant(a_world(AT_ZERO), 0.0)
    plant.advance(20.0)
    waiting, arrivals = front(plant)
    held = plant.lanes[0].front.held
    assert held > 10
    assert waiting.tolist() == arrivals.tolist() == [held]


def test_each_workload_finds_its_own_queue() -> None:
    other = replace(AT_ZERO, model="org/b", setup=replace(AT_ZERO.setup, name="b", replicas=1))
    plant = Plant(a_world(AT_ZERO, other), 0.0)
    plant.advance(20.0)
    waiting, arrivals = front(plant)
    assert waiting.tolist() == [plant.lanes[0].front.held, 0]
    assert arrivals.tolist() == [lane.front.arrived for lane in plant.lanes]


def test_a_model_that_nobody_has_asked_has_no_series() -> None:
    plant = Plant(a_world(silent()), 0.0)
    plant.advance(100.0)
    waiting, arrivals = front(plant)
    assert np.isnan(waiting).all()
    assert np.isnan(arrivals).all()


def test_outcomes_and_ready_endpoints_are_told() -> None:
    plant = Plant(a_world(), 0.0)
    plant.advance(20.0)
    lines = gateway.render(plant).splitlines()
    arrived = plant.lanes[0].front.arrived
    for prefix, pods in (
        ("llm_d_epp", "llm_d_epp_ready_endpoints"),
        ("inference_extension", "inference_pool_ready_pods"),
    ):
        labels = '{inference_pool="chat",outcome="Dispatched",priority="0"}'
        assert f"{prefix}_flow_control_requests_total{labels} {float(arrived)}" in lines
        assert f'{pods}{{name="chat"}} 1.0' in lines
