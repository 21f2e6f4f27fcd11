"""Traces: read from files, made larger or smaller, cut to what a model takes, generated for tests.

A file is CSV, plain or gzip, with a header that names the columns `arrival_s`, `prompt_tokens`, `output_tokens` and,
where one file holds several, `model`; others are ignored. Times are seconds from the start, sorted.
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
from autoscaler.lab.replay.case import Trace
from autoscaler.lab.replay.files import MOST_BYTES, Told, unpacked, untold
from autoscaler.sim.engine.traffic import BLOCK_S, Shape, Traffic

COLUMNS = ("arrival_s", "prompt_tokens", "output_tokens")
MODEL = "model"
MODEL_LIKENESS = 0.8  # of a name that is meant so: another letter (`nodel`), one more or less; not `node`
MOST_REQUESTS = 50_000_000  # of one file, or after scaling
MOST_LINES = 60_000_000  # of one file: most of a bomb is empty lines
MOST_MODELS = 10_000
MOST_NAME = 200  # characters of a model's name
MOST_LINE_BYTES = 10_000
MOST_ARRIVAL_S = 10 * 366 * 86_400.0
MOST_TOKENS = 100_000_000
SHIFT_S = 60.0  # copies of a superposition start within a minute of each other
JITTER_S = 1.0  # and each of their requests is moved by at most this

_READ_BYTES = 1 << 20


class TraceError(ValueError):
    """A trace file that cannot be used: says the file, the line, the value found and what is allowed."""


def load(path: Path, told: Told = untold) -> tuple[Trace, ...]:
    """Read a trace file: one trace for each model in it, by name; all of them last as long as the file.

    Raises TraceError. Reads in pieces; what is kept is bounded by `MOST_REQUESTS` and `MOST_BYTES`.
    """
    name = path.name.removesuffix(".gz").removesuffix(".csv")
    reader = _Reader(path)
    try:
        for number, lines in _pieces(path, told):
            reader.take(number, lines)
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}") from error
    return reader.traces(name)


def between(trace: Trace, from_s: float, to_s: float) -> Trace:
    """Return the part of a trace from `from_s` to before `to_s`, which then begins at 0."""
    if not 0 <= from_s < to_s <= trace.duration_s:
        raise ValueError(f"from {from_s:g} to {to_s:g} s: must be an interval within 0..{trace.duration_s:g} s")
    part = _take(trace, (trace.arrival_s >= from_s) & (trace.arrival_s < to_s))
    return replace(part, arrival_s=part.arrival_s - from_s, duration_s=to_s - from_s)


def part(models: Sequence[Trace], from_s: float, to_s: float) -> list[Trace]:
    """Return that part of the traces of all models, as `between`; a model without a request in it is left out."""
    return [each for each in (between(model, from_s, to_s) for model in models) if len(each.arrival_s)]


def thin(trace: Trace, share: float, seed: int) -> Trace:
    """Keep each request with probability `share`."""
    if not 0 < share <= 1:
        raise ValueError(f"share is {share:g}; it must be above 0 and at most 1")
    return _take(trace, np.random.default_rng((seed, 1)).random(len(trace.arrival_s)) < share)


def scale(trace: Trace, factor: float, seed: int) -> Trace:
    """Multiply the load: whole copies superposed, the rest of `factor` as a thinned one; below 1, thin the trace.

    Copies are shifted within a minute, each request moved by up to a second more. Minutes, days and bursts of minutes
    stay; bursts of seconds smear over the minute, as those of independent users do. What is shifted past the end comes
    at the beginning.
    """
    if not (math.isfinite(factor) and factor > 0):
        raise ValueError(f"factor is {factor:g}; it must be a number above 0")
    if factor <= 1:
        return trace if factor == 1 else thin(trace, factor, seed)
    count = len(trace.arrival_s)
    if count * factor > MOST_REQUESTS:
        raise ValueError(f"{trace.name}: {count} requests x {factor:g} are more than {MOST_REQUESTS:,}, the limit")
    copies, rest = int(factor), factor - int(factor)
    kept = [np.ones(count, np.bool_)] * copies
    if rest > 0:
        kept.append(np.random.default_rng((seed, 1)).random(count) < rest)
    return _overlay(trace, kept, seed)


def cut(trace: Trace, max_model_len: int) -> tuple[Trace, int]:
    """Shorten requests to what an engine takes: the prompt's end is kept, the output ends at `max_model_len`.

    Returns the trace and how many requests were shortened.
    """
    if max_model_len < 2:
        raise ValueError(f"max_model_len is {max_model_len}; it must be at least 2")
    prompt = np.minimum(trace.prompt_tokens, max_model_len - 1)
    output = np.minimum(trace.output_tokens, max_model_len - prompt)
    shorter = (prompt < trace.prompt_tokens) | (output < trace.output_tokens)
    return replace(trace, prompt_tokens=prompt, output_tokens=output), int(shorter.sum())


def generate(name: str, shape: Shape, duration_s: float, seed: int) -> Trace:
    """Make a trace of `shape` that begins at midnight and lasts `duration_s`."""
    if not 0 < duration_s <= MOST_ARRIVAL_S:
        raise ValueError(f"duration_s is {duration_s:g}; it must be above 0 and at most {MOST_ARRIVAL_S:g}")
    traffic = Traffic(shape, seed)
    blocks = [traffic.block(number) for number in range(math.ceil(duration_s / BLOCK_S))]
    trace = Trace(
        name,
        np.concatenate([block.time_s for block in blocks]),
        np.concatenate([block.prompt_tokens for block in blocks]),
        np.concatenate([block.output_tokens for block in blocks]),
        duration_s,
    )
    return _take(trace, trace.arrival_s < duration_s)


def _take(trace: Trace, kept: BoolColumn) -> Trace:
    return replace(
        trace,
        arrival_s=trace.arrival_s[kept],
        prompt_tokens=trace.prompt_tokens[kept],
        output_tokens=trace.output_tokens[kept],
    )


def _overlay(trace: Trace, copies: Sequence[BoolColumn], seed: int) -> Trace:
    """Superpose copies of a trace, each of the given requests; the first copy stays where it is."""
    total = sum(int(kept.sum()) for kept in copies)
    if total > MOST_REQUESTS:
        raise ValueError(f"{trace.name}: {total} requests are more than {MOST_REQUESTS:,}, the limit")
    rng = np.random.default_rng((seed, 0))
    times, prompts, outputs = [], [], []
    for number, kept in enumerate(copies):
        part = _take(trace, kept)
        moved = part.arrival_s
        if number:
            moved = moved + rng.uniform(0, SHIFT_S) + rng.uniform(-JITTER_S, JITTER_S, len(moved))
        times.append(moved % trace.duration_s if number else moved)
        prompts.append(part.prompt_tokens)
        outputs.append(part.output_tokens)
    arrival_s = np.concatenate(times)
    order = np.argsort(arrival_s, kind="stable")
    return replace(
        trace,
        arrival_s=arrival_s[order],
        prompt_tokens=np.concatenate(prompts)[order],
        output_tokens=np.concatenate(outputs)[order],
    )


def _pieces(path: Path, told: Told) -> Iterator[tuple[int, list[str]]]:
    """Yield lists of whole lines with the number of the first; bounded, and clear about where a file breaks off."""
    number, rest, size = 1, b"", 0
    with unpacked(path) as (file, share):
        if not isinstance(file, gzip.GzipFile) and (known := os.fstat(file.fileno()).st_size) > MOST_BYTES:
            raise TraceError(f"{path}: {known:,} bytes; allowed: at most {MOST_BYTES:,}")
        blocks = _blocks(file)
        while True:
            try:
                block = next(blocks, b"")
            except EOFError as error:
                raise TraceError(f"{path}: the gzip data ends early, in line {number}") from error
            except (gzip.BadGzipFile, zlib.error) as error:
                raise TraceError(f"{path}: the gzip data is damaged, near line {number}: {error}") from error
            told(share())
            size += len(block)
            if size > MOST_BYTES:
                raise TraceError(f"{path}, line {number}: more than {MOST_BYTES:,} bytes, the limit")
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
    """Yield what a file holds in large blocks: where it breaks off, what came before that and only then the error."""
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


class _Reader:
    """Collects the columns of one file, piece by piece."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._places: tuple[int, ...] = ()  # of COLUMNS and, where there is one, of the model
        self._width = 0
        self._models: dict[str, int] = {}
        self._parts: list[tuple[FloatColumn, IntColumn]] = []  # float64[3, n] and int64[n], the model of each
        self._count = 0
        self._last_s = 0.0

    def take(self, number: int, lines: list[str]) -> None:
        """Add whole lines, of which the first is line `number` of the file."""
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
        if self._count + len(numbers) > MOST_REQUESTS:
            line = numbers[MOST_REQUESTS - self._count]
            raise TraceError(f"{self._path}, line {line}: more than {MOST_REQUESTS:,} requests, the limit")
        self._count += len(numbers)
        model = self._number_models(models, numbers) if models else [0] * len(numbers)
        self._parts.append((columns, np.array(model, np.int64)))

    def traces(self, name: str) -> tuple[Trace, ...]:
        if not self._count:
            raise TraceError(f"{self._path}: it contains no request")
        columns = np.concatenate([part for part, _ in self._parts], axis=1)
        model = np.concatenate([models for _, models in self._parts])
        duration_s = math.floor(self._last_s) + 1.0  # whole seconds, and the last request lies before the end
        whole = Trace(name, columns[0], columns[1].astype(np.int64), columns[2].astype(np.int64), duration_s)
        if not self._models:
            return (whole,)
        return tuple(
            replace(_take(whole, model == index), name=f"{name}/{label}")
            for label, index in sorted(self._models.items())
        )

    def _columns(self, lines: list[str]) -> tuple[FloatColumn, Sequence[str]]:
        """Return the numbers, float64[3, n], and the models, if any. ValueError or csv.Error: it is no table."""
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
        if MODEL not in names:  # or several models would be run as one
            for name in names:
                if get_close_matches(name[:100].casefold(), [MODEL], cutoff=MODEL_LIKENESS):
                    raise TraceError(f"{self._path}, line 1: column {name!r}: did you mean {MODEL}?")
        wanted = (*COLUMNS, MODEL) if MODEL in names else COLUMNS
        self._places, self._width = tuple(names.index(name) for name in wanted), len(names)

    def _fault(self, filled: list[tuple[int, str]]) -> TraceError:
        """Find the first line that cannot be read as a row."""
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
    """Read a number as `numpy.loadtxt` does. Raises ValueError, also for `1_000` and `١٠`, which Python would read."""
    if "_" in text or not text.isascii():
        raise ValueError(f"{text!r} is not a number")
    return float(text)
