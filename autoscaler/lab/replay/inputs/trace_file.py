"""Reading of trace files.

A file is CSV, plain or gzip. Its header names the columns `arrival_s`, `prompt_tokens`, `output_tokens` and, for
several models, `model`; other columns are ignored. Times are seconds from the start, sorted.
"""

from __future__ import annotations

import csv
import gzip
import math
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import BinaryIO

import numpy as np

from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn
from autoscaler.lab.replay.call_progress import Progress, no_progress
from autoscaler.lab.replay.case import Trace
from autoscaler.lab.replay.inputs.files import MOST_BYTES, open_decompressed

COLUMNS = ("arrival_s", "prompt_tokens", "output_tokens")
MODEL = "model"
MODEL_LIKENESS = 0.8  # similarity of a misspelt name: one letter changed, added or missing (`nodel`), but not `node`
MOST_REQUESTS = 50_000_000  # requests of one file, or after scaling
MOST_LINES = 60_000_000  # lines of one file; a decompression bomb is mostly empty lines
MOST_MODELS = 10_000
MOST_NAME = 200  # characters of a model's name
MOST_LINE_BYTES = 10_000
MOST_ARRIVAL_S = 10 * 366 * 86_400.0
MOST_TOKENS = 100_000_000

_READ_BYTES = 1 << 20


class TraceError(ValueError):
    """A trace file that cannot be used. The message names the file, the line, the value found and what is allowed."""


def load(
    path: Path, progress: Progress = no_progress, most_bytes: int = MOST_BYTES, most_requests: int = MOST_REQUESTS
) -> tuple[Trace, ...]:
    """Read a trace file. Return one trace per model, by name; all last as long as the file.

    Raises TraceError. The file is read in pieces, and memory is bounded by `most_requests` and `most_bytes`.
    """
    name = path.name.removesuffix(".gz").removesuffix(".csv")
    reader = _ColumnReader(path, most_requests)
    try:
        for number, lines in _pieces(path, progress, most_bytes):
            reader.take(number, lines)
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}") from error
    return reader.traces(name)


def _pieces(path: Path, progress: Progress, most_bytes: int) -> Iterator[tuple[int, list[str]]]:
    """Yield lists of whole lines with the number of the first. Raises TraceError at a limit or where the data breaks
    off.
    """
    number, rest, size = 1, b"", 0
    with open_decompressed(path) as (file, share):
        if not isinstance(file, gzip.GzipFile) and (known := os.fstat(file.fileno()).st_size) > most_bytes:
            raise TraceError(f"{path}: {known:,} bytes; allowed: at most {most_bytes:,}")
        blocks = _blocks(file)
        while True:
            try:
                block = next(blocks, b"")
            except EOFError as error:
                raise TraceError(f"{path}: the gzip data ends early, in line {number}") from error
            except (gzip.BadGzipFile, zlib.error) as error:
                raise TraceError(f"{path}: the gzip data is damaged, near line {number}: {error}") from error
            progress(share())
            size += len(block)
            if size > most_bytes:
                raise TraceError(f"{path}, line {number}: more than {most_bytes:,} bytes, the limit")
            lines = (rest + block).split(b"\n")
            rest = lines.pop() if block else b""
            if number + len(lines) > MOST_LINES:
                raise TraceError(f"{path}, line {MOST_LINES}: more than {MOST_LINES:,} lines, the limit")
            for index, line in enumerate((*lines, rest)):
                if len(line) > MOST_LINE_BYTES:
                    raise TraceError(f"{path}, line {number + index}: longer than {MOST_LINE_BYTES:,} bytes")
            try:
                yield number, (b"\n".join(lines)).decode().split("\n") if lines else []
            except UnicodeDecodeError as error:
                line_number = number + error.object.count(b"\n", 0, error.start)
                raise TraceError(f"{path}, line {line_number}: not UTF-8: {error.reason}") from error
            number += len(lines)
            if not block:
                return


