"""The simulation over real HTTP on loopback, with a manual clock."""

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from yarl import URL

from autoscaler.adapters.engine_sleep import EngineSleep
from autoscaler.adapters.in_memory import AlwaysLeading
from autoscaler.config.settings import ScrapeSettings
from autoscaler.core.model.fleet import Pod, WorkloadRef
from autoscaler.ports import Change, ChangeStatus, SleepOrder
from autoscaler.sim.demo.clock import CompressedClock
from autoscaler.sim.demo.serve import MOST_AT_ONCE_S, SimulatedFleet
from autoscaler.sim.demo.simulation import Scenario
from tests.harness import process
from tests.harness.process import PATIENCE_S
from tests.sim.demo.scenarios import CHAT, WARM_S, make_scenario, silent

RECORDED = Path(__file__).parents[2] / "data" / "vllm"


class ManualClock:
    """A clock that is set by hand; sleeping yields to other tasks and takes no time."""

    def __init__(self) -> None:
        self.at_s = 1000.0
        self.sleeps = 0

    def now_s(self) -> float:
        return self.at_s

    def wall_s(self) -> float:
        return 1_780_272_000.0 + self.at_s

    async def sleep(self, duration_s: float) -> None:
        self.sleeps += 1
        await asyncio.sleep(0.001)


async def eventually(holds: Callable[[], bool]) -> None:
    await process.eventually(lambda: asyncio.sleep(0, holds()), "the simulation gets there", every_s=0.001)


class Stage:
    """A running simulation, its clock, and a client."""

    def __init__(self, fleet: SimulatedFleet, clock: ManualClock, client: aiohttp.ClientSession) -> None:
        self.fleet, self.clock, self.client = fleet, clock, client

    async def until(self, at_s: float) -> None:
        """Advance the simulation to `at_s`, including its ports."""
        self.clock.at_s = at_s
        await eventually(lambda: self.fleet.simulation.now_s >= at_s)
        before = self.clock.sleeps
        await eventually(lambda: self.clock.sleeps > before)  # after each step it opens and closes ports, and sleeps

    async def scale(self, after: int) -> None:
        before = self.fleet.simulation.cluster.desired[0]
        (outcome,) = await self.fleet.apply([Change(WorkloadRef("models", "chat"), "", before, after, "")], 1.0)
        assert outcome.status is ChangeStatus.APPLIED

    def pods(self) -> tuple[Pod, ...]:
        return self.fleet.fleet().pods

    async def get(self, pod: Pod, path: str) -> tuple[int, str]:
        return await self.call("GET", pod, path)

    async def call(self, method: str, pod: Pod, path: str, **content: Any) -> tuple[int, str]:
        url = URL(f"http://{pod.ip}:{pod.metrics_port}{path}")
        async with self.client.request(method, url, **content) as answer:
            return answer.status, await answer.text()

    async def reload(self, pod: Pod) -> tuple[int, str]:
        return await self.call("POST", pod, "/collective_rpc", json={"method": "reload_weights"})


async def staged(scenario: Scenario) -> AsyncIterator[Stage]:
    clock = ManualClock()
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE_S)) as client,
        SimulatedFleet(scenario, clock) as fleet,
        asyncio.TaskGroup() as tasks,
    ):
        running = tasks.create_task(fleet.run(), name="simulation")
        yield Stage(fleet, clock, client)
        running.cancel()


@pytest_asyncio.fixture
async def stage() -> AsyncIterator[Stage]:
    async for opened in staged(make_scenario()):
        yield opened


@pytest_asyncio.fixture
async def quiet_stage() -> AsyncIterator[Stage]:
    async for opened in staged(make_scenario(silent())):
        yield opened


async def test_ready_replica_answers_on_its_own_port(stage: Stage) -> None:
    await stage.until(1030.0)
    (pod,) = stage.pods()
    assert pod.ip == "127.0.0.1"
    status, text = await stage.get(pod, "/metrics")
    assert status == 200
    assert 'vllm:generation_tokens_total{engine="0",model_name="org/chat"}' in text
    assert "vllm:num_requests_running" in text
    async with stage.client.get(f"http://{pod.ip}:{pod.metrics_port}/metrics") as answer:
        assert answer.headers["Content-Type"] == "text/plain; version=1.0.0; charset=utf-8"  # as recorded
    assert await stage.get(pod, "/health") == (200, "")
    held = stage.fleet.simulation.cluster.pods[0].replica
    assert held is not None
    assert await stage.get(pod, "/load") == (200, f'{{"server_load": {held.held}}}')


async def test_port_is_closed_until_the_engine_has_started(quiet_stage: Stage) -> None:
    await quiet_stage.scale(2)
    await quiet_stage.until(1020.0)
    loading = quiet_stage.pods()[1]
    assert loading.metrics_port > 0
    with pytest.raises(aiohttp.ClientConnectorError):
        await quiet_stage.get(loading, "/health")
    await quiet_stage.until(1000.0 + WARM_S - 1)  # the port opens two seconds before the pod is ready
    ready = quiet_stage.fleet.fleet().pod_ready.tolist()
    assert ready == [True, False]
    assert (await quiet_stage.get(loading, "/health"))[0] == 200
    assert quiet_stage.pods()[1] == loading


