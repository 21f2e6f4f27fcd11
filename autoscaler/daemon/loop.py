"""The live loop: sample, decide, act, record; then wait. One tick at a time, each from the world as it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import structlog

from autoscaler.config.policy.compile import Compiler
from autoscaler.config.policy.parse import PolicyBook
from autoscaler.config.prices import Prices
from autoscaler.core.explain.sentence import explain
from autoscaler.core.model.fleet import Fleet, Workload, WorkloadRef
from autoscaler.core.model.samples import Objectives, Samples, SourceReport, merge
from autoscaler.core.model.types import Decision, TickInput
from autoscaler.core.observe import freshness
from autoscaler.core.snapshot import Snapshot, restore, take
from autoscaler.core.state import Memory
from autoscaler.core.tick import tick
from autoscaler.ports import (
    Actuator,
    Change,
    Clock,
    Leadership,
    Outcome,
    Recorder,
    SampleSource,
    TickRecord,
    Unavailable,
    Unwritable,
    WorkloadSource,
)

log = structlog.get_logger(__name__)

SHORTEST_PAUSE_S = 0.1
"""Between two ticks, however often it is woken: a storm of events must not become a storm of queries."""

FIRST_TRY_S = 0.5
"""Until the second try, and twice as long until each further one, up to a period, until one succeeds: at the start the
cluster is not listed yet, and soon will be."""

SAMPLING, ACTING = 0.5, 0.4
"""Shares of a tick's deadline. The rest is for deciding: a tick that is cut as a whole tells of none of its changes."""


