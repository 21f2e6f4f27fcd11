"""Tokens that an answer takes, on average over many minutes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.core.model.observation import ObservedLoad
from autoscaler.core.readings.rates import MIN_PER_S
from autoscaler.core.table.columns import Columns, FloatColumn

WINDOW_S = 1200.0
"""Time constant of tokens per request: lengths drift over tens of minutes, and few requests must not make them jump."""


@dataclass(frozen=True)
class AnswerLengths(Columns):
    """Answers of each workload; float64[W]."""

    written_tokens: FloatColumn  # generated tokens over many minutes, older ones fading
    served_requests: FloatColumn  # requests they belong to, fading alike

    @classmethod
    def blank(cls, rows: int) -> AnswerLengths:
        return cls.filled(rows, 0.0)

    @property
    def output_tokens(self) -> FloatColumn:
        """Generated tokens per request; NaN: not a whole request was seen."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            return np.where(self.served_requests >= 1, self.written_tokens / self.served_requests, np.nan)


def update(before: AnswerLengths, elapsed_s: FloatColumn, load: ObservedLoad) -> AnswerLengths:
    """Add up generated tokens and the requests they belong to, older ones fading.

    A request counts half when it begins and half when it ends, as those in between have written half of their tokens on
    average; without the counter of either, the other counts whole. While nothing moves nothing fades.
    """
    finished_per_s, first_tokens_per_s = load.finished_per_s, load.first_tokens_per_s
    tokens_per_s = load.generation_tokens_per_s
    requests_per_s = np.where(np.isnan(finished_per_s), first_tokens_per_s, finished_per_s)
    requests_per_s = (requests_per_s + np.where(np.isnan(first_tokens_per_s), finished_per_s, first_tokens_per_s)) / 2
    moving = (tokens_per_s > MIN_PER_S) & (requests_per_s >= 0) & (elapsed_s > 0)
    step_s = np.where(moving, elapsed_s, 0.0)
    fade = np.exp(-step_s / WINDOW_S)
    return AnswerLengths(
        before.written_tokens * fade + np.where(moving, tokens_per_s, 0.0) * step_s,
        before.served_requests * fade + np.where(moving, requests_per_s, 0.0) * step_s,
    )
