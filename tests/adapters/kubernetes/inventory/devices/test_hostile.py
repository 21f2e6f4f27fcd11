"""Objects of DRA that anyone may have written: whatever can be decoded has a number or a reason, and harms no other.

Devices that a class selects concern all who use the class. One without an attribute that the class reads makes the
scheduler abort, and for one that several nodes can use no number of a single node is known.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.adapters.kubernetes.api import device_objects, objects
from tests.adapters.kubernetes.inventory.devices.world import (
    DRIVER,
    FULL,
    OF_TYPE,
    Cluster,
    claim,
    claim_template,
    cuttable,
    device_class,
    facts_of,
    gpu,
    request,
    slice_of,
    whole,
)

ODD = (
    None,
    -1,
    0,
    10**30,
    1.5,
    True,
    "",
    "x" * 300,
    "-5",
    "9" * 100,
    "\u0000",
    "∞",
    DRIVER,
    "a",
    [],
    {},
    [{}],
    {"": ""},
)
OBJECTS: tuple[tuple[type[objects.Object], Mapping[str, Any]], ...] = (
    (device_objects.ResourceSlice, slice_of("bad", cuttable("gpu-0"), sharedCounters=[whole("gpu-0")])),
    (
        device_objects.DeviceClass,
        device_class("bad", OF_TYPE.format(DRIVER, "mig"), extendedResourceName="example.com/gpu"),
    ),
    (device_objects.ResourceClaimTemplate, claim_template("bad", request("bad", "true"))),
    (device_objects.ResourceClaim, claim("bad", [("bad", "gpu-0-1g-0")], ["p"])),
)


def changed(value: Any, chance: random.Random) -> Any:
    """Return a value with one part of it replaced."""
    if not isinstance(value, dict | list) or not value or chance.random() < 0.2:
        return chance.choice(ODD)
    if isinstance(value, list):
        place = chance.randrange(len(value))
        return [*value[:place], changed(value[place], chance), *value[place + 1 :]]
    key = chance.choice(sorted(value))
    return {**value, key: changed(value[key], chance)}


def is_of_another(value: objects.Object) -> bool:
    """Return whether an object takes the place of a good one, which the API server lets nobody write but its owner."""
    if isinstance(value, device_objects.ResourceSlice):
        return value.spec.pool.name == "a"
    return value.metadata.name in {DRIVER, "mig.nvidia.com", "one", "two"}


@pytest.mark.slow
@given(st.randoms(use_true_random=False), st.integers(0, 3))
def test_whatever_can_be_decoded_harms_no_other(chance: random.Random, changes: int):
    cluster = Cluster(["a", "bad"])
    cluster.slices(slice_of("a", [gpu(f"gpu-{place}") for place in range(8)]))
    cluster.template("one", request(DRIVER, f"device.attributes['{DRIVER}'].uuid != ''"), request(DRIVER))
    cluster.template("two", request(DRIVER, count=2))
    for kind, value in OBJECTS:
        for _ in range(changes):
            value = changed(value, chance)  # noqa: PLW2901
        try:
            decoded = msgspec.convert(value, kind)
        except msgspec.ValidationError:
            continue  # the watch keeps the last state, and says so
        if not is_of_another(decoded):
            cluster.store.store_of(NAMES[kind]).put(decoded)
    pools = cluster.pools(facts_of("bad"), facts_of(limits={"example.com/gpu": "1"}), facts_of("two"))
    reason = cluster.settle(facts_of("two"))[0].unclear
    if not any(known in reason for known in ("it reads type of", "several nodes can use the same devices")):
        assert pools[2][0] in (FULL, "example.com/gpu")  # a class may serve it by another name
        assert pools[2][1] >= 8.0
    assert len(cluster.settle(facts_of("one"))[0].unclear) < 600


NAMES = {
    device_objects.ResourceSlice: "resourceslices.resource.k8s.io",
    device_objects.DeviceClass: "deviceclasses.resource.k8s.io",
    device_objects.ResourceClaimTemplate: "resourceclaimtemplates.resource.k8s.io",
    device_objects.ResourceClaim: "resourceclaims.resource.k8s.io",
}
