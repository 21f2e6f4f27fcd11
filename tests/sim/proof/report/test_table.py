from io import StringIO

from rich.console import Console

from autoscaler.sim.proof.report.table import print_proof
from autoscaler.sim.proof.report.words import COLUMNS
from tests.sim.proof.report.proofs import proof


def test_the_table_has_every_column_and_tells_its_notes() -> None:
    out = StringIO()
    print_proof(proof(notes=("3 requests were shortened [bold]",)), Console(file=out, width=200))
    text = out.getvalue()
    for column in COLUMNS:
        assert column.title in text
    assert "clairvoyant bound: 10 GPU-hours" in text
    assert "note: 3 requests were shortened [bold]" in text  # markup in a note is text
    assert "office-day: 12,345 requests in 2.0 h, profile 8b-h100" in text
