"""The models in the folder of a node: the complete ones, the damaged ones, and those about to go."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable

import structlog

from autoscaler.ports import Clock, Unavailable
from autoscaler.weights.check_schedule import CheckSchedule
from autoscaler.weights.problems import WeightsCause, WeightsError
from autoscaler.weights.slow_check import verify_slowly
from autoscaler.weights.store import PublishedModel, WeightStore
from autoscaler.weights.threads import in_thread, to_end

log = structlog.get_logger(__name__)


class PresentModels:
    """Changed by one task at a time, also while files are read or removed."""

    def __init__(self, store: WeightStore, clock: Clock, recheck_s: float) -> None:
        self.complete: dict[str, PublishedModel] = {}  # by key; what was used last comes last
        self.wrong: dict[str, str] = {}  # complete, but a size or a checksum is wrong: why
        self.checks: Counter[str] = Counter()  # of models: "right" or "wrong"
        self._store = store
        self._clock = clock
        self._withdrawn: set[str] = set()  # about to be removed
        self._schedule = CheckSchedule(clock.now_s(), recheck_s)
        self._changes = asyncio.Lock()

    def is_ready(self, key: str) -> bool:
        return key in self.complete and key not in self._withdrawn and key not in self.wrong

    async def look(self) -> None:
        """Read what is there, and compare sizes."""
        async with self._changes:
            complete: dict[str, PublishedModel] = {}
            for model in await to_end(self._store.models):
                key = model.key
                complete[key] = model
                problem = await to_end(self._store.find_incomplete, model)
                if problem and key not in self.wrong:
                    log.warning("model is not complete", model=str(model.listing.source), problem=problem)
                    self.wrong[key] = problem
            self.complete = complete
            self.wrong = {key: text for key, text in self.wrong.items() if key in complete}
            self._schedule.keep(complete.keys())

    async def add(self, key: str, model: PublishedModel) -> None:
        """Add a model whose checksums are right."""
        async with self._changes:
            self.complete[key] = model
            self._schedule.passed(key, self._clock.now_s())

    async def remove(
        self,
        key: str,
        withdraw: Callable[[], Awaitable[None]],
        is_needed: Callable[[PublishedModel], bool],
        remove: Callable[[PublishedModel], None],
    ) -> None:
        """Remove a model, its label first: no pod is steered to files that are gone. Raises WeightsError.

        withdraw: removes the label, and waits for the pods that it has steered. is_needed: tells then whether it stays.
        """
        async with self._changes:
            model = self.complete.get(key)
            if model is None:
                return
            self._withdrawn.add(key)
            try:
                await withdraw()
                if key not in self.wrong and is_needed(model):
                    raise WeightsError(WeightsCause.NO_SPACE, f"{model.listing.source} is needed again, and stays")
                await to_end(remove, model)
                del self.complete[key]
                self.wrong.pop(key, None)
            except Unavailable as error:
                text = f"{model.listing.source} stays: its label cannot be removed ({error})"
                raise WeightsError(WeightsCause.UNREACHABLE, text) from error
            finally:
                self._withdrawn.discard(key)

    async def check_all(self, bytes_per_s: float, pause_s: float, changed: asyncio.Event) -> None:
        """Read each model once after the start, slowly, then one a day, and compare its checksums.

        changed: set when a model is wrong.
        """
        stop = threading.Event()
        while True:
            key = self._schedule.next([key for key in self.complete if key not in self.wrong], self._clock.now_s())
            if key is None:
                await self._clock.sleep(pause_s)
                continue
            model = self.complete[key]
            try:
                wrong = await in_thread(verify_slowly, self._store, model, bytes_per_s, stop)
            except asyncio.CancelledError:
                stop.set()  # the thread only reads, so nothing waits for its end
                raise
            if key not in self.complete or self.complete[key].listing != model.listing:
                continue
            self.checks["wrong" if wrong else "right"] += 1
            if wrong:
                log.error("model is damaged", model=str(model.listing.source), problem=wrong[0])
                self.wrong[key] = wrong[0]
                changed.set()
            else:
                self._schedule.passed(key, self._clock.now_s())

    def suspect(self, key: str) -> None:
        """Have a model checked soon: another agent has refused what this one sent of it."""
        self._schedule.suspect(key, self._clock.now_s())
