from datetime import UTC, datetime
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.adapters.keda.check import check_scaled_object
from autoscaler.adapters.kubernetes.api import objects
from autoscaler.adapters.kubernetes.autoscalers.hpas import HpaTable
from autoscaler.adapters.kubernetes.autoscalers.scaledobjects import Asked, ScaledObjectTable, read_scaled_object
from autoscaler.adapters.kubernetes.workloads.annotations import PROBLEM_LIMIT
from autoscaler.config.findings import Severity
from autoscaler.config.policy.parse import load
from autoscaler.config.yaml import Document
from autoscaler.core.model.fleet import WorkloadRef
from autoscaler.ports import ScaledObject

TRIGGER = {"type": "external", "metadata": {"scalerAddress": "a:6000", "policy": "batch"}}


def scaled_object(*triggers: Any, annotations: dict[str, str] | None = None, **spec: Any) -> objects.ScaledObject:
    body = {"scaleTargetRef": {"name": "llama"}, "triggers": list(triggers), **spec}
    metadata = {"name": "so", "namespace": "ns", "annotations": annotations}
    return msgspec.convert({"metadata": metadata, "spec": body}, objects.ScaledObject)


def asked(*triggers: Any, **stated: Any) -> Asked:
    return read_scaled_object(scaled_object(*triggers, **stated))


def test_defaults_are_those_of_keda():
    found = asked(TRIGGER)
    assert found.port.target == WorkloadRef("ns", "llama")
    assert (found.port.min_replicas, found.port.max_replicas) == (0, 100)
    assert (found.port.tolerance_up, found.port.tolerance_down) == (None, None)
    assert dict(found.port.metadata) == TRIGGER["metadata"]
    assert (found.ours, found.policy, found.overrides, found.port.problem) == (True, "batch", (), "")


def test_bounds_of_the_scaled_object_stand_beside_the_overrides_of_the_trigger():
    stated = TRIGGER | {"metadata": TRIGGER["metadata"] | {"replicas.max": "4", "replicas.min": "1"}}
    found = asked(stated, minReplicaCount=2, maxReplicaCount=10)
    assert dict(found.overrides) == {"replicas.max": "4", "replicas.min": "1"}
    assert found.bounds == (2, 10)


@pytest.mark.parametrize("spec", [{}, {"minReplicaCount": 0}, {"minReplicaCount": None, "maxReplicaCount": None}])
def test_a_scaled_object_that_states_no_bounds_has_those_that_keda_gives_its_hpa(spec: dict):
    assert asked(TRIGGER, **spec).bounds == (0, 100)


@pytest.mark.parametrize(
    ("value", "read"), [(0, 0.0), ("0", 0.0), ("0.05", 0.05), ("50m", 0.05), (0.1, 0.1), (None, None)]
)
def test_the_tolerance_of_the_hpa_is_read_as_a_quantity(value: Any, read: float | None):
    behavior = {"scaleUp": {"tolerance": value}}
    found = asked(TRIGGER, advanced={"horizontalPodAutoscalerConfig": {"behavior": behavior}})
    assert found.port.tolerance_up == (pytest.approx(read) if read is not None else None)
    assert found.port.problem == ""


