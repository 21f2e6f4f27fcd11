"""Pools of devices, from ResourceSlices: only the newest generation of a pool counts, once all its slices are known."""

from __future__ import annotations

from collections import Counter as Count
from collections.abc import Callable, Sequence
from functools import lru_cache
from sys import intern
from typing import NamedTuple

from autoscaler.adapters.kubernetes.api import device_objects, pod_objects
from autoscaler.adapters.kubernetes.inventory.devices.kinds import DeviceKind, Kinds
from autoscaler.adapters.kubernetes.inventory.node_admission import EXCLUDING
from autoscaler.adapters.kubernetes.inventory.nodes import SHRINK_DELAY_S
from autoscaler.catalog.dra import is_accelerator_driver
from autoscaler.config.findings import shown
from autoscaler.config.quantities import read_quantity
from autoscaler.ports import Clock

MAX_POOL_DEVICES = 4096
MAX_POOL_SLICES = 256
MAX_DEVICES = 1_000_000  # of pools that differ
MAX_KINDS = 4096  # of all pools
MAX_NAME = 253
MAX_COUNTERS = 64  # that one device takes from

PoolKey = tuple[str, str]  # driver and name
Counter = tuple[str, str]  # counter set and counter
Amounts = tuple[tuple[Counter, float], ...]


class Device(NamedTuple):
    """A device of a pool."""

    name: str
    kind: DeviceKind
    takes: Amounts  # what it takes of counters that it shares with other devices
    tainted: bool  # no new pod gets it
    node: str  # "": that of the pool


_Content = tuple[tuple[Device, ...], Amounts]
NO_CONTENT: _Content = ((), ())


class DeviceSet:
    """The devices of a pool. Equal sets are one object, so they are compared by identity."""

    def __init__(self, devices: tuple[Device, ...], counters: Amounts) -> None:
        self.devices = devices
        self.counters = counters
        self.by_name = {device.name: device for device in devices}
        self.kinds = frozenset(device.kind for device in devices)
        # Whether the number of its devices depends on which of them are held.
        self.depends_on_claims = any(device.takes or device.tainted for device in devices)
        self._when_free: DeviceSet | None = None
        nodes = sorted({device.node for device in devices} - {""})
        self.by_node = {  # those that state a node
            node: DeviceSet(tuple(each._replace(node="") for each in devices if each.node == node), counters)
            for node in nodes
        }

    @property
    def when_free(self) -> DeviceSet:
        """Return the devices without their taints."""
        if not any(device.tainted for device in self.devices):
            return self
        if self._when_free is None:
            self._when_free = DeviceSet(tuple(each._replace(tainted=False) for each in self.devices), self.counters)
        return self._when_free


class DevicePool(NamedTuple):
    """A complete pool."""

    node: str  # "": its devices state their nodes, or several nodes can use them
    devices: DeviceSet

    def nodes(self) -> set[str]:
        return {self.node, *self.devices.by_node} - {""}


class _DeviceSlice(NamedTuple):
    key: PoolKey
    generation: int
    slices: int  # of its pool
    node: str
    content: _Content
    problem: str  # why its pool is not believed


