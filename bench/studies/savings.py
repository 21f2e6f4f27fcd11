"""Draw the GPU-hours of the shipped policy and of rivals beside the least constant count, from kept results.

    python bench/studies/savings.py > docs/pictures/savings.svg

Each row is one of `plain.py` or `public.py`, with cold starts of 240 s. A hollow dot misses the goal: 99% of the
requests in time, or what the constant count attains if that is less.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from bench.studies import plain, public
from bench.studies.dots import Dot, dots, standalone
from bench.studies.goals import LEAST_ATTAINMENT, Result, lowest, mean_of
from bench.studies.judged import CONSTANT, OURS, RIVALS, Run, Study

COLD_START_S = 240.0
SHAPES = ("office", "week", "sine", "launch", "flat", "bursts", "season")
TRACES = ("m-large", "m-large-later", "azure2024-day", "burstgpt")


def kept_rows() -> Iterator[tuple[str, Sequence[Result]]]:
    """Yield the name and the results of each row, one for each seed."""
    grid = plain.Grid(SHAPES, (float("nan"),), (COLD_START_S,))
    for row, results in plain.run_study(grid, plain.KEPT, only_kept=True).items():
        yield f"{row.shape}, {row.per_s:g}/s, {row.hours:g} h", results
    names = {public.WINDOWS[name]: name for name in TRACES}
    runs = [Run(window, COLD_START_S) for window in names]
    study = Study(runs, lambda window: public.load(Path(), window), RIVALS, public.KEPT, grid.profile, public.KEPT)
    for run, result in study.kept_results().items():
        yield f"{names[run.traffic]}, {run.traffic.hours:g} h", [result]


def row_of_dots(results: Sequence[Result]) -> dict[str, Dot]:
    """Return GPU-hours compared with those of the least constant count, by who decides."""
    reachable = min(LEAST_ATTAINMENT, lowest(results, CONSTANT, "attainment"))
    dots_by_name = {}
    for name in (OURS, *RIVALS):
        if ran := [each for each in results if name in each]:  # some rivals ran with the first seed alone
            ratio = mean_of(ran, name, "gpu_hours") / mean_of(ran, CONSTANT, "gpu_hours")
            dots_by_name[name] = Dot(ratio, hollow=lowest(ran, name, "attainment") < reachable)
    return dots_by_name


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print JSON instead of the picture")
    given = parser.parse_args(arguments)
    rows = {name: row_of_dots(results) for name, results in kept_rows()}
    unit = (
        "GPU-hours / those of the least constant count that keeps the goal, found in hindsight; hollow: misses the goal"
    )
    print(json.dumps(rows) if given.json else standalone(dots("GPU-hours by a constant count", rows, unit)), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