class TestToleranceOfTheHpa:
    """API servers before 1.35 drop the field from the HPA that KEDA makes."""

    STATED: ClassVar = {"scaleUp": {"tolerance": "0"}, "scaleDown": {"tolerance": "0.05"}}

    def setup_method(self):
        self.hpas = HpaTable()
        self.table = ScaledObjectTable(self.hpas)
        self.state()

    def state(self, **spec: Any) -> None:
        behavior = {"horizontalPodAutoscalerConfig": {"behavior": self.STATED}}
        self.table.put(scaled_object(TRIGGER, advanced=behavior, **spec))

    def make(self, behavior: Any, scaled_object: str = "so", target: str = "llama", name: str = "keda-hpa-so") -> None:
        owner = {"kind": "ScaledObject", "name": scaled_object, "controller": True}
        reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": target}
        body = {
            "metadata": {"name": name, "namespace": "ns", "ownerReferences": [owner]},
            "spec": {"scaleTargetRef": reference, "behavior": behavior},
        }
        self.hpas.put(msgspec.convert(body, objects.HorizontalPodAutoscaler))

    def tolerance(self) -> tuple[float | None, float | None]:
        port = self.port()
        return port.tolerance_up, port.tolerance_down

    def port(self) -> ScaledObject:
        port = self.table.port("ns", "so")
        assert port is not None
        return port

    def test_before_there_is_an_hpa_the_scaled_object_is_believed(self):
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
    def test_what_the_hpa_has_holds_and_absent_is_the_default(self, behavior: Any, read: tuple):
        self.make(behavior)
        assert self.tolerance() == tuple(value if value is None else pytest.approx(value) for value in read)

    def test_it_follows_the_hpa_and_is_the_scaled_objects_again_without_one(self):
        self.make(None)
        self.make(self.STATED)
        assert self.tolerance() == (0.0, 0.05)
        self.make({})
        assert self.tolerance() == (None, None)
        self.hpas.remove("ns", "keda-hpa-so")
        assert self.tolerance() == (0.0, 0.05)

    def test_the_same_object_is_returned_while_nothing_changes(self):
        for behavior in (None, self.STATED):
            self.make(behavior)
            port = self.port()
            self.make(behavior)
            self.make(None, scaled_object="another", target="other", name="second")
            self.state()
            assert self.port() is port
        self.state(maxReplicaCount=7)
        assert self.port().max_replicas == 7
        self.table.remove("ns", "so")
        assert self.table.port("ns", "so") is None


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
            "kind: cannot be scaled, found 'DaemonSet'; allowed: Deployment, LeaderWorkerSet, StatefulSet",
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
def test_what_makes_no_sense_is_named_with_what_is_allowed(spec: dict, words: str):
    assert words in asked(TRIGGER, **spec).port.problem


@pytest.mark.parametrize("empty", [{"kind": "", "apiVersion": ""}, {"kind": None, "apiVersion": None}, {"kind": ""}])
def test_an_empty_kind_or_version_is_a_deployment_as_it_is_to_keda(empty: dict):
    found = asked(TRIGGER, scaleTargetRef={"name": "llama", **empty})
    assert (found.port.target, found.port.problem) == (WorkloadRef("ns", "llama"), "")


def test_two_triggers_that_name_a_policy_are_one_too_many():
    assert "spec.triggers[1]: a second trigger of this scaler; allowed: one" in asked(TRIGGER, TRIGGER).port.problem


def test_metadata_that_is_no_text_or_too_long_is_refused():
    bad = {"type": "external", "metadata": {"policy": "batch", "weight": 3, "objective.ttft": "9" * 300}}
    problem = asked(bad).port.problem
    assert "metadata.weight: not text" in problem
    assert "metadata.objective.ttft" in problem


def test_what_keda_alone_reads_is_no_fault_and_never_repeated():
    """KEDA's own guide puts certificates and keys into the metadata; they are longer than any field of a policy."""
    key = "-----BEGIN PRIVATE KEY-----hunter2" + "x" * 3_000
    found = asked({"type": "external", "metadata": {**TRIGGER["metadata"], "tlsClientKey": key}})
    assert found.port.problem == ""
    assert dict(found.port.metadata) == TRIGGER["metadata"]


def test_an_external_trigger_without_a_policy_may_belong_to_somebody_else():
    found = asked({"type": "external", "metadata": {"scalerAddress": "b:1"}})
    assert (found.external, found.ours) == (True, False)
    assert "names no policy" in found.port.problem


def test_other_triggers_are_none_of_our_business():
    found = asked({"type": "prometheus", "metadata": {"policy": "batch"}}, "nonsense", None)
    assert (found.external, found.ours) == (False, False)


@pytest.mark.parametrize(
    ("value", "paused"),
    [
        *((value, True) for value in ("1", "t", "T", "true", "True", "TRUE")),
        *((value, False) for value in ("0", "f", "F", "false", "False", "FALSE")),
        *((value, True) for value in ("perhaps", "", "no", "fAlse", "false ")),
    ],
)
def test_paused_in_keda_is_paused_here_and_nonsense_counts_as_true_as_it_does_there(value: str, paused: bool):
    assert asked(TRIGGER, annotations={"autoscaling.keda.sh/paused": value}).paused is paused


