"""Generated days with known parameters, and how far the inputs of `demand` are from them.

Held to its errors by `test_demand.py`, and printed as a table by `bench/studies/demand.py --errors`.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.report.generated import HOUR_S, OUTPUT, PROMPT, WORK_S, Service, Truth, generate, merged

DAYS = 10
"""Half of them have at least three workdays, whatever today is, from which a draft learns hours."""

SCRAPE_S = 180.0
BURST_S = 1080.0


def office(low: float, high: float):
    """Return a rate that is high from nine to five on each day, by the clock of UTC."""
    return lambda at_s: high if 9 <= at_s / HOUR_S % 24 < 17 else low


def bursty(at_s: float) -> float:
    """Return 8 requests a second, and four times as many for 18 minutes of each sixth hour."""
    return 32.0 if 3600 <= at_s % (6 * HOUR_S) < 3600 + BURST_S else 8.0


def resting(at_s: float) -> float:
    """Return 5 requests a second for four hours of each day, and none in the others."""
    return 5.0 if at_s / HOUR_S % 24 < 4 else 0.0


def generate_days(now_s: float, days: int = DAYS) -> tuple[dict[str, Truth], str]:
    """Return the truth of each service, and the samples of the days before."""
    end_s = now_s // 360 * 360
    services = (
        Service("office", office(8.0, 48.0), lambda _: 4, gpus=2),
        Service("bursty", bursty, lambda _: 2),
        Service("resting", resting, lambda _: 2, is_profiled=True, team="support"),
    )
    made = [generate(service, end_s - days * 24 * HOUR_S, end_s, SCRAPE_S) for service in services]
    truth = {service.name: one for service, (one, _) in zip(services, made, strict=True)}
    return truth, merged(lines for _, lines in made)


class Compared(NamedTuple):
    """One figure of the document compared with the truth."""

    input: str  # row of the docs
    figure: str
    truth: float
    found: float
    allowed: float  # share of the truth, or where `is_absolute` the difference
    is_absolute: bool = False

    @property
    def error(self) -> float:
        """Return the error in the unit of `allowed`."""
        off = abs(self.found - self.truth)
        return off if self.is_absolute else off / abs(self.truth)


def compare(services: dict[str, Any], truth: dict[str, Truth], days: int = DAYS) -> Iterator[Compared]:
    """Yield all figures whose truth is known. services: of the JSON document, by name."""
    at_office, bursts, gpus = (
        services["office"]["concurrency"],
        services["bursty"]["bursts"],
        services["resting"]["gpus"],
    )
    yield Compared("concurrency", "busy replicas in 95 % of the hours", 8 * WORK_S, at_office["floor_replicas"], 0.05)
    yield Compared("concurrency", "busy replicas in 5 % of the hours", 48 * WORK_S, at_office["high_replicas"], 0.05)
    yield Compared("bursts", "number", 4 * days, bursts["bursts"], 1, True)
    for name in ("office", "resting"):
        yield Compared("bursts", f"number, `{name}`", 0, services[name]["bursts"]["bursts"], 0, True)
    yield Compared("bursts", "length, s", BURST_S, bursts["duration_p50_s"], 2 * SCRAPE_S, True)
    yield Compared("bursts", "height", 4, bursts["height_p50"], 0.2)
    for name, row in services.items():
        active = truth[name].requests * WORK_S / 3600 / truth[name].replica_h
        duration, mix = row["duration"], row["mix"]
        yield Compared("duration", f"p50, s, `{name}`", 2, duration["p50_s"], 0.02)
        yield Compared("duration", f"p99, s, `{name}`", 10, duration["p99_s"], 0.02)
        yield Compared("duration", f"longest, s, `{name}`", 30, duration["longest_s"], 0, True)
        yield Compared("mix", f"output tokens, `{name}`", OUTPUT, mix["output_tokens"], 0.02)
        yield Compared("mix", f"prompt tokens, `{name}`", PROMPT, mix["prompt_tokens"], 0.02)
        yield Compared("residency", f"active of loaded, `{name}`", active, row["residency"]["ratio"], 0.1)
        yield Compared("residency", f"loaded, h, `{name}`", truth[name].replica_h, row["residency"]["loaded_h"], 0.02)
    yield Compared("residency", "loaded by DCGM, h", truth["resting"].replica_h, gpus["loaded_h"], 0.02)
    yield Compared("residency", "idle by DCGM, h", 2 * 20 * days, gpus["replica_hours"]["idle_and_loaded"], 0.02)
    yield Compared("residency", "active by DCGM, h", 2 * 4 * days, gpus["active_h"], 0.05)
