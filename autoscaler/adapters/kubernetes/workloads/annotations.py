"""Annotations of a workload: each value is validated, and invalid values are dropped with a reason.

Annotations are untrusted: every user who may edit the workload can write them. Their names and allowed values are in
`autoscaler.config.annotations`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from autoscaler.adapters.kubernetes.api.text import join_problems
from autoscaler.config.annotations import (
    ANNOTATIONS,
    OVERRIDE,
    PREFIX,
    SHORT_OVERRIDES,
    WINDOWS,
    ZERO_UNTIL,
    override_path,
    read,
)
from autoscaler.config.findings import shown, unknown
from autoscaler.config.policy.compile import NO_POLICY, OverrideError, override_value
from autoscaler.config.policy.namespace_limits import PREWARM
from autoscaler.config.policy.schema import OVERRIDES

PROBLEMS_LIMIT = 40  # beyond it unknown annotations are not reported: an object can have thousands
VALUE_LIMIT = 256  # characters of one override
TOO_LONG = "(too long)"
KNOWN = (*ANNOTATIONS, *SHORT_OVERRIDES, f"{OVERRIDE}<field>")
BOUNDS = ("replicas.min", "replicas.max")  # an invalid bound is kept, so that the workload is not scaled


class Declared(NamedTuple):
    """The valid declarations of one workload, and a message about the invalid ones."""

    policy: str | None = None  # None: not managed; "": the default policy
    overrides: tuple[tuple[str, str], ...] = ()
    service: str = ""
    role: str = ""
    engine: str = ""
    model: str = ""
    metrics_port: int = 0  # 0: not declared
    metrics_scheme: str = ""  # "": likewise
    metrics_path: str = ""
    paused: bool = False
    zero_until_s: float | None = None  # Unix time at which a zero ends that somebody has set
    weights: str = ""  # source of the model
    pins_weights: bool = False
    problem: str = ""


NOTHING = Declared()


def read_annotations(annotations: Mapping[str, str] | None) -> Declared:
    """Read the annotations with our prefix. An invalid value is reported in `problem` and dropped.

    An invalid bound is kept: without it the policy's bound would apply, and could cut a correct count.
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
            if name == WINDOWS and found[name] is not None:
                overrides[PREWARM] = value
        elif (path := override_path(name)) in overrides:
            problems.append(f"{shown(name)}: {path} is given twice, {shown(overrides[path])} is used; allowed: once")
        elif path:
            overrides |= read_override(path, value, problems, name)
            if path in BOUNDS and path not in overrides:
                overrides[path] = value if len(value) <= VALUE_LIMIT else TOO_LONG
        elif len(problems) >= PROBLEMS_LIMIT:
            continue
        elif name.startswith(OVERRIDE):
            read_override(name.removeprefix(OVERRIDE), value, problems)
        else:
            problems.append("; allowed: ".join(unknown(f"{PREFIX}{shown(name)} is not known", KNOWN, name)))
    return Declared(
        policy=(NO_POLICY if found["policy"] is None else found["policy"]) if "policy" in found else None,
        overrides=tuple(sorted(overrides.items())),
        service=found.get("service") or "",
        role=found.get("role") or "",
        engine=found.get("engine") or "",
        model=found.get("model") or "",
        metrics_port=found.get("metrics-port") or 0,
        metrics_scheme=found.get("metrics-scheme") or "",
        metrics_path=found.get("metrics-path") or "",
        paused=found.get("paused", "false") != "false",  # an invalid value pauses too
        zero_until_s=found.get(ZERO_UNTIL),
        weights=found.get("weights") or "",
        pins_weights=found.get("weights-pinned") == "true",
        problem=join_problems(problems),
    )


def read_override(path: str, text: str, problems: list[str], name: str = "") -> dict[str, str]:
    """Validate one override. Return {path: text}, or {} and add the reason to `problems`.

    name: the name of the annotation, if it is not the path.
    """
    if path not in OVERRIDES:
        problems.append("; allowed: ".join(unknown(f"{shown(path)} cannot be overridden", OVERRIDES, path)))
        return {}
    try:
        if len(text) > VALUE_LIMIT:
            raise OverrideError(path, "too long", shown(text), OVERRIDES[path].kind.allowed)
        override_value(path, text)
    except OverrideError as error:
        problems.append(f"{name or path}: {error.problem}, found {error.found}; allowed: {error.allowed}")
        return {}
    return {path: text}


def _read(name: str, text: str, problems: list[str]) -> Any:
    """Return the value of an annotation, or None and add the reason to `problems`."""
    try:
        return read(name, text)
    except ValueError as error:
        meant = ", taken as true" if name == "paused" else ""
        problems.append(f"{name}: {error}, found {shown(text)}{meant}; allowed: {ANNOTATIONS[name].allowed}")
        return None
