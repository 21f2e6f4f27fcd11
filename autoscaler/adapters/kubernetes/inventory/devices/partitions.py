"""How many devices of a node there are, where devices share silicon: a whole GPU, and the slices it can be cut into.

Pure functions. A device that is held counts for its own kind. The rest counts for the kind that workloads request, so
that nothing counts twice. If they request several kinds of the same GPUs, no number is true, and none is given.
Source: Kubernetes, "Dynamic Resource Allocation", partitionable devices (KEP-4815).
"""

from __future__ import annotations

from collections import Counter as Count
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from autoscaler.adapters.kubernetes.inventory.devices.kinds import DeviceKind
from autoscaler.adapters.kubernetes.inventory.devices.slices import Counter, Device, DeviceSet

MAX_SEARCHED = 256  # devices that share silicon
MAX_STEPS = 100_000  # devices that are looked at in a search
CLOSE = 1e-9  # relative, for sums of decimal quantities


class Offer(NamedTuple):
    """The devices of a node, or of a part of it."""

    counts: dict[DeviceKind, int]  # free and held
    when_free: dict[DeviceKind, int]  # if no claim held a device, and none were tainted
    doubtful: Mapping[str, str]  # why the number of devices with a name is not known


@lru_cache(maxsize=4096)  # nodes that are alike, with the same devices held, have the same offer
def count_devices(devices: DeviceSet, held: frozenset[str], requested: frozenset[DeviceKind]) -> Offer:
    """Count the devices. held: names of those that claims hold. requested: kinds that workloads request."""
    counts, doubtful = _count(devices, held, requested)
    when_free = _count(devices.when_free, frozenset(), requested)[0] if devices.depends_on_claims else counts
    return Offer(counts, when_free, doubtful)


def _count(
    devices: DeviceSet, held: frozenset[str], requested: frozenset[DeviceKind]
) -> tuple[dict[DeviceKind, int], dict[str, str]]:
    """Return the devices by kind, and why the number of those with a name is not known."""
    counts: Count[DeviceKind] = Count(
        device.kind for device in devices.devices if device.name in held or not (device.takes or device.tainted)
    )
    doubtful: dict[str, str] = {}
    totals = dict(devices.counters)
    for part in _parts([device for device in devices.devices if device.takes]):
        left = {counter: totals.get(counter, 0.0) for device in part for counter, _ in device.takes}
        for device in part:
            if device.name in held:
                _take(left, device)
        free = [device for device in part if device.name not in held and not device.tainted and _fits(left, device)]
        found = [device for device in free if device.kind in requested]
        names = sorted({device.kind.name for device in found})
        if len(names) > 1:
            reason = f"the same GPUs can be cut for {' and '.join(names)}, and workloads ask for both"
            doubtful.update(dict.fromkeys(names, reason))
            continue
        most = _most(found, left)
        if most is None:
            doubtful[names[0]] = f"how many {names[0]} fit beside each other is not known: there are too many ways"
        else:
            counts.update(most)
    return counts, doubtful


def _parts(devices: Sequence[Device]) -> list[list[Device]]:
    """Divide devices into those that share counters, directly or through others. A part is usually one GPU."""
    parent: dict[str, str] = {}

    def root(name: str) -> str:
        while parent.setdefault(name, name) != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    for device in devices:
        first, *others = {name for (name, _), _ in device.takes}
        for other in others:
            parent[root(other)] = root(first)
    parts: dict[str, list[Device]] = {}
    for device in devices:
        parts.setdefault(root(device.takes[0][0][0]), []).append(device)
    return list(parts.values())


def _most(devices: Sequence[Device], left: Mapping[Counter, float]) -> list[DeviceKind] | None:
    """Return the kinds of as many devices as fit beside each other; None: the search takes too long.

    Devices that come first in the pool are tried first, so an even cut is found at once.
    """
    best, rest = [], dict(left)
    for device in devices:
        if _fits(rest, device):
            _take(rest, device)
            best.append(device.kind)
    if len(best) == min(len(devices), _bound(devices, left)):
        return best
    return _Search(devices, best).run(left) if len(devices) <= MAX_SEARCHED else None


class _Search:
    """Branch and bound over sets of devices."""

    def __init__(self, devices: Sequence[Device], best: list[DeviceKind]) -> None:
        self._devices = devices
        self._best = best
        self._steps = 0

    def run(self, left: Mapping[Counter, float]) -> list[DeviceKind] | None:
        return self._best if self._extend(0, left, []) else None

    def _extend(self, place: int, left: Mapping[Counter, float], taken: list[DeviceKind]) -> bool:
        """Try all sets with the taken devices and some of those from a place on; False: it takes too long."""
        if len(taken) > len(self._best):
            self._best = taken
        for index in range(place, len(self._devices)):
            rest = self._devices[index:]
            self._steps += len(rest)
            if self._steps > MAX_STEPS:
                return False
            fitting = [device for device in rest if _fits(left, device)]
            if len(taken) + min(len(fitting), _bound(fitting, left)) <= len(self._best):
                return True
            device = self._devices[index]
            if _fits(left, device):
                after = dict(left)
                _take(after, device)
                if not self._extend(index + 1, after, [*taken, device.kind]):
                    return False
        return True


def _bound(devices: Sequence[Device], left: Mapping[Counter, float]) -> int:
    """Return a number of devices that is not exceeded, from the counters that all of them take."""
    least: dict[Counter, float] = {}
    users: Count[Counter] = Count()
    for device in devices:
        for counter, amount in device.takes:
            least[counter] = min(least.get(counter, amount), amount)
            users[counter] += 1
    shared = [counter for counter, count in users.items() if count == len(devices)]
    return min((int(left[counter] / least[counter] + CLOSE) for counter in shared), default=len(devices))


def _fits(left: Mapping[Counter, float], device: Device) -> bool:
    return all(amount <= left.get(counter, 0.0) * (1 + CLOSE) for counter, amount in device.takes)


def _take(left: dict[Counter, float], device: Device) -> None:
    for counter, amount in device.takes:
        left[counter] = max(left.get(counter, 0.0) - amount, 0.0)


def join(offers: Iterable[Offer]) -> Offer:
    """Return the devices of several pools of a node."""
    counts: Count[DeviceKind] = Count()
    when_free: Count[DeviceKind] = Count()
    doubtful: dict[str, str] = {}
    for offer in offers:
        counts.update(offer.counts)
        when_free.update(offer.when_free)
        doubtful.update(offer.doubtful)
    return Offer(counts, when_free, doubtful)
