"""TLS contexts, tokens and addresses of pods and gateways that are read or called directly.

Tokens belong to the operator. A token is sent to the pods of the namespace that the operator named for it, or to
gateways. It is sent only over https, and only to servers with a verified certificate. No tenant can select a token.
"""

from __future__ import annotations

import ipaddress
import ssl
from pathlib import Path

from yarl import URL

from autoscaler.config.annotations import SCHEMES
from autoscaler.config.settings import ScrapeSettings, Verify
from autoscaler.core.model.fleet import Pod
from autoscaler.http.credentials import Rotating, read_secret, tls_context


class Access:
    """TLS context and tokens for requests, from files that rotate."""

    def __init__(self, settings: ScrapeSettings) -> None:
        tls = settings.tls
        files = tuple(file for file in (tls.ca, tls.cert, tls.key) if file is not None)
        self._context = Rotating(files, lambda: _with_verification(tls_context(tls), settings.verify))
        self._tokens = {namespace: _token(file) for namespace, file in settings.tokens}
        self._gateway_token = _token(file) if (file := settings.gateway_token_file) is not None else None

    def context(self) -> ssl.SSLContext:
        """Return the context for https. Raises CredentialError. A new context does not reuse old connections."""
        return self._context.get()

    def pod_token(self, namespace: str) -> str:
        """Return the token for pods of a namespace, or "". Raises CredentialError."""
        token = self._tokens.get(namespace)
        return token.get() if token else ""

    def gateway_token(self) -> str:
        """Return the token for gateways, or "". Raises CredentialError."""
        return self._gateway_token.get() if self._gateway_token else ""


def pod_url(pod: Pod) -> URL | None:
    """Return the URL of a pod; None if it has no valid IP address or port."""
    try:
        address = ipaddress.ip_address(pod.ip)
    except ValueError:
        return None
    if pod.metrics_scheme not in SCHEMES:
        return None
    if "%" in pod.ip or not 0 < pod.metrics_port < 65536:  # pods have no link-local addresses with a scope
        return None
    return URL.build(scheme=pod.metrics_scheme, host=str(address), port=pod.metrics_port)


def _token(file: Path) -> Rotating[str]:
    return Rotating((file,), lambda: read_secret(file))


def _with_verification(context: ssl.SSLContext, verify: Verify) -> ssl.SSLContext:
    if verify is not Verify.FULL:
        context.check_hostname = False
    if verify is Verify.NONE:
        context.verify_mode = ssl.CERT_NONE
    return context