async def test_draining_replica_is_healthy_until_it_is_empty() -> None:
    async for stage in staged(make_scenario(replace(CHAT, shape=replace(CHAT.shape, requests_per_s=6.0)))):
        await stage.until(1030.0)
        (pod,) = stage.pods()
        await stage.scale(0)
        await stage.until(1030.5)
        assert await stage.get(pod, "/health") == (200, "")
        assert stage.fleet.fleet().pod_terminating.tolist() == [True]
        await stage.until(1095.0)
        assert stage.pods() == ()
        with pytest.raises(aiohttp.ClientConnectorError):
            await stage.get(pod, "/health")


@pytest.mark.slow
async def test_crashed_replica_returns_on_its_port_with_new_counters() -> None:
    crashing = replace(CHAT, deployment=replace(CHAT.deployment, crash_every_s=3600.0))
    async for stage in staged(make_scenario(crashing)):
        crash_s = stage.fleet.simulation.cluster.pods[0].crash_s
        await stage.until(crash_s - 1)
        (pod,) = stage.pods()
        assert " 0.0" not in counter(await stage.get(pod, "/metrics"))
        await stage.until(crash_s + 1)
        assert stage.fleet.fleet().pod_ready.tolist() == [False]
        with pytest.raises(aiohttp.ClientConnectorError):
            await stage.get(pod, "/metrics")
        serving_s = stage.fleet.simulation.cluster.pods[0].serving_s
        await stage.until(serving_s)
        assert stage.pods() == (pod,)
        assert counter(await stage.get(pod, "/metrics")).endswith(" 0.0")


def counter(answer: tuple[int, str]) -> str:
    return next(line for line in answer[1].splitlines() if line.startswith("vllm:generation_tokens_total"))


def recorded_steps() -> list[dict[str, Any]]:
    """Return the calls of the sleep mode that were recorded from vLLM, with its answers and metrics in between."""
    steps = json.loads((RECORDED / "endpoints.json").read_text())["dev_mode"]["steps_in_order"]
    found = []
    for step in steps:
        path = step.get("request", "").partition(" ")[2].partition("?")[0]
        if path in ("/is_sleeping", "/sleep", "/wake_up", "/health") or "metrics" in step:
            found.append(step)
        elif path == "/pause":
            break
    return found


async def test_every_call_of_the_sleep_mode_answers_as_recorded(quiet_stage: Stage) -> None:
    (pod,) = quiet_stage.pods()
    compared = 0
    for step in recorded_steps():
        if "request" in step:
            method, path = step["request"].split()
            status, body = await quiet_stage.call(method, pod, path)
            assert (status, json.loads(body or "null")) == (step["status"], json.loads(step["body"] or "null")), step
            compared += 1
        else:
            text = (await quiet_stage.get(pod, "/metrics"))[1].splitlines()
            states = [line.replace('"tiny"', '"org/chat"') for line in step["metrics"] if "sleep_state" in line]
            assert set(states) <= set(text), step["tag"]
    assert compared >= 14


async def test_wake_up_from_level_2_needs_the_weights_loaded_again(quiet_stage: Stage) -> None:
    (pod,) = quiet_stage.pods()
    assert (await quiet_stage.call("POST", pod, "/sleep?level=2&mode=wait"))[0] == 200
    assert (await quiet_stage.reload(pod))[0] == 500
    await quiet_stage.call("POST", pod, "/wake_up?tags=weights")
    assert await quiet_stage.reload(pod) == (200, '{"results": [null]}')
    answer = await quiet_stage.call("POST", pod, "/wake_up?tags=kv_cache")
    assert answer == (200, '{"status": "awake", "tags": ["kv_cache"]}')
    held = quiet_stage.fleet.simulation.cluster.pods[0].replica
    assert held is not None
    assert not held.sleep_state.weights_lost


async def test_sleep_answers_once_what_runs_has_ended(stage: Stage) -> None:
    await stage.until(1030.0)
    (pod,) = stage.pods()
    held = stage.fleet.simulation.cluster.pods[0].replica
    assert held is not None
    assert held.running
    paused = asyncio.create_task(stage.call("POST", pod, "/sleep?level=0&mode=wait"))
    await eventually(lambda: held.sleep_state.paused)
    assert not paused.done()
    assert await stage.get(pod, "/is_sleeping") == (200, '{"is_sleeping": true}')
    await stage.until(1090.0)
    assert await paused == (200, '{"status": "sleeping", "level": 0}')
    assert (held.running, held.metrics.finished_abort) == (0, 0)


