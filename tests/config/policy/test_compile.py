"""Policies and workloads to columns."""

import math
from dataclasses import fields, replace
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.config.policy.compile import WEIGHTS, Compiler, OverrideError, compile_specs, override, spec_row
from autoscaler.config.policy.parse import PolicyBook, load
from autoscaler.config.policy.schema import OVERRIDES, Policy, PolicySpec
from autoscaler.core.model.fleet import Workload, WorkloadRef
from autoscaler.core.model.spec import Spec
from tests.core.world import Story, fleet
from tests.harness.calls import counted_calls

BOOK = load()
NOON_S = 1_768_478_400.0  # 2026-01-15 12:00 UTC


def workload(policy: str = "", *overrides: tuple[str, str], name: str = "w") -> Workload:
    return Workload(WorkloadRef("ns", name), policy=policy, overrides=overrides)


def with_policies(**specs: object) -> PolicyBook:
    made = {
        name: Policy.model_validate(
            {"apiVersion": "vllm-autoscaler.io/v1", "kind": "Policy", "metadata": {"name": name}, "spec": spec}
        )
        for name, spec in specs.items()
    }
    return replace(BOOK, policies=MappingProxyType({**BOOK.policies, **made}))


def same(left: Spec, right: Spec) -> bool:
    columns = [field.name for field in fields(Spec)]
    return all(np.array_equal(getattr(left, name), getattr(right, name), equal_nan=True) for name in columns)


def test_every_field_of_a_policy_arrives_in_its_column():
    book = with_policies(
        full={
            "objective": {"ttft": "150ms", "itl": "50ms", "attainment": "99.5%", "window": "12h"},
            "priority": 7,
            "headroom": "guaranteed",
            "headroomShare": "20%",
            "weight": 2.5,
            "replicas": {"min": 2, "max": 9, "onDemandFloor": 3},
            "queue": {"maxWait": "500ms"},
            "scaleUp": {"maxStep": "100%", "per": "15s", "stabilization": "3s"},
            "scaleDown": {"maxStep": 2, "per": "60s", "stabilization": "5m"},
            "tolerance": 0.05,
            "scaleToZero": {"enabled": True, "idleAfter": "15m"},
            "capacity": {
                "concurrency": 32,
                "prefillTokensPerSecond": 8000,
                "decodeTokensPerSecond": 1500,
                "targetUsage": 0.7,
                "kvCacheUsage": "90%",
            },
            "pair": {"minDecodePerPrefill": 1, "maxDecodePerPrefill": 3.5},
            "sleep": {"replicas": 1, "level": 2},
            "coldStart": "90s",
            "inputs": {"maxAge": "45s"},
        }
    )
    spec = compile_specs((workload("full"),), book).spec
    assert {field.name: float(getattr(spec, field.name)[0]) for field in fields(Spec)} == pytest.approx(
        {
            "ttft_objective_s": 0.15,
            "itl_objective_s": 0.05,
            "attainment": 0.995,
            "window_s": 43_200,
            "headroom_share": 0.2,
            "priority": 7,
            "weight": 2.5,
            "min_replicas": 2,
            "max_replicas": 9,
            "on_demand_floor": 3,
            "max_wait_s": 0.5,
            "up_step_fraction": 1.0,
            "up_step_replicas": 4.0,
            "up_period_s": 15,
            "up_stabilization_s": 3,
            "down_step_fraction": np.nan,
            "down_step_replicas": 2,
            "down_period_s": 60,
            "down_stabilization_s": 300,
            "tolerance": 0.05,
            "idle_after_s": 900,
            "concurrency": 32,
            "prefill_tokens_per_s": 8000,
            "decode_tokens_per_s": 1500,
            "target_usage": 0.7,
            "kv_target_usage": 0.9,
            "min_decode_per_prefill": 1,
            "max_decode_per_prefill": 3.5,
            "sleep_replicas": 1,
            "sleep_level": 2,
            "cold_start_s": 90,
            "max_input_age_s": 45,
        },
        nan_ok=True,
    )


