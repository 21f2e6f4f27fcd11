"""The HTTP server: routes, query parameters, headers of every answer. GET and HEAD only; read-only.

/                                  the page
/healthz                           200 while the event loop runs
/readyz                            200 while the last successful tick is recent, else 503; detail as JSON
/metrics                           Prometheus or OpenMetrics text
/api/v1/workloads                  list: ?q= ?sort= ?limit= ?offset=
/api/v1/workloads/NAMESPACE/NAME   explanation and recent history: ?kind= ?since=
/api/v1/node-groups                the accelerators that there are, and who holds them
/api/v1/gpu-use                    what GPUs were used for since the process began: ?by=
/api/v1/quotas                     quotas of GPUs, and what is borrowed and lent
/api/v1/weights                    the weights of models: which nodes hold them, should hold them, or cannot
/api/v1/record/NAMESPACE/NAME      recorded past, where there is a record: ?kind= ?hours=
/report                            the report of the record, or how to get one
/api/v1/stream                     server-sent events, see `stream`
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable
from typing import Any, Self

import msgspec
import numpy as np
import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong

from autoscaler.adapters.web.answers import (
    HEADERS,
    Handler,
    Query,
    add_headers,
    from_memory,
    json_answer,
    names,
    plain_errors,
    short,
    static_file,
    too_busy,
)
from autoscaler.adapters.web.dashboard import Dashboard
from autoscaler.adapters.web.gpu_use import BY
from autoscaler.adapters.web.metrics import Metrics
from autoscaler.adapters.web.node_groups import rows
from autoscaler.adapters.web.quotas import rows as quota_rows
from autoscaler.adapters.web.readiness import Readiness
from autoscaler.adapters.web.report_page import ReportPage
from autoscaler.adapters.web.response_cache import Body, Busy, ResponseCache
from autoscaler.adapters.web.stream import Stream, write
from autoscaler.adapters.web.table import SORTABLE, Table
from autoscaler.adapters.web.weights import rows as weights_rows
from autoscaler.adapters.web.weights import summary as weights_summary
from autoscaler.config.settings import HttpSettings
from autoscaler.http.listener import ClientConnection, Listener
from autoscaler.ports import Unavailable

MAX_CONNECTIONS = 512
MAX_ANSWERS = 128  # in progress at once, without streams and probes; the kubelet's probes need free connections
ANSWER_S = 30.0  # for one answer, from the request to its last byte
FAULTS_S = 60.0  # at least this long between two log lines of unexpected errors
PROBES = ("/healthz", "/readyz")
STREAM = "/api/v1/stream"
MAX_HOURS = 366 * 24
MAX_LIMIT = 1000  # workloads in one answer
DEFAULT_LIMIT = 100
MAX_REQUEST_LINE = 4096
IDLE_S = 75.0  # a connection without a complete request is closed after this time
FILES = {
    "/": ("index.html", "text/html"),
    "/static/app.js": ("app.js", "text/javascript"),
    "/static/ask.js": ("ask.js", "text/javascript"),
    "/static/chart.js": ("chart.js", "text/javascript"),
    "/static/detail.js": ("detail.js", "text/javascript"),
    "/static/format.js": ("format.js", "text/javascript"),
    "/static/folded.js": ("folded.js", "text/javascript"),
    "/static/gpu_use.js": ("gpu_use.js", "text/javascript"),
    "/static/groups.js": ("groups.js", "text/javascript"),
    "/static/list.js": ("list.js", "text/javascript"),
    "/static/quotas.js": ("quotas.js", "text/javascript"),
    "/static/weights.js": ("weights.js", "text/javascript"),
    "/static/style.css": ("style.css", "text/css"),
    "/static/icon.svg": ("icon.svg", "image/svg+xml"),
}
log = structlog.get_logger(__name__)


class HttpServer:
    """Serves while its context is open.

    mode: shown in the page's badge: direct, keda, dry-run, demo. heartbeat_s: longest silence of a stream.
    write_deadline_s: time limit for a client to read a part of an answer. answer_s: for the whole answer, streams
    excepted. Raises CannotServe on entering if the port is in use or the address is not local.
    """

    def __init__(
        self,
        settings: HttpSettings,
        *,
        dashboard: Dashboard,
        metrics: Metrics,
        readiness: Readiness,
        mode: str,
        timeline: Callable[[str, str, str, float], dict[str, Any]] | None = None,
        report: Callable[[], str] | None = None,
        heartbeat_s: float = 15.0,
        write_deadline_s: float = 10.0,
        answer_s: float = ANSWER_S,
    ) -> None:
        self._settings = settings
        self._dashboard = dashboard
        self._metrics = metrics
        self._readiness = readiness
        self._mode = mode
        self._timeline, self._reading_record = timeline, False
        self._report = ReportPage(report)
        self._write_deadline_s = write_deadline_s
        self._answer_s = answer_s
        self._answers = ResponseCache()
        self._under_way = 0  # requests that count towards MAX_ANSWERS
        self._fault_s, self._faults = -FAULTS_S, 0  # time of the last logged error, and how many were not logged since
        self._stream = Stream(dashboard, metrics.set_stream_clients, heartbeat_s, write_deadline_s)
        limits: dict[str, Any] = {"max_line_size": MAX_REQUEST_LINE, "max_field_size": MAX_REQUEST_LINE}
        self._listener = Listener(
            self._application(),
            (settings.host, settings.port),
            MAX_CONNECTIONS,
            connection=_Connection,
            keepalive_timeout=IDLE_S,
            **limits,
        )

    async def __aenter__(self) -> Self:
        await self._listener.__aenter__()
        return self

    async def __aexit__(self, *failure: object) -> None:
        self._listener.close()
        self._stream.close()
        self._answers.close()
        await self._listener.__aexit__(*failure)

    @property
    def port(self) -> int:
        """The bound port; differs from the settings if they say 0."""
        return self._listener.port

    @property
    def url(self) -> str:
        """Address of the page."""
        host = self._settings.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}/"

    @web.middleware
    async def _note_answering(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        with self._listener.answering(request):
            return await handler(request)

    @web.middleware
    async def _bound(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse requests beyond MAX_ANSWERS, and abort a client that does not read its answer in time."""
        if request.path == STREAM or request.path in PROBES:
            return await handler(request)
        if self._under_way >= MAX_ANSWERS:
            raise too_busy(f"{MAX_ANSWERS} answers are in progress already; no more are allowed")
        self._under_way += 1
        try:
            async with asyncio.timeout(self._answer_s):
                response = await handler(request)
                if isinstance(response, web.Response):
                    await response.prepare(request)
                    await response.write_eof()
                return response
        except Busy as busy:
            raise too_busy(str(busy)) from None
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
            raise ConnectionResetError(f"the client did not take the answer within {self._answer_s:g} s") from None
        finally:
            self._under_way -= 1

    @web.middleware
    async def _plain_faults(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer an unexpected error with one line of JSON, and log it at most once per FAULTS_S."""
        try:
            return await handler(request)
        except (web.HTTPException, ConnectionError):
            raise
        except Exception as error:
            now_s = asyncio.get_running_loop().time()
            if now_s - self._fault_s < FAULTS_S:
                self._faults += 1
            else:
                log.error("an answer failed", path=short(request.path), not_logged=self._faults, exc_info=error)
                self._fault_s, self._faults = now_s, 0
            return json_answer({"error": "an unexpected error; the log of the daemon has more"}, status=500)

    def _application(self) -> web.Application:
        # The first one is the outermost.
        middlewares = [self._note_answering, self._plain_faults, plain_errors, self._bound]
        app = web.Application(middlewares=middlewares, client_max_size=1)
        app.on_response_prepare.append(add_headers)
        app.router.add_get("/static/names.js", from_memory(names(), "text/javascript"))
        for path, (name, content_type) in FILES.items():
            app.router.add_get(path, from_memory(static_file(name), content_type))
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics_text)
        app.router.add_get("/api/v1/workloads", self._workloads)
        app.router.add_get("/api/v1/workloads/{namespace}/{name:.+}", self._workload)
        app.router.add_get("/api/v1/record/{namespace}/{name:.+}", self._recorded)
        app.router.add_get("/report", self._report_page)
        app.router.add_get("/api/v1/node-groups", self._node_groups)
        app.router.add_get("/api/v1/gpu-use", self._gpu_use)
        app.router.add_get("/api/v1/quotas", self._quotas)
        app.router.add_get("/api/v1/weights", self._weights)
        app.router.add_get(STREAM, self._follow, allow_head=False)
        return app

    async def _healthz(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        verdict = self._readiness.check()
        return json_answer({"mode": self._mode, **verdict.detail}, status=200 if verdict.ready else 503)

    async def _metrics_text(self, request: web.Request) -> web.StreamResponse:
        content_type, parts = self._metrics.render(request.headers.get("Accept", "")[:MAX_REQUEST_LINE])
        body = await self._answers.body(("metrics", content_type), self._metrics.ticks, lambda: parts)
        return await self._send(request, body, content_type)

    async def _shared_json(self, request: web.Request, key: Hashable, make: Callable[[], bytes]) -> web.StreamResponse:
        """Answer with JSON that is built once per tick, and again when the text about the tick's age changes."""

        async def parts() -> AsyncIterator[bytes]:
            yield make()

        table = self._dashboard.table()
        version = (table.number if table else None, self._readiness.stale())
        return await self._send(request, await self._answers.body(key, version, parts), "application/json")

    async def _send(self, request: web.Request, body: Body, content_type: str) -> web.StreamResponse:
        zips = "gzip" in request.headers.get("Accept-Encoding", "").lower()
        response = web.StreamResponse(headers={"Content-Type": content_type, "Vary": "Accept-Encoding"})
        if zips:
            response.headers["Content-Encoding"] = "gzip"
        response.content_length = len(body.zipped) if zips else body.unzipped_bytes
        await response.prepare(request)
        if request.method != "HEAD":
            for piece in body.pieces(unzipped=not zips):
                await write(request, response, piece, self._write_deadline_s)
        return response

    async def _workloads(self, request: web.Request) -> web.StreamResponse:
        query = Query(request, ("q", "sort", "limit", "offset"))
        text, field = query.text("q"), query.text("sort")
        descending = field.startswith("-")
        if (field := field.removeprefix("-")) not in (*SORTABLE, ""):
            raise query.wrong("sort", f"one of {', '.join(SORTABLE)}, with - in front for descending order")
        limit, offset = query.number("limit", DEFAULT_LIMIT, 1, MAX_LIMIT), query.number("offset", 0, 0, 10**9)

        key = "list", text, field, descending, limit, offset
        return await self._shared_json(request, key, lambda: self._list(text, field, descending, limit, offset))

    def _list(self, text: str, field: str, descending: bool, limit: int, offset: int) -> bytes:
        table = self._dashboard.table()
        if table is None:
            never = {"total": 0, "matched": 0, "limit": limit, "offset": offset, "workloads": []}
            return msgspec.json.encode(self._head(None) | never)
        rows = table.search(text) if text else np.arange(len(table))
        if field:
            rows = table.order(rows, field, descending)
        body = {
            "cost_per_hour": table.money,
            "total": len(table),
            "matched": len(rows),
            "limit": limit,
            "offset": offset,
            "workloads": table.rows(rows[offset : offset + limit]),
        }
        return msgspec.json.encode(self._head(table) | body)

    async def _workload(self, request: web.Request) -> web.StreamResponse:
        query = Query(request, ("kind", "since"))
        namespace = query.checked("namespace", request.match_info["namespace"])
        name = query.checked("name", request.match_info["name"])
        kind, since = query.text("kind"), query.number("since", -1, -1, 2**53)
        self._row(namespace, name, kind)  # 404 before waiting for a build
        key = "workload", namespace, name, kind, since
        return await self._shared_json(request, key, lambda: self._detail(namespace, name, kind, since))

    def _detail(self, namespace: str, name: str, kind: str, since: int) -> bytes:
        table, row = self._row(namespace, name, kind)
        return msgspec.json.encode(self._head(table) | self._dashboard.workload(row, since))

    async def _recorded(self, request: web.Request) -> web.Response:
        """Read a record in a thread, one at a time: others are told to try again."""
        query = Query(request, ("kind", "hours"))
        namespace = query.checked("namespace", request.match_info["namespace"])
        name = query.checked("name", request.match_info["name"])
        kind, hours = query.text("kind"), query.number("hours", 24, 1, MAX_HOURS)
        if self._timeline is None:
            raise web.HTTPNotFound(text="this daemon keeps no record; `--record DIR` lets it keep one")
        if self._reading_record:
            raise too_busy("a record is read already")
        self._reading_record = True
        try:
            return json_answer(await asyncio.to_thread(self._timeline, namespace, name, kind, hours))
        except (LookupError, Unavailable) as error:
            raise web.HTTPNotFound(text=str(error.args[0])) from None
        finally:
            self._reading_record = False

    async def _report_page(self, request: web.Request) -> web.Response:
        Query(request, ())
        return self._report.answer()

    async def _node_groups(self, request: web.Request) -> web.StreamResponse:
        Query(request, ())
        return await self._shared_json(request, "node groups", self._list_node_groups)

    def _list_node_groups(self) -> bytes:
        table, groups = self._dashboard.table(), self._dashboard.node_groups()
        listed = rows(groups, MAX_LIMIT) if groups is not None else []
        body = {"total": len(groups.groups) if groups is not None else 0, "node_groups": listed}
        return msgspec.json.encode(self._head(table) | body)

    async def _gpu_use(self, request: web.Request) -> web.StreamResponse:
        query = Query(request, ("by",))
        by = query.text("by") or "namespace"
        if by not in BY:
            raise query.wrong("by", f"one of {', '.join(BY)}")
        return await self._shared_json(request, ("gpu use", by), lambda: self._list_gpu_use(by))

    def _list_gpu_use(self, by: str) -> bytes:
        head = self._head(self._dashboard.table())
        return msgspec.json.encode(head | self._metrics.gpu_use.answer(by, MAX_LIMIT))

    async def _quotas(self, request: web.Request) -> web.StreamResponse:
        Query(request, ())
        return await self._shared_json(request, "quotas", self._list_quotas)

    def _list_quotas(self) -> bytes:
        quotas = self._dashboard.quotas()
        total = sum(len(each.quotas) for each in quotas)
        body = {"total": total, "quotas": quota_rows(quotas, MAX_LIMIT)}
        return msgspec.json.encode(self._head(self._dashboard.table()) | body)

    async def _weights(self, request: web.Request) -> web.StreamResponse:
        Query(request, ())
        return await self._shared_json(request, "weights", self._list_weights)

    def _list_weights(self) -> bytes:
        table, fleet = self._dashboard.table(), self._dashboard.fleet()
        listed = list(weights_rows(fleet, MAX_LIMIT)) if fleet is not None else []
        body = weights_summary(fleet.weights if fleet is not None else None) | {"weights": listed}
        return msgspec.json.encode(self._head(table) | body)

    def _row(self, namespace: str, name: str, kind: str) -> tuple[Table, int]:
        """Find a workload in the last tick. Raises web.HTTPNotFound, or web.HTTPBadRequest if several have the name."""
        table = self._dashboard.table()
        if table is None:
            raise web.HTTPNotFound(text=self._readiness.stale())
        rows = table.find(namespace, name)
        if len(rows) > 1 and not kind:
            several = f"several workloads are named {namespace}/{name}"
            raise web.HTTPBadRequest(text=f"{several}; state the kind of one: {', '.join(sorted(rows))}")
        row = rows.get(kind) if kind else next(iter(rows.values()), None)
        if row is None:
            raise web.HTTPNotFound(text=f"no workload {(kind + ' ') * bool(kind)}{namespace}/{name} in the last tick")
        return table, row

    def _head(self, table: Table | None) -> dict[str, Any]:
        """Return the fields that say which tick an answer is about."""
        return {
            "mode": self._mode,
            "tick": table.number if table else None,
            "wall_s": table.wall_s if table else None,
            "stale": self._readiness.stale(),
            "leading": bool(table and table.leading),
        }

    async def _follow(self, request: web.Request) -> web.StreamResponse:
        Query(request, ())
        return await self._stream.serve(request)


class _Connection(ClientConnection):
    """A connection whose protocol errors are answered and not logged."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if isinstance(exc, ConnectionError):  # the client has disconnected
            raise exc
        if not isinstance(exc, HttpProcessingError):
            return super().handle_error(request, status, exc, message)
        too_long = f"request line or header too long; allowed: at most {MAX_REQUEST_LINE} bytes"
        error = too_long if isinstance(exc, LineTooLong) else "not an HTTP request"
        response = json_answer({"error": error}, status=status, headers=HEADERS)
        response.force_close()
        return response
