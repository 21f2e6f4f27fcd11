from io import StringIO

from rich.console import Console

from autoscaler.lab.report.progress_bar import ProgressBar


def test_a_bar_is_there_from_the_start_and_gone_at_the_end() -> None:
    out = StringIO()
    with ProgressBar("simulating", Console(file=out, force_terminal=True, width=80)) as told:
        assert "simulating" in out.getvalue()
        told(0.5)
    assert out.getvalue().endswith("\x1b[2K")  # the line is erased


def test_a_bar_is_for_terminals() -> None:
    out = StringIO()
    with ProgressBar("simulating", Console(file=out)) as told:
        told(0.5)
    assert out.getvalue() == ""
