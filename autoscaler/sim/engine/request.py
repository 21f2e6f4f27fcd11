"""One request, from the client to its last token."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum


class Ending(Enum):
    """How a request ended."""

    FINISHED = "finished"
    REJECTED = "rejected"  # refused by a full gateway, or held too long
    GIVEN_UP = "given up"  # the client disconnected while waiting; no engine counter shows it
    FAILED = "failed"  # lost with the engine


@dataclass(slots=True, eq=False)
class Request:
    """One request. Times are seconds on the clock of the simulation; NaN: not yet."""

    arrived_s: float  # at the gateway, where the latency of the client begins
    prompt_tokens: int
    output_tokens: int
    patience_s: float = math.inf  # the client leaves after this time without a token

    submitted_s: float = math.nan  # at the engine
    scheduled_s: float = math.nan
    first_token_s: float = math.nan
    ended_s: float = math.nan
    ending: Ending | None = None
    preemptions: int = 0

    # Bookkeeping of the engine.
    generated: int = 0  # output tokens at the last prefill
    last_step: int = 0  # number of the step with the last token, while decoding
    prefill_left: int = 0  # prompt tokens still to compute
    last_token_s: float = math.nan  # time of the last token before a preemption

    @property
    def context_tokens(self) -> int:
        return self.prompt_tokens + self.generated

    @property
    def ttft_s(self) -> float:
        return self.first_token_s - self.arrived_s

    @property
    def itl_s(self) -> float:
        """Mean gap between two tokens; NaN for a single token."""
        return (self.ended_s - self.first_token_s) / (self.output_tokens - 1) if self.output_tokens > 1 else math.nan
