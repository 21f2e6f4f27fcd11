"""A clock that is stepped by hand, and fleets whose pods are servers on loopback."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from autoscaler.core.model.fleet import Fleet, Pod, Workload, WorkloadRef
from tests.core import world

RECORDINGS = Path(__file__).parents[2] / "data" / "vllm"


def recorded(name: str) -> str:
    """The text of a recording of a real server."""
    return (RECORDINGS / f"{name}.prom").read_text()


def endpoint(*path: str) -> object:
    """A real answer of the recorded endpoints."""
    found = json.loads((RECORDINGS / "endpoints.json").read_text())
    for step in path:
        found = found[step]
    return found


@dataclass
class SteppedClock:
    """A Clock that only a test moves."""

    time_s: float = 1000.0

    def now_s(self) -> float:
        return self.time_s

    def wall_s(self) -> float:
        return 1_800_000_000.0 + self.time_s

    async def sleep(self, duration_s: float) -> None:
        self.time_s += duration_s
        await asyncio.sleep(0)


def fleet_of(
    *addresses: str, ready: bool | list[bool] = True, engine: str = "vllm", first_id: int = 0, name: str = "qwen"
) -> Fleet:
    """One workload with a pod at each `ip:port`."""
    pods = len(addresses)
    workload = Workload(WorkloadRef("llm", name), model=name, engine=engine)
    return replace(
        world.fleet(ready=[pods]),
        workloads=(workload,),
        pods=tuple(_pod(f"{name}-{index}", address) for index, address in enumerate(addresses)),
        pod_id=np.arange(first_id, first_id + pods),
        pod_ready=np.broadcast_to(np.asarray(ready), pods).copy(),
    )


def _pod(name: str, address: str) -> Pod:
    ip, _, port = address.rpartition(":")
    return Pod("llm", name, ip, int(port))
