"""Validation before anything is applied: policies, and the manifests of workloads. Finds, never loads into force."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType

from autoscaler.config.document import SUFFIXES, Document, read_documents, read_text, yaml_files
from autoscaler.config.findings import Finding, Severity, shown
from autoscaler.config.manifests import TEMPLATES, at, check_workload
from autoscaler.config.model import API_VERSION, KIND, Policy
from autoscaler.config.policy import PolicyBook, read_policy

GROUP = API_VERSION.partition("/")[0]
MAX_FILES = 2000
MAX_BYTES = 16 << 20  # a rendered release with its CustomResourceDefinitions

# Knows one more kind of manifest; the book holds the policies that were checked as well.
ManifestChecker = Callable[[Document, PolicyBook], Iterable[Finding]]


@dataclass(frozen=True)
class Checked:
    """What was looked at, and what is wrong."""

    findings: tuple[Finding, ...]  # by file and line
    documents: Mapping[str, int]  # how many of each kind were checked
    skipped: Mapping[str, int]  # how many of each kind nobody here knows

    @property
    def failed(self) -> bool:
        """Whether there is an error; warnings alone are none."""
        return any(finding.severity is Severity.ERROR for finding in self.findings)


def check(
    paths: Sequence[Path], book: PolicyBook, extra: Mapping[str, ManifestChecker] = MappingProxyType({})
) -> Checked:
    """Check files, and folders with all that is below them.

    book: the policies that workloads may name, beside those in the files themselves.
    extra: checkers of further kinds, by kind. Never raises for what it reads.
    """
    findings: list[Finding] = []
    documents: list[Document] = []
    for path in yaml_files(paths, _manifests_below, "YAML files below", MAX_FILES, findings):
        text = read_text(path, MAX_BYTES)
        if isinstance(text, Finding):
            findings.append(text)
            continue
        found, faults = read_documents(str(path), text)
        documents.extend(item for document in found for item in document.items())
        findings.extend(faults)

    named = _check_policies(documents, findings)
    book = replace(book, policies=MappingProxyType({**book.policies, **named}))
    checked: Counter[str] = Counter()
    skipped: Counter[str] = Counter()
    for document in documents:
        kind = _kind(document)
        if kind == KIND:
            checked[kind] += 1
        elif kind in TEMPLATES:
            findings.extend(check_workload(document, book))
            checked[kind] += 1
        elif kind in extra:
            findings.extend(extra[kind](document, book))
            checked[kind] += 1
        else:
            findings.extend(_misspelt(document))
            skipped[kind] += 1
    findings.sort(key=lambda finding: (finding.file, finding.line))
    return Checked(tuple(findings), checked, skipped)


def _check_policies(documents: Iterable[Document], findings: list[Finding]) -> dict[str, Policy]:
    named: dict[str, Policy] = {}
    first: dict[str, str] = {}
    for document in documents:
        if _kind(document) != KIND:
            continue
        policy = read_policy(document, findings)
        if policy is None:
            continue
        if (
            named.get(policy.name, policy) != policy
        ):  # the same one again, as in a base and its copy, is no contradiction
            problem = f"another policy has this name; the first is in {first[policy.name]}"
            findings.append(document.finding(("metadata", "name"), problem, "each name once"))
        named.setdefault(policy.name, policy)
        first.setdefault(policy.name, f"{document.file}:{document.line}")
        findings.extend(_oddities(document, policy))
    return named


def _misspelt(document: Document) -> Iterator[Finding]:
    """Find what was to be a policy, by all but a letter or two: it would be passed over."""
    version, kind = at(document.value, "apiVersion"), at(document.value, "kind")
    if not (isinstance(version, str) and isinstance(kind, str)):
        return
    if version.partition("/")[0] == GROUP:
        yield document.finding(("kind",), "unknown kind", KIND)
    elif kind == KIND and get_close_matches(version.partition("/")[0][:100], [GROUP], cutoff=0.85):
        yield document.finding(("apiVersion",), "unknown version", API_VERSION)


def _oddities(document: Document, policy: Policy) -> Iterator[Finding]:
    """Find what is valid and hardly meant."""
    spec = policy.spec
    if spec.replicas.min == 0 and not spec.scale_to_zero.enabled:
        problem = "counts as 1: only scaleToZero leads to zero"
        yield document.warning(("spec", "replicas", "min"), problem, "scaleToZero.enabled: true, or at least 1")
    if not spec.scale_to_zero.enabled and "idle_after" in spec.scale_to_zero.model_fields_set:
        problem = "no effect while scaleToZero.enabled is false"
        yield document.warning(("spec", "scaleToZero", "idleAfter"), problem, "enabled: true beside it")
    for index, prewarm in enumerate(spec.prewarm):
        if prewarm.replicas > spec.replicas.max:
            allowed = f"at most replicas.max, which is {spec.replicas.max}"
            yield document.warning(("spec", "prewarm", index, "replicas"), "limited by replicas.max", allowed)


def _kind(document: Document) -> str:
    """Return what the document says it is. A policy of another version is a policy, so that its version is told."""
    kind, version = at(document.value, "kind"), at(document.value, "apiVersion")
    if kind == KIND and isinstance(version, str) and version.partition("/")[0] != GROUP:
        return f"{KIND} of {shown(version)}"  # somebody else's
    return kind if isinstance(kind, str) and kind.isidentifier() and len(kind) <= 63 else "unknown"


def _manifests_below(folder: Path) -> list[Path]:
    return [item for item in folder.rglob("*") if _is_manifest(item.relative_to(folder)) and item.is_file()]


def _is_manifest(path: Path) -> bool:
    return path.suffix in SUFFIXES and not any(part.startswith(".") for part in path.parts)
