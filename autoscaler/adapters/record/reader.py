"""Reads the folder of a record, also while it is written: what was decided at a time, and the ticks computed again."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Self

from autoscaler.adapters.record import folder as folders
from autoscaler.adapters.record.file import DAMAGE, Block, RecordFile
from autoscaler.adapters.record.rows import WORKLOADS
from autoscaler.adapters.record.stream import Damaged, Decoder, Value
from autoscaler.adapters.record.tick_values import Decided, to_input, to_memory
from autoscaler.core.model.fleet import WorkloadRef
from autoscaler.core.model.types import Decision, TickInput
from autoscaler.core.state import Memory
from autoscaler.core.tick import tick
from autoscaler.ports import Unavailable


class NothingRecorded(Unavailable):
    """A record has no tick yet."""


class RecordedTick(NamedTuple):
    """One tick as it was recorded."""

    number: int
    at_s: float  # Unix time
    decided: Decided
    workloads: tuple[WorkloadRef, ...]  # [W]
    codes: Mapping[tuple[str, int], str]  # names of "recommender", "signal" and "stage" in the version that wrote it

    def name(self, kind: str, code: float) -> str:
        """Return the name of a code."""
        return self.codes.get((kind, int(code)), f"of code {code:g}")


@dataclass(frozen=True)
class ComputedTick:
    """One tick that was computed again."""

    recorded: RecordedTick
    inp: TickInput
    decision: Decision
    policies: tuple[str, ...]  # [W]
    version: str  # of the program that recorded it
    computed: int  # ticks from the last memory on


class RecordedChange(NamedTuple):
    """A change of one workload's count."""

    at_s: int
    before: int
    after: int
    outcome: str
    detail: str
    sentence: str