@pytest.mark.parametrize("count", ["0", "3", "false"])
def test_a_count_to_pause_at_is_paused_whatever_it_is(count: str):
    assert asked(TRIGGER, annotations={"autoscaling.keda.sh/paused-replicas": count}).paused
    both = {"autoscaling.keda.sh/paused-replicas": count, "autoscaling.keda.sh/paused": "false"}
    assert asked(TRIGGER, annotations=both).paused


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"metricType": "Value"}, "triggers[0].metricType: multiplies our count"),
        ({"metricType": "Utilization"}, "triggers[0].metricType: multiplies our count"),
        ({"metadata": {**TRIGGER["metadata"], "polciy": "x"}}, "metadata.polciy: unknown key"),
        ({"metadata": {**TRIGGER["metadata"], "objective.ttft": "fast"}}, "metadata.objective.ttft: not a duration"),
        ({"metadata": {"policy": "batch"}}, "metadata.scalerAddress: missing"),
        ({"metadata": {**TRIGGER["metadata"], "enableTLS": "perhaps"}}, "metadata.enableTLS: 'perhaps'"),
    ],
)
def test_a_trigger_that_check_calls_wrong_cannot_be_used(change: dict, words: str):
    assert words in asked(TRIGGER | change).port.problem


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
def test_what_check_calls_an_error_is_a_problem_of_the_object_in_the_cluster(spec: dict):
    """A manifest that `check` refuses and one that was applied all the same are judged by the same words."""
    body = {"scaleTargetRef": {"name": "llama"}, "triggers": [TRIGGER], **spec}
    found = list(check_scaled_object(Document("so.yaml", 1, {"spec": body}), load()))
    errors = [finding for finding in found if finding.severity is Severity.ERROR]
    problem = asked(TRIGGER, **spec).port.problem
    assert errors
    assert all(f"{error.key}: {error.problem}" in problem for error in errors)


@pytest.mark.parametrize("others", [[{"type": "cron"}], [{"type": "cpu"}, {"type": "prometheus"}]])
def test_other_triggers_are_told_as_deciding_beside_ours(others: list):
    found = asked(*others, TRIGGER)
    assert f"has {len(others) + 1} triggers ({others[0]['type']}" in found.beside
    assert (found.port.alone, found.port.problem, found.metric) == (False, "", f"s{len(others)}-replicas")
    assert (asked(TRIGGER).beside, asked(TRIGGER).port.alone, asked(TRIGGER).metric) == ("", True, "s0-replicas")


def test_a_formula_is_told_as_deciding_beside_our_answer():
    found = asked(TRIGGER, advanced={"scalingModifiers": {"formula": "a * 2", "target": "1"}})
    assert "the formula of its scalingModifiers" in found.beside
    assert (found.port.alone, found.metric) == (False, "composite-metric")


@pytest.mark.parametrize(("status", "told"), [("True", True), ("False", False), ("Unknown", False)])
def test_a_fallback_in_force_is_told(status: str, told: bool):
    seen = scaled_object(TRIGGER)
    conditions = ["nonsense", {"type": "Ready", "status": "True"}, {"type": "Fallback", "status": status}]
    found = read_scaled_object(msgspec.structs.replace(seen, status={"conditions": conditions}))
    assert ("is in its fallback" in found.beside) is told


def test_a_scaled_object_in_deletion_asks_nothing_any_more():
    table = ScaledObjectTable(HpaTable())
    table.put(scaled_object(TRIGGER))
    assert table.port("ns", "so") is not None
    seen = scaled_object(TRIGGER)
    leaving = msgspec.structs.replace(seen.metadata, deletion_timestamp=datetime(2026, 1, 1, tzinfo=UTC))
    table.put(msgspec.structs.replace(seen, metadata=leaving))
    assert (table.port("ns", "so"), table.all()) == (None, [])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=12,
)
KEYS = ["scaleTargetRef", "minReplicaCount", "maxReplicaCount", "idleReplicaCount", "advanced", "fallback"]


@given(st.dictionaries(st.sampled_from([*KEYS, "triggers"]), JSON, max_size=5) | JSON, JSON)
def test_whatever_a_custom_resource_holds_is_read_without_raising(spec: Any, status: Any):
    metadata = objects.AnnotatedMetadata(name="so", namespace="ns")
    found = read_scaled_object(objects.ScaledObject(metadata=metadata, spec=spec, status=status))
    assert (found.ours, found.port.target.name == "" or isinstance(found.port.target.name, str)) == (False, True)


@given(st.dictionaries(st.sampled_from(KEYS), JSON, max_size=5), JSON)
def test_whatever_stands_beside_our_trigger_is_read_without_raising(spec: dict, extra: Any):
    found = asked(TRIGGER, extra, **spec)
    assert found.ours
    assert len(found.port.problem) <= PROBLEM_LIMIT
