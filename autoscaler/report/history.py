"""Reads the history of all services: pieces of range queries, at a bounded rate, kept in a file until the next run.

A piece that the server refuses because it is too large is halved. One that fails for another reason is tried again.
What could not be read is a hole with a reason.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from autoscaler.adapters.prometheus.range.crowds import fair_share
from autoscaler.adapters.prometheus.range.reader import RangeQueryFailed, RangeReader, Rows
from autoscaler.adapters.prometheus.range.service_queries import (
    COUNTED_WITHIN,
    GROWTHS,
    ORDERED,
    PODS,
    ServiceName,
    ServiceQuery,
    service_of,
)
from autoscaler.core.table.columns import BoolColumn, FloatColumn
from autoscaler.ports import Unavailable
from autoscaler.report.piece_cache import PieceCache

Steps = npt.NDArray[Any]
"""float32[T, W], a value of each service in each step; NaN: unknown."""

PIECE_POINTS = 720
"""Steps of one query: half a day of minutes. Prometheus refuses more than 11,000, and loads all samples at once."""

LEAST_POINTS = 8
"""A piece with fewer steps is not halved again."""

PARALLEL = 2
PAUSE_S = 0.05
"""Each of the parallel readers waits this long between two queries."""

WAITS_S = (1.0, 4.0, 15.0, 30.0)
"""Time before each further try of a query that fails for a passing reason."""

FAILURES = 3
"""Pieces in a row that must fail until reading ends."""

SETTLED_S = 600.0
"""Age of samples beyond which no further ones are expected, so that an answer is kept."""

REFUSED = frozenset({400, 401, 403, 404})
MAX_VALUE = 1e15
MOST_CHARS = 253  # of a name in Kubernetes

MOST_OF_POD: Mapping[str, float] = {
    "running": 1e5,
    "waiting": 1e6,
    "kv_usage": 1.001,
    "gap_s": 1e5,
    "gaps": 1e6,
    "prompt_tokens": 1e7,
    "generation_tokens": 1e6,
    **dict.fromkeys(("finished", "first_tokens", "itl_judged", "ttft_met", "itl_met"), 1e4),
}
"""Most that is believed of one engine: of a mean, or of a growth per second. Real ones are a tenth, at most."""

MOST_ODD, MOST_SILENT = 0.01, 0.5
"""Shares of the steps with impossible numbers, and silent ones, beyond which a service is not judged."""

MOST_CELLS = 4_500_000
"""Steps of all services. A report over as many takes some 800 MiB, at whatever resolution."""

MOST_BYTES = 24 << 20
"""Of one answer. Its numbers take six times as much until they are arrays."""


class Span(NamedTuple):
    """An even grid of steps. Step t ends at `start_s` + (t + 1) x `step_s`."""

    start_s: float  # Unix time
    step_s: float
    steps: int

    @property
    def end_s(self) -> float:
        return self.start_s + self.steps * self.step_s

    @property
    def ends_s(self) -> FloatColumn:
        """Return the Unix time at which each step ends; float64[T]."""
        return np.asarray(self.start_s + self.step_s * np.arange(1.0, self.steps + 1), np.float64)


@dataclass(frozen=True)
class FleetHistory:
    """The history of all services, W, in T steps."""

    span: Span
    services: tuple[ServiceName, ...]
    columns: Mapping[str, Steps]  # those of `service_queries.COLUMNS` that any service has, and `column_of` them
    problems: tuple[str, ...] = ()  # one line each
    queries: int = 0  # that the server answered
    impossible: FloatColumn = field(default_factory=lambda: np.zeros(1))  # [W], or one for all: share of the steps
    # with numbers that cannot be true; they count as unknown

    def column(self, name: str) -> Steps:
        """Return a column, NaN where no service has it."""
        found = self.columns.get(name)
        return np.full((self.span.steps, len(self.services)), np.nan, np.float32) if found is None else found

    def only(self, namespaces: Sequence[str]) -> FleetHistory:
        """Return the services of some namespaces; all if none is given. Raises ValueError if there is none."""
        rows = [row for row, name in enumerate(self.services) if not namespaces or name.namespace in namespaces]
        if not rows:
            known = ", ".join(sorted({name.namespace for name in self.services})[:10])
            raise ValueError(f"no service in namespace {' or '.join(namespaces)}; found: {known}")
        return self.take(rows)

    def take(self, rows: Sequence[int]) -> FleetHistory:
        """Return some services, in this order."""
        place = list(rows)
        columns = {name: values[:, place] for name, values in self.columns.items()}
        impossible = np.broadcast_to(self.impossible, len(self.services))[place]
        names = tuple(self.services[row] for row in place)
        return replace(self, services=names, columns=columns, impossible=impossible)

    def from_first(self, least_steps: int) -> FleetHistory:
        """Return the history since anything was seen; all of it if that is less than `least_steps`."""
        seen = self.seen.any(axis=1)
        first = int(np.argmax(seen)) if seen.any() else 0
        if not first or self.span.steps - first < least_steps:
            return self
        span = Span(self.span.start_s + first * self.span.step_s, self.span.step_s, self.span.steps - first)
        return replace(self, span=span, columns={name: values[first:] for name, values in self.columns.items()})

    @property
    def seen(self) -> BoolColumn:
        """Return the steps in which the service is known to have reported, or to have had no replica; bool[T, W]."""
        reported, silent = self._reports()
        return np.asarray(reported | (silent & ~(self.column(ORDERED) > 0)))

    @property
    def doubts(self) -> tuple[str, ...]:
        """Return why the history of each service is not believed; "": it is. [W]."""
        odd = np.broadcast_to(self.impossible, len(self.services)).tolist()
        untold = (self._reports()[1] & np.isnan(self.column(ORDERED))).mean(axis=0).tolist()
        return tuple(
            f"its engines reported numbers that cannot be true in {impossible:.0%} of the steps"
            if impossible > MOST_ODD
            else f"it was silent in {silent:.0%} of the span, and no kube-state-metrics tells whether it had replicas"
            if silent > MOST_SILENT
            else ""
            for impossible, silent in zip(odd, untold, strict=True)
        )

    def _reports(self) -> tuple[BoolColumn, BoolColumn]:
        """Return when a service reported, and when it was silent after it had and others were not; bool[T, W]."""
        reported = self.column(PODS) > 0
        began = np.maximum.accumulate(reported, axis=0)
        return reported, began & reported.any(axis=1, keepdims=True) & ~reported


class Piece(NamedTuple):
    """A query over some steps."""

    query: ServiceQuery
    first: int
    last: int  # the step after the last one


Answer = dict[ServiceName, Steps]


def read_history(
    readers: Callable[[], RangeReader],
    queries: Sequence[ServiceQuery],
    span: Span,
    cache: PieceCache,
    progress: Callable[[float], None] = lambda _: None,
    now: Callable[[], float] = time.time,
    waits_s: Sequence[float] = WAITS_S,
) -> FleetHistory:
    """Read all pieces. Raises Unavailable if nothing could be read.

    readers: makes a reader, one for each thread. now: Unix time. waits_s: before each further try.
    """
    pieces = _pieces(queries, span)
    merged, problems, done, answered = _Merged(span), dict[str, None](), 0, 0
    for first in (True, False):  # the counts of pods tell which services there are
        missing: list[Piece] = []
        for piece in (each for each in pieces if (each.query.column == PODS) is first):
            kept = cache.get(piece, span)
            if kept is None:
                missing.append(piece)
            else:
                merged.add(piece, kept)
                done += 1
        asked = 0
        for piece, answer, failure in _read_parallel(readers, missing, span, waits_s):
            done, asked = done + 1, asked + 1
            progress(done / len(pieces))
            if failure is not None:
                part = "a part of " if answer else ""
                problems[f"{part}{_hours(piece, span)} of {piece.query.column} could not be read: {failure}"] = None
                last_error = failure
            if failure is not None and not answer:
                continue
            answered += 1
            merged.add(piece, answer)
            if failure is None and span.start_s + piece.last * span.step_s < now() - SETTLED_S:
                cache.put(piece, span, answer)
        if left := len(missing) - asked:
            problems[f"{left:,} more parts of the history were not asked for: {FAILURES} in a row failed"] = None
        if not merged.pieces and problems:
            raise last_error
        merged.choose()
    services, values = merged.take()
    impossible = _leave_out_impossible(values, span)
    return FleetHistory(span, services, values, (*problems, *merged.problems), answered, impossible)


def _leave_out_impossible(columns: Mapping[str, Steps], span: Span) -> FloatColumn:
    """Set numbers that cannot be true to NaN, in place. Returns the share of the steps of each service, float64[W]."""
    if PODS not in columns:
        return np.zeros(1)
    pods = np.fmax(np.nan_to_num(columns[PODS]), 1.0)
    found = np.zeros(pods.shape, bool)
    for column, values in columns.items():
        name = column.partition("#")[0]
        if name in MOST_OF_POD:
            of = 1.0 if name == "kv_usage" else pods * (span.step_s if name in GROWTHS + COUNTED_WITHIN else 1.0)
            with np.errstate(invalid="ignore"):
                odd = values > MOST_OF_POD[name] * of
            values[odd] = np.nan
            found |= odd
    return np.asarray(found.mean(axis=0))


class _Merged:
    """The answers so far: those for pods as they came, and one array for each column of each chosen service."""

    def __init__(self, span: Span) -> None:
        self.pieces = 0
        self.problems: tuple[str, ...] = ()
        self._span = span
        self._pods: list[tuple[Piece, Answer]] | None = []  # None: the services are chosen
        self._services: frozenset[ServiceName] = frozenset()
        self._columns: dict[str, dict[ServiceName, Steps]] = {}

    def add(self, piece: Piece, answer: Answer) -> None:
        """Add an answer. What two queries say of one service, as of two engines, is added up."""
        self.pieces += 1
        if self._pods is not None:
            self._pods.append((piece, answer))
            return
        column = self._columns.setdefault(piece.query.column, {})
        for name in self._services.intersection(answer):
            values = answer[name]
            if name not in column:
                column[name] = np.full(self._span.steps, np.nan, np.float32)
            known = column[name][piece.first : piece.last]
            column[name][piece.first : piece.last] = np.where(np.isnan(known), values, known + np.nan_to_num(values))

    def choose(self) -> None:
        """Choose the services of which the other columns are read, once: as many as the memory has room for."""
        if self._pods is None:
            return
        pods, self._pods = self._pods, None
        ran = Counter[ServiceName]()
        for _, answer in pods:
            ran.update({name: float(np.nansum(values)) for name, values in answer.items()})
        named = {name for name in ran if all(len(part) <= MOST_CHARS and part.isprintable() for part in name)}
        chosen = _choose(ran, named, max(MOST_CELLS // self._span.steps, 1))
        self._services = frozenset(chosen)
        if odd := len(ran) - len(named):
            self.problems += (f"{odd:,} services are left out: their names are not names of Kubernetes",)
        if left := len(named) - len(chosen):
            self.problems += (
                f"{left:,} of {len(named):,} services are left out, those that ran least in the namespaces with most; "
                "a longer --step, a shorter --since or --namespace shows more",
            )
        for piece, answer in pods:
            self.add(piece, answer)
        self.pieces -= len(pods)  # each was counted as it came

    def take(self) -> tuple[tuple[ServiceName, ...], dict[str, Steps]]:
        """Return the services that reported engines, and their columns. The arrays are given away one by one."""
        services = tuple(sorted(self._columns.get(PODS, {})))
        none = np.full(self._span.steps, np.nan, np.float32)
        columns = {}
        for name in list(self._columns):
            of_services = self._columns.pop(name)
            columns[name] = np.empty((self._span.steps, len(services)), np.float32)
            for row, service in enumerate(services):
                columns[name][:, row] = of_services.pop(service, none)
        return services, columns


def _choose(ran: Mapping[ServiceName, float], named: set[ServiceName], most: int) -> list[ServiceName]:
    """Return the services that ran most, at most as many of a namespace as leave room for those of others."""
    by_namespace: dict[tuple[str, str], list[ServiceName]] = {}
    for name in sorted(named, key=lambda each: (-ran[each], each)):
        by_namespace.setdefault(name[:2], []).append(name)
    share = fair_share({place: len(names) for place, names in by_namespace.items()}, most)
    chosen = [name for names in by_namespace.values() for name in names[:share]]
    return sorted(chosen, key=lambda each: -ran[each])[:most]


def _pieces(queries: Sequence[ServiceQuery], span: Span) -> list[Piece]:
    """Return all pieces, the counts of pods first. They begin at multiples of their length: a later run finds them."""
    piece_s = PIECE_POINTS * span.step_s
    offset = round((span.start_s % piece_s) / span.step_s)
    edges = [0, *range(PIECE_POINTS - offset, span.steps, PIECE_POINTS), span.steps]
    ranges = [(first, last) for first, last in pairwise(edges) if last > first]
    return [Piece(query, first, last) for query in queries for first, last in ranges]


def _read_parallel(
    readers: Callable[[], RangeReader], pieces: Sequence[Piece], span: Span, waits_s: Sequence[float]
) -> Iterator[tuple[Piece, Answer, Unavailable | None]]:
    """Yield what was read of each piece as it comes, and why not all was. The threads end when the iterator does."""
    waiting: queue.SimpleQueue[Piece] = queue.SimpleQueue()
    answers: queue.Queue[tuple[Piece, Answer, Unavailable | None] | BaseException] = queue.Queue(PARALLEL)
    stopped = threading.Event()
    for piece in pieces:
        waiting.put(piece)
    in_a_row = 0

    def work() -> None:
        reader = readers()
        try:
            while not stopped.is_set():
                piece = waiting.get_nowait()
                answers.put((piece, *_read(reader, piece, span, stopped, waits_s)))
                stopped.wait(PAUSE_S)
        except queue.Empty:
            pass
        except BaseException as error:  # raised where the answers are read
            answers.put(error)
        finally:
            reader.close()

    for number in range(min(PARALLEL, len(pieces))):
        threading.Thread(target=work, name=f"history {number}", daemon=True).start()
    try:
        for _ in pieces:
            found = answers.get()
            if isinstance(found, BaseException):
                raise found
            in_a_row = in_a_row + 1 if found[2] is not None and not found[1] else 0
            yield found
            if in_a_row >= FAILURES:
                return
    finally:
        stopped.set()


def _read(
    reader: RangeReader, piece: Piece, span: Span, stopped: threading.Event, waits_s: Sequence[float]
) -> tuple[Answer, Unavailable | None]:
    """Return what was read of a piece, and why not all of it was; None: all was."""
    values: Answer = {}
    failure: Unavailable | None = None
    parts = [(piece.first, piece.last)]
    while parts:
        first, last = parts.pop()
        try:
            rows = _query(reader, piece.query.expression, (first, last), span, stopped, waits_s)
        except RangeQueryFailed as error:
            if error.too_large and last - first > LEAST_POINTS:
                middle = (first + last) // 2
                parts += [(middle, last), (first, middle)]
                continue
            failure = error
            if error.status in REFUSED:
                break
            continue
        except Unavailable as error:
            failure = error
            continue
        for row in rows:
            name = service_of(row["metric"])
            if name not in values:
                values[name] = np.full(piece.last - piece.first, np.nan, np.float32)
            _add(values[name], row["values"], piece, span)
    return values, failure


def _query(
    reader: RangeReader,
    expression: str,
    steps: tuple[int, int],
    span: Span,
    stopped: threading.Event,
    waits_s: Sequence[float],
) -> Rows:
    first, last = steps
    start_s, end_s = (span.start_s + (step + 1) * span.step_s for step in (first, last - 1))
    for wait_s in waits_s:
        try:
            return reader.query(expression, start_s, end_s, span.step_s)
        except RangeQueryFailed as error:
            if error.too_large or error.status in REFUSED or stopped.wait(wait_s):
                raise
    return reader.query(expression, start_s, end_s, span.step_s)


def _add(total: Steps, points: FloatColumn, piece: Piece, span: Span) -> None:
    """Add the points of one series, float64[n, 2]; a service may have a series for each pair of labels."""
    at_s, read = points.T
    step = np.round((at_s - span.start_s) / span.step_s).astype(np.int64) - 1 - piece.first
    usable = (step >= 0) & (step < len(total)) & (read >= 0) & (read <= MAX_VALUE)
    step, read = step[usable], read[usable]
    total[step] = np.where(np.isnan(total[step]), read, total[step] + read)


def _hours(piece: Piece, span: Span) -> str:
    return f"{(piece.last - piece.first) * span.step_s / 3600:.3g} h"
