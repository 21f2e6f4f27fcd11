"""Keeps learned state across restarts: loads it before the first tick, saves it every two minutes and at shutdown.

`core.snapshot` defines what is stored, the store defines how. A failure here never delays a tick and never ends the
daemon: the state is then learned again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import replace

import structlog

from autoscaler.core.snapshot import Snapshot
from autoscaler.daemon.loop import Loop
from autoscaler.outage import Outage
from autoscaler.ports import Clock, ManualOverrides, StateStore, Unavailable

log = structlog.get_logger(__name__)

SAVE_PERIOD_S = 120.0
MAX_AGE_S = 12 * 3600.0
"""Older state is ignored: models, engines and their settings may have changed since."""

START_WAIT_S = 2.0
"""The first tick waits this long for the state. State that arrives later is merged into memory then."""

LAST_SAVE_S = 5.0
"""Time limit of the last save. A pod has 30 s to terminate and must also release its lease."""


class Checkpointer:
    """Await `begin()` before the first tick, then run `run()` in a task beside the loop."""

    def __init__(
        self,
        loop: Loop,
        clock: Clock,
        store: StateStore | None,
        fallback: Callable[[], Awaitable[Snapshot | None]] | None = None,
        on_saved: Callable[[float], None] = lambda _wall_s: None,
        manual_overrides: ManualOverrides | None = None,
    ) -> None:
        """store: None disables loading and saving. fallback: learns from history if no state is usable.

        on_saved: called with the Unix time of the state after each save. manual_overrides: None saves none.
        """
        self._loop = loop
        self._clock = clock
        self._store = store
        self._fallback = fallback
        self._on_saved = on_saved
        self._manual_overrides = manual_overrides
        self._loading: asyncio.Task[bool] | None = None
        self._outage = Outage(log, "state cannot be saved", "state is saved again")
        self._is_restored = asyncio.Event()

    async def wait_restored(self) -> None:
        """Wait until the loop was given what is known from before this process, if there was anything."""
        await self._is_restored.wait()

    async def begin(self) -> None:
        """Start loading the state, and wait for it at most `START_WAIT_S`."""
        self._loading = asyncio.create_task(self._load(), name="load state")
        await asyncio.wait((self._loading,), timeout=START_WAIT_S)

    async def run(self) -> None:
        """Save every `SAVE_PERIOD_S`, and once more when cancelled. Saving starts after loading has ended."""
        try:
            await self._run()
        except Exception as error:  # whatever fails here, scaling goes on
            log.error("state is no longer saved", exc_info=error)

    async def _run(self) -> None:
        assert self._loading is not None, "call begin first"
        if not await self._loading and self._fallback is not None:
            await self._learn(self._fallback)
        self._is_restored.set()
        if self._store is None:
            return
        try:
            while True:
                await self._clock.sleep(SAVE_PERIOD_S)
                await self._save(self._store)
        finally:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_SAVE_S):
                    await self._save(self._store)

    async def _load(self) -> bool:
        """Hand the saved state to the loop. Returns False if there is no usable state."""
        try:
            snapshot = await self._store.load() if self._store is not None else None
        except Unavailable as error:
            log.warning("state is not used", reason=str(error))
            return False
        if snapshot is None or not snapshot.workloads:
            return False
        age_s = self._clock.wall_s() - snapshot.wall_s
        if age_s > MAX_AGE_S:
            log.warning(
                "state is not used", reason=f"it is {age_s / 3600:.1f} h old; allowed: at most {MAX_AGE_S / 3600:g} h"
            )
            return False
        self._loop.restore(snapshot)
        if self._manual_overrides is not None:
            self._manual_overrides.restore(snapshot.manual_overrides)
        return True

    async def _learn(self, fallback: Callable[[], Awaitable[Snapshot | None]]) -> None:
        try:
            snapshot = await fallback()
        except Unavailable as error:
            log.warning("nothing was learned from history", reason=str(error))
        except Exception as error:  # odd history must not stop the daemon
            log.error("nothing was learned from history", exc_info=error)
        else:
            if snapshot is not None:
                self._loop.restore(snapshot)

    async def _save(self, store: StateStore) -> None:
        snapshot = self._loop.snapshot()
        if snapshot is None:  # no tick yet: the saved state of the last process is still the best
            return
        if self._manual_overrides is not None:
            snapshot = replace(snapshot, manual_overrides=self._manual_overrides.snapshot())
        try:
            await store.save(snapshot)
        except Unavailable as error:
            self._outage.fail(str(error))
            return
        self._outage.end()
        self._on_saved(snapshot.wall_s)
