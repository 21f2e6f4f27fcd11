"""The load of a week at the start: loops on virtual time beside a history that is in memory."""

import asyncio
from dataclasses import dataclass, field

import numpy as np
import pytest
import structlog

from autoscaler.core.model.forecast import BIN_S
from autoscaler.core.model.recent import PastTokens
from autoscaler.core.planner.season import WEEK_BINS
from autoscaler.core.snapshot import Snapshot, key_of, take
from autoscaler.core.state import Memory, align
from autoscaler.core.table.columns import replace
from autoscaler.daemon.past_week import DEADLINE_S, STEPS, PastWeek, PastWork, find_unknown, teach
from autoscaler.ports import Unavailable
from tests.core.world import fleet

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

WALL_S = 1_800_000_000.0
TOKENS = 9000.0  # of each kind, in each step


@dataclass
class MemoryHistory:
    """A HistorySource that has the same tokens in each step, and remembers what it was asked."""

    generated: float = TOKENS
    error: Exception | None = None
    asked: list[tuple[list[int], float, int, float]] = field(default_factory=list)

    async def past_tokens(self, fleet, rows, step_s, steps, deadline_s):
        self.asked.append((sorted(rows), step_s, steps, deadline_s))
        if self.error:
            raise self.error
        tokens = np.full((steps, len(fleet.workloads)), self.generated)
        return PastTokens(WALL_S, np.full_like(tokens, np.nan), tokens)


class Process:
    """A loop of which only the memory matters: its season is set by the test."""

    def __init__(self, history: MemoryHistory, *known_bins: int, load: float = 2.0) -> None:
        """known_bins: for each workload, how many of the last bins were measured."""
        self.seen = fleet([1] * len(known_bins))
        memory = align(Memory.empty(), self.seen)
        strategies = memory.planner.strategies
        bins = np.where(np.arange(WEEK_BINS)[:, None] < np.array(known_bins), load, np.nan).astype(np.float16)
        known = replace(strategies.season, load=bins, bin_since_s=np.zeros(len(known_bins)))
        planner = memory.planner.with_strategies(replace(strategies, season=known))
        self.memory = take(replace(memory, planner=planner), self.seen.workloads, 0.0, WALL_S)
        self.restored: list[Snapshot] = []
        self.history = history
        self.is_restored = asyncio.Event()
        self.past_week = PastWeek(self, history, self, self, self.is_restored.wait)

    def snapshot(self):
        return self.memory

    def restore(self, snapshot):
        self.restored.append(snapshot)

    def measure(self, load: float) -> None:
        """Let the daemon measure one quarter of an hour of all workloads."""
        bins = self.memory.columns["season.load"].copy()
        bins[0] = load
        self.memory = Snapshot(self.memory.workloads, self.memory.wall_s, {**self.memory.columns, "season.load": bins})

    def fleet(self):
        return self.seen

    def now_s(self):
        return asyncio.get_running_loop().time()

    def wall_s(self):
        return WALL_S + self.now_s()

    async def sleep(self, duration_s):
        await asyncio.sleep(duration_s)


async def test_unknown_hours_are_learned_and_measured_ones_stay():
    process = Process(MemoryHistory(), 12)
    process.is_restored.set()
    with structlog.testing.capture_logs() as logs:
        await process.past_week.run()
    (restored,) = process.restored
    assert restored.workloads == process.memory.workloads
    np.testing.assert_allclose(restored.columns["season.load"], 2.0, rtol=2e-3)
    assert process.history.asked == [([0], BIN_S, STEPS, DEADLINE_S)]
    assert restored.columns.keys() == {
        f"season.{name}" for name in ("load", "bin_age_s", "busy_replica_s", "observed_s")
    }
    (line,) = logs
    assert line == {
        "event": "learned the load of the last week",
        "log_level": "info",
        "workloads": 1,
        "of": 1,
        "hours": 165,
        "waiting": 0,
        "read_s": 0.0,
    }


async def test_nothing_is_read_before_stored_state_was_restored():
    process = Process(MemoryHistory(), 12)
    running = asyncio.create_task(process.past_week.run())
    await asyncio.sleep(60.0)
    assert not process.history.asked
    process.is_restored.set()
    await running
    assert process.restored


async def test_a_week_that_is_known_is_not_read_again():
    process = Process(MemoryHistory(), WEEK_BINS, WEEK_BINS)
    process.is_restored.set()
    await process.past_week.run()
    assert (process.history.asked, process.restored) == ([], [])
    process = Process(MemoryHistory(), WEEK_BINS, WEEK_BINS - 1)
    process.is_restored.set()
    await process.past_week.run()
    assert process.history.asked[0][0] == [1]
    assert process.restored[0].workloads == process.memory.workloads[1:]


async def test_idle_workload_waits_for_its_first_busy_quarter():
    process = Process(MemoryHistory(), 12, load=0.0)
    process.is_restored.set()
    running = asyncio.create_task(process.past_week.run())
    await asyncio.sleep(5.5 * BIN_S)
    assert not process.restored
    process.measure(0.5)
    await asyncio.wait_for(running, 2 * BIN_S)
    learned = process.restored[0].columns["season.load"]
    assert len(process.history.asked) == 1
    assert np.isfinite(learned).all()
    assert (learned[1:12] == 0).all()
    assert (learned[12:] > 0).all()


async def test_waiting_ends_after_a_day():
    process = Process(MemoryHistory(), 12, load=0.0)
    process.is_restored.set()
    await asyncio.wait_for(process.past_week.run(), 86_400.0)
    assert not process.restored


@pytest.mark.parametrize("error", [Unavailable("no connection"), ValueError("odd")])
async def test_a_history_that_fails_costs_nothing_else(error: Exception):
    process = Process(MemoryHistory(error=error), 12)
    process.is_restored.set()
    with structlog.testing.capture_logs() as logs:
        await process.past_week.run()
    assert not process.restored
    assert [line["event"] for line in logs] == ["the load of the last week was not learned"]


async def test_history_survives_when_workloads_come_and_go_meanwhile():
    process = Process(MemoryHistory(), 12, 12)
    tokens = await process.history.past_tokens(process.seen, [0, 1], BIN_S, STEPS, 1.0)
    past = PastWork.of(replace(tokens, generated=tokens.generated * np.array([1.0, 3.0])), process.seen)
    other = Snapshot(
        (("ns", "Deployment", "newcomer", ""), process.memory.workloads[1]), WALL_S, process.memory.columns
    )
    taught = teach(past, other)
    assert taught.snapshot.workloads == process.memory.workloads[1:]
    assert find_unknown(other, process.seen) == {1}
    assert key_of(process.seen.workloads[1]) == process.memory.workloads[1]
