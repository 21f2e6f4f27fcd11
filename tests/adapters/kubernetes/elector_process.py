"""One elector in its own process, so that a test can kill or freeze it.

While it leads it acts every few milliseconds: it prints the time (of the machine's monotonic clock, which all its
processes share), its identity and the lease's transitions.
"""

import asyncio
import sys
import time
from pathlib import Path

import structlog

from autoscaler.adapters.clock import SystemClock
from autoscaler.adapters.kubernetes.api.client import Kube
from autoscaler.adapters.kubernetes.leader_election import Elector
from autoscaler.config.settings import KubeSettings, LeaseSettings


async def act(elector: Elector) -> None:
    while True:
        at = time.monotonic()  # before it looks: frozen in between, it would act at a time at which it does not lead
        if elector.leading:
            print(at, elector.identity, elector.transitions, flush=True)
        await asyncio.sleep(0.005)


async def main(settings: LeaseSettings) -> None:
    async with Kube.connect(KubeSettings()) as kube, asyncio.TaskGroup() as tasks:
        elector = Elector(kube, settings, SystemClock())
        tasks.create_task(elector.run())
        tasks.create_task(act(elector))


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    asyncio.run(main(LeaseSettings.model_validate_json(Path(sys.argv[1]).read_text())))