class SliceStore:
    """Receives ResourceSlices. Those of drivers without accelerators are left out.

    A pool that is gone or not complete keeps its devices for a while: drivers write all slices again when they restart.
    """

    def __init__(self, clock: Clock) -> None:
        self.pools: dict[PoolKey, DevicePool] = {}
        self.problems: dict[PoolKey, str] = {}
        self._clock = clock
        self._version = 0
        self._kinds = Kinds()
        self._slices: dict[str, _DeviceSlice] = {}  # by name
        self.size = 0  # devices of slices that differ
        self._contents: dict[_Content, tuple[_Content, int]] = {}  # equal slices share one, with their number
        self._of_pool: dict[PoolKey, set[str]] = {}
        self._gone: dict[PoolKey, float] = {}  # pools that are gone or not complete, since when
        self.nodes: Count[str] = Count()  # that have devices, with the number of their pools
        self._sets: dict[_Content, tuple[DeviceSet, int]] = {}  # with the number of pools that have it

    def update(self) -> int:
        """Forget pools that have been gone for a while. Return a version that grows with each change."""
        now_s = self._clock.now_s()
        for key, since_s in list(self._gone.items()):
            if now_s - since_s >= SHRINK_DELAY_S:
                del self._gone[key]
                self._set(key, None)
        return self._version

    def put(self, seen: device_objects.ResourceSlice, /) -> None:
        name, spec = seen.metadata.name, seen.spec
        before = self._pop(name)
        if is_accelerator_driver(spec.driver):
            found = self._limit(self._read(spec))
            content, users = self._contents.get(found.content) or (found.content, 0)
            self._contents[content] = content, users + 1
            self.size += 0 if users else len(content[0])
            self._slices[name] = found._replace(content=content)
            self._of_pool.setdefault(found.key, set()).add(name)
            self._assemble(found.key)
        if before is not None and before.key != (spec.driver, spec.pool.name):
            self._assemble(before.key)

    def remove(self, namespace: str, name: str, /) -> None:
        found = self._pop(name)
        if found is not None:
            self._assemble(found.key)

    def clear(self) -> None:
        """Forget all pools: the API server does not serve slices any more."""
        self._slices, self._contents, self._of_pool, self._gone = {}, {}, {}, {}
        self.size = 0
        for key in list(self.pools):
            self._set(key, None)
        self.problems = {}

    def kinds(self) -> list[DeviceKind]:
        """Return the kinds of all devices, in the order in which they were first seen."""
        found = frozenset[DeviceKind]().union(*(devices.kinds for devices, _ in self._sets.values()))
        return sorted(found, key=lambda kind: kind.number)

    def unplaced(self) -> set[DeviceKind]:
        """Return the kinds of devices that several nodes can use."""
        sets = [pool.devices for pool in self.pools.values() if not pool.node]
        return {device.kind for each in sets for device in each.devices if not device.node}

    def _pop(self, name: str) -> _DeviceSlice | None:
        """Forget a slice, and return it."""
        found = self._slices.pop(name, None)
        if found is not None:
            self._of_pool[found.key].discard(name)
            content, users = self._contents.pop(found.content)
            if users > 1:
                self._contents[content] = content, users - 1
            else:
                self.size -= len(content[0])
        return found

    def _limit(self, found: _DeviceSlice) -> _DeviceSlice:
        """Return a slice, without its devices if they are too many."""
        others = self._of_pool.get(found.key, ())
        if len(others) >= MAX_POOL_SLICES:
            problem = f"it has more than {MAX_POOL_SLICES} slices"
        elif self.size + len(found.content[0]) > MAX_DEVICES:
            problem = f"there are more than {MAX_DEVICES} devices"
        else:
            return found
        return found._replace(content=NO_CONTENT, problem=found.problem or problem)

    def _assemble(self, key: PoolKey) -> None:
        """Put the slices of a pool together, if all slices of its newest generation are there."""
        names = self._of_pool.get(key, set())
        if not names:
            self._of_pool.pop(key, None)
        # A pool of too many slices is not believed, so none of them needs a look.
        slices = [self._slices[name] for name in names] if len(names) <= MAX_POOL_SLICES else []
        newest = max((each.generation for each in slices), default=0)
        slices = [each for each in slices if each.generation == newest]
        problem = self._problem_of(key, slices) if names else ""
        if problem:
            self.problems[key] = problem
        else:
            self.problems.pop(key, None)
        if problem or not names:
            if key in self.pools:
                self._gone.setdefault(key, self._clock.now_s())
            return
        self._gone.pop(key, None)
        nodes = {each.node for each in slices}
        devices = sorted((each for one in slices for each in one.content[0]), key=lambda device: device.name)
        counters = sorted(counter for each in slices for counter in each.content[1])
        self._set(key, (tuple(devices), tuple(counters)), nodes.pop() if len(nodes) == 1 else "")

    def _problem_of(self, key: PoolKey, slices: Sequence[_DeviceSlice]) -> str:
        """Return why a pool is not believed; "": it is. slices: of its newest generation; (): there are too many."""
        if not slices:
            return f"it has more than {MAX_POOL_SLICES} slices"
        if problem := next((each.problem for each in slices if each.problem), ""):
            return problem
        count = sum(len(each.content[0]) for each in slices)
        if count > MAX_POOL_DEVICES:
            return f"it has {count} devices; allowed: up to {MAX_POOL_DEVICES}"
        if len(self._kinds) > MAX_KINDS and key not in self.pools:
            return f"there are more than {MAX_KINDS} kinds of devices"
        if len(slices) < slices[0].slices:
            return f"only {len(slices)} of its {slices[0].slices} slices are there"
        is_double = len({device.name for each in slices for device in each.content[0]}) < count
        return "it has two devices of the same name" if is_double else ""

    def _set(self, key: PoolKey, content: _Content | None, node: str = "") -> None:
        before = self.pools.pop(key, None)
        after = None
        if content is not None:
            devices, users = self._sets.get(content) or (DeviceSet(*content), 0)
            self._sets[content] = devices, users + 1
            after = self.pools[key] = DevicePool(node, devices)
            self.nodes.update(after.nodes())
        if before is not None:
            for name in before.nodes():
                self.nodes[name] -= 1
                if not self.nodes[name]:
                    del self.nodes[name]
            content = before.devices.devices, before.devices.counters
            devices, users = self._sets.pop(content)
            if users > 1:
                self._sets[content] = devices, users - 1
        self._version += before != after

    def _read(self, spec: device_objects.SliceSpec) -> _DeviceSlice:
        pool = spec.pool
        key = spec.driver[:MAX_NAME], pool.name[:MAX_NAME]
        node = spec.node_name or _only_node(spec.node_selector)
        devices, problem = [], ""
        for seen in (spec.devices or ())[: MAX_POOL_DEVICES + 1]:
            device = self._read_device(spec.driver, seen)
            if isinstance(device, str):
                problem = f"device {shown(seen.name)} {device}"
                break
            devices.append(device)
        counters, wrong = _amounts(spec.shared_counters, lambda each: each.name)
        content = tuple(devices), counters
        return _DeviceSlice(key, pool.generation, pool.resource_slice_count, node, content, problem or wrong)

    def _read_device(self, driver: str, seen: device_objects.SeenDevice) -> Device | str:
        """Return a device; a text: what is wrong with it."""
        stated = seen if seen.basic is None else seen.basic
        if not 0 < len(seen.name) <= MAX_NAME:
            return f"has a name of {len(seen.name)} characters"
        kind = self._kinds.of(driver, stated)
        if isinstance(kind, str):
            return kind
        takes, problem = _amounts(stated.consumes_counters, lambda each: each.counter_set)
        if problem or len(takes) > MAX_COUNTERS:
            return problem or f"takes from more than {MAX_COUNTERS} counters"
        tainted = any(taint.effect in EXCLUDING for taint in stated.taints or ())
        node = stated.node_name or _only_node(stated.node_selector)
        return Device(intern(seen.name), kind, takes, tainted, node)


