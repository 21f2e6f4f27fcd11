"""`run`: the daemon in a cluster."""

from __future__ import annotations

from contextlib import AsyncExitStack

import structlog

from autoscaler.adapters.clock import SystemClock
from autoscaler.adapters.web.metrics import Metrics
from autoscaler.app.process import allow_many_connections
from autoscaler.app.wiring import build_loop, connect_cluster, open_sources, restore_memory, run_loop
from autoscaler.config.policy.reload import PolicyFiles
from autoscaler.config.settings import Mode, Settings
from autoscaler.daemon.log import LogRecorder
from autoscaler.daemon.totals import HourlyTotals

log = structlog.get_logger(__name__)


async def run(settings: Settings) -> int:
    """Run in a cluster. Mode direct patches replica counts, keda answers KEDA's calls, dry-run only records."""
    allow_many_connections()
    async with AsyncExitStack() as stack:
        clock = SystemClock()
        policies = PolicyFiles(settings.policies, clock, settings.default_policy)
        sources = await open_sources(stack, settings, clock, policies)
        leads = settings.mode is not Mode.DRY_RUN
        metrics = Metrics(settings.mode.value, settings.lease.installation if leads else "")
        parts = await connect_cluster(stack, settings, clock, policies, sources, metrics)
        totals = HourlyTotals(lambda line: log.info("total", total=line), acts=leads)
        stack.callback(totals.say_last)
        parts.recorders += [LogRecorder(), totals]
        loop = await build_loop(stack, parts, settings, metrics)
        log.info("serving HTTP", url=parts.page)
        await restore_memory(loop, parts, settings, metrics.set_state_saved)
        await run_loop(loop, parts)
    return 0
