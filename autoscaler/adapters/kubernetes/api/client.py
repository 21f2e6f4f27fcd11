"""Requests to one API server, with a deadline and a size limit for every answer.

kubernetes_asyncio handles configuration, credentials and TLS. It has no time-out of its own and reads answers of any
size, so every request goes through `Kube`.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import msgspec

from autoscaler.adapters.kubernetes.api.credentials import (
    INVALID_CONFIGURATION,
    CredentialsRefresher,
    Kubeconfig,
    ServiceAccount,
    describe_error,
    read_certificates,
)
from autoscaler.adapters.kubernetes.api.library import (
    SERVICE_HOST_ENV_NAME,
    ApiClient,
    ConfigException,
    Configuration,
    RESTClientObject,
)
from autoscaler.config.findings import UNREADABLE
from autoscaler.config.settings import KubeSettings
from autoscaler.ports import Unavailable

FIELD_MANAGER = "vllm-autoscaler"  # with the installation, the field manager of replica counts
MANAGER_LIMIT = 128  # characters, set by the API server
USER_AGENT = "vllm-autoscaler"
JSON = "application/json"
# Enough for 500 usual pods, and for any object: at most 1.5 MiB in etcd, and up to six times that as JSON (\u003c).
BODY_LIMIT_BYTES = 16 << 20
ERROR_LIMIT_BYTES = 64 << 10  # of the body of an error answer
MESSAGE_LIMIT = 300  # characters of a server's message in an error
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
MAX_NAMESPACE = 64
CREDENTIALS_AGE_S = 60.0  # credentials are read again after this time
CLOSE_S = 0.1  # TLS connections close in the background; the event loop may end right after `aclose`

Query = Sequence[tuple[str, str]]


def field_manager(installation: str) -> str:
    """Return the field manager of an installation, by which others see its writes; "": without installation."""
    name = f"{FIELD_MANAGER}/{installation}" if installation else FIELD_MANAGER
    if len(name) <= MANAGER_LIMIT:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    return f"{name[: MANAGER_LIMIT - 17]}-{digest}"


class ApiError(Unavailable):
    """The API server answered with an error, or did not answer (`status` 0)."""

    def __init__(self, request: str, status: int, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(f"{request}: {status or 'no answer'}: {message}")
        self.status = status
        self.message = message
        self.retry_after_s = retry_after_s


class TooLarge(ApiError):
    """The answer is larger than the limit."""


class Interrupted(ApiError):
    """A stream that had opened was silent for too long, or its connection broke."""


class _ApiStatus(msgspec.Struct):
    message: str = ""


class Kube:
    """Sends requests to an API server. `connect` finds the cluster."""

    def __init__(self, client: ApiClient, timeout_s: float, proxies: bool) -> None:
        """proxies: use HTTPS_PROXY and NO_PROXY."""
        self._client = client
        self._timeout_s = timeout_s
        self._proxies = proxies
        self._identity: dict[str, str] = {}  # headers of each request
        self._previous: RESTClientObject | None = None  # connected with certificates that have been replaced
        self._replace_session(client.rest_client)

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        settings: KubeSettings,
        account: Path = SERVICE_ACCOUNT,
        credentials_age_s: float = CREDENTIALS_AGE_S,
    ) -> AsyncIterator[Kube]:
        """Find the cluster like kubectl: in a pod its own cluster, otherwise the context of kubeconfig.

        Raises Unavailable if neither is configured. No request is sent, so a server that is down is no error here.
        """
        in_cluster = settings.context is None and SERVICE_HOST_ENV_NAME in os.environ
        configuration = Configuration()
        source = ServiceAccount(account) if in_cluster else Kubeconfig(settings.context, settings.timeout_s)
        try:
            await source.read(configuration)
            certificates = read_certificates(configuration)
            kube = cls._opened(configuration, settings.timeout_s, proxies=not in_cluster)
        except INVALID_CONFIGURATION as error:
            context = f" (context {settings.context})" if settings.context else ""
            raise Unavailable(f"no cluster: {source.place}{context} cannot be used: {describe_error(error)}") from error
        refresher = CredentialsRefresher(source, certificates, kube.reconnect, credentials_age_s)
        configuration.refresh_api_key_hook = refresher.refresh
        async with aclosing(kube):
            yield kube

    @classmethod
    @asynccontextmanager
    async def using(cls, configuration: Configuration, timeout_s: float, proxies: bool = False) -> AsyncIterator[Kube]:
        """Connect with a given configuration. proxies: use HTTPS_PROXY and NO_PROXY, like kubectl.

        Inside the cluster no proxy is used: an egress proxy for model downloads could block the API server.
        """
        async with aclosing(cls._opened(configuration, timeout_s, proxies)) as kube:
            yield kube

    @classmethod
    def _opened(cls, configuration: Configuration, timeout_s: float, proxies: bool) -> Kube:
        # 0 is no limit: watches keep connections open, and callers limit their own concurrent requests.
        configuration.connection_pool_maxsize = 0
        client = ApiClient(configuration)
        client.user_agent = USER_AGENT
        return cls(client, timeout_s, proxies)

    def impersonating(self, user: str) -> Kube:
        """Return the same connection, whose requests are made as another user. It closes with this one."""
        other = copy.copy(self)
        other._identity = {"Impersonate-User": user}
        return other

    async def reconnect(self) -> None:
        """Use the certificates that the configuration names now. Raises OSError for invalid ones, and changes nothing.

        Open requests continue: a watch would not notice a closed connection, and it ends by itself.
        """
        rest = RESTClientObject(self._client.configuration)
        self._replace_session(rest)
        if self._previous is not None:
            await self._previous.close()
        self._previous, self._client.rest_client = self._client.rest_client, rest

    async def aclose(self) -> None:
        if self._previous is not None:
            await self._previous.close()
        await self._client.close()
        await asyncio.sleep(CLOSE_S)

    def _replace_session(self, rest: RESTClientObject) -> None:
        """Replace the library's session, which always uses proxy variables and keeps cookies."""
        session = rest.pool_manager
        rest.pool_manager = aiohttp.ClientSession(
            connector=session.connector, trust_env=self._proxies, cookie_jar=aiohttp.DummyCookieJar()
        )
        session.detach()

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Query = (),
        content_type: str = JSON,
        accept: str = JSON,
        timeout_s: float | None = None,
    ) -> bytes:
        """Send one request and return the body, at most 16 MiB. Raises ApiError if it fails."""
        total_s = self._timeout_s if timeout_s is None else timeout_s
        timeout = aiohttp.ClientTimeout(total=total_s)
        request = f"{method} {path}"
        try:
            async with await self._send(method, path, body, query, content_type, accept, timeout) as response:
                if response.status >= 400:
                    raise await _error_of(request, response)
                return await _read(request, response, BODY_LIMIT_BYTES)
        except _NO_ANSWER as error:
            raise ApiError(request, 0, _describe(error, total_s)) from error

    @asynccontextmanager
    async def stream(
        self, path: str, *, query: Query, accept: str = JSON, silence_s: float
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Open a watch. Reading from it raises Interrupted after `silence_s` seconds without a byte."""
        timeout = aiohttp.ClientTimeout(
            total=None, connect=self._timeout_s, sock_connect=self._timeout_s, sock_read=silence_s
        )
        request, problem = f"watch {path}", ApiError
        try:
            async with await self._send("GET", path, None, query, JSON, accept, timeout) as response:
                if response.status >= 400:
                    raise await _error_of(request, response)
                problem = Interrupted
                yield response
        except _NO_ANSWER as error:
            raise problem(request, 0, _describe(error, silence_s)) from error

    async def _send(
        self,
        method: str,
        path: str,
        body: Any,
        query: Query,
        content_type: str,
        accept: str,
        limits: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        response: aiohttp.ClientResponse = await self._client.call_api(
            path,
            method,
            query_params=list(query),
            header_params={"Accept": accept, "Content-Type": content_type, **self._identity},
            body=body,
            auth_settings=["BearerToken"],
            _preload_content=False,
            _request_timeout=limits,
        )
        return response


_NO_ANSWER = (aiohttp.ClientError, TimeoutError, OSError, ConfigException, ValueError)


def own_namespace() -> str:
    """Return the namespace of the pod that this process runs in; "": it runs in none."""
    try:
        return (SERVICE_ACCOUNT / "namespace").read_text(encoding="utf-8", errors="replace")[:MAX_NAMESPACE].strip()
    except OSError:
        return ""


def object_path(root: str, namespace: str, plural: str, name: str = "", subresource: str = "") -> str:
    """Return the path of an object or collection, with quoted names. namespace: "" means all."""
    parts = [root]
    if namespace:
        parts += ["namespaces", quote(namespace, safe="")]
    parts += [plural, *(quote(part, safe="") for part in (name, subresource) if part)]
    return "/".join(parts)


async def _read(request: str, response: aiohttp.ClientResponse, limit_bytes: int) -> bytes:
    parts, size = [], 0
    async for part in response.content.iter_any():
        size += len(part)
        if size > limit_bytes:
            raise TooLarge(request, response.status, f"the answer is larger than {limit_bytes} bytes")
        parts.append(part)
    return b"".join(parts)


async def _error_of(request: str, response: aiohttp.ClientResponse) -> ApiError:
    """Return the error of an answer. The body may also be empty, or HTML from a proxy."""
    try:
        message = msgspec.json.decode(await _read(request, response, ERROR_LIMIT_BYTES), type=_ApiStatus).message
    except (TooLarge, *UNREADABLE):
        message = ""
    text = " ".join((message or response.reason or "").split())[:MESSAGE_LIMIT]
    return ApiError(request, response.status, text, _retry_after_s(response.headers.get("Retry-After")))


def _retry_after_s(value: str | None) -> float | None:
    """Parse a number of seconds. API servers do not send the date form, which counts as absent."""
    return float(value) if value and value.isascii() and value.isdigit() and len(value) < 6 else None


def _describe(error: BaseException, waited_s: float) -> str:
    if isinstance(error, TimeoutError):
        return f"nothing within {waited_s:g} s"
    return " ".join(f"{type(error).__name__}: {error}".split())[:MESSAGE_LIMIT]
