"""Draft a policy from the first half of each public trace, and judge it on the second half, which it has not seen.

    python bench/studies/demand.py --traces FOLDER --picture docs/pictures/demand.svg > table.md
    python bench/studies/demand.py --errors > errors.md
    python bench/studies/demand.py --coverage

The second one asks a real Prometheus about the generated days of `tests/demand/truth.py`, and compares. The last one
generates clusters, and counts the weeks whose highest hour lies in the band of the two weeks before.

Rates are scaled to a mean of four and of ten busy replicas and drawn as Poisson counts. Requests take the engine as
long as the generator of `tests/report/generated.py` says, so only the shape is that of the trace.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import gzip
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
from click.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parents[2]))

from autoscaler.cli.main import main as command
from autoscaler.config.policy.compile import spec_row
from autoscaler.config.policy.parse import load as load_policies
from autoscaler.core.model.spec import Spec
from autoscaler.core.table.columns import FloatColumn
from autoscaler.demand.charts import course
from autoscaler.demand.draft import Draft, make_drafts
from autoscaler.demand.halves import Half
from autoscaler.demand.next_week import band_of_weeks
from autoscaler.demand.shape import hours_of
from autoscaler.lab.report.format import UNKNOWN, amount, share
from autoscaler.report.charts import ChartLine
from autoscaler.report.columns import PolicyColumn
from autoscaler.report.facts import ServiceFacts
from autoscaler.report.fluid import follow
from autoscaler.report.history import Span
from autoscaler.report.load import FleetLoad, Profiles
from bench.studies.dots import standalone
from tests.demand.truth import DAYS, Compared, compare, generate_days
from tests.report.generated import filled_prometheus

TRACES = {
    "azure2024_code_week_rate": "Azure 2024, code, 7 days",
    "servegen_m-mid_week1_rate": "ServeGen m-mid, 7 days",
    "servegen_m-large_rate": "ServeGen m-large, 14 days",
}
STEP_S, BIN_S, START_S = 120.0, 600.0, 1_715_558_400.0  # a Monday, midnight
WORK_S, COLD_START_S = 0.05, 240.0
MEANS = (4, 10)
"""Busy replicas: at ten the highest hours are beyond the ceiling of the shipped policies, which is 16."""


class Judged(NamedTuple):
    """A trace with its draft."""

    name: str
    mean: int  # busy replicas
    draft: Draft


def read_rates(file: Path) -> FloatColumn:
    """Return requests per second of each bin."""
    with gzip.open(file, "rt") as lines:
        return np.array([float(row["rate_rps"] or "nan") for row in csv.DictReader(lines)], np.float64)


def load_of(rates: FloatColumn, mean: int, seed: int = 0) -> FleetLoad:
    """Return the load of one service with these rates, on as many replicas as keep it at 70 % of their capacity."""
    known = np.where(np.isnan(rates), np.nanmean(rates), rates)
    each = np.repeat(known / known.mean() * mean / WORK_S, round(BIN_S / STEP_S))
    arrivals = np.random.default_rng(seed).poisson(each * STEP_S).astype(np.float32)[:, None]
    columns = columns_of(arrivals, STEP_S)
    return FleetLoad(Span(START_S, STEP_S, len(arrivals)), seen=np.ones(arrivals.shape, bool), **columns)


def columns_of(arrivals: np.ndarray, step_s: float) -> dict[str, np.ndarray]:
    """Return the columns of a load; float32[T, W]. Each service had the count that its mean load keeps busy to 70 %."""
    demand = arrivals * np.float32(WORK_S / step_s)
    counts = np.broadcast_to(np.ceil(demand.mean(axis=0) / 0.7), demand.shape).astype(np.float32)
    busy = np.minimum(demand / counts, 0.95)
    return {
        "demand": demand,
        "arrivals": arrivals,
        "work_s": np.full_like(demand, WORK_S),
        "busy": busy,
        "pods": counts,
        "ordered": counts,
        "running": demand * 10,
        "waiting": np.zeros_like(demand),
        "kv_usage": busy / 2,
        "gap_s": 0.01 / (1 - busy),
        "prompt_tokens": arrivals * 600,
        "output_tokens": arrivals * 200,
        "missed_share": np.zeros_like(demand),
    }


def half_of(load: FleetLoad, first: int, last: int) -> Half:
    span = Span(load.span.start_s + first * STEP_S, STEP_S, last - first)
    part = FleetLoad(span, **{name: each[first:last] for name, each in load.columns.items()})
    return Half(part, profiles(), hours_of(part, ZoneInfo("UTC")))


def profiles() -> Profiles:
    known = {
        "idle_gap_s": 0.01,
        "prompt_token_s": 62.5e-6,
        "output_token_s": 91e-6,
        "slots": np.nan,
        "work_s": WORK_S,
        "steepness": 0.004,
        "unavoidable": 0.0,
        "batch_room_s": 0.0,
        "max_queue_s": 0.8,
        "cold_start_s": COLD_START_S,
    }
    no = np.zeros(1, bool)
    return Profiles(
        **{name: np.full(1, value) for name, value in known.items()},
        assumed_speed=no,
        assumed_misses=no,
        assumed_start=no,
    )


def spec_of(services: int) -> Spec:
    """Return the shipped default policy."""
    book = load_policies(())
    return Spec(*(np.full(services, value) for value in spec_row(book.policies[book.default].spec)))


def judge(name: str, rates: FloatColumn, mean: int) -> Judged:
    """Return the draft of a trace, judged on its second half."""
    spec = spec_of(1)
    facts = ServiceFacts(("",), np.ones(1), np.zeros(1, bool), np.full(1, np.nan), ("",))
    load = load_of(rates, mean)
    middle = load.shape[0] // 2
    (draft,) = make_drafts(half_of(load, 0, middle), half_of(load, middle, load.shape[0]), spec, facts)
    return Judged(name, mean, draft)


def table(judged: Sequence[Judged]) -> str:
    """Return the table of the docs."""
    lines = [
        "| trace, second half | busy | draft | GPU-hours, draft | today's policy | least constant "
        "| attainment, draft | today's policy |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, mean, draft in judged:
        said = ", ".join(f"{line.field} {line.value}" for line in draft.lines) if draft.offered else draft.refusal
        hours = (draft.gpu_hours, draft.gpu_hours_today, draft.gpu_hours_constant)
        figures = [*(amount(each) if np.isfinite(each) else UNKNOWN for each in hours)]
        figures += [share(draft.attainment), share(draft.attainment_today)]
        lines.append(f"| {name} | {mean} | {said} | {' | '.join(figures)} |")
    return "\n".join(lines) + "\n"


def picture(rates: Mapping[str, FloatColumn]) -> str:
    """Return the busy replicas of each trace by hour, one below the other."""
    parts, top = [], 0.0
    size = round(3600 / STEP_S)
    for name, each in rates.items():
        load = load_of(each, MEANS[0])
        starts = np.arange(0, load.shape[0] - size + 1, size)
        busy = np.add.reduceat(load.demand[: starts[-1] + size, 0].astype(np.float64), starts) / size
        drawn = course(name, "busy", load.span.start_s + starts * STEP_S, ChartLine("column-1", busy))
        parts.append(
            f'<text class="label" x="0" y="{top + 14:g}">{name}</text>'
            + drawn.replace(
                "<svg ", f'<svg style="color: var(--ours)" x="0" y="{top + 18:g}" width="590" height="144" ', 1
            )
        )
        top += 172
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 590 {top:g}" class="chart" role="img" '
        f'aria-label="Busy replicas by hour of three public traces">{"".join(parts)}</svg>'
    )


def coverage(clusters: int = 180, services: int = 3, seed: int = 0) -> str:
    """Return how many generated weeks lie in the band. Days differ by a fifth, those of the weekend have 60 %."""
    draw = np.random.default_rng(seed)
    step_s, days, work_s = 600.0, 21, WORK_S
    hour = np.arange(days * 144) / 6 % 24
    day = np.arange(days * 144) // 144
    of_day = np.exp(draw.normal(0, 0.2, (days, clusters))) * np.where(np.arange(days) % 7 > 4, 0.6, 1.0)[:, None]
    size = np.exp(draw.normal(0.5, 0.7, (clusters, services)))
    shape = 1 + 0.7 * np.cos((hour[:, None, None] - 14 - 3 * draw.normal(size=(clusters, services))) / 12 * np.pi)
    rate = (size * shape * of_day[day][:, :, None]).reshape(len(day), -1) / work_s
    arrivals = draw.poisson(rate * step_s).astype(np.float32)
    columns = columns_of(arrivals, step_s)
    load = FleetLoad(Span(START_S, step_s, len(day)), seen=np.ones(arrivals.shape, bool), **columns)
    width = clusters * services
    known = {name: np.repeat(each, width) for name, each in vars(profiles()).items()}
    course = follow(PolicyColumn(load, Profiles(**known), spec_of(width)), load, Profiles(**known))
    inside, above, wide = 0, 0, []
    for cluster in range(clusters):
        rows = slice(cluster * services, (cluster + 1) * services)
        needed = course.wanted[:, rows].reshape(-1, 6, services).mean(axis=1, dtype=np.float64).sum(axis=1)
        at_s = START_S + 3600.0 * np.arange(len(needed))
        band = band_of_weeks(at_s[: 14 * 24], needed[: 14 * 24], ZoneInfo("UTC"))
        highest = needed[14 * 24 :].max()
        inside += band.low <= highest <= band.high
        above += highest > band.high
        wide.append(band.high / max(band.low, 1.0))
    told = f"within the band in {inside / clusters:.0%}, and above it in {above / clusters:.0%}"
    wide_by = f"The top of the band is {np.median(wide):.2f} times its bottom, in the median"
    return f"In {clusters} generated clusters the highest hour of the third week lies {told}. {wide_by}.\n"


def errors() -> str:
    """Return the table of errors: of each figure, the service with the largest."""
    lines = ["| input | figure | truth | found | error | allowed |", "|---|---|---|---|---|---|"]
    worst: dict[tuple[str, str], Compared] = {}
    for each in asyncio.run(_compare()):
        key = each.input, each.figure.partition(", `")[0]
        worst[key] = max(worst.get(key, each), each, key=lambda one: one.error)
    for each in worst.values():
        show = amount if each.is_absolute else share
        texts = (amount(each.truth), amount(each.found), show(each.error), show(each.allowed))
        lines.append(f"| {each.input} | {each.figure} | {' | '.join(texts)} |")
    return "\n".join(lines) + "\n"


async def _compare() -> list[Compared]:
    truth, text = generate_days(time.time())
    with TemporaryDirectory() as folder:
        file = Path(folder) / "demand.json"
        arguments = ["demand", "--since", f"{DAYS}d", "--json", str(file)]
        async with filled_prometheus(Path(folder), text) as server:
            result = await asyncio.to_thread(CliRunner().invoke, command, [*arguments, "--prometheus", server.url])
        if result.exit_code:
            raise SystemExit(result.output)
        found = {row["name"]: row for row in json.loads(file.read_text())["services"]}
    return sorted(compare(found, truth), key=lambda each: each.input)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--traces", type=Path, help="folder with the traces")
    parser.add_argument("--errors", action="store_true", help="compare the inputs with generated days instead")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the traces, too")
    parser.add_argument("--coverage", action="store_true", help="count the weeks that lie in their band instead")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    given = parser.parse_args(arguments)
    if given.coverage:
        print(coverage(), end="")
        return 0
    if given.errors:
        print(errors(), end="")
        return 0
    if given.traces is None:
        parser.error("give --traces FOLDER or --errors")
    files = {name: given.traces / f"{file}.csv.gz" for file, name in TRACES.items()}
    rates = {name: read_rates(file) for name, file in files.items() if file.exists()}
    if not rates:
        parser.error(f"{given.traces}: none of {', '.join(file.name for file in files.values())}")
    if given.picture:
        given.picture.write_text(standalone(picture(rates)))
    judged = [judge(name, each, mean) for mean in MEANS for name, each in rates.items()]
    if given.json:
        print(json.dumps([[name, mean, draft.gpu_hours, draft.attainment] for name, mean, draft in judged]))
    else:
        print(table(judged), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
