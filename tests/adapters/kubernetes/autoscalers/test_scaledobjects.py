from datetime import UTC, datetime
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.adapters.keda.check import check_scaled_object
from autoscaler.adapters.kubernetes.api import objects, target_objects
from autoscaler.adapters.kubernetes.api.text import PROBLEM_LIMIT
from autoscaler.adapters.kubernetes.autoscalers.hpas import HpaStore
from autoscaler.adapters.kubernetes.autoscalers.scaledobjects import (
    ScaledObjectSpec,
    ScaledObjectStore,
    read_scaled_object,
)
from autoscaler.config.findings import Severity
from autoscaler.config.policy.parse import load
from autoscaler.config.yaml import Document
from autoscaler.core.model.fleet import WorkloadRef
from autoscaler.ports import ScaledObjectFields

TRIGGER = {"type": "external", "metadata": {"scalerAddress": "a:6000", "policy": "batch"}}


def scaled_object(
    *triggers: Any, annotations: dict[str, str] | None = None, **spec: Any
) -> target_objects.ScaledObject:
    body = {"scaleTargetRef": {"name": "llama"}, "triggers": list(triggers), **spec}
    metadata = {"name": "so", "namespace": "ns", "annotations": annotations}
    return msgspec.convert({"metadata": metadata, "spec": body}, target_objects.ScaledObject)


def spec_of(*triggers: Any, **stated: Any) -> ScaledObjectSpec:
    return read_scaled_object(scaled_object(*triggers, **stated))


def test_defaults_equal_those_of_keda():
    found = spec_of(TRIGGER)
    assert found.scaled_object.target == WorkloadRef("ns", "llama")
    assert (found.scaled_object.min_replicas, found.scaled_object.max_replicas) == (0, 100)
    assert (found.scaled_object.tolerance_up, found.scaled_object.tolerance_down) == (None, None)
    assert dict(found.scaled_object.metadata) == TRIGGER["metadata"]
    assert (found.is_ours, found.policy, found.overrides, found.scaled_object.problem) == (True, "batch", (), "")


def test_bounds_and_overrides_are_read_separately():
    stated = TRIGGER | {"metadata": TRIGGER["metadata"] | {"replicas.max": "4", "replicas.min": "1"}}
    found = spec_of(stated, minReplicaCount=2, maxReplicaCount=10)
    assert dict(found.overrides) == {"replicas.max": "4", "replicas.min": "1"}
    assert found.bounds == (2, 10)


@pytest.mark.parametrize("spec", [{}, {"minReplicaCount": 0}, {"minReplicaCount": None, "maxReplicaCount": None}])
def test_bounds_are_keda_defaults_when_not_stated(spec: dict):
    assert spec_of(TRIGGER, **spec).bounds == (0, 100)


@pytest.mark.parametrize(
    ("value", "read"), [(0, 0.0), ("0", 0.0), ("0.05", 0.05), ("50m", 0.05), (0.1, 0.1), (None, None)]
)
def test_tolerance_is_parsed_as_a_quantity(value: Any, read: float | None):
    behavior = {"scaleUp": {"tolerance": value}}
    found = spec_of(TRIGGER, advanced={"horizontalPodAutoscalerConfig": {"behavior": behavior}})
    assert found.scaled_object.tolerance_up == (pytest.approx(read) if read is not None else None)
    assert found.scaled_object.problem == ""


