"""The gRPC server: port, certificates, keepalive, health, reflection, and who serves when."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import grpc
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]
from grpc_health.v1.health import aio as health_aio  # type: ignore[import-untyped]
from grpc_reflection.v1alpha import reflection  # type: ignore[import-untyped]

from autoscaler.adapters.keda.guard import Guard
from autoscaler.adapters.keda.metrics import Calls
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
GRACE_S = 1.0  # for calls under way when the server stops
SETTLE_S = 0.1  # for answers to be read: a connection closed while its peer sends is reset, and what is unread is lost
FOLLOW_S = 0.25  # how soon a change of the leader is followed

KEEPALIVE_S = 30.0  # KEDA's client sends no pings, and a stream that idles would be dropped unseen on its way

OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.so_reuseport", 0),  # else a second process shares the port instead of hearing that it is taken
    ("grpc.max_receive_message_length", 256 << 10),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),  # a client that does ping is not sent away
    # KEDA opens all its streams at once where it finds a new leader. By default gRPC drops from the 1,000th on what has
    # not been taken up yet, before anything here sees or counts it.
    ("grpc.server.max_pending_requests", MAX_CALLS),
    ("grpc.server.max_pending_requests_hard_limit", MAX_CALLS),
)

log = structlog.get_logger(__name__)


class CannotServe(Exception):
    """The server cannot start: names the port or the certificate and what is wrong."""


class KedaServer:
    """Serves KEDA while this process leads.

    A follower closes the port instead of refusing calls. Behind one Service a connection then reaches the leader or
    is refused at once and tried again, where a follower that answers the spec and refuses the value would cost KEDA an
    event and a step towards its fallback on every call. Entering binds the port in any case, so that a wrong port or
    certificate is told at start by every replica.
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
        self._serving: _Serving | None = None
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
        await self._open()
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
        await self._close()

    @property
    def port(self) -> int:
        """The bound port, also where the settings say 0."""
        return self._port

    @property
    def serving(self) -> bool:
        """Whether the port is open."""
        return self._serving is not None

    @property
    def problem(self) -> str:
        """What an operator should know: a new certificate that was refused, a port that was lost; "": nothing."""
        return self._problem or (self._certificates.problem if self._certificates else "")

    async def _follow(self) -> None:
        while not self._ending:
            await asyncio.sleep(self._follow_s)
            try:
                if self._leadership.leading and not self._serving:
                    await self._open()
                    self._problem = ""
                elif self._serving and not self._leadership.leading:
                    await self._close()
            except CannotServe as error:  # the port was taken meanwhile; tried again
                self._tell(str(error))
            except Exception as error:  # a new leader that stops following would never serve: tried again as well
                self._tell(f"{type(error).__name__}: {error}", error)

    def _tell(self, problem: str, unexpected: Exception | None = None) -> None:
        """Log the first of a row of failures."""
        if not self._problem:
            log.error("cannot serve KEDA", problem=problem, exc_info=unexpected)
        self._problem = problem

    async def _open(self) -> None:
        self._serving, self._port = await _Serving.start(
            self._settings.host,
            self._port,
            Guard(self._service, self._settings.deadline_s, self._calls),
            self._certificates,
            self._options,
        )
        log.info("serving KEDA", port=self._port, tls=self._certificates is not None)

    async def _close(self) -> None:
        if self._serving:
            await self._serving.stop(self._grace_s)
            self._serving = None
            log.info("stopped serving KEDA", port=self._port)


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
            raise CannotServe(f"gRPC port {port} on {host}: {_bind_error(host, port)}") from error
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


def _bind_error(host: str, port: int) -> str:
    """Say why a port cannot be bound, by binding it once more."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen()
    except OSError as error:
        return str(error.strerror or error)
    return "could not be bound"
