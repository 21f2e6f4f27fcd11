"""Pairs of a prefill and a decode workload, which serve each request together.

A prefill replica computes the prompt and generates one token. It sends the KV cache to a decode replica, which
generates the answer. So neither side serves anything without the other, and they are not variants of each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn

PREFILL, DECODE = "prefill", "decode"
ROLES = (PREFILL, DECODE)
"""Allowed values of `Workload.role`; "": the workload does both."""


@dataclass(frozen=True)
class Pairs:
    """Roles of workloads, and which of them are pairs; [W] unless stated."""

    prefill: BoolColumn  # bool[W], computes prompts only
    decode: BoolColumn  # bool[W], generates only
    partner: IntColumn  # int64[W], row of the other side; -1: none
    problems: Mapping[int, str] = field(default_factory=dict)  # by row, why a workload with a role has no partner

    @classmethod
    def none(cls, rows: int) -> Pairs:
        """Return the pairs of workloads without a role."""
        no = np.zeros(rows, dtype=bool)
        return cls(no, no, np.full(rows, -1))

    def sides(self, among: BoolColumn) -> tuple[IntColumn, IntColumn]:
        """Return the rows of the prefill and of the decode workloads of all pairs whose sides are both `among`."""
        partner = self.partner
        prefill = np.flatnonzero(self.prefill & (partner >= 0) & among & among[partner])
        return prefill, partner[prefill]

    def share(self, column: FloatColumn) -> FloatColumn:
        """Return the column with the value of the other side where a side of a pair has none; float64[W]."""
        takes = np.isnan(column) & (self.partner >= 0)
        return np.where(takes, column[self.partner], column) if takes.any() else column
