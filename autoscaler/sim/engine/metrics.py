"""The metrics of an engine: the values behind its `/metrics`, without names and text."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field


def _bounds(text: str) -> tuple[float, ...]:
    return tuple(float(bound) for bound in text.split())


# Recorded from vLLM 0.32; +Inf follows each.
TTFT_BOUNDS_S = _bounds("0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 1 2.5 5 7.5 10 20 40 80 160 640 2560")
TOKEN_GAP_BOUNDS_S = _bounds("0.01 0.025 0.05 0.075 0.1 0.15 0.2 0.3 0.4 0.5 0.75 1 2.5 5 7.5 10 20 40 80")
REQUEST_BOUNDS_S = _bounds("0.3 0.5 0.8 1 1.5 2 2.5 5 10 15 20 30 40 50 60 120 240 480 960 1920 7680")
STEP_BOUNDS_TOKENS = _bounds("1 8 16 32 64 128 256 512 1024 2048 4096 8192 16384")
SAMPLES_BOUNDS = _bounds("1 2 5 10 20")
PREEMPTION_BOUNDS = _bounds("1 2 3 4 5 10 20")
HTTP_FINE_BOUNDS_S = _bounds("0.01 0.025 0.05 0.075 0.1 0.25 0.5 0.75 1 1.5 2 2.5 3 3.5 4 4.5 5 7.5 10 30 60")
HTTP_BOUNDS_S = _bounds("0.1 0.5 1")
SLEEP_BOUNDS_S = _bounds("0.01 0.1 1 10 30 60 120 300 600")


def token_bounds(max_model_len: int) -> tuple[float, ...]:
    """Return vLLM's bucket bounds for token counts: 1, 2 and 5 times powers of ten up to `max_model_len`."""
    steps = (float(factor * 10**power) for power in range(len(str(max_model_len))) for factor in (1, 2, 5))
    return tuple(bound for bound in steps if bound <= max_model_len)


class EngineHistogram:
    """Counts of observations by bucket, not cumulative; the last bucket is +Inf."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count `value` `times` times. A value on a bound belongs to the bucket below it, as in Prometheus."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    @property
    def count(self) -> int:
        return sum(self.counts)


def _seconds() -> EngineHistogram:
    return EngineHistogram(REQUEST_BOUNDS_S)


@dataclass(slots=True)
class EngineMetrics:
    """Counters and histograms of one engine process, which start at zero. Times in seconds."""

    max_model_len: int

    prompt_tokens: int = 0  # counted with the first token of the output
    generation_tokens: int = 0  # counted in each step
    prefix_cache_queries: int = 0  # prompt tokens looked up at scheduling
    preemptions: int = 0
    finished_length: int = 0
    finished_abort: int = 0
    http_ok: int = 0  # answered with 200, including disconnected clients

    ttft: EngineHistogram = field(default_factory=lambda: EngineHistogram(TTFT_BOUNDS_S))
    token_gap: EngineHistogram = field(default_factory=lambda: EngineHistogram(TOKEN_GAP_BOUNDS_S))
    request_token_gap: EngineHistogram = field(default_factory=lambda: EngineHistogram(TOKEN_GAP_BOUNDS_S))
    step_tokens: EngineHistogram = field(default_factory=lambda: EngineHistogram(STEP_BOUNDS_TOKENS))
    e2e: EngineHistogram = field(default_factory=_seconds)
    queue: EngineHistogram = field(default_factory=_seconds)
    inference: EngineHistogram = field(default_factory=_seconds)
    prefill: EngineHistogram = field(default_factory=_seconds)
    decode: EngineHistogram = field(default_factory=_seconds)
    request_preemptions: EngineHistogram = field(default_factory=lambda: EngineHistogram(PREEMPTION_BOUNDS))
    samples: EngineHistogram = field(default_factory=lambda: EngineHistogram(SAMPLES_BOUNDS))
    http_fine: EngineHistogram = field(default_factory=lambda: EngineHistogram(HTTP_FINE_BOUNDS_S))
    http: EngineHistogram = field(default_factory=lambda: EngineHistogram(HTTP_BOUNDS_S))
    sleep: EngineHistogram = field(default_factory=lambda: EngineHistogram(SLEEP_BOUNDS_S))
    wake_up: EngineHistogram = field(default_factory=lambda: EngineHistogram(SLEEP_BOUNDS_S))
    request_prompt: EngineHistogram = field(init=False)
    request_output: EngineHistogram = field(init=False)

    def __post_init__(self) -> None:
        self.request_prompt = EngineHistogram(token_bounds(self.max_model_len))
        self.request_output = EngineHistogram(token_bounds(self.max_model_len))
