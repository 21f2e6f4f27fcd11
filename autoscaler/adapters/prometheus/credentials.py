"""Authorization header and TLS context for requests to a Prometheus server."""

from __future__ import annotations

import base64
import ssl

from autoscaler.config.settings import PrometheusSettings
from autoscaler.http.credentials import CredentialError, Rotating, read_secret, tls_context

__all__ = ["CredentialError", "Credentials"]


class Credentials:
    """The Authorization header and TLS context for the next request."""

    def __init__(self, settings: PrometheusSettings, user_in_url: bool = False) -> None:
        """Raises ValueError if the settings contradict each other."""
        names = {name.lower() for name, _ in settings.headers}
        chosen = [
            *(["a user name in the URL"] if user_in_url else []),
            *(["a token file"] if settings.token_file else []),
            *(["a user name"] if settings.username is not None else []),
            *(["an Authorization header"] if "authorization" in names else []),
        ]
        if len(chosen) > 1:
            raise ValueError(f"prometheus: {' and '.join(chosen)} exclude each other; give only one")
        if settings.password_file and settings.username is None:
            raise ValueError(f"prometheus: password file {settings.password_file} without a user name")
        self._authorization: Rotating[str] | None = None
        if (token_file := settings.token_file) is not None:
            self._authorization = Rotating((token_file,), lambda: f"Bearer {read_secret(token_file)}")
        elif (user := settings.username) is not None:
            password_file = settings.password_file
            self._authorization = Rotating(
                (password_file,) if password_file else (),
                lambda: _basic(user, read_secret(password_file) if password_file else ""),
            )
        tls = settings.tls
        if not settings.url.startswith("https:") and (tls.ca or tls.cert):
            raise ValueError("prometheus: certificate files are given, but the URL is not https")
        files = tuple(file for file in (tls.ca, tls.cert, tls.key) if file is not None)
        self._context = Rotating(files, lambda: tls_context(tls)) if settings.url.startswith("https:") else None

    def authorization(self) -> str | None:
        """Return the Authorization header, or None. Raises CredentialError."""
        return self._authorization.get() if self._authorization else None

    def context(self) -> ssl.SSLContext | bool:
        """Return the TLS context; True over plain HTTP. Raises CredentialError.

        A new context is a new object, so connections made with the old one are not used again.
        """
        return self._context.get() if self._context else True


def _basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
