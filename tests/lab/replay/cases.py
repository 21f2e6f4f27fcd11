"""Small cases and scalers for the tests of replay runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from autoscaler.lab.replay.case import Case, Goal, Trace, View
from autoscaler.sim.engine.profiles import Profile

# A token takes 10 ms at any batch size, so all times are easy to compute.
PLAIN = Profile(
    step_s=0.01,
    sequence_s=0.0,
    kv_token_s=0.0,
    prompt_token_s=0.0,
    kv_capacity_tokens=1_000_000,
    max_num_seqs=4,
    max_model_len=100_000,
    block_size=1,
)


def trace_of(
    arrival_s: Sequence[float], output_tokens: int | Sequence[int] = 100, duration_s: float | None = None
) -> Trace:
    """Make a trace of requests with one prompt token each."""
    times = np.array(arrival_s, np.float64)
    outputs = np.broadcast_to(np.array(output_tokens, np.int64), times.shape).copy()
    end_s = float(times[-1]) + 1 if duration_s is None else duration_s
    return Trace("small", times, np.ones(len(times), np.int64), outputs, end_s)


def make_case(trace: Trace, **changes: object) -> Case:
    """Make a case with a cold start of exactly 60 s, unless changed."""
    case = Case(trace, PLAIN, Goal(ttft_s=1.0, itl_s=0.05, attainment=0.99), cold_start_s=60.0, cold_start_spread=0.0)
    return replace(case, **changes)  # type: ignore[arg-type]


@dataclass
class ConstantScaler:
    """Recommends a constant count."""

    replicas: int
    name: str = "fixed"
    period_s: float = 15.0

    def decide(self, view: View) -> int:
        return self.replicas


@dataclass
class FunctionScaler:
    """Recommends the result of a function of the view."""

    rule: Callable[[View], int]
    name: str = "function"
    period_s: float = 15.0

    def decide(self, view: View) -> int:
        return self.rule(view)