class Record:
    """An open record. Files that cannot be read are named in `problems`; the others are read."""

    def __init__(self, folder: Path, own: bool = False) -> None:
        """own: this process writes it."""
        self.folder = folder
        self._own = own
        self.problems: list[str] = []
        self._files: list[RecordFile] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self.problems = [
            f"{path}: left out: not named as a file of a record" for path in folders.foreign_files(self.folder)
        ]
        for path in folders.files(self.folder):
            try:
                file = RecordFile.open(path, own=self._own)
                self._stack.callback(file.close)
                if file.bounds() is not None:
                    self._files.append(file)
            except (*DAMAGE, ValueError) as error:
                self._note(path, error)
        if not self._files:
            self._stack.close()
            said = f"--record {self.folder}: nothing can be read"
            if not self.problems:
                raise NothingRecorded(f"{said}: no tick is recorded in it")
            raise Unavailable(f"{said}: {'; '.join(self.problems)}")
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def files(self) -> tuple[RecordFile, ...]:
        """The files that can be read, oldest first."""
        return tuple(self._files)

    def span(self) -> tuple[float, float]:
        """Return the Unix times of the first tick and of the last one."""
        bounds = [bounds for file in self._files if (bounds := file.bounds())]
        return min(each[2] for each in bounds), max(each[3] for each in bounds)

    def begins(self) -> list[int]:
        """Return the Unix time at which each file begins. What still holds is written again there."""
        return [math.floor(bounds[2]) for file in self._files if (bounds := file.bounds())]

    def query(self, query: str, *values: Any) -> Iterator[tuple[RecordFile, tuple[Any, ...]]]:
        """Return the rows of a query of each file, oldest first. A damaged file is left out, and named."""
        for file in self._files:
            try:
                rows = file.rows(query, *values)
            except DAMAGE as error:
                self._note(file.path, error)
                continue
            yield from ((file, row) for row in rows)

    def tick(self, at_s: float) -> RecordedTick:
        """Return the last tick up to a time. Raises Unavailable, which says what there is."""
        file, block = self._block(at_s)
        last = None
        for each in self._decided(file, block):
            if each.at_s <= at_s:
                last = each
        assert last is not None  # the first tick of the block is not later
        return last

    def compute(self, at_s: float) -> ComputedTick:
        """Compute the last tick up to a time again, from the memory before it. Raises Unavailable."""
        recorded = self.tick(at_s)
        with self._inputs(recorded) as (file, memory, inputs):
            held = to_memory(Decoder().decode(memory)[0])
            for computed, (number, value) in enumerate(inputs, 1):
                inp = to_input(value)
                decision, held = _compute(inp, held)
                if number == recorded.number:
                    policies = self._policies(file, recorded)
                    return ComputedTick(recorded, inp, decision, policies, file.about()["version"], computed)
        raise Unavailable(f"{file.path}: the input of the tick of {moment(recorded.at_s)} is not there")

    def input(self, at_s: float) -> TickInput:
        """Return what the last tick up to a time was decided from. Raises Unavailable."""
        recorded = self.tick(at_s)
        with self._inputs(recorded) as (file, _, inputs):
            for number, value in inputs:
                if number == recorded.number:
                    return to_input(value)
        raise Unavailable(f"{file.path}: the input of the tick of {moment(recorded.at_s)} is not there")

    @contextmanager
    def _inputs(self, recorded: RecordedTick) -> Iterator[tuple[RecordFile, bytes, Iterator[tuple[int, Value]]]]:
        """Hand out the memory before a tick, and the inputs since then. Damage in them becomes Unavailable."""
        file, wanted = self._block(recorded.at_s)
        begin = self._begin(file, wanted)
        kept = "SELECT first FROM blocks WHERE first BETWEEN ? AND ? AND (inputs IS NULL OR first = ? AND memory = x'')"
        if file.rows(kept, begin, wanted.first, begin):
            raise Unavailable(
                f"the inputs of the tick of {moment(recorded.at_s)} are not kept, so it cannot be computed again; "
                f"{self._kept()}"
            )
        decoder = Decoder()
        memory = next(file.blocks(begin - 1, begin)).memory or b""
        blocks = file.blocks(begin - 1, wanted.first)
        values = (each for block in blocks for each in enumerate(decoder.decode(block.inputs or b""), block.first))
        try:
            yield file, memory, values
        except (*DAMAGE, Damaged) as error:
            version = file.about().get("version", "unknown")
            problem = printable(f"{str(error)[:200]}; version {version[:20]} of the program recorded them")
            raise Unavailable(
                f"{file.path}: the inputs before {moment(recorded.at_s)} cannot be read: {problem}"
            ) from error

    def changes(self, ref: tuple[str, str], from_s: float, until_s: float) -> list[RecordedChange]:
        """Return the changes of a workload within a time, oldest first."""
        query = (
            "SELECT at_s, before, after, outcome, detail, sentence FROM changes JOIN workloads ON id = workload "
            "WHERE namespace = ? AND name = ? AND at_s BETWEEN ? AND ? ORDER BY tick"
        )
        return [RecordedChange(*row) for _, row in self.query(query, *ref, from_s, until_s)]

    def _block(self, at_s: float) -> tuple[RecordFile, Block]:
        """Return the last block that begins by then and can be read, and its file. Raises Unavailable."""
        damaged = ""
        for file in reversed(self._files):
            try:
                found = file.rows("SELECT first FROM ticks WHERE at_s <= ? ORDER BY first DESC LIMIT 1", at_s)
                if found:
                    return file, next(file.blocks(found[0][0] - 1, found[0][0]))
            except (*DAMAGE, StopIteration) as error:
                self._note(file.path, error)
                damaged = self.problems[-1]
        first, last = self.span()
        if damaged and first <= at_s:
            raise Unavailable(f"the ticks up to {moment(at_s)} cannot be read: {damaged}")
        raise Unavailable(
            f"--at is {moment(at_s)}, before the first tick of {self.folder}: it has {moment(first)} to {moment(last)}"
        )

    def _begin(self, file: RecordFile, wanted: Block) -> int:
        """Return the first tick of the streams to which a block belongs."""
        ((begin,),) = file.rows("SELECT max(first) FROM blocks WHERE memory IS NOT NULL AND first <= ?", wanted.first)
        return wanted.first if begin is None else int(begin)

    def _decided(self, file: RecordFile, wanted: Block) -> Iterator[RecordedTick]:
        """Return the ticks of a block. Raises Unavailable if it is damaged."""
        decoder = Decoder()
        try:
            rows = file.rows(WORKLOADS)
            codes = {(kind, code): name for kind, code, name in file.rows("SELECT kind, code, name FROM codes")}
            refs = {number: WorkloadRef(namespace, name, kind) for number, namespace, name, kind, _ in rows}
            for block in file.blocks(self._begin(file, wanted) - 1, wanted.first):
                values = decoder.decode(block.decided)
            for offset, value in enumerate(values):
                decided = Decided.from_value(value)
                names = tuple(refs[number] for number in decided.workload.tolist())
                yield RecordedTick(wanted.first + offset, float(decided.at_s[0]), decided, names, codes)
        except (*DAMAGE, Damaged, KeyError, IndexError) as error:
            raise Unavailable(f"{file.path}: the ticks around {moment(wanted.at_s)} are damaged: {error}") from error

    def _policies(self, file: RecordFile, recorded: RecordedTick) -> tuple[str, ...]:
        query = "SELECT workload, policy FROM facts WHERE tick <= ? ORDER BY tick"
        policies: dict[int, str] = dict(file.rows(query, recorded.number))
        return tuple(policies.get(number, "") for number in recorded.decided.workload.tolist())

    def _kept(self) -> str:
        query = (
            "SELECT min(at_s), max(until_s) FROM ticks JOIN blocks USING (first) "
            "WHERE inputs IS NOT NULL HAVING count(*) > 0"
        )
        spans = [row for _, row in self.query(query)]
        if not spans:
            return "inputs of no tick are kept"
        return f"those of {moment(min(span[0] for span in spans))} to {moment(max(span[1] for span in spans))} are"

    def _note(self, path: Path, error: BaseException) -> None:
        problem = printable(f"{path}: left out: {str(error)[:200] or type(error).__name__}")
        if problem not in self.problems:
            self.problems.append(problem)


def _compute(inp: TickInput, held: Memory) -> tuple[Decision, Memory]:
    """Compute a tick. Raises Damaged: a file may hold any values, of which the tick expects much."""
    try:
        return tick(inp, held)
    except Exception as error:
        raise Damaged(f"{type(error).__name__}: {error}"[:200]) from error


def printable(text: str) -> str:
    """Return a text from a record, safe for a terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def moment(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
