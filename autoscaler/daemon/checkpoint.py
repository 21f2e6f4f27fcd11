"""Carries what was learned over a restart: loaded before the first tick, saved now and then and at the end.

How it is stored is the store's business, and what is stored that of `core.snapshot`. Nothing here delays a tick, and no
trouble here ends the daemon: it then learns anew.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import replace

import structlog

from autoscaler.core.snapshot import Snapshot
from autoscaler.daemon.loop import Loop
from autoscaler.ports import Clock, ManualOverrides, StateStore, Unavailable

log = structlog.get_logger(__name__)

SAVE_PERIOD_S = 120.0
MAX_AGE_S = 12 * 3600.0
"""Older state is of another day: models, engines and their settings may have changed since."""

START_WAIT_S = 2.0
"""The first tick waits no longer for the state: what is loaded later is laid over memory then."""

LAST_SAVE_S = 5.0
"""At the end: a pod has 30 s to leave, and the lease is to be given back as well."""


class Keeper:
    """`await begin()` before the first tick, then `run` in a task beside the loop."""

    def __init__(
        self,
        loop: Loop,
        clock: Clock,
        store: StateStore | None,
        otherwise: Callable[[], Awaitable[Snapshot | None]] | None = None,
        told: Callable[[float], None] = lambda _wall_s: None,
        manual_overrides: ManualOverrides | None = None,
    ) -> None:
        """store: None, and nothing is loaded or saved. otherwise: where to learn from if there is no usable state.

        told: is given the Unix time of the state whenever it was saved. manual_overrides: None, and none are saved.
        """
        self._loop = loop
        self._clock = clock
        self._store = store
        self._otherwise = otherwise
        self._told = told
        self._manual_overrides = manual_overrides
        self._loading: asyncio.Task[bool] | None = None
        self._failing = False

    async def begin(self) -> None:
        """Load the state, and wait for it as long as a first tick may."""
        self._loading = asyncio.create_task(self._load(), name="loading of state")
        await asyncio.wait((self._loading,), timeout=START_WAIT_S)

    async def run(self) -> None:
        """Save now and then, and once more when cancelled: from when it is known what there was before."""
        try:
            await self._run()
        except Exception as error:  # the boundary of keeping: whatever it was, scaling goes on
            log.error("state is no longer saved", exc_info=error)

    async def _run(self) -> None:
        assert self._loading is not None, "begin comes first"
        if not await self._loading and self._otherwise is not None:
            await self._learn(self._otherwise)
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
        """Have the loop restore the state; False: there is none that can be used."""
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

    async def _learn(self, otherwise: Callable[[], Awaitable[Snapshot | None]]) -> None:
        try:
            snapshot = await otherwise()
        except Unavailable as error:
            log.warning("nothing was learned from history", reason=str(error))
        except Exception as error:  # the boundary of a look back: however odd history is, the present goes on
            log.error("nothing was learned from history", exc_info=error)
        else:
            if snapshot is not None:
                self._loop.restore(snapshot)

    async def _save(self, store: StateStore) -> None:
        snapshot = self._loop.snapshot()
        if snapshot is None:  # no tick yet: what another process knew is still the best there is
            return
        if self._manual_overrides is not None:
            snapshot = replace(snapshot, manual_overrides=self._manual_overrides.snapshot())
        try:
            await store.save(snapshot)
        except Unavailable as error:
            if not self._failing:
                log.warning("state cannot be saved", reason=str(error))
            self._failing = True
            return
        if self._failing:
            log.info("state is saved again")
        self._failing = False
        self._told(snapshot.wall_s)
