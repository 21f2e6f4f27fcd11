"""Certificates of the gRPC server, from files that rotate."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from typing import cast

import grpc

from autoscaler.config.settings import TlsFiles
from autoscaler.http.certificates import CertificateFiles, Loaded


class RotatingCertificates:
    """Hands certificates that follow their files to gRPC, and to the server of HTTP/2 in front of it.

    The constructor raises CertificateError if the files cannot be used.
    """

    def __init__(self, files: TlsFiles, wall_s: Callable[[], float] = time.time) -> None:
        self._files = CertificateFiles(files, ["h2"], wall_s)
        self._handed_out = self._files.current()

    @property
    def problem(self) -> str:
        """New files that were refused, or a present certificate that has expired; "": no problem."""
        return self._files.problem

    def credentials(self) -> grpc.ServerCredentials:
        """Return credentials that follow the files. With a CA, clients must show a certificate that it signed."""
        self._handed_out = self._files.current()
        # The type stubs lack None, which the library documents as "no change".
        changed = cast(Callable[[], grpc.ServerCertificateConfiguration], self.changed)
        verified = self._handed_out.ca is not None
        return grpc.dynamic_ssl_server_credentials(_configuration(self._handed_out), changed, verified)

    def context(self) -> ssl.SSLContext:
        """Return a context for HTTP/2 that follows the files. It requests no client certificate."""
        return self._files.context()

    def changed(self) -> grpc.ServerCertificateConfiguration | None:
        """Return the new configuration, or None if it has not changed. gRPC calls this for each new connection."""
        current = self._files.current()
        if current is self._handed_out:
            return None
        self._handed_out = current
        return _configuration(current)


def _configuration(loaded: Loaded) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(loaded.key, loaded.certificate)], loaded.ca)
