"""Compare the shipped policy on public traces of half a day and more with the offline plan, and with rivals.

A trace is part of a file, at a size. A table of clients is drawn at that size; a file of requests is thinned, or copies
of it are superposed that do not burst together. The offline plan knows all requests. It is compared from the second
hour on, since it begins with what it needs. Rivals run at their documented settings.

    python bench/studies/public.py --traces FOLDER [--only m-large week] [--cold-starts 240] [--beside plan none]

Finished runs are kept in a file, as in `plain.py`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))

from autoscaler.lab.bounds.constant_count import find_fewest_replicas
from autoscaler.lab.compare.experiment import MIN_RISE
from autoscaler.lab.replay.case import Case, Trace
from autoscaler.lab.replay.inputs import client_table, trace_file, transform
from bench.studies.judged import (
    CONSTANT,
    FIRST_HOUR_POINTS,
    HOUR_S,
    LEAST_ATTAINMENT,
    OURS,
    PLAN,
    RIVALS,
    ROOT,
    Judgement,
    Run,
    Study,
    lowest,
    misses,
    ratio_to,
)

COLD_STARTS_S = (60.0, 240.0)
KEPT = ROOT / "bench" / "results" / "public.jsonl"
MOST_PLAN_RATIO = 1.10  # most GPU-hours beside the offline plan, from the second hour on
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


def judge(result: dict[str, Any]) -> list[Judgement]:
    """Judge a run by the goals."""
    results, judged = [result], []
    if PLAN in result:
        reachable = min(LEAST_ATTAINMENT, lowest(results, PLAN, "attainment"))
        judged.append(Judgement.at_least("attainment", result[OURS]["attainment"], reachable))
        judged.append(Judgement.at_most("cost", ratio_to(results, PLAN, "later_gpu_hours"), MOST_PLAN_RATIO))
    first = result[CONSTANT]["first_hour"] - FIRST_HOUR_POINTS
    judged.append(Judgement.at_least("first hour", result[OURS]["first_hour"], first))
    if "hpa-inflight" in result:
        most = MOST_FLAPS * result["hpa-inflight"]["flaps"]
        judged.append(Judgement.at_most("flaps", result[OURS]["flaps"], most))
    return judged


def table(rows: dict[tuple[str, float], dict[str, Any]]) -> str:
    beside = [name for name in (CONSTANT, PLAN, *RIVALS) if any(name in result for result in rows.values())]
    titles = [
        "trace",
        "requests",
        "cold start",
        "ours: attainment",
        "first hour",
        "GPU-hours",
        "from the second hour on",
    ]
    titles += ["flaps", *beside, "ours / plan from the second hour on", "missed goals"]
    lines = [f"| {' | '.join(titles)} |", "|" + "---|" * len(titles)]
    met = 0
    for (name, cold_start_s), result in rows.items():
        ours, judged = result[OURS], judge(result)
        met += not misses(judged)
        cells = [name, f"{ours['requests']:,}", f"{cold_start_s:g} s", f"{ours['attainment']:.2%}"]
        cells += [f"{ours['first_hour']:.2%}", f"{ours['gpu_hours']:.4g}", f"{ours['later_gpu_hours']:.4g}"]
        cells.append(str(ours["flaps"]))
        for other in beside:
            its = result.get(other)
            cells.append(f"{its['attainment']:.2%}, {its['gpu_hours']:.4g}" if its else "")
        cells.append(f"{ratio_to([result], PLAN, 'later_gpu_hours'):.2f}" if PLAN in result else "")
        lines.append(f"| {' | '.join([*cells, misses(judged) or 'none'])} |")
    return "\n".join([*lines, "", f"All goals are met in {met} of {len(rows)} rows.", ""])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--traces", type=Path, default=Path(), help="folder of traces")
    parser.add_argument("--only", nargs="+", choices=WINDOWS, metavar="NAME", default=list(WINDOWS), help="traces")
    parser.add_argument("--cold-starts", type=float, nargs="+", metavar="SECONDS", default=list(COLD_STARTS_S))
    beside = ("none", PLAN, *RIVALS)
    parser.add_argument("--beside", nargs="+", choices=beside, metavar="NAME", default=[PLAN, *RIVALS])
    parser.add_argument("--profile", default="8b-h100-3g", help="profile of a replica")
    parser.add_argument("--out", type=Path, default=KEPT, help="file of results, which is continued")
    parser.add_argument("--kept", action="store_true", help="run nothing, and show what is kept")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--window", nargs=4, metavar=("FILE", "START_H", "HOURS", "SCALE"), help="run this part alone")
    given = parser.parse_args(arguments)
    names = {WINDOWS[name]: name for name in given.only}
    if given.window:
        file, *numbers = given.window
        names = {Window(file, *map(float, numbers)): file}
    runs = [Run(window, cold_start_s) for window in names for cold_start_s in given.cold_starts]
    others = [name for name in beside[1:] if name in given.beside]
    study = Study(runs, partial(load, given.traces), others, given.out, given.profile, KEPT)
    results = study.kept_results() if given.kept else study.results()
    rows = {(names[run.traffic], run.cold_start_s): result for run, result in results.items()}
    if given.json:
        print(json.dumps([{"trace": row, "runs": result} for row, result in rows.items()]))
    else:
        print(table(rows), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
