"""Kinds of devices: everything that selectors can read, without what tells single devices apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from weakref import WeakValueDictionary

from autoscaler.adapters.kubernetes.api.device_objects import DeviceAttribute, SeenDevice
from autoscaler.catalog.dra import IDENTIFYING, IDENTIFYING_VALUE, MEMORY, PRODUCTS, PROFILES, TYPE, resource_name
from autoscaler.config.quantities import read_quantity

MAX_ENTRIES = 64  # attributes and capacities of a device; the API server allows 32
MAX_TEXT = 256  # characters of a name or value
DESCRIBING = frozenset({TYPE, *PROFILES, *PRODUCTS})

Entry = tuple[str, str]  # domain and name
Value = str | int | bool | tuple[str, str]  # the last: ("version", text)


class DeviceKind:
    """Devices that no selector tells apart. There is one object for each kind, so kinds are compared by identity."""

    __slots__ = (
        "__weakref__",
        "attributes",
        "capacity",
        "driver",
        "dropped",
        "memory",
        "name",
        "number",
        "product",
        "shared",
    )

    def __init__(self, key: _KindKey, number: int) -> None:
        self.driver = key.driver
        self.attributes: Mapping[Entry, Value] = {entry: value for entry, _, value in key.attributes}
        self.capacity: Mapping[Entry, float] = dict(key.capacity)
        self.dropped = key.dropped
        self.shared = key.shared  # several claims may use one device
        self.number = number  # unique
        self.name = resource_name(self.driver, self.own(TYPE), next(filter(None, map(self.own, PROFILES)), ""))
        self.product = "-".join(next(filter(None, map(self.own, PRODUCTS)), "").split())  # as in labels of nodes
        self.memory = max(self.capacity.get((self.driver, MEMORY), 0.0), 0.0)  # bytes; 0: unknown

    def own(self, name: str) -> str:
        """Return an attribute of the driver's domain; "": it has none that is a text."""
        value = self.attributes.get((self.driver, name), "")
        return value if isinstance(value, str) else ""

    def __repr__(self) -> str:
        return f"Kind({self.name}, {self.product or 'no product'}, {self.number})"


class _KindKey(NamedTuple):
    driver: str
    attributes: frozenset[tuple[Entry, str, Value]]  # with the type of the value, because 1 == True
    capacity: frozenset[tuple[Entry, float]]
    dropped: frozenset[Entry]
    shared: bool


class Kinds:
    """All kinds that exist. One that no pool has any more is forgotten."""

    def __init__(self) -> None:
        self._known: WeakValueDictionary[_KindKey, DeviceKind] = WeakValueDictionary()
        self._written: WeakValueDictionary[object, DeviceKind] = WeakValueDictionary()  # by the device as it is written
        self._next = 0

    def __len__(self) -> int:
        return len(self._known)

    def of(self, driver: str, seen: SeenDevice) -> DeviceKind | str:
        """Return the kind of a device; a text: what is wrong with it."""
        stated, capacity = seen.attributes or {}, seen.capacity or {}
        written = (
            driver,
            seen.allow_multiple_allocations,
            tuple(capacity.items()),
            tuple((name, None if _identifies(name, value) else value) for name, value in stated.items()),
        )
        known = self._written.get(written)
        if known is not None:
            return known
        kind = self._read(driver, seen)
        if isinstance(kind, DeviceKind):
            self._written[written] = kind
        return kind

    def _read(self, driver: str, seen: SeenDevice) -> DeviceKind | str:
        attributes, dropped = {}, set()
        stated, capacity = seen.attributes or {}, seen.capacity or {}
        if len(stated) + len(capacity) > MAX_ENTRIES:
            return f"has more than {MAX_ENTRIES} attributes and capacities"
        for name, value in stated.items():
            entry = _entry(driver, name)
            if _identifies(name, value):
                dropped.add(entry)
                continue
            found: Value | None = next(
                (each for each in (value.string, value.int_, value.bool_) if each is not None), None
            )
            if found is None and value.version is not None:
                found = ("version", value.version)
            if found is not None:
                attributes[entry] = found
        texts = [*stated, *capacity, *(each for each in attributes.values() if isinstance(each, str))]
        if max(map(len, texts), default=0) > MAX_TEXT:
            return f"has a text of more than {MAX_TEXT} characters"
        amounts = {_entry(driver, name): _amount(each.value) for name, each in capacity.items()}
        key = _KindKey(
            driver,
            frozenset((entry, type(value).__name__, value) for entry, value in attributes.items()),
            frozenset(amounts.items()),
            frozenset(dropped),
            bool(seen.allow_multiple_allocations),
        )
        kind = self._known.get(key)
        if kind is None:
            kind = self._known[key] = DeviceKind(key, self._next)
            self._next += 1
        return kind


def _identifies(name: str, value: DeviceAttribute) -> bool:
    """Return whether an attribute tells single devices apart."""
    if name in DESCRIBING:
        return False
    if name in IDENTIFYING or ("/" in name and name.rpartition("/")[2] in IDENTIFYING):
        return True
    return value.string is not None and IDENTIFYING_VALUE.search(value.string[:MAX_TEXT]) is not None


def _entry(driver: str, name: str) -> Entry:
    """Split a qualified name. One without a domain has that of the driver."""
    domain, slash, rest = name.rpartition("/")
    return (domain, rest) if slash else (driver, name)


def _amount(stated: str | int | float) -> float:
    """Return an amount; -1: it is invalid. NaN would make equal kinds differ."""
    amount = read_quantity(stated)
    return amount if amount >= 0 else -1.0
