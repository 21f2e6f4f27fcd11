"""Parses untrusted YAML to plain values with their lines. It knows nothing about their meaning.

Loading is safe, and bounded before anything is built: bytes, documents, nesting, nodes with expanded aliases.
Keys are text and unique. Merge keys (`<<`) and custom tags are refused.
"""

from __future__ import annotations

import math
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import yaml
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver

from autoscaler.config.findings import Finding, Severity, shown

SUFFIXES = (".yaml", ".yml")
MAX_BYTES = 1 << 20  # the largest possible ConfigMap
MAX_DOCUMENTS = 256
MAX_DEPTH = 64  # deep enough for a CustomResourceDefinition
MAX_NODES = 50_000  # per document, with expanded aliases


class AmbiguousNumber:
    """Marks a number that YAML 1.1 reads differently from people and from other parsers: 010, 0x10, 1_000.

    It has the value that YAML gives it. Fields with numbers refuse it.
    """


class _AmbiguousInt(AmbiguousNumber, int):
    pass


class _AmbiguousFloat(AmbiguousNumber, float):
    pass


Loc = tuple[str | int, ...]  # ("spec", "prewarm", 0, "from")

# The loader in C is some 20 times faster; the other one reads the same documents.
_LOADER: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_RESOLVER = Resolver()
_MAX_NUMBER_CHARS = 64
_UNAMBIGUOUS = re.compile(r"-?((0|[1-9]\d*)(\.\d*)?|\.\d+)", re.ASCII)
_DECIMAL = re.compile(r"-?(\d+(\.\d*)?|\.\d+)", re.ASCII)
_TEXT = "a readable text file in UTF-8 of at most {} bytes"


@dataclass(frozen=True)
class Document:
    """One YAML document."""

    file: str
    line: int  # first line, from 1
    value: object  # dict with text keys, list, str, int, float, bool or None
    lines: dict[Loc, int] = field(default_factory=dict)  # line of each key and item, from 1
    raw: dict[Loc, str] = field(default_factory=dict)  # text of each scalar as written

    def line_of(self, loc: Loc) -> int:
        """Return the line of a key, or of the closest enclosing item."""
        while loc and loc not in self.lines:
            loc = loc[:-1]
        return self.lines.get(loc, self.line)

    def found(self, loc: Loc) -> str:
        """Return the scalar at a place as written, for messages; "" for mappings and lists."""
        return shown(self.raw[loc]) if loc in self.raw else ""

    def finding(self, loc: Loc, problem: str, allowed: str = "") -> Finding:
        return Finding(self.file, self.line_of(loc), dotted(loc), problem, self.found(loc), allowed)

    def warning(self, loc: Loc, problem: str, allowed: str = "") -> Finding:
        return replace(self.finding(loc, problem, allowed), severity=Severity.WARNING)

    def items(self) -> list[Document]:
        """Return the items of a `kind: List`, as kubectl prints them; for other kinds the document itself."""
        match self.value:
            case {"kind": "List", "items": [_, *_] as items}:
                documents = [Document(self.file, self.line_of(("items", i)), item) for i, item in enumerate(items)]
            case _:
                return [self]
        for name in ("lines", "raw"):
            for loc, found in getattr(self, name).items():
                if len(loc) > 2 and loc[0] == "items":
                    getattr(documents[loc[1]], name)[loc[2:]] = found
        return documents


class _RefusedYaml(Exception):
    def __init__(self, node: yaml.Node, loc: Loc, problem: str, allowed: str = "") -> None:
        super().__init__(problem)
        self.node, self.loc, self.problem, self.allowed = node, loc, problem, allowed


def dotted(loc: Loc) -> str:
    """Format a place as spec.prewarm[0].from. A key that is not printable is escaped."""
    words = ""
    for part in loc:
        key = part if isinstance(part, int) or part.isprintable() else shown(part)[1:-1]
        words += f"[{key}]" if isinstance(key, int) else ("." if words else "") + key
    return words if len(words) <= 200 else words[:197] + "..."