@pytest.mark.parametrize("level", [1, 2])
async def test_the_sleeper_of_the_daemon_puts_it_to_sleep_and_wakes_it(quiet_stage: Stage, level: int) -> None:
    (pod,) = quiet_stage.pods()
    held = quiet_stage.fleet.simulation.cluster.pods[0].replica
    assert held is not None
    state, awake = held.sleep_state, SleepOrder(WorkloadRef("models", "chat"), pod, False, level, False, True)
    async with EngineSleep(ScrapeSettings(), quiet_stage.clock, AlwaysLeading()) as sleeper:
        sleeper.order([replace(awake, sleeps=True)], [pod])
        await eventually(lambda: state.paused)
        await quiet_stage.until(1010.0)
        sleeper.order([replace(awake, sleeps=True, is_ready=False)], [pod])
        await eventually(lambda: bool(state.released))
        assert (state.level, sleeper.problems()) == (level, {})
        await quiet_stage.until(1120.0)
        sleeper.order([replace(awake, is_asleep=True, is_ready=False)], [pod])
        await eventually(lambda: not state.paused)
        assert (state.weights_lost, sleeper.problems()) == (False, {})


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("/sleep?level=9", "level is '9'; allowed: 0, 1, 2"),
        ("/sleep?mode=hard", "mode is 'hard'; allowed: abort, wait, keep"),
        ("/wake_up?tags=soul", "tags is 'soul'; allowed: weights, kv_cache"),
    ],
)
async def test_unknown_part_of_the_sleep_mode_is_refused(quiet_stage: Stage, path: str, problem: str) -> None:
    (pod,) = quiet_stage.pods()
    assert await quiet_stage.call("POST", pod, path) == (400, problem)
    assert await quiet_stage.get(pod, "/is_sleeping") == (200, '{"is_sleeping": false}')


async def test_sleeping_replica_is_not_ready_and_gets_no_requests(stage: Stage) -> None:
    await stage.until(1030.0)
    (pod,) = stage.pods()
    await stage.call("POST", pod, "/sleep?level=1&mode=abort")
    await stage.until(1034.0)
    assert stage.fleet.fleet().pod_ready.tolist() == [False]
    held = stage.fleet.simulation.cluster.pods[0].replica
    assert held is not None
    few = held.held
    await stage.until(1040.0)
    assert held.held == few, "the router holds what arrives"
    await stage.call("POST", pod, "/wake_up")
    await stage.until(1050.0)
    assert stage.fleet.fleet().pod_ready.tolist() == [True]


async def test_exporter_and_gateway_have_their_own_addresses(stage: Stage) -> None:
    await stage.until(1030.0)
    async with stage.client.get(stage.fleet.dcgm_url) as answer:
        assert f'pod="{stage.pods()[0].name}"' in await answer.text()
    async with stage.client.get(stage.fleet.gateway_url) as answer:
        assert "llm_d_epp_flow_control_queue_size" in await answer.text()


async def test_late_simulation_yields_between_steps_and_catches_up(quiet_stage: Stage) -> None:
    quiet_stage.clock.at_s += 20 * MOST_AT_ONCE_S
    await asyncio.sleep(0.005)
    assert quiet_stage.fleet.simulation.now_s < quiet_stage.clock.at_s
    await quiet_stage.until(quiet_stage.clock.at_s)
    assert quiet_stage.fleet.simulation.now_s == quiet_stage.clock.at_s


def own_ports() -> set[int]:
    """Return the TCP ports of this process."""
    found = set[int]()
    for file in Path("/proc/self/fd").iterdir():
        if file.is_socket():
            with socket.socket(fileno=os.dup(int(file.name))) as own:
                found |= {own.getsockname()[1]} if own.family == socket.AF_INET else set()
    return found


async def test_closing_frees_every_port() -> None:
    async for stage in staged(make_scenario(silent())):
        await stage.scale(4)
        await stage.until(1005.0)
        ports = {pod.metrics_port for pod in stage.pods()}
        assert len(ports) == 4
        assert ports <= own_ports()
    assert ports.isdisjoint(own_ports())  # another process may have taken one by now


async def test_simulation_is_unavailable_before_it_is_opened() -> None:
    with pytest.raises(RuntimeError, match="use it as `async with`"):
        SimulatedFleet(make_scenario(), ManualClock()).fleet()


async def test_simulation_follows_a_compressed_clock() -> None:
    clock = CompressedClock(speed=600.0)
    async with SimulatedFleet(make_scenario(), clock) as fleet:
        task = asyncio.create_task(fleet.run())
        await eventually(lambda: fleet.summary().simulated_s >= 60)
        task.cancel()
        assert fleet.summary().workloads[0].arrived > 60


async def test_pods_created_during_a_close_keep_their_ports() -> None:
    async for stage in staged(make_scenario(silent(replicas=4), nodes=3)):
        for turn in range(300):
            replicas = stage.fleet.simulation.cluster.desired[0]
            await stage.scale((replicas + 5) % 9)
            stage.clock.at_s += 7.0
            await asyncio.sleep(0.001 if turn % 3 else 0)
        await stage.scale(6)
        await stage.until(stage.clock.at_s + 300)
        pods = stage.pods()
        assert len(pods) == 6
        for pod in pods:
            assert (await stage.get(pod, "/health"))[0] == 200
