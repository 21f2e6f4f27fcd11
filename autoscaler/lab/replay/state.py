"""The columns of the compiled engine model: what is kept of each request, each replica and the gateway.

`kernel` changes them, `run` reads them. They are records rather than plain columns, so that compiled code can pass one
replica on as one pointer. Times are seconds since the start of the trace; -1 stands for no request.
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
        ("since_s", "f8"),  # it waits: since it was submitted, or since it was preempted after its first token
        ("scheduled_s", "f8"),  # it first left the queue
        ("first_s", "f8"),  # first token; infinity: none
        ("end_s", "f8"),  # last token; infinity: never finished
        ("generated", "i4"),  # tokens at the time of the last prefill
        ("next", "i4"),  # behind it in the queue in which it waits
    ],
    align=True,
)

REPLICA = np.dtype(
    [
        ("clock_s", "f8"),  # end of the last step; at most one step behind the world
        ("quiet_until_s", "f8"),  # until then no request ends or is scheduled
        ("step_end_s", "f8"),  # end of the step under way, if its batch is settled; else NaN
        ("emptied_s", "f8"),  # when the last request left
        ("steps", "i8"),
        ("next_end", "i8"),  # step in which the next decoding request ends
        ("decode_tokens", "i8"),  # KV tokens of the decoding requests
        ("prefill_tokens", "i8"),  # KV tokens of those whose prompt is being computed
        ("decoding", "i8"),  # requests, as the next five
        ("prefilling", "i8"),
        ("waiting", "i8"),
        ("preempted", "i8"),
        ("held", "i8"),  # all of them
        ("waiting_head", "i8"),
        ("waiting_tail", "i8"),
        ("preempted_head", "i8"),
        # What the server counts; see metrics.EngineMetrics.
        ("prompt_tokens", "i8"),
        ("generation_tokens", "i8"),
        ("finished", "i8"),
        ("first_tokens", "i8"),
        ("preemptions", "i8"),
        ("itl_sum_s", "f8"),
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
)

GATEWAY = np.dtype(
    [
        ("arrived", "i8"),  # requests so far: the row of the next to come
        ("turn", "i8"),  # of round robin
        ("head", "i8"),
        ("tail", "i8"),
        ("held", "i8"),  # while nobody serves
    ],
    align=True,
)

TTFT_BOUNDS = np.array([*TTFT_BOUNDS_S, np.inf])
GAP_BOUNDS = np.array([*TOKEN_GAP_BOUNDS_S, np.inf])  # of single gaps, and of the mean gap of a request
PREFILL_BOUNDS = np.array([*REQUEST_BOUNDS_S, np.inf])

HISTOGRAMS = np.cumsum([0, len(TTFT_BOUNDS), len(GAP_BOUNDS), len(GAP_BOUNDS), len(PREFILL_BOUNDS)])
"""Where each histogram begins in the counts that `kernel.read` puts side by side, and where they end."""

PARTS = tuple(slice(begin, end) for begin, end in pairwise(HISTOGRAMS.tolist()))
"""The columns of each histogram there."""


class Engine(NamedTuple):
    """The constants of a replica, as compiled code takes them."""

    step_s: float
    sequence_s: float
    kv_token_s: float
    prompt_token_s: float
    kv_capacity_tokens: int
    max_num_seqs: int
    max_batched_tokens: int
    spare_tokens: float  # empty part of a sequence's last KV block, on average
    patience_s: float

    @classmethod
    def of(cls, profile: Profile, patience_s: float = np.inf) -> Engine:
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
        )


class State(NamedTuple):
    """Everything that changes. R counts the rows for replicas, not all of them in use; M is `max_num_seqs`."""

    arrival_s: FloatColumn  # float64[N]
    prompt_tokens: IntColumn  # int64[N]
    output_tokens: IntColumn  # int64[N]
    requests: Records  # REQUEST[N]
    replicas: Records  # REPLICA[R]
    decoding: IntColumn  # int64[R, M], requests in the order of scheduling
    last_step: IntColumn  # int64[R, M], step in which the last token of each appears
    prefilling: IntColumn  # int64[R, M], requests in the order of scheduling
    prefill_left: IntColumn  # int64[R, M], tokens still to compute
    ttft_counts: IntColumn  # int64[R, 23], not cumulative, +Inf last
    gap_counts: IntColumn  # int64[R, 20], of single gaps
    mean_gap_counts: IntColumn  # int64[R, 20], of the mean gap of each finished request
    prefill_counts: IntColumn  # int64[R, 22], from scheduled to first token, of each finished request

    @property
    def histograms(self) -> tuple[IntColumn, ...]:
        """Every histogram, in the order of `HISTOGRAMS`."""
        return self.ttft_counts, self.gap_counts, self.mean_gap_counts, self.prefill_counts

    @classmethod
    def of(cls, trace: Trace, profile: Profile, rows: int) -> State:
        """Make the columns for `trace`, with room for `rows` replicas; none of them serves yet."""
        count, slots = len(trace.arrival_s), profile.max_num_seqs
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
            np.zeros((rows, len(PREFILL_BOUNDS)), np.int64),
        )

    def latencies_s(self) -> tuple[FloatColumn, FloatColumn, FloatColumn]:
        """Return TTFT, mean gap and end to end of every request, float64[N] each.

        Infinity: it has not begun, or (gap and end to end) not ended. The gap of a single token is 0.
        """
        first_s, end_s = self.requests["first_s"], self.requests["end_s"]
        finished = np.isfinite(end_s)
        gaps = np.maximum(self.output_tokens - 1, 1)
        itl_s = np.full(len(end_s), np.inf)
        itl_s[finished] = (end_s[finished] - first_s[finished]) / gaps[finished]
        return first_s - self.arrival_s, itl_s, end_s - self.arrival_s

    def with_rows(self, rows: int) -> State:
        """Return the same state with room for `rows` replicas."""

        def wider(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
            more = np.zeros((rows, *column.shape[1:]), column.dtype)
            more[: len(column)] = column
            return more

        return State(*self[:4], *(wider(column) for column in self[4:]))

    def open(self, row: int, now_s: float) -> None:
        """Let an empty replica serve from `now_s` on, with counters at zero."""
        self.replicas[row] = np.zeros((), REPLICA)
        replica = self.replicas[row]
        replica["clock_s"] = replica["emptied_s"] = now_s
        replica["quiet_until_s"] = np.inf
        replica["step_end_s"] = np.nan
        replica["waiting_head"] = replica["waiting_tail"] = replica["preempted_head"] = -1
        for counts in self.histograms:
            counts[row] = 0


def new_gateway() -> Records:
    """Return the GATEWAY record of an empty gateway, in an array of one."""
    gateway = np.zeros(1, GATEWAY)
    gateway["head"] = gateway["tail"] = -1
    return gateway
