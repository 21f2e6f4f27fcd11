"""`webhook`: pods prefer nodes that hold their weights, and start from them."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import NoReturn

import structlog

from autoscaler.adapters.kubernetes.api.client import ApiError, Kube
from autoscaler.adapters.kubernetes.pods.node_weights import read_pod_weights
from autoscaler.adapters.kubernetes.serving_certificate import Authority, ServingCertificate
from autoscaler.adapters.webhook.metrics import WebhookMetrics
from autoscaler.adapters.webhook.patch import Folder
from autoscaler.adapters.webhook.probes import serving_probes
from autoscaler.adapters.webhook.server import WebhookServer
from autoscaler.config.settings import WebhookSettings
from autoscaler.config.weights.allowed import EVERY_SOURCE, SourceRules
from autoscaler.http.certificates import CertificateError, CertificateFiles

ENSURE_S = 60.0
FAILED_S = 5.0
FILES_S = 1.0  # between two looks at files that are not there yet

log = structlog.get_logger(__name__)


class _Files:
    """The files of the certificate, which may come later than the process."""

    def __init__(self, settings: WebhookSettings) -> None:
        self._settings = settings
        self._found: CertificateFiles | None = None
        self._missing = "not started"

    async def wait(self) -> CertificateFiles:
        while True:
            try:
                self._found = CertificateFiles(self._settings.tls, ["http/1.1"])
            except CertificateError as error:
                if str(error) != self._missing:
                    log.info("waiting for a certificate", problem=str(error))
                self._missing = str(error)
                await asyncio.sleep(FILES_S)
            else:
                return self._found

    def problem(self) -> str:
        return self._missing if self._found is None else self._found.problem

    def expires_s(self) -> float:
        return 0.0 if self._found is None else self._found.current().expires_s


async def webhook(settings: WebhookSettings) -> int:
    """Serve until the process ends. Raises CannotServe, also in a group, if a port is in use."""
    folder = Folder(settings.host_path, settings.image, settings.compile_cache) if settings.host_path else None
    files = _Files(settings)
    metrics = WebhookMetrics(files.expires_s)
    async with AsyncExitStack() as stack:
        http = settings.http
        await stack.enter_async_context(serving_probes(http.host, http.port, files.problem, metrics))
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        if settings.secret:
            kube = await stack.enter_async_context(Kube.connect(settings.kube))
            domain = f"{settings.service}.{settings.namespace}.svc"
            names = (domain, f"{domain}.cluster.local")
            certificate = ServingCertificate(kube, (settings.namespace, settings.secret), names)
            tasks.create_task(_keep(certificate), name="certificate")
        context = (await files.wait()).context()
        rules = SourceRules(EVERY_SOURCE.allowed, settings.private_sources)
        server = WebhookServer(settings.host, settings.port, context, read_pod_weights, folder, metrics, rules=rules)
        await stack.enter_async_context(server)
        log.info("serving the webhook", port=server.port, host_path=settings.host_path)
        await asyncio.Event().wait()
    return 0


async def trust(settings: WebhookSettings) -> int:
    """Make the CA where it is missing, and let the API server trust it. Return 0: done, 1: it cannot be."""
    async with Kube.connect(settings.kube) as kube:
        authority = Authority(kube, (settings.namespace, settings.secret), settings.configuration)
        try:
            made = await authority.ensure()
        except ApiError as error:
            log.error("the CA of the webhook cannot be kept", problem=str(error))
            return 1
    log.info("the API server trusts the CA of the webhook", made=made)
    return 0


async def _keep(certificate: ServingCertificate) -> NoReturn:
    """Renew the certificate in time. A failure is logged once, and followed by another attempt."""
    failing = ""
    while True:
        try:
            if await certificate.ensure():
                log.info("certificate renewed")
        except ApiError as error:
            if str(error) != failing:
                log.warning("the certificate cannot be kept", problem=str(error))
            failing = str(error)
        else:
            failing = ""
        await asyncio.sleep(FAILED_S if failing else ENSURE_S)
