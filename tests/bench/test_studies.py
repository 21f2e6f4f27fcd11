"""The studies of GPUs, shrinks, surges and cold starts: their tables in the docs are those of the kept results."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autoscaler.lab.replay.case import RunOutcome
from bench.studies import cold_starts, mix, shrinks, surges, tiers
from bench.studies.results import read_results
from tests.lab.replay.cases import make_case, trace_of

ROOT = Path(__file__).parents[2]

Table = Callable[[dict[str, dict[str, Any]]], str]
STUDIES: dict[str, tuple[Table, str]] = {
    "cold_starts": (cold_starts.table, "weights.md"),
    "mix": (mix.table, "sharing.md"),
    "shrinks": (shrinks.table, "sharing.md"),
    "surges": (surges.table, "../../bench/results/README.md"),
    "tiers": (tiers.table, "sharing.md"),
}
"""The table of each study, and the page that has it, from docs/explanation."""


def test_every_file_of_results_has_a_table() -> None:
    judged = {"plain", "public"}  # see test_plain
    assert {file.stem for file in (ROOT / "bench" / "results").glob("*.jsonl")} == {*STUDIES, *judged}


@pytest.mark.parametrize("study", STUDIES)
def test_documented_tables_match_the_kept_results(study: str) -> None:
    table, page = STUDIES[study]
    told = table(read_results(ROOT / "bench" / "results" / f"{study}.jsonl")).strip()
    assert told in (ROOT / "docs" / "explanation" / page).read_text("utf-8")


@pytest.mark.parametrize(
    ("late_from_s", "late_to_s", "gone_s"), [(0, 0, 1000), (1020, 1320, 1320), (1020, 4000, np.inf), (0, 900, 1000)]
)
def test_queue_of_a_surge_ends_where_a_minute_is_calm(late_from_s: float, late_to_s: float, gone_s: float) -> None:
    """A request comes each second, and the surge begins at 1000 s. A queue is interrupted for 20 s."""
    arrival_s = np.arange(4000.0)
    late = (arrival_s >= late_from_s) & (arrival_s < late_to_s)
    late[(arrival_s > 1200) & (arrival_s < 1220)] = False
    assert surges.find_queue_end_s(arrival_s, late, 1000.0) == gone_s


def test_wanted_gpus_follow_the_changes_of_all_services() -> None:
    """One service wants 1 and from second 10 on 3, the other 2; the first five of 20 seconds do not count."""
    none = np.empty(0)

    def outcome(changes: list[tuple[float, int]]) -> RunOutcome:
        seconds, counts = (np.array(column) for column in zip(*changes, strict=True)) if changes else (none, none)
        return RunOutcome(none, none, none, seconds, counts.astype(np.int64), 0.0, none)

    cases = [
        make_case(trace_of([1.0], duration_s=20.0), counted_from_s=5.0, start_replicas=count, gpus_per_replica=0.5)
        for count in (1, 2)
    ]
    mean, peak = tiers.count_wanted(cases, [outcome([(10.0, 3)]), outcome([])])
    assert peak == 2.5
    assert mean == pytest.approx((5 * 1.5 + 10 * 2.5) / 15)


def test_first_waits_are_those_of_the_first_request_after_zero() -> None:
    """The service is at zero from 10 to 21 s, and again from 30 s on; before 5 s nothing counts."""
    case = make_case(trace_of([1.0, 8.0, 20.0, 22.0, 40.0, 41.0], duration_s=60.0), start_replicas=0)
    none = np.empty(0)
    ttft_s = np.array([60.0, 0.1, 50.0, 48.0, 61.0, 60.0])
    changes = np.array([1.0, 10.0, 21.0, 30.0, 31.0, 35.0, 41.0]), np.array([1, 0, 1, 0, 1, 0, 1])
    outcome = RunOutcome(ttft_s, none, none, *changes, np.empty((0, 2)), none)
    assert cold_starts.first_waits_s(case, outcome).tolist() == [60.0, 50.0, 61.0]
    counted = replace(case, counted_from_s=5.0)
    assert cold_starts.first_waits_s(counted, outcome).tolist() == [50.0, 61.0]
