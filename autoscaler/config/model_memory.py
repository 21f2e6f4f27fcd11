"""Whether a model fits on the devices of a replica: weights and the KV cache of one request against device memory.

An amount that is not known exactly is a range, so a verdict is only given where both ends agree.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import NamedTuple

GIB = float(1 << 30)
OVERHEAD = (1.0, 3.0)  # GiB of each device: activations and CUDA graphs
UTILIZATION = (0.9, 0.92)  # vLLM's default before 0.20, and since
REAL_SHARE = 0.93  # least memory of a device over its nominal size: an L4 of 24 GB has 22.5 GiB


class Range(NamedTuple):
    """An amount that is not known exactly."""

    least: float
    most: float  # infinity: no limit is known


UNKNOWN = Range(0.0, math.inf)


class Load(NamedTuple):
    """Memory that an engine needs on the devices of a replica."""

    weights: Range = UNKNOWN  # bytes
    kv_per_token: Range = UNKNOWN  # bytes on all devices together
    context: Range = UNKNOWN  # tokens of the longest request; the engine does not start without room for one
    devices: int = 1  # tensor parallel x pipeline parallel: they divide the weights
    utilization: Range = Range(*UTILIZATION)  # share of the memory that the engine uses


class FitVerdict(Enum):
    """Whether a model fits."""

    FITS = "fits"
    DOES_NOT_FIT = "does not fit"
    UNKNOWN = "unknown"


class Fit(NamedTuple):
    """A verdict with its arithmetic."""

    verdict: FitVerdict
    sentence: str


class _Case(NamedTuple):
    """One end of all ranges: the most or the least favourable amounts for a model."""

    weights: float
    kv_per_token: float
    context: float
    memory: float
    share: float
    overhead: float  # GiB
    devices: int

    @property
    def kv(self) -> float:
        return self.kv_per_token * self.context if self.kv_per_token and self.context else 0.0

    @property
    def short(self) -> float:
        """Bytes that are missing; negative: left over."""
        usable = self.devices * (self.memory * self.share - self.overhead * GIB)
        return self.weights + self.kv - max(usable, 0.0)

    def sentence(self) -> str:
        cache = f" and {_gib(self.kv)} GiB of KV cache for {self.context:,.0f} tokens" if self.kv else ""
        times = f"{self.devices} × " if self.devices > 1 else ""
        device = f"{times}{_gib(self.memory)} GiB × {self.share:g} - {times}{self.overhead:g} GiB"
        return f"needs {_gib(self.weights)} GiB of weights{cache} on {device}"


def judge(load: Load, memory: Range) -> Fit:
    """Compare what an engine needs with what it may use. memory: bytes of one device.

    A refusal takes every amount at the end that favours the model, so it is certain.
    """
    best, worst = (
        _Case(
            load.weights[end],
            load.kv_per_token[end],
            load.context[end],
            memory[1 - end],
            load.utilization[1 - end],
            OVERHEAD[end],
            load.devices,
        )
        for end in (0, 1)
    )
    if math.isfinite(best.memory) and best.short > 0:
        return Fit(FitVerdict.DOES_NOT_FIT, f"{best.sentence()}: short by {_gib(best.short)} GiB")
    amounts = {
        "the size of the weights": load.weights.most,
        "the KV cache of a token": load.kv_per_token.most,
        "the context length": load.context.most,
        "the memory of the device": memory.most,
    }
    unknown = [name for name, most in amounts.items() if math.isinf(most)]
    if unknown:
        return Fit(FitVerdict.UNKNOWN, f"{', '.join(unknown)}: not known")
    if worst.short <= 0:
        return Fit(FitVerdict.FITS, f"{worst.sentence()}: {_gib(-worst.short)} GiB are left")
    return Fit(FitVerdict.UNKNOWN, f"{worst.sentence()}: may be short by {_gib(worst.short)} GiB")


def _gib(amount: float) -> str:
    return f"{amount / GIB:.1f}".removesuffix(".0")
