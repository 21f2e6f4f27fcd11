"""The requests of one service: its router, its gateway, and the engines of all replicas that serve them.

Usually one case has them to itself. Variants of a service share them: replicas of several profiles behind one router.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from autoscaler.core.table.columns import IntColumn
from autoscaler.lab.replay.case import Case
from autoscaler.lab.replay.engine import kernel
from autoscaler.lab.replay.engine.state import EngineParams, EngineState, empty_gateway

FIRST_ROWS = 16


class Front:
    """Routes requests to the serving replicas of all `cases`, which have one trace. Case n has the engine n."""

    def __init__(self, cases: Sequence[Case]) -> None:
        self.engines = tuple(
            EngineParams.from_profile(case.profile, case.patience_s, case.router_weight) for case in cases
        )
        self.state = EngineState.create(cases[0].trace, max(case.profile.max_num_seqs for case in cases), FIRST_ROWS)
        self.gateway = empty_gateway()
        self._least_requests = cases[0].router == "least-requests"
        self._serving_by_case = [np.empty(0, np.int64) for _ in cases]  # rows of `state`
        self._serving = np.empty(0, np.int64)
        self._next_arrival_s = -math.inf
        self._free = list(range(FIRST_ROWS))[::-1]

    @property
    def is_done(self) -> bool:
        """Whether all requests have arrived and none waits or runs, as far as engines are advanced."""
        if int(self.gateway["arrived"][0]) < len(self.state.arrival_s) or self.gateway["held"][0]:
            return False
        return not self.state.replicas["held"].any()

    def advance(self, to_s: float) -> None:
        """Route the requests that arrive before `to_s`."""
        if to_s > self._next_arrival_s:
            self._next_arrival_s = kernel.arrive(
                self.state, self.engines, self.gateway, self._serving, to_s, self._least_requests
            )

    def route_to(self, case: int, serving: IntColumn) -> None:
        """Set the serving replicas of a case, rows of `state`."""
        self._serving_by_case[case] = serving
        self._serving = np.concatenate(self._serving_by_case)

    def release(self, now_s: float) -> None:
        """Route the requests that the gateway holds, if a replica serves; drop those whose client has left."""
        if self.gateway["held"][0]:
            kernel.release(self.state, self.engines, self.gateway, self._serving, now_s, self._least_requests)

    def start_engine(self, case: int, now_s: float) -> int:
        """Start an engine of a case, and return its row."""
        if not self._free:
            rows = len(self.state.replicas)
            self.state = self.state.with_rows(2 * rows)
            self._free = list(range(rows, 2 * rows))[::-1]
        row = self._free.pop()
        self.state.start_replica(row, now_s, case)
        return row

    def stop_engine(self, row: int) -> None:
        """Drop the requests of an engine, and free its row."""
        kernel.abort(self.state, row)
        self._free.append(row)