@pytest.mark.parametrize("path", list(OVERRIDES))
def test_every_field_override_changes_only_its_column(path: str):
    written = {"Share": "33%", "Number": "3.5", "Integer": "2", "StepKind": "3", "Switch": "true", "OneOf": "shared"}
    text = written.get(type(OVERRIDES[path].kind).__name__, "7h" if path == "objective.window" else "7s")
    base = override(BOOK.policies["realtime"], (("scaleToZero.idleAfter", "9m"),))
    before = spec_row(base.spec)
    after = spec_row(override(base, ((path, text),)).spec)
    changed = np.flatnonzero(~np.isclose(before, after, rtol=0, atol=0, equal_nan=True))
    if path == "scaleToZero.idleAfter":
        assert len(changed) == 0, "it counts only while enabled"
    elif path == WEIGHTS:
        assert len(changed) == 0, "the inventory compares it with devices; no decision reads it"
    elif path.endswith("maxStep"):
        assert len(changed) == 2, "a step is a fraction or a count"
    else:
        assert len(changed) == 1


def test_a_workload_without_a_policy_gets_the_default():
    compiled = compile_specs((workload(),), BOOK)
    assert compiled.names == ("interactive",)
    assert not compiled.problems


def test_a_missing_policy_is_reported_and_nothing_is_scaled():
    compiled = compile_specs((workload("realtime"), workload("reltime"), workload("batch")), BOOK)
    assert compiled.names == ("realtime", "", "batch")
    assert set(compiled.problems) == {1}
    assert compiled.problems[1] == (
        "did you mean realtime? policy 'reltime' does not exist, so the workload is not scaled; "
        "allowed: batch, development, interactive, realtime"
    )
    assert all(np.isnan(getattr(compiled.spec, field.name)[1]) for field in fields(Spec))
    assert np.isnan(compiled.windows.at(NOON_S, 0.0).replicas[1]).all()


@pytest.mark.parametrize(
    ("overrides", "reported"),
    [
        ((("replicas.min", "9"),), ["replicas.min", "above max", "'9'", "which is 8"]),
        ((("replicas.max", "0"),), ["replicas.max", "too small", "'0'", "from 1 to 10,000"]),
        ((("replicas.min", "5"), ("replicas.max", "4")), ["replicas.min", "above max", "'5'", "which is 4"]),
        ((("replicas.max", "-1"),), ["replicas.max", "negative", "'-1'"]),
        ((("replicas.mx", "3"),), ["replicas.mx", "cannot be overridden", "did you mean replicas.max?"]),
        ((("objective.ttft", "200"),), ["objective.ttft", "a duration without a unit", "'200'", "150ms"]),
        ((("objective.ttft", ""),), ["objective.ttft", "not a duration", "''"]),
        ((("weight", "9" * 5000),), ["weight", "too many digits", "a number from"]),
        ((("replicas.max", "3"), ("replicas.max", "4")), ["replicas.max", "given twice", "'3'", "'4'"]),
        ((("prewarm", "soon"),), ["prewarm", "not a list", "soon"]),
        ((("wakeUp.query", "up"),), ["wakeUp.query", "cannot be overridden"]),
        ((("\ud800\x00\n" * 100, "1"),), ["cannot be overridden"]),
        (tuple((f"field{number}", "1") for number in range(100)), ["too many", "100", "64 at most"]),
    ],
)
def test_invalid_overrides_are_reported_and_nothing_is_scaled(
    overrides: tuple[tuple[str, str], ...], reported: list[str]
):
    compiled = compile_specs((workload("batch", *overrides), workload("batch")), BOOK)
    assert compiled.names == ("", "batch")
    assert set(compiled.problems) == {0}
    assert compiled.problems[0].startswith("overrides cannot be used, so the workload is not scaled: ")
    assert all(words in compiled.problems[0] for words in reported), compiled.problems[0]
    assert len(compiled.problems[0]) < 1200
    assert np.isnan(compiled.spec.max_replicas).tolist() == [True, False]


