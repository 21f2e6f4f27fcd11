"""The gRPC server: port, certificates, keepalive, health and reflection, and its role by leadership."""

from __future__ import annotations

import asyncio
import resource
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

from autoscaler.adapters.keda.goaway import GoAwayServer
from autoscaler.adapters.keda.metrics import Calls
from autoscaler.adapters.keda.middleware import Middleware
from autoscaler.adapters.keda.proto import externalscaler_pb2 as pb
from autoscaler.adapters.keda.proto.externalscaler_pb2_grpc import (
    ExternalScalerServicer,
    add_ExternalScalerServicer_to_server,
)
from autoscaler.adapters.keda.tls import RotatingCertificates
from autoscaler.config.settings import KedaSettings
from autoscaler.http.certificates import CertificateError
from autoscaler.ports import CannotServe, Leadership

SERVICE = pb.DESCRIPTOR.services_by_name["ExternalScaler"].full_name
MAX_CALLS = 32_768  # at once, including streams: two streams and a call for each of 10,000 ScaledObjects
CALL_BYTES = 28 << 10  # memory of an idle stream, measured with 12,000; the pod's memory limit allows for all
GRACE_S = 1.0  # for open calls when the server stops
SETTLE_S = 0.1  # for answers to be read: closing a connection while its peer sends resets it and loses them
CHECK_S = 0.25  # between two checks of the leadership
BIND_S = 0.005  # between two checks whether the previous server has freed the port
TURN_S = 1.0  # lifetime of a connection while no process leads, and then of its open calls

KEEPALIVE_S = 30.0  # KEDA's client sends no pings, so an idle stream could be dropped without notice

HANDSHAKE_S = 10.0  # that a peer has until its first frame
MAX_CONNECTIONS = 2_048  # KEDA opens some tens

OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.so_reuseport", 0),  # otherwise a second process would share the port instead of failing
    ("grpc.max_receive_message_length", 2 << 20),  # enough for any ScaledObject, so that its error is reported
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),  # clients may ping
    # KEDA opens all its streams at once when it finds a new leader. By default gRPC drops calls beyond 1,000 that have
    # not been accepted yet.
    ("grpc.server.max_pending_requests", MAX_CALLS),
    ("grpc.server.max_pending_requests_hard_limit", MAX_CALLS),
)

log = structlog.get_logger(__name__)


# By reconnecting, a client finds a new leader even if this process does not know it yet.
SHORT_LIVED = (
    ("grpc.max_connection_age_ms", round(TURN_S * 1000)),
    ("grpc.max_connection_age_grace_ms", round(TURN_S * 1000)),
)


class _Role(Enum):
    LEADER = auto()  # answers calls
    FOLLOWER = auto()  # sends connections to the leader
    NO_LEADER = auto()  # no process is known to lead: refuses calls, which KEDA's fallback counts


_LOG_EVENTS = {
    _Role.LEADER: "serving KEDA",
    _Role.FOLLOWER: "sending KEDA on to the leader",
    _Role.NO_LEADER: "refusing KEDA until a leader is known",
}


