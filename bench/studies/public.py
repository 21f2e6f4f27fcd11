"""Compare the shipped policy on public traces of half a day and more with the offline plan, and with rivals.

A trace is part of a file, at a size. A table of clients is drawn at that size; a file of requests is thinned, or copies
of it are superposed that do not burst together. The offline plan knows all requests. It is compared from the second
hour on, since it begins with what it needs. Rivals run at their documented settings.

    python bench/studies/public.py --traces FOLDER [--only m-large week] [--cold-starts 240] [--beside plan none]

Finished runs are kept in a file, as in `plain.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))

from autoscaler.lab.bounds.constant_count import find_fewest_replicas
from autoscaler.lab.compare.experiment import MIN_RISE
from autoscaler.lab.replay.case import Case, Trace
from autoscaler.lab.replay.inputs import client_table, trace_file, transform
from bench.studies.goals import (
    FIRST_HOUR_POINTS,
    LEAST_ATTAINMENT,
    Column,
    Judgement,
    Result,
    Rows,
    columns_beside,
    lowest,
    mean_column,
    mean_of,
    options,
    ratio_column,
    ratio_to,
    share_column,
    show,
    version_column,
)
from bench.studies.judged import CONSTANT, HOUR_S, OURS, PLAN, RIVALS, ROOT, Run, Study

COLD_STARTS_S = (60.0, 240.0)
KEPT = ROOT / "bench" / "results" / "public.jsonl"
MOST_PLAN_RATIO = 1.10  # most GPU-hours compared with the offline plan, from the second hour on
MOST_FLAPS = 0.5  # as a share of those of the HPA


class Window(NamedTuple):
    """Part of a trace file at a size."""

    file: str
    start_h: float
    hours: float
    scale: float
    model: str = ""  # of a file with several
    seed: int = 1

    @property
    def later_s(self) -> float:
        return min(1.0, self.hours / 2) * HOUR_S

    def find_count(self, case: Case, attained: Callable[[int], float]) -> int:
        return find_fewest_replicas(case, attained, MIN_RISE)


@lru_cache(maxsize=1)
def load(folder: Path, window: Window) -> Trace:
    path, from_s = folder / window.file, window.start_h * HOUR_S
    to_s = from_s + window.hours * HOUR_S
    if client_table.is_client_table(path):
        return client_table.draw(client_table.load(path), window.scale, window.seed, from_s, to_s)
    (whole,) = [each for each in trace_file.load(path) if each.name.endswith(window.model)]
    return transform.scale(transform.clip(whole, from_s, min(to_s, whole.duration_s)), window.scale, window.seed)


WINDOWS = {
    "m-large": Window("servegen_m-large_clients.csv.gz", 54, 12, 0.05),
    "m-large-later": Window("servegen_m-large_clients.csv.gz", 150, 12, 0.05),
    "deepseek-r1": Window("servegen_deepseek-r1_clients.csv.gz", 0, 24, 0.1),
    "m-mid": Window("servegen_m-mid_week1_requests.csv.gz", 24, 12, 5.0),
    "azure2024-day": Window("azure2024_code_week_requests.csv.gz", 72, 24, 4.0),
    "azure2024-days": Window("azure2024_code_week_requests.csv.gz", 0, 72, 2.0),
    "burstgpt": Window("burstgpt_days0-3_requests.csv.gz", 0, 95, 1.0),
    "chat-A035": Window("servegen_fleet_14d_requests.csv.gz", 0, 72, 1.0, "A035"),
    "chat-A076": Window("servegen_fleet_14d_requests.csv.gz", 0, 72, 1.0, "A076"),
}


class Row(NamedTuple):
    trace: str
    cold_start_s: float


def judge(row: Row, results: Sequence[Result]) -> list[Judgement]:
    """Judge a run by the goals."""
    judged = []
    if PLAN in results[0]:
        reachable = min(LEAST_ATTAINMENT, lowest(results, PLAN, "attainment"))
        judged.append(Judgement.at_least("attainment", lowest(results, OURS, "attainment"), reachable))
        judged.append(Judgement.at_most("cost", ratio_to(results, PLAN, "later_gpu_hours"), MOST_PLAN_RATIO))
    first = lowest(results, CONSTANT, "first_hour") - FIRST_HOUR_POINTS
    judged.append(Judgement.at_least("first hour", lowest(results, OURS, "first_hour"), first))
    if "hpa-inflight" in results[0]:
        most = MOST_FLAPS * mean_of(results, "hpa-inflight", "flaps")
        judged.append(Judgement.at_most("flaps", mean_of(results, OURS, "flaps"), most))
    return judged


def columns_of(rows: Rows) -> dict[str, Column]:
    return {
        "trace": lambda row, _: str(row.trace),
        "requests": mean_column("requests", ",.0f"),
        "cold start": lambda row, _: f"{row.cold_start_s:g} s",
        "version": version_column,
        "ours: attainment": share_column("attainment"),
        "first hour": share_column("first_hour"),
        "GPU-hours": mean_column("gpu_hours", ".4g"),
        "from the second hour on": mean_column("later_gpu_hours", ".4g"),
        "flaps": mean_column("flaps", ".3g"),
        **columns_beside(rows, (CONSTANT, PLAN, *RIVALS)),
        "ours / plan from the second hour on": ratio_column(PLAN, "later_gpu_hours"),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = options(__doc__ or "", COLD_STARTS_S, (PLAN, *RIVALS), (PLAN, *RIVALS))
    parser.add_argument("--traces", type=Path, default=Path(), help="folder of traces")
    parser.add_argument("--only", nargs="+", choices=WINDOWS, metavar="NAME", default=list(WINDOWS), help="traces")
    parser.add_argument("--window", nargs=4, metavar=("FILE", "START_H", "HOURS", "SCALE"), help="run this part alone")
    given = parser.parse_args(arguments)
    names = {WINDOWS[name]: name for name in given.only}
    if given.window:
        file, *numbers = given.window
        names = {Window(file, *map(float, numbers)): file}
    runs = [Run(window, cold_start_s) for window in names for cold_start_s in given.cold_starts]
    beside = [name for name in (PLAN, *RIVALS) if name in given.beside]
    study = Study(runs, partial(load, given.traces), beside, given.out or KEPT, given.profile, KEPT)
    results = study.kept_results() if given.kept else study.results()
    rows = {Row(names[run.traffic], run.cold_start_s): [result] for run, result in results.items()}
    show(rows, judge, columns_of(rows), given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
