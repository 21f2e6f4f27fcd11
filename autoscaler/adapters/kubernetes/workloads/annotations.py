"""What annotations say about a workload: every value checked, bad ones dropped with a reason.

Annotations are written by whoever may edit the workload, so nothing here trusts them. Which there are and what each may
hold is the table of `autoscaler.config.annotations`; what a policy or an override means is known there too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from autoscaler.config.annotations import ANNOTATIONS, OVERRIDE, PREFIX, SHORT_OVERRIDES, override_path, read
from autoscaler.config.findings import one_of, shown
from autoscaler.config.policy.compile import NO_POLICY, OverrideError, override_value
from autoscaler.config.policy.schema import OVERRIDES

PROBLEM_LIMIT = 800  # characters: every annotation wrong at once fits
MOST_TOLD = 40  # ... and one that nobody knows is not told beyond: thousands fit into an object
VALUE_LIMIT = 256  # characters of one override
TOO_LONG = "(too long)"
KNOWN = (*ANNOTATIONS, *SHORT_OVERRIDES, f"{OVERRIDE}<field>")
BOUNDS = ("replicas.min", "replicas.max")  # one that makes no sense stays, so that the workload is left alone


class Declared(NamedTuple):
    """Declarations of one workload that hold, and in words those that do not."""

    policy: str | None = None  # None: not ours; "": the default policy
    overrides: tuple[tuple[str, str], ...] = ()
    service: str = ""
    engine: str = ""
    model: str = ""
    metrics_port: int = 0  # 0: not declared
    metrics_scheme: str = ""  # "": likewise
    metrics_path: str = ""
    paused: bool = False
    problem: str = ""


NOTHING = Declared()


def read_annotations(annotations: Mapping[str, str] | None) -> Declared:
    """Read the annotations under our prefix. A value that makes no sense is named in `problem`, and dropped.

    Unless it is a bound: without it the policy's would hold, and cut a count that is right.
    """
    ours = {key.removeprefix(PREFIX): value for key, value in (annotations or {}).items() if key.startswith(PREFIX)}
    if not ours:
        return NOTHING
    problems: list[str] = []
    found: dict[str, Any] = {}
    overrides: dict[str, str] = {}
    for name, value in ours.items():
        if name in ANNOTATIONS:
            found[name] = _read(name, value, problems)
        elif (path := override_path(name)) in overrides:
            problems.append(f"{shown(name)}: {path} is given twice, {shown(overrides[path])} is used; allowed: once")
        elif path:
            overrides |= read_override(path, value, problems, name)
            if path in BOUNDS and path not in overrides:
                overrides[path] = value if len(value) <= VALUE_LIMIT else TOO_LONG
        elif len(problems) >= MOST_TOLD:
            continue
        elif name.startswith(OVERRIDE):
            read_override(name.removeprefix(OVERRIDE), value, problems)
        else:
            problems.append(f"{PREFIX}{shown(name)} is not known; allowed: {one_of(KNOWN, name)}")
    return Declared(
        policy=(NO_POLICY if found["policy"] is None else found["policy"]) if "policy" in found else None,
        overrides=tuple(sorted(overrides.items())),
        service=found.get("service") or "",
        engine=found.get("engine") or "",
        model=found.get("model") or "",
        metrics_port=found.get("metrics-port") or 0,
        metrics_scheme=found.get("metrics-scheme") or "",
        metrics_path=found.get("metrics-path") or "",
        paused=found.get("paused", "false") != "false",  # nonsense keeps hands off as well
        problem=worded(problems),
    )


def read_override(path: str, text: str, problems: list[str], name: str = "") -> dict[str, str]:
    """Check one override; return it as a pair in a dictionary, or nothing and tell why in `problems`.

    name: what the override is called where it was written, if not by its path.
    """
    if path not in OVERRIDES:
        problems.append(f"{shown(path)} cannot be overridden; allowed: {one_of(OVERRIDES, path)}")
        return {}
    try:
        if len(text) > VALUE_LIMIT:
            raise OverrideError(path, "too long", shown(text), OVERRIDES[path].kind.allowed)
        override_value(path, text)
    except OverrideError as error:
        problems.append(f"{name or path}: {error.problem}, found {error.found}; allowed: {error.allowed}")
        return {}
    return {path: text}


def worded(problems: Iterable[str]) -> str:
    """Join problems into one bounded line."""
    text = "; ".join(problem for problem in problems if problem)
    return text if len(text) <= PROBLEM_LIMIT else text[: PROBLEM_LIMIT - 3] + "..."


def _read(name: str, text: str, problems: list[str]) -> Any:
    """Return the value of an annotation; None: it makes no sense, which `problems` tell."""
    try:
        return read(name, text)
    except ValueError as error:
        meant = ", taken as true" if name == "paused" else ""
        problems.append(f"{name}: {error}, found {shown(text)}{meant}; allowed: {ANNOTATIONS[name].allowed}")
        return None
