"""A daemon that starts without memory beside a real Prometheus that has seen the last hour."""

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autoscaler.adapters.in_memory import AlwaysLeading, MemoryRecorder, MemorySamples, MemoryState, RecordingActuator
from autoscaler.adapters.prometheus.range.recent import RecentHistory
from autoscaler.config.policy.parse import load
from autoscaler.config.settings import PrometheusSettings
from autoscaler.core.model.fleet import Fleet
from autoscaler.daemon.checkpoint import Checkpointer
from autoscaler.daemon.loop import Loop
from autoscaler.daemon.warm_start import WarmStart
from tests.adapters.prometheus.range.test_history import prometheus_with
from tests.adapters.prometheus.range.test_recent import NOW_S, Backfilled, Clock, cluster
from tests.core.world import samples
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


async def test_fresh_daemon_learns_from_history_beside_its_ticks(tmp_path: Path):
    told, clock = Backfilled(), Clock()
    site, recorder, state = Site(told), MemoryRecorder(), MemoryState()
    async with prometheus_with(tmp_path, told.samples) as server:
        history = RecentHistory(PrometheusSettings(url=server.url), clock)
        loop = Loop(
            clock=clock,
            workloads=site,
            sources=[MemorySamples(lambda seen: samples(seen, NOW_S, running=1.0))],
            policies=lambda: BOOK,
            actuator=RecordingActuator(),
            recorders=[recorder],
            leadership=AlwaysLeading(),
            period_s=0.2,
            deadline_s=10.0,
        )
        keeper = Checkpointer(loop, clock, state, WarmStart(history, site, lambda: BOOK, clock).learn)
        await keeper.begin()
        tasks = [asyncio.create_task(loop.run()), asyncio.create_task(keeper.run())]

        async def known() -> bool:
            return bool(recorder.ticks) and not np.isnan(recorder.ticks[-1].decision.observation.output_tokens[0])

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