class TestToleranceOfTheHpa:
    """API servers before 1.35 drop the field from the HPA that KEDA creates."""

    STATED: ClassVar = {"scaleUp": {"tolerance": "0"}, "scaleDown": {"tolerance": "0.05"}}

    def setup_method(self):
        self.hpas = HpaStore()
        self.store = ScaledObjectStore(self.hpas)
        self.state()

    def state(self, **spec: Any) -> None:
        behavior = {"horizontalPodAutoscalerConfig": {"behavior": self.STATED}}
        self.store.put(scaled_object(TRIGGER, advanced=behavior, **spec))

    def make(self, behavior: Any, scaled_object: str = "so", target: str = "llama", name: str = "keda-hpa-so") -> None:
        owner = {"kind": "ScaledObject", "name": scaled_object, "controller": True}
        reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": target}
        body = {
            "metadata": {"name": name, "namespace": "ns", "ownerReferences": [owner]},
            "spec": {"scaleTargetRef": reference, "behavior": behavior},
        }
        self.hpas.put(msgspec.convert(body, target_objects.HorizontalPodAutoscaler))

    def tolerance(self) -> tuple[float | None, float | None]:
        found = self.scaled_object()
        return found.tolerance_up, found.tolerance_down

    def scaled_object(self) -> ScaledObjectFields:
        found = self.store.get("ns", "so")
        assert found is not None
        return found

    def test_spec_is_used_when_there_is_no_hpa(self):
        assert self.tolerance() == (0.0, 0.05)
        self.make(None, scaled_object="another")
        self.make(None, target="other", name="second")
        assert self.tolerance() == (0.0, 0.05)

    @pytest.mark.parametrize(
        ("behavior", "read"),
        [
            (None, (None, None)),
            ({"scaleUp": {"stabilizationWindowSeconds": 0}, "scaleDown": None}, (None, None)),
            ({"scaleUp": {"tolerance": "0"}}, (0.0, None)),
            ({"scaleUp": {"tolerance": "0"}, "scaleDown": {"tolerance": "50m"}}, (0.0, 0.05)),
            ({"scaleUp": {"tolerance": "100u"}, "scaleDown": {"tolerance": "nonsense"}}, (0.0001, None)),
        ],
    )
    def test_hpa_is_used_when_it_is_known(self, behavior: Any, read: tuple):
        self.make(behavior)
        assert self.tolerance() == tuple(value if value is None else pytest.approx(value) for value in read)

    def test_spec_is_used_again_when_the_hpa_is_removed(self):
        self.make(None)
        self.make(self.STATED)
        assert self.tolerance() == (0.0, 0.05)
        self.make({})
        assert self.tolerance() == (None, None)
        self.hpas.remove("ns", "keda-hpa-so")
        assert self.tolerance() == (0.0, 0.05)

    def test_same_object_is_returned_when_nothing_changes(self):
        for behavior in (None, self.STATED):
            self.make(behavior)
            before = self.scaled_object()
            self.make(behavior)
            self.make(None, scaled_object="another", target="other", name="second")
            self.state()
            assert self.scaled_object() is before
        self.state(maxReplicaCount=7)
        assert self.scaled_object().max_replicas == 7
        self.store.remove("ns", "so")
        assert self.store.get("ns", "so") is None


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"minReplicaCount": -1}, "minReplicaCount: negative, found -1; allowed: a whole number from 0 to"),
        ({"maxReplicaCount": "many"}, "maxReplicaCount: not a whole number, found 'many'"),
        ({"maxReplicaCount": 0}, "maxReplicaCount: too small, found 0; allowed: a whole number from 1 to"),
        ({"maxReplicaCount": True}, "maxReplicaCount: not a whole number, found True"),
        (
            {"minReplicaCount": 5, "maxReplicaCount": 3},
            "minReplicaCount: above maxReplicaCount, found 5; allowed: at most 3",
        ),
        (
            {"scaleTargetRef": {"name": "x", "kind": "DaemonSet"}},
            "kind: cannot be scaled, found 'DaemonSet'; allowed: Deployment, DisaggregatedSetRoleScaler, ",
        ),
        (
            {"scaleTargetRef": {"name": "x", "kind": "LeaderWorkerSet"}},
            "apiVersion: absent, which means apps/v1; allowed: leaderworkerset.x-k8s.io/v1",
        ),
        ({"scaleTargetRef": {"name": "x", "kind": 5}}, "kind: cannot be scaled, found 5; allowed"),
        ({"scaleTargetRef": {}}, "scaleTargetRef.name: missing; allowed: the target's name"),
        ({"scaleTargetRef": "llama"}, "scaleTargetRef.name"),
        (
            {"advanced": {"horizontalPodAutoscalerConfig": {"behavior": {"scaleDown": {"tolerance": "-1"}}}}},
            "scaleDown.tolerance: not a quantity, found '-1'",
        ),
    ],
)
def test_problem_names_allowed_values_when_field_is_invalid(spec: dict, words: str):
    assert words in spec_of(TRIGGER, **spec).scaled_object.problem


