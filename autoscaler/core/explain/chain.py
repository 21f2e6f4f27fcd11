"""The next pre-warm window of a workload and its links, as plain values: the reader of an explanation has the clock."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from autoscaler.core.explain.row import Row
from autoscaler.core.model.chain import Link
from autoscaler.core.model.names import LINKS


class LinkStart(NamedTuple):
    """When a link starts."""

    link: str  # published name of the Link
    in_s: float  # seconds from now; below 0: it has started


@dataclass(frozen=True)
class NextWindow:
    """A window for which replicas are missing, and what begins when for it."""

    window: str  # its name; "": it has none
    in_s: float  # seconds until it begins
    replicas: int  # that must be ready then
    links: tuple[LinkStart, ...]  # that are needed, in their order
    places: int  # replicas for which places on nodes are requested now


def next_window(row: Row) -> NextWindow | None:
    """Return the next window of a workload for which replicas are missing; None: there is none soon."""
    chain, now_s, names = row.decision.chain, row.inp.now_s, row.inp.schedule.names
    due_s = float(chain.due_s[row.row])
    if math.isnan(due_s):
        return None
    starts = {link: float(chain.starts_s[link, row.row]) - now_s for link in Link}
    return NextWindow(
        window=names[chain.window[row.row]] if chain.window[row.row] >= 0 else "",
        in_s=due_s - now_s,
        replicas=math.ceil(chain.replicas[row.row]),
        links=tuple(LinkStart(LINKS[link], in_s) for link, in_s in starts.items() if not math.isnan(in_s)),
        places=math.ceil(chain.places[row.row]),
    )