class KedaServer:
    """Answers KEDA while this process leads, and otherwise helps KEDA's client to find the leader.

    With a closed port the client would wait up to two minutes before it looks for a new leader. So the port is always
    open. While another process leads, each connection gets GOAWAY (`goaway`). Behind one Service the client then
    reaches the leader soon, and its calls wait for that.

    While no process leads, calls are refused with UNAVAILABLE, except for GetMetricSpec: KEDA's fallback counts failed
    calls only if that one is answered. Every replica binds the port at start, so a wrong port or certificate is
    reported at once.
    """

    def __init__(
        self,
        settings: KedaSettings,
        service: ExternalScalerServicer,
        leadership: Leadership,
        calls: Calls | None = None,
        grace_s: float = GRACE_S,
        keepalive_s: float = KEEPALIVE_S,
        check_s: float = CHECK_S,
        handshake_s: float = HANDSHAKE_S,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        """keepalive_s: a silent peer is pinged after this time, and disconnected after another third of it.

        check_s: time between two checks of the leadership. max_connections: further ones are closed at once. They never
        take more than a quarter of the open files of this process, which the cluster and the pods need.
        """
        self._settings = settings
        self._service = service
        self._leadership = leadership
        self._calls = calls or Calls()
        self._grace_s = grace_s
        self._check_s = check_s
        most = min(max_connections, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)
        self._options = (
            *server_options(keepalive_s),
            ("grpc.server_handshake_timeout_ms", round(handshake_s * 1000)),
            ("grpc.max_allowed_incoming_connections", most),
        )
        self._certificates: RotatingCertificates | None = None
        self._port = settings.port
        self._listening: _Serving | GoAwayServer | None = None
        self._role: _Role | None = None  # of the open port
        self._role_task: asyncio.Task[None] | None = None
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
        await self._take_port(_Role.LEADER if self._leadership.leading else _Role.NO_LEADER)
        self._role_task = asyncio.create_task(self._update_role(), name="keda-server")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._role_task:
            # Cancelling is not enough: gRPC's stop may swallow it (`asyncio.wait_for` before Python 3.12).
            self._ending = True
            self._role_task.cancel()
            await asyncio.wait([self._role_task])
        if self._listening:
            await self._listening.stop(self._grace_s)
            self._listening, self._role = None, None
            log.info("stopped serving KEDA", port=self._port)

    @property
    def port(self) -> int:
        """The bound port, even if the settings say 0."""
        return self._port

    @property
    def serving(self) -> bool:
        """Whether calls are answered."""
        return self._role is _Role.LEADER

    @property
    def problem(self) -> str:
        """A new certificate that was refused, or a port that was lost; "": no problem."""
        return self._problem or (self._certificates.problem if self._certificates else "")

    async def _update_role(self) -> None:
        while not self._ending:
            await asyncio.sleep(self._check_s)
            try:
                role = self._find_role()
                if role is not self._role:
                    await self._take_port(role)
                    self._problem = ""
            except CannotServe as error:  # another process has the port; the next check tries again
                self._set_problem(str(error))
            except Exception as error:  # a new leader must not stop trying to serve
                self._set_problem(f"{type(error).__name__}: {error}", error)

    def _set_problem(self, problem: str, unexpected: Exception | None = None) -> None:
        """Log the first of several failures in a row."""
        if not self._problem:
            log.error("cannot serve KEDA", problem=problem, exc_info=unexpected)
        self._problem = problem

    def _find_role(self) -> _Role:
        if self._leadership.leading:
            return _Role.LEADER
        return _Role.FOLLOWER if self._leadership.has_other_leader else _Role.NO_LEADER

    async def _take_port(self, role: _Role) -> None:
        """Open the port for a role as soon as the previous server has freed it. Raises CannotServe."""
        before, self._listening, self._role = self._listening, None, None
        freeing = asyncio.create_task(before.stop(self._grace_s), name="keda-port") if before else None
        try:
            for _ in range(2):
                await asyncio.sleep(0)  # this is enough to close a GoAwayServer
            while freeing and not freeing.done() and _bind_problem(self._settings.host, self._port):  # noqa: ASYNC110
                await asyncio.sleep(BIND_S)
            self._listening, self._role = await self._listen(role), role
        finally:
            if freeing:
                await asyncio.wait([freeing])
        log.info(_LOG_EVENTS[role], port=self._port, tls=self._certificates is not None)

    async def _listen(self, role: _Role) -> _Serving | GoAwayServer:
        if role is _Role.FOLLOWER:
            tls = self._certificates.context() if self._certificates else None
            try:
                return await GoAwayServer.start(self._settings.host, self._port, tls)
            except OSError as error:
                raise _cannot_bind(self._settings.host, self._port) from error
        serving, self._port = await _Serving.start(
            self._settings.host,
            self._port,
            Middleware(self._service, self._settings.deadline_s, self._calls),
            self._certificates,
            self._options if role is _Role.LEADER else (*self._options, *SHORT_LIVED),
        )
        return serving


class _Serving:
    """One gRPC server, from binding the port to closing it."""

    def __init__(self, middleware: Middleware, options: Sequence[tuple[str, int]]) -> None:
        self._middleware = middleware
        self._health = health_aio.HealthServicer()
        self._server = grpc.aio.server(options=options, maximum_concurrent_rpcs=MAX_CALLS)
        add_ExternalScalerServicer_to_server(middleware, self._server)  # type: ignore[no-untyped-call]
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection(
            (SERVICE, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME), self._server
        )

    @classmethod
    async def start(
        cls,
        host: str,
        port: int,
        middleware: Middleware,
        certificates: RotatingCertificates | None,
        options: Sequence[tuple[str, int]],
    ) -> tuple[_Serving, int]:
        """Bind and serve; return the bound port too. Raises CannotServe."""
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        serving = cls(middleware, options)
        try:
            if certificates:
                bound = serving._server.add_secure_port(address, certificates.credentials())
            else:
                bound = serving._server.add_insecure_port(address)
        except RuntimeError as error:  # gRPC does not tell the reason
            await serving._server.stop(None)
            raise _cannot_bind(host, port) from error
        try:
            await serving._server.start()
            for name in ("", SERVICE):
                await serving._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        except BaseException:  # for example cancelled: only this method knows the bound port
            await serving._server.stop(None)
            raise
        return serving, bound

    async def stop(self, grace_s: float) -> None:
        """Wait up to `grace_s` seconds for open calls, then refuse new calls and end the rest.

        New calls are answered until no call is open. Refusing them at once would close each connection after its last
        answer, and lose answers that the client has not read yet.
        """
        end_s = asyncio.get_running_loop().time() + grace_s
        await self._health.enter_graceful_shutdown()
        self._middleware.end_streams()
        await self._middleware.wait_finished(grace_s)
        await asyncio.sleep(SETTLE_S)
        await self._server.stop(max(end_s - asyncio.get_running_loop().time(), 0.0))


def server_options(keepalive_s: float = KEEPALIVE_S) -> tuple[tuple[str, int], ...]:
    """Return the options of the server, with a ping every `keepalive_s` seconds."""
    interval_ms = round(keepalive_s * 1000)
    return (
        *OPTIONS,
        ("grpc.keepalive_time_ms", interval_ms),
        ("grpc.keepalive_timeout_ms", interval_ms // 3),
        ("grpc.http2.ping_timeout_ms", interval_ms // 3),  # the option that gRPC really uses; its default is 60 s
    )


def _cannot_bind(host: str, port: int) -> CannotServe:
    return CannotServe(f"gRPC port {port} on {host}: {_bind_problem(host, port) or 'could not be bound'}")


def _bind_problem(host: str, port: int) -> str:
    """Try to bind a port, and return why that fails; "": it does not."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        return str(error.strerror or error)
    return ""
