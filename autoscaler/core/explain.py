"""Words for a decision: the one place where columns become sentences. The page, the event, the log line, the API,
`explain` and the live table all print what is made here.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """One stage on the way from demand to decision."""

    stage: str  # lower-case name of the Stage
    replicas: float  # NaN: nothing known
    reason: str  # "" where the stage changed nothing


@dataclass(frozen=True)
class Explanation:
    """Why one workload has the count it has. Plain values, ready for JSON (NaN becomes null at the rim)."""

    workload: str  # "namespace/name"
    policy: str
    current: int  # spec.replicas
    wanted: int  # the decision
    ready: int
    signal: str  # lower-case name of the Signal that asked the most; "": none had an opinion
    bound: str  # lower-case name of the last Stage that changed the count; "": none did
    asks: dict[str, float]  # by signal, NaN left out
    steps: tuple[Step, ...]
    inputs: dict[str, float]  # the observation and capacity values behind it, NaN where unknown
    sentence: str  # one sentence for people
