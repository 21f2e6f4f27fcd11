"""The live loop: sample, decide, act, record, wait. Ticks never overlap, and each starts from the present cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import structlog

from autoscaler.config.pairs import find_pairs
from autoscaler.config.policy.compile import Compiler
from autoscaler.config.policy.parse import PolicyBook
from autoscaler.config.prices import Prices
from autoscaler.config.remembered import Remembered
from autoscaler.core.allocate.victims import find_victims
from autoscaler.core.explain.sentence import explain
from autoscaler.core.model.fleet import Fleet, NodeGroup, Pod, Workload, WorkloadRef
from autoscaler.core.model.pairs import Pairs
from autoscaler.core.model.samples import Objectives, Samples, SourceReport, merge
from autoscaler.core.model.types import Decision, TickInput
from autoscaler.core.observe import freshness
from autoscaler.core.snapshot import Snapshot, restore, take
from autoscaler.core.state import Memory
from autoscaler.core.table.columns import BoolColumn, FloatColumn
from autoscaler.core.tick import tick
from autoscaler.ports import (
    Actuator,
    Change,
    Clock,
    Leadership,
    Outcome,
    Recorder,
    SampleSource,
    Sleeper,
    SleepOrder,
    TickRecord,
    Unavailable,
    Unwritable,
    WorkloadSource,
)

log = structlog.get_logger(__name__)

SHORTEST_PAUSE_S = 0.1
"""Shortest pause between two ticks: a storm of wake-ups must not become a storm of queries."""

FIRST_RETRY_S = 0.5
"""Delay after the first failed tick of the process; it doubles up to the period until a tick succeeds. At startup the
cluster is not listed yet, and soon will be."""

FOLLOWER_PERIODS, FOLLOWER_PERIOD_S = 6, 30.0
"""A follower ticks six times less often, but every 30 s if the period allows, because it reads all pods as well. When
it begins to lead, it is woken and ticks at once. 30 s is the time constant of rates, so the first tick knows them."""

SAMPLING, ACTING = 0.5, 0.4
"""Shares of a tick's deadline. The rest is for the decision: a cancelled tick reports none of its changes."""


@dataclass
class Parts:
    """What a loop reads, and what acts on its decisions and records them."""

    clock: Clock
    workloads: WorkloadSource
    sources: Sequence[SampleSource]
    actuator: Actuator
    leadership: Leadership
    recorders: list[Recorder] = field(default_factory=list)
    sleeper: Sleeper | None = None  # None: it is only said which replicas would sleep and wake
    woken: asyncio.Event = field(default_factory=asyncio.Event)  # set by adapters to start the next tick at once
    problems: Callable[[], Mapping[WorkloadRef, str]] = dict  # of workloads, but for their policies; as sentences
    requests_nodes: Callable[[Fleet], BoolColumn] | None = None
    """Returns for which workloads a recorder requests nodes, if a decision names places; bool[W]."""
    fetches_weights: bool = False  # a recorder publishes which weights nodes should fetch
    keeps_memories: bool = False  # a recorder needs the memory from which a tick was decided


