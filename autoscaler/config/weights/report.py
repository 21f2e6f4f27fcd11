"""The weights that a node holds, as its agent reports them: labels and one annotation of the Node.

The annotation changes with the states of models only, never with progress.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

from autoscaler.config.findings import UNREADABLE, shown
from autoscaler.config.weights.source import parse

FORMAT = 1
MAX_MODELS = 64
MAX_BYTES = 16 << 10
MAX_TEXT_CHARS = 160
MAX_SIZE = 1 << 53  # bytes; exact in every JSON reader
FIELD_MANAGER = "vllm-autoscaler-weights"
LABEL_PREFIX = "weights.vllm-autoscaler.io/"
ANNOTATION = "weights.vllm-autoscaler.io/report"
READY_LABEL = "ready"

_WORD = re.compile(r"[a-z0-9_]{0,32}")


class InvalidReportError(ValueError):
    """A report cannot be used. The text says why."""


class State(StrEnum):
    """State of one model on one node."""

    WAITING = "waiting"  # wished, but not begun
    FETCHING = "fetching"
    READY = "ready"  # complete, verified and published
    FAILED = "failed"  # the cause says why; the agent tries again later


class ModelReport(NamedTuple):
    """One model of a node."""

    source: str
    state: State
    size: int = 0  # bytes; 0: not known yet
    cause: str = ""  # one word of autoscaler.weights.problems.Cause; "": no problem
    text: str = ""  # a sentence about the problem


class Report(NamedTuple):
    """The models that one node holds."""

    models: Mapping[str, ModelReport]  # by key of the source
    agent: str = ""  # version of the agent
    budget_bytes: int = 0  # most for all models together; 0: not known
    free_bytes: int = 0  # of the budget and the disk, for further models
    cause: str = ""  # problem of the whole folder: its disk, or another agent; "": none
    text: str = ""


class _ReportModel(msgspec.Struct, frozen=True, omit_defaults=True):
    source: str
    state: State
    bytes: int = 0
    cause: str = ""
    text: str = ""


class _ReportDocument(msgspec.Struct, frozen=True, omit_defaults=True):
    format: int
    models: dict[str, Any]
    agent: str = ""
    bytes: int = 0
    free: int = 0
    cause: str = ""
    text: str = ""


class _ReportFormat(msgspec.Struct, frozen=True):
    format: int


def labels(report: Report) -> dict[str, str]:
    """Return the labels of a node: one for each ready model, for node affinity. Bounded in number: the first ones."""
    ready = [key for key, model in report.models.items() if model.state is State.READY]
    return {label_of(key): READY_LABEL for key in ready[:MAX_MODELS]}


def label_of(key: str) -> str:
    """Return the name of the label of a model."""
    return f"{LABEL_PREFIX}{key}"


def encode(report: Report) -> str:
    """Return the annotation. Texts are left out first if it would be too long, then the last models.

    Ready ones go last, and come in the order of the report: by use.
    """
    kept = sorted(report.models.items(), key=lambda item: item[1].state is not State.READY)[:MAX_MODELS]
    for chars in (MAX_TEXT_CHARS, 0):
        content = _encode(report, kept, chars)
        if len(content) <= MAX_BYTES:
            break
    while len(content) > MAX_BYTES:
        kept.pop()
        content = _encode(report, kept, 0)
    return content.decode()


def _encode(report: Report, kept: list[tuple[str, ModelReport]], chars: int) -> bytes:
    models = {
        key: _ReportModel(model.source, model.state, model.size, model.cause, _printable(model.text, chars))
        for key, model in sorted(kept)
    }
    text = _printable(report.text, MAX_TEXT_CHARS)
    return msgspec.json.encode(
        _ReportDocument(FORMAT, models, report.agent, report.budget_bytes, report.free_bytes, report.cause, text)
    )


def decode(text: str) -> Report:
    """Read the annotation of a node. Raises InvalidReportError. Models that are not valid are left out."""
    if len(text) > MAX_BYTES or len(text.encode(errors="replace")) > MAX_BYTES:
        raise InvalidReportError(f"the report has more than {MAX_BYTES} bytes")
    try:
        found = msgspec.json.decode(text.encode(), type=_ReportFormat).format
        if found != FORMAT:
            raise InvalidReportError(f"the report has the format {found}; allowed: {FORMAT}")
        document = msgspec.json.decode(text.encode(), type=_ReportDocument)
    except UNREADABLE as error:
        raise InvalidReportError(f"the report is not valid: {shown(str(error))}") from error
    if not 0 <= document.bytes <= MAX_SIZE or not 0 <= document.free <= MAX_SIZE:
        raise InvalidReportError(f"the report has the sizes {document.bytes} and {document.free}")
    models: dict[str, ModelReport] = {}
    for key, value in document.models.items():
        model = _read_model(key, value)
        if model is not None and len(models) < MAX_MODELS:
            models[key] = model
    return Report(
        models,
        _printable(document.agent, 64),
        document.bytes,
        document.free,
        document.cause if _WORD.fullmatch(document.cause) else "",
        _printable(document.text, MAX_TEXT_CHARS),
    )


def _read_model(key: str, value: Any) -> ModelReport | None:
    """Return a model of a report; None: it is not valid."""
    try:
        model = msgspec.convert(value, _ReportModel)
        source = parse(model.source)
    except ValueError:
        return None
    if source.key != key or not 0 <= model.bytes <= MAX_SIZE or not _WORD.fullmatch(model.cause):
        return None
    return ModelReport(model.source, model.state, model.bytes, model.cause, _printable(model.text, MAX_TEXT_CHARS))


def _printable(text: str, chars: int) -> str:
    """Return the beginning of an untrusted text on one line."""
    return "".join(char if char.isprintable() else " " for char in text[:chars])
