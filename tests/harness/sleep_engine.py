"""A vLLM server in dev mode with sleep mode, as far as sleeping goes.

Paths, answers and the order of states follow vLLM 0.33 (`docs/features/sleep_mode.md`, the routers under
`entrypoints/serve/dev`), and the recordings of 0.32 in `tests/data/vllm/endpoints.json`. It is a fake without GPU and
scheduler. Its weights are garbage after level 2, until they are reloaded.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

from autoscaler.core.model.fleet import Pod
from tests.harness.process import free_port

DEV_PATHS = ("/sleep", "/wake_up", "/collective_rpc", "/is_sleeping")
STATES: dict[str, Callable[[SleepEngine], bool]] = {
    "awake": lambda engine: not engine.asleep or engine.reports_early,
    "weights_offloaded": lambda engine: engine.level == 1 and engine.asleep and not engine.reports_early,
    "discard_all": lambda engine: engine.level == 2 and engine.asleep and not engine.reports_early,
}


@dataclass
class SleepEngine:
    """The engine of one pod; a test sets its fields, and reads `calls`."""

    port: int = 0
    version: str = "0.33.0"
    dev_mode: bool = True
    sleep_mode: bool = True
    running: int = 0
    held: int = 0  # requests inside the server, for /load
    level: int = 0
    paused: bool = False
    reports_early: bool = False  # older versions report `awake` as soon as the weights are allocated
    weights: str = "loaded"  # "offloaded", "dropped", "garbage" (allocated, not loaded)
    cache: bool = True
    fail: dict[str, int] = field(default_factory=dict)  # status by "path" or "path?query", instead of an answer
    body: str | None = None  # of /is_sleeping, instead of its answer
    before: Callable[[str], None] = lambda call: None  # called with each call
    wait: dict[str, asyncio.Event] = field(default_factory=dict)  # calls that wait for an event before they act
    calls: list[str] = field(default_factory=list)  # those that change something

    @property
    def asleep(self) -> bool:
        return self.paused or not self.cache or self.weights in {"offloaded", "dropped"}

    @property
    def serves_garbage(self) -> bool:
        return not self.asleep and self.weights != "loaded"

    @property
    def pod(self) -> Pod:
        return Pod("team", f"llama-{self.port}", "127.0.0.1", self.port)

    def restart(self) -> None:
        """Start the process again, as after a crash of the container."""
        self.level, self.paused, self.weights, self.cache = 0, False, "loaded", True

    def sleep(self, level: int) -> None:
        self.paused, self.level = True, level
        if level:
            self.cache, self.weights = False, "offloaded" if level == 1 else "dropped"

    def wake_up(self, tags: list[str]) -> None:
        if not tags or "weights" in tags:
            self.weights = {"offloaded": "loaded", "dropped": "garbage"}.get(self.weights, self.weights)
        if not tags or "kv_cache" in tags:
            self.cache = True
        if self.cache and self.weights in ("loaded", "garbage"):
            self.paused = False

    async def handle(self, request: web.Request) -> web.Response:
        """Answer one request, of any path."""
        call, path = request.path_qs, request.path
        self.before(call)
        if request.method == "POST":
            self.calls.append(call)
        if event := self.wait.get(call):
            await event.wait()
        for name in (call, path):
            if name in self.fail:
                return web.Response(status=self.fail[name])
        if not self.dev_mode and path in DEV_PATHS:
            return web.Response(status=404)
        match request.method, path:
            case "POST", "/sleep":
                level = int(request.query.get("level", "1"))
                if level and not self.sleep_mode:
                    return web.Response(status=500, text="sleep mode is not enabled")
                self.running = 0 if request.query.get("mode") == "wait" else self.running
                self.sleep(level)
                return web.json_response({"status": "sleeping", "level": level})
            case "POST", "/wake_up":
                tags = request.query.getall("tags", [])
                self.wake_up(tags)
                return web.json_response({"status": "sleeping" if self.asleep else "awake", "tags": tags or None})
            case "POST", "/collective_rpc":
                assert (await request.json()) == {"method": "reload_weights"}
                if self.weights in {"offloaded", "dropped"}:
                    return web.Response(status=500, text="the weights are not allocated")
                self.weights = "loaded"
                return web.json_response({"results": [None]})
            case "GET", "/is_sleeping":
                if self.body is not None:
                    return web.Response(text=self.body)
                return web.json_response({"is_sleeping": self.asleep})
            case "GET", "/metrics":
                return web.Response(text=self.metrics())
            case "GET", "/load":
                return web.json_response({"server_load": self.held})
            case "GET", "/version":
                return web.json_response({"version": self.version})
        return web.Response(status=404)

    def metrics(self) -> str:
        return "".join(
            f'vllm:engine_sleep_state{{engine="0",model_name="tiny",sleep_state="{state}"}} {float(holds(self))}\n'
            for state, holds in STATES.items()
        )


@asynccontextmanager
async def sleep_engine(**fields: object) -> AsyncIterator[SleepEngine]:
    """Serve an engine on loopback."""
    engine = SleepEngine(port=free_port(), **fields)  # type: ignore[arg-type]
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", engine.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", engine.port).start()
    try:
        yield engine
    finally:
        await runner.cleanup()
