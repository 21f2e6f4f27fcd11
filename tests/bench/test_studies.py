"""The studies of GPUs, shrinks and cold starts: their tables in the docs are those of the kept results."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autoscaler.lab.replay.case import Outcome
from bench.studies import cold_starts, mix, shrinks, tiers
from bench.studies.results import read_results
from tests.bench.test_policies import RUNS
from tests.lab.replay.cases import make_case, trace_of

ROOT = Path(__file__).parents[2]

Table = Callable[[dict[str, dict[str, Any]]], str]
STUDIES: dict[str, tuple[Table, str]] = {
    "cold_starts": (cold_starts.table, "weights.md"),
    "mix": (mix.table, "sharing.md"),
    "shrinks": (shrinks.table, "sharing.md"),
    "tiers": (tiers.table, "sharing.md"),
}
"""The table of each study, and the page of docs/explanation that has it."""


def test_every_file_of_results_has_a_table() -> None:
    assert {file.stem for file in (ROOT / "bench" / "results").glob("*.jsonl")} == {*STUDIES, *RUNS}


@pytest.mark.parametrize("study", STUDIES)
def test_documented_tables_match_the_kept_results(study: str) -> None:
    table, page = STUDIES[study]
    told = table(read_results(ROOT / "bench" / "results" / f"{study}.jsonl")).strip()
    assert told in (ROOT / "docs" / "explanation" / page).read_text("utf-8")


def test_wanted_gpus_follow_the_changes_of_all_services() -> None:
    """One service wants 1 and from second 10 on 3, the other 2; the first five of 20 seconds do not count."""
    none = np.empty(0)

    def outcome(changes: list[tuple[float, int]]) -> Outcome:
        seconds, counts = (np.array(column) for column in zip(*changes, strict=True)) if changes else (none, none)
        return Outcome(none, none, none, seconds, counts.astype(np.int64), 0.0, none)

    cases = [
        make_case(trace_of([1.0], duration_s=20.0), counted_from_s=5.0, start_replicas=count, gpus_per_replica=0.5)
        for count in (1, 2)
    ]
    mean, peak = tiers.count_wanted(cases, [outcome([(10.0, 3)]), outcome([])])
    assert peak == 2.5
    assert mean == pytest.approx((5 * 1.5 + 10 * 2.5) / 15)