def _only_node(selector: pod_objects.NodeSelector | None) -> str:
    """Return the only node that a selector admits, if it names one; "": several, or it does not say."""
    terms = (selector.node_selector_terms if selector else None) or ()
    fields = (terms[0].match_fields or ()) if len(terms) == 1 else ()
    for field in fields:
        if field.key == "metadata.name" and field.operator == "In" and len(field.values or ()) == 1:
            return (field.values or [""])[0]
    return ""


def _amounts(
    stated: list[device_objects.CounterSet] | None, name_of: Callable[[device_objects.CounterSet], str]
) -> tuple[Amounts, str]:
    """Return the amounts of counters, and what is wrong with them."""
    return _read_amounts(tuple((name_of(each), tuple((each.counters or {}).items())) for each in stated or ()))


@lru_cache(maxsize=4096)  # the GPUs of all nodes are cut alike
def _read_amounts(
    written: tuple[tuple[str, tuple[tuple[str, device_objects.DeviceQuantity], ...]], ...],
) -> tuple[Amounts, str]:
    found: dict[Counter, float] = {}
    for name, counters in written:
        for counter, quantity in counters:
            amount = read_quantity(quantity.value)
            if not amount >= 0:
                return (), f"has the counter {shown(counter)} with {shown(str(quantity.value))}"
            if amount:
                found[name, counter] = amount
    return tuple(sorted(found.items())), ""
