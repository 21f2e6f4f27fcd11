"""The weights of models as rows of the API, and as series."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from autoscaler.adapters.web.tick_values import bounded
from autoscaler.core.model.fleet import Fleet
from autoscaler.core.model.weights import Weights
from autoscaler.core.table.columns import BoolColumn

FIELDS = {
    "source": "where the weights come from: `hf://ORGANISATION/NAME@REVISION`",
    "workloads": "workloads that load them: `NAMESPACE/NAME`, at most 20",
    "size_bytes": "their size, as stated or as nodes report it; null: unknown",
    "steered": "pods of all these workloads prefer nodes that hold them",
    "nodes_held": "nodes that hold them",
    "nodes_wished": "nodes that should hold them by the plan; null: nothing is planned",
    "nodes_waiting": "nodes that will fetch them",
    "nodes_fetching": "nodes that fetch them",
    "nodes_failed": "nodes that cannot fetch them, and try again",
    "failures": "at most five of these nodes: `node`, `cause` in one word, `text`",
    "places_free": "free places for pods of these workloads; null: no node says what it holds",
    "places_held": "those on nodes that hold the weights",
    "replicas_missing": "needed replicas without a place on a node that should hold them",
    "groups": "node groups with free places or holders, at most 20: `product`, `nodes`, `zone`, `nodes_total`, "
    "`nodes_held`, `places_free`, `places_held`",
}
COLUMNS = ("nodes_held", "nodes_wished", "nodes_waiting", "nodes_fetching", "nodes_failed", "replicas_missing")
MOST = 20  # workloads and node groups of one row


def summary(weights: Weights | None) -> dict[str, Any]:
    """Return the fields other than the rows."""
    wishes = weights.wishes if weights is not None else None
    return {
        "total": len(weights.sources) if weights is not None else 0,
        "nodes": weights.nodes if weights is not None else 0,
        "budget_bytes": weights.budget_bytes if weights is not None else 0.0,
        "planned": wishes is not None,
        "published": wishes is not None and wishes.is_published,
        "writes_last_hour": wishes.writes_last_hour if wishes is not None else 0,
        "problem": bounded(wishes.problem) if wishes is not None else "",
    }


def rows(fleet: Fleet, most: int) -> Iterator[dict[str, Any]]:
    """Yield the first sources with the fields of `FIELDS`. NaN becomes null when encoded."""
    weights = fleet.weights
    if weights is None:
        return
    of_place = weights.source[weights.places.workload]
    for place, source in enumerate(weights.sources[:most]):
        own = np.flatnonzero(weights.source == place)
        status = weights.status[place] if weights.status else None
        sizes = weights.size_bytes[own]
        places = of_place == place
        known = weights.nodes > 0
        yield {
            "source": bounded(source, 512),
            "workloads": [bounded(str(fleet.workloads[row].ref)) for row in own[:MOST].tolist()],
            "size_bytes": float(np.fmax.reduce(sizes, initial=np.nan)),
            "steered": bool(weights.steered[own].all()),
            "nodes_held": status.held if status is not None else 0,
            "nodes_wished": status.wished if status is not None else None,
            "nodes_waiting": status.waiting if status is not None else 0,
            "nodes_fetching": status.fetching if status is not None else 0,
            "nodes_failed": status.failed if status is not None else 0,
            "failures": [
                {"node": bounded(each.node), "cause": bounded(each.cause), "text": bounded(each.text)}
                for each in (status.failures if status is not None else ())
            ],
            "places_free": float(weights.places.free[places].sum()) if known else None,
            "places_held": float(weights.places.free_held[places].sum()) if known else None,
            "replicas_missing": status.missing if status is not None else 0.0,
            "groups": _groups(fleet, weights, places),
        }


def _groups(fleet: Fleet, weights: Weights, chosen: BoolColumn) -> list[dict[str, Any]]:
    """Return the node groups of a source. Those of several workloads are listed once."""
    places = weights.places
    found: dict[int, dict[str, Any]] = {}
    for row in np.flatnonzero(chosen & ((places.free > 0) | (places.nodes_held > 0))).tolist():
        group = int(places.group[row])
        if group not in found and len(found) < MOST:
            described = fleet.groups.groups[group]
            found[group] = {
                "product": bounded(described.product),
                "nodes": bounded(described.nodes),
                "zone": bounded(described.zone),
                "nodes_total": float(places.nodes[row]),
                "nodes_held": float(places.nodes_held[row]),
                "places_free": float(places.free[row]),
                "places_held": float(places.free_held[row]),
            }
    return list(found.values())
