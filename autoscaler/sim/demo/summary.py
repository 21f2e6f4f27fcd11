"""The summary of a demo: how well requests were served, and at what cost."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from autoscaler.core.model.money import Money, Price
from autoscaler.sim.engine.request import Ending, Request

VERSION = 1
"""Version of the keys of the JSON summary; changed when a key is renamed or removed."""


@dataclass(frozen=True)
class DemoObjective:
    """The objectives of a workload; NaN: not stated."""

    ttft_s: float = math.nan
    itl_s: float = math.nan

    def meets_ttft(self, ttft_s: float) -> bool:
        return not ttft_s > self.ttft_s  # an objective of NaN is always met

    def meets_itl(self, itl_s: float) -> bool:
        return not itl_s > self.itl_s


@dataclass
class DemoScore:
    """Counts of one workload's requests.

    A request that did not finish missed the ITL objective, and the TTFT objective unless its first token came in time;
    as in the laboratory.
    """

    objective: DemoObjective
    endings: dict[Ending, int] = field(default_factory=lambda: dict.fromkeys(Ending, 0))
    met_ttft: int = 0
    met_itl: int = 0
    met_both: int = 0

    @property
    def ended(self) -> int:
        return sum(self.endings.values())

    def add(self, requests: Iterable[Request]) -> None:
        """Count ended requests."""
        for request in requests:
            assert request.ending is not None
            self.endings[request.ending] += 1
            ttft = not math.isnan(request.first_token_s) and self.objective.meets_ttft(request.ttft_s)
            itl = request.ending is Ending.FINISHED and self.objective.meets_itl(request.itl_s)
            self.met_ttft += ttft
            self.met_itl += itl
            self.met_both += ttft and itl

    def late(self, unanswered: Iterable[Request], now_s: float) -> int:
        """Return the number of `unanswered` requests that have already missed the TTFT objective."""
        return sum(not self.objective.meets_ttft(now_s - request.arrived_s) for request in unanswered)


@dataclass(frozen=True)
class WorkloadSummary:
    """One workload; counts are requests."""

    name: str
    arrived: int
    finished: int
    rejected: int  # refused by the gateway
    given_up: int  # the client left
    failed: int  # lost with a pod
    open: int  # still held, waiting or running
    attainment: float | None  # fraction that met every objective, 0..1; None: no requests
    attainment_ttft: float | None
    attainment_itl: float | None
    gpu_hours: float
    static_gpu_hours: float
    scale_ups: int
    scale_downs: int
    usd: float | None = None  # `gpu_hours` at list prices; None: no price
    price_note: str = ""  # why there is no price, or why it may be too high


@dataclass(frozen=True)
class Summary:
    """The whole simulation. `as_json` documents the keys."""

    seed: int
    simulated_s: float
    crashes: int
    workloads: tuple[WorkloadSummary, ...]

    def sentence(self) -> str:
        """Say in a sentence what the simulation has shown."""
        told = self.as_json()
        served = "" if told["attainment"] is None else f"; {told['attainment']:.1%} met their objectives"
        return (
            f"In {self.simulated_s / 3600:.1f} simulated hours {told['requests']:,} requests came to "
            f"{len(self.workloads)} workloads{served}. Their replicas held {told['gpu_hours']:.1f} GPU-hours; "
            f"the largest counts, kept all the time, would have held {told['static_gpu_hours']:.1f}. "
            f"The GPU-hours cost {self.cost().say('workload')}."
        )

    def cost(self) -> Money:
        """Return what the replicas cost at list prices."""
        return Money.sum(
            (each.name, Price(math.nan if each.usd is None else each.usd, each.price_note)) for each in self.workloads
        )

    def as_json(self) -> dict[str, Any]:
        """Return the summary as plain values for JSON.

        version: of these keys
        seed, simulated_s: seed, and number of simulated seconds
        requests: requests that arrived
        attainment: fraction of the decided requests that met every objective of their workload; null without any.
            A request is decided when it ended, or when it waits and is already late
        gpu_hours: of all pods, from binding to a node to their end; a slice counts as its fraction of the GPU
        static_gpu_hours: the same if each workload had kept its largest number of pods all the time
        cost: of `gpu_hours` at list prices: `usd` of `priced` of `parts` workloads, and those left out or too high
        scale_ups, scale_downs: changes of a replica count
        errors: requests lost with a pod
        crashes: pods that failed
        workloads: by name; arrived = finished + rejected + given_up + failed + open, and the figures above
        """
        decided = [workload for workload in self.workloads if workload.attainment is not None]
        weights = [workload.arrived for workload in decided]
        attained = sum((workload.attainment or 0.0) * weight for workload, weight in zip(decided, weights, strict=True))
        return {
            "version": VERSION,
            "seed": self.seed,
            "simulated_s": round(self.simulated_s, 1),
            "requests": sum(workload.arrived for workload in self.workloads),
            "attainment": round(attained / sum(weights), 5) if sum(weights) else None,
            "gpu_hours": round(sum(workload.gpu_hours for workload in self.workloads), 3),
            "static_gpu_hours": round(sum(workload.static_gpu_hours for workload in self.workloads), 3),
            "cost": self.cost().to_json(),
            "scale_ups": sum(workload.scale_ups for workload in self.workloads),
            "scale_downs": sum(workload.scale_downs for workload in self.workloads),
            "errors": sum(workload.failed for workload in self.workloads),
            "crashes": self.crashes,
            "workloads": {workload.name: _row(workload) for workload in self.workloads},
        }


def _row(workload: WorkloadSummary) -> dict[str, Any]:
    return {
        key: round(value, 5) if isinstance(value, float) else value
        for key, value in vars(workload).items()
        if key != "name"
    }
