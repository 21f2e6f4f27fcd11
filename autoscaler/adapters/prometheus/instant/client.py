"""HTTP client for instant queries to one server with the Prometheus query API.

Responses are requested uncompressed: one of 80,000 series is 8 MB, and inflating it costs as much as decoding it.
Redirects are not followed and proxies of the environment are not used, so a token only goes to the configured server.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping
from http import HTTPStatus
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

import aiohttp
import msgspec
from yarl import URL

from autoscaler.adapters.prometheus.credentials import CredentialError, Credentials
from autoscaler.adapters.prometheus.crowded_answers import AnswerBytes, CrowdedNamespaces, describe_left_out
from autoscaler.adapters.prometheus.decode import (
    LabelLists,
    UnreadableAnswer,
    Vector,
    clean,
    decode_error,
    decode_vector,
)
from autoscaler.adapters.prometheus.managed_backends import advice
from autoscaler.adapters.prometheus.promql.matchers import Place, add_matchers, leave_out
from autoscaler.config.findings import UNREADABLE
from autoscaler.config.settings import PrometheusSettings
from autoscaler.ports import Clock

IN_FLIGHT = 4  # concurrent queries; Prometheus runs 20 for all its users, and responses use memory until decoded
MAX_ANSWER_BYTES = 64 << 20  # 500,000 series
MAX_LOOKED_THROUGH = 4  # times as many bytes are read of a longer answer, for the namespaces that fill it
BLOCK_BYTES = 1 << 20  # looked through before others have a turn
MAX_REFUSAL_BYTES = 8 << 10
MAX_RETRY_AFTER_S = 60.0  # longer pauses that a server asks for are cut: its load may have passed
BUSY = (
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
)


Data = TypeVar("Data")


class _AnyAnswer(msgspec.Struct):
    data: Any


class QueryFailed(Exception):
    """A query returned no vector. The message has the server, its status and its error, and no secret."""

    def __init__(self, message: str, status: int | None = None, *, disconnected: bool = False) -> None:
        super().__init__(message)
        self.status = status  # HTTP status; None if there was no response
        self.may_pass = disconnected or status in BUSY  # a second try may be answered


class _AnswerTooLong(QueryFailed):
    def __init__(self, message: str, content: AnswerBytes) -> None:
        super().__init__(message, HTTPStatus.OK)
        self.content = content


class VectorAnswer(NamedTuple):
    """A vector, and the times of request and response on the clock of the tick."""

    vector: Vector
    sent_s: float
    received_s: float
    left_out: str = ""  # which crowded namespaces it lacks, and why


class PrometheusClient:
    """Instant queries to one server: `async with PrometheusClient(settings, clock) as client`."""

    def __init__(self, settings: PrometheusSettings, clock: Clock, *, max_answer_bytes: int = MAX_ANSWER_BYTES) -> None:
        """Raises ValueError if URL, headers or credentials cannot be used; the message has no secret."""
        try:
            url = URL(settings.url)
        except ValueError:
            url = URL()
        if not url.host:
            raise ValueError("prometheus: the URL has no host; it has the form https://host:9090/prefix")
        for name, value in settings.headers:
            if not name.isascii() or not name.replace("-", "").replace("_", "").isalnum():
                raise ValueError(f"prometheus: {clean(name)!r} is not a valid header name")
            if not value.isprintable() or not value.isascii():
                raise ValueError(f"prometheus: the value of header {name} has characters that a header cannot carry")
        self._api = (url / "api/v1/").with_query(url.query)
        # For messages; a query string may contain a key.
        self.name = str((url / "api/v1/query").with_user(None).with_query(None))
        self._headers = {"Accept": "application/json", "Accept-Encoding": "identity", **dict(settings.headers)}
        self._credentials = Credentials(settings, url.user is not None or url.password is not None)
        self._timeout_s = settings.timeout_s
        self._selector = settings.selector
        self._max_answer_bytes = max_answer_bytes
        self._crowded = CrowdedNamespaces()
        self._clock = clock
        self._slots = asyncio.Semaphore(IN_FLIGHT)
        self._labels = LabelLists()
        self._secrets = tuple(filter(None, [url.password]))  # secrets that a response may repeat
        self._session: aiohttp.ClientSession | None = None
        self._paused_until_s = 0.0  # time of the event loop until which the server asked to wait

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=IN_FLIGHT),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def query(
        self, expression: str, at_s: float | None = None, timeout_s: float | None = None, *, is_ours: bool = True
    ) -> VectorAnswer:
        """Query an instant vector, at a Unix time by the server's clock, or at the server's own now.

        If the answer is too long, it is asked for again without the namespaces that fill it.
        timeout_s: how long the caller can wait; it can only shorten the timeout of the settings.
        is_ours: False: a tenant may have written the query, so its answer may name any namespace.
        Raises QueryFailed, and no other exception except cancellation.
        """
        now_s = asyncio.get_running_loop().time
        wait_s = min(self._timeout_s, timeout_s if timeout_s is not None else self._timeout_s)
        until_s = now_s() + wait_s
        left_out = self._crowded.current(now_s())
        try:
            return await self._query_without(left_out, expression, at_s, wait_s)
        except _AnswerTooLong as error:
            if not is_ours:
                raise
            answer: VectorAnswer | None = None
            for place, crowded in enumerate(error.content.crowds(self._max_answer_bytes // 2)):
                if place == 0 and error.content.has_others(crowded):
                    self._crowded.add(crowded, now_s())  # also if there is no time to ask again
                if until_s <= now_s():
                    break
                with contextlib.suppress(_AnswerTooLong):
                    answer = await self._query_without({**left_out, **crowded}, expression, at_s, until_s - now_s())
                if answer is not None and answer.vector.labels:
                    if place == 0:  # by others a tenant may name anybody
                        self._crowded.add(crowded, now_s())
                    break  # nothing is left where one collector tells of all: the next label tells them apart
            if answer is None:
                raise
            return answer

    async def _query_without(
        self, left_out: Mapping[Place, int], expression: str, at_s: float | None, wait_s: float
    ) -> VectorAnswer:
        """Query an instant vector without the series of some namespaces. Raises QueryFailed."""
        matchers = ",".join(filter(None, (self._selector, leave_out(left_out))))
        # Without nocache, VictoriaMetrics moves a query for now 30 s into the past. Others ignore it.
        form = {
            "query": add_matchers(expression, matchers),
            "timeout": f"{max(round(wait_s * 1000), 1)}ms",
            "nocache": "1",
        }
        if at_s is not None:
            form["time"] = f"{at_s:.3f}"
        body, sent_s, received_s = await self._ask("POST", "query", form, wait_s)
        said = describe_left_out(left_out, self._max_answer_bytes)
        try:
            return VectorAnswer(decode_vector(body, self._labels), sent_s, received_s, said)
        except UnreadableAnswer as error:
            raise QueryFailed(f"{self.name}: HTTP 200, but {self._hide(str(error))}", HTTPStatus.OK) from error

    async def series(self, selector: str, start_s: float, end_s: float) -> list[dict[str, str]]:
        """Return the label sets of a selector between two Unix times. Raises QueryFailed."""
        form = {"match[]": add_matchers(selector, self._selector), "start": f"{start_s:.0f}", "end": f"{end_s:.0f}"}
        return self._data(await self._ask("POST", "series", form, self._timeout_s), list[dict[str, str]])

    async def metric_names(self, start_s: float, end_s: float) -> list[str]:
        """Return the names of all metrics that had samples between two Unix times. Raises QueryFailed."""
        form = {"start": f"{start_s:.0f}", "end": f"{end_s:.0f}"}
        if self._selector:
            form["match[]"] = f"{{{self._selector}}}"
        return self._data(await self._ask("GET", "label/__name__/values", form, self._timeout_s), list[str])

    def _data(self, answer: tuple[bytes, float, float], kind: type[Data]) -> Data:
        try:
            return msgspec.convert(msgspec.json.decode(answer[0], type=_AnyAnswer).data, kind)
        except UNREADABLE as error:
            raise QueryFailed(f"{self.name}: HTTP 200, but not an answer of the query API", HTTPStatus.OK) from error

    async def _ask(self, method: str, endpoint: str, form: dict[str, str], wait_s: float) -> tuple[bytes, float, float]:
        """Return the body of an answer, and the times of request and response. Raises QueryFailed."""
        queued = self._slots.locked()
        now_s = asyncio.get_running_loop().time
        if self._paused_until_s - now_s() >= wait_s:
            raise QueryFailed(f"{self.name}: not queried: the server asked to wait (Retry-After)")
        try:
            async with asyncio.timeout(wait_s), self._slots:
                await asyncio.sleep(max(self._paused_until_s - now_s(), 0.0))
                sent_s = self._clock.now_s()
                body = await self._send(method, endpoint, form)
                return body, sent_s, self._clock.now_s()
        except TimeoutError as error:
            limit = f"within {wait_s:g} s"
            if wait_s < self._timeout_s:
                # The remaining time differs between queries and is not a setting, so it is not named.
                limit = f"within the time left for all queries, at most {self._timeout_s:g} s"
            limit += ", in which it also waited for earlier queries" if queued else ""
            raise QueryFailed(f"{self.name}: no answer {limit}") from error
        except CredentialError as error:
            raise QueryFailed(f"{self.name}: not queried: {clean(str(error))}") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise QueryFailed(f"{self.name}: {self._describe_error(error)}", disconnected=True) from error

    async def _send(self, method: str, endpoint: str, form: dict[str, str]) -> bytes:
        if self._session is None:
            raise QueryFailed(f"{self.name}: the client is not open")
        headers = dict(self._headers)
        if authorization := self._credentials.authorization():
            headers["Authorization"] = authorization
            # Keep the last two: the secret may change while a response is under way.
            self._secrets = tuple(dict.fromkeys((authorization.partition(" ")[2], *self._secrets)))[:2]
        url = (self._api / endpoint).with_query(self._api.query)
        url, data = (url, form) if method == "POST" else (url.update_query(form), None)
        async with self._session.request(
            method, url, data=data, headers=headers, ssl=self._credentials.context(), allow_redirects=False
        ) as response:
            if response.status == HTTPStatus.OK:
                body = await _read(response, self._max_answer_bytes + 1)
                if len(body) <= self._max_answer_bytes:
                    return body
                content = await self._look_through(response, body)
                text = f"{self.name}: the answer is larger than the {self._max_answer_bytes} bytes allowed"
                raise _AnswerTooLong(text, content)
            if response.status in BUSY:
                pause_s = min(_seconds(response.headers.get("Retry-After", "")), MAX_RETRY_AFTER_S)
                self._paused_until_s = max(self._paused_until_s, asyncio.get_running_loop().time() + pause_s)
            reason = decode_error((await _read(response, MAX_REFUSAL_BYTES))[:MAX_REFUSAL_BYTES])
            if where := response.headers.get("Location"):
                reason = f"redirects are not followed; it points to {clean(where.partition('?')[0])}"
            reason = (self._hide(reason) or "no reason given") + advice(self._api.host, response.status)
            raise QueryFailed(
                f"{self.name}: HTTP {response.status} {clean(response.reason or '')}: {reason}", response.status
            )

    async def _look_through(self, response: aiohttp.ClientResponse, body: bytes) -> AnswerBytes:
        """Read on for a while, and count what the answer consists of. body: what is read already."""
        content, left = AnswerBytes(), MAX_LOOKED_THROUGH * self._max_answer_bytes
        for begin in range(0, len(body), BLOCK_BYTES):
            content.add(body[begin : begin + BLOCK_BYTES])
            await asyncio.sleep(0)
        with contextlib.suppress(TimeoutError, aiohttp.ClientError):
            async with asyncio.timeout(self._timeout_s / 4):
                async for part in response.content.iter_any():
                    content.add(part)
                    left -= len(part)
                    if left <= 0:
                        break
        return content

    def _hide(self, reason: str) -> str:
        for secret in self._secrets:
            reason = reason.replace(secret, "***")
        return reason

    @staticmethod
    def _describe_error(error: Exception) -> str:
        """Describe a failed connection. The text of the library may contain the URL with password and query."""
        match error:
            case aiohttp.ClientConnectorCertificateError():
                return f"its certificate is not trusted: {clean(str(error.certificate_error))}"
            case aiohttp.ClientConnectorError():
                return f"no connection: {clean(str(error.os_error))}"
            case aiohttp.ServerDisconnectedError():
                return "it closed the connection without an answer"
            case aiohttp.ClientPayloadError():
                return "it closed the connection in the middle of the answer"
            case aiohttp.ClientResponseError():
                return "not an HTTP answer; is it another server's port?"
            case OSError(errno=number):
                return f"the connection broke: {os.strerror(number).lower() if number else 'no reason known'}"
            case _:
                return type(error).__name__


def _seconds(retry_after: str) -> float:
    """Return the seconds of a Retry-After header; 0 for none. A date counts as none: the server's clock may differ."""
    return float(retry_after) if retry_after.isascii() and retry_after.isdecimal() and len(retry_after) < 10 else 0.0


async def _read(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """Read the body up to `limit` bytes, counted after decompression."""
    parts, size = [], 0
    async for part in response.content.iter_any():
        parts.append(part)
        size += len(part)
        if size >= limit:
            break
    return b"".join(parts)
