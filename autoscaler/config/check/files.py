"""Checks files before they are applied: policies and manifests of workloads. Nothing is loaded into the daemon."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType

from autoscaler.config.check.manifests import at, check_unscaled, check_workload, known_kind, mapping
from autoscaler.config.findings import Finding, PolicyError, Severity, shown, unknown
from autoscaler.config.policy.namespace_limits import LIMITS_KIND, NamespaceLimits
from autoscaler.config.policy.parse import MAX_FILES, PolicyBook, assemble, is_policy_file, read_limits, read_policy
from autoscaler.config.policy.schema import API_VERSION, KIND, Policy
from autoscaler.config.yaml import MAX_BYTES, SUFFIXES, Document, decode_text, read_documents, read_text, yaml_files

GROUP = API_VERSION.partition("/")[0]
STANDARD_INPUT = Path("-"), Path("/dev/stdin")
MAX_MANIFESTS = 2000  # files; for policies MAX_FILES per folder, as in the daemon
MAX_MANIFEST_BYTES = 16 << 20  # a rendered release with its CustomResourceDefinitions; MAX_BYTES for policies
CONFIG_MAP = "vllm-autoscaler-policies"  # in manifests/base; all its *.yaml and *.yml are policies
_UNKNOWN = "unknown"  # kind of a document without a kind
# Matches text with a policy, even if it is not valid YAML.
_OUR_API_VERSION = re.compile(rf"\bapiVersion[\"']?\s*:\s*[\"']?{re.escape(GROUP)}/")

# Checks a further kind of manifest. The book includes the checked policies.
ManifestChecker = Callable[[Document, PolicyBook], Iterable[Finding]]
# Returns why a document of such a kind is passed over; "": it is checked.
PassedOver = Callable[[Document], str]


@dataclass(frozen=True)
class Checked:
    """The result of a check."""

    findings: tuple[Finding, ...]  # by file and line
    documents: Mapping[str, int]  # number of checked documents, by kind
    skipped: Mapping[str, int]  # number of documents of unknown kinds, by kind
    passed_over: tuple[str, ...] = ()  # documents of known kinds that were not checked, each with the reason
    read: tuple[Document, ...] = ()  # all documents, for further checks

    @property
    def failed(self) -> bool:
        """Whether there is an error, not only warnings."""
        return any(finding.severity is Severity.ERROR for finding in self.findings)


def check(
    paths: Sequence[Path],
    book: PolicyBook,
    extra: Mapping[str, ManifestChecker] = MappingProxyType({}),
    most_bytes: int = MAX_MANIFEST_BYTES,
    of_workloads: Sequence[ManifestChecker] = (),
    passed_over: Mapping[str, PassedOver] = MappingProxyType({}),
) -> Checked:
    """Check files, folders with their subfolders, and standard input if a path is `-`.

    book: policies that workloads may name, in addition to those in the files; its default may be one of those.
    extra: checkers of further kinds, by kind. most_bytes: of one file. of_workloads: further checkers of workloads.
    passed_over: by kind, which documents the checkers pass over.
    Never raises for the content of files. Raises PolicyError if the only problem is a missing default policy.
    """
    findings: list[Finding] = []
    documents: list[Document] = []
    for path in paths:
        found, faults = read_manifests(path, most_bytes)
        if not faults and all(_kind(document) == _UNKNOWN for document in found):
            faults.append(Finding(_name(path), 0, "", "nothing to check", allowed="YAML documents with a kind"))
        documents.extend(found)
        findings.extend(faults)

    named = _check_policies(documents, findings)
    limits = _check_limits(documents, findings)
    checked: Counter[str] = Counter()
    skipped: Counter[str] = Counter()
    reasons: list[str] = []
    try:
        book = assemble(book.policies, book.default, paths, named, book.limits if limits is None else limits)
    except PolicyError:
        if not findings:
            raise
        documents = []  # the default policy may be an invalid one, so report these first
    for document in documents:
        kind = _kind(document)
        if kind in (KIND, LIMITS_KIND):
            checked[kind] += 1
        elif (row := known_kind(document.value)) is not None and not row.refusal:
            for checker in (check_workload, *of_workloads):
                findings.extend(checker(document, book))
            checked[kind] += 1
        elif kind in passed_over and (reason := passed_over[kind](document)):
            name = shown(at(document.value, "metadata", "name"))
            reasons.append(f"{document.file}:{document.line}: {kind} {name}: {reason}")
            skipped[kind] += 1
        elif kind in extra:
            findings.extend(extra[kind](document, book))
            checked[kind] += 1
        else:
            findings.extend(_misspelt(document))
            findings.extend(check_unscaled(document))
            skipped[kind] += 1
    findings.sort(key=lambda finding: (finding.file, finding.line))
    return Checked(tuple(findings), checked, skipped, tuple(reasons), tuple(documents))


def read_manifests(path: Path, most_bytes: int = MAX_MANIFEST_BYTES) -> tuple[list[Document], list[Finding]]:
    """Read a file, a folder with subfolders, or standard input; report policies that the daemon would refuse."""
    documents: list[Document] = []
    findings: list[Finding] = []
    holding: Counter[Path] = Counter()  # number of files with policies, by folder
    for each in yaml_files([path], _manifests_below, "YAML files below", MAX_MANIFESTS, findings):
        if each in STANDARD_INPUT:
            data = sys.stdin.buffer.read(most_bytes + 1) if sys.stdin else b""
            text = decode_text(_name(each), data, most_bytes)
        else:
            text = read_text(each, most_bytes)
        if isinstance(text, Finding):
            findings.append(text)
            continue
        found, faults = read_documents(_name(each), text)
        found = [item for document in found for item in document.items()]
        documents.extend(_unpack(found, findings, holding, most_bytes))
        findings.extend(faults)
        if any(_kind(document) == KIND for document in found):
            holding[each.parent] += 1
            if len(text.encode()) > MAX_BYTES:
                problem = f"a policy in a file of more than {MAX_BYTES} bytes"
                findings.append(Finding(_name(each), 0, "", problem, allowed="a smaller file of its own"))
    for folder, count in holding.items():
        if count > MAX_FILES:
            allowed = f"at most {MAX_FILES}"
            findings.append(Finding(str(folder), 0, "", f"{count} policy files in this folder", allowed=allowed))
    return documents, findings


def _unpack(
    documents: list[Document], findings: list[Finding], holding: Counter[Path], most_bytes: int
) -> Iterator[Document]:
    """Replace each ConfigMap of policies by its files, as the daemon finds them mounted in one folder.

    The total size per manifest is bounded, because aliases can repeat a text many times.
    """
    left = most_bytes
    for document in documents:
        inside: list[Document] = []
        named = at(document.value, "metadata", "name") == CONFIG_MAP
        for file, text in _mounted(document):
            data = text.encode("utf-8", "surrogatepass")
            left -= len(data)
            if left < 0:
                problem = f"more than {most_bytes} bytes of YAML in ConfigMaps"
                findings.append(Finding(document.file, document.line, "", problem, allowed="several files"))
                return
            if not named and not _OUR_API_VERSION.search(text):
                continue
            decoded = decode_text(file, data, MAX_BYTES)
            found, faults = ([], [decoded]) if isinstance(decoded, Finding) else read_documents(file, decoded)
            inside.extend(found)
            findings.extend(faults)
            holding[Path(file).parent] += any(_kind(item) == KIND for item in found)
        yield from inside or [document]


def _mounted(document: Document) -> Iterator[tuple[str, str]]:
    """Yield the policy files of a mounted ConfigMap: a name for findings, and the text."""
    if at(document.value, "kind") != "ConfigMap":
        return
    name = at(document.value, "metadata", "name")
    for key, text in mapping(at(document.value, "data")).items():
        if isinstance(text, str) and is_policy_file(Path(key)):
            yield f"{document.file}:{shown(f'{name}/{key}')[1:-1]}", text


def _name(path: Path) -> str:
    return "standard input" if path in STANDARD_INPUT else str(path)


def _check_policies(documents: Iterable[Document], findings: list[Finding]) -> dict[str, Policy]:
    named: dict[str, Policy] = {}
    first: dict[str, Document] = {}
    for document in documents:
        if _kind(document) != KIND:
            continue
        policy = read_policy(document, findings)
        if policy is None:
            continue
        before = first.setdefault(policy.name, document)
        place, its = (before.file, before.line), (document.file, document.line)  # equal if a file is given twice
        # The same policy in another folder, such as a base and its copy, is allowed: the daemon reads one.
        together = place != its and Path(before.file).parent == Path(document.file).parent
        if together or named.get(policy.name, policy) != policy:
            problem = f"another policy has this name; the first is in {before.file}:{before.line}"
            findings.append(document.finding(("metadata", "name"), problem, "each name once"))
        named.setdefault(policy.name, policy)
        findings.extend(_policy_warnings(document, policy))
    return named


def _check_limits(documents: Iterable[Document], findings: list[Finding]) -> NamespaceLimits | None:
    """Return the limits of namespaces that the documents state. A base and its copy may state the same."""
    first: tuple[NamespaceLimits, Document] | None = None
    for document in documents:
        limits = read_limits(document, findings) if _kind(document) == LIMITS_KIND else None
        if limits is None:
            continue
        known, before = first = first or (limits, document)
        together = document is not before and Path(before.file).parent == Path(document.file).parent
        if together or known != limits:
            problem = f"another document of this kind; the first is in {before.file}:{before.line}"
            findings.append(document.finding(("kind",), problem, "one"))
    return first[0] if first else None


def _misspelt(document: Document) -> Iterator[Finding]:
    """Find documents that are almost policies and would be ignored."""
    version, kind = at(document.value, "apiVersion"), at(document.value, "kind")
    if not (isinstance(version, str) and isinstance(kind, str)):
        return
    if version.partition("/")[0] == GROUP:
        yield document.finding(("kind",), *unknown("unknown kind", (KIND, LIMITS_KIND), kind))
    elif kind == KIND and get_close_matches(version.partition("/")[0][:100], [GROUP], cutoff=0.85):
        yield document.finding(("apiVersion",), "unknown version", API_VERSION)


def _policy_warnings(document: Document, policy: Policy) -> Iterator[Finding]:
    """Find values that are valid but probably a mistake."""
    spec = policy.spec
    if spec.replicas.min == 0 and not spec.scale_to_zero.enabled:
        problem = "counts as 1: only scaleToZero leads to zero"
        yield document.warning(("spec", "replicas", "min"), problem, "scaleToZero.enabled: true, or at least 1")
    if not spec.scale_to_zero.enabled and "idle_after" in spec.scale_to_zero.model_fields_set:
        problem = "no effect while scaleToZero.enabled is false"
        yield document.warning(("spec", "scaleToZero", "idleAfter"), problem, "enabled: true as well")
    for index, prewarm in enumerate(spec.prewarm):
        if prewarm.replicas > spec.replicas.max:
            allowed = f"at most replicas.max, which is {spec.replicas.max}"
            yield document.warning(("spec", "prewarm", index, "replicas"), "limited by replicas.max", allowed)


def _kind(document: Document) -> str:
    """Return the kind of a document. A policy of another version is a policy, so its version is reported."""
    kind, version = at(document.value, "kind"), at(document.value, "apiVersion")
    if kind in (KIND, LIMITS_KIND) and isinstance(version, str) and version.partition("/")[0] != GROUP:
        return f"{kind} of {shown(version)}"  # a policy of another product
    return kind if isinstance(kind, str) and kind.isidentifier() and len(kind) <= 63 else _UNKNOWN


def _manifests_below(folder: Path) -> list[Path]:
    return [item for item in folder.rglob("*") if _is_manifest(item.relative_to(folder)) and item.is_file()]


def _is_manifest(path: Path) -> bool:
    return path.suffix in SUFFIXES and not any(part.startswith(".") for part in path.parts)