class Loop:
    """Drives ticks until it is cancelled.

    A tick that fails changes nothing; the next one starts anew. Followers tick as well, so that they have watched a
    full window when they come to lead, but only a leader acts.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        workloads: WorkloadSource,
        sources: Sequence[SampleSource],
        policies: Callable[[], PolicyBook],
        actuator: Actuator,
        recorders: Sequence[Recorder],
        leadership: Leadership,
        period_s: float,
        deadline_s: float,
        prices: Prices | None = None,
        woken: asyncio.Event | None = None,
        problems: Callable[[], Mapping[WorkloadRef, str]] = dict,
    ) -> None:
        """woken: set by anybody who wants the next tick at once, since something happened that should not wait.

        problems: tells what is wrong with workloads beside their policies, in words.
        """
        self._clock = clock
        self._workloads = workloads
        self._sources = sources
        self._policies = policies
        self._compiler = Compiler()
        self._actuator = actuator
        self._recorders = recorders
        self._leadership = leadership
        self._period_s = period_s
        self._deadline_s = deadline_s
        self._prices = prices or Prices({})
        self._memory = Memory.empty()
        self._last: tuple[tuple[Workload, ...], float, float] | None = None  # whose memory, and when
        self._to_restore: Snapshot | None = None  # waits for a tick
        self._number = 0
        self._woken = woken or asyncio.Event()
        self._problems = problems
        self._failing = False
        self._broken: set[str] = set()  # recorders that failed the last time, told once

    async def run(self) -> None:
        """Tick until cancelled."""
        first_s = FIRST_TRY_S
        while True:
            began_s = self._clock.now_s()
            self._woken.clear()  # before: what happens while it ticks, the tick may have missed
            await self.attempt()
            await self._clock.sleep(SHORTEST_PAUSE_S)
            period_s = self._period_s if self._number else min(self._period_s, first_s)
            first_s = min(2 * first_s, self._period_s)
            await self._pause(began_s + period_s - self._clock.now_s())

    def snapshot(self) -> Snapshot | None:
        """Return what has been learned up to the last tick; None: none yet, or more is known that it did not have."""
        return take(self._memory, *self._last) if self._last and self._to_restore is None else None

    def restore(self, snapshot: Snapshot) -> None:
        """Lay what was learned before over memory, with the next tick."""
        self._to_restore = snapshot

    async def attempt(self) -> TickRecord | None:
        """Tick once. A failure is told to log and recorders, and changes nothing."""
        try:
            async with asyncio.timeout(self._deadline_s):
                record = await self.tick()
        except Exception as error:  # the loop boundary: whatever it was, the next tick starts from the world as it is
            self._failed(error)
            return None
        if self._failing:
            log.info("ticks have recovered" if self._number > 1 else "first tick")
        self._failing = False
        self._tell(lambda recorder: recorder.record(record))
        return record

    async def tick(self) -> TickRecord:
        """Sample, decide, act. Raises what made it impossible."""
        began_s = self._clock.now_s()
        fleet = self._workloads.fleet()
        rules = self._compiler.compile(fleet.workloads, self._policies())
        samples = await self._sample(fleet, Objectives(rules.spec.ttft_objective_s, rules.spec.itl_objective_s))

        now_s, wall_s = self._clock.now_s(), self._clock.wall_s()
        schedule = rules.windows.at(wall_s, now_s)
        inp = TickInput(now_s, fleet, rules.spec, schedule, samples, self._prices.variants(fleet))
        decision, self._memory = tick(inp, self._remembered(fleet, now_s, wall_s))
        self._last, self._to_restore = (fleet.workloads, now_s, wall_s), None

        leading = self._leadership.leading
        problems = self._told(fleet, rules.problems)
        changes = differences(inp, decision, rules.names, problems)
        outcomes = await self._act(changes) if leading else ()
        self._number += 1
        return TickRecord(
            number=self._number,
            now_s=now_s,
            wall_s=wall_s,
            duration_s=self._clock.now_s() - began_s,
            input=inp,
            decision=decision,
            policies=rules.names,
            problems=problems,
            policy_problems=rules.problems,
            outcomes=tuple(outcomes),
            leading=leading,
        )

    def _told(self, fleet: Fleet, of_policies: Mapping[int, str]) -> Mapping[int, str]:
        """Return by row what is wrong with workloads: what their sources tell, then what their policies do."""
        told = self._problems()
        if not told:
            return of_policies
        rows = {workload.ref: row for row, workload in enumerate(fleet.workloads)}
        found = {rows[ref]: problem for ref, problem in told.items() if ref in rows}
        for row, problem in of_policies.items():
            found[row] = f"{found[row]}; {problem}" if row in found else problem
        return found

    def _remembered(self, fleet: Fleet, now_s: float, wall_s: float) -> Memory:
        """Return the memory that this tick begins with."""
        if self._to_restore is None:
            return self._memory
        memory, workloads = restore(self._to_restore, self._memory, fleet, now_s, wall_s)
        age_s = max(round(wall_s - self._to_restore.wall_s), 0)
        log.info("state restored", workloads=workloads, of=len(fleet.workloads), age_s=age_s)
        return memory

    async def _sample(self, fleet: Fleet, objectives: Objectives) -> Samples:
        """Read all sources side by side; one that raises costs its own readings only."""
        budget_s = SAMPLING * self._deadline_s
        answers = await asyncio.gather(
            *(source.sample(fleet, objectives, budget_s) for source in self._sources), return_exceptions=True
        )
        rows, pods = len(fleet.workloads), len(fleet.pods)
        read: list[Samples] = [Samples.nothing(rows, pods)]
        for source, answer in zip(self._sources, answers, strict=True):
            if isinstance(answer, Samples):
                read.append(answer)
            elif isinstance(answer, Exception):
                log.error("source failed", source=type(source).__name__, exc_info=answer)
                problem = f"{type(answer).__name__}: {answer}"[:300]
                report = SourceReport(type(source).__name__, queries=1, failed=1, problems=(problem,))
                read.append(Samples.nothing(rows, pods, (report,)))
            else:
                raise answer
        return merge(read)

    async def _act(self, changes: Sequence[Change]) -> Sequence[Outcome]:
        return await self._actuator.apply(changes, ACTING * self._deadline_s) if changes else ()

    def _failed(self, error: Exception) -> None:
        if not self._failing:
            expected = isinstance(error, Unavailable | TimeoutError)
            reason = str(error) or f"nothing was decided within {self._deadline_s:g} s"
            if expected and not self._number:
                log.info("waiting for the first tick", reason=reason)
            else:
                log.warning("ticks are failing", error=reason, exc_info=None if expected else error)
        self._failing = True
        self._tell(lambda recorder: recorder.failed(self._clock.wall_s(), error))

    def _tell(self, what: Callable[[Recorder], None]) -> None:
        """Tell every recorder; one that raises costs its own record only, for scaling must not end with a display."""
        for recorder in self._recorders:
            name = type(recorder).__name__
            try:
                what(recorder)
            except (BrokenPipeError, Unwritable):  # nobody sees the output any more, so nobody wants it
                raise
            except Exception as error:
                if name not in self._broken:
                    log.error("recorder failed", recorder=name, exc_info=error)
                self._broken.add(name)
            else:
                self._broken.discard(name)

    async def _pause(self, duration_s: float) -> None:
        """Sleep, unless woken."""
        if duration_s <= 0 or self._woken.is_set():
            return
        sleeping = asyncio.ensure_future(self._clock.sleep(duration_s))
        woken = asyncio.ensure_future(self._woken.wait())
        try:
            await asyncio.wait((sleeping, woken), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiter in (sleeping, woken):
                waiter.cancel()
            # Not awaited one by one under `suppress`: that would swallow a cancellation of the loop itself.
            await asyncio.gather(sleeping, woken, return_exceptions=True)


def differences(
    inp: TickInput, decision: Decision, policies: Sequence[str], problems: Mapping[int, str]
) -> list[Change]:
    """Return what must change in the cluster for the decision to hold."""
    changed = np.flatnonzero(decision.replicas != inp.fleet.replicas)
    until_s = freshness.until_s(inp, decision.observation)
    heard = decision.trusted | (decision.observation.age_s <= inp.spec.max_input_age_s)
    return [
        Change(
            ref=inp.fleet.workloads[row].ref,
            uid=inp.fleet.workloads[row].uid,
            before=int(inp.fleet.replicas[row]),
            after=int(decision.replicas[row]),
            reason=explain(inp, decision, policies, problems, int(row)).sentence,
            scale_down_until_s=float(until_s[row]),
            has_fresh_input=bool(heard[row]),
        )
        for row in changed
    ]
