import math
from dataclasses import replace
from io import StringIO

from rich.console import Console

from autoscaler.core.model.money import Price
from autoscaler.lab.compare.result import LearningResult
from autoscaler.lab.report.format import COLUMNS
from autoscaler.lab.report.table import print_comparison
from tests.lab.report.comparisons import PLAN, comparison, run


def test_table_has_every_column_and_the_notes() -> None:
    out = StringIO()
    print_comparison(comparison(notes=("3 requests were shortened [bold]",)), Console(file=out, width=200))
    text = out.getvalue()
    for column in COLUMNS:
        assert column.title in text
    assert "lower bound: 10 GPU-hours; with interference between requests about 11.5" in text
    assert "note: 3 requests were shortened [bold]" in text  # markup in a note is text
    assert "office-day: 12,345 requests in 2.0 h, profile 8b-h100" in text
    print_comparison(comparison(requests=1), Console(file=out, width=200))
    assert "office-day: 1 request in 2.0 h" in out.getvalue()


def test_our_row_is_dim_when_it_misses_the_goal() -> None:
    out = StringIO()
    print_comparison(comparison(run(attainment=0.5)), Console(file=out, width=200, force_terminal=True))
    (score,) = (line for line in out.getvalue().splitlines() if "ours" in line and "│" in line)
    assert "\x1b[1;2mours" in score


def test_learning_part_and_its_choice_are_shown() -> None:
    out = StringIO()
    chosen = replace(run("keda-rps", gpu_hours=11.0), before=LearningResult(0.995, 7.0))
    print_comparison(comparison(run(), chosen, learned_s=21_600.0), Console(file=out, width=200))
    text = out.getvalue()
    assert "12,345 requests in 2.0 h after 6.0 h to learn from, profile" in text
    assert "│ keda-rps (tuned before) │" in text
    assert "Best baseline that met the goal: keda-rps (tuned before)" in text
    assert "Judged by the first 6.0 h, the best was keda-rps: 99.50% at 7 GPU-hours there" in text


def test_offline_plan_row_says_that_it_knows_the_trace() -> None:
    out = StringIO()
    print_comparison(comparison(offline_plan=PLAN), Console(file=out, width=200))
    (score,) = (line for line in out.getvalue().splitlines() if "offline-plan (knows the trace)" in line)
    assert "99.20%" in score
    assert "1.10×" in score  # over the bound
    assert "ours: 99.50% at 12 GPU-hours, 1.09× the offline plan. No baseline met the goal." in (out.getvalue())


def test_narrow_terminal_omits_columns_and_says_so() -> None:
    for width in (45, 60, 80, 100, 120):
        out = StringIO()
        print_comparison(
            comparison(trace="a[red]b\x1b"), Console(file=out, width=width, force_terminal=True, color_system=None)
        )
        text = out.getvalue()
        assert "…" not in text
        assert max(map(len, text.splitlines())) <= width
        assert "a[red]b?: " in text, "a name is neither markup nor steers the terminal"
        for column in ("attainment", "GPU-hours", "ratio"):
            assert column in text
        assert ("left out, as the terminal is narrow: " in text) == (
            width < 120 or "flaps" not in text.split("left")[0]
        )


def test_costs_are_shown_where_a_price_is_known():
    out = StringIO()
    print_comparison(comparison(), Console(file=out, width=400))
    shown = out.getvalue()
    assert all(words in shown for words in ("a GPU at $6.88 an hour", "$82.56", "$68.80 / $9.17"))
    out = StringIO()
    unpriced = comparison(gpu_price=Price(math.nan, "the profile names no GPU"))
    print_comparison(unpriced, Console(file=out, width=400))
    shown = out.getvalue()
    assert "no cost: the profile names no GPU" in shown
    assert "per M tok" not in shown
