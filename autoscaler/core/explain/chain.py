"""The next need of a workload and its links, as plain values: the reader of an explanation has the clock."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from autoscaler.core.explain.row import TickRow
from autoscaler.core.model.chain import Cause, Link


class LinkStart(NamedTuple):
    """When a link starts."""

    link: str  # published name of the Link
    in_s: float  # seconds from now; below 0: it has started


@dataclass(frozen=True)
class NextNeed:
    """A pre-warm window or a rise that is forecast, for which replicas are missing, and what begins when for it."""

    cause: str  # published name of the Cause
    window: str  # name of the window; "": it has none
    in_s: float  # seconds until it begins; below 0: a rise is still awaited
    replicas: int  # that must be ready then
    links: tuple[LinkStart, ...]  # that are needed, in their order
    places: int  # replicas for which places on nodes are requested now


def next_need(row: TickRow) -> NextNeed | None:
    """Return the next need of a workload for which replicas are missing; None: there is none soon."""
    chain, now_s, names = row.decision.chain, row.inp.now_s, row.inp.schedule.names
    due_s = float(chain.due_s[row.row])
    if math.isnan(due_s):
        return None
    starts = {link: float(chain.starts_s[link, row.row]) - now_s for link in Link}
    return NextNeed(
        cause=Cause(chain.cause[row.row]).published,
        window=names[chain.window[row.row]] if chain.window[row.row] >= 0 else "",
        in_s=due_s - now_s,
        replicas=math.ceil(chain.replicas[row.row]),
        links=tuple(LinkStart(link.published, in_s) for link, in_s in starts.items() if not math.isnan(in_s)),
        places=math.ceil(chain.places[row.row]),
    )
