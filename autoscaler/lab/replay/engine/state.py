"""The columns of the compiled engine model: requests, replicas and the gateway.

`kernel` changes them, `run` reads them. Replicas and requests are records, so that compiled code passes one replica as
one pointer. Times are seconds since the start of the trace; -1 stands for no request.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from autoscaler.core.table.columns import FloatColumn, IntColumn
from autoscaler.lab.replay.case import Trace
from autoscaler.sim.engine.metrics import REQUEST_BOUNDS_S, TOKEN_GAP_BOUNDS_S, TTFT_BOUNDS_S
from autoscaler.sim.engine.profiles import Profile

Records = npt.NDArray[Any]

REQUEST = np.dtype(
    [
        ("submitted_s", "f8"),  # at the engine
        ("since_s", "f8"),  # begin of its wait: submission, or preemption after its first token
        ("scheduled_s", "f8"),  # first scheduling
        ("first_s", "f8"),  # first token; infinity: none
        ("end_s", "f8"),  # last token; infinity: never finished
        ("generated", "i4"),  # output tokens at the last prefill
        ("next", "i4"),  # next request in the same queue; once it is finished, the engine that served it
    ],
    align=True,
)

REPLICA = np.dtype(
    [
        ("clock_s", "f8"),  # end of the last step, at most one step behind the clock of the run
        ("no_event_before_s", "f8"),  # no request ends or is scheduled before this time
        ("step_end_s", "f8"),  # end of the step in progress, if its batch is fixed; else NaN
        ("emptied_s", "f8"),  # time at which the last request left
        ("steps", "i8"),
        ("next_end", "i8"),  # number of the step in which the next decoding request ends
        ("decode_tokens", "i8"),  # KV tokens of the decoding requests
        ("prefill_tokens", "i8"),  # KV tokens of requests in prefill
        ("decoding", "i8"),  # number of requests, as the next four
        ("prefilling", "i8"),
        ("waiting", "i8"),
        ("preempted", "i8"),
        ("held", "i8"),  # number of all requests inside
        ("waiting_head", "i8"),
        ("waiting_tail", "i8"),
        ("preempted_head", "i8"),
        # Counters of the server; see `sim.engine.metrics.EngineMetrics`.
        ("prompt_tokens", "i8"),
        ("generation_tokens", "i8"),
        ("finished", "i8"),
        ("first_tokens", "i8"),
        ("preemptions", "i8"),
        ("itl_sum_s", "f8"),
        ("ttft_sum_s", "f8"),
        ("engine", "i8"),  # index of its constants
    ],
    align=True,
)

COUNTERS = (
    "prompt_tokens",
    "generation_tokens",
    "finished",
    "first_tokens",
    "preemptions",
    "itl_sum_s",
    "ttft_sum_s",
)

GATEWAY = np.dtype(
    [
        ("arrived", "i8"),  # requests so far, which is the row of the next one
        ("turn", "i8"),  # next position of round robin
        ("head", "i8"),
        ("tail", "i8"),
        ("held", "i8"),  # number of requests held
    ],
    align=True,
)

TTFT_BOUNDS = np.array([*TTFT_BOUNDS_S, np.inf])
GAP_BOUNDS = np.array([*TOKEN_GAP_BOUNDS_S, np.inf])  # for single gaps, and for the mean gap of a request
REQUEST_BOUNDS = np.array([*REQUEST_BOUNDS_S, np.inf])

HISTOGRAM_OFFSETS = np.cumsum([0, len(TTFT_BOUNDS), len(GAP_BOUNDS), len(GAP_BOUNDS), len(REQUEST_BOUNDS)])
"""Offsets of each histogram in the counts that `kernel.read_metrics` returns side by side, and their end."""

HISTOGRAM_SLICES = tuple(slice(begin, end) for begin, end in pairwise(HISTOGRAM_OFFSETS.tolist()))
"""The columns of each histogram in these counts."""


class EngineParams(NamedTuple):
    """The constants of a replica, for compiled code. Times in seconds."""

    step_s: float
    sequence_s: float
    kv_token_s: float
    prompt_token_s: float
    kv_capacity_tokens: int
    max_num_seqs: int
    max_batched_tokens: int
    spare_tokens: float  # empty tokens of a sequence's last KV block, on average
    patience_s: float
    router_weight: float  # share of the requests compared with other replicas

    @classmethod
    def from_profile(cls, profile: Profile, patience_s: float = np.inf, router_weight: float = 1.0) -> EngineParams:
        return cls(
            float(profile.step_s),
            float(profile.sequence_s),
            float(profile.kv_token_s),
            float(profile.prompt_token_s),
            profile.kv_capacity_tokens,
            profile.max_num_seqs,
            profile.max_batched_tokens,
            (profile.block_size - 1) / 2,
            float(patience_s),
            float(router_weight),
        )


class EngineState(NamedTuple):
    """All mutable state. R is the number of replica rows, M is `max_num_seqs`, N the number of requests."""

    arrival_s: FloatColumn  # float64[N]
    prompt_tokens: IntColumn  # int64[N]
    output_tokens: IntColumn  # int64[N]
    requests: Records  # REQUEST[N]
    replicas: Records  # REPLICA[R]
    decoding: IntColumn  # int64[R, M], requests in the order of scheduling
    last_step: IntColumn  # int64[R, M], number of the step that yields the last token of each
    prefilling: IntColumn  # int64[R, M], requests in the order of scheduling
    prefill_left: IntColumn  # int64[R, M], prompt tokens still to compute
    ttft_counts: IntColumn  # int64[R, 23], TTFT, not cumulative, +Inf last; likewise the next three
    gap_counts: IntColumn  # int64[R, 20], single gaps
    mean_gap_counts: IntColumn  # int64[R, 20], mean gap of each finished request
    prefill_counts: IntColumn  # int64[R, 22], time from scheduling to first token of each finished request

    @property
    def histograms(self) -> tuple[IntColumn, ...]:
        """All histograms, in the order of `HISTOGRAM_OFFSETS`."""
        return self.ttft_counts, self.gap_counts, self.mean_gap_counts, self.prefill_counts

    @classmethod
    def create(cls, trace: Trace, slots: int, rows: int) -> EngineState:
        """Create the columns for `trace` with `rows` replica rows of `slots` slots, none of them serving."""
        count = len(trace.arrival_s)
        requests = np.zeros(count, REQUEST)
        requests["first_s"] = requests["end_s"] = np.inf
        requests["next"] = -1

        def wide() -> IntColumn:
            return np.zeros((rows, slots), np.int64)

        return cls(
            np.ascontiguousarray(trace.arrival_s, np.float64),
            np.ascontiguousarray(trace.prompt_tokens, np.int64),
            np.ascontiguousarray(trace.output_tokens, np.int64),
            requests,
            np.zeros(rows, REPLICA),
            wide(),
            wide(),
            wide(),
            wide(),
            np.zeros((rows, len(TTFT_BOUNDS)), np.int64),
            np.zeros((rows, len(GAP_BOUNDS)), np.int64),
            np.zeros((rows, len(GAP_BOUNDS)), np.int64),
            np.zeros((rows, len(REQUEST_BOUNDS)), np.int64),
        )

    def latencies_s(self) -> tuple[FloatColumn, FloatColumn, FloatColumn]:
        """Return TTFT, mean gap and end-to-end latency of every request in seconds, float64[N] each.

        Infinity stands for a missing first token or, for gap and end to end, a missing last token. The gap of a single
        token is 0.
        """
        first_s, end_s = self.requests["first_s"], self.requests["end_s"]
        finished = np.isfinite(end_s)
        gaps = np.maximum(self.output_tokens - 1, 1)
        itl_s = np.full(len(end_s), np.inf)
        itl_s[finished] = (end_s[finished] - first_s[finished]) / gaps[finished]
        return first_s - self.arrival_s, itl_s, end_s - self.arrival_s

    def with_rows(self, rows: int) -> EngineState:
        """Return a copy with `rows` replica rows."""

        def wider(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
            more = np.zeros((rows, *column.shape[1:]), column.dtype)
            more[: len(column)] = column
            return more

        return EngineState(*self[:4], *(wider(column) for column in self[4:]))

    def start_replica(self, row: int, now_s: float, engine: int = 0) -> None:
        """Start an empty replica in a free row at `now_s`, with counters at zero and the constants of `engine`."""
        self.replicas[row] = np.zeros((), REPLICA)
        replica = self.replicas[row]
        replica["engine"] = engine
        replica["clock_s"] = replica["emptied_s"] = now_s
        replica["no_event_before_s"] = np.inf
        replica["step_end_s"] = np.nan
        replica["waiting_head"] = replica["waiting_tail"] = replica["preempted_head"] = -1
        for counts in self.histograms:
            counts[row] = 0


def empty_gateway() -> Records:
    """Return the record of an empty gateway, GATEWAY[1]."""
    gateway = np.zeros(1, GATEWAY)
    gateway["head"] = gateway["tail"] = -1
    return gateway
