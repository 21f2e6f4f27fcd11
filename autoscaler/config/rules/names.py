"""Names of rules and their targets. They come from tenants and are printed, so only names of Kubernetes pass."""

from __future__ import annotations

import re

from autoscaler.config.check.manifests import at
from autoscaler.config.findings import Finding
from autoscaler.config.yaml import Document, Loc

UNNAMED = "without-a-name"
ALLOWED = "1 to 253 of a-z, 0-9, - and ., with a letter or digit at both ends"
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", re.ASCII)
_KIND = re.compile(r"[A-Za-z][A-Za-z0-9]{0,62}", re.ASCII)
NAME: Loc = ("metadata", "name")
NAMESPACE: Loc = ("metadata", "namespace")
TARGET: Loc = ("spec", "scaleTargetRef", "name")


def read_name(document: Document, place: Loc, findings: list[Finding], absent: str | None = None) -> str:
    """Return a name, or `absent` where none is stated; None: that is a problem. Problems are added to `findings`."""
    stated = at(document.value, *place)
    if stated is None and absent is not None:
        return absent
    if isinstance(stated, str) and _NAME.fullmatch(stated):
        return stated
    findings.append(document.finding(place, "missing" if stated is None else "not a name", ALLOWED))
    return ""


def read_kind(document: Document, findings: list[Finding]) -> str:
    """Return the kind of an object. A problem is added to `findings`."""
    stated = at(document.value, "kind")
    if isinstance(stated, str) and _KIND.fullmatch(stated):
        return stated
    findings.append(document.finding(("kind",), "not a kind", "letters and digits, such as Deployment"))
    return ""
