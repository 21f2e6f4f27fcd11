"""`keda-stand-in`: the process that stands in for the daemon towards KEDA."""

from __future__ import annotations

from autoscaler.adapters.keda.server import KedaServer
from autoscaler.adapters.keda.stand_in import StandIn, StandInLeadership
from autoscaler.config.settings import KedaSettings


async def run(settings: KedaSettings, daemon: str) -> int:
    """Answer until cancelled. daemon: URL of the HTTP Service of the daemon."""
    replicas = StandInLeadership(daemon)
    await replicas.look()  # first, so that no call is refused beside a ready replica
    async with KedaServer(settings, StandIn(), replicas):
        await replicas.run()
    return 0
