"""What the KEDA side adds to /metrics."""

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


def test_a_workload_whose_step_the_hpa_swallows_is_named_until_it_is_not():
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


def test_a_workload_without_a_current_answer_is_not_named():
    world = World()
    world.decide(Row("llama", 11, current=10))
    world.answers.publish(ref("llama"), Tolerance())
    world.clock.time_s += 1000
    assert registry(world).get_sample_value(f"{SWALLOWED}_workloads") == 0


def test_a_follower_names_none():
    world = World()
    world.decide(Row("llama", 11, current=10))
    world.answers.publish(ref("llama"), Tolerance())
    world.lease.leading = False
    assert registry(world).get_sample_value(f"{SWALLOWED}_workloads") == 0


def test_scaled_objects_that_are_not_known_are_counted():
    world = World()
    exported = registry(world)
    assert exported.get_sample_value("vllm_autoscaler_keda_unknown_scaled_objects") == 0
    world.answers.refusals.refuse(("prod", "gone"), None, "ScaledObject prod/gone: none is known")
    world.answers.refusals.refuse(("prod", "llama"), ref("llama"), "metadata policy: 'gold'")
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


def test_the_number_of_series_is_bounded_and_the_count_is_not():
    world = World()
    rows = [Row(f"m{i}", 11, current=10, id=i, age_s=nan) for i in range(MAX_SWALLOWED + 5)]
    world.decide(*rows)
    for row in rows:
        world.answers.publish(ref(row.name), Tolerance())
    text = generate_latest(registry(world)).decode()
    assert text.count(f"{SWALLOWED}{{") == MAX_SWALLOWED
    assert f"{SWALLOWED}_workloads {MAX_SWALLOWED + 5:.1f}" in text
