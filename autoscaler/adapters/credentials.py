"""Tokens, passwords and certificates in files that rotate under a running process, for adapters that ask servers.

Kubernetes swaps mounted secrets in place. Each file is looked at before a request and read again when it changed.
No message made here holds a secret; they name the file.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from autoscaler.config.settings import TlsFiles

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


def _signature(file: Path) -> tuple[int, int, int]:
    status = os.stat(file)  # noqa: PTH116  follows the symlink that a mounted secret swaps
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
    """Return a context that verifies servers and shows the client's certificate. Raises CredentialError."""
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
