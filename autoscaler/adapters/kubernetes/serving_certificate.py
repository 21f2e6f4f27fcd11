"""The certificate of a webhook, and the CA that signs it: both in one Secret, with their keys.

A short task with an account of its own makes the CA and writes it to the MutatingWebhookConfiguration. RBAC cannot
limit that write to the CA: who has it may send all Secrets of the cluster to a webhook. The webhook itself runs on and
reads what tenants write, so it has no such right. It renews its certificate with the CA's key. The Secret is mounted,
so each replica serves what the kubelet has put into its files.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import NamedTuple, TypeVar

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from autoscaler.adapters.kubernetes.api.client import ApiError, Kube, object_path
from autoscaler.adapters.kubernetes.api.decode import decode
from autoscaler.config.findings import UNREADABLE

MERGE_PATCH, JSON_PATCH = "application/merge-patch+json", "application/json-patch+json"
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations"
CERTIFICATE, KEY, CA, CA_KEY = "tls.crt", "tls.key", "ca.crt", "ca.key"  # the first three as cert-manager names them
VALID_FOR = timedelta(days=90)
CA_VALID_FOR = timedelta(days=3650)
CA_NAME = "vllm-autoscaler-webhook-ca"
CLOCKS_DIFFER = timedelta(hours=1)
CONFLICT = 409
ATTEMPTS = 3  # another replica may write in between
NOT_X509 = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    InvalidSignature,
    x509.ExtensionNotFound,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)
"""Errors that the library raises for certificates and keys of others."""


Found = TypeVar("Found")


class _SecretMetadata(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""


class _Secret(msgspec.Struct, frozen=True):
    metadata: _SecretMetadata
    data: dict[str, str] | None = None


class _ClientConfig(msgspec.Struct, frozen=True, rename="camel"):
    ca_bundle: str = ""


class _Webhook(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    client_config: _ClientConfig


class _Configuration(msgspec.Struct, frozen=True):
    webhooks: list[_Webhook] | None = None


class _KeptSecret:
    """One Secret, which exists and is written by several processes."""

    def __init__(self, kube: Kube, secret: tuple[str, str], wall_s: Callable[[], float] = time.time) -> None:
        """secret: namespace and name."""
        self._kube = kube
        self._secret = object_path("/api/v1", secret[0], "secrets", secret[1])
        self._wall_s = wall_s

    async def ensure(self) -> bool:
        """Renew what a third of its time is left of. Return whether it was renewed.

        Raises ApiError; a later call goes on.
        """
        for attempt in range(ATTEMPTS):
            try:
                return await self._renew(datetime.fromtimestamp(self._wall_s(), UTC))
            except ApiError as error:
                if error.status != CONFLICT or attempt == ATTEMPTS - 1:
                    raise
        raise AssertionError("unreachable")

    async def _renew(self, now: datetime) -> bool:
        raise NotImplementedError

    async def _write(self, secret: _Secret, files: Mapping[str, bytes]) -> None:
        body = {
            "metadata": {"resourceVersion": secret.metadata.resource_version},
            "data": {name: base64.b64encode(content).decode() for name, content in files.items()},
        }
        await self._kube.request("PATCH", self._secret, body, content_type=MERGE_PATCH)

    async def _get(self, path: str, kind: type[Found]) -> Found:
        """Return an object. Raises ApiError, also for an answer that is none."""
        try:
            return decode(msgspec.json.Decoder(kind), await self._kube.request("GET", path))
        except UNREADABLE as error:
            raise ApiError(f"GET {path}", HTTPStatus.OK, f"the answer is not valid: {error}") from error


class Authority(_KeptSecret):
    """Keeps the CA in the Secret, and lets one MutatingWebhookConfiguration trust it; both exist.

    Former certificates of the Secret stay trusted until they end: files follow a Secret up to two minutes later.
    """

    def __init__(
        self, kube: Kube, secret: tuple[str, str], configuration: str, wall_s: Callable[[], float] = time.time
    ) -> None:
        """secret: namespace and name. configuration: its name."""
        super().__init__(kube, secret, wall_s)
        self._configuration = object_path(CONFIGURATIONS[0], "", CONFIGURATIONS[1], configuration)

    async def ensure(self) -> bool:
        renewed = await super().ensure()
        await self._trust(_decoded(await self._get(self._secret, _Secret), CA))
        return renewed

    async def _renew(self, now: datetime) -> bool:
        secret = await self._get(self._secret, _Secret)
        if _read_pair(secret, CA, CA_KEY, now, CA_VALID_FOR) is not None:
            return False
        made, key = make_certificate((CA_NAME,), now, None)
        kept = [each for name in (CERTIFICATE, CA) for each in _certificates(secret, name)]
        trusted = [made, *(_pem(each) for each in kept if each.not_valid_after_utc > now)]
        await self._write(secret, {CA: b"".join(dict.fromkeys(trusted)), CA_KEY: key})
        return True

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


class ServingCertificate(_KeptSecret):
    """Keeps the certificate that a webhook serves in the Secret, signed by the CA there."""

    def __init__(
        self, kube: Kube, secret: tuple[str, str], names: Sequence[str], wall_s: Callable[[], float] = time.time
    ) -> None:
        """secret: namespace and name. names: of the Service in DNS."""
        super().__init__(kube, secret, wall_s)
        self._names = names

    async def _renew(self, now: datetime) -> bool:
        secret = await self._get(self._secret, _Secret)
        authority = _read_pair(secret, CA, CA_KEY, now, timedelta(0))
        if authority is None:
            raise ApiError(f"GET {self._secret}", HTTPStatus.OK, f"no valid CA in {CA} and {CA_KEY}; the Job makes it")
        present = _read_pair(secret, CERTIFICATE, KEY, now, VALID_FOR)
        if present is not None and self._is_ours(present.certificate, authority.certificate):
            return False
        certificate, key = make_certificate(self._names, now, authority)
        await self._write(secret, {CERTIFICATE: certificate, KEY: key})
        return True

    def _is_ours(self, certificate: x509.Certificate, authority: x509.Certificate) -> bool:
        """Return whether a certificate has our names, and is signed by the CA."""
        try:
            certificate.verify_directly_issued_by(authority)
            names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            return set(self._names) <= set(names.get_values_for_type(x509.DNSName))
        except NOT_X509:
            return False


class KeyPair(NamedTuple):
    """A certificate with its private key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def _read_pair(secret: _Secret, name: str, key_name: str, now: datetime, valid_for: timedelta) -> KeyPair | None:
    """Return the first certificate of a file with its key; None: they do not go together, or soon end.

    valid_for: it must have more than a third of this left.
    """
    found = _certificates(secret, name)
    if not found or not found[0].not_valid_before_utc <= now <= found[0].not_valid_after_utc - valid_for / 3:
        return None
    try:
        key = serialization.load_pem_private_key(_decoded(secret, key_name), None)
        if isinstance(key, ec.EllipticCurvePrivateKey) and key.public_key() == found[0].public_key():
            return KeyPair(found[0], key)
    except NOT_X509:
        pass
    return None


def make_certificate(names: Sequence[str], now: datetime, authority: KeyPair | None) -> tuple[bytes, bytes]:
    """Return a certificate and its key, as PEM. authority: signs it; None: it is a CA that signs itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
    is_ca = authority is None
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if authority is None else authority.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCKS_DIFFER)
        .not_valid_after(now + (CA_VALID_FOR if is_ca else VALID_FOR))
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=0 if is_ca else None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    if authority is not None:
        own = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
        builder = builder.add_extension(own, critical=False)
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), False)
        builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    certificate = builder.sign(key if authority is None else authority.key, hashes.SHA256())
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
