"""One connection to one API server: where it is, who asks, and a deadline and a size limit on everything.

kubernetes_asyncio brings configuration, credentials and TLS; it sets no time-out of its own and reads any amount, so
every request goes through `Kube`. What is asked for and what the answers mean belongs to the other files.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import msgspec
import structlog
import yaml
from kubernetes_asyncio.client import ApiClient, Configuration
from kubernetes_asyncio.client.rest import RESTClientObject
from kubernetes_asyncio.config import (
    ConfigException,
    list_kube_config_contexts,
    load_incluster_config,
    load_kube_config,
)
from kubernetes_asyncio.config.incluster_config import SERVICE_HOST_ENV_NAME

from autoscaler.config.settings import KubeSettings
from autoscaler.ports import Unavailable

log = structlog.get_logger(__name__)

FIELD_MANAGER = "vllm-autoscaler"  # with the installation, the name by which the API server remembers what we set
MANAGER_LIMIT = 128  # characters, of the API server
USER_AGENT = "vllm-autoscaler"
JSON = "application/json"
# 500 pods as they usually are, and any single object: 1.5 MiB at most in etcd, up to six times that as JSON (\u003c).
BODY_LIMIT_BYTES = 16 << 20
REFUSAL_LIMIT_BYTES = 64 << 10
MESSAGE_LIMIT = 300  # characters of a server's own words that go into an error
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
CREDENTIALS_AGE_S = 60.0  # what says who asks and whom to trust is read again after this
GOODBYE_S = 0.1  # TLS connections that were cut end in the background; the event loop may end right after us

Query = Sequence[tuple[str, str]]


def field_manager(installation: str) -> str:
    """Name the writer of a replica count, so that two installations see each other's writes; "": any installation."""
    name = f"{FIELD_MANAGER}/{installation}" if installation else FIELD_MANAGER
    if len(name) <= MANAGER_LIMIT:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    return f"{name[: MANAGER_LIMIT - 17]}-{digest}"


