"""Tokens, passwords and certificates from files that rotate while the process runs.

Kubernetes replaces mounted secrets in place. Each file is checked before a request and read again if it changed.
Error messages name the file and never contain a secret.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from autoscaler.config.settings import TlsFiles

MAX_SECRET_BYTES = 64 << 10
Value = TypeVar("Value")


class CredentialError(Exception):
    """A file with a credential cannot be used; the message names the file and does not quote it."""


class Rotating(Generic[Value]):
    """A value built from files, and built again after one of them changed."""

    def __init__(self, files: tuple[Path, ...], build: Callable[[], Value]) -> None:
        self._files = files
        self._build = build
        self._signatures: tuple[tuple[int, int, int], ...] | None = None
        self._value: Value

    def get(self) -> Value:
        """Return the value of the present files. Raises CredentialError if a file is absent or not usable."""
        try:
            signatures = tuple(_signature(file) for file in self._files)
        except OSError as error:
            raise CredentialError(f"{error.filename}: {error.strerror}") from error
        if signatures != self._signatures:
            self._value = self._build()
            self._signatures = signatures
        return self._value


def _signature(file: Path) -> tuple[int, int, int]:
    status = os.stat(file)  # noqa: PTH116  follows the symlink that Kubernetes swaps
    return status.st_ino, status.st_mtime_ns, status.st_size


def read_secret(file: Path) -> str:
    """Return a token or password. Raises CredentialError."""
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


def tls_context(tls: TlsFiles) -> ssl.SSLContext:
    """Return a context that verifies servers and presents the client certificate. Raises CredentialError."""
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
    """Replace OpenSSL's prompt, which would wait for input at a terminal."""
    raise ValueError("the key is encrypted; allowed: a key without a password")
