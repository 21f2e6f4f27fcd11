from io import StringIO

from rich.console import Console

from autoscaler.sim.proof.report.table import print_proof
from autoscaler.sim.proof.report.words import COLUMNS
from tests.sim.proof.report.proofs import PLAN, proof


def test_the_table_has_every_column_and_tells_its_notes() -> None:
    out = StringIO()
    print_proof(proof(notes=("3 requests were shortened [bold]",)), Console(file=out, width=200))
    text = out.getvalue()
    for column in COLUMNS:
        assert column.title in text
    assert "clairvoyant bound: 10 GPU-hours" in text
    assert "note: 3 requests were shortened [bold]" in text  # markup in a note is text
    assert "office-day: 12,345 requests in 2.0 h, profile 8b-h100" in text


def test_a_plan_is_a_row_that_says_what_it_knows() -> None:
    out = StringIO()
    print_proof(proof(planned=PLAN), Console(file=out, width=200))
    (row,) = (line for line in out.getvalue().splitlines() if "planned (knows the trace)" in line)
    assert "99.20 %" in row
    assert "1.10×" in row  # over the bound
    assert "ours: 99.50 % at 12 GPU-hours, 1.09× the plan that knows the trace. No baseline met the goal." in (
        out.getvalue()
    )