class ApiError(Unavailable):
    """The API server refused, or did not answer at all (`status` 0)."""

    def __init__(self, what: str, status: int, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(f"{what}: {status or 'no answer'}: {message}")
        self.status = status
        self.message = message
        self.retry_after_s = retry_after_s


class TooLarge(ApiError):
    """The answer was more than is read."""


class _Status(msgspec.Struct):
    message: str = ""


class Kube:
    """Sends requests. `connect` finds the cluster; everything else is given a `Kube`."""

    def __init__(self, client: ApiClient, timeout_s: float, proxies: bool) -> None:
        """`proxies`: heed HTTPS_PROXY and NO_PROXY."""
        self._client = client
        self._timeout_s = timeout_s
        self._proxies = proxies
        self._before: RESTClientObject | None = None  # what was connected by certificates that have been replaced
        self._take_session(client.rest_client)

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        settings: KubeSettings,
        account: Path = SERVICE_ACCOUNT,
        credentials_age_s: float = CREDENTIALS_AGE_S,
    ) -> AsyncIterator[Kube]:
        """Find the cluster as kubectl would: in a pod its own, else the kubeconfig's context.

        Raises Unavailable if neither is configured. Nothing is asked yet, so a server that is down is no error here.
        """
        in_cluster = settings.context is None and SERVICE_HOST_ENV_NAME in os.environ
        configuration = Configuration()
        source = _Account(account) if in_cluster else _Kubeconfig(settings.context, settings.timeout_s)
        try:
            await source.read(configuration)
            certificates = _certificates(configuration)
            kube = cls._opened(configuration, settings.timeout_s, proxies=not in_cluster)
        except _BAD_CONFIGURATION as error:
            context = f" (context {settings.context})" if settings.context else ""
            raise Unavailable(f"no cluster: {source.place}{context} cannot be used: {_reason(error)}") from error
        configuration.refresh_api_key_hook = _Credentials(source, certificates, kube, credentials_age_s).refresh
        async with aclosing(kube):
            yield kube

    @classmethod
    @asynccontextmanager
    async def using(cls, configuration: Configuration, timeout_s: float, proxies: bool = False) -> AsyncIterator[Kube]:
        """Connect by a configuration at hand; `proxies`: heed HTTPS_PROXY and NO_PROXY, as kubectl does.

        Inside the cluster no proxy is used: an egress proxy set for model downloads would cut us off.
        """
        async with aclosing(cls._opened(configuration, timeout_s, proxies)) as kube:
            yield kube

    @classmethod
    def _opened(cls, configuration: Configuration, timeout_s: float, proxies: bool) -> Kube:
        # 0 is no limit: watches hold connections for good, and what else runs at once is bounded by its callers.
        configuration.connection_pool_maxsize = 0
        client = ApiClient(configuration)
        client.user_agent = USER_AGENT
        return cls(client, timeout_s, proxies)

    async def reconnect(self) -> None:
        """Go by the certificates that the configuration names now. Raises OSError for bad ones; then all is as before.

        What is under way goes on: a watch would not notice that its connection was closed, and ends by itself.
        """
        rest = RESTClientObject(self._client.configuration)
        self._take_session(rest)
        if self._before is not None:
            await self._before.close()
        self._before, self._client.rest_client = self._client.rest_client, rest

    async def aclose(self) -> None:
        if self._before is not None:
            await self._before.close()
        await self._client.close()
        await asyncio.sleep(GOODBYE_S)

    def _take_session(self, rest: RESTClientObject) -> None:
        """The library's session always heeds proxy variables and keeps cookies: its connector gets another session."""
        theirs = rest.pool_manager
        rest.pool_manager = aiohttp.ClientSession(
            connector=theirs.connector, trust_env=self._proxies, cookie_jar=aiohttp.DummyCookieJar()
        )
        theirs.detach()

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
        """Send one request and return the body, at most 16 MiB. Raises ApiError for anything but success."""
        total_s = self._timeout_s if timeout_s is None else timeout_s
        timeout = aiohttp.ClientTimeout(total=total_s)
        what = f"{method} {path}"
        try:
            async with await self._send(method, path, body, query, content_type, accept, timeout) as response:
                if response.status >= 400:
                    raise await _refusal(what, response)
                return await _read(what, response, BODY_LIMIT_BYTES)
        except _NO_ANSWER as error:
            raise ApiError(what, 0, _words(error, total_s)) from error

    @asynccontextmanager
    async def stream(
        self, path: str, *, query: Query, accept: str = JSON, silence_s: float
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Open a watch; reading from it fails after `silence_s` seconds without a byte. Raises ApiError likewise."""
        timeout = aiohttp.ClientTimeout(
            total=None, connect=self._timeout_s, sock_connect=self._timeout_s, sock_read=silence_s
        )
        what = f"watch {path}"
        try:
            async with await self._send("GET", path, None, query, JSON, accept, timeout) as response:
                if response.status >= 400:
                    raise await _refusal(what, response)
                yield response
        except _NO_ANSWER as error:
            raise ApiError(what, 0, _words(error, silence_s)) from error

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
            header_params={"Accept": accept, "Content-Type": content_type},
            body=body,
            auth_settings=["BearerToken"],
            _preload_content=False,
            _request_timeout=limits,
        )
        return response


_BAD_CONFIGURATION = (ConfigException, OSError, ValueError, TypeError, LookupError, AttributeError, yaml.YAMLError)
_NO_ANSWER = (aiohttp.ClientError, TimeoutError, OSError, ConfigException, ValueError)


def object_path(root: str, namespace: str, plural: str, name: str = "", subresource: str = "") -> str:
    """Build the path of an object or collection; "" as namespace is all of them. Names are quoted."""
    parts = [root]
    if namespace:
        parts += ["namespaces", quote(namespace, safe="")]
    parts += [plural, *(quote(part, safe="") for part in (name, subresource) if part)]
    return "/".join(parts)


def _kubeconfig_files() -> str:
    """Return what KUBECONFIG says now; the library looks only once, when it is imported."""
    return os.environ.get("KUBECONFIG") or "~/.kube/config"


def _any_exists(files: str) -> bool:
    return any(Path(file).expanduser().exists() for file in files.split(os.pathsep) if file)


def _reason(error: Exception) -> str:
    """Word what is wrong with a kubeconfig; the library's own text may repeat an entry of it, with a token in it."""
    if isinstance(error, TimeoutError):
        return "its plug-in took too long"
    return " ".join(str(error).partition("{")[0].split())[:MESSAGE_LIMIT]


class _Account:
    """The service account that is mounted in a pod."""

    def __init__(self, account: Path) -> None:
        self.place = f"this pod's service account in {account}"
        self._files = {"token_filename": str(account / "token"), "cert_filename": str(account / "ca.crt")}

    async def read(self, configuration: Configuration) -> None:
        load_incluster_config(configuration, try_refresh_token=False, **self._files)  # type: ignore[no-untyped-call]


class _Kubeconfig:
    """The files that KUBECONFIG names."""

    def __init__(self, context: str | None, plugin_s: float) -> None:
        self._files = _kubeconfig_files()
        self.place = f"the kubeconfig {self._files}"
        self._plugin_s = plugin_s
        self._context = context

    async def read(self, configuration: Configuration) -> None:
        """Raises TimeoutError when an exec plug-in hangs: one that asks for a password, say."""
        if not _any_exists(self._files):
            raise ConfigException("it does not exist")  # to the library, that is a file without contexts
        if self._context is not None:
            self._check_context(self._context)
        async with asyncio.timeout(self._plugin_s):
            await load_kube_config(self._files, self._context, configuration, persist_config=False)

    def _check_context(self, wanted: str) -> None:
        """Say which contexts there are if the one that is wanted is none of them. Raises ConfigException."""
        try:
            contexts, _ = list_kube_config_contexts(self._files)
        except _BAD_CONFIGURATION:  # loading says what is wrong with it
            return
        names = [str(context["name"]) for context in contexts]
        if wanted not in names:
            raise ConfigException(f"it has no such context; it has {', '.join(names)}")


class _Credentials:
    """Who asks and whom to trust, read again now and then: tokens expire, certificates and authorities are replaced."""

    def __init__(self, source: _Account | _Kubeconfig, certificates: list[bytes], kube: Kube, age_s: float) -> None:
        self._source = source
        self._kube = kube
        self._age_s = age_s
        self._read_s = time.monotonic()
        self._certificates = certificates  # that connections are made with
        self._failing = False

    async def refresh(self, configuration: Configuration) -> None:
        """Serve as the library's hook before each request."""
        if time.monotonic() - self._read_s < self._age_s:
            return
        self._read_s = time.monotonic()
        place = self._source.place
        try:
            await self._source.read(configuration)
            certificates = _certificates(configuration)
            if certificates != self._certificates:
                await self._kube.reconnect()
                self._certificates = certificates
                log.info("certificates have changed; connected anew", place=place)
        except Exception as error:  # an exec plug-in may raise anything; the credentials at hand may still do
            if not self._failing:
                known = isinstance(error, _BAD_CONFIGURATION)  # others' words are anybody's
                reason = _reason(error) if known else type(error).__name__
                log.warning("credentials cannot be read again; those at hand stay", place=place, error=reason)
            self._failing = True
        else:
            if self._failing:
                log.info("credentials are read again", place=place)
            self._failing = False


def _certificates(configuration: Configuration) -> list[bytes]:
    """Return what stands in the files that a connection is made with."""
    files = (configuration.ssl_ca_cert, configuration.cert_file, configuration.key_file)
    return [Path(file).read_bytes() for file in files if file]


async def _read(what: str, response: aiohttp.ClientResponse, limit_bytes: int) -> bytes:
    parts, size = [], 0
    async for part in response.content.iter_any():
        size += len(part)
        if size > limit_bytes:
            raise TooLarge(what, response.status, f"the answer is larger than {limit_bytes} bytes")
        parts.append(part)
    return b"".join(parts)


async def _refusal(what: str, response: aiohttp.ClientResponse) -> ApiError:
    """Word an error answer; a proxy's HTML or no body at all is no reason to fail differently."""
    try:
        message = msgspec.json.decode(await _read(what, response, REFUSAL_LIMIT_BYTES), type=_Status).message
    except (TooLarge, msgspec.MsgspecError):
        message = ""
    text = " ".join((message or response.reason or "").split())[:MESSAGE_LIMIT]
    return ApiError(what, response.status, text, _retry_after_s(response.headers.get("Retry-After")))


def _retry_after_s(value: str | None) -> float | None:
    """Read seconds; the date form, which API servers do not send, and nonsense count as absent."""
    return float(value) if value and value.isascii() and value.isdigit() and len(value) < 6 else None


def _words(error: BaseException, waited_s: float) -> str:
    if isinstance(error, TimeoutError):
        return f"nothing within {waited_s:g} s"
    return " ".join(f"{type(error).__name__}: {error}".split())[:MESSAGE_LIMIT]
