"""A profile as a JSON file: what `simulate fit` writes and `--profile FILE` reads."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from autoscaler.sim.engine.profiles import NAMES, Offer, Profile, named

MOST_BYTES = 64 << 10
MOST_SHOWN = 40  # characters of a value, in an error
GPUS = "gpus"
_ALLOWED: dict[str, tuple[float, float]] = {
    GPUS: (0.001, 1024.0),
    "step_s": (1e-6, 60.0),
    "sequence_s": (0.0, 60.0),
    "kv_token_s": (0.0, 60.0),
    "prompt_token_s": (0.0, 60.0),
    "kv_capacity_tokens": (1, 10**12),
    "max_num_seqs": (1, 8191),  # below the usual token budget of a step; memory grows with it, replica by replica
    "max_model_len": (2, 200_000_000),  # prompt and answer of the longest request that a trace may have
    "max_batched_tokens": (2, 200_000_000),
    "block_size": (1, 1_000_000),
    "weight_bytes": (0.0, 1e15),
}
"""The least and the greatest value of each field; where these are written as whole numbers it must be one."""

_REQUIRED = {field.name for field in fields(Profile)} - {
    "max_batched_tokens",
    "block_size",
    "weight_bytes",
}


class ProfileError(ValueError):
    """A profile that cannot be used: says the file or name, what was found, and what is allowed."""


def find(name: str) -> tuple[str, Offer]:
    """Return a profile by its name, or from a file, with what it is called in reports. Raises ProfileError."""
    if name.endswith(".json"):
        return Path(name).name.removesuffix(".json"), read(Path(name))
    try:
        return name, named(name)
    except ValueError as error:
        known = name in NAMES
        raise ProfileError(str(error) if known else f"{error}, or a file written by `simulate fit` (*.json)") from None


def write(offer: Offer) -> str:
    """Return the text of a profile file. Raises ProfileError for a profile that `read` would refuse."""
    content = {GPUS: offer.gpus, **asdict(offer.profile)}
    for name, value in content.items():
        _check("the profile", name, value)
    return json.dumps(content, indent=2) + "\n"


def read(path: Path) -> Offer:
    """Read a profile file. Raises ProfileError."""
    try:
        with path.open("rb") as stream:
            text = stream.read(MOST_BYTES + 1)
        if len(text) > MOST_BYTES:
            raise ProfileError(f"{path}: more than {MOST_BYTES} bytes; a profile is shorter")
        content = json.loads(text)
    except OSError as error:
        raise ProfileError(f"{path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, ProfileError):
            raise
        line = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise ProfileError(f"{path}{line}: not JSON") from error
    if not isinstance(content, dict):
        raise ProfileError(f"{path}: not a mapping of a profile's fields")
    gpus = content.pop(GPUS, 1.0)
    names = {field.name for field in fields(Profile)}
    if unknown := sorted(content.keys() - names):
        raise ProfileError(f"{path}: unknown field {unknown[0]!r}; allowed: {', '.join([GPUS, *sorted(names)])}")
    if missing := sorted(_REQUIRED - content.keys()):
        raise ProfileError(f"{path}: {', '.join(missing)} missing")
    for name, value in {GPUS: gpus, **content}.items():
        _check(str(path), name, value)
    try:
        return Offer(Profile(**content), float(gpus))
    except ValueError as error:
        raise ProfileError(f"{path}: {error}") from error


def _check(where: str, name: str, value: Any) -> None:
    shown = f"{where}: {name} is {value!r:.{MOST_SHOWN}}"
    least, most = _ALLOWED[name]
    whole = isinstance(least, int)
    numeric = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    if not (numeric and least <= value <= most):
        kind = "a whole number" if whole else "a number"
        raise ProfileError(f"{shown}; it must be {kind} from {least:,.15g} to {most:,.15g}")
