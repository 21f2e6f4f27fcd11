"""Cluster address and credentials: the service account of a pod, or a kubeconfig, read again every minute."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog
import yaml

from autoscaler.adapters.kubernetes.api.library import (
    ConfigException,
    Configuration,
    list_kube_config_contexts,
    load_incluster_config,
    load_kube_config,
)
from autoscaler.outage import Outage

log = structlog.get_logger(__name__)

ERROR_LIMIT = 300  # characters of an error of the library
INVALID_CONFIGURATION = (ConfigException, OSError, ValueError, TypeError, LookupError, AttributeError, yaml.YAMLError)


class ServiceAccount:
    """The service account of this pod."""

    def __init__(self, account: Path) -> None:
        self.place = f"this pod's service account in {account}"
        self._files = {"token_filename": str(account / "token"), "cert_filename": str(account / "ca.crt")}

    async def read(self, configuration: Configuration) -> None:
        load_incluster_config(configuration, try_refresh_token=False, **self._files)  # type: ignore[no-untyped-call]


class Kubeconfig:
    """The kubeconfig files."""

    def __init__(self, context: str | None, plugin_s: float) -> None:
        self._files = _kubeconfig_files()
        self.place = f"the kubeconfig {self._files}"
        self._plugin_s = plugin_s
        self._context = context

    async def read(self, configuration: Configuration) -> None:
        """Raises TimeoutError if an exec plug-in hangs, for example at a password prompt."""
        if not _any_exists(self._files):
            raise ConfigException("it does not exist")  # the library treats a missing file like one without contexts
        if self._context is not None:
            self._check_context(self._context)
        async with asyncio.timeout(self._plugin_s):
            await load_kube_config(self._files, self._context, configuration, persist_config=False)

    def _check_context(self, context: str) -> None:
        """Raise ConfigException with the known contexts if `context` is not one of them."""
        try:
            contexts, _ = list_kube_config_contexts(self._files)
        except INVALID_CONFIGURATION:  # loading it raises the same error
            return
        names = [str(each["name"]) for each in contexts]
        if context not in names:
            raise ConfigException(f"it has no such context; it has {', '.join(names)}")


class CredentialsRefresher:
    """Reads credentials again every minute: tokens expire, and certificates are replaced."""

    def __init__(
        self,
        source: ServiceAccount | Kubeconfig,
        certificates: list[bytes],
        reconnect: Callable[[], Awaitable[None]],
        age_s: float,
    ) -> None:
        """certificates: of the present connections. reconnect: called when they have changed."""
        self._source = source
        self._reconnect = reconnect
        self._age_s = age_s
        self._read_s = time.monotonic()
        self._certificates = certificates
        failing = "credentials cannot be read again; the old ones are used"
        self._outage = Outage(log, failing, "credentials are read again", place=source.place)

    async def refresh(self, configuration: Configuration) -> None:
        """The library's hook before each request."""
        if time.monotonic() - self._read_s < self._age_s:
            return
        self._read_s = time.monotonic()
        try:
            await self._source.read(configuration)
            certificates = read_certificates(configuration)
            if certificates != self._certificates:
                await self._reconnect()
                self._certificates = certificates
                log.info("certificates have changed; connected again", place=self._source.place)
        except Exception as error:  # an exec plug-in may raise anything; the old credentials may still be valid
            is_known = isinstance(error, INVALID_CONFIGURATION)  # the text of other errors may hold a secret
            self._outage.fail(describe_error(error) if is_known else type(error).__name__)
        else:
            self._outage.end()


def read_certificates(configuration: Configuration) -> list[bytes]:
    """Return the content of the certificate files."""
    files = (configuration.ssl_ca_cert, configuration.cert_file, configuration.key_file)
    return [Path(file).read_bytes() for file in files if file]


def _kubeconfig_files() -> str:
    """Return the present value of KUBECONFIG; the library reads it only once, at import."""
    return os.environ.get("KUBECONFIG") or "~/.kube/config"


def _any_exists(files: str) -> bool:
    return any(Path(file).expanduser().exists() for file in files.split(os.pathsep) if file)


def describe_error(error: Exception) -> str:
    """Return what is wrong with a kubeconfig. The library's own text may repeat an entry with a token."""
    if isinstance(error, TimeoutError):
        return "its plug-in took too long"
    return " ".join(str(error).partition("{")[0].split())[:ERROR_LIMIT]
