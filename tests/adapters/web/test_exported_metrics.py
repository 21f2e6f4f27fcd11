"""The metrics reference."""

import re
from pathlib import Path

from autoscaler.adapters.web.exported_metrics import AGENT, FAMILIES, KEDA, WEBHOOK, markdown
from autoscaler.adapters.web.metric_family import PREFIX

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "metrics.md"


def test_the_page_in_docs_says_what_the_code_exports() -> None:
    assert PAGE.read_text() == markdown(), (
        "run: python -m autoscaler.adapters.web.exported_metrics > docs/reference/metrics.md"
    )


def test_every_name_is_a_unique_prometheus_name_with_its_suffix() -> None:
    names = [family.full_name for family in FAMILIES + KEDA + AGENT + WEBHOOK]
    assert len(set(names)) == len(names)
    for family in FAMILIES + KEDA + AGENT + WEBHOOK:
        assert re.fullmatch(PREFIX + "[a-z][a-z_]*", family.full_name)
        assert family.full_name.endswith("_total") == (family.type == "counter")
        assert family.meaning.endswith(".")