class Loop:
    """Runs ticks until it is cancelled.

    A failed tick changes nothing, and the next one starts again. Followers tick too, so that they have observed a full
    stabilization window when they become leader, but less often, and only the leader acts.
    """

    def __init__(
        self,
        parts: Parts,
        *,
        policies: Callable[[], PolicyBook],
        period_s: float,
        deadline_s: float,
        prices: Prices | None = None,
    ) -> None:
        self._parts = parts
        self._clock = parts.clock
        self._policies = policies
        self._compiler = Compiler()
        self._period_s = period_s
        self._deadline_s = deadline_s
        self._prices = prices or Prices({})
        self._pairs = Remembered[Pairs]()
        self._memory = Memory.empty()
        self._last: tuple[tuple[Workload, ...], float, float] | None = None  # workloads, clock, Unix time
        self._to_restore: Snapshot | None = None  # merged into memory by the next tick
        self._number = 0
        self._failing = False
        self._broken: set[str] = set()  # recorders that failed last time; each failure is logged once

    async def run(self) -> None:
        """Tick until cancelled."""
        retry_s = FIRST_RETRY_S
        while True:
            began_s = self._clock.now_s()
            self._parts.woken.clear()  # first: the tick may miss what happens while it runs
            await self.attempt()
            await self._clock.sleep(SHORTEST_PAUSE_S)
            period_s = self._own_period_s() if self._number else min(self._period_s, retry_s)
            retry_s = min(2 * retry_s, self._period_s)
            await self._pause(began_s + period_s - self._clock.now_s())

    def _own_period_s(self) -> float:
        return self._period_s if self._parts.leadership.leading else follower_period_s(self._period_s)

    def snapshot(self) -> Snapshot | None:
        """Return the state as of the last tick. None: no tick yet, or a restored state waits for the next one."""
        return take(self._memory, *self._last) if self._last and self._to_restore is None else None

    def restore(self, snapshot: Snapshot) -> None:
        """Merge saved state into memory at the next tick."""
        self._to_restore = snapshot

    async def attempt(self) -> TickRecord | None:
        """Tick once. A failure is logged and recorded, and changes nothing."""
        try:
            async with asyncio.timeout(self._deadline_s):
                record = await self.tick()
        except Exception as error:  # whatever failed, the next tick starts from the present cluster
            self._failed(error)
            return None
        if self._failing:
            log.info("ticks have recovered" if self._number > 1 else "first tick")
        self._failing = False
        self._notify(lambda recorder: recorder.record(record))
        return record

    async def tick(self) -> TickRecord:
        """Sample, decide, act. Raises whatever made the tick fail."""
        began_s, parts = self._clock.now_s(), self._parts
        fleet = parts.workloads.fleet()
        specs = self._compiler.compile(fleet.workloads, self._policies())
        fleet = fleet.leave_stopped(~np.isnan(specs.spec.idle_after_s))
        samples = await self._sample(fleet, specs.spec.objectives)

        now_s, wall_s = self._clock.now_s(), self._clock.wall_s()
        schedule = specs.windows.at(wall_s, now_s)
        pairs = self._pairs.get(lambda: find_pairs(fleet.workloads, specs.spec), fleet.workloads, specs.spec)
        inp = TickInput(
            now_s,
            fleet,
            specs.spec,
            schedule,
            samples,
            self._prices.variants(fleet),
            pairs,
            requests_nodes=parts.requests_nodes(fleet) if parts.requests_nodes is not None else None,
            fetches_weights=parts.fetches_weights,
        )
        before = self._restored_memory(fleet, now_s, wall_s)
        decision, self._memory = tick(inp, before)
        self._last, self._to_restore = (fleet.workloads, now_s, wall_s), None

        leading = parts.leadership.leading
        problems = self._merge_problems(fleet, specs.problems, pairs.problems)
        changes = compute_changes(inp, decision, specs.names, problems, self._prices.of_groups)
        if leading and parts.sleeper is not None:  # first: replicas that wake come before new ones
            parts.sleeper.order(make_sleep_orders(inp, decision), fleet.pods)
        outcomes = await self._act(changes) if leading else ()
        self._number += 1
        duration_s = self._clock.now_s() - began_s
        return TickRecord(
            number=self._number,
            now_s=now_s,
            wall_s=wall_s,
            duration_s=duration_s,
            input=inp,
            decision=decision,
            policies=specs.names,
            problems=problems,
            policy_problems=specs.problems,
            outcomes=tuple(outcomes),
            leading=leading,
            late=duration_s > self._own_period_s(),
            device_prices=self._prices.of_groups(fleet.groups.groups),
            memories=(before, self._memory) if parts.keeps_memories else None,
        )

    def _merge_problems(self, fleet: Fleet, *of_rows: Mapping[int, str]) -> Mapping[int, str]:
        """Return problems by row: those of workloads first, then those of their policies and pairs."""
        of_workloads = self._parts.problems()
        rows = {workload.ref: row for row, workload in enumerate(fleet.workloads)} if of_workloads else {}
        merged = {rows[ref]: problem for ref, problem in of_workloads.items() if ref in rows}
        for problems in of_rows:
            for row, problem in problems.items():
                merged[row] = f"{merged[row]}; {problem}" if row in merged else problem
        return merged

    def _restored_memory(self, fleet: Fleet, now_s: float, wall_s: float) -> Memory:
        """Return the memory for this tick, merged with restored state if there is some."""
        if self._to_restore is None:
            return self._memory
        memory, workloads = restore(self._to_restore, self._memory, fleet, now_s, wall_s)
        age_s = max(round(wall_s - self._to_restore.wall_s), 0)
        log.info("state restored", workloads=workloads, of=len(fleet.workloads), age_s=age_s)
        return memory

    async def _sample(self, fleet: Fleet, objectives: Objectives) -> Samples:
        """Read all sources concurrently. A source that raises loses only its own readings."""
        budget_s = SAMPLING * self._deadline_s
        answers = await asyncio.gather(
            *(source.sample(fleet, objectives, budget_s) for source in self._parts.sources), return_exceptions=True
        )
        rows, pods = len(fleet.workloads), len(fleet.pods)
        read: list[Samples] = [Samples.unknown(rows, pods)]
        for source, answer in zip(self._parts.sources, answers, strict=True):
            if isinstance(answer, Samples):
                read.append(answer)
            elif isinstance(answer, Exception):
                log.error("source failed", source=type(source).__name__, exc_info=answer)
                problem = f"{type(answer).__name__}: {answer}"[:300]
                report = SourceReport(type(source).__name__, queries=1, failed=1, problems=(problem,))
                read.append(Samples.unknown(rows, pods, (report,)))
            else:
                raise answer
        return merge(read).rounded()

    async def _act(self, changes: Sequence[Change]) -> Sequence[Outcome]:
        return await self._parts.actuator.apply(changes, ACTING * self._deadline_s) if changes else ()

    def _failed(self, error: Exception) -> None:
        if not self._failing:
            expected = isinstance(error, Unavailable | TimeoutError)
            reason = str(error) or f"no decision within {self._deadline_s:g} s"
            if expected and not self._number:
                log.info("waiting for the first tick", reason=reason)
            else:
                log.warning("ticks are failing", error=reason, exc_info=None if expected else error)
        self._failing = True
        self._notify(lambda recorder: recorder.failed(self._clock.wall_s(), error))

    def _notify(self, call: Callable[[Recorder], None]) -> None:
        """Call every recorder. One that raises loses only its own record: a broken display must not stop scaling."""
        for recorder in self._parts.recorders:
            name = type(recorder).__name__
            try:
                call(recorder)
            except (BrokenPipeError, Unwritable):  # the output has no reader any more
                raise
            except Exception as error:
                if name not in self._broken:
                    log.error("recorder failed", recorder=name, exc_info=error)
                self._broken.add(name)
            else:
                self._broken.discard(name)

    async def _pause(self, duration_s: float) -> None:
        """Sleep, unless woken."""
        if duration_s <= 0 or self._parts.woken.is_set():
            return
        sleeping = asyncio.ensure_future(self._clock.sleep(duration_s))
        woken = asyncio.ensure_future(self._parts.woken.wait())
        try:
            await asyncio.wait((sleeping, woken), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiter in (sleeping, woken):
                waiter.cancel()
            # `gather`, because awaiting each under `suppress` would swallow a cancellation of the loop itself.
            await asyncio.gather(sleeping, woken, return_exceptions=True)


def follower_period_s(period_s: float) -> float:
    """Return the time between two ticks of a process that does not lead."""
    return max(period_s, min(FOLLOWER_PERIODS * period_s, FOLLOWER_PERIOD_S))


def make_sleep_orders(inp: TickInput, decision: Decision) -> list[SleepOrder]:
    """Return an order for each pod that is to sleep or to wake."""
    fleet, orders = inp.fleet, decision.sleep_orders
    pods = np.flatnonzero(orders.sleep | orders.wake).tolist()
    rows = fleet.pod_workload
    return [
        SleepOrder(
            ref=fleet.workloads[rows[pod]].ref,
            pod=fleet.pods[pod],
            sleeps=bool(orders.sleep[pod]),
            level=int(inp.spec.sleep_level[rows[pod]]),
            is_asleep=bool(decision.sleep_orders.asleep[pod]),
            is_ready=bool(fleet.pod_ready[pod]),
        )
        for pod in pods
    ]


def compute_changes(
    inp: TickInput,
    decision: Decision,
    policies: Sequence[str],
    problems: Mapping[int, str],
    prices: Callable[[Sequence[NodeGroup]], FloatColumn],
) -> list[Change]:
    """Return the changes that bring the cluster to the decided replica counts.

    prices: of a device of each node group.
    """
    present = inp.fleet.present_replicas
    changed = np.flatnonzero(decision.replicas != present)
    # At zero no replica stays, so their order does not matter.
    shrunk = changed[(decision.replicas < present)[changed] & (decision.replicas > 0)[changed]]
    victims: Mapping[int, tuple[Pod, ...]] = {}
    if len(shrunk):
        victims = find_victims(inp, prices(inp.fleet.groups.groups), shrunk.tolist(), decision.replicas)
    valid_until_s = freshness.until_s(inp, decision.observation)
    heard = decision.trusted | (decision.observation.age_s <= inp.spec.max_input_age_s)
    return [
        Change(
            ref=inp.fleet.workloads[row].ref,
            uid=inp.fleet.workloads[row].uid,
            before=int(present[row]),
            after=int(decision.replicas[row]),
            # Without the age of the metrics, which differs from tick to tick: log and Event have a time of their own.
            reason=explain(inp, decision, policies, problems, int(row), with_age=False).sentence,
            scale_down_until_s=float(valid_until_s[row]),
            has_fresh_input=bool(heard[row]),
            victims=victims.get(int(row), ()),
        )
        for row in changed
    ]
