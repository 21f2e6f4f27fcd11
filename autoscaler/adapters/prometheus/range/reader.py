"""Range queries through prometheus-api-client, bounded in time and size.

The library blocks, so it is used in a thread. It puts the query into the URL, which proxies limit to some kilobytes;
the session sends it as a form, unless the server accepts GET alone. The library drops warnings of the server, so a
partial answer cannot be recognized. Error messages contain no secrets.
"""

from __future__ import annotations

import asyncio
import io
import math
import re
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, TypeVar

import numpy as np
import requests
import urllib3
from prometheus_api_client import PrometheusConnect
from prometheus_api_client.exceptions import PrometheusApiClientException

from autoscaler.adapters.prometheus.credentials import CredentialError, Credentials
from autoscaler.adapters.prometheus.crowded_answers import AnswerBytes, describe_left_out
from autoscaler.adapters.prometheus.decode import clean
from autoscaler.adapters.prometheus.managed_backends import REFUSAL_STATUSES, advice
from autoscaler.adapters.prometheus.promql.matchers import Place, add_matchers, leave_out
from autoscaler.config.findings import UNREADABLE
from autoscaler.config.settings import PrometheusSettings
from autoscaler.core.table.columns import FloatColumn
from autoscaler.ports import Unavailable

MAX_SERIES = 20_000  # per response
MAX_BYTES = 128 << 20  # per response, after decompression
MAX_LOOKED_THROUGH = 2  # times as many bytes are read at most, for the namespaces that fill an answer
BLOCK_BYTES = 1 << 20

TOO_LARGE = frozenset({413, 422})
"""Statuses of a query that loads too many samples, or whose answer is too long."""

ONLY_GET = frozenset({HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED})
"""Statuses of a server, or a proxy in front of it, that answers GET alone."""

_STATUS = re.compile(r"^HTTP Status Code (\d{3})")
NO_ANSWER = "HTTP 200, but no answer to a range query"

Result = TypeVar("Result")
Rows = list[
    dict[str, Any]
]  # per series: "metric", its labels, and "values", float64[n, 2], Unix time and value, n >= 1


