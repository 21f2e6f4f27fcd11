"""No regular expression of the product is slow: anyone's text may meet it, and it holds the whole process meanwhile."""

from __future__ import annotations

import ast
import gc
import importlib
import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

import autoscaler
from autoscaler.adapters.scrape.exposition import _finder
from autoscaler.catalog.devices import DEVICES
from autoscaler.catalog.model_shapes import _SHAPES
from autoscaler.config.annotations import MODEL
from autoscaler.config.values import Pattern, namespace_pattern
from tests.patterns import SEARCHES, problems

OWN_INPUT = ("autoscaler.lab", "autoscaler.sim", "autoscaler.adapters.keda.proto")  # rooms that read no one else's text

ESCAPED = re.escape("a-1.b-1")  # stands for a name that is part of a pattern
BUILT: Mapping[str, Callable[[], Iterable[str | bytes]]] = {
    "autoscaler.catalog.devices.find_device": lambda: (rf"(?:tesla-)?(?:{each.names})(?:-|\Z)" for each in DEVICES),
    "autoscaler.catalog.devices.find_instance": lambda: (each.instances for each in DEVICES if each.instances),
    "autoscaler.config.values.read": lambda: (
        each.expression for each in gc.get_objects() if isinstance(each, Pattern)
    ),
    "autoscaler.config.values.namespace_pattern": lambda: [
        namespace_pattern("a*b").pattern
    ],  # further stars are atomic groups
    "autoscaler.config.values._why_not_number": lambda: [r"true|false|-?\d{1,20}(\.\d{1,20})?"],
    "autoscaler.adapters.kubernetes.inventory.elastic._is_of": lambda: [
        rf"eks-{ESCAPED}-[0-9a-f-]{{36}}",
        rf"{ESCAPED}[0-9a-z]{{6}}",
    ],
    "autoscaler.adapters.kubernetes.pods.command_line._model": lambda: [MODEL.expression],
    "autoscaler.adapters.scrape.exposition._finder": lambda: [_finder(frozenset({b"a_b", b"a_c", b"a"})).pattern],
    "autoscaler.catalog.model_shapes.find_shape": lambda: (rf"{names}(?![\d.])" for names in _SHAPES),
    "autoscaler.config.preflight.patterns.compiled": lambda: [
        r"embedder-[a-z0-9]+-[a-z0-9]{5}"  # those of others are limited in ways to try them and to short texts
    ],
    "autoscaler.config.preflight.workloads._pod_pattern": lambda: [
        rf"{ESCAPED}(-[a-z0-9]+){{1,3}}",
        rf"{ESCAPED}(-\d+)+",
        rf"{ESCAPED}-.*",
        rf"{ESCAPED}-[a-z0-9]{{1,10}}-[a-z0-9]{{5}}",
    ],
    "autoscaler.adapters.prometheus.owners.pod_name_patterns": lambda: [r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?"],
}
"""Patterns that functions build while they run, by function."""
SEARCHED = {"autoscaler.adapters.scrape.exposition._finder"}  # in a whole body; the others are compared with a text


@cache
def modules() -> list[tuple[str, ast.Module, object]]:
    """Return the name, the source and the module of each module that has patterns, and may read text of others."""
    found = []
    for module in pkgutil.walk_packages(autoscaler.__path__, "autoscaler."):
        if not module.name.startswith(OWN_INPUT) and not module.name.endswith("__main__"):
            loaded = importlib.import_module(module.name)
            text = Path(str(loaded.__file__)).read_text()
            if re.search(r"\bre\b", text) or any(any(compiled(value)) for value in vars(loaded).values()):
                found.append((module.name, ast.parse(text), loaded))
    return found


def built() -> Iterator[str]:
    """Yield each function that gives `re` a pattern which is no literal."""
    for module, tree, _ in modules():
        for function in ast.walk(tree):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for call in ast.walk(function):
                match call:
                    case ast.Call(ast.Attribute(ast.Name("re"), method), [first, *_]) if (
                        method != "escape" and not isinstance(first, ast.Constant)
                    ):
                        yield f"{module}.{function.name}"


def patterns() -> Iterator[tuple[str, str | bytes, int, bool]]:
    """Yield where each pattern of the product is, the pattern, its flags, and whether it is searched for."""
    for module, tree, loaded in modules():
        source = ast.unparse(tree)
        for name, value in vars(loaded).items():
            found = list(compiled(value))
            used = set(re.findall(rf"\b{re.escape(name)}\b\.(\w+)\(", source)) if found else set()
            for each in found:
                yield f"{module}.{name}", each.pattern, each.flags, bool(used & SEARCHES)
        for call in ast.walk(tree):
            match call:
                case ast.Call(ast.Attribute(ast.Name("re"), method), [ast.Constant(str() | bytes() as text), *_]) if (
                    method != "compile"
                ):
                    yield f"{module}:{call.lineno}", text, 0, method in SEARCHES


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


@pytest.mark.slow
def test_no_pattern_that_is_built_at_run_time_is_slow():
    assert set(built()) == BUILT.keys()
    for function, made in BUILT.items():
        found = {text: told for text in made() if (told := problems(text, 0, function in SEARCHED))}
        assert found == {}, function


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
