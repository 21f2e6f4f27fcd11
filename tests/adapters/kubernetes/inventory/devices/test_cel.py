"""CEL selectors: the common forms exactly, and a reason for everything else."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.adapters.kubernetes.api.device_objects import SeenDevice
from autoscaler.adapters.kubernetes.inventory.devices.cel import Fault, matches, required
from autoscaler.adapters.kubernetes.inventory.devices.kinds import Kind, Kinds

DRIVER = "gpu.nvidia.com"
OWN, SIZE = f"device.attributes['{DRIVER}']", f'device.capacity["{DRIVER}"].memory'


def device() -> Kind:
    seen = {
        "name": "gpu-0",
        "attributes": {
            "type": {"string": "gpu"},
            "productName": {"string": "NVIDIA H100 80GB HBM3"},
            "uuid": {"string": "GPU-1"},
            "slot": {"string": "0000:C1:00.0"},
            "driverVersion": {"version": "580.95.5"},
            "lanes": {"int": 16},
            "healthy": {"bool": True},
            "resource.kubernetes.io/numaNode": {"int": 1},
        },
        "capacity": {"memory": {"value": "80Gi"}, "broken": {"value": "-1"}},
    }
    found = Kinds().of(DRIVER, msgspec.convert(seen, SeenDevice))
    assert isinstance(found, Kind)
    return found


@pytest.mark.parametrize(
    "expression",
    [
        f"device.driver == '{DRIVER}' && {OWN}.type == 'gpu'",
        f"{OWN}.type != 'mig'",
        f"!({OWN}.type == 'mig')",
        f"{OWN}['type'] in ['gpu', 'mig']",
        f"{OWN}.productName.lowerAscii().contains('h100')",
        f"{OWN}.productName.startsWith('NVIDIA') && {OWN}.productName.endsWith('HBM3')",
        f"{OWN}.productName.matches('^NVIDIA H100.*$')",
        f"{SIZE}.compareTo(quantity('40Gi')) >= 0",
        f"{SIZE}.isGreaterThan(quantity('79Gi')) && !{SIZE}.isLessThan(quantity('80Gi'))",
        f"{OWN}.driverVersion.compareTo(semver('535.0.0')) > 0",
        f"{OWN}.lanes >= 16 && {OWN}.healthy && -1 < {OWN}.lanes",
        f"has({OWN}.type) && !has({OWN}.profile) && '{DRIVER}' in device.attributes",
        f"'memory' in device.capacity['{DRIVER}'] && !('x.com' in device.attributes)",
        f"cel.bind(own, {OWN}, own.type == 'gpu' && own.lanes == 16)",
        "device.attributes['resource.kubernetes.io'].numaNode == 1",
        "device.driver == 'other' || true",
        "!device.allowMultipleAllocations",
        # An error does not matter beside a condition that decides.
        f"{OWN}.type == 'gpu' || {OWN}.absent == 'x'",
        f"!({OWN}.type == 'mig' && {OWN}.absent == 'x')",
        f"!({OWN}.absent == 'x' && {OWN}.type == 'mig')",
    ],
)
def test_common_forms_are_true_of_the_device(expression: str):
    assert matches(expression, device()) is True


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        (f"{OWN}.absent == 'x'", "does not have"),
        ("device.attributes['x.com'].type == 'gpu'", "does not have"),
        (f"{OWN}.uuid == 'GPU-1'", "single devices"),
        (f"has({OWN}.uuid)", "single devices"),
        (f"{OWN}.slot == '0000:C1:00.0'", "single devices"),
        ("[1, 2].all(x, x > 0)", "'x'"),
        ("1 + 1 == 2", "not evaluated"),
        (f"{OWN}.type == 'gpu' ? true : false", "not evaluated"),
        (f"{OWN}.productName.matches('(a+)+$')", "pattern"),
        (f"{OWN}.productName.matches('.*.*.*.*x')", "pattern"),
        (f"{OWN}.type", "no condition"),
        (f"{OWN}.type && true", "no condition"),
        (f"device.capacity['{DRIVER}'].broken.isGreaterThan(quantity('1'))", "no quantity"),
        (f"{SIZE}.isGreaterThan(quantity('much'))", "no quantity"),
        (f"{SIZE} > 1", "uses"),
        (f"{OWN}.type == 'a\\tb'", "escape"),
        ("", "ends too early"),
        ("'unclosed", "unexpected"),
        ("(" * 100, "nested too deeply"),
        ("true" + " && true" * 5000, "characters"),
        ("a" + ".a" * 4000, "words and signs"),
        ("x" * 300, "uses"),
    ],
)
def test_other_forms_have_a_reason(expression: str, reason: str):
    found = matches(expression, device())
    assert isinstance(found, Fault)
    assert reason in found.reason
    assert len(found.reason) < 400


def test_values_of_different_types_are_not_equal():
    assert matches(f"{OWN}.healthy == 1", device()) is False
    assert matches(f"{OWN}.lanes == '16'", device()) is False


def test_equalities_are_those_that_every_device_must_have():
    stated = f"device.driver == '{DRIVER}' && {OWN}.type == 'mig' && {OWN}['profile'] == '3g.40gb'"
    assert required(stated) == {"driver": DRIVER, "type": "mig", "profile": "3g.40gb"}
    assert required(f"device.driver == '{DRIVER}' || {OWN}.type == 'mig'") == {}
    assert required("((") == {}


ATOMS = st.sampled_from(
    [
        (f"{OWN}.type == 'gpu'", True),
        (f"{OWN}.type == 'mig'", False),
        (f"{SIZE}.compareTo(quantity('80Gi')) == 0", True),
        (f"{OWN}.lanes > 99", False),
        (f"{OWN}.absent == 'x'", None),
    ]
)
Case = tuple[str, bool | None]


def joined(pair: tuple[Case, Case, bool]) -> Case:
    (left, one), (right, other), is_or = pair
    sign = "||" if is_or else "&&"
    value = is_or if is_or in (one, other) else None if None in (one, other) else not is_or
    return f"({left}) {sign} ({right})", value


def negated(case: Case) -> Case:
    return f"!({case[0]})", None if case[1] is None else not case[1]


CASES = st.recursive(
    ATOMS,
    lambda inner: st.one_of(st.tuples(inner, inner, st.booleans()).map(joined), inner.map(negated)),
    max_leaves=8,
)


@given(CASES)
def test_conditions_follow_the_rules_of_cel(case: Case):
    found = matches(case[0], device())
    assert (None if isinstance(found, Fault) else found) is case[1]


@given(st.text(alphabet="device.atrbu[]()'\"&|!=<>,0 \\", max_size=60))
def test_any_text_has_a_value_or_a_reason(text: str):
    assert isinstance(matches(text, device()), bool | Fault)
