"""How `preflight` says what it found: text, JSON, SARIF, annotations of GitHub."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any
from urllib.parse import quote

from autoscaler.adapters.turns import in_turns
from autoscaler.catalog.findings import BY_ID, SEVERITIES
from autoscaler.config.preflight.objects import NotChecked, PreflightFinding
from autoscaler.config.preflight.run import PreflightOutcome

FORMAT_VERSION = 1
_SARIF_LEVELS: Mapping[str, str] = {"error": "error", "warning": "warning", "note": "note"}
_GITHUB_LEVELS: Mapping[str, str] = {"error": "error", "warning": "warning", "note": "notice"}
MOST_LISTED = 2000  # places that were not checked, in JSON
_MOST_REASONS = 40  # shown in text


def write(outcome: PreflightOutcome, form: str) -> None:
    """Print an outcome."""
    if form == "json":
        print(json.dumps(as_json(outcome), indent=2))
    elif form == "sarif":
        print(json.dumps(as_sarif(outcome), indent=2))
    elif form == "github":
        for line in as_github(outcome):
            print(line)
    else:
        for line in as_text(outcome):
            print(_no_command(line))


def as_json(outcome: PreflightOutcome) -> dict[str, Any]:
    return {
        "version": FORMAT_VERSION,
        "findings": [
            {
                "id": each.id,
                "severity": each.severity,
                "object": each.object.key,
                "path": each.path,
                "line": each.line,
                "message": _plain(each.message),
                "why": _plain(each.why),
                "fix": _plain(each.fix),
            }
            for each in outcome.findings
        ],
        "not_checked": [
            {"object": each.object, "path": each.path, "what": each.what, "reason": _plain(each.reason)}
            for each in _listed(outcome.not_checked)
        ],
    }


def as_text(outcome: PreflightOutcome) -> Iterator[str]:
    """Yield lines: groups by workload, worst first, and a summary."""
    groups: dict[str, list[PreflightFinding]] = {}
    for each in outcome.findings:
        groups.setdefault(outcome.groups.get(each.object.key, each.object.key), []).append(each)
    for name, found in sorted(groups.items(), key=lambda item: _weight(item[1])):
        yield _plain(name)
        for each in found:
            where = "" if each.object.key == name else f" {each.object.key}"
            place = f"{each.object.document.file}:{each.line}" if each.line else "cluster"
            yield f"  {each.severity:7} {each.id}{_plain(where)} {_plain(each.path)} ({_plain(place)})"
            yield f"          {_plain(each.message)}"
            yield f"          why: {_plain(each.why)}"
            yield f"          fix: {_plain(each.fix)}"
            yield f"          {BY_ID[each.id].page}"
        yield ""
    yield from _unchecked(_by_turns(outcome.not_checked))
    counts = Counter(each.severity for each in outcome.findings)
    words = ", ".join(f"{counts[severity]} {severity}{'s' * (counts[severity] != 1)}" for severity in SEVERITIES)
    suppressed = f"; {outcome.suppressed} suppressed" if outcome.suppressed else ""
    left = len(outcome.not_checked)
    yield f"{outcome.workloads} workloads: {words}{suppressed}; {left} not checked"


def _weight(found: list[PreflightFinding]) -> tuple[int, int]:
    """Return an order of groups: the worst first, of equal ones that with more of them."""
    worst = min(SEVERITIES.index(each.severity) for each in found)
    return worst, -sum(SEVERITIES.index(each.severity) == worst for each in found)


def _by_turns(not_checked: Sequence[NotChecked]) -> list[NotChecked]:
    """Return what was not checked so that namespaces take turns, and the objects of one hide nothing of another."""
    return in_turns(not_checked, lambda each: each.object.split("/")[1] if each.object.count("/") == 2 else "")


def _listed(not_checked: Sequence[NotChecked]) -> list[NotChecked]:
    """Return as many as are listed, and how many more there are."""
    order = _by_turns(not_checked)
    left = len(order) - MOST_LISTED
    rest = NotChecked("", "", f"{left:,} more", f"only {MOST_LISTED:,} are listed, of each namespace in turn")
    return [*order[:MOST_LISTED], *([rest] if left > 0 else [])]


def _unchecked(not_checked: Sequence[NotChecked]) -> Iterator[str]:
    """Yield what was not checked; equal reasons stand together."""
    reasons: dict[tuple[str, str], list[NotChecked]] = {}
    for each in not_checked:
        reasons.setdefault((each.what, each.reason), []).append(each)
    if reasons:
        yield "not checked:"
    for (what, reason), places in list(reasons.items())[:_MOST_REASONS]:
        first = f"{places[0].object} {places[0].path}".strip()
        more = f" and {len(places) - 1} more" if len(places) > 1 else ""
        yield f"  {_plain(first)}{more}: {what}: {_plain(reason)}"
    if len(reasons) > _MOST_REASONS:
        yield f"  ... and {len(reasons) - _MOST_REASONS} more reasons; --json lists them"
    if reasons:
        yield ""


def as_github(outcome: PreflightOutcome) -> Iterator[str]:
    """Yield workflow commands of GitHub Actions, which annotate the lines of a pull request."""
    for each in outcome.findings:
        place = {
            "file": each.object.document.file,
            "line": str(each.line or 1),
            "title": f"{each.id} {each.object.key}",
        }
        properties = ",".join(f"{key}={_escaped(value, ':,')}" for key, value in place.items() if value)
        text = f"{each.message}\n{each.why}\nfix: {each.fix}\n{BY_ID[each.id].page}"
        yield f"::{_GITHUB_LEVELS[each.severity]} {properties}::{_escaped(text)}"


def _escaped(text: str, more: str = "") -> str:
    for sign, code in (("%", "%25"), ("\r", "%0D"), ("\n", "%0A"), (":", "%3A"), (",", "%2C")):
        if sign not in ":," or sign in more:
            text = text.replace(sign, code)
    return "".join(each if each.isprintable() else "?" for each in text)


def as_sarif(outcome: PreflightOutcome) -> dict[str, Any]:
    """Return a SARIF 2.1.0 log."""
    used = sorted({each.id for each in outcome.findings})
    rules = [
        {
            "id": each,
            "shortDescription": {"text": BY_ID[each].subject},
            "fullDescription": {"text": BY_ID[each].cause},
            "help": {"text": f"{BY_ID[each].cure} ({BY_ID[each].page})"},
            "defaultConfiguration": {"level": _SARIF_LEVELS[BY_ID[each].severity]},
        }
        for each in used
    ]
    results = []
    for each in outcome.findings:
        result: dict[str, Any] = {
            "ruleId": each.id,
            "level": _SARIF_LEVELS[each.severity],
            "message": {"text": _no_link(f"{each.object.key} {each.path}: {each.message}. {each.why} Fix: {each.fix}")},
            "partialFingerprints": {"object/v1": f"{each.id} {each.object.key} {each.path}"},
        }
        if each.line and each.object.document.file:
            region = {"startLine": each.line}
            place = {"artifactLocation": {"uri": quote(each.object.document.file)}, "region": region}
            result["locations"] = [{"physicalLocation": place}]
        results.append(result)
    driver = {"name": "vllm-autoscaler preflight", "version": version("vllm-autoscaler"), "rules": rules}
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }


def _no_command(line: str) -> str:
    """Return a line of text that a runner of GitHub Actions does not take for a command."""
    return line.replace("::", ": :").replace("##[", "## [")


def _no_link(text: str) -> str:
    """Return a text without links of SARIF, which a name could bring."""
    return "".join(f"\\{each}" if each in "\\[]" else each for each in _plain(text))


def _plain(text: str) -> str:
    return "".join(each if each.isprintable() else " " for each in text)
