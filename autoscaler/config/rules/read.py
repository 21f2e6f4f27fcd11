"""Finds the scaling rules in files, and in objects of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from autoscaler.config.check.files import MAX_MANIFEST_BYTES
from autoscaler.config.check.manifests import at, text_at
from autoscaler.config.findings import Finding, PolicyError
from autoscaler.config.rules import hpa, knative, scaledobject
from autoscaler.config.rules.rule import Rule, RuleNote
from autoscaler.config.yaml import Document, read_documents, read_text

MAX_RULES = 500
ALLOWED = f"a ScaledObject, a HorizontalPodAutoscaler, or an object with annotations {knative.PREFIX}*"
NONE: Mapping[str, str] = MappingProxyType({})


def read_files(paths: Sequence[Path], recorded: Mapping[str, str] = NONE) -> tuple[Rule, ...]:
    """Return the rules in files, in order. Raises PolicyError with every problem.

    recorded: expressions of recording rules by name, which queries may use.
    """
    rules: list[Rule] = []
    findings: list[Finding] = []
    for path in paths:
        text = read_text(path, MAX_MANIFEST_BYTES)
        if isinstance(text, Finding):
            findings.append(text)
            continue
        documents, faults = read_documents(str(path), text)
        findings += faults
        before = len(rules)
        for document in (item for whole in documents for item in whole.items()):
            rules += _read(document, recorded, findings)
        if len(rules) == before and not findings:
            findings.append(Finding(str(path), 0, "", "no scaling rule in this file", allowed=ALLOWED))
    if len(rules) > MAX_RULES:
        findings.append(Finding(str(paths[0]), 0, "", f"{len(rules)} scaling rules", allowed=f"at most {MAX_RULES}"))
    if findings:
        raise PolicyError(findings)
    return tuple(rules)


def read_objects(
    objects: Sequence[Mapping[str, object]], recorded: Mapping[str, str] = NONE
) -> tuple[tuple[Rule, ...], tuple[RuleNote, ...]]:
    """Return the rules of objects as an API server gives them, and the problems of those that cannot be read.

    An object that is no rule takes the place of none. Of more than `MAX_RULES` the first ones are read.
    """
    rules: list[Rule] = []
    told: list[RuleNote] = []
    tried = 0
    for value in objects:
        before, findings = len(rules), list[Finding]()
        namespace = text_at(value, "metadata", "namespace")
        name = f"{text_at(value, 'kind')} {namespace}/{text_at(value, 'metadata', 'name')}"
        rules += _read(Document(name, 0, value), recorded, findings)
        told += (RuleNote(namespace, str(finding)) for finding in findings)
        tried += bool(findings) or before != len(rules)
        if tried == MAX_RULES:
            most = f"only {MAX_RULES} scaling rules are read, of each namespace in turn; --namespace reads others"
            told.insert(0, RuleNote("", most))
            break
    return tuple(rules), tuple(told)


def _read(document: Document, recorded: Mapping[str, str], findings: list[Finding]) -> list[Rule]:
    """Return the rule of a document, if it is one. An HPA that KEDA keeps is that of its ScaledObject."""
    value = document.value
    readers: Mapping[object, Callable[[], Rule | None]] = {
        scaledobject.KIND: lambda: scaledobject.read_scaled_object(document, recorded, findings),
        hpa.KIND: lambda: None if _is_kedas(value) else hpa.read_autoscaler(document, findings),
    }
    kind = at(value, "kind")
    if isinstance(kind, str) and kind in readers:
        found = readers[kind]()
    else:
        found = knative.read_annotations(document, findings) if knative.has_annotations(value) else None
    return [found] if found is not None else []


def _is_kedas(value: object) -> bool:
    owners = at(value, "metadata", "ownerReferences")
    return isinstance(owners, list) and any(at(owner, "kind") == scaledobject.KIND for owner in owners[:100])
