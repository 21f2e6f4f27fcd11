"""Policies as text, and how the present ones differ from those before."""

from __future__ import annotations

from difflib import unified_diff
from typing import Any

import yaml

from autoscaler.config.policy.namespace_limits import LIMITS_KIND
from autoscaler.config.policy.parse import PolicyBook
from autoscaler.config.policy.schema import Section, to_document

MAX_LINES = 200
"""Lines of one difference; the rest is only counted."""


def as_texts(book: PolicyBook) -> dict[str, str]:
    """Return each policy as YAML by name, and the limits of namespaces under the name of their kind."""
    sections: dict[str, Section] = {name: policy.spec for name, policy in book.policies.items()}
    texts = {name: _as_yaml(to_document(section)) for name, section in sections.items()}
    if book.limits is not None:
        texts[LIMITS_KIND] = _as_yaml(to_document(book.limits.spec))
    return texts


def find_differences(before: dict[str, str], after: dict[str, str]) -> dict[str, str]:
    """Return the lines that were removed and added, by name of the policy; a policy without changes is left out."""
    found = {}
    for name in sorted({*before, *after}):
        lines = unified_diff(before.get(name, "").splitlines(), after.get(name, "").splitlines(), n=0, lineterm="")
        changed = [line for line in lines if not line.startswith(("---", "+++", "@@"))]
        if changed:
            more = [f"and {len(changed) - MAX_LINES} lines more"] if len(changed) > MAX_LINES else []
            found[name] = "\n".join([*changed[:MAX_LINES], *more])
    return found


def _as_yaml(document: dict[str, Any]) -> str:
    text: str = yaml.safe_dump(document, sort_keys=False, default_flow_style=False)
    return text
