"""Who we are to the server: token, password and certificate files that rotate under a running process.

Kubernetes swaps mounted secrets in place. Each file is looked at before a request and read again when it changed.
No message made here holds a secret; they name the file.
"""

from __future__ import annotations

import base64
import os
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from autoscaler.config.settings import PrometheusSettings, TlsFiles

MAX_SECRET_BYTES = 64 << 10
Made = TypeVar("Made")


class CredentialError(Exception):
    """A file with a credential cannot be used; the message names it, and not what it holds."""


class Rotating(Generic[Made]):
    """Something made from files, made again when one of them changed."""

    def __init__(self, files: tuple[Path, ...], make: Callable[[], Made]) -> None:
        self._files = files
        self._make = make
        self._seen: tuple[tuple[int, int, int], ...] | None = None
        self._made: Made

    def get(self) -> Made:
        """Return it, up to date. Raises CredentialError where a file is absent or unfit."""
        try:
            seen = tuple(_signature(file) for file in self._files)
        except OSError as error:
            raise CredentialError(f"{error.filename}: {error.strerror}") from error
        if seen != self._seen:
            self._made = self._make()
            self._seen = seen
        return self._made


class Credentials:
    """The Authorization header and TLS context for the next request."""

    def __init__(self, settings: PrometheusSettings, user_in_url: bool = False) -> None:
        """Raises ValueError where the settings contradict themselves."""
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
            self._authorization = Rotating((token_file,), lambda: f"Bearer {_read_secret(token_file)}")
        elif (user := settings.username) is not None:
            password_file = settings.password_file
            self._authorization = Rotating(
                (password_file,) if password_file else (),
                lambda: _basic(user, _read_secret(password_file) if password_file else ""),
            )
        tls = settings.tls
        if not settings.url.startswith("https:") and (tls.ca or tls.cert):
            raise ValueError("prometheus: certificate files are given, but the URL is not https")
        files = tuple(file for file in (tls.ca, tls.cert, tls.key) if file is not None)
        self._context = Rotating(files, lambda: _context(tls)) if settings.url.startswith("https:") else None

    def authorization(self) -> str | None:
        """Return the Authorization header; None: send none. Raises CredentialError."""
        return self._authorization.get() if self._authorization else None

    def context(self) -> ssl.SSLContext | bool:
        """Return the TLS context, or what stands for the library's own over plain HTTP. Raises CredentialError.

        A context made anew is another object, so connections of the old one are not used again.
        """
        return self._context.get() if self._context else True


def _signature(file: Path) -> tuple[int, int, int]:
    status = os.stat(file)  # noqa: PTH116  follows the symlink that a mounted secret swaps
    return status.st_ino, status.st_mtime_ns, status.st_size


def _read_secret(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            content = stream.read(MAX_SECRET_BYTES + 1)
    except OSError as error:
        raise CredentialError(f"{file}: {error.strerror}") from error
    if len(content) > MAX_SECRET_BYTES:
        raise CredentialError(f"{file}: more than {MAX_SECRET_BYTES} bytes; a token or password is shorter")
    secret = content.decode("utf-8", "replace").strip()
    if not secret:
        raise CredentialError(f"{file}: empty")
    if not secret.isprintable() or "\N{REPLACEMENT CHARACTER}" in secret:
        raise CredentialError(f"{file}: more than one line, or characters that a header cannot carry")
    return secret


def _basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def _context(tls: TlsFiles) -> ssl.SSLContext:
    file = tls.ca
    try:
        context = ssl.create_default_context(cafile=tls.ca)
        file = tls.cert
        if tls.cert is not None:
            context.load_cert_chain(tls.cert, tls.key, password=_no_password)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise CredentialError(f"{file}: no usable certificate: {getattr(error, 'reason', None) or error}") from error
    return context


def _no_password() -> str:
    """Stand in for OpenSSL's own prompt, which would wait for somebody at the terminal."""
    raise ValueError("the key is encrypted; allowed: a key without a password")
