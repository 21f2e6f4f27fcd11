"""Certificates of a server, from files that rotate.

The files are checked whenever a client connects, and whenever `problem` is read, because a server may have no clients.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import structlog

from autoscaler.config.settings import TlsFiles

MAX_FILE_BYTES = 1 << 20

log = structlog.get_logger(__name__)

Stamp = tuple[tuple[int, int, int], ...]


class CertificateError(Exception):
    """A certificate, key or CA cannot be used. The message names the file and the reason."""


class Loaded(NamedTuple):
    """Files that can be used together."""

    certificate: bytes
    key: bytes
    ca: bytes | None
    context: ssl.SSLContext
    expires_s: float  # Unix time


class CertificateFiles:
    """Reads certificate, key and CA, and reads them again when they change. After an invalid change the old ones stay.

    The constructor raises CertificateError if the files cannot be used.
    """

    def __init__(self, files: TlsFiles, protocols: Sequence[str], wall_s: Callable[[], float] = time.time) -> None:
        """protocols: of the application, that the server offers in the handshake."""
        if files.cert is None or files.key is None:
            raise CertificateError("TLS needs a certificate and its key; only a CA was given")
        self._cert, self._key, self._ca = files.cert, files.key, files.ca
        self._protocols = protocols
        self._wall_s = wall_s
        self._refused = ""
        self._stamp_read = self._stamp()
        self._loaded = self._load()

    @property
    def problem(self) -> str:
        """New files that were refused, or a present certificate that has expired; "": no problem."""
        loaded = self.current()
        if not self._refused and self._wall_s() > loaded.expires_s:
            return f"{self._cert}: certificate has expired"
        return self._refused

    def current(self) -> Loaded:
        """Return the present files: the same object until they change.

        Invalid files are read each time, so a file that was incomplete recovers by itself.
        """
        try:
            stamp = self._stamp()
            if stamp == self._stamp_read and not self._refused:
                return self._loaded
            self._loaded = self._load()
        except CertificateError as error:
            if str(error) != self._refused:
                log.error("certificate kept; the new one is refused", problem=str(error))
            self._refused = str(error)
            return self._loaded
        log.info("certificate replaced", certificate=str(self._cert))
        self._stamp_read, self._refused = stamp, ""
        return self._loaded

    def context(self) -> ssl.SSLContext:
        """Return a context that follows the files. It requests no client certificate."""

        def use_current(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
            connection.context = self.current().context

        context = self._context()
        context.sni_callback = use_current
        return context

    def _stamp(self) -> Stamp:
        """Return a value that changes when a file is written or its symbolic link is moved."""
        stamps = []
        for path in self._paths():
            try:
                stat = path.stat()
            except OSError as error:
                raise CertificateError(f"{path}: {error.strerror or error}") from error
            stamps.append((stat.st_ino, stat.st_size, stat.st_mtime_ns))
        return tuple(stamps)

    def _load(self) -> Loaded:
        before = self._stamp()
        cert, key, *ca = (_read(path) for path in self._paths())
        expires_s = check(self._cert, self._key)
        if ca:
            _check_ca(self._ca or self._cert, ca[0])
        context = self._context()
        if before != self._stamp():
            raise CertificateError(f"{self._cert}: changed while it was read")
        return Loaded(cert, key, ca[0] if ca else None, context, expires_s)

    def _paths(self) -> tuple[Path, ...]:
        return (self._cert, self._key) if self._ca is None else (self._cert, self._key, self._ca)

    def _context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._cert, self._key, password=_no_password)
        context.set_alpn_protocols(self._protocols)
        return context


def check(cert: Path, key: Path) -> float:
    """Return when the certificate expires, in Unix time. Raises CertificateError if a client would refuse it.

    A TLS handshake in memory decides, so the result is OpenSSL's own.
    """
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # trust the certificate itself, with any issuer
    try:
        server.load_cert_chain(cert, key, password=_no_password)
        client.load_verify_locations(cert)
    except (OSError, ValueError) as error:  # including OpenSSL's errors
        raise CertificateError(f"{cert} with key {key}: {_reason(error)}") from error
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = (
        client.wrap_bio(to_client, to_server),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    try:
        for side in sides * 2:  # hello, answer, verification, end
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
    except ssl.SSLCertVerificationError as error:
        raise CertificateError(f"{cert}: {error.verify_message}") from error
    except ssl.SSLError as error:
        raise CertificateError(f"{cert}: {_reason(error)}") from error
    shown = sides[0].getpeercert()
    if not shown:
        raise CertificateError(f"{cert}: no TLS handshake succeeds with it")
    return float(ssl.cert_time_to_seconds(str(shown["notAfter"])))


def _check_ca(path: Path, text: bytes) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cadata=text.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise CertificateError(f"{path}: not a CA certificate: {_reason(error)}") from error


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            text = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise CertificateError(f"{path}: {error.strerror or error}") from error
    if len(text) > MAX_FILE_BYTES:
        raise CertificateError(f"{path}: larger than {MAX_FILE_BYTES} bytes")
    return text


def _no_password() -> str:
    raise ValueError("the key is encrypted; allowed: a key without a password")


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    if reason:
        return str(reason).lower().replace("_", " ")
    return str(getattr(error, "strerror", None) or error)
