"""The HTTP endpoints of one simulated engine: metrics, health, load, and the sleep mode in development mode.

Paths and answers are those recorded from vLLM 0.32, in `tests/data/vllm/endpoints.json`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from aiohttp import web

from autoscaler.ports import Clock
from autoscaler.sim.demo import exposition
from autoscaler.sim.demo.cluster import Deployment
from autoscaler.sim.demo.exposition import VllmExposition
from autoscaler.sim.engine.replica import Replica
from autoscaler.sim.engine.sleep_state import KV_CACHE, LEVELS, MODES, WEIGHTS

VERSION = "0.32.0"
MEMORY_S = 0.1  # to release memory, or to allocate it
DRAIN_POLL_S = 0.5


class EngineApi:
    """Answers for one engine process. Operations of the sleep mode take simulated time, one after the other."""

    def __init__(
        self,
        replica: Replica,
        deployment: Deployment,
        page: VllmExposition,
        clock: Clock,
        now_s: Callable[[], float],
    ) -> None:
        """now_s: return the time of the simulation."""
        self._replica, self._page = replica, page
        self._clock, self._now_s = clock, now_s
        starts, weights = deployment.cold_start, (deployment.profile.weight_bytes, deployment.devices)
        self._copy_s, self._reload_s = starts.wake_s(*weights), starts.reload_s(*weights)
        self._operation = asyncio.Lock()

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/health", self._health)
        app.router.add_get("/load", self._load)
        app.router.add_get("/version", self._version)
        app.router.add_get("/is_sleeping", self._is_sleeping)
        app.router.add_post("/sleep", self._sleep)
        app.router.add_post("/wake_up", self._wake_up)
        app.router.add_post("/collective_rpc", self._collective_rpc)
        return app

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=self._page.render().encode(), headers={"Content-Type": exposition.CONTENT_TYPE})

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _load(self, request: web.Request) -> web.Response:
        return web.json_response({"server_load": self._replica.held})

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": VERSION})

    async def _is_sleeping(self, request: web.Request) -> web.Response:
        return web.json_response({"is_sleeping": self._replica.sleep_state.paused})

    async def _sleep(self, request: web.Request) -> web.Response:
        level = _one_of(request, "level", [str(level) for level in LEVELS], "1")
        mode = _one_of(request, "mode", MODES, "abort")
        async with self._operation:
            began_s = self._clock.now_s()
            self._replica.pause(mode, self._now_s())
            while self._replica.running:
                await self._clock.sleep(DRAIN_POLL_S)
            await self._clock.sleep({"0": 0.0, "1": self._copy_s, "2": MEMORY_S}[level])
            self._replica.release(int(level), self._clock.now_s() - began_s)
        return web.json_response({"status": "sleeping", "level": int(level)})

    async def _wake_up(self, request: web.Request) -> web.Response:
        tags = request.query.getall("tags", [])
        for tag in tags:
            if tag not in (WEIGHTS, KV_CACHE):
                raise _refused("tags", tag, (WEIGHTS, KV_CACHE))
        async with self._operation:
            state, began_s = self._replica.sleep_state, self._clock.now_s()
            if state.released:
                copies = state.level == 1 and WEIGHTS in state.released and (not tags or WEIGHTS in tags)
                await self._clock.sleep(self._copy_s if copies else MEMORY_S)
            self._replica.wake_up(tags, self._now_s(), self._clock.now_s() - began_s)
        return web.json_response({"status": "sleeping" if state.paused else "awake", "tags": tags or None})

    async def _collective_rpc(self, request: web.Request) -> web.Response:
        content = await request.json()
        if content != {"method": "reload_weights"}:
            raise web.HTTPBadRequest(text="the simulated engine knows the method reload_weights alone")
        async with self._operation:
            await self._clock.sleep(self._reload_s)
            if not self._replica.sleep_state.reload_weights():
                raise web.HTTPInternalServerError(text="the weights have no memory: they sleep")
        return web.json_response({"results": [None]})


def _one_of(request: web.Request, name: str, allowed: Sequence[str], default: str) -> str:
    found = request.query.get(name, default)
    if found not in allowed:
        raise _refused(name, found, allowed)
    return found


def _refused(name: str, found: str, allowed: Sequence[str]) -> web.HTTPBadRequest:
    return web.HTTPBadRequest(text=f"{name} is {found[:20]!r}; allowed: {', '.join(allowed)}")