def yaml_files(
    paths: Sequence[Path], listed: Callable[[Path], list[Path]], what: str, most: int, findings: list[Finding]
) -> Iterator[Path]:
    """Yield the files in files and folders, in order. Problems are added to `findings`.

    listed: returns the relevant files of one folder, which errors call `what`. Links out of the folder are refused.
    """
    for path in paths:
        try:
            if not path.is_dir():
                yield path  # a missing file is reported when it is read
                continue
            inside = sorted(listed(path))
            root = path.resolve()
            outside = [item for item in inside if not item.resolve().is_relative_to(root)]
        except (OSError, ValueError, RuntimeError) as error:
            findings.append(Finding(str(path), 0, "", f"cannot be listed: {error}", allowed="a file or a folder"))
            continue
        if not inside or len(inside) > most:
            allowed = f"a folder with 1 to {most} files *.yaml or *.yml"
            findings.append(Finding(str(path), 0, "", f"{len(inside)} {what} this folder", allowed=allowed))
            continue
        allowed = f"files within {path}"
        findings.extend(Finding(str(item), 0, "", "a link out of its folder", allowed=allowed) for item in outside)
        yield from (item for item in inside if item not in outside)


def read_text(path: Path, max_bytes: int = MAX_BYTES) -> str | Finding:
    """Read a regular file of at most `max_bytes` bytes as UTF-8. Pipes and devices are refused without waiting."""
    allowed = _TEXT.format(max_bytes)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return Finding(str(path), 0, "", "not a regular file", allowed=allowed)
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                data = file.read(max_bytes + 1)
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return Finding(str(path), 0, "", f"cannot be read: {reason}", allowed=allowed)
    return decode_text(str(path), data, max_bytes)


def decode_text(file: str, data: bytes, max_bytes: int = MAX_BYTES) -> str | Finding:
    """Decode at most `max_bytes` bytes of UTF-8. file: only for messages."""
    allowed = _TEXT.format(max_bytes)
    if len(data) > max_bytes:
        return Finding(file, 0, "", f"more than {max_bytes} bytes", allowed=allowed)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        return Finding(file, line, "", "not UTF-8", f"byte 0x{data[error.start]:02x}", allowed)


def read_documents(file: str, text: str) -> tuple[list[Document], list[Finding]]:
    """Parse all documents of a text. Empty documents are left out. Never raises. file: only for messages."""
    documents: list[Document] = []
    findings: list[Finding] = []
    try:
        too_much = _beyond_bounds(file, text)
        if too_much is not None:
            return [], [too_much]
        for node in yaml.compose_all(text, Loader=_LOADER):
            document = Document(file, _line(node), None)
            try:
                value = _YamlReader(document, _most_values(node)).value(node, (), 0)
            except _RefusedYaml as refused:
                found = shown(refused.node.value) if isinstance(refused.node, yaml.ScalarNode) else ""
                line = _line(refused.node)
                findings.append(Finding(file, line, dotted(refused.loc), refused.problem, found, refused.allowed))
            else:
                if value is not None:
                    documents.append(Document(file, document.line, value, document.lines, document.raw))
    except yaml.YAMLError as error:
        findings.append(_syntax(file, text, error))
    return documents, findings


def read_scalar(text: str) -> object:
    """Parse a single value: "8" is a number, "true" a boolean, "150ms" text. Raises ValueError.

    Words are read as in YAML. Numbers are plain decimals: "010" is 10; "0x10", "1_0" and "+1" are refused. YAML 1.1
    reads them as 8, 16, 10 and 1, and other parsers disagree.
    """
    tag: str = _RESOLVER.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
    if _DECIMAL.fullmatch(text):
        if len(text) > _MAX_NUMBER_CHARS:
            raise ValueError("a number of too many digits")
        return float(text) if "." in text else int(text)
    if tag in (f"{_TAG}int", f"{_TAG}float") and ":" not in text:
        raise ValueError("not a plain decimal number")
    return _scalar(yaml.ScalarNode(tag, text))


def _beyond_bounds(file: str, text: str) -> Finding | None:
    """Check the bounds on parser events, before the recursive composer runs."""
    depth = documents = values = 0
    for event in yaml.parse(text, Loader=_LOADER):
        values += isinstance(event, yaml.NodeEvent)
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            values = 0
        if depth > MAX_DEPTH:
            return Finding(file, _line(event), "", "nested too deeply", "", f"{MAX_DEPTH} levels")
        if values > 2 * MAX_NODES:  # keys and values of mappings both count
            return Finding(file, _line(event), "", "too large", "", f"{MAX_NODES} values in a document")
        if documents > MAX_DOCUMENTS:
            return Finding(file, _line(event), "", "too many documents", "", f"{MAX_DOCUMENTS} in a file")
    return None


