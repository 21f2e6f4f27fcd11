"""How KEDA and its HPA move a count that they are told to keep, by the tables of KEDA 2.20 and Kubernetes 1.36."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.adapters.kubernetes.api import objects
from autoscaler.adapters.kubernetes.autoscalers.hpa_limits import Hold, hold, lacks, table
from autoscaler.adapters.kubernetes.autoscalers.hpas import Hpa, HpaTable
from autoscaler.adapters.kubernetes.autoscalers.scaledobjects import Asked, read_scaled_object

TRIGGER = {"type": "external-push", "metadata": {"scalerAddress": "a:6000", "policy": "batch"}}
OFF = {"selectPolicy": "Disabled"}


def asked(*notes: str, triggers: tuple[Any, ...] = (TRIGGER,), **spec: Any) -> Asked:
    body = {"scaleTargetRef": {"name": "llama"}, "triggers": list(triggers), **spec}
    annotations = {f"autoscaling.keda.sh/{note}": "true" for note in notes}
    metadata = {"name": "so", "namespace": "ns", "annotations": annotations}
    return read_scaled_object(msgspec.convert({"metadata": metadata, "spec": body}, objects.ScaledObject))


def hpa(metrics: tuple[str, ...] = ("s0-replicas",), unable: str = "", **behavior: Any) -> Hpa:
    hpas = HpaTable()
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
                {"type": "AbleToScale", "status": "False", "reason": "FailedUpdateScale", "message": unable}
                if unable
                else {"type": "AbleToScale", "status": "True", "reason": "ReadyForNewScale", "message": "as it should"},
                {"type": "ScalingActive", "status": "False", "reason": "ScalingDisabled"},
            ]
        },
    }
    hpas.put(msgspec.convert(body, objects.HorizontalPodAutoscaler))
    made = hpas.made_by("so", asked().target)
    assert made is not None
    return made


def test_nothing_is_held_when_nothing_says_so():
    assert hold(asked(), hpa(), 6) == Hold()
    assert table([Hold(), Hold()]) is None


@pytest.mark.parametrize(
    ("notes", "replicas", "least", "most"),
    [
        (("paused-scale-in",), 6, 6, float("inf")),
        (("paused-scale-out",), 6, 0, 6),
        (("paused-scale-out",), 0, 0, 0),  # KEDA does not make the first replica either
        (("paused-scale-in", "paused-scale-out"), 6, 6, 6),
        (("force-activation",), 6, 1, float("inf")),
        (("force-activation",), 0, 1, float("inf")),
        (("force-activation", "paused-scale-out"), 0, 0, 0),
    ],
)
def test_an_annotation_of_keda_bounds_the_count(notes: tuple[str, ...], replicas: int, least: float, most: float):
    found = hold(asked(*notes), hpa(), replicas)
    assert (found.least, found.most, found.to_zero, found.shared) == (least, most, False, False)
    assert all(note in found.reason for note in notes)


def test_the_bounds_of_the_hpa_hold_when_a_direction_is_off():
    """Outside its bounds an HPA goes back within them without a metric, whatever its selectPolicy says."""
    assert hold(asked("paused-scale-in", maxReplicaCount=4), hpa(), 6).least == 4
    assert hold(asked("paused-scale-out", minReplicaCount=3), hpa(), 1).most == 3
    assert hold(asked("force-activation", minReplicaCount=3), hpa(), 0).least == 3


def test_a_minimum_of_the_scaled_object_stands_when_nothing_is_active():
    """KEDA goes below minReplicaCount only to an idleReplicaCount, and the policy may allow zero."""
    found = hold(asked(minReplicaCount=2), hpa(), 6)
    assert (found.least, found.most, found.reason) == (2, float("inf"), "the minReplicaCount of its ScaledObject is 2")
    assert hold(asked(minReplicaCount=2, idleReplicaCount=0), hpa(), 6) == Hold()
    assert hold(asked("paused-scale-in", minReplicaCount=2), hpa(), 6).reason.count(" and ") == 0


def test_keda_leaves_and_reaches_zero_when_only_the_hpa_is_off():
    down = hold(asked(), hpa(scaleDown=OFF), 6)
    assert (down.least, down.most, down.to_zero) == (6, float("inf"), True)
    assert not hold(asked(minReplicaCount=1), hpa(scaleDown=OFF), 6).to_zero
    assert hold(asked(minReplicaCount=2, idleReplicaCount=0), hpa(scaleDown=OFF), 6).to_zero
    assert not hold(asked("paused-scale-in"), hpa(scaleDown=OFF), 6).to_zero
    assert not hold(asked("force-activation"), hpa(scaleDown=OFF), 6).to_zero
    assert hold(asked(), hpa(scaleUp=OFF), 0).most == 1
    assert hold(asked(minReplicaCount=2), hpa(scaleUp=OFF), 0).most == 2


def test_hpa_is_believed_before_the_object_when_it_is_known():
    stated = {"advanced": {"horizontalPodAutoscalerConfig": {"behavior": {"scaleDown": OFF}}}}
    assert hold(asked(**stated), None, 6).least == 6
    assert hold(asked(**stated), hpa(), 6).least == 0


@pytest.mark.parametrize(
    ("made", "shared"),
    [
        (asked(triggers=(TRIGGER, {"type": "cron"})), True),
        (asked(advanced={"scalingModifiers": {"formula": "a"}}), True),
        (asked(), False),
    ],
)
def test_what_stands_counts_when_something_decides_beside_us(made: Asked, shared: bool):
    found = hold(made, hpa((made.metric,)), 6)
    assert (found.shared, found.least) == (shared, 0)


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
def test_an_hpa_that_keda_wrote_without_our_metric_is_told(triggers: tuple[Any, ...], metrics: tuple, missing: bool):
    found = lacks(asked(triggers=triggers), hpa(metrics))
    assert bool(found) is missing
    assert hold(asked(triggers=triggers), hpa(metrics), 2).shared is (missing or len(triggers) > 1)
    assert lacks(asked(triggers=triggers), None) == ""


def test_what_stands_counts_when_the_hpa_cannot_change_it():
    refused = "the HPA controller was unable to update the target scale: admission webhook\n denied the request"
    made = hpa(unable=refused)
    assert made.unable == " ".join(refused.split())
    assert hold(asked(), made, 6).shared
    assert hpa().unable == ""


def test_a_conflict_of_the_hpa_is_none_of_its_troubles():
    assert hpa(unable="unable to update the target scale: the object has been modified; please try again").unable == ""


@given(
    st.sets(st.sampled_from(["paused-scale-in", "paused-scale-out", "force-activation"])),
    st.integers(0, 30),
    st.integers(0, 10),
    st.integers(1, 30),
    st.booleans(),
    st.booleans(),
)
def test_bounds_are_never_crossed_whatever_holds(
    notes: set[str], replicas: int, least: int, most: int, up: bool, down: bool
):
    rules = {**({"scaleUp": OFF} if up else {}), **({"scaleDown": OFF} if down else {})}
    found = hold(asked(*notes, minReplicaCount=min(least, most), maxReplicaCount=most), hpa(**rules), replicas)
    assert 0 <= found.least <= found.most
    assert found.least <= most
