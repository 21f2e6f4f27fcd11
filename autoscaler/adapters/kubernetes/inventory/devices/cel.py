"""Evaluate the common forms of CEL selectors exactly, and say why for all others.

The operators are `&&`, `||`, `!`, comparisons, `in`, `has` and `cel.bind`. They apply to a device's driver, attributes
and capacity, with the methods of strings, quantities and semantic versions, and with simple patterns. There are no
macros over lists, so the work is linear in the length of an expression: any user may write one.
Source: Kubernetes' `dynamic-resource-allocation/cel`, and the CEL specification for errors within `&&` and `||`.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

from autoscaler.adapters.kubernetes.inventory.devices.kinds import Kind
from autoscaler.adapters.kubernetes.pods.requests import read_quantity
from autoscaler.config.findings import shown

MAX_LENGTH = 10_240  # characters, as the API server allows
MAX_TOKENS = 400  # a tree of them is never too deep for recursion
MAX_DEPTH = 24
MAX_WILDCARDS = 3  # of a pattern, whose cost grows with the length of a text to this power

_TOKEN = re.compile(
    r"\s*(?:(?P<string>r?\"[^\"\n]*\"|r?'[^'\n]*')|(?P<number>\d{1,18})(?![\w.])|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<sign>&&|\|\||==|!=|<=|>=|[!<>.,()\[\]-]))"
)
_PATTERN = re.compile(r"\^?(?:[\w /:-]|\\[.-]|\.\*|\.)*\$?", re.ASCII)
_VERSION = re.compile(r"(\d{1,9})\.(\d{1,9})\.(\d{1,9})", re.ASCII)
_ORDER: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

Node: TypeAlias = tuple[object, ...]


class Fault(NamedTuple):
    """The reason for which an expression has no value."""

    reason: str


class Quantity(NamedTuple):
    amount: float


class Version(NamedTuple):
    parts: tuple[int, int, int]


class _Unsupported(Exception):
    """The expression has a form that is not evaluated."""


def matches(expression: str, kind: Kind) -> bool | Fault:
    """Return whether an expression selects a kind of device; a Fault: that is not known."""
    parsed = parse(expression)
    value = parsed if isinstance(parsed, Fault) else _evaluate(parsed, {"device": kind})
    if isinstance(value, bool | Fault):
        return value
    return Fault(f"{shown(expression)} is no condition")


def required(expression: str) -> dict[str, str]:
    """Return what every selected device has: "driver", and attributes by name, that must equal a text."""
    parsed = parse(expression)
    return {} if isinstance(parsed, Fault) else dict(_equalities(parsed))


@lru_cache(maxsize=512)
def parse(expression: str) -> Node | Fault:
    """Return the tree of an expression."""
    try:
        return _Parser(expression).parse()
    except _Unsupported as error:
        return Fault(f"the selector {shown(expression)} is not evaluated: {error}")


class _Parser:
    """A parser by recursive descent. Its nodes are tuples that begin with their kind."""

    def __init__(self, text: str) -> None:
        if len(text) > MAX_LENGTH:
            raise _Unsupported(f"it has more than {MAX_LENGTH} characters")
        self._tokens = list(islice(_tokens(text), MAX_TOKENS + 1))
        if len(self._tokens) > MAX_TOKENS:
            raise _Unsupported(f"it has more than {MAX_TOKENS} words and signs")
        self._place = 0
        self._depth = 0

    def parse(self) -> Node:
        found = self._or()
        if self._place < len(self._tokens):
            raise _Unsupported(f"unexpected {self._peek()}")
        return found

    def _or(self) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _Unsupported("it is nested too deeply")
        found = self._and()
        while self._take("||"):
            found = ("or", found, self._and())
        self._depth -= 1
        return found

    def _and(self) -> Node:
        found = self._relation()
        while self._take("&&"):
            found = ("and", found, self._relation())
        return found

    def _relation(self) -> Node:
        found = self._unary()
        for sign in ("==", "!=", "<=", ">=", "<", ">", "in"):
            if self._take(sign):
                return ("relation", sign, found, self._unary())
        return found

    def _unary(self) -> Node:
        negations = 0
        while self._take("!"):
            negations += 1
        found = self._member()
        return ("not", found) if negations % 2 else found

    def _member(self) -> Node:
        found = self._primary()
        while True:
            if self._take("."):
                name = self._name()
                found = ("call", found, name, self._arguments(")")) if self._take("(") else ("field", found, name)
            elif self._take("["):
                found = ("index", found, self._or())
                self._expect("]")
            else:
                return found

    def _primary(self) -> Node:
        if self._take("("):
            found = self._or()
            self._expect(")")
            return found
        if self._take("["):
            return ("list", *self._arguments("]"))
        negative = self._take("-")
        kind, text = self._next()
        if kind == "number":
            return ("literal", -int(text) if negative else int(text))
        if negative:
            raise _Unsupported("arithmetic")
        if kind == "string":
            return ("literal", _unquoted(text))
        if kind == "name" and text in ("true", "false"):
            return ("literal", text == "true")
        if kind == "name":
            return ("function", text, self._arguments(")")) if self._take("(") else ("variable", text)
        raise _Unsupported(f"unexpected {text}")

    def _arguments(self, end: str) -> Node:
        found: list[Node] = []
        while not self._take(end):
            if found:
                self._expect(",")
            found.append(self._or())
        return tuple(found)

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

    def _peek(self) -> str:
        return self._tokens[self._place][1] if self._place < len(self._tokens) else ""

    def _take(self, text: str) -> bool:
        is_next = self._place < len(self._tokens) and self._tokens[self._place] in (("sign", text), ("name", text))
        self._place += is_next
        return is_next

    def _expect(self, text: str) -> None:
        if not self._take(text):
            raise _Unsupported(f"{self._peek() or 'its end'} instead of {text}")


def _tokens(text: str) -> Iterator[tuple[str, str]]:
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


class _Entries(NamedTuple):
    """Attributes or capacities of a device: all of them, or those of one domain."""

    kind: Kind
    what: str  # "attributes" or "capacity"
    domain: str | None = None

    def has(self, name: str) -> bool | Fault:
        if self.what == "attributes" and (self.domain, name) in self.kind.dropped:
            return Fault(f"{name} tells single devices of a node apart, and is not read")
        return (self.domain, name) in (self.kind.attributes if self.what == "attributes" else self.kind.capacity)

    def get(self, name: str) -> object:
        present = self.has(name)
        if isinstance(present, Fault):
            return present
        if not present:
            return Fault(f"it reads {name} of {self.domain}, which a device of {self.kind.name} does not have")
        key = self.domain or "", name
        if self.what == "capacity":
            amount = self.kind.capacity[key]
            return Fault(f"the capacity {name} is no quantity") if amount < 0 else Quantity(amount)
        value = self.kind.attributes[key]
        return _version(value[1]) if isinstance(value, tuple) else value


def _evaluate(node: Node, names: Mapping[str, object]) -> object:
    """Return the value of a node, or a Fault. names: of variables."""
    match node:
        case ("literal", value):
            return value
        case ("variable", str(name)):
            return names.get(name, Fault(f"it uses {shown(name)}"))
        case ("list", *items):
            values = [_evaluate(item, names) for item in items]  # type: ignore[arg-type]
            return next((value for value in values if isinstance(value, Fault)), values)
        case ("not", tuple(inner)):
            value = _evaluate(inner, names)
            return (not value) if isinstance(value, bool) else _no_condition(value)
        case ("and" | "or", tuple(left), tuple(right)):
            return _join(node[0] == "or", _evaluate(left, names), _evaluate(right, names))
        case ("relation", str(sign), tuple(left), tuple(right)):
            return _relate(sign, _evaluate(left, names), _evaluate(right, names))
        case ("field", tuple(inner), str(name)):
            return _select(_evaluate(inner, names), name)
        case ("index", tuple(inner), tuple(key)):
            return _select(_evaluate(inner, names), _evaluate(key, names))
        case ("call", ("variable", "cel"), "bind", (("variable", str(name)), tuple(value), tuple(body))):
            return _evaluate(body, {**names, name: _evaluate(value, names)})
        case ("call", tuple(inner), str(name), tuple(arguments)):
            return _call(_evaluate(inner, names), name, [_evaluate(each, names) for each in arguments])
        case ("function", "has", (("field", tuple(inner), str(name)),)):
            holder = _evaluate(inner, names)
            return holder.has(name) if isinstance(holder, _Entries) else _not_supported("has", holder)
        case ("function", str(name), (tuple(argument),)):
            return _convert(name, _evaluate(argument, names))
    return Fault(f"it uses {shown(str(node[1]))}")


def _join(is_or: bool, left: object, right: object) -> object:
    """Join two conditions. One that decides makes a fault of the other irrelevant."""
    if left is is_or or right is is_or:
        return is_or
    for value in (left, right):
        if not isinstance(value, bool):
            return _no_condition(value)
    return not is_or


def _relate(sign: str, left: object, right: object) -> object:
    for value in (left, right):
        if isinstance(value, Fault):
            return value
    if sign in ("==", "!="):
        return (type(left) is type(right) and left == right) is (sign == "==")
    if sign == "in":
        if isinstance(right, list):
            return any(type(left) is type(each) and left == each for each in right)
        if isinstance(right, _Entries) and isinstance(left, str):
            if right.domain is None:
                return any(domain == left for domain, _ in _keys(right))
            return right.has(left)
    elif type(left) is type(right) and isinstance(left, int | str) and not isinstance(left, bool):
        return _ORDER[sign](left, right)
    return _not_supported(sign, left)


def _keys(entries: _Entries) -> Iterator[tuple[str, str]]:
    yield from entries.kind.attributes if entries.what == "attributes" else entries.kind.capacity
    if entries.what == "attributes":
        yield from entries.kind.dropped


def _select(holder: object, key: object) -> object:
    for value in (holder, key):
        if isinstance(value, Fault):
            return value
    if isinstance(holder, Kind):
        if key == "driver":
            return holder.driver
        if key == "allowMultipleAllocations":
            return holder.shared
        if key in ("attributes", "capacity"):
            return _Entries(holder, str(key))
    if isinstance(holder, _Entries) and isinstance(key, str):
        return holder._replace(domain=key) if holder.domain is None else holder.get(key)
    return _not_supported(str(key), holder)


def _call(holder: object, name: str, arguments: list[object]) -> object:
    for value in (holder, *arguments):
        if isinstance(value, Fault):
            return value
    if isinstance(holder, str):
        match name, arguments:
            case "lowerAscii", []:
                return _ascii(holder, "A", "Z", str.lower)
            case "upperAscii", []:
                return _ascii(holder, "a", "z", str.upper)
            case "startsWith", [str(other)]:
                return holder.startswith(other)
            case "endsWith", [str(other)]:
                return holder.endswith(other)
            case "contains", [str(other)]:
                return other in holder
            case "matches", [str(pattern)]:
                return _search(pattern, holder)
    elif isinstance(holder, Quantity | Version) and len(arguments) == 1 and type(arguments[0]) is type(holder):
        order = (holder > arguments[0]) - (holder < arguments[0])  # type: ignore[operator]
        if name == "compareTo":
            return order
        if name in ("isGreaterThan", "isLessThan"):
            return order == (1 if name == "isGreaterThan" else -1)
    return _not_supported(name, holder)


def _convert(name: str, value: object) -> object:
    if isinstance(value, Fault):
        return value
    if name == "quantity" and isinstance(value, str):
        amount = read_quantity(value)
        return Fault(f"{shown(value)} is no quantity") if math.isnan(amount) else Quantity(amount)
    if name == "semver" and isinstance(value, str):
        return _version(value)
    return Fault(f"it uses {shown(name)}")


def _version(text: str) -> Version | Fault:
    match = _VERSION.fullmatch(text)
    return Version((int(match[1]), int(match[2]), int(match[3]))) if match else Fault(f"the version {shown(text)}")


def _search(pattern: str, text: str) -> bool | Fault:
    """Return whether a pattern is found in a text. Simple patterns mean the same in RE2 and in Python."""
    if not _PATTERN.fullmatch(pattern) or pattern.count(".*") > MAX_WILDCARDS or text.endswith("\n"):
        return Fault(f"the pattern {shown(pattern)}")
    return re.search(pattern, text, re.ASCII) is not None


def _ascii(text: str, first: str, last: str, change: Callable[[str], str]) -> str:
    return "".join(change(letter) if first <= letter <= last else letter for letter in text)


def _no_condition(value: object) -> Fault:
    return value if isinstance(value, Fault) else Fault("it joins something that is no condition")


def _not_supported(what: str, holder: object) -> Fault:
    return holder if isinstance(holder, Fault) else Fault(f"it uses {shown(what)}")


def _equalities(node: Node) -> Iterator[tuple[str, str]]:
    """Yield the equalities that hold for every selected device."""
    match node:
        case ("and", tuple(left), tuple(right)):
            yield from _equalities(left)
            yield from _equalities(right)
        case ("relation", "==", tuple(left), ("literal", str(value))):
            if name := _attribute(left):
                yield name, value
        case ("relation", "==", ("literal", str(value)), tuple(right)):
            if name := _attribute(right):
                yield name, value


def _attribute(node: Node) -> str:
    """Return the attribute that a node reads, without its domain; "driver"; "": none."""
    match node:
        case ("field", ("variable", "device"), "driver"):
            return "driver"
        case ("field", ("index", ("field", ("variable", "device"), "attributes"), _), str(name)):
            return name
        case ("index", ("index", ("field", ("variable", "device"), "attributes"), _), ("literal", str(name))):
            return name
    return ""
