"""The agent of one node: fetches what is wished there, makes room for it, and reports what is there.

The loop compares what is wished with what is there, and starts over after every change. So a restart needs no memory
except the folder. Names, sizes and budgets are decided elsewhere; this file orders the steps.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

import structlog

from autoscaler.config.findings import shown
from autoscaler.config.weights.compile_cache import is_cache
from autoscaler.config.weights.report import ModelReport, Report, State
from autoscaler.config.weights.source import ModelSource
from autoscaler.ports import Clock
from autoscaler.weights.attempts import Attempts
from autoscaler.weights.budget import Space, trim
from autoscaler.weights.check_schedule import RECHECK_S
from autoscaler.weights.compile_cache import CompileCaches
from autoscaler.weights.fetch import Transfer
from autoscaler.weights.listing import Listing, Origin
from autoscaler.weights.node import AgentNode
from autoscaler.weights.present import PresentModels
from autoscaler.weights.problems import WeightsCause, WeightsError, as_problem
from autoscaler.weights.report_publisher import ReportPublisher
from autoscaler.weights.store import PARTS, Owner, PublishedModel, WeightStore
from autoscaler.weights.threads import entered, to_end
from autoscaler.weights.wanted import Wanted

log = structlog.get_logger(__name__)

OpenOrigin = Callable[[ModelSource], Origin]
"""Returns where a source is. Raises WeightsError for one that may not be fetched, before any request."""


@dataclass(frozen=True)
class Times:
    """Intervals, in seconds."""

    poll_s: float = 30.0  # between two looks at the folder
    probe_s: float = 5.0  # between two questions whether the disk answers
    slow_s: float = 30.0  # a disk that takes longer does not answer
    hold_s: float = 5.0  # between two attempts to hold the folder
    report_s: float = 0.5  # between two comparisons of the report with the published one
    republish_s: float = 1800.0  # another client may have changed the node
    settle_s: float = 2.0  # after a label is removed, until pods that were bound because of it are known
    used_s: float = 300.0  # between two records of the last use of a model
    pace: float = 1.0  # factor of the pauses after failures
    recheck_s: float = RECHECK_S  # between two models whose checksums are compared once more
    check_bytes_per_s: float = 200e6  # of checksums at the start; engines read the same disk


@dataclass
class Fetching:
    """The model that is being fetched."""

    source: ModelSource
    size: int = 0  # bytes; 0: not known yet
    fetched: int = 0  # bytes


@dataclass
class AgentCounts:
    """Numbers since the start of the process."""

    fetched_bytes: int = 0
    fetched_models: int = 0
    failures: Counter[str] = field(default_factory=Counter)  # by cause
    evictions: int = 0
    checks: Counter[str] = field(default_factory=Counter)  # of models: "right" or "wrong"


class AgentStep(NamedTuple):
    """What the agent would do for one model."""

    source: ModelSource
    size: int = 0  # bytes
    evicted: tuple[str, ...] = ()  # what goes first
    cause: str = ""  # why the model is not fetched; "": it is
    text: str = ""


class Agent:
    """Keeps the weights of a node: `run` it in a task."""

    def __init__(
        self,
        store: WeightStore,
        open_origin: OpenOrigin,
        transfer: Transfer,
        node: AgentNode,
        clock: Clock,
        version: str = "",
        max_cache_bytes: float = float("inf"),
        times: Times | None = None,
    ) -> None:
        """max_cache_bytes: of all compile caches together, within the limits of the store."""
        self.fetching: Fetching | None = None
        self.cache_bytes = 0  # of all compile caches
        self._store = store
        self._caches = CompileCaches(store.root)
        self._max_cache_bytes = max_cache_bytes
        self._open_origin = open_origin
        self._transfer = transfer
        self._node = node
        self._wanted = Wanted(node)
        self._clock = clock
        self._version = version
        self._times = times or Times()
        self._attempts = Attempts(self._times.pace)
        self._present = PresentModels(store, clock, self._times.recheck_s)
        self.counts = AgentCounts(checks=self._present.checks)
        self._used_s: dict[str, float] = {}  # when the last use of a model was recorded
        self._sizes: dict[str, int] = {}  # bytes of models that are not here, as their origins say
        self._problem: WeightsError | None = None  # of the folder as a whole
        self._space = (0, 0)  # budget and free bytes
        self._looked = False  # the folder was read since it is held
        self._publisher = ReportPublisher(node, clock, self._current, self._times.report_s, self._times.republish_s)

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._publisher.keep_published(), name="report")
            tasks.create_task(self._keep_folder(), name="weights")

    # What is there, and what is wished

    def report(self) -> Report:
        """Return what the node holds now."""
        if self._problem is not None:
            return Report({}, self._version, *self._space, self._problem.cause, str(self._problem))
        models = {}
        for source in self._wanted.models():
            models[source.key] = self._state(source)
        # Models that were used last come first, because labels are limited.
        for key, model in reversed(self._present.complete.items()):
            if key != model.listing.source.key:
                continue  # a former version of a folder, which nobody can ask for
            if key not in models and self._present.is_ready(key):
                models[key] = ModelReport(str(model.listing.source), State.READY, model.listing.size)
        wishes, problem = self._node.wishes(), self._node.problem()
        if not problem and wishes is not None and wishes.refused:
            number = len(wishes.refused)
            problem = f"{number} {'wish is' if number == 1 else 'wishes are'} refused: {wishes.refused[0][1]}"
        return Report(models, self._version, *self._space, WeightsCause.INVALID if problem else "", problem)

    def _current(self) -> Report | None:
        """Return the report to publish. An agent that does not hold the folder has nothing to say."""
        problem = self._problem
        holds = self._looked if problem is None else problem.cause is not WeightsCause.BUSY
        return self.report() if holds else None

    def _state(self, source: ModelSource) -> ModelReport:
        key, text = source.key, str(source)
        model = self._present.complete.get(key)
        if self._present.is_ready(key) and model is not None:
            return ModelReport(text, State.READY, model.listing.size)
        if self.fetching is not None and self.fetching.source == source:
            return ModelReport(text, State.FETCHING, self.fetching.size)
        size = self._sizes.get(key, 0)
        attempt = self._attempts.get(key)
        if attempt is not None:
            state = State.WAITING if attempt.cause is WeightsCause.BUSY else State.FAILED
            return ModelReport(text, state, size, attempt.cause, attempt.text)
        if key in self._present.wrong:
            return ModelReport(text, State.WAITING, size, WeightsCause.CORRUPT, self._present.wrong[key])
        return ModelReport(text, State.WAITING, size)

    # The folder

    async def _keep_folder(self) -> None:
        """Hold the folder as the only agent, and work in it. If that fails, start over."""
        while True:
            try:
                await self._hold_folder()
            except* (WeightsError, OSError) as errors:
                self._set_problem(_first(errors))
            self._present.complete, self._looked = {}, False
            await self._clock.sleep(self._times.hold_s)

    async def _hold_folder(self) -> None:
        async with entered(self._store.owning()) as owner:
            self._set_problem(None)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._probe(owner), name="probe of the disk")
                tasks.create_task(self._work(), name="fetch")
                checks = self._present.check_all(self._times.check_bytes_per_s, self._times.probe_s, self._node.changed)
                tasks.create_task(checks, name="checksums")
                written = self._publisher.keep_written(self._store.write_report, lambda: self._problem is None)
                tasks.create_task(written, name="report for other commands")

    async def _probe(self, owner: Owner) -> None:
        """Ask the disk at intervals. Raises WeightsError if the folder is not the one that is held any more."""
        while True:
            asked = asyncio.ensure_future(to_end(owner.check))
            try:
                done, _ = await asyncio.wait({asked}, timeout=self._times.slow_s)
                if not done:
                    text = f"the disk does not answer within {self._times.slow_s:g} s"
                    self._set_problem(WeightsError(WeightsCause.DISK, text))
                await asked
            except (WeightsError, OSError) as error:
                self._set_problem(as_problem(error))
                raise
            finally:
                asked.cancel()
                await asyncio.wait({asked})  # the thread uses the lock, which is closed afterwards
            self._set_problem(None)
            await self._clock.sleep(self._times.probe_s)

    def _set_problem(self, problem: WeightsError | None) -> None:
        if str(problem or "") != str(self._problem or ""):
            if problem is None:
                log.info("folder of weights works", folder=str(self._store.root))
            else:
                log.error("folder of weights cannot be used", cause=problem.cause, error=str(problem))
        self._problem = problem

    # Fetching

    async def _work(self) -> None:
        """Compare what is there with what is wished, take one step, and repeat."""
        needs: object = None
        while True:
            self._node.changed.clear()
            await self._look()
            await self._note_uses()
            await self._trim_caches()
            wanted = {source.key for source in self._wanted.models()}
            self._attempts.keep(wanted)
            self._sizes = {key: size for key, size in self._sizes.items() if key in wanted}
            self._used_s = {key: used_s for key, used_s in self._used_s.items() if key in self._present.complete}
            present = (self._wanted.models(), self._node.used(), self._node.wishes(), set(self._node.used_caches()))
            if present != needs:
                self._attempts.retry(WeightsCause.NO_SPACE)
                needs = present
            source = self._next()
            if source is None:
                await self._remove_wrong()
                await self._wait()
            else:
                await self._fetch_unless_urgent(source)

    async def _fetch_unless_urgent(self, source: ModelSource) -> None:
        """Fetch a model, until a more urgent one may be fetched, or this one is not wished any more."""
        task = asyncio.ensure_future(self._fetch(source))
        try:
            while not task.done():
                change = asyncio.ensure_future(self._wait())
                await asyncio.wait({task, change}, return_when=asyncio.FIRST_COMPLETED)
                change.cancel()
                if task.done():
                    break
                self._node.changed.clear()
                await self._look()
                await self._note_uses()
                if not self._present.is_ready(source.key) and self._next() != source:  # ready: it ends in a moment
                    log.info("transfer is put off", model=str(source))
                    break
        finally:
            task.cancel()
            await asyncio.wait({task})
        if not task.cancelled():
            task.result()

    def _next(self) -> ModelSource | None:
        """Return the most urgent model that is absent and may be tried now."""
        now_s = self._clock.now_s()
        for source in self._wanted.models():
            if not self._present.is_ready(source.key) and self._attempts.is_due(source.key, now_s):
                return source
        return None

    async def _wait(self) -> None:
        """Wait for a change, for the next attempt, or until it is time to look at the folder again."""
        now_s = self._clock.now_s()
        due_s = self._attempts.next_s((source.key for source in self._wanted.models()), now_s) - now_s
        with suppress(TimeoutError):
            async with asyncio.timeout(min(due_s, self._times.poll_s)):
                await self._node.changed.wait()

    async def _look(self) -> None:
        """Read what is there, and compare sizes. Incomplete models are removed, to be fetched again."""
        await self._present.look()
        await self._measure()
        self._looked = True

    async def _note_uses(self) -> None:
        now_s = self._clock.now_s()
        await to_end(self._caches.use, self._node.used_caches())
        for source in self._node.used() or ():
            key = source.key
            if key in self._present.complete and now_s - self._used_s.get(key, float("-inf")) >= self._times.used_s:
                self._used_s[key] = now_s
                with suppress(WeightsError):  # a read-only disk; the order of evictions is all that depends on it
                    await to_end(self._store.use, key)

    async def _read_space(self) -> Space:
        """Return what models and compile caches take, and what else has room. Raises WeightsError."""
        space = await to_end(self._store.space)
        return space._replace(held=(*space.held, *await to_end(self._caches.held)))

    async def _measure(self) -> None:
        space = await self._read_space()
        caches = [each for each in space.held if is_cache(each.name)]
        self.cache_bytes = sum(sum(each.files.values()) for each in caches)
        free = min(space.budget_bytes - space.held_bytes, space.free_bytes)
        self._space = (int(space.budget_bytes), int(max(free, 0)))

    async def _trim_caches(self) -> None:
        """Remove compile caches beyond their share. Raises WeightsError."""
        for each in trim(self._wanted.judge(await to_end(self._caches.held)), self._max_cache_bytes):
            await to_end(self._caches.remove, each.name)
            self.counts.evictions += 1
            log.info("evicted", name=each.name, bytes=sum(each.files.values()))

    async def _fetch(self, source: ModelSource) -> None:
        key = source.key
        self.fetching = fetching = Fetching(source)

        def progress(count: int) -> None:
            fetching.fetched += count
            self.counts.fetched_bytes += max(count, 0)

        try:
            origin = self._open_origin(source)
            listing = await origin.describe()
            fetching.size = self._sizes[key] = listing.size
            async with entered(self._store.changing()):
                if key in self._present.complete:  # its files are wrong
                    await self._remove(key, source, self._store.set_aside)
                await self._make_room(listing)
                model = await self._store.pull(origin, self._transfer, progress, listing)
        except (WeightsError, OSError) as found:
            error = as_problem(found)
            self.counts.failures[error.cause] += 1
            attempt = self._attempts.fail(key, error, self._clock.now_s())
            if attempt.failures == 1:
                log.warning("model cannot be fetched", model=str(source), cause=error.cause, error=str(error))
        else:
            self._attempts.succeed(key)
            await self._present.add(key, model)
            self.counts.fetched_models += 1
            log.info("model is ready", model=str(source), bytes=listing.size)
            await self._measure()
        finally:
            self.fetching = None
            self._node.changed.set()

    async def _make_room(self, listing: Listing) -> None:
        """Evict what a model needs gone. Raises WeightsError."""
        evicted: set[str] = set()
        while True:
            space = await self._read_space()
            self._check_share(listing, space)
            space = space._replace(held=self._wanted.judge(space.held, listing.source))
            plan = await to_end(self._store.make_room, listing, space)
            if not plan.evicted:
                return
            name = plan.evicted[0].name
            if name in evicted:
                raise WeightsError(WeightsCause.DISK, f"{shown(name)} cannot be removed")
            evicted.add(name)
            if name.startswith(f"{PARTS}/"):
                await to_end(self._store.discard, name.removeprefix(f"{PARTS}/"))
            elif is_cache(name):
                await to_end(self._caches.remove, name)
            else:
                await self._remove(name, listing.source)
            self.counts.evictions += 1
            log.info("evicted", name=name, bytes=sum(plan.evicted[0].files.values()), model=str(listing.source))

    def _check_share(self, listing: Listing, space: Space) -> None:
        """Refuse a model that exceeds the share of what pods alone name. Raises WeightsError."""
        present = {key: model.listing.size for key, model in self._present.complete.items()}
        self._wanted.check_share(listing, present, self._sizes, space.budget_bytes)

    async def _remove(
        self, key: str, reason: ModelSource | None = None, remove: Callable[[PublishedModel], None] | None = None
    ) -> None:
        """Remove a model. Raises WeightsError. reason: another model that needs its room."""

        async def withdraw() -> None:
            await self._publisher.publish()
            if key not in self._present.wrong:
                await self._clock.sleep(self._times.settle_s)

        def is_needed(model: PublishedModel) -> bool:
            return self._wanted.judge([self._store.held(model)], reason)[0].kept

        await self._present.remove(key, withdraw, is_needed, remove or self._store.remove)

    async def _remove_wrong(self) -> None:
        """Remove damaged models that are not wanted; others are removed when they are fetched again."""
        wanted = {source.key for source in self._wanted.models()}
        for key in [key for key in self._present.wrong if key not in wanted]:
            with suppress(WeightsError, OSError):
                async with entered(self._store.changing()):
                    await self._remove(key)

    async def plan(self) -> list[AgentStep]:
        """Return what would be done now for each model that is wished and absent. Nothing is changed."""
        await self._look()
        steps = []
        space = await self._read_space()
        for source in self._wanted.models():
            if self._present.is_ready(source.key):
                continue
            space = space._replace(held=self._wanted.judge(space.held, source))
            size = 0
            try:
                listing = await self._open_origin(source).describe()
                size = listing.size
                self._check_share(listing, space)
                room = await to_end(self._store.make_room, listing, space)
            except WeightsError as error:
                steps.append(AgentStep(source, size, (), error.cause, str(error)))
                continue
            space = space.after(room, self._store.held(PublishedModel(listing, self._store.root, 0.0)))
            steps.append(AgentStep(source, size, tuple(each.name for each in room.evicted)))
        return steps

    def suspect(self, key: str) -> None:
        """Have a model checked soon: another agent has refused what this one sent of it."""
        self._present.suspect(key)


def _first(errors: BaseExceptionGroup[WeightsError | OSError]) -> WeightsError:
    error = errors.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else as_problem(error)