async def run_in_thread(function: Callable[..., Result], *arguments: Any) -> Result:
    """Call a blocking function in a daemon thread; after cancellation the thread is abandoned.

    With `asyncio.to_thread` the event loop waits for the thread at exit, so Ctrl-C would wait for a server.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()

    def finish(set_result: Callable[[Any], None], result: object) -> None:
        if not future.done():
            set_result(result)

    def work() -> None:
        try:
            outcome: tuple[Callable[[Any], None], object] = future.set_result, function(*arguments)
        except BaseException as error:  # raised at the await
            outcome = future.set_exception, error
        with suppress(RuntimeError):  # the event loop is closed
            loop.call_soon_threadsafe(finish, *outcome)

    threading.Thread(target=work, name="history", daemon=True).start()
    return await future


class RangeQueryFailed(Unavailable):
    """A range query failed."""

    def __init__(
        self, message: str, *, status: int = 0, too_large: bool = False, content: AnswerBytes | None = None
    ) -> None:
        """status: of HTTP; 0: none came. too_large: a query over less time, or for fewer series, may succeed.

        content: what fills an answer that is too long.
        """
        super().__init__(message)
        self.status = status
        self.too_large = too_large
        self.content = content


class NamespacesLeftOut(Unavailable):
    """A query was answered without the namespaces whose labels fill an answer."""


class RangeReader:
    """Runs range queries until a deadline. Not thread-safe."""

    def __init__(
        self,
        settings: PrometheusSettings,
        credentials: Credentials,
        deadline_s: float,
        most_bytes: int = MAX_BYTES,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """deadline_s: on the clock that `now_s` reads. most_bytes: of a response."""
        self._settings = settings
        self._deadline_s = deadline_s
        self._now_s = now_s
        self._most_bytes = most_bytes
        self._left_out: dict[Place, int] = {}
        self._secrets: list[str] = []
        session = _BoundedSession(deadline_s, most_bytes, now_s)
        session.trust_env = (
            False  # no proxy and no .netrc of the environment, so a token only goes to the configured server
        )
        session.max_redirects = 0
        tls = settings.tls
        session.verify = str(tls.ca) if tls.ca else True
        session.cert = (str(tls.cert), str(tls.key)) if tls.cert else None
        self._session = session
        self._credentials = credentials
        url = urllib3.util.parse_url(settings.url)
        self._host = url.host
        self.name = f"{url.scheme}://{url.netloc.rpartition('@')[2] if url.netloc else ''}{url.path or ''}"
        self._client = PrometheusConnect(
            url=settings.url.rstrip("/"),
            headers=dict(settings.headers),
            session=session,
            retry=urllib3.Retry(
                total=2,
                read=False,  # a slow server is not queried again
                respect_retry_after_header=False,  # it may be an hour
                backoff_factor=0.5,
                allowed_methods=None,
                status_forcelist=(429, 503, 504),
                raise_on_status=False,
            ),
            method="POST",
        )

    def query(self, expression: str, start_s: float, end_s: float, step_s: float, *, is_ours: bool = True) -> Rows:
        """Return the series of one range query. Raises Unavailable; its message has no secret.

        Namespaces whose labels alone fill an answer are left out from then on, see `left_out`.
        start_s, end_s: Unix times by the server's clock, in whole seconds.
        is_ours: False: a tenant may have written the query, so its answer may name any namespace.
        """
        span = start_s, end_s, step_s
        try:
            return self._query_without(self._left_out, expression, *span)
        except RangeQueryFailed as error:
            if error.content is None or not is_ours:
                raise
            rows: Rows | None = None
            for place, crowded in enumerate(error.content.crowds(self._most_bytes // 4)):
                try:
                    rows = self._query_without({**self._left_out, **crowded}, expression, *span)
                except RangeQueryFailed as failure:
                    if not failure.too_large:
                        raise
                if rows:
                    if place == 0:  # by others a tenant may name anybody
                        self._left_out |= crowded
                    break
            if rows is None:
                raise
            return rows

    @property
    def left_out(self) -> tuple[str, ...]:
        """Say which namespaces are left out, and why; (): none is."""
        said = describe_left_out(self._left_out, self._most_bytes)
        return (said,) if said else ()

    def _query_without(
        self, left_out: Mapping[Place, int], expression: str, start_s: float, end_s: float, step_s: float
    ) -> Rows:
        left_s = self._left_s()
        matchers = ",".join(filter(None, (self._settings.selector, leave_out(left_out))))
        try:
            self._authorize()
            rows = self._client.custom_query_range(
                add_matchers(expression, matchers),
                datetime.fromtimestamp(start_s, UTC),
                datetime.fromtimestamp(max(end_s, start_s), UTC),
                f"{step_s:g}",
                params={"timeout": f"{self._settings.timeout_s:g}s", "nocache": "1"},
                timeout=min(self._settings.timeout_s, left_s),
            )
        except requests.JSONDecodeError as error:
            raise Unavailable(f"{self.name}: {NO_ANSWER}") from error
        except (PrometheusApiClientException, requests.RequestException, CredentialError, OSError) as error:
            status = int(shown[1]) if (shown := _STATUS.search(str(error))) else 0
            slow = isinstance(error, (requests.Timeout, _ResponseTooLong))
            message = f"{self.name}: {self._describe_error(error)}"
            content = error.content if isinstance(error, _ResponseTooLong) else None
            too_large = slow or status in TOO_LARGE
            raise RangeQueryFailed(message, status=status, too_large=too_large, content=content) from error
        except (
            KeyError,
            TypeError,
            ValueError,
            RecursionError,
        ) as error:  # JSON of an unexpected shape, too deep or too long
            raise Unavailable(f"{self.name}: {NO_ANSWER}") from error
        if not isinstance(rows, list) or len(rows) > MAX_SERIES:
            found = f"{len(rows)} series" if isinstance(rows, list) else "no series"
            message = f"{self.name}: the answer has {found}; allowed: at most {MAX_SERIES}"
            raise RangeQueryFailed(message, too_large=isinstance(rows, list))
        if not all(isinstance(row, dict) and _has_labels(row) and isinstance(row.get("values"), list) for row in rows):
            raise Unavailable(f"{self.name}: {NO_ANSWER}")
        try:
            return [{**row, "values": _points(row["values"])} for row in rows]
        except ValueError as error:
            raise Unavailable(f"{self.name}: {NO_ANSWER}: {clean(str(error))}") from error

    def get(self, path: str, parameters: Mapping[str, str]) -> Any:
        """Return the JSON document at a path of the HTTP API. Raises Unavailable; its message has no secret."""
        left_s = self._left_s()
        try:
            self._authorize()
            response = self._session.get(
                self._settings.url.rstrip("/") + path,
                params=parameters,
                headers=self._client.headers,
                timeout=min(self._settings.timeout_s, left_s),
            )
            if response.status_code != HTTPStatus.OK:
                raise RangeQueryFailed(
                    f"{self.name}: HTTP {response.status_code} for {path}", status=response.status_code
                )
            return response.json()
        except (requests.RequestException, CredentialError, OSError) as error:
            raise Unavailable(f"{self.name}: {self._describe_error(error)}") from error
        except UNREADABLE as error:
            raise Unavailable(f"{self.name}: HTTP 200, but no JSON for {path}") from error

    def _left_s(self) -> float:
        left_s = self._deadline_s - self._now_s()
        if left_s <= 0:
            raise RangeQueryFailed(f"{self.name}: history was not read in time")
        return left_s

    def _authorize(self) -> None:
        if authorization := self._credentials.authorization():
            self._secrets = [authorization.partition(" ")[2]]
            self._client.headers = {**dict(self._settings.headers), "Authorization": authorization}

    def close(self) -> None:
        self._client.close()

    def _describe_error(self, error: Exception) -> str:
        """Describe a failure without the URL, which may contain a password, and without credentials."""
        match error:
            case _ResponseTooLong():
                return str(error)
            case requests.exceptions.InvalidHeader():
                return "a header that is given cannot be sent (not shown: it may be a secret)"
            case requests.Timeout():
                return f"no answer within {self._settings.timeout_s:g} s"
            case requests.exceptions.SSLError():
                return "its certificate is not trusted, or the TLS handshake failed"
            case requests.TooManyRedirects():
                return "redirects are not followed"
            case requests.ConnectionError():
                return "no connection"
        text = clean(_without_repr(str(error)) or type(error).__name__)
        for secret in filter(None, self._secrets):
            text = text.replace(secret, "***")
        refused = next((status for status in REFUSAL_STATUSES if f"Status Code {status:d}" in text), None)
        return text + (advice(self._host, refused) if refused else "")


def _without_repr(text: str) -> str:
    """Return an error without the marks of repr(), in which the library shows a body: (b'no such thing')."""
    before, _, body = text.partition("(b")
    end = body.rfind(f"{body[:1]})") if body[:1] in ("'", '"') else 0
    return f"{before}({body[1:end]}{body[end + 1 :]}" if end > 0 else text


def _has_labels(row: dict[str, Any]) -> bool:
    labels = row.get("metric")
    return isinstance(labels, dict) and all(isinstance(text, str) for text in labels.values())


def _points(values: list[Any]) -> FloatColumn:
    """Return the points of a series, float64[n, 2], time and value. Raises ValueError."""
    expected = "values of a series must be pairs of time and number"
    try:
        points = np.array(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{expected}: {error}") from error
    if points.shape[1:] != (2,) or not np.isfinite(points[:, 0]).all():
        raise ValueError(f"{expected}: found {values[0] if values else 'none'}")
    return points


class _ResponseTooLong(requests.RequestException):
    """The response is longer than allowed."""

    def __init__(self, message: str, content: AnswerBytes) -> None:
        super().__init__(message)
        self.content = content


class _BoundedSession(requests.Session):
    """Bounds the size and the time of each response, and the length of the URL, which the library does not."""

    def __init__(self, deadline_s: float, most_bytes: int, now_s: Callable[[], float]) -> None:
        super().__init__()
        self._deadline_s, self._most_bytes, self._now_s = deadline_s, most_bytes, now_s
        self._forms = True  # False: the server refused to be asked by POST

    def request(self, method: str, url: str, **kwargs: Any) -> requests.Response:  # type: ignore[override]
        if method != "POST":
            return self._ask(method, url, **kwargs)
        if self._forms:
            response = self._ask(method, url, data=kwargs["params"], **{**kwargs, "params": None})
            self._forms = response.status_code not in ONLY_GET
        return response if self._forms else self._ask("GET", url, **kwargs)

    def _ask(self, method: str, url: str, **kwargs: Any) -> requests.Response:
        until_s = min(self._deadline_s, self._now_s() + kwargs.get("timeout", math.inf))
        response = super().request(method, url, **{**kwargs, "stream": True})
        try:
            body = self._read(response.raw, until_s)
        except urllib3.exceptions.TimeoutError as error:
            raise requests.ReadTimeout from error
        except urllib3.exceptions.HTTPError as error:
            raise requests.ConnectionError from error
        finally:
            response.close()
        response.raw = urllib3.HTTPResponse(io.BytesIO(body), preload_content=False)
        return response

    def _read(self, raw: Any, until_s: float) -> bytes:
        parts: list[bytes] = []
        size = 0
        content: AnswerBytes | None = None
        while part := raw.read1(BLOCK_BYTES, decode_content=True):  # returns what has arrived
            size += len(part)
            if self._now_s() > until_s and content is None:
                raise requests.ReadTimeout
            if content is None and size > self._most_bytes:
                content = AnswerBytes()
                for each in parts:
                    content.add(each)
            if content is None:
                parts.append(part)
                continue
            content.add(part)
            if size > MAX_LOOKED_THROUGH * self._most_bytes or self._now_s() > until_s:
                break
        if content is not None:
            raise _ResponseTooLong(f"the answer is longer than {self._most_bytes:,} bytes", content)
        return b"".join(parts)
