"""The daemon's own metrics, read back with the parser of the Prometheus client library."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from prometheus_client import Counter
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from autoscaler.adapters.keda.metric_value import Tolerance
from autoscaler.adapters.keda.metrics import Calls, KedaCollector
from autoscaler.adapters.web import exported_metrics
from autoscaler.adapters.web.exported_metrics import FAMILIES, MAX_SOURCES
from autoscaler.adapters.web.metric_family import PREFIX
from autoscaler.adapters.web.metrics import OTHERS, Metrics
from autoscaler.core.model.chain import Chain, Link
from autoscaler.core.model.fleet import Workload, WorkloadRef
from autoscaler.core.model.samples import Samples, SourceReport
from autoscaler.core.model.types import Plan, Signal, Stage
from autoscaler.core.model.variants import Variants
from autoscaler.ports import ChangeStatus, TickRecord
from tests.adapters.keda.world import Row, ref
from tests.adapters.keda.world import World as KedaWorld
from tests.adapters.web.records import World, with_quotas, with_starts, with_weights

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def body(metrics: Metrics, accept: str = "") -> str:
    async def collected() -> bytes:
        return b"".join([part async for part in metrics.render(accept)[1]])

    return asyncio.run(collected()).decode()


def families(metrics: Metrics) -> dict[str, Metric]:
    return {family.name: family for family in parse(body(metrics))}


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    """Return the one sample with these labels among its own; None: there is none."""
    family = families(metrics).get(PREFIX + name.removesuffix("_total"))
    found = [
        sample.value
        for sample in (family.samples if family else [])
        if sample.name == PREFIX + name and labels.items() <= sample.labels.items()
    ]
    assert len(found) <= 1
    return found[0] if found else None


def busy() -> TickRecord:
    """Return a tick in which everything that can be exported is."""
    tick = World(3).ticks(7)[-1]
    count = len(tick.policies)
    seen = replace(tick.decision.observation, gateway_waiting=np.ones(count), queue_wait_s=np.ones(count))
    fleet = replace(
        tick.input.fleet, other_owner=("HorizontalPodAutoscaler/mine", "", ""), paused=np.array([False, True, False])
    )
    stages = tick.decision.stages.copy()
    times_s = np.full((len(Link), count), tick.now_s + 60)
    chain = replace(Chain.none(count), due_s=times_s[0], starts_s=times_s, cause=np.arange(count))
    stages[: Stage.ALLOCATION, 0] += 9  # more than are ready
    stages[: Stage.BOUNDS, 0] += 9
    stages[Stage.ALLOCATION :, 0] -= 1
    return replace(
        tick,
        problems={2: "policy: unknown"},
        input=replace(tick.input, fleet=fleet, variants=Variants(np.full(count, -1), np.full(count, 2.0))),
        decision=replace(tick.decision, observation=seen, stages=stages, chain=chain),
    )


def test_scrape_has_every_listed_metric_with_type_and_labels() -> None:
    metrics = Metrics("direct")
    metrics.record(World(3).tick())  # what GPUs are used for counts from one tick to the next
    metrics.record(with_starts(with_weights(with_quotas(busy()))))
    metrics.set_state_saved(1_800_000_000.0)
    exported = families(metrics)
    for family in FAMILIES:
        found = exported[family.full_name.removesuffix("_total")]
        assert found.type == family.type
        assert found.documentation == family.meaning
        assert found.samples, family.name
        for sample in found.samples:
            assert set(sample.labels) - {"le"} == set(family.labels)
    ours = {name for name in exported if name.startswith(PREFIX) and not name.endswith("_created")}
    assert ours == {family.full_name.removesuffix("_total") for family in FAMILIES}


def test_seconds_of_gpus_are_counted_by_state_and_cause() -> None:
    metrics = Metrics("direct")
    metrics.record(World(3).tick())
    metrics.record(with_starts(busy()))  # 30 s later, with one pod that starts
    assert value(metrics, "gpu_seconds_total", state="warming") == 30
    assert value(metrics, "idle_gpu_seconds_total", cause="cold_start") == 30
    assert value(metrics, "gpu_cost_dollars_total") == pytest.approx(2.0 * 30 / 3600)
    assert value(metrics, "pool_gpu_seconds_total", state="warming") == 30
    assert value(metrics, "pool_gpu_seconds_total", state="free") == 30 * 11
    assert value(metrics, "gpu_seconds_total", state="serving") is None


def test_a_forecast_is_told_apart_from_a_window() -> None:
    metrics, tick = Metrics("direct"), busy()
    metrics.record(tick)
    due_s = round(tick.wall_s + 60)
    for row, load in enumerate(("", "day_ago", "week_ago")):
        ref = tick.input.fleet.workloads[row].ref
        where = {"namespace": ref.namespace, "workload": ref.name, "kind": ref.kind}
        window_s = value(metrics, "prewarm_window_timestamp_seconds", **where)
        assert window_s == (None if load else due_s)
        assert value(metrics, "prewarm_forecast_timestamp_seconds", **where, load=load) == (due_s if load else None)


def test_values_are_those_of_the_last_tick() -> None:
    metrics, world = Metrics(), World(3)
    metrics.record(world.tick())
    tick = world.tick()
    metrics.record(tick)
    ref = tick.input.fleet.workloads[1].ref
    where = {"namespace": ref.namespace, "workload": ref.name, "kind": ref.kind}
    assert value(metrics, "desired_replicas", **where) == tick.decision.replicas[1]
    assert value(metrics, "ready_replicas", **where) == tick.decision.observation.ready[1]
    assert (
        value(metrics, "signal_recommended_replicas", **where, signal="decode")
        == tick.decision.recommendations[Signal.DECODE, 1]
    )
    assert value(metrics, "input_coverage_ratio", **where) == 1.0
    assert value(metrics, "planner_load_replicas", **where) == tick.decision.plan.demand[1]
    assert value(metrics, "error_budget_ratio", **where) == pytest.approx(0.01)
    assert value(metrics, "error_budget_allowed_ratio", **where) == 0.0065
    assert value(metrics, "missed_requests_ratio", **where) == 0.025
    assert value(metrics, "ticks_total", result="ok") == 2
    assert value(metrics, "last_tick_timestamp_seconds") == tick.wall_s
    assert value(metrics, "leader") == 1


def test_limited_by_is_the_last_stage_that_changed_the_count() -> None:
    metrics, tick = Metrics(), busy()
    metrics.record(tick)
    assert value(metrics, "limited_by", workload=tick.input.fleet.workloads[0].ref.name, stage="allocation") == 1


def test_problem_series_exists_while_a_workload_has_a_problem() -> None:
    metrics, tick = Metrics(), World(2).tick()
    name = tick.input.fleet.workloads[1].ref.name
    metrics.record(replace(tick, problems={1: "KEDA is refused: metadata policy: 'gold'; allowed: batch"}))
    assert [sample.labels["workload"] for sample in families(metrics)[PREFIX + "problem"].samples] == [name]
    assert value(metrics, "problem", workload=name) == 1
    metrics.record(tick)
    assert value(metrics, "problem", workload=name) is None


def test_what_is_unknown_is_absent_and_not_zero() -> None:
    metrics, tick = Metrics(), World(2).tick()
    unknown = replace(tick.decision.observation, ttft_s=np.array([np.nan, 0.0]))
    metrics.record(replace(tick, decision=replace(tick.decision, observation=unknown)))
    first, second = (member.ref.name for member in tick.input.fleet.workloads)
    assert value(metrics, "ttft_seconds", workload=first) is None
    assert value(metrics, "ttft_seconds", workload=second) == 0.0


def test_the_error_budget_has_no_noise_of_its_own() -> None:
    """1 - 0.9 is 0.09999999999999998."""
    metrics, tick = Metrics(), World(1).tick()
    spec = replace(tick.input.spec, attainment=np.array([0.9]))
    metrics.record(replace(tick, input=replace(tick.input, spec=spec)))
    assert value(metrics, "error_budget_ratio") == 0.1


def test_planner_series_are_absent_when_it_has_no_readings() -> None:
    metrics, tick = Metrics(), World(2).tick()
    metrics.record(replace(tick, decision=replace(tick.decision, plan=Plan.blank(2))))
    name = tick.input.fleet.workloads[0].ref.name
    for family in ("planner_load_replicas", "error_budget_allowed_ratio", "missed_requests_ratio"):
        assert value(metrics, family, workload=name) is None
    assert value(metrics, "error_budget_ratio", workload=name) == pytest.approx(0.01)


def test_no_workloads_and_no_leader_before_the_first_tick() -> None:
    metrics = Metrics()
    assert value(metrics, "leader") == 0
    assert value(metrics, "ticks_total", result="failed") == 0
    assert value(metrics, "workloads") is None


def test_a_failed_tick_is_counted_and_keeps_the_last_values() -> None:
    metrics = Metrics()
    metrics.record(World(2).tick())
    metrics.failed(0.0, RuntimeError("the API server is away"))
    assert value(metrics, "ticks_total", result="failed") == 1
    assert value(metrics, "workloads") == 2


def test_hostile_names_do_not_break_the_scrape() -> None:
    names = ['"} 1\nfake_metric 7\n# ', "\ud800", "a" * 10_000, "{}\\", "plain"]
    members = tuple(Workload(WorkloadRef("ns", name), policy="batch") for name in names)
    metrics = Metrics()
    metrics.record(World(members).tick())
    exported = families(metrics)
    assert "fake_metric" not in exported
    shown = {sample.labels["workload"] for sample in exported[PREFIX + "desired_replicas"].samples}
    assert len(shown) == 5
    assert "plain" in shown
    assert max(map(len, shown)) == 253


def test_scrape_is_valid_when_two_workloads_share_a_name() -> None:
    members = tuple(Workload(WorkloadRef("ns", "a" * 300 + end)) for end in ("x", "y"))
    metrics = Metrics()
    metrics.record(World(members).tick())
    assert len(families(metrics)[PREFIX + "desired_replicas"].samples) == 1
    assert value(metrics, "unlisted_workloads") == 1


@pytest.mark.slow
def test_workloads_past_the_bound_have_no_series_and_are_counted() -> None:
    metrics = Metrics()
    metrics.record(World(exported_metrics.MAX_WORKLOADS + 3).tick())
    text = body(metrics)
    assert f"\n{PREFIX}unlisted_workloads 3.0\n" in text
    assert text.count(f"\n{PREFIX}desired_replicas{{") == exported_metrics.MAX_WORKLOADS


def test_sources_past_the_bound_share_one_label() -> None:
    tick = World(1).tick()
    reports = tuple(SourceReport(f"source-{i}", queries=1, failed=1) for i in range(MAX_SOURCES + 5))
    metrics = Metrics()
    metrics.record(replace(tick, input=replace(tick.input, samples=Samples.unknown(1, 0, reports))))
    assert value(metrics, "source_failures_total", source=OTHERS) == 5
    assert value(metrics, "source_failures_total", source="source-0") == 1


def test_problems_of_a_source_end_when_it_recovers() -> None:
    metrics, world = Metrics(), World(1)
    tick = world.tick()
    ill = Samples.unknown(1, 0, (SourceReport("prometheus", 3, 2, ("503", "timed out")),))
    metrics.record(replace(tick, input=replace(tick.input, samples=ill)))
    assert value(metrics, "source_problems", source="prometheus") == 2
    metrics.record(world.tick())
    assert value(metrics, "source_problems", source="prometheus") == 0


@pytest.mark.parametrize(
    ("status", "counted"), [(ChangeStatus.RECORDED, 1), (ChangeStatus.PUBLISHED, 1), (ChangeStatus.FAILED, 3)]
)
def test_a_repeated_change_counts_once_and_each_failure_counts(status: ChangeStatus, counted: int) -> None:
    metrics, world = Metrics(), World(8)
    tick = next(tick for tick in (world.tick(status) for _ in range(12)) if tick.outcomes)
    ups = sum(outcome.change.after > outcome.change.before for outcome in tick.outcomes)
    for _ in range(3):
        metrics.record(tick)
    total = sum(
        value(metrics, "changes_total", outcome=status.value, direction=direction) or 0 for direction in ("up", "down")
    )
    assert total == counted * len(tick.outcomes)
    assert (value(metrics, "changes_total", outcome=status.value, direction="up") or 0) == counted * ups


def test_openmetrics_is_answered_with_one_end_mark() -> None:
    metrics = Metrics()
    metrics.record(World(2).tick())
    assert metrics.render(OPENMETRICS)[0].startswith("application/openmetrics-text")
    text = body(metrics, OPENMETRICS)
    assert text.count("# EOF\n") == 1
    assert PREFIX + "desired_replicas" in {family.name for family in parse_openmetrics(text)}


def test_series_are_of_one_tick_when_another_comes_meanwhile() -> None:
    metrics, world = Metrics("test"), World(6)
    for tick in world.ticks(9):
        metrics.record(tick)
    before = body(metrics).splitlines()

    async def interrupted() -> str:
        parts = []
        async for part in metrics.render("")[1]:
            parts.append(part)
            if b"vllm_autoscaler_leader" in part:  # five workloads are gone in the next tick
                metrics.record(World(1).tick())
        return b"".join(parts).decode()

    after = asyncio.run(interrupted()).splitlines()
    of_gpus = [line for line in before if "gpu_seconds_total{" in line]
    assert {*of_gpus} == {line for line in after if "gpu_seconds_total{" in line}
    assert any("needed" in line for line in of_gpus) and any("pool" in line for line in of_gpus)


def test_other_parts_of_the_process_can_export_too() -> None:
    metrics = Metrics()
    Counter("grpc_calls", "Calls.", registry=metrics.registry).inc()
    assert families(metrics)["grpc_calls"].samples[0].value == 1


def test_what_the_keda_side_exports_is_what_the_catalogue_lists() -> None:
    world, calls = KedaWorld(), Calls()
    world.decide(Row("llama", 11, current=10))
    world.answers.publish(ref("llama"), Tolerance())
    calls.count("GetMetrics", "OK")
    metrics = Metrics("keda")
    metrics.registry.register(KedaCollector(world.answers, calls))
    exported = {name: family for name, family in families(metrics).items() if name.startswith(f"{PREFIX}keda_")}
    assert exported.keys() == {family.full_name.removesuffix("_total") for family in exported_metrics.KEDA}
    for family in exported_metrics.KEDA:
        found = exported[family.full_name.removesuffix("_total")]
        assert (found.type, found.documentation) == (family.type, family.meaning)
        assert set(found.samples[0].labels) == set(family.labels)


def test_the_time_of_the_state_is_absent_until_it_was_saved() -> None:
    metrics = Metrics()
    metrics.record(busy())
    assert not families(metrics)[f"{PREFIX}state_saved_timestamp_seconds"].samples
    metrics.set_state_saved(1_800_000_000.5)
    assert value(metrics, "state_saved_timestamp_seconds") == 1_800_000_000.5


def test_policy_problems_and_stream_clients_are_set_from_outside() -> None:
    metrics = Metrics()
    metrics.set_policy_problems(2)
    metrics.set_stream_clients(5)
    assert value(metrics, "policy_problems") == 2
    assert value(metrics, "stream_clients") == 5


def test_phases_of_starts_are_exported_once_one_was_seen() -> None:
    metrics = Metrics("direct")
    tick = with_starts(World(2).tick())
    metrics.record(tick)
    first, second = (workload.ref.name for workload in tick.input.fleet.workloads)
    name = "cold_start_phase_seconds"
    assert value(metrics, name, workload=first, phase="weights", quantile="0.5") == 40
    assert value(metrics, name, workload=first, phase="weights", quantile="0.9") == 60
    assert value(metrics, name, workload=second, phase="weights", quantile="0.5") is None
    assert value(metrics, "cold_start_by_weights_seconds", workload=first, weights="held") == 55
    assert value(metrics, "cold_start_by_weights_seconds", workload=second, weights="held") is None
    assert value(metrics, "starting_pods", workload=first, phase="weights") == 1
