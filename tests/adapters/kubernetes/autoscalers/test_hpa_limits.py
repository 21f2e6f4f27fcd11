"""Limits of KEDA and its HPA on a count, by the rules of KEDA 2.20 and Kubernetes 1.36."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.adapters.kubernetes.api import target_objects
from autoscaler.adapters.kubernetes.autoscalers.hpa_limits import (
    NO_LIMIT,
    Delays,
    HpaLimit,
    limit_of,
    missing_metric,
    to_columns,
)
from autoscaler.adapters.kubernetes.autoscalers.hpas import Hpa, HpaStore
from autoscaler.adapters.kubernetes.autoscalers.scaledobjects import ScaledObjectSpec, read_scaled_object

TRIGGER = {"type": "external-push", "metadata": {"scalerAddress": "a:6000", "policy": "batch"}}
OFF = {"selectPolicy": "Disabled"}


def spec_of(*notes: str, triggers: tuple[Any, ...] = (TRIGGER,), **spec: Any) -> ScaledObjectSpec:
    body = {"scaleTargetRef": {"name": "llama"}, "triggers": list(triggers), **spec}
    annotations = {f"autoscaling.keda.sh/{note}": "true" for note in notes}
    metadata = {"name": "so", "namespace": "ns", "annotations": annotations}
    return read_scaled_object(msgspec.convert({"metadata": metadata, "spec": body}, target_objects.ScaledObject))


def hpa(metrics: tuple[str, ...] = ("s0-replicas",), error: str = "", **behavior: Any) -> Hpa:
    hpas = HpaStore()
    body = {
        "metadata": {
            "name": "keda-hpa-so",
            "namespace": "ns",
            "ownerReferences": [{"kind": "ScaledObject", "name": "so", "controller": True}],
        },
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "llama"},
            "behavior": behavior or None,
            "metrics": [{"type": "External", "external": {"metric": {"name": name}}} for name in metrics],
        },
        "status": {
            "conditions": [
                {"type": "AbleToScale", "status": "False", "reason": "FailedUpdateScale", "message": error}
                if error
                else {"type": "AbleToScale", "status": "True", "reason": "ReadyForNewScale", "message": "as it should"},
                {"type": "ScalingActive", "status": "False", "reason": "ScalingDisabled"},
            ]
        },
    }
    hpas.put(msgspec.convert(body, target_objects.HorizontalPodAutoscaler))
    hpa = hpas.of_scaled_object("so", spec_of().target)
    assert hpa is not None
    return hpa


def limits_nothing(found: HpaLimit) -> bool:
    return found._replace(delays=NO_LIMIT.delays) == NO_LIMIT


def test_no_limit_when_nothing_limits_the_count():
    assert limits_nothing(limit_of(spec_of(), hpa(), 6))
    assert to_columns([NO_LIMIT, NO_LIMIT]) is None


@pytest.mark.parametrize(
    ("behavior", "grow_s", "shrink_s"),
    [
        ({}, 15, 315),  # what Kubernetes does by default
        ({"scaleDown": {"stabilizationWindowSeconds": 0}}, 15, 15),
        ({"scaleUp": {"stabilizationWindowSeconds": 60}, "scaleDown": {"selectPolicy": "Min"}}, 75, 315),
        (
            {
                "scaleUp": {"policies": [{"type": "Pods", "value": 1, "periodSeconds": 120}]},
                "scaleDown": {
                    "stabilizationWindowSeconds": 30,
                    "policies": [
                        {"type": "Pods", "value": 1, "periodSeconds": 15},
                        {"type": "Percent", "value": 10, "periodSeconds": 600},
                    ],
                },
            },
            120,
            630,
        ),
    ],
)
def test_delays_are_those_of_windows_and_policies(behavior: dict[str, Any], grow_s: float, shrink_s: float):
    stated = spec_of(advanced={"horizontalPodAutoscalerConfig": {"behavior": behavior}})
    for created, known in ((spec_of(), hpa(**behavior)), (stated, None)):
        assert limit_of(created, known, 6).delays == Delays(30, grow_s, shrink_s, 330)


def test_keda_waits_for_its_cooldown_and_its_next_poll():
    delays = limit_of(spec_of(cooldownPeriod=60, initialCooldownPeriod=600, pollingInterval=10), hpa(), 6).delays
    assert (delays.wake_s, delays.zero_s) == (10, 610)
    assert limit_of(spec_of(cooldownPeriod="long", pollingInterval=-1), hpa(), 6).delays.zero_s == 30
    assert limit_of(spec_of(minReplicaCount=1), hpa(), 6).delays.zero_s == float("inf")  # KEDA never goes to zero


def test_delays_of_all_hpas_are_columns():
    columns = to_columns([limit_of(spec_of(), hpa(), 6), limit_of(spec_of(cooldownPeriod=60), hpa(), 2)])
    assert columns is not None and columns.delays is not None
    assert columns.delays.zero_s.tolist() == [330, 90]
    assert columns.delays.shrink_s.tolist() == [315, 315]


@pytest.mark.parametrize(
    ("notes", "replicas", "least", "most"),
    [
        (("paused-scale-in",), 6, 6, float("inf")),
        (("paused-scale-out",), 6, 0, 6),
        (("paused-scale-out",), 0, 0, 0),  # KEDA does not start the first replica either
        (("paused-scale-in", "paused-scale-out"), 6, 6, 6),
        (("force-activation",), 6, 1, float("inf")),
        (("force-activation",), 0, 1, float("inf")),
        (("force-activation", "paused-scale-out"), 0, 0, 0),
    ],
)
def test_count_is_bounded_by_keda_annotations(notes: tuple[str, ...], replicas: int, least: float, most: float):
    found = limit_of(spec_of(*notes), hpa(), replicas)
    assert (found.min_replicas, found.max_replicas, found.to_zero, found.shared) == (least, most, False, False)
    assert all(note in found.reason for note in notes)


def test_hpa_bounds_apply_when_a_direction_is_disabled():
    """An HPA returns to its bounds without a metric, whatever its selectPolicy is."""
    assert limit_of(spec_of("paused-scale-in", maxReplicaCount=4), hpa(), 6).min_replicas == 4
    assert limit_of(spec_of("paused-scale-out", minReplicaCount=3), hpa(), 1).max_replicas == 3
    assert limit_of(spec_of("force-activation", minReplicaCount=3), hpa(), 0).min_replicas == 3


def test_min_replica_count_applies_when_nothing_is_active():
    """KEDA goes below minReplicaCount only to an idleReplicaCount, and the policy may allow zero."""
    found = limit_of(spec_of(minReplicaCount=2), hpa(), 6)
    assert (found.min_replicas, found.max_replicas, found.reason) == (
        2,
        float("inf"),
        "the minReplicaCount of its ScaledObject is 2",
    )
    assert limits_nothing(limit_of(spec_of(minReplicaCount=2, idleReplicaCount=0), hpa(), 6))
    assert limit_of(spec_of("paused-scale-in", minReplicaCount=2), hpa(), 6).reason.count(" and ") == 0


def test_keda_leaves_and_reaches_zero_when_hpa_is_disabled():
    down = limit_of(spec_of(), hpa(scaleDown=OFF), 6)
    assert (down.min_replicas, down.max_replicas, down.to_zero) == (6, float("inf"), True)
    assert not limit_of(spec_of(minReplicaCount=1), hpa(scaleDown=OFF), 6).to_zero
    assert limit_of(spec_of(minReplicaCount=2, idleReplicaCount=0), hpa(scaleDown=OFF), 6).to_zero
    assert not limit_of(spec_of("paused-scale-in"), hpa(scaleDown=OFF), 6).to_zero
    assert not limit_of(spec_of("force-activation"), hpa(scaleDown=OFF), 6).to_zero
    assert limit_of(spec_of(), hpa(scaleUp=OFF), 0).max_replicas == 1
    assert limit_of(spec_of(minReplicaCount=2), hpa(scaleUp=OFF), 0).max_replicas == 2


def test_known_hpa_overrides_the_spec_of_the_scaled_object():
    stated = {"advanced": {"horizontalPodAutoscalerConfig": {"behavior": {"scaleDown": OFF}}}}
    assert limit_of(spec_of(**stated), None, 6).min_replicas == 6
    assert limit_of(spec_of(**stated), hpa(), 6).min_replicas == 0


@pytest.mark.parametrize(
    ("created", "shared"),
    [
        (spec_of(triggers=(TRIGGER, {"type": "cron"})), True),
        (spec_of(advanced={"scalingModifiers": {"formula": "a"}}), True),
        (spec_of(), False),
    ],
)
def test_limit_is_shared_when_other_triggers_decide_too(created: ScaledObjectSpec, shared: bool):
    found = limit_of(created, hpa((created.metric,)), 6)
    assert (found.shared, found.min_replicas) == (shared, 0)


@pytest.mark.parametrize(
    ("triggers", "metrics", "missing"),
    [
        ((TRIGGER,), ("s0-replicas",), False),
        ((TRIGGER,), (), True),
        ((TRIGGER,), ("s1-cron",), True),
        (({"type": "cron"}, TRIGGER), ("s0-cron", "s1-replicas"), False),
        (({"type": "cron"}, TRIGGER), ("s0-cron",), True),
    ],
)
def test_missing_metric_is_reported_when_hpa_lacks_ours(triggers: tuple[Any, ...], metrics: tuple, missing: bool):
    found = missing_metric(spec_of(triggers=triggers), hpa(metrics))
    assert bool(found) is missing
    assert limit_of(spec_of(triggers=triggers), hpa(metrics), 2).shared is (missing or len(triggers) > 1)
    assert missing_metric(spec_of(triggers=triggers), None) == ""


def test_limit_is_shared_when_hpa_cannot_scale():
    refused = "the HPA controller was unable to update the target scale: admission webhook\n denied the request"
    created = hpa(error=refused)
    assert created.error == " ".join(refused.split())
    assert limit_of(spec_of(), created, 6).shared
    assert hpa().error == ""


def test_write_conflict_of_the_hpa_is_no_error():
    assert hpa(error="unable to update the target scale: the object has been modified; please try again").error == ""


@given(
    st.sets(st.sampled_from(["paused-scale-in", "paused-scale-out", "force-activation"])),
    st.integers(0, 30),
    st.integers(0, 10),
    st.integers(1, 30),
    st.booleans(),
    st.booleans(),
)
def test_limits_never_cross_for_any_combination(
    notes: set[str], replicas: int, least: int, most: int, up: bool, down: bool
):
    rules = {**({"scaleUp": OFF} if up else {}), **({"scaleDown": OFF} if down else {})}
    found = limit_of(spec_of(*notes, minReplicaCount=min(least, most), maxReplicaCount=most), hpa(**rules), replicas)
    assert 0 <= found.min_replicas <= found.max_replicas
    assert found.min_replicas <= most
