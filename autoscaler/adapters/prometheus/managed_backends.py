"""Advice for managed backends, which want signed requests or tokens that live for an hour.

A proxy of the provider signs requests or adds the token; its URL then replaces that of the server.
Sources: the documentation of each provider.
"""

from __future__ import annotations

from http import HTTPStatus

REFUSAL_STATUSES = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)

# By the suffix of the host name.
_ADVICE = {
    ".amazonaws.com": "requests must be signed with SigV4: run aws-sigv4-proxy and give its URL instead",
    ".googleapis.com": "requests need a Google access token: run the frontend of Google Managed Prometheus and give "
    "its URL instead, or keep a fresh token in --prometheus-token-file",
    ".prometheus.monitor.azure.com": "requests need a Microsoft Entra token: run aad-auth-proxy and give its URL "
    "instead, or keep a fresh token in --prometheus-token-file",
}


def advice(host: str | None, status: int) -> str:
    """Return advice to append to a refusal with this HTTP status; "" if there is none."""
    if status not in REFUSAL_STATUSES or not host:
        return ""
    return next((f"; {text}" for end, text in _ADVICE.items() if f".{host.lower()}".endswith(end)), "")
