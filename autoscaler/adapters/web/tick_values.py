"""Values of a tick that metrics, table and page share."""

from __future__ import annotations

import numpy as np

from autoscaler.core.explain.sentence import binding_stages
from autoscaler.core.model.diagnosis import Diagnosis
from autoscaler.core.model.fleet import PendingClass, WorkloadRef
from autoscaler.core.model.types import Decision, Recommender, Signal, Stage
from autoscaler.core.table.columns import FloatColumn, IntColumn
from autoscaler.ports import Change, ChangeStatus, Outcome

MAX_TEXT = 253  # the longest name of a Kubernetes object
RECOMMENDERS = tuple(recommender.published for recommender in Recommender)
SIGNALS = tuple(signal.published for signal in Signal)
STAGES = tuple(stage.published for stage in Stage)
DIAGNOSES = tuple(diagnosis.state for diagnosis in Diagnosis)
PENDING_CLASSES = tuple(pending.published for pending in PendingClass)
NONE = -1  # no signal recommends anything; no stage changed the count
REPEATED = (ChangeStatus.RECORDED, ChangeStatus.PUBLISHED)  # proposed on every tick until another component applies it


def bounded(text: str, limit: int = MAX_TEXT) -> str:
    """Sanitize text from outside: at most `limit` characters, all printable, encodable as UTF-8."""
    if len(text) <= limit and text.isprintable():  # lone surrogates and control characters are not printable
        return text
    shown = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text[:limit])
    return shown if len(text) <= limit else shown[:-1] + "…"


def strongest_signal(recommendations: FloatColumn) -> IntColumn:
    """Return the signal of each workload's largest recommendation, NONE without one; recommendations: float64[S, W]."""
    known = ~np.isnan(recommendations)
    return np.where(known.any(axis=0), np.argmax(np.where(known, recommendations, -np.inf), axis=0), NONE)


def binding_stage(decision: Decision) -> IntColumn:
    """Return the last stage that changed each workload's count, NONE where no stage did."""
    return np.nan_to_num(binding_stages(decision), nan=NONE).astype(np.int64)


class NewChanges:
    """Filters out changes that the last tick proposed already: they wait for KEDA, or dry-run never applies them."""

    def __init__(self) -> None:
        self._before: frozenset[tuple[WorkloadRef, int]] = frozenset()

    def select(self, outcomes: tuple[Outcome, ...]) -> list[Outcome]:
        """Return outcomes that the last tick did not have yet. Call once per tick."""
        proposed = frozenset(_target(outcome.change) for outcome in outcomes if outcome.status in REPEATED)
        before, self._before = self._before, proposed
        return [
            outcome for outcome in outcomes if outcome.status not in REPEATED or _target(outcome.change) not in before
        ]


def _target(change: Change) -> tuple[WorkloadRef, int]:
    return change.ref, change.after
