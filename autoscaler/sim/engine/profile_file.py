"""A profile as a JSON file: what `simulate fit` writes and `--profile FILE` reads."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from autoscaler.sim.engine.profiles import NAMES, Offer, Profile, named

MOST_BYTES = 64 << 10
GPUS = "gpus"
_NUMBERS = {"step_s", "sequence_s", "kv_token_s", "prompt_token_s", "weight_bytes"}
_REQUIRED = {field.name for field in fields(Profile)} - {
    "max_batched_tokens",
    "block_size",
    "max_queued_requests",
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
        raise ProfileError(str(error) if known else f"{error}, or a file of `simulate fit` (*.json)") from None


def write(offer: Offer) -> str:
    """Return the text of a profile file."""
    return json.dumps({GPUS: offer.gpus, **asdict(offer.profile)}, indent=2) + "\n"


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
    except ValueError as error:
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
        _check(path, name, value)
    try:
        return Offer(Profile(**content), float(gpus))
    except ValueError as error:
        raise ProfileError(f"{path}: {error}") from error


def _check(path: Path, name: str, value: Any) -> None:
    if name == "max_queued_requests" and value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ProfileError(f"{path}: {name} is {value!r}, it must be a number, 0 or more")
    if name not in _NUMBERS | {GPUS} and not isinstance(value, int):
        raise ProfileError(f"{path}: {name} is {value!r}, it must be a whole number")
    if name in (GPUS, "step_s") and value <= 0:
        raise ProfileError(f"{path}: {name} is {value!r}, it must be above 0")
