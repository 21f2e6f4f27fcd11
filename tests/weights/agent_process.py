"""An agent in a process of its own, to be killed. Its labels are a file, as the API server would keep them."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path

from autoscaler.adapters.clock import SystemClock
from autoscaler.config.weights.report import Report, State
from autoscaler.config.weights.source import ModelSource, parse
from autoscaler.config.weights.wishes import Wish, Wishes
from autoscaler.weights.agent import Agent, Times
from autoscaler.weights.budget import Limits
from autoscaler.weights.fetch import Transfer
from autoscaler.weights.listing import Origin
from autoscaler.weights.origins.hub import Hub
from autoscaler.weights.origins.object_store import Objects
from autoscaler.weights.store import WeightStore

RANGE = 64 << 10
NOBODY = 65534
TIMES = Times(settle_s=0.01, poll_s=0.2, probe_s=0.2, hold_s=0.02, report_s=0.005, pace=0.01, check_bytes_per_s=1e9)


class FileNode:
    """A node whose ready models are the lines of a file."""

    def __init__(self, labels: Path, wished: Sequence[str]) -> None:
        self.changed = asyncio.Event()
        self._labels = labels
        self._wishes = Wishes(tuple(Wish(parse(text)) for text in wished))

    def wishes(self) -> Wishes:
        return self._wishes

    def used(self) -> Sequence[ModelSource]:
        return ()

    def namespaces_of(self, source: ModelSource) -> Sequence[str]:
        return ()

    def used_caches(self) -> Sequence[str]:
        return ()

    def problem(self) -> str:
        return ""

    async def publish(self, report: Report) -> None:
        ready = [model.source for model in report.models.values() if model.state is State.READY]
        failures = [model.cause for model in report.models.values() if model.state is State.FAILED]
        if failures:
            self._labels.with_name("failures").write_text(json.dumps(failures))
        aside = self._labels.with_name("labels.new")
        aside.write_text(json.dumps(ready))
        aside.rename(self._labels)


def run(root: Path, hub: str, labels: Path, wished: Sequence[str], max_bytes: float, as_nobody: bool) -> None:
    """Run an agent until the process is killed. as_nobody: root may write everywhere, so the user changes."""
    if as_nobody and os.getuid() == 0:
        os.setgid(NOBODY)
        os.setuid(NOBODY)

    def found(source: ModelSource) -> Origin:
        return Hub(source, hub) if source.scheme == "hf" else Objects(source)

    store = WeightStore(root, Limits(max_bytes, 0.0, 0.0))
    agent = Agent(store, found, Transfer(2, RANGE), FileNode(labels, wished), SystemClock(), "0.0", times=TIMES)
    asyncio.run(agent.run())
