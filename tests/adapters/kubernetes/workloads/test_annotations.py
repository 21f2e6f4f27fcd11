import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.adapters.kubernetes.api.text import PROBLEM_LIMIT
from autoscaler.adapters.kubernetes.workloads.annotations import NOTHING, read_annotations
from tests.adapters.kubernetes.world import PREFIX, annotated
from tests.harness.calls import counted_calls


def test_workload_is_not_managed_without_annotations():
    assert read_annotations(None) is NOTHING
    assert read_annotations({"app.kubernetes.io/name": "x"}).policy is None


def test_every_annotation_is_read():
    declared = read_annotations(
        annotated(
            policy="batch",
            service="chat",
            role="prefill",
            min_replicas="1",
            max_replicas="8",
            paused="true",
            engine="sglang",
            model="org/Model-7B:v1",
            metrics_port="9000",
            metrics_scheme="https",
            metrics_path="/v1/metrics",
        )
        | {f"{PREFIX}override.objective.ttft": "200ms"}
    )
    assert declared.policy == "batch"
    assert declared.overrides == (("objective.ttft", "200ms"), ("replicas.max", "8"), ("replicas.min", "1"))
    assert (declared.service, declared.engine, declared.model) == ("chat", "sglang", "org/Model-7B:v1")
    assert declared.role == "prefill"
    assert (declared.metrics_port, declared.paused, declared.problem) == (9000, True, "")
    assert (declared.metrics_scheme, declared.metrics_path) == ("https", "/v1/metrics")


@pytest.mark.parametrize(
    ("name", "value"),
    [("scheme", "ftp"), ("scheme", "HTTPS"), ("path", "metrics"), ("path", "/a?b=c"), ("path", "/" + "x" * 300)],
)
def test_invalid_endpoint_is_dropped_and_reported(name: str, value: str):
    declared = read_annotations({f"{PREFIX}metrics-{name}": value})
    assert (declared.metrics_scheme, declared.metrics_path) == ("", "")
    assert f"metrics-{name}" in declared.problem


def test_unknown_role_is_dropped_and_allowed_ones_named():
    declared = read_annotations(annotated(policy="", service="chat", role="both"))
    assert (declared.service, declared.role) == ("chat", "")
    assert "role: unknown, found 'both'; allowed: prefill, decode" in declared.problem


def test_empty_policy_is_the_default_and_invalid_is_none():
    assert read_annotations(annotated(policy="")).policy == ""
    assert read_annotations(annotated(policy="../x")).policy == "(invalid)"


def test_invalid_value_is_dropped_and_allowed_ones_named():
    declared = read_annotations(annotated(policy="batch", max_replicas="many", engine="vlm"))
    assert declared.overrides == (("replicas.max", "many"),), "without it the policy's bound would hold"
    assert "max-replicas: not a whole number, found 'many'; allowed: a whole number from 1 to" in declared.problem
    assert "engine: did you mean vllm? unknown, found 'vlm'; allowed: vllm" in declared.problem


def test_invalid_override_does_not_affect_others():
    declared = read_annotations(
        annotated(policy="batch", max_replicas="4")
        | {f"{PREFIX}override.objective.ttft": "200", f"{PREFIX}override.objective.speed": "1"}
    )
    assert declared.overrides == (("replicas.max", "4"),)
    assert "objective.ttft:" in declared.problem
    assert "'objective.speed' cannot be overridden" in declared.problem


def test_paused_is_true_unless_it_is_false():
    assert not read_annotations(annotated(policy="", paused="false")).paused
    declared = read_annotations(annotated(policy="", paused="yes"))
    assert declared.paused
    assert "paused: unknown, found 'yes', taken as true; allowed: true, false" in declared.problem


def test_field_stated_twice_is_reported():
    declared = read_annotations(annotated(policy="", max_replicas="4") | {f"{PREFIX}override.replicas.max": "5"})
    assert declared.overrides == (("replicas.max", "4"),)
    assert "'override.replicas.max': replicas.max is given twice, '4' is used" in declared.problem


def test_unknown_annotation_is_reported_with_the_known_ones():
    problem = read_annotations(annotated(policy="", polcy="x")).problem
    assert problem.startswith("did you mean policy? vllm-autoscaler.io/'polcy' is not known; allowed: ")
    assert "metrics-port" in problem


@pytest.mark.parametrize("prefix", [PREFIX, f"{PREFIX}override."])
def test_thousands_of_unknown_annotations_cost_little(prefix: str):
    """Each change of the workload reads them, and a user of the namespace must not slow the daemon down."""
    unknown = [{f"{prefix}{number}": "" for number in range(count)} for count in (50, 5_000)]
    with counted_calls() as some:
        read_annotations(unknown[0])
    with counted_calls() as thousands:
        read_annotations(unknown[1] | annotated(policy="batch"))
    assert read_annotations(unknown[1] | annotated(policy="batch")).policy == "batch"
    assert thousands.made - some.made < 10 * 5_000


@given(st.dictionaries(st.text(max_size=30).map(PREFIX.__add__), st.text(max_size=300), max_size=12))
def test_hostile_annotations_never_raise(annotations: dict[str, str]):
    declared = read_annotations(annotations)
    assert len(declared.problem) <= PROBLEM_LIMIT
    assert declared.metrics_port == 0 or 0 < declared.metrics_port < 65_536


def test_weights_are_read_and_an_invalid_source_is_reported():
    declared = read_annotations(annotated(policy="", weights="hf://org/m@v1"))
    assert (declared.weights, declared.problem) == ("hf://org/m@v1", "")
    declared = read_annotations(annotated(policy="", weights="hf://org/m"))
    assert declared.weights == ""
    assert "weights: " in declared.problem and "its revision is missing" in declared.problem


WINDOWS = '[{"from": "0 9 * * *", "until": "0 18 * * *", "replicas": 3}]'


def test_windows_of_a_workload_override_those_of_its_policy():
    declared = read_annotations(annotated(policy="") | {f"{PREFIX}windows": WINDOWS})
    assert (declared.overrides, declared.problem) == ((("prewarm", WINDOWS),), "")


def test_bad_windows_are_dropped_and_reported():
    declared = read_annotations(annotated(policy="") | {f"{PREFIX}windows": WINDOWS.replace("3}", "0}")})
    assert declared.overrides == ()
    assert "windows: [0].replicas: too small" in declared.problem
