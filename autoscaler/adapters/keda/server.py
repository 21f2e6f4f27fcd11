"""The gRPC server: port, certificates, keepalive, health, reflection, and who serves when."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from enum import Enum, auto
from types import TracebackType
from typing import Self

import grpc
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]
from grpc_health.v1.health import aio as health_aio  # type: ignore[import-untyped]
from grpc_reflection.v1alpha import reflection  # type: ignore[import-untyped]

from autoscaler.adapters.keda.goaway import Door
from autoscaler.adapters.keda.metrics import Calls
from autoscaler.adapters.keda.middleware import Guard
from autoscaler.adapters.keda.proto import externalscaler_pb2 as pb
from autoscaler.adapters.keda.proto.externalscaler_pb2_grpc import (
    ExternalScalerServicer,
    add_ExternalScalerServicer_to_server,
)
from autoscaler.adapters.keda.tls import CertificateError, RotatingCertificates
from autoscaler.config.settings import KedaSettings
from autoscaler.ports import Leadership

SERVICE = pb.DESCRIPTOR.services_by_name["ExternalScaler"].full_name
MAX_CALLS = 32_768  # at once, streams included: two streams and a call for each of 10,000 ScaledObjects
CALL_BYTES = 28 << 10  # of memory for a stream that idles, as measured with 12,000; the pod's limit has room for all
GRACE_S = 1.0  # for calls under way when the server stops
SETTLE_S = 0.1  # for answers to be read: a connection closed while its peer sends is reset, and what is unread is lost
FOLLOW_S = 0.25  # how soon a change of the leader is followed
BIND_S = 0.005  # between looks whether what this process had on the port has freed it
TURN_S = 1.0  # while no process leads: how long a connection is kept, and then how long its calls may go on

KEEPALIVE_S = 30.0  # KEDA's client sends no pings, and a stream that idles would be dropped unseen on its way

OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.so_reuseport", 0),  # else a second process shares the port instead of hearing that it is taken
    ("grpc.max_receive_message_length", 2 << 20),  # any ScaledObject that Kubernetes holds, so that its fault is told
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),  # a client that does ping is not sent away
    # KEDA opens all its streams at once where it finds a new leader. By default gRPC drops from the 1,000th on what has
    # not been taken up yet, before anything here sees or counts it.
    ("grpc.server.max_pending_requests", MAX_CALLS),
    ("grpc.server.max_pending_requests_hard_limit", MAX_CALLS),
)

log = structlog.get_logger(__name__)


# The client finds out by this that another process has come to lead, where this one has not heard of it.
TURNING = (
    ("grpc.max_connection_age_ms", round(TURN_S * 1000)),
    ("grpc.max_connection_age_grace_ms", round(TURN_S * 1000)),
)


class _Role(Enum):
    LEADS = auto()  # serves
    FOLLOWS = auto()  # another leads: sends connections on to it
    WAITS = auto()  # no process is known to lead: refuses calls, so that KEDA's fallback counts them


_SAID = {
    _Role.LEADS: "serving KEDA",
    _Role.FOLLOWS: "sending KEDA on to the leader",
    _Role.WAITS: "refusing KEDA until a leader is known",
}


class CannotServe(Exception):
    """The server cannot start: names the port or the certificate and what is wrong."""


class KedaServer:
    """Serves KEDA while this process leads, and keeps KEDA's client close to it otherwise.

    A closed port would make the client wait, up to two minutes, before it looks for a new leader. So the port is
    always open. While another process leads, each connection is sent on (`door`): behind one Service it reaches the
    leader soon, and its calls wait for that. While no process leads, calls are refused with UNAVAILABLE, except for
    GetMetricSpec: KEDA's fallback counts failures of the other calls only when that one is answered. Entering binds the
    port in any case, so that a wrong port or certificate is told at start by every replica.
    """

    def __init__(
        self,
        settings: KedaSettings,
        service: ExternalScalerServicer,
        leadership: Leadership,
        calls: Calls | None = None,
        grace_s: float = GRACE_S,
        keepalive_s: float = KEEPALIVE_S,
        follow_s: float = FOLLOW_S,
    ) -> None:
        """keepalive_s: seconds of silence after which a peer is pinged, and a third of that until it is given up.

        follow_s: seconds between looks at who leads.
        """
        self._settings = settings
        self._service = service
        self._leadership = leadership
        self._calls = calls or Calls()
        self._grace_s = grace_s
        self._follow_s = follow_s
        self._options = server_options(keepalive_s)
        self._certificates: RotatingCertificates | None = None
        self._port = settings.port
        self._listening: _Serving | Door | None = None
        self._role: _Role | None = None  # that the port is open for
        self._following: asyncio.Task[None] | None = None
        self._problem = ""
        self._ending = False

    async def __aenter__(self) -> Self:
        """Bind the port. Raises CannotServe."""
        tls = self._settings.tls
        if tls.cert or tls.ca:
            try:
                self._certificates = RotatingCertificates(tls)
            except CertificateError as error:
                raise CannotServe(f"gRPC certificate: {error}") from error
        await self._take_port(_Role.LEADS if self._leadership.leading else _Role.WAITS)
        self._following = asyncio.create_task(self._follow(), name="keda-server")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._following:
            # Cancelling alone is not enough: gRPC's stop can take it for its own end (`asyncio.wait_for` before 3.12).
            self._ending = True
            self._following.cancel()
            await asyncio.wait([self._following])
        if self._listening:
            await self._listening.stop(self._grace_s)
            self._listening, self._role = None, None
            log.info("stopped serving KEDA", port=self._port)

    @property
    def port(self) -> int:
        """The bound port, also where the settings say 0."""
        return self._port

    @property
    def serving(self) -> bool:
        """Whether calls are answered."""
        return self._role is _Role.LEADS

    @property
    def problem(self) -> str:
        """What an operator should know: a new certificate that was refused, a port that was lost; "": nothing."""
        return self._problem or (self._certificates.problem if self._certificates else "")

    async def _follow(self) -> None:
        while not self._ending:
            await asyncio.sleep(self._follow_s)
            try:
                role = self._wanted()
                if role is not self._role:
                    await self._take_port(role)
                    self._problem = ""
            except CannotServe as error:  # the port was taken meanwhile; tried again
                self._tell(str(error))
            except Exception as error:  # a new leader that stops following would never serve: tried again as well
                self._tell(f"{type(error).__name__}: {error}", error)

    def _tell(self, problem: str, unexpected: Exception | None = None) -> None:
        """Log the first of a row of failures."""
        if not self._problem:
            log.error("cannot serve KEDA", problem=problem, exc_info=unexpected)
        self._problem = problem

    def _wanted(self) -> _Role:
        if self._leadership.leading:
            return _Role.LEADS
        return _Role.FOLLOWS if self._leadership.has_other_leader else _Role.WAITS

    async def _take_port(self, role: _Role) -> None:
        """Open the port for a role, the moment it is free of what was there before. Raises CannotServe."""
        before, self._listening, self._role = self._listening, None, None
        freeing = asyncio.create_task(before.stop(self._grace_s), name="keda-port") if before else None
        try:
            await asyncio.sleep(0)  # a door is shut by this alone
            while freeing and not freeing.done() and _bind_problem(self._settings.host, self._port):  # noqa: ASYNC110
                await asyncio.sleep(BIND_S)
            self._listening, self._role = await self._listen(role), role
        finally:
            if freeing:
                await asyncio.wait([freeing])
        log.info(_SAID[role], port=self._port, tls=self._certificates is not None)

    async def _listen(self, role: _Role) -> _Serving | Door:
        if role is _Role.FOLLOWS:
            tls = self._certificates.context() if self._certificates else None
            try:
                return await Door.start(self._settings.host, self._port, tls)
            except OSError as error:
                raise _cannot_bind(self._settings.host, self._port) from error
        serving, self._port = await _Serving.start(
            self._settings.host,
            self._port,
            Guard(self._service, self._settings.deadline_s, self._calls),
            self._certificates,
            self._options if role is _Role.LEADS else (*self._options, *TURNING),
        )
        return serving


class _Serving:
    """One run of the server, from binding the port to closing it."""

    def __init__(self, guard: Guard, options: Sequence[tuple[str, int]]) -> None:
        self._guard = guard
        self._health = health_aio.HealthServicer()
        self._server = grpc.aio.server(options=options, maximum_concurrent_rpcs=MAX_CALLS)
        add_ExternalScalerServicer_to_server(guard, self._server)  # type: ignore[no-untyped-call]
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection(
            (SERVICE, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME), self._server
        )

    @classmethod
    async def start(
        cls,
        host: str,
        port: int,
        guard: Guard,
        certificates: RotatingCertificates | None,
        options: Sequence[tuple[str, int]],
    ) -> tuple[_Serving, int]:
        """Bind and serve; return the bound port too. Raises CannotServe."""
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        serving = cls(guard, options)
        try:
            if certificates:
                bound = serving._server.add_secure_port(address, certificates.credentials())
            else:
                bound = serving._server.add_insecure_port(address)
        except RuntimeError as error:  # gRPC says only that it failed
            await serving._server.stop(None)
            raise _cannot_bind(host, port) from error
        try:
            await serving._server.start()
            for name in ("", SERVICE):
                await serving._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        except BaseException:  # cancelled, say: nobody else knows of the bound port yet
            await serving._server.stop(None)
            raise
        return serving, bound

    async def stop(self, grace_s: float) -> None:
        """Let what is under way finish for `grace_s` seconds, then refuse new calls and end the rest.

        Calls are answered until none is under way. To refuse them from the start would close each connection with its
        last answer, and lose the answers that its peer has yet to read.
        """
        end_s = asyncio.get_running_loop().time() + grace_s
        await self._health.enter_graceful_shutdown()
        self._guard.end_streams()
        await self._guard.finished(grace_s)
        await asyncio.sleep(SETTLE_S)
        await self._server.stop(max(end_s - asyncio.get_running_loop().time(), 0.0))


def server_options(keepalive_s: float = KEEPALIVE_S) -> tuple[tuple[str, int], ...]:
    """Return the options of the server, with pings this often."""
    every_ms = round(keepalive_s * 1000)
    return (
        *OPTIONS,
        ("grpc.keepalive_time_ms", every_ms),
        ("grpc.keepalive_timeout_ms", every_ms // 3),
        ("grpc.http2.ping_timeout_ms", every_ms // 3),  # what gRPC goes by in fact; 60 s without it
    )


def _cannot_bind(host: str, port: int) -> CannotServe:
    return CannotServe(f"gRPC port {port} on {host}: {_bind_problem(host, port) or 'could not be bound'}")


def _bind_problem(host: str, port: int) -> str:
    """Say why a port cannot be bound, by binding it; "": it can."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        return str(error.strerror or error)
    return ""
