"""Every finding has its section, and every section a finding."""

import re
from pathlib import Path

from autoscaler.catalog.findings import BY_ID, FINDINGS, SEVERITIES
from autoscaler.catalog.findings.__main__ import pages

PAGES = Path(__file__).parents[2] / "docs" / "reference" / "findings"
ROOM = Path(__file__).parents[2] / "autoscaler"


def test_the_pages_are_those_of_the_table():
    """`python -m autoscaler.catalog.findings docs/reference/findings` makes them."""
    assert {file.name: file.read_text("utf-8") for file in PAGES.glob("*.md")} == pages()


def test_every_finding_has_its_section():
    sections = {
        name for file in PAGES.glob("*.md") for name in re.findall(r"^## (VA\d{4})$", file.read_text("utf-8"), re.M)
    }
    assert sections == BY_ID.keys()
    assert len(FINDINGS) == len(BY_ID)
    assert {each.severity for each in FINDINGS} == set(SEVERITIES)


def test_every_finding_is_made_somewhere():
    sources = [*(ROOM / "config" / "preflight").glob("*.py"), ROOM / "app" / "preflight.py"]
    made = {name for file in sources for name in re.findall(r'"(VA\d{4})"', file.read_text("utf-8"))}
    assert made == BY_ID.keys()
