"""Formulas of KEDA's `scalingModifiers`: the part of the expr language that works on numbers.

Source: expr-lang/expr v1.17 `docs/language-definition.md`, `parser/operator/operator.go`, `builtin/builtin.go`; KEDA
2.21 `pkg/scaling/modifiers/formula.go`. Texts, maps, dates and ranges are refused by name. A formula is bounded in
length when it is read, and in steps each time it is computed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

MAX_CHARS = 2000
MAX_TOKENS = 400
MAX_DEPTH = 40
TRIED = (0.0, 0.5, 1.0, 10.0, 1000.0)
_RESULT = "_kedaCompositeResult"
MAX_STEPS = 2000  # of one evaluation; predicates in predicates multiply
MAX_ITEMS = 1000  # of a list, with those of lists in it: a list may hold another one many times
MAX_SHOWN = 80  # characters of a value in messages
MAX_WHOLE = 1 << 63  # from here on KEDA's whole numbers, of 64 bits, wrap around

Value = float | int | bool | None | list[Any]

_TOKENS = re.compile(
    r"""(?P<blank>\s+|/\*.*?\*/|//[^\n]*)
      | (?P<number>(?:\d[\d_]*\.\d[\d_]*|\.\d[\d_]*|\d[\d_]*)(?:[eE][+-]?\d+)?)
      | (?P<word>[A-Za-z_]\w*)
      | (?P<sign>\?\?|\*\*|==|!=|<=|>=|&&|\|\||[-+*/%^<>!?:()\[\]{},;=|#])""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_BINARY: Mapping[str, tuple[int, bool]] = {  # precedence, and whether it groups to the right
    **dict.fromkeys(("or", "||"), (10, False)),
    **dict.fromkeys(("and", "&&"), (15, False)),
    **dict.fromkeys(("==", "!=", "<", ">", "<=", ">=", "in"), (20, False)),
    **dict.fromkeys(("+", "-"), (30, False)),
    **dict.fromkeys(("*", "/", "%"), (60, False)),
    **dict.fromkeys(("**", "^"), (100, True)),
    "??": (500, False),
}
_UNARY = {"not": 50, "!": 50, "-": 90, "+": 90}
_COMPARISONS = ("<", ">", "<=", ">=")
_WORDS = frozenset({"and", "or", "not", "in", "true", "false", "nil", "let", "if", "else"})
_PREDICATES = frozenset({"all", "any", "none", "one", "filter", "map", "count", "sum", "find"})


@dataclass(frozen=True)
class FormulaPart:
    """A part of a formula. kind: "value", "name", "item" (#), "list", "call", "choice", "let", or an operator."""

    kind: str
    parts: tuple[FormulaPart, ...] = ()
    value: float | int | bool | None = None
    name: str = ""


@dataclass(frozen=True)
class Formula:
    """A formula that was read, and the names of the triggers in it."""

    text: str
    term: FormulaPart
    names: tuple[str, ...]

    def compute(self, values: Mapping[str, float | None]) -> float | None:
        """Return the result for the values of triggers; None is nil. Raises ValueError as KEDA would fail."""
        result = self._result(values)
        if result is None:
            return None
        if not isinstance(result, float):
            raise ValueError(
                f"it gives {_named(result)}; KEDA takes what begins with float( as it is, and then a float only"
            )
        if not math.isfinite(result):
            raise ValueError(f"it gives {result}")
        return result

    def check(self) -> None:
        """Raise ValueError as KEDA's webhook would, which computes it once with -1 for each trigger."""
        self._result(dict.fromkeys(self.names, -1.0))

    @property
    def most_steps(self) -> int:
        """Return the steps that it takes at most, whatever the values."""
        return min(_steps(self.term, {})[0], MAX_STEPS)

    def _result(self, values: Mapping[str, float | None]) -> Value:
        try:
            return _Run(values).value(self.term, {})
        except (ArithmeticError, TypeError, RecursionError) as error:
            raise ValueError(f"it cannot be computed: {error}") from error

    def doubt(self) -> str:
        """Return for which equal values of all triggers it cannot be computed, and why; "": for none that was tried."""
        for value in TRIED:
            try:
                self.compute(dict.fromkeys(self.names, value))
            except ValueError as error:
                return f"where all triggers are {value:g}, {error}"
        return ""


def read_formula(text: str, names: Sequence[str]) -> Formula:
    """Read a formula whose names are those of triggers. Raises ValueError with what is not understood."""
    if len(text) > MAX_CHARS:
        raise ValueError(f"{len(text)} characters; allowed: {MAX_CHARS}")
    reader = _Reader(_split(text), frozenset(names))
    reader.whole()
    try:
        term = _Reader(_split(_cast(text)), frozenset(names)).whole()
    except ValueError as error:
        raise ValueError(f"{error}; KEDA puts the formula into float(...), which a comment at its end breaks") from None
    return Formula(text, term, tuple(dict.fromkeys(reader.used)))


def _cast(text: str) -> str:
    """Return the formula that KEDA computes, whose result is a float: `castToFloatIfNecessary` of its webhook."""
    if "??" in text:
        return f"let {_RESULT} = ({text}); {_RESULT} == nil ? nil : float({_RESULT})"
    return text if text.startswith("float(") else f"float({text})"


def _split(text: str) -> list[str]:
    tokens: list[str] = []
    place = 0
    while place < len(text):
        match = _TOKENS.match(text, place)
        if match is None:
            raise ValueError(f"{text[place : place + 20]!r} is not understood")
        if match.lastgroup != "blank":
            tokens.append(match[0])
        place = match.end()
    if len(tokens) > MAX_TOKENS:
        raise ValueError(f"{len(tokens)} words and signs; allowed: {MAX_TOKENS}")
    return tokens


class _Reader:
    """A parser by precedence. `used`: names of triggers, in the order in which they occur."""

    def __init__(self, tokens: list[str], names: frozenset[str]) -> None:
        self._tokens, self._place, self._depth = tokens, 0, 0
        self._names, self._variables = names, list[str]()
        self.used: list[str] = []

    @property
    def _next(self) -> str:
        return self._tokens[self._place] if self._place < len(self._tokens) else ""

    def whole(self) -> FormulaPart:
        term = self._expression(0)
        if self._next:
            raise ValueError(f"{self._next!r} is not understood after a whole expression")
        return term

    def _take(self, wanted: str = "") -> str:
        token = self._next
        if not token or (wanted and token != wanted):
            raise ValueError(f"{wanted or 'a value'} is missing" + (f" before {token!r}" if token else " at the end"))
        self._place += 1
        return token

    def _expression(self, least: int) -> FormulaPart:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ValueError(f"nested more than {MAX_DEPTH} deep")
        if least == 0 and self._next == "let":
            term = self._let()
        elif least == 0 and self._next == "if":
            term = self._if()
        else:
            term = self._operators(self._operand(), least)
            if least == 0:
                term = self._piped(term)
            if least == 0 and self._next == "?":
                term = self._ternary(term)
        self._depth -= 1
        return term

    def _operators(self, left: FormulaPart, least: int) -> FormulaPart:
        compared = False
        while (found := _BINARY.get(self._next)) and found[0] >= least:
            sign, (precedence, is_right) = self._take(), found
            if compared and sign in _COMPARISONS:
                raise ValueError("a chain of comparisons is not supported: join two by `and`")
            compared = sign in _COMPARISONS
            left = FormulaPart(sign, (left, self._expression(precedence if is_right else precedence + 1)))
        return left

    def _piped(self, left: FormulaPart) -> FormulaPart:
        while self._next == "|":
            self._take()
            left = self._call(self._take(), (left,))
        return left

    def _ternary(self, condition: FormulaPart) -> FormulaPart:
        self._take("?")
        if self._next == ":":  # a ?: b
            self._take()
            return FormulaPart("choice", (condition, condition, self._expression(0)))
        chosen = self._expression(0)
        self._take(":")
        return FormulaPart("choice", (condition, chosen, self._expression(0)))

    def _if(self) -> FormulaPart:
        self._take("if")
        parts = [self._expression(0), self._block()]
        self._take("else")
        parts.append(self._if() if self._next == "if" else self._block())
        return FormulaPart("choice", tuple(parts))

    def _block(self) -> FormulaPart:
        self._take("{")
        term = self._expression(0)
        self._take("}")
        return term

    def _let(self) -> FormulaPart:
        self._take("let")
        name = self._take()
        self._take("=")
        stated = self._expression(0)
        self._take(";")
        self._variables.append(name)
        body = self._expression(0)
        self._variables.pop()
        return FormulaPart("let", (stated, body), name=name)

    def _operand(self) -> FormulaPart:
        token = self._take()
        if token in _UNARY:
            return FormulaPart("not" if token in ("not", "!") else f"u{token}", (self._expression(_UNARY[token]),))
        if token == "(":
            term = self._expression(0)
            self._take(")")
            return term
        if token == "[":
            return FormulaPart("list", tuple(self._list("]")))
        if token == "#":
            return FormulaPart("item")
        if token[0].isdigit() or token[0] == ".":
            plain = token.replace("_", "")
            return FormulaPart("value", value=_bounded(int(plain)) if plain.isdigit() else float(plain))
        if token in ("true", "false", "nil"):
            return FormulaPart("value", value={"true": True, "false": False, "nil": None}[token])
        if self._next == "(":
            return self._call(token, ())
        if token in self._variables:
            return FormulaPart("name", name=token)
        if token not in self._names or token in _WORDS:
            known = ", ".join(sorted(self._names)) or "none"
            raise ValueError(f"{token!r} is not understood; triggers with a name: {known}")
        self.used.append(token)
        return FormulaPart("name", name=token)

    def _call(self, name: str, first: tuple[FormulaPart, ...]) -> FormulaPart:
        if name not in _FUNCTIONS and name not in _PREDICATES:
            raise ValueError(f"the function {name!r} is not understood; known: {', '.join(sorted(FUNCTIONS))}")
        self._take("(")
        return FormulaPart("call", (*first, *self._list(")")), name=name)

    def _list(self, end: str) -> list[FormulaPart]:
        items: list[FormulaPart] = []
        while self._next != end:
            items.append(self._block() if self._next == "{" else self._expression(0))
            if self._next != end:
                self._take(",")
        self._take(end)
        return items


def _steps(term: FormulaPart, sizes: Mapping[str, int]) -> tuple[int, int]:
    """Return the steps of a part at most, and the items of its result if that is a list.

    sizes: items of variables and of "#" that are lists. They are bounded, since each level may multiply them.
    """
    if term.kind in ("name", "item"):
        return 1, sizes.get(term.name or "#", 0)
    if term.kind == "let":
        stated, size = _steps(term.parts[0], sizes)
        body, result = _steps(term.parts[1], {**sizes, term.name: size})
        return min(1 + stated + body, MAX_STEPS), result
    if term.kind == "call" and term.name in _PREDICATES and len(term.parts) > 1:
        steps, size = _steps(term.parts[0], sizes)
        body, _ = _steps(term.parts[1], {**sizes, "#": MAX_ITEMS})
        return min(1 + steps + size * body, MAX_STEPS), size
    parts = [_steps(part, sizes) for part in term.parts]
    size = max((len(parts) if term.kind == "list" else 0, *(size for _, size in parts)))
    return min(1 + sum(steps for steps, _ in parts), MAX_STEPS), size


class _Run:
    """One evaluation."""

    def __init__(self, values: Mapping[str, float | None]) -> None:
        self._values, self._left = values, MAX_STEPS

    def value(self, term: FormulaPart, local: Mapping[str, Value]) -> Value:
        self._left -= 1
        if self._left < 0:
            raise ValueError(f"it takes more than {MAX_STEPS} steps")
        match term.kind:
            case "value":
                return term.value
            case "name":
                return local[term.name] if term.name in local else self._values.get(term.name)
            case "item":
                if "#" not in local:
                    raise ValueError("# stands outside of a predicate")
                return local["#"]
            case "list":
                return _FormulaList([self.value(part, local) for part in term.parts])
            case "let":
                return self.value(term.parts[1], {**local, term.name: self.value(term.parts[0], local)})
            case "choice":
                chosen = 1 if _truth(self.value(term.parts[0], local)) else 2
                return self.value(term.parts[chosen], local)
            case "call":
                return self._call(term, local)
            case "and" | "&&":
                return _truth(self.value(term.parts[0], local)) and _truth(self.value(term.parts[1], local))
            case "or" | "||":
                return _truth(self.value(term.parts[0], local)) or _truth(self.value(term.parts[1], local))
            case "??":
                left = self.value(term.parts[0], local)
                return self.value(term.parts[1], local) if left is None else left
        return _OPERATORS[term.kind](*(self.value(part, local) for part in term.parts))

    def _call(self, term: FormulaPart, local: Mapping[str, Value]) -> Value:
        if term.name in _PREDICATES and term.parts:
            items = _items(self.value(term.parts[0], local))
            if len(term.parts) == 1:
                results: list[Value] = items
            else:
                results = [self.value(term.parts[1], {**local, "#": item}) for item in items]
            return _by_predicate(term.name, items, results)
        return _FUNCTIONS[term.name](*(self.value(part, local) for part in term.parts))


def _by_predicate(name: str, items: list[Value], results: list[Value]) -> Value:
    match name:
        case "sum":
            total: float | int = 0
            for result in results:
                total = _bounded(total + _number(result))
            return total
        case "map":
            return _FormulaList(results)
    chosen = _FormulaList([item for item, result in zip(items, results, strict=True) if _truth(result)])
    match name:
        case "count":
            return len(chosen)
        case "filter":
            return chosen
        case "find":
            return chosen[0] if chosen else None
        case "all":
            return len(chosen) == len(items)
        case "any":
            return bool(chosen)
        case "none":
            return not chosen
    return len(chosen) == 1


class _FormulaList(list[Value]):
    """A list of a formula. Raises ValueError for too many items."""

    size: int  # its items, with those of lists in it

    def __init__(self, items: Sequence[Value]) -> None:
        super().__init__(items)
        self.size = len(items) + sum(item.size for item in items if isinstance(item, _FormulaList))
        if self.size > MAX_ITEMS:
            raise ValueError(f"a list has {self.size} items, with those of lists in it; allowed: {MAX_ITEMS}")


def _bounded(number: float | int) -> float | int:
    """Return a number. Raises ValueError for a whole one that KEDA cannot hold."""
    if isinstance(number, int) and not -MAX_WHOLE <= number < MAX_WHOLE:
        raise ValueError("a whole number has more than 64 bits, where KEDA's wraps around; allowed: a float, as 1.0")
    return number


def _named(value: Value) -> str:
    text = "nil" if value is None else repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."


def _number(value: Value) -> float | int:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{_named(value)} is not a number")
    return value


def _truth(value: Value) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{_named(value)} is neither true nor false")
    return value


def _items(value: Value) -> list[Value]:
    if not isinstance(value, list):
        raise ValueError("a list is missing")
    return value


def _numbers(values: Sequence[Value]) -> list[float | int]:
    """Return the numbers among arguments, and in lists that are arguments."""
    flat = [item for value in values for item in (value if isinstance(value, list) else [value])]
    if not flat:
        raise ValueError("no number is given")
    return [_number(item) for item in flat]


def _whole(value: Value) -> int:
    number = _number(value)
    if not isinstance(number, int):
        raise ValueError("% takes whole numbers only: write int(...)")
    return number


def _divide(left: Value, right: Value) -> float:
    over, under = float(_number(left)), float(_number(right))
    if under == 0:
        return math.nan if over == 0 or math.isnan(over) else math.copysign(math.inf, over)
    return over / under


def _round(value: Value) -> float:
    number = float(_number(value))
    return math.copysign(math.floor(abs(number) + 0.5), number)  # half goes away from zero


_OPERATORS: Mapping[str, Callable[..., Value]] = {
    "u-": lambda value: _bounded(-_number(value)),
    "u+": _number,
    "not": lambda value: not _truth(value),
    "+": lambda left, right: _bounded(_number(left) + _number(right)),
    "-": lambda left, right: _bounded(_number(left) - _number(right)),
    "*": lambda left, right: _bounded(_number(left) * _number(right)),
    "/": _divide,
    "%": lambda left, right: int(math.fmod(_whole(left), _whole(right))),
    "**": lambda left, right: math.pow(_number(left), _number(right)),
    "^": lambda left, right: math.pow(_number(left), _number(right)),
    "==": lambda left, right: left == right,
    "!=": lambda left, right: left != right,
    "<": lambda left, right: _number(left) < _number(right),
    ">": lambda left, right: _number(left) > _number(right),
    "<=": lambda left, right: _number(left) <= _number(right),
    ">=": lambda left, right: _number(left) >= _number(right),
    "in": lambda left, right: left in _items(right),
}
_FUNCTIONS: Mapping[str, Callable[..., Value]] = {
    "abs": lambda value: _bounded(abs(_number(value))),
    "ceil": lambda value: float(math.ceil(_number(value))),
    "floor": lambda value: float(math.floor(_number(value))),
    "round": _round,
    "int": lambda value: _bounded(int(_number(value))),
    "float": lambda value: float(_number(value)),
    "max": lambda *values: max(_numbers(values)),
    "min": lambda *values: min(_numbers(values)),
    "mean": lambda *values: math.fsum(_numbers(values)) / len(_numbers(values)),
    "median": lambda *values: float(median(_numbers(values))),
    "len": lambda value: len(_items(value)),
    "first": lambda value: _items(value)[0] if _items(value) else None,
    "last": lambda value: _items(value)[-1] if _items(value) else None,
}
FUNCTIONS = frozenset(_FUNCTIONS) | _PREDICATES
