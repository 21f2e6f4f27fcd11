from io import StringIO

from rich.console import Console

from autoscaler.lab.report.progress_bar import ProgressBar


def test_bar_shows_from_the_start_and_disappears() -> None:
    out = StringIO()
    with ProgressBar("simulating", Console(file=out, force_terminal=True, width=80)) as told:
        assert "simulating" in out.getvalue()
        told(0.5)
    assert out.getvalue().endswith("\x1b[2K")  # the line is erased


def test_bar_shows_on_terminals_only() -> None:
    out = StringIO()
    with ProgressBar("simulating", Console(file=out)) as told:
        told(0.5)
    assert out.getvalue() == ""
