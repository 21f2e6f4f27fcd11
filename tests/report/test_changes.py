"""Changes to consider: each replay compared with a slow second computation, and what is said where none is possible."""

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from autoscaler.core.measure.miss_curve import compute_mean_queue
from autoscaler.core.model.diagnosis import Diagnosis
from autoscaler.report.change_replay import ReplayInputs, slow_down
from autoscaler.report.changes import Service, find_changes
from autoscaler.report.columns import PolicyColumn
from autoscaler.report.diagnosis import NO_SAVING, GpuHours, Proposal, tell
from autoscaler.report.fluid import Reserve, follow
from autoscaler.report.outcome import sum_up
from tests.report.loads import facts_of, interactive, load_of, profiles_of

STEPS = 300
PROMPT = 0.1  # of the work: 100 tokens of 1e-4 s, of 0.1 s
H100, LLAMA = "NVIDIA-H100-80GB-HBM3", "meta-llama/Llama-3.1-8B-Instruct"
ROOM_GB, WEIGHTS_GB = 0.9 * 80, 8.03 * 2
NO_GATEWAY = np.zeros(1, bool)
STEEPNESS, SLOTS, COUNTS = 0.004, 20.0, 2.0
MINUTE = np.arange(STEPS)
WAVE = 1.5 + np.sin(MINUTE / STEPS * 2 * np.pi) + np.random.default_rng(3).uniform(0, 0.3, STEPS)
RARE = np.where(MINUTE // 60 == 2, 2.0, 0.0)


def spec_of(**changed):
    return interactive().with_columns({name: np.array([value]) for name, value in changed.items()})


def service_of(demand, gpus=1.0, work=1.0, spec=None, product=H100, model=LLAMA, speed=None, **load):
    """Load, speed, facts and policy of one service. work: times the work of a request."""
    counts = np.full((STEPS, 1), np.ceil(COUNTS * max(work, 1.0)))
    asked = demand[:, None] * work
    load = {"kv_usage": (np.minimum(demand[:, None] / COUNTS, 1) / 8).astype(np.float32)} | load
    made = load_of(asked, counts, work_s=0.1 * work, **load)
    facts = replace(facts_of(gpus), model=(model,), products=(product,))
    return made, speed or speed_of(work), facts, spec or spec_of()


def speed_of(work=1.0, times=1.0, **changed):
    """The speed of a replica on which a request takes `times` as long, by the curve of misses at two loads."""
    usual, slowed = (
        [float(compute_mean_queue(np.array([1 - (1 - at) / by]))[0]) for at in (0.5, 0.9)] for by in (1, times)
    )
    slope = (slowed[1] - slowed[0]) / (usual[1] - usual[0])
    values = {"steepness": STEEPNESS * slope, "unavoidable": STEEPNESS * (slowed[0] - slope * usual[0]), "slots": SLOTS}
    return profiles_of(**values | {"work_s": 0.1 * work, "idle_gap_s": 0.01 * work} | changed)


def figures_of(load, speed, facts, spec):
    course = follow(PolicyColumn(load, speed, spec), load, speed, reserve=Reserve.of(spec))
    return sum_up(course, load, speed, facts, spec)


def second(*service):
    found = figures_of(*service)
    return float(found.gpu_hours[0]), float(found.attainment[0])


def on_a_part(memory, compute, devices):
    """The service on a part of its GPU: tokens by its bandwidth, prompts by its compute, and a fuller KV cache."""
    load = service_of(WAVE)[0]
    busy = float(np.minimum(WAVE / COUNTS, 1).mean())
    used, cache_gb = float(load.kv_usage.mean()), [part * ROOM_GB - 2 - WEIGHTS_GB for part in (1.0, memory)]
    computing = (busy - used) / (1 - used)
    fuller = (computing + (1 - computing) * used * cache_gb[0] / cache_gb[1]) / busy
    times = PROMPT / compute + (1 - PROMPT) / memory
    spec = spec_of(max_replicas=np.ceil(16 * times * fuller))
    return second(*service_of(WAVE, devices, times * fuller, spec, speed=speed_of(times * fuller, times)))


def larger_batch():
    now_s, then_s = (0.01 + slots * 1e-4 for slots in (SLOTS, 2 * SLOTS))
    work = then_s / now_s / 2
    return second(*service_of(WAVE, work=work, speed=speed_of(work, then_s / now_s)))


def half_the_gpus():
    work = 2 * PROMPT + (1 - PROMPT) * (2 / 3 + 2 / 3)
    spec = spec_of(max_replicas=np.ceil(16 * work))
    return second(*service_of(WAVE, 1.0, work, spec, speed=speed_of(work, work)))


def both_sides():
    prefill, decode = (second(*service_of(WAVE, work=part)) for part in (PROMPT, 1 - PROMPT))
    return prefill[0] + decode[0], prefill[1] + decode[1] - 1


def resting(asleep):
    """Zero after five minutes: with a cold start, or with one replica that sleeps."""
    return second(*service_of(RARE, spec=spec_of(idle_after_s=300.0, sleep_replicas=asleep, attainment=0.8)))


PATIENT, IMPATIENT = spec_of(max_wait_s=600.0), spec_of(max_wait_s=5.0)
RESTLESS = spec_of(idle_after_s=math.nan, attainment=0.8)
CHANGES = {
    "to_zero": (Diagnosis.IDLE_AND_LOADED, service_of(RARE, spec=RESTLESS), lambda: resting(math.nan)),
    "sleep": (Diagnosis.IDLE_AND_LOADED, service_of(RARE, spec=RESTLESS), lambda: resting(1.0)),
    "slice": (Diagnosis.FEW_REQUESTS, service_of(WAVE, spec=IMPATIENT), lambda: on_a_part(1 / 2, 3 / 7, 1 / 2)),
    "share": (Diagnosis.FEW_REQUESTS, service_of(WAVE, spec=PATIENT), lambda: on_a_part(1 / 2, 1 / 2, 1 / 2)),
    "batch": (Diagnosis.MEMORY_BOUND_DECODE, service_of(WAVE), larger_batch),
    "quantize": (
        Diagnosis.MEMORY_BOUND_DECODE,
        service_of(WAVE),
        lambda: second(*service_of(WAVE, work=1 - (1 - PROMPT) / 3)),
    ),
    "pair": (Diagnosis.COMPUTE_BOUND_PREFILL, service_of(WAVE), both_sides),
    "quantize, half the GPUs": (Diagnosis.COMMUNICATION_BOUND, service_of(WAVE, gpus=2.0), half_the_gpus),
}


@cache
def proposals() -> dict[str, Proposal]:
    """Return the proposals to all services of the table together, each with one diagnosis."""
    diagnoses, services, _ = zip(*CHANGES.values(), strict=True)
    loads, speeds, facts, specs = zip(*services, strict=True)
    tables = [load.columns for load in loads]
    load = replace(loads[0], **{name: np.concatenate([each[name] for each in tables], axis=1) for name in tables[0]})
    speed, spec = (joined(each) for each in (speeds, specs))
    gpus = np.concatenate([each.gpus for each in facts])
    known = replace(
        facts_of(services=len(facts)), gpus=gpus, model=(LLAMA,) * len(facts), products=(H100,) * len(facts)
    )
    by_diagnosis = np.zeros((len(Diagnosis), len(facts)))
    by_diagnosis[list(diagnoses), range(len(facts))] = 1.0
    hours = replace(GpuHours.blank(len(facts)), by_diagnosis=by_diagnosis)
    today = figures_of(load, speed, known, spec)
    story = tell(hours, 300.0, ReplayInputs(load, speed, known, spec, np.zeros(len(facts), bool)), today)
    return dict(zip(CHANGES, story.proposals, strict=True))


def joined(tables):
    columns = [each.columns() for each in tables]
    return tables[0].with_columns({name: np.concatenate([each[name] for each in columns]) for name in columns[0]})


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGES)
def test_saving_is_that_of_a_second_computation_when_changed(name):
    _, today, compute = CHANGES[name]
    tried = next(each for each in proposals()[name].tried if each.change.name == name.partition(",")[0])
    assert tried.change.why == ""
    hours_today, attainment_today = second(*today)
    assert (tried.gpu_hours_today, tried.attainment_today) == pytest.approx((hours_today, attainment_today))
    hours, attainment = compute()
    assert tried.gpu_hours == pytest.approx(hours, rel=5e-3)
    assert tried.attainment == pytest.approx(attainment, abs=1e-4)
    loses = attainment < min(attainment_today, float(today[3].attainment[0])) - 1e-4
    gained = hours_today - hours + tried.asleep_gpu_hours * (name == "sleep")
    assert bool(tried.refusal) == (loses or gained < 0.05)


