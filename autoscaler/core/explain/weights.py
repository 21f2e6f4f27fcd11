"""Words about the weights of a workload: where they are, where they should be, and what prevents it."""

from __future__ import annotations

import math
import re

import numpy as np

from autoscaler.core.explain.format import count
from autoscaler.core.explain.row import TickRow
from autoscaler.core.model.weights import NO_SOURCE, SourceStatus

_FLOATING = re.compile(r"hf://[^@]*@(?![0-9a-f]{40}$).*")  # a branch or a tag, not a commit


def describe(row: TickRow) -> str:
    """Say which nodes hold the weights of a workload, without a full stop; "": their source is not known."""
    weights = row.inp.fleet.weights
    if weights is None or weights.source[row.row] == NO_SOURCE:
        return ""
    source = int(weights.source[row.row])
    size = float(weights.size_bytes[row.row])
    name = weights.sources[source] + ("" if math.isnan(size) else f" ({size / 1e9:.3g} GB)")
    moves = ["its revision may move, so replicas may differ"] if _FLOATING.fullmatch(weights.sources[source]) else []
    if not weights.nodes:
        return "; ".join([f"{name}: no node says what it holds", *moves])
    own = weights.places.workload == row.row
    nodes, held, free, free_held = (
        float(np.sum(column[own]))
        for column in (
            weights.places.nodes,
            weights.places.nodes_held,
            weights.places.free,
            weights.places.free_held,
        )
    )
    words = [f"{name}: {held:g} of {nodes:g} nodes hold them, with {free_held:g} of {free:g} free places"]
    words += _plan(weights.status[source]) if weights.status else []
    return "; ".join(words + moves)


def _plan(status: SourceStatus) -> list[str]:
    """Word the plan for a source, and what agents say about it."""
    words = [f"{status.wished} nodes should" if status.wished != 1 else "1 node should"] * (status.wished is not None)
    busy = status.waiting + status.fetching
    if busy:
        words.append(f"{busy} {'are' if busy != 1 else 'is'} about to fetch them")
    if status.failed:
        first = status.failures[0] if status.failures else None
        why = f" ({first.node}: {first.cause}{': ' * bool(first.text)}{first.text})" if first is not None else ""
        words.append(f"{status.failed} cannot fetch them{why}")
    if status.missing:
        words.append(f"{count(np.ceil(status.missing))} without a place on a node that should hold them")
    return words
