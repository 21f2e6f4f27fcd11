import math

import msgspec
import pytest

from autoscaler.adapters.kubernetes.api.pod_objects import PodSpec
from autoscaler.adapters.kubernetes.pods.requests import read_devices, requested_capacity
from autoscaler.config.quantities import read_quantity


@pytest.mark.parametrize(
    ("stated", "amount"),
    [
        ("2", 2.0),
        (4, 4.0),
        ("500m", 0.5),
        ("1.5", 1.5),
        (".5", 0.5),
        ("64Gi", 64.0 * 2**30),
        ("1k", 1000.0),
        ("2E", 2e18),
        ("1e3", 1000.0),
        ("1E3", 1000.0),
        ("12e-1", 1.2),
        ("-3", -3.0),
        ("250n", 2.5e-7),
    ],
)
def test_quantities_are_read_as_kubernetes_writes_them(stated, amount):
    assert read_quantity(stated) == pytest.approx(amount)


@pytest.mark.parametrize("stated", ["", "many", "1 Gi", "1KB", "0x10", "9" * 99, "nan", "inf", "1e999", "٣", math.nan])
def test_what_is_no_quantity_is_unknown(stated):
    assert math.isnan(read_quantity(stated))


@pytest.mark.parametrize("stated", ["-1", "1.5", "500m", "1025", "1e12"])
def test_impossible_numbers_of_devices_are_unknown(stated):
    assert math.isnan(read_devices(stated))


def test_capacity_is_the_effective_request():
    def container(cpu: str, memory: str, **fields: str) -> dict:
        return {"name": "c", "resources": {"requests": {"cpu": cpu, "memory": memory}}, **fields}

    spec = {
        "initContainers": [container("1", "1Gi", restartPolicy="Always"), container("8", "2Gi")],
        "containers": [container("2", "4Gi"), container("500m", "0")],
        "overhead": {"cpu": "250m"},
    }
    assert requested_capacity(msgspec.convert(spec, PodSpec)) == (9.25, 5.0 * 2**30)
    of_pod = spec | {"resources": {"requests": {"cpu": "12"}}}
    assert requested_capacity(msgspec.convert(of_pod, PodSpec)) == (12.0, 5.0 * 2**30)
