"""No regular expression of the product is slow: anyone's text may meet it, and it holds the whole process meanwhile."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import autoscaler
from tests.patterns import SEARCHES, problems

OWN_INPUT = ("autoscaler.lab", "autoscaler.sim", "autoscaler.adapters.keda.proto")  # rooms that read no one else's text


def patterns() -> Iterator[tuple[str, str | bytes, int, bool]]:
    """Yield where each pattern of the product is, the pattern, its flags, and whether it is searched for."""
    for module in pkgutil.walk_packages(autoscaler.__path__, "autoscaler."):
        if module.name.startswith(OWN_INPUT) or module.name.endswith("__main__"):
            continue
        loaded = importlib.import_module(module.name)
        source = Path(str(loaded.__file__)).read_text()
        for name, value in vars(loaded).items():
            found = list(compiled(value))
            used = set(re.findall(rf"\b{re.escape(name)}\b\.(\w+)\(", source)) if found else set()
            for each in found:
                yield f"{module.name}.{name}", each.pattern, each.flags, bool(used & SEARCHES)
        for call in ast.walk(ast.parse(source)):
            match call:
                case ast.Call(ast.Attribute(ast.Name("re"), method), [ast.Constant(str() | bytes() as text), *_]) if (
                    method != "compile"
                ):
                    yield f"{module.name}:{call.lineno}", text, 0, method in SEARCHES


def compiled(value: object) -> Iterator[re.Pattern[str] | re.Pattern[bytes]]:
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, Mapping | tuple | list | frozenset | set):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from compiled(each)


@pytest.mark.slow
def test_no_pattern_of_the_product_is_slow():
    found = {
        f"{where}: {text!r}": told
        for where, text, flags, is_search in patterns()
        if (told := problems(text, flags, is_search))
    }
    assert found == {}


@pytest.mark.parametrize(
    ("pattern", "is_search"),
    [
        (r"(a+)+b", False),
        (r"(a|a)*b", False),
        (r"(?:a|ab|b)*c", False),
        (r"([._]\w+)*x", False),
        (r".*.*b", False),
        (r"a*b?a*c", False),
        (r"(?:\s*x?)*y", False),
        (r"\s+$x", True),
        (r"(?m)^\s*-", True),
        (r'"(?:[^"\\]|\\.)*"', True),
        (r"a=[^}]*b=[^}]*\}", False),
        (r"(-shared|-mig-.*)+x", False),
    ],
)
def test_slow_patterns_are_known_as_such(pattern: str, is_search: bool):
    assert problems(pattern, 0, is_search)


@pytest.mark.parametrize(
    ("pattern", "is_search"),
    [
        (r"\d+\.\d+", False),
        (r'"[^"\\]*(?:\\.[^"\\]*)*"', False),
        (r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', True),
        (r"[^|]*\|[^|]*", False),
        (r"(?:[.+_-](?:me|gfx|all))*$", False),
        (r"[a-z]([a-z-]{0,61}[a-z])?(\.[a-z]([a-z-]{0,61}[a-z])?)+", False),
        (r"\$\(([-._a-zA-Z0-9]+)\)", True),
    ],
)
def test_quick_patterns_are_known_as_such(pattern: str, is_search: bool):
    assert problems(pattern, 0, is_search) == set()
