"""A double of KEDA 2.20's operator for one ScaledObject: what it asks a scaler in which order, and what errors lead to.

Written from what a real 2.20.2 was seen to do:

* GetMetricSpec comes first: when the HPA is written, at each poll and at each query of the HPA. Then come GetMetrics
  and IsActive.
* An error is asked again once, at once. One of GetMetricSpec never counts for the fallback, and an HPA that is written
  meanwhile lacks the metric. When no trigger answers a spec, the HPA is not written.
* Errors of the other calls count, at polls and queries alike. Beyond `failure_threshold` the fallback is served.
* Its gRPC client waits longer after each refused connection, up to 120 s, and fails calls at once meanwhile.

Time is an argument, in seconds.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Protocol

import grpc

from autoscaler.adapters.keda.proto import externalscaler_pb2 as pb
from tests.harness.process import PATIENCE_S
from tests.hpa import Executor, Hpa, keda_value


class Failed(Exception):
    """A failed call, with the text of the gRPC error."""


class Trigger(Protocol):
    """One trigger as the operator asks it. Raises Failed."""

    async def specs(self) -> list[str]: ...

    async def value(self, metric: str) -> Decimal: ...

    async def active(self) -> bool: ...


@dataclass
class Scaler:
    """An external scaler behind a connection, for one ScaledObject. `reachable`: whether a connection stands."""

    stub: Any
    reference: pb.ScaledObjectRef
    reachable: Callable[[], bool] = lambda: True
    calls: list[str] = field(default_factory=list)  # methods, in their order

    async def specs(self) -> list[str]:
        return [spec.metricName for spec in (await self._ask("GetMetricSpec", self.reference)).metricSpecs]

    async def value(self, metric: str) -> Decimal:
        request = pb.GetMetricsRequest(scaledObjectRef=self.reference, metricName=metric)
        values = (await self._ask("GetMetrics", request)).metricValues
        return sum((keda_value(value.metricValueFloat, value.metricValue) for value in values), Decimal(0))

    async def active(self) -> bool:
        return bool((await self._ask("IsActive", self.reference)).result)

    async def _ask(self, method: str, request: Any) -> Any:
        self.calls.append(method)
        if not self.reachable():
            raise Failed("connection refused")
        try:
            return await getattr(self.stub, method)(request, timeout=PATIENCE_S)
        except grpc.aio.AioRpcError as error:
            raise Failed(f"{error.code().name}: {error.details()}") from error


@dataclass
class Fixed:
    """A trigger of another kind, such as cron, with a count of its own."""

    name: str
    count: int

    async def specs(self) -> list[str]:
        return [self.name]

    async def value(self, metric: str) -> Decimal:
        return Decimal(self.count)

    async def active(self) -> bool:
        return self.count > 0


@dataclass(frozen=True)
class Fallback:
    """`spec.fallback` with `behavior: static`."""

    replicas: int
    failure_threshold: int = 3


@dataclass
class Backoff:
    """When a gRPC client tries to connect again: 1 s after the first refusal, then 1.6 times as long, up to 120 s."""

    delay_s: float = 1.0
    next_s: float = 0.0
    connected: bool = False

    def reach(self, now_s: float, serving: bool) -> bool:
        """Say whether a call gets through now, where the server does or does not listen."""
        if self.connected and serving:
            return True
        if now_s < self.next_s:
            return False
        self.connected = serving
        self.delay_s, self.next_s = (1.0, 0.0) if serving else (min(1.6 * self.delay_s, 120.0), now_s + self.delay_s)
        return serving


@dataclass
class Operator:
    """KEDA for one ScaledObject, with the HPA that it writes. Nothing is written until `write_hpa` succeeds."""

    triggers: list[Trigger]
    hpa: Hpa
    executor: Executor
    fallback: Fallback | None = None
    written: list[tuple[int, str]] = field(default_factory=list)  # metrics of the HPA: place of the trigger, name
    failures: dict[tuple[int, str], int] = field(default_factory=dict)
    events: list[str] = field(default_factory=list)  # what the tenant reads

    def __post_init__(self) -> None:
        self.executor.fallback_replicas = self.fallback.replicas if self.fallback else None

    @property
    def metrics(self) -> list[str]:
        """Names of the metrics in the HPA."""
        return [f"s{place}-{name}" for place, name in self.written]

    async def write_hpa(self) -> bool:
        """Write the HPA as when the ScaledObject is made or edited; False: it could not be."""
        found = []
        for place in range(len(self.triggers)):
            try:
                found += [(place, name) for name in await self._specs(place)]
            except Failed:
                continue
        if not found:
            self.events.append("no metric specs returned from scalers")
            return False
        self.written = found
        return True

    async def poll(self, now_s: float) -> int:
        """Ask every trigger once and act at the edge of zero; return the count."""
        active, failed = False, False
        for place in range(len(self.triggers)):
            try:
                for name in await self._specs(place):
                    active |= await self._ask(place, name, lambda value, is_active: is_active)
            except Failed:
                failed = True
        outcome = True if active else (None if failed else False)
        self.hpa.replicas = self.executor.poll(now_s, outcome, self.hpa.replicas)
        return self.hpa.replicas

    async def sync(self, now_s: float) -> int:
        """Let the HPA query its metrics and scale; return the count."""
        if self.hpa.replicas == 0 or not self.written:
            return self.hpa.replicas
        values: list[Decimal | None] = []
        for place, name in self.written:
            try:
                await self._specs(place)
                values.append(await self._ask(place, name, lambda value, is_active: value))
            except Failed:
                values.append(self._fallen_back((place, name)))
        return self.hpa.sync(now_s, *values)

    def _fallen_back(self, key: tuple[int, str]) -> Decimal | None:
        """Return the value that the fallback serves; None: it does not yet."""
        if self.fallback is None or self.failures.get(key, 0) <= self.fallback.failure_threshold:
            return None
        return self.hpa.target * self.fallback.replicas

    async def _specs(self, place: int) -> list[str]:
        trigger = self.triggers[place]
        try:
            return await trigger.specs()
        except Failed:
            try:
                return await trigger.specs()
            except Failed:
                self.events.append("got empty metric spec")  # the reason stands in the operator's log alone
                raise

    async def _ask(self, place: int, name: str, pick: Callable[[Decimal, bool], Any]) -> Any:
        """Call GetMetrics and IsActive, retry once after an error, and count failures."""
        trigger, key = self.triggers[place], (place, name)
        for last in (False, True):
            try:
                answer = pick(await trigger.value(name), await trigger.active())
            except Failed as error:
                if last:
                    self.failures[key] = self.failures.get(key, 0) + 1
                    self.events.append(str(error))
                    raise
            else:
                self.failures[key] = 0
                return answer
        raise AssertionError