@pytest.mark.parametrize("empty", [{"kind": "", "apiVersion": ""}, {"kind": None, "apiVersion": None}, {"kind": ""}])
def test_target_is_a_deployment_when_kind_is_empty(empty: dict):
    found = spec_of(TRIGGER, scaleTargetRef={"name": "llama", **empty})
    assert (found.scaled_object.target, found.scaled_object.problem) == (WorkloadRef("ns", "llama"), "")


def test_second_trigger_of_this_scaler_is_a_problem():
    assert (
        "spec.triggers[1]: a second trigger of this scaler; allowed: one"
        in spec_of(TRIGGER, TRIGGER).scaled_object.problem
    )


def test_metadata_is_a_problem_when_not_text_or_too_long():
    bad = {"type": "external", "metadata": {"policy": "batch", "weight": 3, "objective.ttft": "9" * 300}}
    problem = spec_of(bad).scaled_object.problem
    assert "metadata.weight: not text" in problem
    assert "metadata.objective.ttft" in problem


def test_keda_keys_are_valid_and_never_stored():
    """KEDA's guide puts certificates and keys into the metadata. They are longer than any policy field."""
    key = "-----BEGIN PRIVATE KEY-----hunter2" + "x" * 3_000
    found = spec_of({"type": "external", "metadata": {**TRIGGER["metadata"], "tlsClientKey": key}})
    assert found.scaled_object.problem == ""
    assert dict(found.scaled_object.metadata) == TRIGGER["metadata"]


def test_external_trigger_is_not_ours_without_a_policy():
    found = spec_of({"type": "external", "metadata": {"scalerAddress": "b:1"}})
    assert (found.has_external_trigger, found.is_ours) == (True, False)
    assert "names no policy" in found.scaled_object.problem


def test_triggers_of_other_types_are_ignored():
    found = spec_of({"type": "prometheus", "metadata": {"policy": "batch"}}, "nonsense", None)
    assert (found.has_external_trigger, found.is_ours) == (False, False)


@pytest.mark.parametrize(
    ("value", "paused"),
    [
        *((value, True) for value in ("1", "t", "T", "true", "True", "TRUE")),
        *((value, False) for value in ("0", "f", "F", "false", "False", "FALSE")),
        *((value, True) for value in ("perhaps", "", "no", "fAlse", "false ")),
    ],
)
def test_paused_annotation_is_parsed_like_keda(value: str, paused: bool):
    assert spec_of(TRIGGER, annotations={"autoscaling.keda.sh/paused": value}).paused is paused


@pytest.mark.parametrize("count", ["0", "3", "false"])
def test_paused_replicas_always_pauses(count: str):
    assert spec_of(TRIGGER, annotations={"autoscaling.keda.sh/paused-replicas": count}).paused
    both = {"autoscaling.keda.sh/paused-replicas": count, "autoscaling.keda.sh/paused": "false"}
    assert spec_of(TRIGGER, annotations=both).paused


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"metricType": "Value"}, "triggers[0].metricType: multiplies our count"),
        ({"metricType": "Utilization"}, "triggers[0].metricType: multiplies our count"),
        ({"metadata": {**TRIGGER["metadata"], "polciy": "x"}}, "metadata.polciy: did you mean policy? unknown key"),
        ({"metadata": {**TRIGGER["metadata"], "objective.ttft": "fast"}}, "metadata.objective.ttft: not a duration"),
        ({"metadata": {"policy": "batch"}}, "metadata.scalerAddress: missing"),
        ({"metadata": {**TRIGGER["metadata"], "enableTLS": "perhaps"}}, "metadata.enableTLS: 'perhaps'"),
    ],
)
def test_trigger_is_a_problem_when_check_refuses_it(change: dict, words: str):
    assert words in spec_of(TRIGGER | change).scaled_object.problem


