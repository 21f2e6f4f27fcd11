"""The study of plain traffic: its requests, and the goals by which it judges."""

import importlib.util
import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.studies import plain, public
from bench.studies.judged import ROOT
from bench.studies.shapes import SHAPES, generate

ARRIVALS = {  # requests of seed 1, and the checksum of their times, as the program that defines the shapes draws them
    "step": (6066, 2954973606),
    "days": (552750, 2324744609),
    "office": (1258855, 2547590343),
    "week": (1586407, 3102197841),
    "sine": (2852472, 3812840967),
    "season": (288571, 3190073736),
    "flat": (1036833, 1475197254),
    "bursts": (463909, 3835607774),
    "launch": (1621527, 3564172352),
    "sparse": (2609, 384739248),
}


@pytest.mark.parametrize("name", ["step", "season", "bursts", "sparse"])
def test_requests_of_a_shape_are_those_of_its_definition(name: str) -> None:
    trace = generate(name, 1)
    assert (len(trace.arrival_s), zlib.crc32(trace.arrival_s.tobytes())) == ARRIVALS[name]


@pytest.mark.skipif("MAKE_SHAPES" not in os.environ, reason="MAKE_SHAPES names the program that defines the shapes")
@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_requests_of_a_shape_equal_those_of_the_program(name: str) -> None:
    spec = importlib.util.spec_from_file_location("make_shapes", Path(os.environ["MAKE_SHAPES"]))
    assert spec is not None and spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    assert list(program.SHAPES) == list(SHAPES)
    trace = generate(name, 2)
    assert trace.duration_s == program.SHAPES[name][0]
    for own, drawn in zip(
        (trace.arrival_s, trace.prompt_tokens, trace.output_tokens), program.draw(name, None, 2), strict=True
    ):
        assert np.array_equal(own, drawn)


def test_beginning_of_a_shape_has_its_first_requests() -> None:
    whole, begun = generate("season", 1), generate("season", 1, 2.0)
    assert begun.duration_s == 7200.0
    assert np.array_equal(begun.arrival_s, whole.arrival_s[: len(begun.arrival_s)])
    assert begun.arrival_s[-1] < 7200.0 <= whole.arrival_s[len(begun.arrival_s)]


def figures(attainment: float, gpu_hours: float, **more: Any) -> dict[str, Any]:
    later = {"later_attainment": attainment, "later_gpu_hours": gpu_hours / 2}
    plain_figures = {"attainment": attainment, "first_hour": attainment, "gpu_hours": gpu_hours, "flaps": 0}
    return {**plain_figures, **later, **more}


def missed(shape: str, ours: dict[str, Any], constant: dict[str, Any], **rivals: dict[str, Any]) -> list[str]:
    result = {"ours": ours, "constant": {"replicas": 2, **constant}}
    result |= {name.replace("_", "-"): figures for name, figures in rivals.items()}
    return [
        each.goal
        for each in plain.judge(plain.Row(shape, 1.0, 60.0, SHAPES[shape].hours), [result])
        if each.beyond > 1e-9
    ]


def test_row_meets_its_goals_at_their_limits() -> None:
    assert not missed("flat", figures(0.99, 10.5), figures(0.99, 10))
    assert not missed("season", figures(0.98, 15.0, later_attainment=0.99, first_hour=0.985), figures(0.99, 10))
    assert not missed("flat", figures(0.985, 10), figures(0.985, 10))  # no count has the attainment


def test_row_names_each_missed_goal() -> None:
    assert missed("flat", figures(0.98, 11, flaps=4), figures(0.99, 10)) == [
        *("attainment", "cost", "first hour", "flaps a day")
    ]
    assert missed("office", figures(0.99, 10), figures(0.99, 10)) == ["later cost"]
    assert missed("office", figures(0.99, 10), figures(0.99, 10, replicas=1)) == []


def test_only_a_rival_that_meets_the_goal_counts() -> None:
    assert missed("flat", figures(0.99, 10), figures(0.99, 10), keda_queue=figures(0.5, 1)) == []
    assert missed("flat", figures(0.99, 10), figures(0.99, 10), keda_queue=figures(0.99, 9)) == ["keda-queue"]
    late, early = figures(0.98, 5, later_attainment=0.99), figures(0.99, 8, later_gpu_hours=5)
    assert missed("days", figures(0.99, 10), figures(0.99, 10), keda_queue=late) == ["keda-queue"]
    assert missed("days", figures(0.99, 10), figures(0.99, 10), keda_queue=early) == ["keda-queue"]
    assert missed("step", figures(0.99, 13), figures(0.99, 10), keda_queue=figures(0.99, 10)) == []


def test_flaps_are_counted_by_day_of_the_run() -> None:
    two_days = plain.Row("office", 14.0, 60.0, 48.0)
    result = {"ours": figures(0.99, 7, flaps=3), "constant": figures(0.99, 10, replicas=2)}
    assert [each.value for each in plain.judge(two_days, [result]) if each.goal == "flaps a day"] == [1.5]


def missed_on_trace(ours: dict[str, Any], plan: dict[str, Any], **beside: dict[str, Any]) -> list[str]:
    result = {"ours": ours, "plan": plan, "constant": figures(0.99, 10)}
    result |= {name.replace("_", "-"): figures for name, figures in beside.items()}
    return [each.goal for each in public.judge(public.Row("a trace", 60.0), [result]) if each.beyond > 1e-9]


def test_trace_meets_its_goals_at_their_limits() -> None:
    assert not missed_on_trace(figures(0.99, 11, first_hour=0.985, flaps=2), figures(0.99, 10))
    assert not missed_on_trace(figures(0.985, 11), figures(0.985, 10))  # the plan has no more
    assert not missed_on_trace(figures(0.99, 10, flaps=2), figures(0.99, 10), hpa_inflight=figures(0.99, 20, flaps=4))


def test_trace_names_each_missed_goal() -> None:
    hpa = figures(0.99, 20, flaps=4)
    ours = figures(0.98, 12, flaps=3)
    assert missed_on_trace(ours, figures(0.99, 10), hpa_inflight=hpa) == ["attainment", "cost", "first hour", "flaps"]


def test_seeds_are_few_where_runs_are_long() -> None:
    runs = plain.runs_of(plain.Grid(cold_starts_s=(60.0,)))
    seeds: dict[tuple[str, float], list[int]] = {}
    for run in runs:
        seeds.setdefault((run.traffic.shape, run.traffic.per_s), []).append(run.traffic.seed)
    assert {shape for shape, _ in seeds} == set(SHAPES)
    assert seeds["flat", 12.0] == seeds["bursts", 80.0] == [1, 2, 3]
    assert seeds["office", 14.0] == seeds["flat", 240.0] == [1]
    assert len(seeds) == len(SHAPES) + 15


@pytest.mark.parametrize("study", [plain, public])
def test_documented_table_matches_the_kept_results(study: Any, capsys: pytest.CaptureFixture[str]) -> None:
    study.main(["--kept"])
    assert capsys.readouterr().out.strip() in (ROOT / "bench" / "results" / "README.md").read_text()
