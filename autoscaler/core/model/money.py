"""Prices, and sums of money that say what they leave out. Every total that is shown is a `Money`."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

MOST_NAMED = 3
"""Names in one sentence; the rest is counted."""


class Price(NamedTuple):
    """What something costs in an hour."""

    usd: float  # NaN: unknown
    why: str = ""  # why it is unknown, or why it may be too high; "": it is known
    source: str = ""  # "list", "stated" or "measured"; "": not told

    def times(self, count: float) -> Price:
        """Return the price of several. count: NaN: unknown."""
        if math.isnan(count) and not math.isnan(self.usd):
            return Price(math.nan, "the devices of a replica are not known")
        return self._replace(usd=self.usd * count)


class UnitCosts(NamedTuple):
    """What served work costs; NaN: unknown, or there was none."""

    usd_per_million_tokens: float  # generated tokens
    usd_per_thousand_requests: float  # answered requests

    @classmethod
    def of(cls, usd: float, tokens: float, requests: float) -> UnitCosts:
        """Divide a sum by what it has served. tokens: generated. requests: answered."""
        return cls(1e6 * usd / tokens if tokens > 0 else math.nan, 1e3 * usd / requests if requests > 0 else math.nan)


@dataclass(frozen=True)
class Money:
    """A sum over named parts."""

    usd: float  # of the parts with a price; 0: none has one
    parts: int
    unpriced: tuple[tuple[str, str], ...] = ()  # name of each part without a price, and why
    too_high: tuple[tuple[str, str], ...] = ()  # name of each part that may cost less, and why

    @classmethod
    def sum(cls, parts: Iterable[tuple[str, Price]]) -> Money:
        """Add up the parts, each with its name and cost."""
        named = [(name, price) for name, price in parts]
        return cls(
            math.fsum(price.usd for _, price in named if not math.isnan(price.usd)),
            len(named),
            tuple((name, price.why or "unknown") for name, price in named if math.isnan(price.usd)),
            tuple((name, price.why) for name, price in named if price.why and not math.isnan(price.usd)),
        )

    @property
    def priced(self) -> int:
        return self.parts - len(self.unpriced)

    def say(self, what: str = "service", per: str = "") -> str:
        """Return the sum in words: "$8,100 for 39 of 41 services; 2 without a price: a (why), b (why)".

        what: a part. per: follows the amount, such as "an hour".
        """
        what += "s" * (self.parts != 1)
        if not self.parts:
            return f"no {what}"
        if not self.priced:
            return f"no cost is known for {self.parts:,} {what}: {_name(self.unpriced)}"
        amount = f"{'at most ' if self.too_high else ''}{dollars(self.usd)}{f' {per}' if per else ''}"
        of = f"{self.priced:,} of {self.parts:,}" if self.unpriced else f"{self.parts:,}"
        words = f"{amount} for {of} {what}"
        if self.unpriced:
            words += f"; {len(self.unpriced):,} without a price: {_name(self.unpriced)}"
        if self.too_high:
            words += f"; {len(self.too_high):,} may cost less: {_name(self.too_high)}"
        return words

    def to_json(self) -> dict[str, object]:
        """Return plain values; the sum is null if no part has a price."""
        return {
            "usd": round(self.usd, 6) if self.priced else None,
            "priced": self.priced,
            "parts": self.parts,
            "unpriced": [{"name": name, "why": why} for name, why in self.unpriced[:100]],
            "too_high": [{"name": name, "why": why} for name, why in self.too_high[:100]],
        }


def dollars(usd: float) -> str:
    """Format an amount: `$8,100`, `$12.34`, `$0.0123`; `–`: unknown."""
    if math.isnan(usd):
        return "–"
    if abs(usd) >= 100:
        return f"${usd:,.0f}"
    return f"${usd:.2f}" if abs(usd) >= 0.1 or usd == 0 else f"${usd:.3g}"


def _name(parts: tuple[tuple[str, str], ...]) -> str:
    """Name a few parts with their reasons; parts with one reason are named together."""
    by_reason: dict[str, list[str]] = {}
    for name, why in parts:
        by_reason.setdefault(why, []).append(name)
    said = []
    for why, names in list(by_reason.items())[:MOST_NAMED]:
        more = f" and {len(names) - MOST_NAMED:,} more" if len(names) > MOST_NAMED else ""
        said.append(f"{', '.join(names[:MOST_NAMED])}{more} ({why})")
    rest = len(by_reason) - MOST_NAMED
    return ", ".join(said) + (f" and others for {rest} more reasons" if rest > 0 else "")
