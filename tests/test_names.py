"""Names of classes: one idea has one, and each names one idea."""

import ast
from collections import Counter
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PACKAGE = Path(__file__).parents[1] / "autoscaler"


def test_a_name_of_a_class_is_given_once():
    """Private names count too: a reader who searches for a name finds one class."""
    trees = [ast.parse(path.read_text("utf-8")) for path in sorted(PACKAGE.rglob("*.py"))]
    names = Counter(node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef))
    assert len(names) > 1000
    assert [name for name, times in names.items() if times > 1] == []
