"""One request on its way from the client to its last token."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum


class Ending(Enum):
    """How a request ended."""

    FINISHED = "finished"
    REJECTED = "rejected"  # refused by a full gateway, or nobody took it in time
    GIVEN_UP = "given up"  # the client disconnected while waiting; no counter of the engine knows
    FAILED = "failed"  # lost with the engine


@dataclass(slots=True, eq=False)
class Request:
    """One request; what is set later is NaN until then. Times in seconds on the clock of the world."""

    arrived_s: float  # at the gateway: what the client experiences counts from here
    prompt_tokens: int
    output_tokens: int
    patience_s: float = math.inf  # the client gives up if nothing has come after this long

    submitted_s: float = math.nan  # at the engine
    scheduled_s: float = math.nan
    first_token_s: float = math.nan
    ended_s: float = math.nan
    ending: Ending | None = None
    preemptions: int = 0

    # The engine's own bookkeeping.
    generated: int = 0  # tokens at the time of the last prefill
    last_step: int = 0  # step in which the last token appears, while decoding
    prefill_left: int = 0  # tokens still to compute before the next one appears
    last_token_s: float = math.nan  # when a preempted request was interrupted

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
