"""HourlyTotals of a run: one line after each hour, and one at the end, for logs and for people who try it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from autoscaler.core import tally
from autoscaler.core.explain.format import count
from autoscaler.core.tally import Tally, TallyState
from autoscaler.ports import TickRecord

HOUR_S = 3600.0


@dataclass(frozen=True)
class Total:
    """Sums over all workloads."""

    seconds: float = 0.0
    gpu_h: float = 0.0  # of the replicas that there were
    decided_gpu_h: float = 0.0  # of those that were decided
    usd: float = 0.0
    decided_usd: float = 0.0
    changes: int = 0
    breach_s: float = 0.0
    workloads: int = 0  # most at once
    unpriced: int = 0  # of them, those without a price, at the last tick
    unknown_gpus: int = 0  # of them, those whose GPUs are not known, at the last tick

    def plus(self, since: Tally, seconds: float, unpriced: int, unknown_gpus: int) -> Total:
        """Add what happened between two ticks."""
        return Total(
            seconds=self.seconds + seconds,
            gpu_h=self.gpu_h + float(since.gpu_s.sum()) / 3600,
            decided_gpu_h=self.decided_gpu_h + float(since.decided_gpu_s.sum()) / 3600,
            usd=self.usd + float(since.usd.sum()),
            decided_usd=self.decided_usd + float(since.decided_usd.sum()),
            changes=self.changes + int(since.changes.sum()),
            breach_s=self.breach_s + float(since.breach_s.sum()),
            workloads=max(self.workloads, len(since.seconds)),
            unpriced=unpriced,
            unknown_gpus=unknown_gpus,
        )

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
        self._hour, self._all = Total(), Total()
        self._hour_began_s: float | None = None

    def record(self, tick: TickRecord) -> None:
        inp = tick.input
        seconds = inp.now_s - self._state.inp.now_s if self._state is not None else 0.0
        self._state, since = tally.advance(self._state, inp, tick.decision)
        unpriced = int(np.isnan(inp.variants.cost).sum()) if inp.variants is not None else len(tick.policies)
        unknown = int(np.isnan(inp.fleet.gpus_per_replica).sum())
        seconds = seconds if seconds <= tally.LONGEST_S else 0.0
        self._hour, self._all = (each.plus(since, seconds, unpriced, unknown) for each in (self._hour, self._all))
        if self._hour_began_s is None:
            self._hour_began_s = inp.now_s
        if inp.now_s - self._hour_began_s >= HOUR_S:
            self._say(f"{_clock(tick.wall_s)}  the last hour: {self._hour.sentence(self._acts)}")
            self._hour, self._hour_began_s = Total(), inp.now_s

    def failed(self, wall_s: float, error: BaseException) -> None:
        """A failed tick decides nothing. The time until the next one counts for the counts of the last one."""

    def say_last(self) -> None:
        """Say the total of the run, unless it ended before its second tick."""
        if self._all.seconds:
            self._say(f"in all: {self._all.sentence(self._acts)}")


def _clock(wall_s: float) -> str:
    return datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
