"""When to buy, and what: as a part of the JSON document, and on the terminal."""

from __future__ import annotations

import math
from typing import Any

from rich.console import Console
from rich.text import Text

from autoscaler.demand.capacity import pool_name
from autoscaler.demand.document import plain
from autoscaler.demand.purchase import PoolAdvice, Purchase
from autoscaler.lab.report.format import UNKNOWN, amount, printable

MOST_TRIGGERS = 10
MOST_DEVICES = 5


def purchase_document(purchase: Purchase) -> dict[str, Any]:
    """Return triggers and advice as a mapping; its keys are listed in docs/reference/demand.md."""
    return {
        "sentence": purchase.sentence,
        "source": purchase.source,
        "hours": purchase.hours,
        "limits": purchase.limits._asdict(),
        "triggers": [
            {name: plain(value) for name, value in each._asdict().items() if name != "pool"} | _pool(each.pool)
            for each in purchase.triggers
        ],
        "pools": [
            {
                **_pool(each.pool),
                "shortage_gpus": plain(each.shortage),
                "advice": [{name: plain(value) for name, value in one._asdict().items()} for one in each.advice],
                "devices": [{name: plain(value) for name, value in one._asdict().items()} for one in each.devices],
            }
            for each in purchase.pools
        ],
        "notes": list(purchase.notes),
    }


def _pool(pool: tuple[str, str, str]) -> dict[str, str]:
    return dict(zip(("resource", "product", "nodes"), pool, strict=True))


def print_purchase(purchase: Purchase, console: Console) -> None:
    """Print the sentence, what was reached, and the advice for pools that are short."""
    console.print(Text("\n" + printable(f"When to buy: {purchase.sentence}"), style="bold"))
    reached = [each for each in purchase.triggers if each.reached]
    for trigger in reached[:MOST_TRIGGERS]:
        console.print(Text(printable(f"  {trigger.sentence}")))
    if len(reached) > MOST_TRIGGERS:
        console.print(Text(f"  and {len(reached) - MOST_TRIGGERS} more in the document"))
    for pool in purchase.pools:
        if pool.shortage > 0:
            _print_pool(pool, console)
    for note in purchase.further_notes:
        console.print(Text(printable(f"note: {note}")))


def _print_pool(pool: PoolAdvice, console: Console) -> None:
    title = f"{pool_name(pool.pool)}: {amount(pool.shortage)} GPUs are lacking"
    console.print(Text("\n" + printable(title), style="bold"))
    for number, each in enumerate(pool.advice, 1):
        mark = "enough" if each.covers else "offered" if each.offered else "no"
        usd = each.usd_per_month
        money = "" if math.isnan(usd) or not usd else f" ({'saves' if usd > 0 else 'costs'} ${abs(usd):,.0f} a month)"
        console.print(Text(printable(f"  {number}. {mark}: {each.sentence}{money}")))
    for device in [each for each in pool.devices if each.offered][:MOST_DEVICES]:
        tokens = device.usd_per_million_tokens
        price = UNKNOWN if math.isnan(tokens) else f"${tokens:.3g}"
        console.print(Text(f"     {amount(device.gpus)} {device.device}: {price} a million tokens"))
