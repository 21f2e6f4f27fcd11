"""What to do where a managed backend refuses a query: its requests are signed, or carry tokens that live for an hour.

Proxies of the providers do that; a proxy's URL is then the server's. Sources: the documentation of each.
"""

from __future__ import annotations

from http import HTTPStatus

REFUSED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)

# By the end of the host's name.
_ADVICE = {
    ".amazonaws.com": "requests must be signed with SigV4: run aws-sigv4-proxy and give its URL instead",
    ".googleapis.com": "requests need a Google access token: run the frontend of Google Managed Prometheus and give "
    "its URL instead, or keep a fresh token in --prometheus-token-file",
    ".prometheus.monitor.azure.com": "requests need a Microsoft Entra token: run aad-auth-proxy and give its URL "
    "instead, or keep a fresh token in --prometheus-token-file",
}


def advice(host: str | None, status: int) -> str:
    """Return what helps where a host refused with a status of HTTP, to stand behind the refusal; "": nothing known."""
    if status not in REFUSED or not host:
        return ""
    return next((f"; {text}" for end, text in _ADVICE.items() if f".{host.lower()}".endswith(end)), "")
