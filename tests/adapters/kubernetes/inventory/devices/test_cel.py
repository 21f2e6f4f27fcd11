"""CEL selectors: the common forms exactly, and a reason for everything else."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.adapters.kubernetes.api.device_objects import SeenDevice
from autoscaler.adapters.kubernetes.inventory.devices.cel import CelFault, matches, required
from autoscaler.adapters.kubernetes.inventory.devices.kinds import DeviceKind, Kinds

DRIVER = "gpu.nvidia.com"
OWN, SIZE = f"device.attributes['{DRIVER}']", f'device.capacity["{DRIVER}"].memory'


def device() -> DeviceKind:
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
    assert isinstance(found, DeviceKind)
    return found


@pytest.mark.parametrize(
    "expression",
    [
        f"device.driver == '{DRIVER}' && {OWN}.type == 'gpu'",
        f"{OWN}.type != 'mig'",
        f"{OWN}['type'] in ['gpu', 'mig']",
        f"'gpu' == {OWN}.type && 1 in [{16}, 1]",
        f"{SIZE}.compareTo(quantity('40Gi')) >= 0",
        f"{SIZE} == quantity('81920Mi')",
        f"{SIZE}.isGreaterThan(quantity('79Gi')) && {SIZE}.isLessThan(quantity('81Gi'))",
        f"{OWN}.driverVersion.compareTo(semver('535.0.0')) > 0",
        f"{OWN}.driverVersion.isGreaterThan(semver('580.95.4'))",
        f"{OWN}.lanes >= 16 && {OWN}.healthy && -1 < {OWN}.lanes",
        f"{OWN}.healthy == true && true",
        f"'memory' in device.capacity['{DRIVER}'] && 'type' in {OWN}",
        "device.attributes['resource.kubernetes.io'].numaNode == 1",
    ],
)
def test_comparisons_are_true_of_the_device(expression: str):
    assert matches(expression, device()) is True


@pytest.mark.parametrize(
    "expression",
    [
        f"{OWN}.type == 'mig'",
        f"'profile' in {OWN}",
        # An error does not matter beside a comparison that is false.
        f"{OWN}.type == 'mig' && {OWN}.absent == 'x'",
        f"{OWN}.absent == 'x' && {OWN}.type == 'mig'",
    ],
)
def test_comparisons_are_false_of_the_device(expression: str):
    assert matches(expression, device()) is False


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        (f"{OWN}.absent == 'x'", "does not have"),
        (f"{OWN} == 'x'", "does not have"),
        ("device.attributes['x.com'].type == 'gpu'", "does not have"),
        (f"{OWN}.uuid == 'GPU-1'", "single devices"),
        (f"'uuid' in {OWN}", "single devices"),
        (f"{OWN}.slot == '0000:C1:00.0'", "single devices"),
        (f"{OWN}.type", "no condition"),
        (f"{OWN}.type && true", "no condition"),
        ("'x' in device.driver", "no condition"),
        (f"{SIZE} > 1", "no condition"),
        (f"device.capacity['{DRIVER}'].broken.isGreaterThan(quantity('1'))", "no quantity"),
        (f"{SIZE}.isGreaterThan(quantity('much'))", "no quantity"),
        (f"{SIZE}.isGreaterThan(semver('1.0.0'))", "cannot be compared"),
        (f"{OWN}.type in [quantity('much')]", "no quantity"),
    ],
)
def test_a_comparison_without_a_value_has_a_reason(expression: str, reason: str):
    found = matches(expression, device())
    assert isinstance(found, CelFault)
    assert reason in found.reason


@pytest.mark.parametrize(
    "expression",
    [
        f"{OWN}.type == 'gpu' || true",
        f"!({OWN}.type == 'mig')",
        f"({OWN}.type == 'gpu')",
        f"has({OWN}.type)",
        f"cel.bind(own, {OWN}, own.type == 'gpu')",
        "[1, 2].all(x, x > 0)",
        "1 + 1 == 2",
        f"{OWN}.type == 'gpu' ? true : false",
        f"{OWN}.productName.matches('H100')",
        "'" + "a" * 900 + "'.matches('.*.*.*b')",
        f"{OWN}.productName.lowerAscii() == 'x'",
        f"{OWN}.productName.contains('H100')",
        f"{OWN}.type == 'a\\tb'",
        "device.attributes == 1",
        "device.name == 'gpu-0'",
        "",
        "'unclosed",
        "(" * 5000,
        "true" + " && true" * 5000,
        "true" + " && true" * 300,
        "a" + ".a" * 4000,
        "x" * 300,
        "9" * 5000 + " == 1",
    ],
)
def test_all_other_forms_are_not_evaluated(expression: str):
    found = matches(expression, device())
    assert isinstance(found, CelFault)
    assert "is not evaluated" in found.reason
    assert len(found.reason) < 400


def test_values_of_different_types_are_not_equal():
    assert matches(f"{OWN}.healthy == 1", device()) is False
    assert matches(f"{OWN}.lanes == '16'", device()) is False


def test_equalities_are_those_that_every_device_must_have():
    stated = f"device.driver == '{DRIVER}' && {OWN}.type == 'mig' && {OWN}['profile'] == '3g.40gb'"
    assert required(stated) == {"driver": DRIVER, "type": "mig", "profile": "3g.40gb"}
    assert required(f"device.driver != '{DRIVER}' && {OWN}.type in ['mig']") == {}
    assert required("((") == {}


ATOMS: dict[str, bool | None] = {
    f"{OWN}.type == 'gpu'": True,
    f"{OWN}.type == 'mig'": False,
    f"{SIZE}.compareTo(quantity('80Gi')) == 0": True,
    f"{OWN}.lanes > 99": False,
    f"{OWN}.absent == 'x'": None,
}


@given(st.lists(st.sampled_from(sorted(ATOMS)), min_size=1, max_size=6))
def test_conditions_follow_the_rules_of_cel(atoms: list[str]):
    values = [ATOMS[each] for each in atoms]
    found = matches(" && ".join(atoms), device())
    assert (None if isinstance(found, CelFault) else found) is (
        False if False in values else None if None in values else True
    )


@given(st.text(alphabet="device.atrbu[]()'\"&|!=<>,0 \\", max_size=60))
def test_any_text_has_a_value_or_a_reason(text: str):
    assert isinstance(matches(text, device()), bool | CelFault)
