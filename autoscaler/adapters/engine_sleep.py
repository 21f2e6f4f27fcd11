"""Puts vLLM engines to sleep and wakes them, over their HTTP API.

A pod goes to sleep in three steps. Its scheduler is paused (level 0), which lets running requests end and makes its
readiness probe fail. Once Kubernetes has taken it out of its Services, and no request came in the meantime, its memory
is released. If a request came, or the pod stays ready, it is resumed.

A wake-up follows the level that the engine reports. After level 2 the weights are loaded again before the cache is
allocated: a plain wake-up would serve from uninitialised weights. If a step fails, the engine stays asleep, so it is
not served, and the steps are repeated later from the first. Nothing is remembered that the engine and the policy do not
tell, so another daemon can go on at any point.

Source: vLLM 0.33 `vllm/entrypoints/serve/dev/sleep/`; levels and modes as of 0.17.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any, Self

import structlog
from yarl import URL

from autoscaler.config.settings import ScrapeSettings
from autoscaler.core.model.fleet import Pod, WorkloadRef
from autoscaler.http.access import Access, pod_url
from autoscaler.http.credentials import CredentialError
from autoscaler.http.fetch import FetchAnswer, Fetcher
from autoscaler.ports import Clock, Leadership, SleepOrder

log = structlog.get_logger(__name__)

CONCURRENCY = 16
MAX_ANSWER_BYTES = 64 << 10
READ_TIMEOUT_S = 5.0
OPERATION_TIMEOUT_S = 600.0
"""For one step that moves memory: level 2 reads the weights from the disk, or over the network."""

DRAIN_TIMEOUT_S = 60.0
"""For running requests to end. Only idle engines are paused, so there are few."""

UNREADY_TIMEOUT_S = 60.0
"""For the readiness probe to fail. Longer than that, it does not ask whether the engine sleeps."""

ENDPOINTS_S = 5.0
"""After a pod became unready, proxies and gateways may send it requests for this long."""

POLL_S = 1.0
LAG_S = 90.0
"""The metrics may show the state before an operation for this long."""

FIRST_RETRY_S, LONGEST_RETRY_S = 30.0, 1800.0
"""Delay after a failure; it doubles with each further one."""

FIRST_VERSION = (0, 17)
"""Before vLLM 0.17, level 0 drops the weights instead of pausing the scheduler."""

NO_API = "its engine has no sleep endpoints (HTTP 404); start vLLM with VLLM_SERVER_DEV_MODE=1 and --enable-sleep-mode"
NO_PROBE = (
    "it stays ready while its engine is paused, so it would get requests in its sleep; "
    "its readiness probe must ask /is_sleeping"
)
_STATE = re.compile(rb"^vllm:engine_sleep_state\{([^}\n]*)\}[ \t]+(\S+)", re.MULTILINE)  # labels and value
_LABEL = re.compile(rb'\bsleep_state="(\w+)"')
_VERSION = re.compile(r"(\d{1,6})\.(\d{1,6})")
Key = tuple[str, str]  # namespace and name of a pod


class Depth(Enum):
    """The memory that an engine has released."""

    NOTHING = "nothing"  # awake, or paused
    WEIGHTS_OFFLOADED = "level 1"
    WEIGHTS_DROPPED = "level 2"


class SleepError(Exception):
    """A step failed; the message is safe to show."""


class Stopped(Exception):
    """The operation is no longer wanted, or no longer ours."""


@dataclass
class _SleepingPod:
    """The state of one pod that is to sleep or to wake."""

    order: SleepOrder
    task: asyncio.Task[None] | None = None
    did_sleep: bool | None = None  # the last operation that succeeded
    done_s: float = 0.0
    failures: int = 0
    retry_s: float = 0.0
    is_blind: bool = False  # its probe does not see the sleep; only another pod has another probe
    problem: str = ""


class EngineSleep:
    """The Sleeper that calls engines. An async context manager that owns its tasks and connections."""

    def __init__(self, settings: ScrapeSettings, clock: Clock, leadership: Leadership) -> None:
        self._access, self._clock, self._leadership = Access(settings), clock, leadership
        self._slots = asyncio.Semaphore(CONCURRENCY)
        self._pods: dict[Key, _SleepingPod] = {}

        def fetcher(timeout_s: float, max_body_bytes: int) -> Fetcher:
            return Fetcher(
                concurrency=CONCURRENCY,
                timeout_s=timeout_s,
                max_body_bytes=max_body_bytes,
                context=self._access.context,
            )

        self._read = fetcher(READ_TIMEOUT_S, settings.max_body_bytes)  # /metrics is the largest
        self._write = fetcher(OPERATION_TIMEOUT_S, MAX_ANSWER_BYTES)

    async def __aenter__(self) -> Self:
        await self._read.__aenter__()
        await self._write.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        """End all operations. Engines that are only paused are resumed, so that none is left without a daemon."""
        tasks = [pod.task for pod in self._pods.values() if pod.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._write.__aexit__()
        await self._read.__aexit__()

    def order(self, orders: Sequence[SleepOrder], present: Sequence[Pod]) -> None:
        """Begin what these orders ask for. A pod that is no longer in an order is left as it is.

        After a pod whose probe does not see the sleep, no other pod of its workload is tried while that pod is there.
        """
        now_s, before = self._clock.now_s(), self._pods
        self._pods = {}
        has_failed = any(pod.is_blind or pod.retry_s > now_s for pod in before.values())
        there = {(pod.namespace, pod.name) for pod in present} if has_failed else set()
        blind = {pod.order.ref for key, pod in before.items() if pod.is_blind and key in there}
        for order in orders:
            key = order.pod.namespace, order.pod.name
            pod = before.pop(key, None)
            if pod is None or pod.order.pod != order.pod:
                pod = _SleepingPod(order)
            elif pod.order.sleeps != order.sleeps:
                pod.failures, pod.retry_s, pod.problem = 0, 0.0, ""
            pod.order = order
            self._pods[key] = pod
            is_tried = order.is_asleep or not order.sleeps or order.ref not in blind
            if pod.task is None and is_tried and now_s >= pod.retry_s and not self._is_done(pod, now_s):
                pod.task = asyncio.create_task(self._run(pod), name=f"sleep {key}")
        for key, pod in before.items():
            if pod.task is not None:  # it ends by itself, as soon as it sees that it is not wanted
                pod.order = SleepOrder(pod.order.ref, pod.order.pod, False, pod.order.level, True, False)
                self._pods[key] = pod
            elif key in there and (pod.is_blind or pod.retry_s > now_s):
                self._pods[key] = pod

    def problems(self) -> dict[WorkloadRef, str]:
        """Return for each workload what keeps one of its replicas from sleeping or waking."""
        found: dict[WorkloadRef, str] = {}
        for pod in self._pods.values():
            name = pod.order.pod.name
            if pod.is_blind:
                found.setdefault(pod.order.ref, f"replica {name} does not fall asleep: {NO_PROBE}")
            elif pod.problem:
                verb = "fall asleep" if pod.order.sleeps else "wake"
                found.setdefault(pod.order.ref, f"replica {name} does not {verb}: {pod.problem}")
        return found

    def _is_done(self, pod: _SleepingPod, now_s: float) -> bool:
        """Return whether the last operation brought the pod where it is to be. Its metrics may still say otherwise."""
        same = pod.did_sleep is pod.order.sleeps
        return same and (pod.order.is_asleep is pod.order.sleeps or now_s - pod.done_s < LAG_S)

    async def _run(self, pod: _SleepingPod) -> None:
        """Carry out one order; a failure waits for a later tick."""
        sleeps, began_s, name = pod.order.sleeps, self._clock.now_s(), f"{pod.order.ref} {pod.order.pod.name}"
        try:
            async with self._slots:
                engine = _Engine(pod.order, self._access, self._read, self._write)
                await (self._put_to_sleep(pod, engine) if sleeps else self._wake(pod, engine))
        except Stopped:
            pass
        except SleepError as error:
            pod.failures += 1
            delay_s = min(FIRST_RETRY_S * 2 ** (pod.failures - 1), LONGEST_RETRY_S)
            pod.retry_s = self._clock.now_s() + delay_s
            pod.is_blind = pod.is_blind or str(error) == NO_PROBE
            if str(error) != pod.problem:
                log.warning("sleep failed" if sleeps else "wake-up failed", pod=name, error=str(error))
            pod.problem = str(error)
        else:
            pod.did_sleep, pod.done_s = sleeps, self._clock.now_s()
            pod.failures, pod.problem = 0, ""
            log.info("replica asleep" if sleeps else "replica awake", pod=name, seconds=round(pod.done_s - began_s, 1))
        finally:
            pod.task = None

    async def _put_to_sleep(self, pod: _SleepingPod, engine: _Engine) -> None:
        if not await engine.is_sleeping():
            await engine.check_version()
            self._check_wanted(pod)
        elif await engine.depth() is not Depth.NOTHING:
            return
        # An engine that is paused already was left so by another daemon, or by this one before it was restarted.
        try:
            await engine.pause()
            await self._drain(pod, engine)
        except BaseException as error:
            if not (isinstance(error, Stopped) and not self._leadership.leading):
                await _finish(engine.resume)
            raise
        try:
            await engine.release(pod.order.level)
        except SleepError:
            if pod.order.level == 1:  # of level 2, no one knows whether the weights are still there
                await _finish(engine.resume)
            raise

    async def _drain(self, pod: _SleepingPod, engine: _Engine) -> None:
        """Wait until a paused engine gets no more requests. Raises SleepError, Stopped."""
        end_s = self._clock.now_s() + UNREADY_TIMEOUT_S
        while pod.order.is_ready:
            if self._clock.now_s() >= end_s:
                raise SleepError(NO_PROBE)
            await self._clock.sleep(POLL_S)
            await self._check_unused(pod, engine)
        await self._clock.sleep(ENDPOINTS_S)
        await self._check_unused(pod, engine)

    async def _check_unused(self, pod: _SleepingPod, engine: _Engine) -> None:
        self._check_wanted(pod)
        if held := await engine.held():
            raise SleepError(f"{held} request{'s' * (held > 1)} came while it was taken out of its Services")

    def _check_wanted(self, pod: _SleepingPod) -> None:
        if not self._leadership.leading or not pod.order.sleeps:
            raise Stopped

    async def _wake(self, pod: _SleepingPod, engine: _Engine) -> None:
        if not await engine.is_sleeping():
            return
        depth = await engine.depth()
        if not self._leadership.leading:
            raise Stopped
        # Where the policy says level 2, weights may be gone that the metrics of an interrupted step do not show.
        if depth is Depth.WEIGHTS_DROPPED or (depth is Depth.NOTHING and pod.order.level == 2):
            await engine.reload()
        else:
            await engine.resume()
        if await engine.is_sleeping():
            raise SleepError("its engine still sleeps after the wake-up")


async def _finish(step: Callable[[], Any]) -> None:
    """Undo a pause although the task is cancelled; if it fails, the engine reports that it sleeps."""
    with suppress(SleepError, TimeoutError):
        async with asyncio.timeout(READ_TIMEOUT_S):
            await asyncio.shield(asyncio.ensure_future(step()))


class _Engine:
    """The endpoints of one engine. Every method raises SleepError."""

    def __init__(self, order: SleepOrder, access: Access, read: Fetcher, write: Fetcher) -> None:
        base = pod_url(order.pod)
        if base is None:
            raise SleepError("it has no address")
        self._base, self._read, self._write = base, read, write
        self._order, self._access = order, access

    async def is_sleeping(self) -> bool:
        """Return whether anything of the engine sleeps; of level 2, until both weights and cache are back."""
        answer = await self._call(self._read.get, "/is_sleeping")
        found = _json(answer, "/is_sleeping").get("is_sleeping")
        if not isinstance(found, bool):
            raise SleepError("/is_sleeping does not say whether its engine sleeps")
        return found

    async def check_version(self) -> None:
        text = str(_json(await self._call(self._read.get, "/version"), "/version").get("version"))
        found = _VERSION.match(text)
        if found is None or (int(found[1]), int(found[2])) < FIRST_VERSION:
            first = ".".join(map(str, FIRST_VERSION))
            raise SleepError(f"its engine has version {text[:40]!r}; allowed: vLLM {first} or later")

    async def depth(self) -> Depth:
        """Return what the engine has released, by its metrics. An engine that was woken in part counts as level 2."""
        body = await self._call(self._read.get, self._order.pod.metrics_path or "/metrics")
        states: dict[bytes, set[bytes]] = {}
        for labels, value in _STATE.findall(body):
            if state := _LABEL.search(labels):
                states.setdefault(state[1], set()).add(value)

        def is_set(state: bytes) -> bool:
            return any(float(value) > 0 for value in states.get(state, ()) if _is_number(value))

        if b"awake" not in states:
            raise SleepError("its metrics do not show vllm:engine_sleep_state")
        if is_set(b"discard_all") or is_set(b"awake"):
            return Depth.WEIGHTS_DROPPED  # "awake" while it sleeps: woken in part, as older versions report it
        return Depth.WEIGHTS_OFFLOADED if is_set(b"weights_offloaded") else Depth.NOTHING

    async def held(self) -> int:
        """Return the requests inside the server; 0 as well where it does not track its load."""
        load = _json(await self._call(self._read.get, "/load"), "/load").get("server_load")
        return load if type(load) is int else 0

    async def pause(self) -> None:
        """Stop scheduling once running requests have ended."""
        try:
            async with asyncio.timeout(DRAIN_TIMEOUT_S):
                await self._post("/sleep", level="0", mode="wait")
        except TimeoutError:
            raise SleepError(f"its requests did not end within {DRAIN_TIMEOUT_S:g} s") from None

    async def release(self, level: int) -> None:
        """Release the memory. A request that comes in the very last moment is kept until the wake-up."""
        await self._post("/sleep", level=str(level), mode="keep")

    async def resume(self) -> None:
        await self._post("/wake_up")

    async def reload(self) -> None:
        """Wake from level 2. The cache comes last, because the engine serves as soon as it is there."""
        await self._post("/wake_up", tags="weights")
        await self._post("/collective_rpc", {"method": "reload_weights"})
        await self._post("/wake_up", tags="kv_cache")

    async def _post(self, path: str, content: Mapping[str, object] | None = None, /, **query: str) -> None:
        await self._call(lambda url, token: self._write.post(url, token, content), path, **query)

    async def _call(self, send: Callable[[URL, str], Any], path: str, **query: str) -> bytes:
        try:
            token = self._access.pod_token(self._order.pod.namespace)
        except CredentialError as error:
            raise SleepError(str(error)) from error
        answer: FetchAnswer = await send(self._base.with_path(path).with_query(query), token)
        if answer.body is None:
            missing = path in ("/is_sleeping", "/sleep", "/wake_up") and answer.problem.startswith("HTTP 404")
            raise SleepError(NO_API if missing else f"{path}: {answer.problem}")
        return answer.body


def _json(body: bytes, path: str) -> dict[str, Any]:
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise SleepError(f"{path} does not answer as vLLM does")
    return content


def _is_number(text: bytes) -> bool:
    with suppress(ValueError):
        float(text)
        return True
    return False
