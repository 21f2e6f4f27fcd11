"""Reads the history of all services: pieces of range queries, at a bounded rate, kept in a file until the next run.

A piece that the server refuses because it is too large is halved. One that fails for another reason is tried again.
What could not be read is a hole with a reason.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import pairwise

import numpy as np

from autoscaler.adapters.prometheus.pod_labels import scrape_of
from autoscaler.adapters.prometheus.range.reader import NamespacesLeftOut, RangeQueryFailed, RangeReader, Rows
from autoscaler.adapters.prometheus.range.service_queries import (
    COUNTED_WITHIN,
    GROWTHS,
    PODS,
    ServiceName,
    ServiceQuery,
    service_of,
)
from autoscaler.core.table.columns import FloatColumn
from autoscaler.core.table.fair_share import keep_fairly
from autoscaler.ports import Unavailable
from autoscaler.report.history import MOST_CELLS, FleetHistory, Span, Steps
from autoscaler.report.piece_cache import About, Answer, Piece, PieceCache

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

MOST_BYTES = 24 << 20
"""Longest answer. Its numbers take six times as much until they are arrays."""


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
                lost = f"{part}{_hours(piece, span)} of {piece.query.column} could not be read: {failure}"
                problems[str(failure) if isinstance(failure, NamespacesLeftOut) else lost] = None
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
        self._columns: dict[str, dict[About, Steps]] = {}

    def add(self, piece: Piece, answer: Answer) -> None:
        """Add an answer. What two queries say of one service, as of two engines, is added up."""
        self.pieces += 1
        if self._pods is not None:
            self._pods.append((piece, answer))
            return
        column = self._columns.setdefault(piece.query.column, {})
        for name, values in answer.items():
            if name.service not in self._services:
                continue
            if name not in column:
                column[name] = np.full(self._span.steps, np.nan, np.float32)
            known = column[name][piece.first : piece.last]
            column[name][piece.first : piece.last] = np.where(np.isnan(known), values, known + np.nan_to_num(values))

    def choose(self) -> None:
        """Choose the services of which the other columns are read, once: as many as the memory has room for."""
        if self._pods is None:
            return
        pods, self._pods = self._pods, None
        ran: defaultdict[ServiceName, float] = defaultdict(float)
        for _, answer in pods:
            for about, values in answer.items():
                ran[about.service] += float(np.nansum(values))
        own = {about.service for _, answer in pods for about in answer if not about.by_another}
        named = {
            name: pods_ran
            for name, pods_ran in ran.items()
            if all(len(part) <= MOST_CHARS and part.isprintable() for part in name)
        }
        chosen = choose_services(named, own, max(MOST_CELLS // self._span.steps, 1))
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
        """Return the services that reported engines, and their columns. The arrays are given away one by one.

        Any scraped pod may write of others, so that counts only until a pod of the service itself is scraped.
        """
        pods = self._columns.get(PODS, {})
        services = tuple(sorted({name.service for name in pods}))
        begun = {
            about.service: np.maximum.accumulate(~np.isnan(values))
            for about, values in pods.items()
            if not about.by_another
        }
        columns = {}
        for name in list(self._columns):
            of_services = self._columns.pop(name)
            columns[name] = np.full((self._span.steps, len(services)), np.nan, np.float32)
            for row, service in enumerate(services):
                own, others = (of_services.pop(About(service, each), None) for each in (False, True))
                if others is not None:
                    columns[name][:, row] = np.where(begun.get(service, False), np.nan, others)
                if own is not None:
                    np.copyto(columns[name][:, row], own, where=~np.isnan(own))
        return services, columns


def choose_services(ran: Mapping[ServiceName, float], own: AbstractSet[ServiceName], most: int) -> list[ServiceName]:
    """Return the services that ran most, at most as many of a namespace as leave room for those of others.

    own: those whose own pods were scraped. They go first: any scraped pod may invent others.
    """
    chosen: list[ServiceName] = []
    for services in (ran.keys() & own, ran.keys() - own):
        ordered = sorted(services, key=lambda each: (-ran[each], each))
        kept = keep_fairly([name[:2] for name in ordered], most - len(chosen))
        chosen += [ordered[place] for place in kept]
    return chosen


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
            is_lost = found[2] is not None and not isinstance(found[2], NamespacesLeftOut) and not found[1]
            in_a_row = in_a_row + 1 if is_lost else 0
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
            name = About(service_of(row["metric"]), bool(scrape_of(row["metric"])))
            if name not in values:
                values[name] = np.full(piece.last - piece.first, np.nan, np.float32)
            _add(values[name], row["values"], piece, span)
    if failure is None and reader.left_out:
        failure = NamespacesLeftOut(*reader.left_out)
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
