"""The metrics of KEDA mode."""

from math import nan

from prometheus_client import CollectorRegistry, generate_latest

from autoscaler.adapters.keda.metric_value import Tolerance
from autoscaler.adapters.keda.metrics import MAX_SWALLOWED, Calls, KedaCollector
from tests.adapters.keda.world import Row, World, ref

SWALLOWED = "vllm_autoscaler_keda_swallowed"


def registry(world: World, calls: Calls | None = None) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(KedaCollector(world.answers, calls or Calls()))
    return registry


def test_workload_is_named_while_its_step_is_hidden():
    world = World()
    exported = registry(world)
    labels = {"namespace": "prod", "workload": "llama", "kind": "Deployment"}
    assert exported.get_sample_value(f"{SWALLOWED}_workloads") == 0
    world.decide(Row("llama", 11, current=10))
    world.answers.publish(ref("llama"), Tolerance())
    assert exported.get_sample_value(SWALLOWED, labels) == 1
    assert exported.get_sample_value(f"{SWALLOWED}_workloads") == 1
    world.decide(Row("llama", 12, current=10))
    assert exported.get_sample_value(SWALLOWED, labels) is None
    assert exported.get_sample_value(f"{SWALLOWED}_workloads") == 0


def test_workload_is_not_named_without_an_answer():
    world = World()
    world.decide(Row("llama", 11, current=10))
    world.answers.publish(ref("llama"), Tolerance())
    world.clock.time_s += 1000
    assert registry(world).get_sample_value(f"{SWALLOWED}_workloads") == 0


def test_follower_names_no_workload():
    world = World()
    world.decide(Row("llama", 11, current=10))
    world.answers.publish(ref("llama"), Tolerance())
    world.lease.leading = False
    assert registry(world).get_sample_value(f"{SWALLOWED}_workloads") == 0


def test_unknown_scaled_objects_are_counted():
    world = World()
    exported = registry(world)
    assert exported.get_sample_value("vllm_autoscaler_keda_unknown_scaled_objects") == 0
    world.answers.refusals.add(("prod", "gone"), None, "ScaledObject prod/gone: none is known")
    world.answers.refusals.add(("prod", "llama"), ref("llama"), "metadata policy: 'gold'")
    assert exported.get_sample_value("vllm_autoscaler_keda_unknown_scaled_objects") == 1


def test_calls_are_counted_by_method_and_status():
    calls = Calls()
    for code in ("OK", "OK", "UNAVAILABLE"):
        calls.count("GetMetrics", code)
    exported = registry(World(), calls)
    name = "vllm_autoscaler_keda_calls_total"
    assert exported.get_sample_value(name, {"method": "GetMetrics", "code": "OK"}) == 2
    assert exported.get_sample_value(name, {"method": "GetMetrics", "code": "UNAVAILABLE"}) == 1


def test_open_streams_are_counted():
    world = World()
    exported = registry(world)
    with world.answers.watching(ref("llama"), lambda: None):
        assert exported.get_sample_value("vllm_autoscaler_keda_streams") == 1
    assert exported.get_sample_value("vllm_autoscaler_keda_streams") == 0


def test_number_of_series_is_limited():
    world = World()
    rows = [Row(f"m{i}", 11, current=10, id=i, age_s=nan) for i in range(MAX_SWALLOWED + 5)]
    world.decide(*rows)
    for row in rows:
        world.answers.publish(ref(row.name), Tolerance())
    text = generate_latest(registry(world)).decode()
    assert text.count(f"{SWALLOWED}{{") == MAX_SWALLOWED
    assert f"{SWALLOWED}_workloads {MAX_SWALLOWED + 5:.1f}" in text
