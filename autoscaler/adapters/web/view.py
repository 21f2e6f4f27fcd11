"""Small readings of a tick that metrics, table and page share. Nothing here knows HTTP or a wire format."""

from __future__ import annotations

import numpy as np

from autoscaler.core.explain.sentence import binding_stages
from autoscaler.core.model import names
from autoscaler.core.model.fleet import WorkloadRef
from autoscaler.core.model.types import Decision, Signal, Stage
from autoscaler.core.table.columns import FloatColumn, IntColumn
from autoscaler.ports import Change, ChangeStatus, Outcome

MAX_TEXT = 253  # the longest name of a Kubernetes object
SIGNALS = tuple(names.SIGNALS[signal] for signal in Signal)
STAGES = tuple(names.STAGES[stage] for stage in Stage)
NONE = -1  # no signal had an opinion; no stage changed the count
WISHES = (ChangeStatus.RECORDED, ChangeStatus.PUBLISHED)  # said anew with every tick until somebody else makes it so


def bounded(text: str, limit: int = MAX_TEXT) -> str:
    """Make text from outside fit to be shown: at most `limit` characters, none unprintable, encodable as UTF-8."""
    if len(text) <= limit and text.isprintable():  # lone surrogates and control characters are not printable
        return text
    shown = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text[:limit])
    return shown if len(text) <= limit else shown[:-1] + "…"


def strongest_signal(asks: FloatColumn) -> IntColumn:
    """Return the row of each workload's largest ask, NONE without one; asks: float64[S, W]."""
    known = ~np.isnan(asks)
    return np.where(known.any(axis=0), np.argmax(np.where(known, asks, -np.inf), axis=0), NONE)


def binding_stage(decision: Decision) -> IntColumn:
    """Return the last stage that changed each workload's count, NONE where no stage did."""
    return np.nan_to_num(binding_stages(decision), nan=NONE).astype(np.int64)


class Wishes:
    """Tells a change that is new from one that only still waits for its owner (KEDA, or in dry-run nobody)."""

    def __init__(self) -> None:
        self._before: frozenset[tuple[WorkloadRef, int]] = frozenset()

    def unseen(self, outcomes: tuple[Outcome, ...]) -> list[Outcome]:
        """Return the outcomes without the wishes that the tick before had already; call once per tick."""
        wishes = frozenset(_wish(outcome.change) for outcome in outcomes if outcome.status in WISHES)
        seen, self._before = self._before, wishes
        return [outcome for outcome in outcomes if outcome.status not in WISHES or _wish(outcome.change) not in seen]


def _wish(change: Change) -> tuple[WorkloadRef, int]:
    return change.ref, change.after
