"""The certificate of a webhook, made and renewed by the webhook itself: in a Secret, and trusted by its configuration.

The Secret is mounted, so each replica serves what the kubelet has put into its files. The certificate signs itself and
is its own CA. Former ones stay trusted beside it, because files follow the Secret up to two minutes later.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import TypeVar

import msgspec
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from autoscaler.adapters.kubernetes.api.client import ApiError, Kube, object_path
from autoscaler.adapters.kubernetes.api.decode import decode
from autoscaler.config.findings import UNREADABLE

MERGE_PATCH, JSON_PATCH = "application/merge-patch+json", "application/json-patch+json"
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations"
CERTIFICATE, KEY, CA = "tls.crt", "tls.key", "ca.crt"  # as cert-manager names them
VALID_FOR = timedelta(days=90)
CLOCKS_DIFFER = timedelta(hours=1)
CONFLICT = 409
ATTEMPTS = 3  # another replica may write in between
NOT_X509 = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.ExtensionNotFound,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)
"""Errors that the library raises for certificates and keys of others."""


Found = TypeVar("Found")


class _Metadata(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""


class _Secret(msgspec.Struct, frozen=True):
    metadata: _Metadata
    data: dict[str, str] | None = None


class _ClientConfig(msgspec.Struct, frozen=True, rename="camel"):
    ca_bundle: str = ""


class _Webhook(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    client_config: _ClientConfig


class _Configuration(msgspec.Struct, frozen=True):
    webhooks: list[_Webhook] | None = None


class ServingCertificate:
    """Keeps one Secret and one MutatingWebhookConfiguration right; both must exist."""

    def __init__(
        self,
        kube: Kube,
        secret: tuple[str, str],
        configuration: str,
        names: Sequence[str],
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        """secret: namespace and name. configuration: its name. names: of the Service in DNS."""
        self._kube = kube
        self._secret = object_path("/api/v1", secret[0], "secrets", secret[1])
        self._configuration = object_path(CONFIGURATIONS[0], "", CONFIGURATIONS[1], configuration)
        self._names = names
        self._wall_s = wall_s

    async def ensure(self) -> bool:
        """Renew the certificate if a third of its time is left, and let the API server trust it.

        Return whether it was renewed. Raises ApiError; a later call goes on.
        """
        for attempt in range(ATTEMPTS):
            try:
                trusted, renewed = await self._renew()
                break
            except ApiError as error:
                if error.status != CONFLICT or attempt == ATTEMPTS - 1:
                    raise
        await self._trust(trusted)
        return renewed

    async def _renew(self) -> tuple[bytes, bool]:
        """Return the certificates to be trusted, and whether the first of them is new."""
        secret = await self._get(self._secret, _Secret)
        now = datetime.fromtimestamp(self._wall_s(), UTC)
        former = _certificates(secret, CA)
        current = _certificates(secret, CERTIFICATE)
        if current and self._is_good(current[0], _decoded(secret, KEY), now) and current[0] in former:
            return _decoded(secret, CA), False
        certificate, key = make_certificate(self._names, now)
        kept = [each for each in (*current, *former) if each.not_valid_after_utc > now]
        trusted = certificate + b"".join(dict.fromkeys(map(_pem, kept)))
        files = {CERTIFICATE: certificate, KEY: key, CA: trusted}
        body = {
            "metadata": {"resourceVersion": secret.metadata.resource_version},
            "data": {name: base64.b64encode(content).decode() for name, content in files.items()},
        }
        await self._kube.request("PATCH", self._secret, body, content_type=MERGE_PATCH)
        return trusted, True

    async def _trust(self, trusted: bytes) -> None:
        configuration = await self._get(self._configuration, _Configuration)
        bundle = base64.b64encode(trusted).decode()
        patch = []
        for index, webhook in enumerate(configuration.webhooks or ()):
            if webhook.client_config.ca_bundle != bundle:
                path = f"/webhooks/{index}"
                patch.append({"op": "test", "path": f"{path}/name", "value": webhook.name})
                patch.append({"op": "add", "path": f"{path}/clientConfig/caBundle", "value": bundle})
        if patch:
            await self._kube.request("PATCH", self._configuration, patch, content_type=JSON_PATCH)

    async def _get(self, path: str, kind: type[Found]) -> Found:
        """Return an object. Raises ApiError, also for an answer that is none."""
        try:
            return decode(msgspec.json.Decoder(kind), await self._kube.request("GET", path))
        except UNREADABLE as error:
            raise ApiError(f"GET {path}", HTTPStatus.OK, f"the answer is not valid: {error}") from error

    def _is_good(self, certificate: x509.Certificate, key: bytes, now: datetime) -> bool:
        """Return whether a certificate has its key, our names, and more than a third of its time left."""
        if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc - VALID_FOR / 3:
            return False
        try:
            private = serialization.load_pem_private_key(key, None)
            names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            return private.public_key() == certificate.public_key() and set(self._names) <= set(
                names.get_values_for_type(x509.DNSName)
            )
        except NOT_X509:
            return False


def make_certificate(names: Sequence[str], now: datetime) -> tuple[bytes, bytes]:
    """Return a certificate that signs itself, and its key, as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCKS_DIFFER)
        .not_valid_after(now + VALID_FOR)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    return _pem(certificate), private


def _certificates(secret: _Secret, name: str) -> list[x509.Certificate]:
    """Return the certificates of one file of a Secret; []: it is empty, or holds something else."""
    try:
        return x509.load_pem_x509_certificates(_decoded(secret, name))
    except NOT_X509:
        return []


def _decoded(secret: _Secret, name: str) -> bytes:
    try:
        return base64.b64decode((secret.data or {}).get(name, ""))
    except ValueError:
        return b""


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
