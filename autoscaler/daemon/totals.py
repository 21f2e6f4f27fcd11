"""HourlyTotals of a run: one line after each hour, and one at the end, for logs and for people who try it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np

from autoscaler.config.prices import shares_of
from autoscaler.core import tally
from autoscaler.core.explain.format import count
from autoscaler.core.gpu_totals import GpuTotals
from autoscaler.core.gpu_use import GpuState
from autoscaler.core.table.columns import or_zero
from autoscaler.core.tally import TallyState
from autoscaler.ports import TickRecord

HOUR_S = 3600.0
SUMS = ("seconds", "gpu_h", "decided_gpu_h", "usd", "decided_usd", "changes", "breach_s")


@dataclass(frozen=True)
class Total:
    """Sums over all workloads."""

    seconds: float = 0.0
    gpu_h: float = 0.0  # of GPUs that pods held, as the API counts them
    decided_gpu_h: float = 0.0  # of the replicas that were decided
    usd: float = 0.0
    decided_usd: float = 0.0
    changes: int = 0
    breach_s: float = 0.0
    workloads: int = 0  # most at once
    unpriced: int = 0  # of them, those without a price, at the last tick
    unknown_gpus: int = 0  # of them, those whose GPUs are not known, at the last tick

    def plus(self, later: Total) -> Total:
        """Return the sums of both."""
        sums = {name: getattr(self, name) + getattr(later, name) for name in SUMS}
        return replace(later, workloads=max(self.workloads, later.workloads), **sums)

    def sentence(self, acts: bool) -> str:
        """Say the total. acts: the decisions are carried out, so that the replicas that there were follow them."""
        unknown = f" (without {count(self.unknown_gpus, 'workload')} whose GPUs are unknown)" * bool(self.unknown_gpus)
        decided = f"{self.decided_gpu_h:,.1f} decided" if acts else f"this policy {self.decided_gpu_h:,.1f}"
        parts = [
            f"GPU-hours actual {self.gpu_h:,.1f}, {decided}{unknown}",
            count(self.changes, "change" if acts else "proposed change"),
            f"{count(round(self.breach_s / 60), 'minute')} in breach",
        ]
        if self.usd or self.decided_usd:
            unpriced = f" (without {count(self.unpriced, 'workload')} whose price is unknown)" * bool(self.unpriced)
            parts.append(
                f"cost actual ${self.usd:,.2f}, {'decided' if acts else 'this policy'} "
                f"${self.decided_usd:,.2f}{unpriced}"
            )
        hours = f"{self.seconds / 3600:.1f} h" if self.seconds >= HOUR_S else f"{self.seconds / 60:.0f} min"
        return f"{hours}, {count(self.workloads, 'workload')}: {'; '.join(parts)}"


class HourlyTotals:
    """Recorder that says the total of each full hour. `say_last` says that of the whole run."""

    def __init__(self, say: Callable[[str], None], acts: bool) -> None:
        """say: takes a line. acts: the decisions are carried out."""
        self._say, self._acts = say, acts
        self._state: TallyState | None = None
        self._use = GpuTotals[int]()
        self._hour, self._all = Total(), Total()
        self._hour_began_s: float | None = None

    def record(self, tick: TickRecord) -> None:
        since = self._since(tick)
        self._hour, self._all = self._hour.plus(since), self._all.plus(since)
        now_s = tick.input.now_s
        if self._hour_began_s is None:
            self._hour_began_s = now_s
        if now_s - self._hour_began_s >= HOUR_S:
            self._say(f"{_clock(tick.wall_s)}  the last hour: {self._hour.sentence(self._acts)}")
            self._hour, self._hour_began_s = Total(), now_s

    def _since(self, tick: TickRecord) -> Total:
        """Return what happened since the tick before."""
        inp, decided = tick.input, tick.decision.replicas
        self._state, served = tally.advance(self._state, inp, tick.decision)
        before_s = self._use.seconds
        shares = shares_of(inp.fleet.groups.groups)
        self._use.add(tick.use, shares, 0, lambda row, _: row, tick.device_prices)
        seconds, held, gpus = self._use.seconds - before_s, self._use.since, self._use.gpus
        cost = inp.variants.cost if inp.variants is not None else np.full(len(decided), np.nan)
        return Total(
            seconds=seconds,
            gpu_h=float(held.gpu_s[: GpuState.ORDERED].sum()) / 3600,
            decided_gpu_h=float((decided * or_zero(gpus)).sum()) * seconds / 3600,
            usd=float(held.usd.sum()),
            decided_usd=float((decided * or_zero(cost)).sum()) * seconds / 3600,
            changes=int(served.changes.sum()),
            breach_s=float(served.breach_s.sum()),
            workloads=len(decided),
            unpriced=int((np.isnan(cost) | (held.unpriced_s > 0)).sum()),
            unknown_gpus=int((np.isnan(gpus) | (held.unsized_s > 0)).sum()),
        )

    def failed(self, wall_s: float, error: BaseException) -> None:
        """A failed tick decides nothing. The time since the tick before it counts for the GPUs of the next one."""

    def say_last(self) -> None:
        """Say the total of the run, unless it ended before its second tick."""
        if self._all.seconds:
            self._say(f"in all: {self._all.sentence(self._acts)}")


def _clock(wall_s: float) -> str:
    return datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
