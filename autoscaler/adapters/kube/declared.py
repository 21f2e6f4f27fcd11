"""What annotations say about a workload: every value checked, bad ones dropped with a reason.

Annotations are written by whoever may edit the workload, so nothing here trusts them. What a policy name or an
override means is known to `autoscaler.config`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from autoscaler.config.document import read_scalar
from autoscaler.config.engines import ENGINES
from autoscaler.config.findings import one_of, shown
from autoscaler.config.model import OVERRIDES

PREFIX = "vllm-autoscaler.io/"
OVERRIDE = "override."
PROBLEM_LIMIT = 500  # characters
VALUE_LIMIT = 256  # characters of one annotation
POLICY_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?")
MODEL_NAME = re.compile(r"[\x21-\x7e]{1,256}")
SERVICE_NAME = re.compile(r"[A-Za-z0-9]([-_./A-Za-z0-9]{0,126}[A-Za-z0-9])?")
KNOWN = ("policy", "service", "min-replicas", "max-replicas", "paused", "weights", "engine", "model", "metrics-port")
NO_POLICY = "(invalid)"  # a policy of this name cannot exist, so the workload is left alone and that is told


class Declared(NamedTuple):
    """Declarations of one workload that hold, and in words those that do not."""

    policy: str | None = None  # None: not ours; "": the default policy
    overrides: tuple[tuple[str, str], ...] = ()
    service: str = ""
    engine: str = ""
    model: str = ""
    metrics_port: int = 0  # 0: not declared
    paused: bool = False
    problem: str = ""


NOTHING = Declared()


def read_annotations(annotations: Mapping[str, str] | None) -> Declared:
    """Read the annotations under our prefix. A value that makes no sense is dropped and named in `problem`."""
    ours = {key.removeprefix(PREFIX): value for key, value in (annotations or {}).items() if key.startswith(PREFIX)}
    if not ours:
        return NOTHING
    problems: list[str] = []
    found = {key: _checked(key, ours[key], problems) for key in _CHECKS if key in ours}
    overrides = {path: found[key] for key, path in _BOUNDS.items() if found.get(key)}
    for key, value in ours.items():
        if key.startswith(OVERRIDE):
            overrides |= read_override(key.removeprefix(OVERRIDE), value, problems)
        elif key not in KNOWN:
            problems.append(f"{PREFIX}{shown(key)} is not known; allowed: {one_of(KNOWN, key)}")
    paused = ours.get("paused", "false")
    if paused not in ("true", "false"):
        problems.append(f"paused: found {shown(paused)}, taken as true; allowed: true, false")
    return Declared(
        policy=(found["policy"] or (ours["policy"] and NO_POLICY)) if "policy" in ours else None,
        overrides=tuple(sorted(overrides.items())),
        service=found.get("service", ""),
        engine=found.get("engine", ""),
        model=found.get("model", ""),
        metrics_port=int(found.get("metrics-port") or 0),
        paused=paused != "false",
        problem=worded(problems),
    )


def read_override(path: str, text: str, problems: list[str]) -> dict[str, str]:
    """Check one override; return it as a pair in a dictionary, or nothing and tell why in `problems`."""
    leaf = OVERRIDES.get(path)
    if leaf is None:
        problems.append(f"{shown(path)} cannot be overridden; allowed: {one_of(OVERRIDES, path)}")
        return {}
    try:
        if len(text) > VALUE_LIMIT:
            raise ValueError("too long")
        leaf.kind.read(read_scalar(text))
    except ValueError as error:
        problems.append(f"{path}: {error}, found {shown(text)}; allowed: {leaf.kind.allowed}")
        return {}
    return {path: text}


def worded(problems: Iterable[str]) -> str:
    """Join problems into one bounded line."""
    text = "; ".join(problem for problem in problems if problem)
    return text if len(text) <= PROBLEM_LIMIT else text[: PROBLEM_LIMIT - 3] + "..."


def _count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 6


_CHECKS: Mapping[str, tuple[Callable[[str], object], str]] = {
    "policy": (POLICY_NAME.fullmatch, "the name of a policy"),
    "service": (SERVICE_NAME.fullmatch, "letters, digits and - _ . /, at most 128"),
    "engine": (ENGINES.__contains__, ", ".join(ENGINES)),
    "model": (MODEL_NAME.fullmatch, "printable characters without blanks, at most 256"),
    "min-replicas": (_count, "a count such as 1"),
    "max-replicas": (_count, "a count such as 8"),
    "metrics-port": (lambda text: _count(text) and 0 < int(text) < 65_536, "1 to 65535"),
}
_BOUNDS = {"min-replicas": "replicas.min", "max-replicas": "replicas.max"}


def _checked(key: str, value: str, problems: list[str]) -> str:
    accepts, allowed = _CHECKS[key]
    if accepts(value) or (key == "policy" and not value):
        return value
    problems.append(f"{key}: found {shown(value)}; allowed: {allowed}")
    return ""
