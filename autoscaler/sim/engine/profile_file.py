"""Profile files in JSON: written by `simulate fit`, read by `--profile FILE`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from autoscaler.config.findings import Finding, shown
from autoscaler.config.yaml import read_text
from autoscaler.sim.engine.profiles import NAMES, FieldError, Profile, ReplicaSpec, find_profile

MOST_BYTES = 64 << 10
GPUS, PRODUCT = "gpus", "product"
_PRODUCT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_ALLOWED: dict[str, tuple[float, float]] = {
    GPUS: (0.001, 1024.0),
    "step_s": (1e-6, 60.0),
    "sequence_s": (0.0, 60.0),
    "kv_token_s": (0.0, 60.0),
    "prompt_token_s": (0.0, 60.0),
    "kv_capacity_tokens": (1, 10**12),
    "max_num_seqs": (1, 8191),  # below the usual token budget of a step; memory per replica grows with it
    "max_model_len": (2, 200_000_000),  # prompt and output of the longest request of a trace
    "max_batched_tokens": (2, 200_000_000),
    "block_size": (1, 1_000_000),
    "weight_bytes": (0.0, 1e15),
}
"""Smallest and largest value of each field; integer bounds require an integer."""

_REQUIRED = {field.name for field in fields(Profile)} - {
    "max_batched_tokens",
    "block_size",
    "weight_bytes",
}


class ProfileError(ValueError):
    """A profile that cannot be used. The message names the file or profile, the value found, and what is allowed."""


def find(name: str) -> tuple[str, ReplicaSpec]:
    """Return a profile by name or from a file, with its name in reports. Raises ProfileError."""
    if name.endswith(".json"):
        return Path(name).name.removesuffix(".json"), read(Path(name))
    try:
        return name, find_profile(name)
    except ValueError as error:
        known = name in NAMES
        raise ProfileError(str(error) if known else f"{error}, or a file written by `simulate fit` (*.json)") from None


def write(replica_spec: ReplicaSpec) -> str:
    """Return the text of a profile file. Raises ProfileError for a profile that `read` would refuse."""
    content: dict[str, Any] = {GPUS: replica_spec.gpus, **asdict(replica_spec.profile)}
    if replica_spec.product:
        content[PRODUCT] = replica_spec.product
    try:
        for name, value in content.items():
            _check(name, value)
        replica_spec.check_weights()
    except ValueError as error:
        raise ProfileError(f"the profile: {error}") from error
    return json.dumps(content, indent=2) + "\n"


def read(path: Path) -> ReplicaSpec:
    """Read a profile file. Raises ProfileError."""
    text = read_text(path, MOST_BYTES)
    if isinstance(text, Finding):
        raise ProfileError(str(text))
    # Not parsed as YAML, where 3e-05 is text and a tab is an error.
    try:
        mapping = isinstance(json.loads(text), dict)
    except (ValueError, RecursionError) as error:
        place = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise ProfileError(f"{path}{place}: not JSON") from error
    if not mapping:
        raise ProfileError(f"{path}: not a mapping of a profile's fields")
    names = {field.name for field in fields(Profile)}
    content: dict[str, Any] = {}
    lines: dict[str, int] = {}
    for name, value, line in _fields(text):
        where = f"{path}, line {line}"
        if name not in _ALLOWED and name != PRODUCT:
            allowed = ", ".join([GPUS, PRODUCT, *sorted(names)])
            raise ProfileError(f"{where}: unknown field {shown(name)}, found {shown(value)}; allowed: {allowed}")
        if name in lines:
            raise ProfileError(
                f"{where}: {name} is given twice, first in line {lines[name]}, found {shown(value)}; allowed: once"
            )
        try:
            _check(name, value)
        except ValueError as error:
            raise ProfileError(f"{where}: {error}") from error
        content[name], lines[name] = value, line
    if missing := sorted(_REQUIRED - content.keys()):
        raise ProfileError(f"{path}: {', '.join(missing)} missing")
    gpus, product = float(content.pop(GPUS, 1.0)), str(content.pop(PRODUCT, ""))
    try:
        replica_spec = ReplicaSpec(Profile(**content), gpus, product)
        replica_spec.check_weights()
    except FieldError as error:
        raise ProfileError(f"{path}, line {lines[error.field]}: {error}") from error
    return replica_spec


def _fields(text: str) -> Iterator[tuple[str, Any, int]]:
    """Yield name, value and line of each field of a valid JSON mapping, including repeated fields."""
    decoder = json.JSONDecoder()
    at = _beyond(text, text.index("{") + 1)
    while text[at] != "}":
        line = text.count("\n", 0, at) + 1
        name, at = decoder.raw_decode(text, at)
        value, at = decoder.raw_decode(text, _beyond(text, at))
        yield name, value, line
        at = _beyond(text, at)


def _beyond(text: str, at: int) -> int:
    """Return the position of the next value, or of the end of the mapping."""
    while text[at] in " \t\r\n,:":
        at += 1
    return at


def _check(name: str, value: Any) -> None:
    if name == PRODUCT:
        if not (isinstance(value, str) and _PRODUCT.fullmatch(value)):
            raise ValueError(f"{name} is {shown(value)}; it must be letters, digits, '.', '_' and '-', at most 63")
        return
    least, most = _ALLOWED[name]
    whole = isinstance(least, int)
    numeric = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    if not (numeric and least <= value <= most):
        kind = "a whole number" if whole else "a number"
        raise ValueError(f"{name} is {shown(value)}; it must be {kind} from {least:,.15g} to {most:,.15g}")
