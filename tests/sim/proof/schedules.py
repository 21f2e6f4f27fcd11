"""Schedules of replicas to hold a bound against."""

from dataclasses import dataclass

from autoscaler.sim.study.case import View


@dataclass
class Stepped:
    """Wants the n-th count of a list in the n-th period."""

    counts: tuple[int, ...]
    period_s: float
    name: str = "stepped"

    def decide(self, view: View) -> int:
        return self.counts[min(round(view.now_s / self.period_s) - 1, len(self.counts) - 1)]