@pytest.mark.parametrize(
    "spec",
    [
        {"idleReplicaCount": 2, "minReplicaCount": 2},
        {"idleReplicaCount": 0},
        {"pollingInterval": "15s"},
        {"cooldownPeriod": -1},
        {"initialCooldownPeriod": True},
        {"fallback": {"failureThreshold": 3}},
        {"fallback": {"failureThreshold": 3, "replicas": "2"}},
        {"maxReplicas": 8},
        *(
            {"advanced": {"horizontalPodAutoscalerConfig": {"behavior": {"scaleUp": rules}}}}
            for rules in (
                {"selectPolicy": "max"},
                {"stabilizationWindowSeconds": 3601},
                {"policies": {"type": "Pods"}},
                {"policies": [{"type": "Pods", "value": 0, "periodSeconds": 15}]},
                {"policies": [{"type": "Pods", "value": 4}]},
            )
        ),
    ],
)
def test_problem_equals_the_errors_of_check(spec: dict):
    """`check` and the daemon report the same errors for the same ScaledObject."""
    body = {"scaleTargetRef": {"name": "llama"}, "triggers": [TRIGGER], **spec}
    found = list(check_scaled_object(Document("so.yaml", 1, {"spec": body}), load()))
    errors = [finding for finding in found if finding.severity is Severity.ERROR]
    problem = spec_of(TRIGGER, **spec).scaled_object.problem
    assert errors
    assert all(f"{error.key}: {error.problem}" in problem for error in errors)


@pytest.mark.parametrize("others", [[{"type": "cron"}], [{"type": "cpu"}, {"type": "prometheus"}]])
def test_other_triggers_are_reported_as_deciders(others: list):
    found = spec_of(*others, TRIGGER)
    assert f"has {len(others) + 1} triggers ({others[0]['type']}" in found.other_deciders
    assert not found.scaled_object.is_only_trigger
    assert (found.scaled_object.problem, found.metric) == ("", f"s{len(others)}-replicas")
    single = spec_of(TRIGGER)
    assert (single.other_deciders, single.scaled_object.is_only_trigger, single.metric) == ("", True, "s0-replicas")


def test_scaling_modifiers_are_reported_as_deciders():
    found = spec_of(TRIGGER, advanced={"scalingModifiers": {"formula": "a * 2", "target": "1"}})
    assert "the formula of its scalingModifiers" in found.other_deciders
    assert (found.scaled_object.is_only_trigger, found.metric) == (False, "composite-metric")


@pytest.mark.parametrize(("status", "reported"), [("True", True), ("False", False), ("Unknown", False)])
def test_active_fallback_is_reported(status: str, reported: bool):
    seen = scaled_object(TRIGGER)
    conditions = ["nonsense", {"type": "Ready", "status": "True"}, {"type": "Fallback", "status": status}]
    found = read_scaled_object(msgspec.structs.replace(seen, status={"conditions": conditions}))
    assert ("uses its fallback" in found.other_deciders) is reported


def test_scaled_object_is_ignored_when_being_deleted():
    store = ScaledObjectStore(HpaStore())
    store.put(scaled_object(TRIGGER))
    assert store.get("ns", "so") is not None
    seen = scaled_object(TRIGGER)
    leaving = msgspec.structs.replace(seen.metadata, deletion_timestamp=datetime(2026, 1, 1, tzinfo=UTC))
    store.put(msgspec.structs.replace(seen, metadata=leaving))
    assert (store.get("ns", "so"), store.all()) == (None, [])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=12,
)
KEYS = ["scaleTargetRef", "minReplicaCount", "maxReplicaCount", "idleReplicaCount", "advanced", "fallback"]


@given(st.dictionaries(st.sampled_from([*KEYS, "triggers"]), JSON, max_size=5) | JSON, JSON)
def test_any_custom_resource_is_read_without_raising(spec: Any, status: Any):
    metadata = objects.AnnotatedMetadata(name="so", namespace="ns")
    found = read_scaled_object(target_objects.ScaledObject(metadata=metadata, spec=spec, status=status))
    assert (
        found.is_ours,
        found.scaled_object.target.name == "" or isinstance(found.scaled_object.target.name, str),
    ) == (False, True)


@given(st.dictionaries(st.sampled_from(KEYS), JSON, max_size=5), JSON)
def test_any_other_trigger_is_read_without_raising(spec: dict, extra: Any):
    found = spec_of(TRIGGER, extra, **spec)
    assert found.is_ours
    assert len(found.scaled_object.problem) <= PROBLEM_LIMIT