def _syntax(file: str, text: str, error: yaml.YAMLError) -> Finding:
    """Describe a syntax error without quoting the text, which may contain secrets."""
    line = 0
    problem = "unreadable"
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 0
        problem = error.problem or error.context or problem
        indent = "".join(text.split("\n")[mark.line : mark.line + 1])[: mark.column + 1] if mark else ""
        if indent.endswith("\t") and indent.isspace():
            return Finding(file, line, "", "a tab cannot indent YAML", allowed="spaces")
    elif isinstance(error, yaml.reader.ReaderError):
        line = text.count("\n", 0, max(0, int(error.position))) + 1
        problem = f"{error.reason}"
    return Finding(file, line or 1, "", f"not valid YAML: {shown(problem)[1:-1]}", allowed="YAML 1.1 documents")


def _line(place: yaml.Node | yaml.Event) -> int:
    return place.start_mark.line + 1 if place.start_mark else 1


def _most_values(node: yaml.Node) -> int:
    """Return the allowed number of values in a document.

    Each value takes at least one character, except values from aliases. So documents without aliases stay below the
    limit, and many small documents cannot expand into a large one. The margin lets a self-referencing alias reach the
    limit of nesting.
    """
    return min(MAX_NODES, node.end_mark.index - node.start_mark.index + MAX_DEPTH + 1)


class _YamlReader:
    """Converts the nodes of one document to values, and records their lines."""

    def __init__(self, document: Document, most: int) -> None:
        self._document = document
        self._left = most

    def value(self, node: yaml.Node, loc: Loc, depth: int) -> object:
        self._left -= 1
        # Each use of an alias counts here, which bounds expansion. A self-referencing alias ends at the depth limit.
        if self._left < 0:
            allowed = f"{MAX_NODES} values in a document, and hardly more than it has characters"
            raise _RefusedYaml(node, loc, "too large with its aliases written out", allowed)
        if depth > MAX_DEPTH:
            raise _RefusedYaml(node, loc, "nested too deeply, or an alias that contains itself", f"{MAX_DEPTH} levels")
        self._document.lines.setdefault(loc, _line(node))
        if isinstance(node, yaml.MappingNode) and node.tag == f"{_TAG}map":
            return {key: self.value(item, (*loc, key), depth + 1) for key, item in self._items(node, loc)}
        if isinstance(node, yaml.SequenceNode) and node.tag == f"{_TAG}seq":
            return [self.value(item, (*loc, index), depth + 1) for index, item in enumerate(node.value)]
        if not isinstance(node, yaml.ScalarNode):
            raise _RefusedYaml(node, loc, f"tag {shown(node.tag)} is not supported", "plain mappings, lists and values")
        self._document.raw[loc] = node.value
        try:
            return _scalar(node)
        except ValueError as error:
            raise _RefusedYaml(node, loc, str(error), "text, numbers, true, false, null") from error

    def _items(self, node: yaml.MappingNode, loc: Loc) -> Iterator[tuple[str, yaml.Node]]:
        seen: set[str] = set()
        for key, item in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _RefusedYaml(key, loc, "a key that is not text", "text")
            if key.tag == f"{_TAG}merge":
                raise _RefusedYaml(key, loc, "merge keys are not supported", "the keys written out")
            name: str = key.value
            place = (*loc, name)
            if key.tag not in (f"{_TAG}str", f"{_TAG}value"):
                raise _RefusedYaml(
                    key, loc, "a key that is not text", "text, in quotes if it looks like something else"
                )
            if name in seen:
                first = self._document.line_of(place)
                raise _RefusedYaml(key, place, f"given twice, first in line {first}", "each key once")
            seen.add(name)
            self._document.lines[place] = _line(key)
            yield name, item


def _scalar(node: yaml.ScalarNode) -> object:
    kind = node.tag.removeprefix(_TAG)
    if kind in ("str", "timestamp", "merge", "value"):  # dates are text, because no field has a date
        return node.value
    if kind in ("int", "float") and ":" in node.value:  # YAML 1.1 reads 1:30 as 90; Kubernetes does not
        return node.value
    if kind not in ("int", "float", "bool", "null"):
        raise ValueError(f"tag {shown(node.tag)} is not supported")
    if len(node.value) > _MAX_NUMBER_CHARS:
        raise ValueError("a number of too many digits")
    try:
        value: object = SafeConstructor().construct_object(node)
        if kind in ("int", "float") and not _UNAMBIGUOUS.fullmatch(node.value):
            value = _mark_ambiguous(value)
    except (ArithmeticError, LookupError, ValueError) as error:  # `!!int abc`
        raise ValueError(f"not a value of type {kind}") from error
    return value


def _mark_ambiguous(value: object) -> object:
    if isinstance(value, int):
        return _AmbiguousInt(value)
    return _AmbiguousFloat(value) if isinstance(value, float) and math.isfinite(value) else value