def test_most_saving_change_is_proposed_when_several_are_offered():
    for proposal in proposals().values():
        offered = [each for each in proposal.tried if not each.refusal]
        if offered:
            assert proposal.saved_gpu_hours == max(each.saved for each in offered)
            assert f"in place of {offered[0].attainment_today:.2%}" in proposal.words
        else:
            assert proposal.words.startswith("No change: ")
            assert math.isnan(proposal.saved_gpu_hours)
        assert all(f"{each.gpu_hours:,.1f} GPU-hours" in each.line for each in proposal.tried)


UNKNOWN = {
    "no model": (Diagnosis.MEMORY_BOUND_DECODE, {"model": ""}, {}, ["its model is not known by name"]),
    "8 bits": (Diagnosis.MEMORY_BOUND_DECODE, {"model": f"{LLAMA}-FP8"}, {}, ["its weights have 8 bits or fewer"]),
    "never full": (Diagnosis.MEMORY_BOUND_DECODE, {}, {"slots": math.nan}, ["never seen full"]),
    "no curve": (Diagnosis.MEMORY_BOUND_DECODE, {}, {"output_token_s": math.nan}, ["how its step time grows"]),
    "full cache": (
        Diagnosis.MEMORY_BOUND_DECODE,
        {"kv_usage": np.full((STEPS, 1), 0.95, np.float32)},
        {},
        ["its KV cache is full"],
    ),
    "no prompt time": (
        Diagnosis.COMPUTE_BOUND_PREFILL,
        {},
        {"prompt_token_s": math.nan},
        ["how long its prompts take"],
    ),
    "no product": (Diagnosis.FEW_REQUESTS, {"product": ""}, {}, ["its GPU is not known by name"]),
    "no MIG": (Diagnosis.FEW_REQUESTS, {"product": "NVIDIA-L40S", "spec": IMPATIENT}, {}, ["is not cut"]),
    "spans GPUs": (Diagnosis.FEW_REQUESTS, {"gpus": 2.0, "spec": IMPATIENT}, {}, ["no links between them"]),
    "no size": (Diagnosis.FEW_REQUESTS, {"model": "acme/secret"}, {}, ["does not tell its size"]),
    "no room": (Diagnosis.FEW_REQUESTS, {"model": "Qwen/Qwen2.5-32B"}, {}, ["have no room in less"]),
    "no cache metric": (
        Diagnosis.FEW_REQUESTS,
        {"kv_usage": np.full((STEPS, 1), np.nan, np.float32)},
        {},
        ["the use of its KV cache is not reported"],
    ),
    "no idle gap": (Diagnosis.MEMORY_BOUND_DECODE, {}, {"idle_gap_s": math.nan}, ["how its step time grows"]),
    "never idle": (Diagnosis.IDLE_AND_LOADED, {}, {}, ["save less than 5%", "save less than 5%"]),
    "one GPU": (Diagnosis.COMMUNICATION_BOUND, {}, {}, ["an odd number"]),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_reason_and_no_number_is_given_when_little_is_known(case):
    diagnosis, changed, speed, reasons = UNKNOWN[case]
    made, _, facts, spec = service_of(WAVE, **changed)
    found = find_changes(diagnosis, Service(made, speed_of(**speed), facts, spec, 0))
    whys = [each.why for each in found if each.why]
    assert len(whys) >= len(reasons)
    for reason in reasons:
        assert any(reason in why for why in whys), whys


def test_changes_of_a_service_in_doubt_have_no_number():
    inputs = ReplayInputs(*service_of(WAVE), NO_GATEWAY)
    hours, today = GpuHours.blank(1), figures_of(*inputs[:4])
    hours.by_diagnosis[Diagnosis.MEMORY_BOUND_DECODE] = 1.0
    (proposal,) = tell(hours, 300.0, inputs, today, ["odd"]).proposals
    assert "it is not well modelled: odd" in proposal.effect
    assert math.isnan(proposal.saved_gpu_hours)
    for diagnosis, says in ((Diagnosis.STARVED, "more CPU"), (Diagnosis.STUCK, "a restart"), (Diagnosis.BUSY, "")):
        hours = GpuHours.blank(1)
        hours.by_diagnosis[diagnosis] = 1.0
        (proposal,) = tell(hours, 300.0, inputs, today).proposals
        assert says in proposal.change
        assert proposal.effect == (NO_SAVING if says else "")


def test_zero_saves_nearly_all_when_no_request_ever_came():
    """Its work is unknown, as no request shows it, and so is the share of requests that would have met anything."""
    made, speed, facts, spec = service_of(0 * WAVE, spec=RESTLESS)
    made = replace(made, work_s=np.full_like(made.work_s, np.nan))
    inputs = ReplayInputs(made, speed, facts, spec, NO_GATEWAY)
    hours, today = GpuHours.blank(1), figures_of(made, speed, facts, spec)
    hours.by_diagnosis[Diagnosis.IDLE_AND_LOADED] = 1.0
    (proposal,) = tell(hours, 300.0, inputs, today).proposals
    assert proposal.tried[0].change.name == "to_zero"
    assert proposal.saved_gpu_hours == pytest.approx(today.gpu_hours[0] - COUNTS * 5 / 60, abs=COUNTS * 2 / 60)
    assert proposal.effect.endswith("GPU-hours less than this policy, while no request came")


def test_slowed_replica_misses_as_at_the_load_that_it_feels():
    for times in (1.0, 1.5, 2.0, 4.0, 8.0):
        slowed = slow_down(profiles_of(steepness=STEEPNESS), np.array([times]))
        loads = np.array([0.0, 0.2, 0.5, 0.9])
        felt = STEEPNESS * compute_mean_queue(1 - (1 - loads) / times)
        found = slowed.unavoidable + slowed.steepness * compute_mean_queue(loads)
        assert (found >= felt - 1e-9).all()
        np.testing.assert_allclose(found[2:], felt[2:])
