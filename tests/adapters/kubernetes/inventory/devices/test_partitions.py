"""Devices that share silicon, against brute force over all sets of devices."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.adapters.kubernetes.api.device_objects import SeenDevice
from autoscaler.adapters.kubernetes.inventory.devices.kinds import DeviceKind, Kinds
from autoscaler.adapters.kubernetes.inventory.devices.partitions import count_devices
from autoscaler.adapters.kubernetes.inventory.devices.slices import Counter, Device, DeviceSet
from tests.adapters.kubernetes.inventory.devices.world import DRIVER, gpu, mig

KINDS = Kinds()


def kind(seen: dict[str, Any]) -> DeviceKind:
    found = KINDS.of(DRIVER, msgspec.convert(seen, SeenDevice))
    assert isinstance(found, DeviceKind)
    return found


FULL, SMALL = kind(gpu("gpu-0")), kind(mig("m", "1g.10gb"))
COUNTERS: tuple[Counter, ...] = (("gpu-0", "slices"), ("gpu-0", "engines"), ("gpu-1", "slices"))

takes = st.dictionaries(st.sampled_from(COUNTERS), st.integers(1, 3), max_size=3).map(
    lambda taken: tuple(sorted((counter, float(amount)) for counter, amount in taken.items()))
)
devices = st.lists(st.tuples(st.sampled_from([FULL, SMALL]), takes, st.booleans()), max_size=8).map(
    lambda rows: tuple(Device(f"d{place}", *row, "") for place, row in enumerate(rows))
)
totals = st.fixed_dictionaries({counter: st.integers(0, 6).map(float) for counter in COUNTERS})


def fits(totals: dict[Counter, float], taken: tuple[Device, ...]) -> bool:
    used: dict[Counter, float] = {}
    for device in taken:
        for counter, amount in device.takes:
            used[counter] = used.get(counter, 0.0) + amount
    return all(amount <= totals[counter] for counter, amount in used.items())


def most(totals: dict[Counter, float], held: list[Device], free: list[Device]) -> int:
    """Return the largest number of free devices that fit beside those that are held."""
    for count in range(len(free), 0, -1):
        if any(fits(totals, (*held, *more)) for more in combinations(free, count)):
            return count
    return 0


@pytest.mark.slow
@given(devices, totals, st.data())
def test_count_is_the_most_that_fit_beside_what_is_held(
    devices: tuple[Device, ...], totals: dict[Counter, float], data: st.DataObject
):
    held: list[Device] = []
    for device in devices:
        if fits(totals, (*held, device)) and data.draw(st.booleans()):
            held.append(device)
    names = frozenset(device.name for device in held)
    free = [device for device in devices if device.name not in names and not device.tainted and device.kind is SMALL]
    offer = count_devices(DeviceSet(devices, tuple(totals.items())), names, frozenset({SMALL}))
    assert offer.doubtful == {}
    assert offer.counts.get(SMALL, 0) == sum(device.kind is SMALL for device in held) + most(totals, held, free)
    whole = [device for device in devices if device.kind is FULL]
    assert offer.counts.get(FULL, 0) == sum(
        device.name in names or not (device.takes or device.tainted) for device in whole
    )


@given(devices, totals)
def test_two_kinds_of_the_same_silicon_have_no_number(devices: tuple[Device, ...], totals: dict[Counter, float]):
    offer = count_devices(DeviceSet(devices, tuple(totals.items())), frozenset(), frozenset({FULL, SMALL}))
    fitting = [device for device in devices if device.takes and not device.tainted and fits(totals, (device,))]
    both = {
        frozenset({device.kind.name, other.kind.name})
        for device in fitting
        for other in fitting
        if shares(device, other)
    }
    assert bool(offer.doubtful) or frozenset({FULL.name, SMALL.name}) not in both


def shares(one: Device, other: Device) -> bool:
    return bool({name for (name, _), _ in one.takes} & {name for (name, _), _ in other.takes})


def test_uneven_cut_finds_the_best_order():
    """The first device takes what two others could have."""
    slices = ("gpu-0", "slices")
    rows = tuple(
        Device(f"d{place}", SMALL, ((slices, amount),), False, "") for place, amount in enumerate((3.0, 2.0, 2.0))
    )
    assert count_devices(DeviceSet(rows, ((slices, 4.0),)), frozenset(), frozenset({SMALL})).counts == {SMALL: 2}


def test_search_that_takes_too_long_gives_no_number():
    """Ninety devices, each of which takes three of sixty counters."""
    rows = tuple(
        Device(f"d{place}", SMALL, tuple((("gpu-0", f"c{(place * step) % 60}"), 1.0) for step in (1, 7, 11)), False, "")
        for place in range(1, 91)
    )
    counters = tuple((("gpu-0", f"c{place}"), 1.0) for place in range(60))
    offer = count_devices(DeviceSet(rows, counters), frozenset(), frozenset({SMALL}))
    assert "too many ways" in offer.doubtful[SMALL.name]
    assert offer.counts == {}