def test_a_conflicting_override_is_reported_at_its_place():
    book = with_policies(floor={"replicas": {"min": 4, "max": 8}})
    with pytest.raises(OverrideError) as caught:
        override(book.policies["floor"], (("replicas.max", "3"),))
    assert caught.value.path == "replicas.max"
    assert str(caught.value) == (
        "replicas.max: leaves replicas.min above max, found '3'; allowed: at most replicas.max, which is 3"
    )


@pytest.mark.parametrize(
    ("replicas", "bounds", "held"),
    [
        ((1, 1), (0, 16), (1, 1)),
        ((3, 8), (1, 100), (3, 8)),
        ((1, 16), (2, 8), (2, 8)),
        ((3, 8), (0, 2), (2, 2)),
        ((1, 1), (2, math.inf), (2, 2)),
        ((1, 16), (0, math.inf), (1, 16)),
    ],
)
def test_fixed_bounds_take_precedence_over_the_policy(
    replicas: tuple[int, int], bounds: tuple[float, float], held: tuple[float, float]
):
    book = with_policies(base={}, bounded={"replicas": {"min": replicas[0], "max": replicas[1]}})
    overrides = (("replicas.max", str(replicas[1])), ("replicas.min", str(replicas[0])))
    requests = (workload("bounded"), workload("base", *overrides), workload("bounded"))
    compiled = compile_specs((*(request._replace(bounds=bounds) for request in requests[:2]), requests[2]), book)
    assert not compiled.problems
    assert compiled.spec.min_replicas.tolist() == [held[0], held[0], replicas[0]]
    assert compiled.spec.max_replicas.tolist() == [held[1], held[1], replicas[1]]


def test_fixed_bounds_keep_a_workload_above_zero():
    book = with_policies(idle={"replicas": {"min": 0}, "scaleToZero": {"enabled": True}})
    compiled = compile_specs((workload("idle"), workload("idle")._replace(bounds=(1, 4))), book)
    assert compiled.spec.min_replicas.tolist() == [0, 1]


def test_what_does_not_apply_to_a_side_of_a_pair_is_left_out():
    policy = override(
        BOOK.policies["realtime"],
        (
            ("capacity.concurrency", "9"),
            ("capacity.prefillTokensPerSecond", "1"),
            ("capacity.decodeTokensPerSecond", "2"),
        ),
    )
    plain, prefill, decode = (Spec(*np.array(spec_row(policy.spec, role=role))) for role in ("", "prefill", "decode"))
    absent = {
        role: {name for name, value in vars(row).items() if np.isnan(value) and not np.isnan(getattr(plain, name))}
        for role, row in (("prefill", prefill), ("decode", decode))
    }
    assert absent == {
        "prefill": {"itl_objective_s", "concurrency", "decode_tokens_per_s"},
        "decode": {"ttft_objective_s", "prefill_tokens_per_s"},
    }


def test_overrides_keep_the_windows_of_the_policy():
    window = {"from": "0 8 * * *", "until": "0 18 * * *", "replicas": 3}
    book = with_policies(office={"prewarm": [window]})
    compiled = compile_specs((workload("office", ("replicas.max", "5")), workload()), book)
    replicas = compiled.windows.at(NOON_S, 0.0).replicas
    assert replicas.shape == (2, 2)
    assert replicas[0].tolist() == [3, 3]
    assert np.isnan(replicas[1]).all()


@pytest.mark.parametrize(("enabled", "floor", "idle_after_s"), [(True, 0, np.inf), (False, 1, np.nan)])
def test_a_floor_of_zero_needs_scale_to_zero(enabled: bool, floor: float, idle_after_s: float):
    policy = PolicySpec.model_validate({"replicas": {"min": 0}, "scaleToZero": {"enabled": enabled}})
    row = Spec(*np.array(spec_row(policy)))
    np.testing.assert_array_equal([row.min_replicas, row.idle_after_s], [floor, idle_after_s])


def test_automatic_idle_time_is_infinite():
    for stated, idle_after_s in (("auto", np.inf), ("20m", 1200.0)):
        policy = PolicySpec.model_validate({"scaleToZero": {"enabled": True, "idleAfter": stated}})
        assert Spec(*np.array(spec_row(policy))).idle_after_s == idle_after_s


