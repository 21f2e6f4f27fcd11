"""What the GPU of each replica does, from all counters together."""

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.explain.diagnosis import describe
from autoscaler.core.explain.row import TickRow
from autoscaler.core.model.diagnosis import Diagnosis
from autoscaler.core.model.samples import PodSamples
from autoscaler.core.observe.diagnosis import RULES, GpuFacts, classify
from autoscaler.core.table.columns import replace
from tests.core.world import Story, fleet, spec, world
from tests.harness.dcgm_recordings import SHOWN

GPU = {"gpu_time_s": 10_000.0, "fb_usage": 0.9, "tensor_active": 0.0, "sm_active": 0.0, "dram_active": 0.0}
UNKNOWN = [each for each in Diagnosis if not each.known]


def test_every_diagnosis_has_a_rule_and_a_recording():
    reached = set(Diagnosis) - {Diagnosis.NOTHING_SERVES}
    assert {found for found, _ in RULES} == reached
    assert {shown.diagnosis for shown in SHOWN.values()} == reached - {Diagnosis.NO_ENGINE_READING}


readings = st.one_of(st.just(np.nan), st.floats(0, 1), st.sampled_from([0.0, 0.3, 1.0]))


@given(
    st.fixed_dictionaries(dict.fromkeys(("fb_usage", "tensor_active", "sm_active", "dram_active"), readings)),
    st.fixed_dictionaries({name: st.sampled_from([np.nan, 0.0, 1.0, 9.0]) for name in ("running", "waiting")}),
    st.sampled_from([np.nan, 0.0, 100.0]),
    st.booleans(),
)
def test_a_diagnosis_needs_the_counters_that_it_names(gpu, engine, util, stuck):
    columns = {name: np.array([value]) for name, value in {**gpu, **engine, "gpu_util": util}.items()}
    samples = replace(PodSamples.filled(1), gpu_time_s=np.array([995.0]), **columns)
    facts = GpuFacts(1000.0, samples, np.array([stuck]))
    found = Diagnosis(int(classify(facts)[0]))
    unprofiled = all(np.isnan(gpu[name]) for name in ("tensor_active", "sm_active", "dram_active"))
    if found is Diagnosis.IDLE_AND_LOADED:
        assert gpu["fb_usage"] >= 0.5
        assert engine == {"running": 0, "waiting": 0}
        assert not max(gpu["tensor_active"], gpu["dram_active"], gpu["sm_active"], util if unprofiled else 0.0) > 0.01
    if found in (Diagnosis.MEMORY_BOUND_DECODE, Diagnosis.COMPUTE_BOUND_PREFILL):
        assert not np.isnan(gpu["tensor_active"])
    if unprofiled and not stuck:
        assert found in (*UNKNOWN, Diagnosis.BUSY, Diagnosis.IDLE_AND_LOADED, Diagnosis.STARVED)
        assert not found.known or (facts.weak[0] and not np.isnan(util))
    if found is Diagnosis.STUCK:
        assert stuck
        assert not gpu["tensor_active"] > 0.005


def test_old_gpu_readings_diagnose_nothing():
    columns = {each.name: np.zeros(1) for each in fields(PodSamples)}
    samples = PodSamples(**{**columns, "gpu_time_s": np.array([800.0]), "fb_usage": np.ones(1)})
    assert classify(GpuFacts(1000.0, samples, np.zeros(1, bool))) == [Diagnosis.NO_GPU_READING]


def diagnosed(story: Story, *pods: int, **columns):
    cluster = fleet(list(pods))
    decision = story.watch(cluster, 60, **{**GPU, **columns})
    return decision, TickRow(world(story.now_s, cluster, story.spec, **columns), decision, 0)


def test_the_state_of_most_replicas_is_that_of_the_workload():
    decision, row = diagnosed(Story(spec()), 3, dram_active=np.array([0.0, 0.7, 0.0]), running=np.array([0, 9.0, 0]))
    assert (decision.diagnosed.replicas[0], decision.diagnosed.serving[0]) == (2, 3)
    words = describe(row)
    assert (words.diagnosis, words.weak) == ("idle_and_loaded", False)
    assert words.sentence.startswith("2 of 3 serving replicas: idle and loaded")


def test_requests_without_progress_beside_a_still_gpu_are_stuck():
    decision, row = diagnosed(Story(spec()), 1, running=3.0, gaps=5.0, sm_active=1.0)
    assert decision.diagnosed.diagnosis[0] == Diagnosis.STUCK
    assert "restart" in describe(row).change


def test_gpu_util_alone_is_called_a_weak_sign():
    unprofiled = {"tensor_active": np.nan, "sm_active": np.nan, "dram_active": np.nan, "gpu_util": 0.0}
    decision, row = diagnosed(Story(spec()), 1, **unprofiled)
    assert decision.diagnosed.weak[0]
    assert "GPU_UTIL alone tells" in describe(row).sentence


def test_the_reason_is_said_when_nothing_is_known():
    decision, row = diagnosed(Story(spec()), 2, gpu_time_s=np.nan)
    assert decision.diagnosed.diagnosis[0] == Diagnosis.NO_GPU_READING
    words = describe(row)
    assert (words.diagnosis, words.change) == ("unknown", "")
    assert "not known, because there are no GPU metrics" in words.sentence
    none = Story(spec()).tick(fleet([0]))
    assert none.diagnosed.diagnosis[0] == Diagnosis.NOTHING_SERVES


@pytest.mark.parametrize(
    ("rules", "columns", "change"),
    [
        ({}, {}, "sleep of idle replicas, or a smaller slice"),
        ({"idle_after_s": np.inf}, {}, "sleep of idle replicas, or a smaller slice"),
        ({"idle_after_s": np.inf}, {"gateway_waiting": 0.0}, "its policy lets it go to zero"),
        ({}, {"gateway_waiting": 0.0, "gateway_arrivals_per_s": 0.0}, "scale to zero"),
        ({"idle_after_s": 600.0}, {"gateway_waiting": 0.0}, "its policy lets it go to zero"),
    ],
)
def test_an_idle_workload_is_told_what_its_policy_allows(rules, columns, change):
    _, row = diagnosed(Story(spec(**rules)), 1, **columns)
    said = describe(row).change
    assert change in said
    assert ("`vllm-autoscaler report` replays" in said) == (not said.startswith("none"))


@pytest.mark.slow
@given(st.sampled_from([0.0, 0.2, 1.0, np.nan]), st.sampled_from([0.0, 0.9, np.nan]), st.sampled_from([np.nan, 0.0]))
def test_gpus_alone_change_no_count(active, fb_usage, util):
    gpu = {"fb_usage": fb_usage, "tensor_active": active, "sm_active": active, "gpu_util": util}
    links = {"pcie_bytes_per_s": active * 1e11, "nvlink_bytes_per_s": active * 1e11}
    load = {"running": 12.0, "waiting": 1.0}
    with_gpus, without = Story(spec()), Story(spec())
    for _ in range(3):
        seen = with_gpus.tick(fleet([2]), **load, gpu_time_s=with_gpus.now_s, **gpu, **links)
        blind = without.tick(fleet([2]), **load)
        assert np.array_equal(seen.stages, blind.stages, equal_nan=True)
