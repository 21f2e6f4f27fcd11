"""A daemon that starts without memory beside a real Prometheus that has seen the last hour."""

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autoscaler.adapters.in_memory import AlwaysLeading, RecordingActuator
from autoscaler.adapters.prometheus.range.recent import RecentHistory
from autoscaler.config.policy.parse import load
from autoscaler.config.settings import PrometheusSettings
from autoscaler.core.model.fleet import Fleet
from autoscaler.core.planner.season import DAY_BINS
from autoscaler.daemon.checkpoint import Checkpointer
from autoscaler.daemon.loop import Loop, Parts
from autoscaler.daemon.past_week import PastWeek
from autoscaler.daemon.warm_start import WarmStart
from tests.adapters.prometheus.backfill import pod_name
from tests.adapters.prometheus.range.test_past_tokens import engine
from tests.adapters.prometheus.range.test_recent import DURATION_S, END_S, NOW_S, Backfilled, Clock, cluster
from tests.adapters.prometheus.range.test_workload_history import prometheus_with
from tests.core.world import samples
from tests.harness.in_memory import MemoryRecorder, MemorySamples, MemoryState
from tests.harness.process import eventually

pytestmark = pytest.mark.integration
BOOK = load(())


class Site:
    """The last pod of the simulated hour, and a workload without history."""

    def __init__(self, told: Backfilled) -> None:
        pods = [("team", told.pods[-1], 0), ("team", "newcomer-0", 1)]
        born_s = np.array([NOW_S - 900.0, NOW_S - 100.0])
        ready = {"pod_ready": np.ones(2, dtype=bool), "pod_created_s": born_s, "pod_ready_s": born_s + 70.0}
        flags = {name: np.zeros(2, dtype=bool) for name in ("pod_terminating",)}
        times = {"pod_scheduled_s": born_s, "pod_started_s": born_s, "pod_pending": np.zeros(2, dtype=np.int64)}
        rows = {"paused": np.zeros(2, dtype=bool), "gpus_per_replica": np.ones(2), "pool": np.zeros(2, dtype=np.int64)}
        self.present = cluster([("team", "llama"), ("team", "newcomer")], pods, **ready, **flags, **times, **rows)

    def fleet(self) -> Fleet:
        return replace(self.present, time_s=NOW_S)


def yesterday(told: Backfilled) -> list:
    """From 30 to 20 hours ago, in a pod that is gone: three times the tokens per second of the last hour."""
    rates = []
    for name in ("prompt", "generation"):
        counted = {each.labels["pod"]: each.value for each in told.own if each.name == f"vllm:{name}_tokens_total"}
        rates.append(3 * sum(counted.values()) / DURATION_S)
    return engine(pod_name("llama", 900), (rates[0], rates[1]), END_S - 30 * 3600, END_S - 20 * 3600)


async def test_fresh_daemon_learns_from_history_beside_its_ticks(tmp_path: Path):
    told, clock = Backfilled(), Clock()
    site, recorder, state = Site(told), MemoryRecorder(), MemoryState()
    async with prometheus_with(tmp_path, (*told.samples, *yesterday(told))) as server:
        history = RecentHistory(PrometheusSettings(url=server.url), clock)
        loop = Loop(
            Parts(
                clock=clock,
                workloads=site,
                sources=[MemorySamples(lambda seen: samples(seen, NOW_S, running=1.0))],
                actuator=RecordingActuator(),
                recorders=[recorder],
                leadership=AlwaysLeading(),
            ),
            policies=lambda: BOOK,
            period_s=0.2,
            deadline_s=10.0,
        )
        keeper = Checkpointer(loop, clock, state, WarmStart(history, site, lambda: BOOK, clock).learn)
        await keeper.begin()
        past_week = PastWeek(loop, history, site, clock, keeper.wait_restored)
        tasks = [asyncio.create_task(work()) for work in (loop.run, keeper.run, past_week.run)]

        async def known() -> bool:
            seen = loop.snapshot()
            return seen is not None and not np.isnan(seen.columns["season.load"][DAY_BINS, 0])

        await eventually(known, "what history taught")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    first, last = recorder.ticks[0].decision.observation, recorder.ticks[-1].decision.observation
    assert np.isnan(first.output_tokens[0])
    assert last.output_tokens[0] == pytest.approx(told.recent_output_tokens, rel=0.15)
    assert np.isnan(last.output_tokens[1])
    assert last.cold_start_s[0] == pytest.approx(105.0)
    assert recorder.ticks[-1].decision.replicas.tolist() == [1.0, 1.0]
    assert state.saved is not None
    assert state.saved.columns["answers.requests"][0] > 1000
    load = state.saved.columns["season.load"][:, 0]
    last_hour, day_ago = load[:4], load[80 + 2 : 120 - 2]
    assert np.nanmean(day_ago) == pytest.approx(3 * np.nanmean(last_hour), rel=0.3)
    assert np.isnan(load[122:]).all()
    assert np.isnan(state.saved.columns["season.load"][:, 1]).all()
