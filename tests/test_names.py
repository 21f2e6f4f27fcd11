"""Names of classes: one idea has one, and each names one idea."""

import re
from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "autoscaler"


def test_a_name_of_a_class_is_given_once():
    """Private names count too: a reader who searches for a name finds one class."""
    texts = [path.read_text("utf-8") for path in sorted(PACKAGE.rglob("*.py"))]
    names = Counter(name for text in texts for name in re.findall(r"(?m)^class (\w+)", text))
    assert len(names) > 1000
    assert [name for name, times in names.items() if times > 1] == []
