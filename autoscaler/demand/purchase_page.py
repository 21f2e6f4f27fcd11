"""When to buy, and what: as cards of the page of demand."""

from __future__ import annotations

import math
from collections.abc import Iterator

from autoscaler.config.values import show_duration
from autoscaler.core.model.money import dollars
from autoscaler.demand.advice import Advice
from autoscaler.demand.capacity import BuyTrigger, pool_name
from autoscaler.demand.device_choice import DeviceChoice
from autoscaler.demand.purchase import PoolAdvice, Purchase
from autoscaler.lab.report.format import UNKNOWN, amount, count, share
from autoscaler.report import html
from autoscaler.report.html import escape

MOST_TRIGGERS = 100
MOST_POOLS = 20
MOST_DEVICES = 10


def purchase_cards(purchase: Purchase) -> Iterator[str]:
    """Yield the verdict with its triggers, and a card of each pool."""
    order = sorted(purchase.triggers, key=lambda each: not each.reached)
    said = _paragraph(purchase.sentence)
    said += "".join(_paragraph(note) for note in _notes(purchase, len(order) - MOST_TRIGGERS))
    yield html.section("When to buy", said + _triggers(order[:MOST_TRIGGERS]), "Triggers that ask for more GPUs.")
    yield from map(_pool, purchase.pools[:MOST_POOLS])


def _paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def _notes(purchase: Purchase, left: int) -> Iterator[str]:
    yield from purchase.further_notes
    if left > 0:
        yield f"{count(left, 'trigger')} more are in the JSON"
    if len(purchase.pools) > MOST_POOLS:
        yield f"{count(len(purchase.pools) - MOST_POOLS, 'pool')} more are in the JSON"


def _triggers(triggers: list[BuyTrigger]) -> str:
    if not triggers:
        return ""
    head = [("trigger", ""), ("reached", ""), ("value", ""), ("limit", ""), ("days", "of history it was judged by")]

    def rows() -> Iterator[str]:
        for each in triggers:
            show = share if each.kind == "pool_full" else _seconds
            texts = ("yes" if each.reached else "no", show(each.value), show(each.limit), amount(each.days))
            yield html.row(f"{each.kind.replace('_', ' ')}: {each.subject}", texts, each.sentence)

    return html.table(head, rows())


def _seconds(value: float) -> str:
    return UNKNOWN if math.isnan(value) else show_duration(round(value))


def _pool(pool: PoolAdvice) -> str:
    lacks = "How many GPUs are lacking is not known."
    if not math.isnan(pool.shortage):
        lacks = f"{amount(pool.shortage)} GPUs are lacking. The first advice that is enough is marked."
    is_known = bool(pool.pool[0] or pool.pool[1])
    body = _advice(pool.advice) + (_devices(pool.devices[:MOST_DEVICES]) if is_known else "")
    return html.section(
        f"Pool {pool_name(pool.pool)}" if is_known else "Services whose GPUs no metric names", body, lacks
    )


def _advice(advice: tuple[Advice, ...]) -> str:
    head = [("advice", "in order of what it costs"), ("", ""), ("GPUs", "gained"), ("a month", "saved; less: spent")]

    def rows() -> Iterator[str]:
        for each in advice:
            mark = "enough" if each.covers else "offered" if each.offered else "no"
            is_sum = not math.isnan(each.usd_per_month) and (each.offered or each.usd_per_month != 0)
            usd = dollars(each.usd_per_month) if is_sum else UNKNOWN
            gpus = amount(each.gpus) if each.offered or each.gpus else UNKNOWN
            yield html.row(each.kind.replace("_", " "), (mark, gpus, usd), each.sentence)

    return html.table(head, rows())


def _devices(devices: tuple[DeviceChoice, ...]) -> str:
    if not devices:
        return ""
    head = [("device", ""), ("GPUs", "that carry what is lacking"), ("an hour", "of one GPU"), ("a million tokens", "")]

    def rows() -> Iterator[str]:
        for each in devices:
            prices = (each.usd_per_hour, each.usd_per_million_tokens)
            texts = [amount(each.gpus), *(UNKNOWN if math.isnan(price) else f"${price:.3g}" for price in prices)]
            yield html.row(each.device, texts, "" if each.offered else f"not offered: {each.why_not}")

    return html.table(head, rows(), "The work of the pool on other devices.")
