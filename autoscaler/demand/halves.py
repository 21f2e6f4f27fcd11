"""Both halves of a history: a draft is made from the first, and judged by the second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple
from zoneinfo import ZoneInfo

import numpy as np

from autoscaler.config.policy.schema import Policy
from autoscaler.core.model.spec import Spec
from autoscaler.demand.shape import Hours, hours_of
from autoscaler.report.history import FleetHistory, Span
from autoscaler.report.load import FleetLoad, Profiles, measure_load
from autoscaler.report.windows import with_windows

HALF_DAY_S = 43_200.0
"""A half of the history shorter than this is not replayed."""


class Half(NamedTuple):
    """One half of the history, with the speed of replicas as that half shows it."""

    load: FleetLoad
    profiles: Profiles
    hours: Hours
    policies: Sequence[Policy] = ()  # [W], of today; (): none has a pre-warm window

    @property
    def windows(self) -> list[int]:
        """Return how many pre-warm windows the policy of each service has today; [W]."""
        return [len(each.spec.prewarm) for each in self.policies] or [0] * self.load.shape[1]


def halves(
    history: FleetHistory, spec: Spec, zone: ZoneInfo, policies: Sequence[Policy] = ()
) -> tuple[Half, Half] | None:
    """Return both halves of the history, each with the speed that it shows alone; None: they are too short.

    policies: [W], of today, whose pre-warm windows count; (): none has one.
    """
    middle = history.span.steps // 2
    if middle * history.span.step_s < HALF_DAY_S:
        return None
    unknown = np.full(len(history.services), np.nan)

    def half(begin: int, end: int) -> Half:
        load, profiles = measure_load(_part(history, begin, end), spec, unknown)
        load = with_windows(load, policies, profiles.cold_start_s)
        return Half(load, profiles, hours_of(load, zone), policies)

    return half(0, middle), half(middle, history.span.steps)


def _part(history: FleetHistory, first: int, last: int) -> FleetHistory:
    span = history.span
    columns: Mapping[str, np.ndarray] = {name: values[first:last] for name, values in history.columns.items()}
    return FleetHistory(Span(span.start_s + first * span.step_s, span.step_s, last - first), history.services, columns)
