"""Kinds of single values in policies: how each is written, parsed, bounded and shown.

A kind is part of the annotation of a model field. It states its allowed values once, for errors and for the reference.
Numbers become SI units (seconds, shares of 1) only here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from fnmatch import translate
from functools import lru_cache
from typing import Any, Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from cronsim import CronSim, CronSimError
from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from autoscaler.config.findings import unknown
from autoscaler.config.yaml import AmbiguousNumber

HOUR_S = 3600.0
DAY_S = 86_400.0
_UNITS_S = {"h": Decimal(3600), "m": Decimal(60), "s": Decimal(1), "ms": Decimal("0.001")}
_DURATION = re.compile(r"(?:(\d{1,9}(?:\.\d{1,6})?)(h|ms|m|s))", re.ASCII)
_RESOLUTION_S = Decimal("0.000001")
_QUANTITY = re.compile(r"(\d{1,9}(?:\.\d{1,9})?|\.\d{1,9})([mun]?)", re.ASCII)
_SUFFIXES = {"": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
# Numbers for other YAML parsers that are text in YAML 1.1.
_AMBIGUOUS = re.compile(r"\+[\d.]+|[-+]?(0\d[\d.]*|[\d.]+e[-+]?\d+)", re.ASCII | re.IGNORECASE)
_PERCENT = re.compile(r"(\d{1,6}(?:\.\d{1,6})?)%", re.ASCII)


class ValueKind(Protocol):
    """A kind of value."""

    @property
    def allowed(self) -> str:
        """The allowed values, in words."""

    def read(self, value: object) -> Any:
        """Convert a YAML value to the stored value. Raises ValueError with the problem only."""

    def show(self, value: Any) -> Any:
        """Convert a stored value to YAML, so that `read` returns the same value."""


class FieldKind:
    """Base class of kinds that pydantic uses to read a field."""

    def __get_pydantic_core_schema__(self, _source: object, _handler: GetCoreSchemaHandler) -> CoreSchema:
        read: Callable[[object], Any] = self.read  # type: ignore[attr-defined]

        def validate(value: object) -> Any:
            try:
                return read(value)
            except ValueError as error:
                raise PydanticCustomError("policy_value", "{problem}", {"problem": str(error)}) from error

        return core_schema.no_info_plain_validator_function(validate)


def read_duration(text: str) -> float:
    """Parse `150ms`, `30s`, `5m`, `1h30m` as seconds. Raises ValueError.

    Source: Go's time.ParseDuration, as Kubernetes uses it; units h, m, s, ms, each at most once and in this order,
    no sign, at most microseconds.
    """
    total = Decimal(0)
    end = 0
    units: list[str] = []
    for part in _DURATION.finditer(text):
        if part.start() != end:
            break
        total += Decimal(part[1]) * _UNITS_S[part[2]]
        units.append(part[2])
        end = part.end()
    if not text or end != len(text):
        bare = re.fullmatch(r"[-+]?\d+(\.\d+)?", text, re.ASCII)
        raise ValueError("a duration without a unit" if bare else "not a duration")
    if units != [unit for unit in _UNITS_S if unit in units]:
        raise ValueError("units out of order")
    if total % _RESOLUTION_S:
        raise ValueError("finer than a microsecond")
    return float(total)


def show_duration(duration_s: float) -> str:
    """Format seconds as `1h30m`, `5m`, `12.5ms`, so that `read_duration` returns the same number."""
    rest = Decimal(round(duration_s * 1_000_000)) * _RESOLUTION_S
    words = ""
    for unit in ("h", "m", "s"):
        count, rest = divmod(rest, _UNITS_S[unit])
        words += f"{count}{unit}" if count else ""
    if rest:
        words += f"{(rest * 1000).normalize():f}ms"
    return words or "0s"


@dataclass(frozen=True)
class Duration(FieldKind):
    """Seconds, written with a unit."""

    least_s: float = 0.001
    most_s: float = DAY_S
    auto: bool = False  # `auto` is allowed and stored as None

    @property
    def allowed(self) -> str:
        bounds = f"from {show_duration(self.least_s)} to {show_duration(self.most_s)}"
        return f"a duration with a unit, such as 150ms, 30s, 5m, 1h30m, {bounds}{', or auto' if self.auto else ''}"

    def read(self, value: object) -> float | None:
        if self.auto and value == "auto":
            return None
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ValueError("not a duration")
        duration_s = read_duration(value if isinstance(value, str) else str(value))
        _bounded(duration_s, self.least_s, self.most_s)
        return duration_s

    def show(self, value: float | None) -> str:
        return "auto" if value is None else show_duration(value)


@dataclass(frozen=True)
class Share(FieldKind):
    """A share 0..1, written as a number or in percent."""

    least: float = 0.0
    most: float = 1.0

    @property
    def allowed(self) -> str:
        return (
            f"a number from {self.least:g} to {self.most:g}, or a percentage from {self.least:.0%} to {self.most:.0%}"
        )

    def read(self, value: object) -> float:
        percent = _PERCENT.fullmatch(value) if isinstance(value, str) else None
        share = float(Decimal(percent[1]) / 100) if percent else _number(value)
        _bounded(share, self.least, self.most)
        return share

    def show(self, value: float) -> float:
        return value


@dataclass(frozen=True)
class Number(FieldKind):
    """A number, whole or not."""

    least: float
    most: float

    @property
    def allowed(self) -> str:
        return f"a number from {self.least:g} to {self.most:,.0f}"

    def read(self, value: object) -> float:
        number = _number(value)
        _bounded(number, self.least, self.most)
        return number

    def show(self, value: float) -> float:
        return value


@dataclass(frozen=True)
class Quantity:
    """A non-negative quantity in the format of Kubernetes."""

    most: float

    @property
    def allowed(self) -> str:
        return f"a quantity from 0 to {self.most:g}, such as 0, 0.05 or 50m"

    def read(self, value: object) -> float:
        match = None if isinstance(value, bool) else _QUANTITY.fullmatch(str(value))
        if match is None:
            raise ValueError("not a quantity")
        number = float(match[1]) * _SUFFIXES[match[2]]
        _bounded(number, 0, self.most)
        return number


@dataclass(frozen=True)
class Integer(FieldKind):
    """A whole number."""

    least: int
    most: int

    @property
    def allowed(self) -> str:
        return f"a whole number from {self.least:,} to {self.most:,}"

    def read(self, value: object) -> int:
        if isinstance(value, bool | AmbiguousNumber) or not isinstance(value, int):
            raise ValueError(_why_not_number(value) or "not a whole number")
        _bounded(value, self.least, self.most)
        return value

    def show(self, value: int) -> int:
        return value


@dataclass(frozen=True)
class StepLimit:
    """The largest change in one period: a fraction of the count at its start, or replicas. The other is None."""

    fraction: float | None = None
    replicas: int | None = None


@dataclass(frozen=True)
class StepKind(FieldKind):
    """A step, written `100%` or `4`."""

    most_fraction: float = 100.0
    most_replicas: int = 10_000

    @property
    def allowed(self) -> str:
        return f"a percentage from 1% to {self.most_fraction:.0%}, or a whole number from 1 to {self.most_replicas:,}"

    def read(self, value: object) -> StepLimit:
        percent = _PERCENT.fullmatch(value) if isinstance(value, str) else None
        if percent:
            fraction = float(Decimal(percent[1]) / 100)
            _bounded(fraction, 0.01, self.most_fraction)
            return StepLimit(fraction=fraction)
        if isinstance(value, bool | AmbiguousNumber) or not isinstance(value, int):
            raise ValueError(_why_not_number(value) or "neither a percentage nor a whole number")
        _bounded(value, 1, self.most_replicas)
        return StepLimit(replicas=value)

    def show(self, value: StepLimit) -> str | float:
        if value.fraction is None:
            return value.replicas or 0
        return f"{(Decimal(repr(value.fraction)) * 100).normalize():f}%"


@dataclass(frozen=True)
class Switch(FieldKind):
    """A boolean."""

    allowed: str = "true or false"

    def read(self, value: object) -> bool:
        if not isinstance(value, bool):
            raise ValueError("text, for it is in quotes" if value in ("true", "false") else "neither true nor false")
        return value

    def show(self, value: bool) -> bool:
        return value


@dataclass(frozen=True)
class Text(FieldKind):
    """Text of bounded length without control characters."""

    most_chars: int
    lines: bool = False  # line breaks and tabs are allowed

    @property
    def allowed(self) -> str:
        return f"text of 1 to {self.most_chars:,} characters{'' if self.lines else ' in one line'}"

    def read(self, value: object) -> str:
        if not isinstance(value, str):
            raise ValueError("not text")
        if not value.strip():
            raise ValueError("empty")
        if len(value) > self.most_chars:
            raise ValueError(f"{len(value):,} characters")
        if not all(char.isprintable() or (self.lines and char in "\n\t") for char in value):
            raise ValueError("characters that cannot be printed")
        return value

    def show(self, value: str) -> str:
        return value


@dataclass(frozen=True)
class Pattern(FieldKind):
    """Text that matches a regular expression."""

    expression: str
    allowed: str
    problem: str = "not a name"

    def read(self, value: object) -> str:
        if not isinstance(value, str) or not re.fullmatch(self.expression, value, re.ASCII):
            raise ValueError(self.problem)
        return value

    def show(self, value: str) -> str:
        return value


# A DNS label, as most names in Kubernetes.
NAME = Pattern(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", "1 to 63 of a-z, 0-9 and -, with a letter or digit at both ends")


NAMESPACES = Pattern(r"[a-z0-9*]([-a-z0-9*]{0,61}[a-z0-9*])?", "a namespace, in which * stands for any characters")


@lru_cache(maxsize=4096)
def namespace_pattern(name: str) -> re.Pattern[str]:
    """Compile `NAMESPACES`. `fnmatch` remembers only 256, and compiles others at each comparison."""
    return re.compile(translate(name))


@dataclass(frozen=True)
class OneOf(FieldKind):
    """One of several fixed words."""

    words: tuple[str, ...]

    @property
    def allowed(self) -> str:
        return ", ".join(self.words)

    def read(self, value: object) -> str:
        if not isinstance(value, str) or value not in self.words:
            several = isinstance(value, str) and len(self.words) > 1
            raise ValueError(unknown("unknown", self.words, str(value) if several else "")[0])
        return value

    def show(self, value: str) -> str:
        return value


@dataclass(frozen=True)
class Cron(FieldKind):
    """A cron expression."""

    allowed: str = (
        "a cron expression of five fields that occurs at least once: minute hour day-of-month month day-of-week, "
        'as "30 8 * * mon-fri"'
    )

    def read(self, value: object) -> str:
        if not isinstance(value, str) or len(value) > 100:
            raise ValueError("not a cron expression")
        fields = len(value.split())
        if fields != 5:  # six fields would add seconds, with different rules for daylight saving
            raise ValueError(f"a cron expression of {fields} field{'' if fields == 1 else 's'}")
        try:
            next(CronSim(value, datetime(2024, 1, 1, tzinfo=UTC)))
        except CronSimError as error:
            raise ValueError(f"{str(error).lower()} in a cron expression") from error
        except StopIteration:
            raise ValueError("a cron expression that never occurs") from None
        return " ".join(value.split())

    def show(self, value: str) -> str:
        return value


@dataclass(frozen=True)
class TimeZone(FieldKind):
    """A name of a time zone."""

    allowed: str = "a name of the IANA time zone database, such as Europe/Berlin or UTC"

    def read(self, value: object) -> str:
        if not isinstance(value, str) or not 0 < len(value) <= 64:
            raise ValueError("not a time zone")
        try:
            ZoneInfo(value)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ValueError(unknown("unknown time zone", available_timezones(), value)[0]) from None
        return value

    def show(self, value: str) -> str:
        return value


def _number(value: object) -> float:
    if isinstance(value, bool | AmbiguousNumber) or not isinstance(value, int | float):
        raise ValueError(_why_not_number(value) or "not a number")
    number = float(value) if abs(value) < 1e300 else math.inf  # larger integers do not fit a float
    if not math.isfinite(number):
        raise ValueError("not a finite number")
    return number


def _why_not_number(value: object) -> str:
    """Return why a value that looks like a number is none; "" if it does not look like one."""
    if isinstance(value, AmbiguousNumber) or (isinstance(value, str) and _AMBIGUOUS.fullmatch(value)):
        return "not a plain decimal number"
    plain = r"true|false|-?\d{1,20}(\.\d{1,20})?"
    return "text, for it is in quotes" if isinstance(value, str) and re.fullmatch(plain, value, re.ASCII) else ""


def _bounded(value: float, least: float, most: float) -> None:
    if value < least:
        raise ValueError("too small" if value >= 0 else "negative")
    if value > most:
        raise ValueError("too large")
