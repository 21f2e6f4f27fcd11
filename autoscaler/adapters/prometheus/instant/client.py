"""One server that speaks the Prometheus query API, asked over HTTP. Which queries, and what they mean, is elsewhere.

Answers are asked for uncompressed: an answer of 80,000 series is 8 MB, and to inflate it costs as much as to decode it.
Redirects are not followed and proxies of the environment are not used, so a token goes where the settings say.
"""

from __future__ import annotations

import asyncio
import os
from http import HTTPStatus
from types import TracebackType
from typing import NamedTuple, Self

import aiohttp
from yarl import URL

from autoscaler.adapters.prometheus.credentials import CredentialError, Credentials
from autoscaler.adapters.prometheus.decode import UnreadableAnswer, Vector, clean, decode_error, decode_vector
from autoscaler.adapters.prometheus.managed_backends import advice
from autoscaler.adapters.prometheus.promql.matchers import narrow
from autoscaler.config.settings import PrometheusSettings
from autoscaler.ports import Clock

IN_FLIGHT = 4  # queries at once; Prometheus runs 20 for all its users, and each answer waits in memory to be decoded
MAX_ANSWER_BYTES = 64 << 20  # 500,000 series
MAX_REFUSAL_BYTES = 8 << 10


class QueryFailed(Exception):
    """A query brought no vector. The message names the server, its status and what it said, and holds no secret."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status  # of HTTP; None: no answer


class Answer(NamedTuple):
    """A vector, and when it was asked for and received on the clock of the tick."""

    vector: Vector
    sent_s: float
    received_s: float


class PrometheusClient:
    """Instant queries to one server: `async with PrometheusClient(settings, clock) as client`."""

    def __init__(self, settings: PrometheusSettings, clock: Clock, *, max_answer_bytes: int = MAX_ANSWER_BYTES) -> None:
        """Raises ValueError where URL, headers or credentials cannot be used, without repeating a secret."""
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
        self._url = (url / "api/v1/query").with_query(url.query)
        self.name = str(self._url.with_user(None).with_query(None))  # for messages: a query may hold a key
        self._headers = {"Accept": "application/json", "Accept-Encoding": "identity", **dict(settings.headers)}
        self._credentials = Credentials(settings, url.user is not None or url.password is not None)
        self._timeout_s = settings.timeout_s
        self._selector = settings.selector
        self._max_answer_bytes = max_answer_bytes
        self._clock = clock
        self._places = asyncio.Semaphore(IN_FLIGHT)
        self._secrets = tuple(filter(None, [url.password]))  # that were sent: an answer may repeat them
        self._session: aiohttp.ClientSession | None = None

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

    async def query(self, expression: str, at_s: float | None = None, timeout_s: float | None = None) -> Answer:
        """Ask for an instant vector, at a Unix time by the server's clock, or at the server's own now.

        timeout_s: how long the caller can wait; it shortens the time-out of the settings and never lengthens it.
        Raises QueryFailed, and nothing else but cancellation.
        """
        wait_s = min(self._timeout_s, timeout_s if timeout_s is not None else self._timeout_s)
        queued = self._places.locked()
        try:
            async with asyncio.timeout(wait_s), self._places:
                sent_s = self._clock.now_s()
                body = await self._ask(expression, at_s, wait_s)
                received_s = self._clock.now_s()
        except TimeoutError as error:
            limit = f"within {wait_s:g} s"
            if wait_s < self._timeout_s:
                # Without the number: what is left differs from query to query, and nobody has set it.
                limit = f"within the time left for all queries, at most {self._timeout_s:g} s"
            limit += ", in which it also waited for earlier queries" if queued else ""
            raise QueryFailed(f"{self.name}: no answer {limit}") from error
        except CredentialError as error:
            raise QueryFailed(f"{self.name}: not queried: {clean(str(error))}") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise QueryFailed(f"{self.name}: {self._harmless(error)}") from error
        try:
            return Answer(decode_vector(body), sent_s, received_s)
        except UnreadableAnswer as error:
            raise QueryFailed(f"{self.name}: HTTP 200, but {self._hide(str(error))}", HTTPStatus.OK) from error

    async def _ask(self, expression: str, at_s: float | None, wait_s: float) -> bytes:
        if self._session is None:
            raise QueryFailed(f"{self.name}: the client is not open")
        # nocache: VictoriaMetrics else moves a query for now 30 s into the past. Others ignore the parameter.
        form = {
            "query": narrow(expression, self._selector),
            "timeout": f"{max(round(wait_s * 1000), 1)}ms",
            "nocache": "1",
        }
        if at_s is not None:
            form["time"] = f"{at_s:.3f}"
        headers = dict(self._headers)
        if authorization := self._credentials.authorization():
            headers["Authorization"] = authorization
            # The last two: one may change while an answer to the other is on its way.
            self._secrets = tuple(dict.fromkeys((authorization.partition(" ")[2], *self._secrets)))[:2]
        async with self._session.post(
            self._url, data=form, headers=headers, ssl=self._credentials.context(), allow_redirects=False
        ) as response:
            if response.status == HTTPStatus.OK:
                body = await _read(response, self._max_answer_bytes + 1)
                if len(body) > self._max_answer_bytes:
                    raise QueryFailed(
                        f"{self.name}: the answer is larger than the {self._max_answer_bytes} bytes allowed", 200
                    )
                return body
            said = decode_error((await _read(response, MAX_REFUSAL_BYTES))[:MAX_REFUSAL_BYTES])
            if where := response.headers.get("Location"):
                said = f"redirects are not followed; it points to {clean(where.partition('?')[0])}"
            said = (self._hide(said) or "no reason given") + advice(self._url.host, response.status)
            raise QueryFailed(
                f"{self.name}: HTTP {response.status} {clean(response.reason or '')}: {said}", response.status
            )

    def _hide(self, said: str) -> str:
        for secret in self._secrets:
            said = said.replace(secret, "***")
        return said

    @staticmethod
    def _harmless(error: Exception) -> str:
        """Word a failed connection. The library's own text may repeat the URL with its password and query."""
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


async def _read(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """Read the body; stop once more than `limit` bytes came. Counts bytes as they are after decompression."""
    if (response.content_length or 0) > limit:
        return bytes(limit)
    parts, size = [], 0
    async for part in response.content.iter_any():
        parts.append(part)
        size += len(part)
        if size >= limit:
            break
    return b"".join(parts)