def _blocks(file: BinaryIO) -> Iterator[bytes]:
    """Yield the content of a file in large blocks. At broken data, yield the content before it, then raise."""
    fault: Exception | None = None
    ended = False
    while not ended:
        parts, size = [], 0
        while size < _READ_BYTES and not ended:
            try:
                part = file.read1(_READ_BYTES)  # type: ignore[attr-defined]  # what was unpacked, and no more
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                part, fault = b"", error
            parts.append(part)
            size += len(part)
            ended = not part
        if size:
            yield b"".join(parts)
    if fault:
        raise fault


class _ColumnReader:
    """Collects the columns of one file, piece by piece."""

    def __init__(self, path: Path, most_requests: int) -> None:
        self._path, self._most_requests = path, most_requests
        self._places: tuple[int, ...] = ()  # positions of COLUMNS and, if present, of the model
        self._width = 0
        self._models: dict[str, int] = {}
        self._parts: list[tuple[FloatColumn, IntColumn]] = []  # float64[3, n], and the model of each request, int64[n]
        self._count = 0
        self._last_s = 0.0

    def take(self, number: int, lines: list[str]) -> None:
        """Add whole lines; the first is line `number` of the file."""
        if not self._places and lines:
            self._take_header(lines[0].removeprefix("\ufeff").rstrip("\r"))
            number, lines = number + 1, lines[1:]
        filled = [(number + index, line) for index, line in enumerate(lines) if line and line != "\r"]
        if not filled:
            return
        numbers = np.array([line_number for line_number, _ in filled])
        try:
            columns, models = self._columns([line for _, line in filled])
        except (ValueError, csv.Error) as error:
            raise self._fault(filled) from error
        self._check(numbers, columns)
        if self._count + len(numbers) > self._most_requests:
            line = numbers[self._most_requests - self._count]
            raise TraceError(f"{self._path}, line {line}: more than {self._most_requests:,} requests, the limit")
        self._count += len(numbers)
        model = self._number_models(models, numbers) if models else [0] * len(numbers)
        self._parts.append((columns, np.array(model, np.int64)))

    def traces(self, name: str) -> tuple[Trace, ...]:
        if not self._count:
            raise TraceError(f"{self._path}: it contains no request")
        columns = np.concatenate([part for part, _ in self._parts], axis=1)
        model = np.concatenate([models for _, models in self._parts])
        duration_s = math.floor(self._last_s) + 1.0  # whole seconds; the last request lies before the end
        whole = Trace(name, columns[0], columns[1].astype(np.int64), columns[2].astype(np.int64), duration_s)
        if not self._models:
            return (whole,)
        return tuple(
            replace(whole.select(model == index), name=f"{name}/{label}")
            for label, index in sorted(self._models.items())
        )

    def _columns(self, lines: list[str]) -> tuple[FloatColumn, Sequence[str]]:
        """Return the numbers, float64[3, n], and any models. Raises ValueError or csv.Error for invalid rows."""
        if any('"' in line for line in lines):
            rows = list(csv.reader(lines, strict=True))
            if len(rows) != len(lines) or any(len(row) != self._width for row in rows):
                raise ValueError("not one row per line")
            fields = list(zip(*rows, strict=True))
            numbers = np.array([[_number(text) for text in fields[place]] for place in self._places[:3]])
            return numbers, fields[self._places[3]] if len(self._places) > 3 else ()
        if any(line.count(",") != self._width - 1 for line in lines):
            raise ValueError("not as many fields as the header")
        numbers = np.loadtxt(lines, delimiter=",", usecols=self._places[:3], comments=None, ndmin=2).T
        place = self._places[3] if len(self._places) > 3 else None
        return numbers, () if place is None else [line.rstrip("\r").split(",")[place] for line in lines]

    def _take_header(self, line: str) -> None:
        try:
            names = [name.strip() for name in next(csv.reader([line], strict=True))]
        except csv.Error as error:
            raise TraceError(f"{self._path}, line 1: {error}: {line[:200]!r}") from error
        missing = [name for name in COLUMNS if name not in names]
        if missing:
            raise TraceError(
                f"{self._path}, line 1: no column {', '.join(missing)}; needed: {','.join(COLUMNS)}; "
                f"found: {line[:200]!r}"
            )
        if len(set(names)) < len(names):
            raise TraceError(f"{self._path}, line 1: a column is named twice: {line[:200]!r}")
        if MODEL not in names:  # otherwise several models would run as one
            for name in names:
                if get_close_matches(name[:100].casefold(), [MODEL], cutoff=MODEL_LIKENESS):
                    raise TraceError(f"{self._path}, line 1: column {name!r}: did you mean {MODEL}?")
        desired = (*COLUMNS, MODEL) if MODEL in names else COLUMNS
        self._places, self._width = tuple(names.index(name) for name in desired), len(names)

    def _fault(self, filled: list[tuple[int, str]]) -> TraceError:
        """Return the error of the first invalid row."""
        for number, line in filled:
            where = f"{self._path}, line {number}"
            try:
                rows = list(csv.reader([line], strict=True))
            except csv.Error as error:
                return TraceError(f"{where}: {error}: {line[:200]!r}")
            if len(rows[0]) != self._width:
                return TraceError(f"{where}: {len(rows[0])} fields, the header has {self._width}: {line[:200]!r}")
            for name, place in zip(COLUMNS, self._places, strict=False):
                try:
                    _number(rows[0][place])
                except ValueError:
                    return TraceError(f"{where}: {name} is {rows[0][place][:50]!r}; it must be a number")
        return TraceError(f"{self._path}, line {filled[0][0]} or after: cannot be read as rows")

    def _check(self, numbers: IntColumn, columns: FloatColumn) -> None:
        arrival_s, tokens = columns[0], columns[1:]
        before_s = np.concatenate([[self._last_s], arrival_s[:-1]])
        for name, values in zip(COLUMNS[1:], tokens, strict=True):
            wrong = ~((values >= 1) & (values <= MOST_TOKENS) & (values == np.floor(values)))
            self._refuse(wrong, numbers, name, values, f"it must be a whole number from 1 to {MOST_TOKENS:,}")
        bounds = f"it must be a number from 0 to {MOST_ARRIVAL_S:,.0f}, seconds from the start of the trace"
        self._refuse(~((arrival_s >= 0) & (arrival_s <= MOST_ARRIVAL_S)), numbers, "arrival_s", arrival_s, bounds)
        back = arrival_s < before_s
        order = f"it must not be below {before_s[np.argmax(back)]:.15g}, that of the request before"
        self._refuse(back, numbers, "arrival_s", arrival_s, order)
        self._last_s = float(arrival_s[-1])

    def _refuse(self, wrong: BoolColumn, numbers: IntColumn, name: str, values: FloatColumn, rule: str) -> None:
        if wrong.any():
            row = int(np.argmax(wrong))
            raise TraceError(f"{self._path}, line {numbers[row]}: {name} is {values[row]:.15g}; {rule}")

    def _number_models(self, names: Sequence[str], numbers: IntColumn) -> list[int]:
        for name in dict.fromkeys(names):
            if name in self._models:
                continue
            line = numbers[names.index(name)]
            if not (0 < len(name) <= MOST_NAME and name.isprintable()):
                allowed = f"1 to {MOST_NAME} printable characters"
                raise TraceError(f"{self._path}, line {line}: model is {name[:50]!r}; allowed: {allowed}")
            if len(self._models) >= MOST_MODELS:
                raise TraceError(f"{self._path}, line {line}: more than {MOST_MODELS:,} models, the limit")
            self._models[name] = len(self._models)
        return [self._models[name] for name in names]


def _number(text: str) -> float:
    """Parse a number as `numpy.loadtxt` does. Raises ValueError, also for `1_000` and `١٠`, which `float` accepts."""
    if "_" in text or not text.isascii():
        raise ValueError(f"{text!r} is not a number")
    return float(text)