def test_no_workloads_are_no_rows():
    compiled = compile_specs((), BOOK)
    assert compiled.names == ()
    assert all(getattr(compiled.spec, field.name).shape == (0,) for field in fields(Spec))
    assert compiled.windows.at(NOON_S, 0.0).start_s.shape[0] == 0


requests = st.builds(
    workload,
    st.sampled_from(["", "realtime", "batch", "development", "nobody", "x" * 300]),
    *[
        st.tuples(
            st.sampled_from([*OVERRIDES, "replicas.mox"]),
            st.sampled_from(["0", "1", "3", "0.5", "50%", "5m", "150ms", "true", "nonsense", ""]),
        )
    ]
    * 2,
)


@given(st.lists(requests, max_size=12))
def test_compiling_many_workloads_equals_compiling_each_alone(workloads: list[Workload]):
    together = compile_specs(tuple(workloads), BOOK)
    alone = [compile_specs((each,), BOOK) for each in workloads]
    assert together.names == tuple(one.names[0] for one in alone)
    assert together.problems == {row: one.problems[0] for row, one in enumerate(alone) if one.problems}
    if alone:
        assert same(together.spec, Spec.stack([one.spec for one in alone]))


@given(st.lists(requests, min_size=1, max_size=8), st.lists(requests, min_size=1, max_size=8))
def test_a_compiler_that_remembers_answers_as_one_that_does_not(before: list[Workload], after: list[Workload]):
    compiler = Compiler()
    compiler.compile(tuple(before), BOOK)
    remembered, fresh = compiler.compile(tuple(after), BOOK), compile_specs(tuple(after), BOOK)
    assert (remembered.names, remembered.problems) == (fresh.names, fresh.problems)
    assert same(remembered.spec, fresh.spec)


def test_while_nothing_changes_the_same_columns_come_back():
    compiler, workloads = Compiler(), (workload("batch"), workload("realtime"))
    first = compiler.compile(workloads, BOOK)
    assert compiler.compile(workloads, BOOK) is first
    assert compiler.compile((*workloads,), BOOK) is first, "another tuple of equal workloads"
    assert compiler.compile(workloads[:1], BOOK) is not first


def test_new_policies_are_compiled_again():
    compiler, workloads = Compiler(), (workload("mine"),)
    assert compiler.compile(workloads, BOOK).names == ("",)
    assert compiler.compile(workloads, with_policies(mine={})).names == ("mine",)
    assert compiler.compile(workloads, BOOK).names == ("",)


def test_only_distinct_policies_are_compiled():
    names = ["", "realtime", "batch", "development"]
    workloads = tuple(
        workload(names[row % 4], ("replicas.max", str(8 + row % 20)), name=f"w{row}") for row in range(10_000)
    )
    with counted_calls() as few:
        compile_specs(workloads[:20], BOOK)
    with counted_calls() as all_of_them:
        compiled = compile_specs(workloads, BOOK)
    assert all_of_them.made < few.made + 3 * len(workloads), "one workload more looks its policy up"
    assert compiled.spec.max_replicas[:3].tolist() == [8, 9, 10]


@pytest.mark.slow
@pytest.mark.parametrize("waiting", [0.0, 500.0])
@pytest.mark.parametrize("standing", [0, 1, 3])
def test_the_tick_ignores_a_workload_without_a_policy(waiting: float, standing: int):
    """Ten minutes idle, or ten minutes overrun: the present count stays, beside a workload that is scaled."""
    compiled = compile_specs((workload("nobody"), workload("realtime")), BOOK)
    story = Story(compiled.spec)
    cluster = fleet([standing, 4])
    for tick in range(120):
        load = {"waiting": waiting, "running": waiting / 10, "generation_tokens": waiting * tick}
        decision = story.tick(cluster, 5.0, **load, gateway_waiting=waiting)
    assert decision.replicas[0] == standing
    assert decision.replicas[1] != 4, "the other one is idle or overrun just the same, and is scaled"
