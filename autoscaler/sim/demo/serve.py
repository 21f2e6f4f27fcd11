"""The simulation on the network: every replica has a loopback port of its own.

DCGM exporter and gateway have one port each. A port is reserved when its pod is created, but refuses connections until
the engine has started, as with the real server.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from aiohttp import web

from autoscaler.core.model.fleet import Fleet
from autoscaler.ports import Change, Clock, Outcome
from autoscaler.sim.demo import dcgm, gateway
from autoscaler.sim.demo.cluster import HOST, SimPod
from autoscaler.sim.demo.engine_api import EngineApi
from autoscaler.sim.demo.exposition import VllmExposition
from autoscaler.sim.demo.simulation import Scenario, Simulation
from autoscaler.sim.demo.summary import Summary
from autoscaler.sim.engine.replica import Replica

STEP_S = 2.0  # simulated seconds between two updates
MOST_AT_ONCE_S = 10.0  # most simulated seconds per update, so that other tasks can run
CLOSE_TIMEOUT_S = 0.2  # real seconds for an open scrape when its server closes


@dataclass(eq=False)
class _Server:
    """The HTTP server of one engine process."""

    replica: Replica
    runner: web.AppRunner


class SimulatedFleet:
    """A simulation that follows a clock and serves metrics. Implements `ports.WorkloadSource` and `ports.Actuator`.

    Use it as a context manager and keep `run` running inside. The seed determines traffic and cold starts. The times of
    the daemon's decisions, and every figure after them, vary a little between runs, since the daemon runs in real time.
    """

    def __init__(
        self, scenario: Scenario, clock: Clock, simulated: Callable[[float], None] = lambda to_s: None
    ) -> None:
        """simulated: is told how far the simulation has come, in seconds of the clock."""
        self._scenario = scenario
        self._clock = clock
        self._simulated = simulated
        self._sockets: dict[int, socket.socket] = {}  # reserved sockets that do not listen, by port
        self._servers: dict[int, _Server] = {}  # by pod number
        self._runners: list[web.AppRunner] = []
        self._simulation: Simulation | None = None
        self.dcgm_url = ""
        self.gateway_url = ""

    async def __aenter__(self) -> Self:
        simulation = self._simulation = Simulation(self._scenario, self._clock.now_s(), self._reserve)
        exporter = dcgm.DcgmExporter(simulation.cluster)
        try:
            self.dcgm_url = await self._serve_page(lambda: exporter.render(simulation.now_s), dcgm.CONTENT_TYPE)
            self.gateway_url = await self._serve_page(lambda: gateway.render(simulation), gateway.CONTENT_TYPE)
            await self._reconcile()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    @property
    def simulation(self) -> Simulation:
        if self._simulation is None:
            raise RuntimeError("the simulated fleet is not open: use it as `async with`")
        return self._simulation

    def fleet(self) -> Fleet:
        return self.simulation.fleet()

    async def apply(self, changes: Sequence[Change], deadline_s: float) -> list[Outcome]:
        return await self.simulation.apply(changes, deadline_s)

    def summary(self) -> Summary:
        return self.simulation.summary()

    async def run(self) -> None:
        """Follow the clock until cancelled."""
        while True:
            self.simulation.advance(min(self._clock.now_s(), self.simulation.now_s + MOST_AT_ONCE_S))
            self._simulated(self.simulation.now_s)
            await self._reconcile()
            await self._clock.sleep(STEP_S if self._clock.now_s() - self.simulation.now_s < STEP_S else 0.0)

    # Servers.

    async def _reconcile(self) -> None:
        """Open the ports of started engines, and close those of ended engines."""
        live = {pod.number: pod for pod in self.simulation.cluster.pods}
        for number, server in list(self._servers.items()):
            pod = live.get(number)
            if pod is None or pod.replica is not server.replica:
                del self._servers[number]
                await server.runner.cleanup()
                if pod is not None:  # it crashed and will restart
                    pod.port = self._reserve(pod.port)
        # A scale call during the close above may have created pods, so the list is read again. No `await` may separate
        # this read from closing the sockets below.
        pods = list(self.simulation.cluster.pods)
        for port in self._sockets.keys() - {pod.port for pod in pods}:  # of pods that ended before they served
            self._sockets.pop(port).close()
        for pod in pods:
            if pod.replica is not None and pod.number not in self._servers:
                runner = await self._listen(self._app(pod, pod.replica), self._sockets.pop(pod.port))
                self._servers[pod.number] = _Server(pod.replica, runner)

    def _reserve(self, port: int = 0) -> int:
        """Bind a port without listening, so that it refuses connections and stays reserved."""
        reserved = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            reserved.bind((HOST, port))
        except OSError:
            if port == 0:
                reserved.close()
                raise
            reserved.bind((HOST, 0))  # the port was taken in the meantime
        found: int = reserved.getsockname()[1]
        self._sockets[found] = reserved
        return found

    async def _listen(self, app: web.Application, reserved: socket.socket) -> web.AppRunner:
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=CLOSE_TIMEOUT_S)
        try:
            await runner.setup()
            await web.SockSite(runner, reserved).start()
        except BaseException:
            reserved.close()
            await runner.cleanup()
            raise
        return runner

    async def _serve_page(self, render: Callable[[], str], content_type: str) -> str:
        async def answer(request: web.Request) -> web.Response:
            return web.Response(body=render().encode(), headers={"Content-Type": content_type})

        app = web.Application()
        app.router.add_get("/metrics", answer)
        port = self._reserve()
        self._runners.append(await self._listen(app, self._sockets.pop(port)))
        return f"http://{HOST}:{port}/metrics"

    def _app(self, pod: SimPod, replica: Replica) -> web.Application:
        wall_at_zero_s = self._clock.wall_s() - self._clock.now_s()
        page = VllmExposition(
            replica,
            self.simulation.sim_workloads[pod.workload].setup.model,
            wall_at_zero_s + pod.started_s,
            wall_at_zero_s + pod.serving_s,
        )
        return EngineApi(replica, pod.deployment, page, self._clock, lambda: self.simulation.now_s).app()

    async def _close(self) -> None:
        runners = [*self._runners, *(server.runner for server in self._servers.values())]
        self._runners, self._servers = [], {}
        await asyncio.gather(*(runner.cleanup() for runner in runners))
        for reserved in self._sockets.values():
            reserved.close()
        self._sockets = {}
