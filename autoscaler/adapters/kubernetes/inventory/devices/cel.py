"""Evaluate the CEL selectors that claims on accelerators use, and say why for all others.

A selector is a list of comparisons, joined by `&&`. Each compares a device's driver, an attribute or a capacity with a
value. Any user may write one, so there are no functions of texts, no patterns and no nesting: the work is the number of
comparisons, of which there are few.
Source: Kubernetes' `dynamic-resource-allocation/cel`, and the CEL specification for errors within `&&`.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

from autoscaler.adapters.kubernetes.inventory.devices.kinds import DeviceKind
from autoscaler.config.findings import shown
from autoscaler.config.quantities import read_quantity

MAX_LENGTH = 10_240  # characters, as the API server allows
MAX_TOKENS = 400
DRIVER, ATTRIBUTES, CAPACITY = "driver", "attributes", "capacity"

_TOKEN = re.compile(
    r"\s*(?:(?P<string>r?\"[^\"\n]*\"|r?'[^'\n]*')|(?P<number>-?\d{1,18})(?![\w.])|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<sign>&&|==|!=|<=|>=|[<>.,()\[\]]))"
)
_VERSION = re.compile(r"(\d{1,9})\.(\d{1,9})\.(\d{1,9})", re.ASCII)
_ORDER: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_SIGNS = ("==", "!=", *_ORDER, "in")
_BY_METHOD = {"isGreaterThan": 1, "isLessThan": -1}  # what `compareTo` returns


class CelFault(NamedTuple):
    """The reason for which an expression has no value."""

    reason: str


class DeviceValue(NamedTuple):
    amount: float


class Version(NamedTuple):
    parts: tuple[int, int, int]


class Read(NamedTuple):
    """A value of a device: its driver, or an attribute or capacity; without a name all of the domain."""

    what: str
    domain: str = ""
    name: str = ""


Value: TypeAlias = str | int | bool | DeviceValue | Version | CelFault


class Order(NamedTuple):
    """The result of `compareTo`: -1, 0 or 1."""

    of: Read
    other: Value


Operand: TypeAlias = Read | Order | Value | tuple[Value, ...]


class CelComparison(NamedTuple):
    left: Operand
    sign: str  # "": the left side alone is the condition
    right: Operand


class _Unsupported(Exception):
    """The expression has a form that is not evaluated."""


def matches(expression: str, kind: DeviceKind) -> bool | CelFault:
    """Return whether an expression selects a kind of device; a Fault: that is not known."""
    comparisons = parse(expression)
    if isinstance(comparisons, CelFault):
        return comparisons
    values = [_compare(each, kind) for each in comparisons]
    if False in values:  # makes a fault of another one irrelevant
        return False
    return next((value for value in values if isinstance(value, CelFault)), True)


def required(expression: str) -> dict[str, str]:
    """Return what every selected device has: "driver", and attributes by name, that must equal a text."""
    found: dict[str, str] = {}
    comparisons = parse(expression)
    for left, sign, right in () if isinstance(comparisons, CelFault) else comparisons:
        for read, value in ((left, right), (right, left)):
            if sign == "==" and isinstance(read, Read) and isinstance(value, str) and read.what in (DRIVER, ATTRIBUTES):
                found[read.name or read.what] = value
    return found


def comparisons(expression: str) -> int:
    """Return the number of comparisons, which is the work for one kind of device."""
    parsed = parse(expression)
    return 1 if isinstance(parsed, CelFault) else len(parsed)


@lru_cache(maxsize=512)
def parse(expression: str) -> tuple[CelComparison, ...] | CelFault:
    """Return the comparisons of an expression, which must all be true."""
    try:
        return tuple(_Parser(expression).parse())
    except _Unsupported as error:
        return CelFault(f"the selector {shown(expression)} is not evaluated: {error}")


class _Parser:
    def __init__(self, text: str) -> None:
        if len(text) > MAX_LENGTH:
            raise _Unsupported(f"it has more than {MAX_LENGTH} characters")
        self._tokens = list(islice(_tokens(text), MAX_TOKENS + 1))
        if len(self._tokens) > MAX_TOKENS:
            raise _Unsupported(f"it has more than {MAX_TOKENS} words and signs")
        self._place = 0

    def parse(self) -> Iterable[CelComparison]:
        yield self._comparison()
        while self._place < len(self._tokens):
            self._expect("&&")
            yield self._comparison()

    def _comparison(self) -> CelComparison:
        left = self._operand()
        if isinstance(left, Read) and self._take("."):
            method = self._name()
            if method != "compareTo" and method not in _BY_METHOD:
                raise _Unsupported(f"it uses {shown(method)}")
            left = Order(left, self._argument())
            if method in _BY_METHOD:
                return CelComparison(left, "==", _BY_METHOD[method])
        sign = next((sign for sign in _SIGNS if self._take(sign)), "")
        return CelComparison(left, sign, self._operand() if sign else True)

    def _operand(self) -> Operand:
        if self._take("device"):
            return self._read()
        if not self._take("["):
            return self._literal()
        found: list[Value] = []
        while not self._take("]"):
            if found:
                self._expect(",")
            found.append(self._literal())
        return tuple(found)

    def _read(self) -> Read:
        self._expect(".")
        what = self._name()
        if what == DRIVER:
            return Read(what)
        if what not in (ATTRIBUTES, CAPACITY):
            raise _Unsupported(f"it uses {shown(what)}")
        self._expect("[")
        domain = self._text("]")
        if self._take("["):
            return Read(what, domain, self._text("]"))
        return Read(what, domain, self._name() if self._take(".") else "")

    def _literal(self) -> Value:
        kind, text = self._next()
        if kind == "number":
            return int(text)
        if kind == "string":
            return _unquoted(text)
        if text in ("true", "false"):
            return text == "true"
        if text in ("quantity", "semver"):
            self._expect("(")
            stated = self._text(")")
            return _version(stated) if text == "semver" else _quantity(stated)
        raise _Unsupported(f"it uses {shown(text)}")

    def _argument(self) -> Value:
        self._expect("(")
        found = self._literal()
        self._expect(")")
        return found

    def _text(self, end: str) -> str:
        kind, text = self._next()
        if kind != "string":
            raise _Unsupported(f"unexpected {text}")
        self._expect(end)
        return _unquoted(text)

    def _name(self) -> str:
        kind, text = self._next()
        if kind != "name":
            raise _Unsupported(f"unexpected {text}")
        return text

    def _next(self) -> tuple[str, str]:
        if self._place >= len(self._tokens):
            raise _Unsupported("it ends too early")
        self._place += 1
        return self._tokens[self._place - 1]

    def _take(self, text: str) -> bool:
        is_next = self._place < len(self._tokens) and self._tokens[self._place] in (("sign", text), ("name", text))
        self._place += is_next
        return is_next

    def _expect(self, text: str) -> None:
        if not self._take(text):
            raise _Unsupported(f"unexpected {shown(self._next()[1])}")


def _tokens(text: str) -> Iterable[tuple[str, str]]:
    place, text = 0, text.rstrip()
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise _Unsupported(f"unexpected {shown(text[place : place + 16].strip())}")
        yield str(match.lastgroup), match[str(match.lastgroup)]
        place = match.end()


def _unquoted(text: str) -> str:
    inner = text.removeprefix("r")[1:-1]
    if "\\" in inner and not text.startswith("r"):
        raise _Unsupported("an escape sequence")
    return inner


def _quantity(stated: str) -> Value:
    amount = read_quantity(stated)
    return CelFault(f"{shown(stated)} is no quantity") if math.isnan(amount) else DeviceValue(amount)


def _version(text: str) -> Value:
    match = _VERSION.fullmatch(text)
    return Version((int(match[1]), int(match[2]), int(match[3]))) if match else CelFault(f"the version {shown(text)}")


def _compare(comparison: CelComparison, kind: DeviceKind) -> bool | CelFault:
    sign, right = comparison.sign, comparison.right
    left = _value(comparison.left, kind)
    if sign == "in" and isinstance(left, str) and isinstance(right, Read) and right.domain and not right.name:
        return _has(right, left, kind)
    right = _value(right, kind)
    for value in (left, right, *(right if isinstance(right, tuple) else ())):
        if isinstance(value, CelFault):
            return value
    if not sign and isinstance(left, bool):
        return left
    if sign == "in" and isinstance(right, tuple):
        return any(_is_equal(left, each) for each in right)
    if sign in ("==", "!="):
        return _is_equal(left, right) is (sign == "==")
    if sign in _ORDER and type(left) is type(right) and isinstance(left, int | str) and not isinstance(left, bool):
        return _ORDER[sign](left, right)
    return CelFault(f"{shown(left)} is no condition, or cannot be compared so")


def _is_equal(left: object, right: object) -> bool:
    return type(left) is type(right) and left == right


def _value(operand: Operand, kind: DeviceKind) -> Operand:
    """Return the value of an operand; a Fault: it has none."""
    if isinstance(operand, Order):
        value, other = _value(operand.of, kind), operand.other
        if isinstance(value, DeviceValue | Version) and type(value) is type(other):
            return (value > other) - (value < other)  # type: ignore[operator]
        return next(
            (each for each in (value, other) if isinstance(each, CelFault)),
            CelFault(f"{shown(value)} cannot be compared with {shown(other)}"),
        )
    if not isinstance(operand, Read):
        return operand
    if operand.what == DRIVER:
        return kind.driver
    present = _has(operand, operand.name, kind)
    if isinstance(present, CelFault):
        return present
    if not present:
        return CelFault(f"it reads {operand.name} of {operand.domain}, which a device of {kind.name} does not have")
    if operand.what == CAPACITY:
        amount = kind.capacity[operand.domain, operand.name]
        return CelFault(f"the capacity {operand.name} is no quantity") if amount < 0 else DeviceValue(amount)
    stated = kind.attributes[operand.domain, operand.name]
    return _version(stated[1]) if isinstance(stated, tuple) else stated


def _has(read: Read, name: str, kind: DeviceKind) -> bool | CelFault:
    """Return whether a device has an attribute or a capacity of that name."""
    if read.what == ATTRIBUTES and (read.domain, name) in kind.dropped:
        return CelFault(f"{name} tells single devices of a node apart, and is not read")
    return (read.domain, name) in (kind.attributes if read.what == ATTRIBUTES else kind.capacity)
