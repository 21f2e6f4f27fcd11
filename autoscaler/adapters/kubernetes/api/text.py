"""Text from and for the API server: bounded lines, joined problems, and times."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

MESSAGE_LIMIT = 240  # characters of a message of the cluster
PROBLEM_LIMIT = 800  # characters: every annotation wrong at once fits


def one_line(reason: str, message: str | None) -> str:
    """Join a reason and a message of the cluster into one bounded line of printable text."""
    text = ": ".join(part for part in (reason, message or "") if part)
    text = " ".join("".join(letter if letter.isprintable() else " " for letter in text[: 4 * MESSAGE_LIMIT]).split())
    return text if len(text) <= MESSAGE_LIMIT else text[: MESSAGE_LIMIT - 3] + "..."


def join_problems(problems: Iterable[str]) -> str:
    """Join problems into one bounded line; empty ones are left out."""
    text = "; ".join(problem for problem in problems if problem)
    return text if len(text) <= PROBLEM_LIMIT else text[: PROBLEM_LIMIT - 3] + "..."


def micro_time(wall_s: float) -> str:
    """Format a Unix time as Kubernetes' MicroTime: UTC, always with six digits."""
    return datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
