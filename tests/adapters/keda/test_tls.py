"""Certificates: invalid ones are refused at start, rotated ones used, and old ones kept if new ones are invalid."""

import time
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import grpc
import pytest
from cryptography.hazmat.primitives import serialization

from autoscaler.adapters.keda.proto.externalscaler_pb2_grpc import ExternalScalerStub
from autoscaler.adapters.keda.server import KedaServer
from autoscaler.adapters.keda.tls import RotatingCertificates
from autoscaler.config.settings import KedaSettings, TlsFiles
from autoscaler.http.certificates import MAX_FILE_BYTES, CertificateError, check
from autoscaler.ports import CannotServe
from tests.adapters.keda.test_service import reference
from tests.adapters.keda.world import World
from tests.harness.certificates import Certificates, KeyPair
from tests.harness.process import PATIENCE_S


@asynccontextmanager
async def serving(files: TlsFiles):
    world = World()
    world.decide()
    async with KedaServer(KedaSettings(host="127.0.0.1", port=0, tls=files), world.service, world.lease) as server:
        yield server


async def ask(port: int, ca: Path, client: KeyPair | None = None) -> bool:
    """Make one call on a new connection. Raises AioRpcError if the handshake fails."""
    key, certificate = _bytes(client) if client else (None, None)
    credentials = grpc.ssl_channel_credentials(_trusted(ca), key, certificate)
    options = [("grpc.use_local_subchannel_pool", 1)]  # or gRPC reuses a connection with the same credentials
    async with grpc.aio.secure_channel(f"localhost:{port}", credentials, options) as channel:
        return (await ExternalScalerStub(channel).IsActive(reference(), timeout=PATIENCE_S)).result


def _trusted(ca: Path) -> bytes:
    return ca.read_bytes()


def _bytes(pair: KeyPair) -> tuple[bytes, bytes]:
    return pair.key.read_bytes(), pair.certificate.read_bytes()


def other_authority(tmp_path: Path) -> Certificates:
    (tmp_path / "other").mkdir()
    return Certificates(tmp_path / "other")


async def test_only_tls_calls_are_answered(certificates: Certificates):
    pair = certificates.issue("localhost")
    async with serving(TlsFiles(cert=pair.certificate, key=pair.key)) as server:
        assert await ask(server.port, certificates.ca)
        async with grpc.aio.insecure_channel(f"localhost:{server.port}") as channel:
            with pytest.raises(grpc.aio.AioRpcError):
                await ExternalScalerStub(channel).IsActive(reference(), timeout=1)


async def test_client_certificate_is_required_with_a_ca(certificates: Certificates, tmp_path: Path):
    pair = certificates.issue("localhost")
    async with serving(TlsFiles(cert=pair.certificate, key=pair.key, ca=certificates.ca)) as server:
        assert await ask(server.port, certificates.ca, certificates.issue("keda"))
        for stranger in (None, other_authority(tmp_path).issue("keda")):
            with pytest.raises(grpc.aio.AioRpcError):
                await ask(server.port, certificates.ca, stranger)


async def test_rotated_certificate_is_used_for_new_connections(certificates: Certificates, tmp_path: Path):
    pair = certificates.issue("localhost")
    other = other_authority(tmp_path)
    async with serving(TlsFiles(cert=pair.certificate, key=pair.key)) as server:
        credentials = grpc.ssl_channel_credentials(certificates.ca.read_bytes())
        async with grpc.aio.secure_channel(f"localhost:{server.port}", credentials) as channel:
            old = ExternalScalerStub(channel)
            await old.IsActive(reference(), timeout=PATIENCE_S)
            rotate(pair, other.issue("localhost"))
            assert await ask(server.port, other.ca)
            with pytest.raises(grpc.aio.AioRpcError):
                await ask(server.port, certificates.ca)
            assert (await old.IsActive(reference(), timeout=PATIENCE_S)).result
        assert server.problem == ""


async def test_rotation_before_the_first_connection_is_used(certificates: Certificates, tmp_path: Path):
    pair, other = certificates.issue("localhost"), other_authority(tmp_path)
    async with serving(TlsFiles(cert=pair.certificate, key=pair.key)) as server:
        rotate(pair, other.issue("localhost"))
        assert server.problem == ""
        assert await ask(server.port, other.ca)


async def test_ca_of_the_clients_rotates_too(certificates: Certificates, tmp_path: Path):
    pair, ca = certificates.issue("localhost"), tmp_path / "clients.pem"
    ca.write_bytes(certificates.ca.read_bytes())
    other = other_authority(tmp_path)
    async with serving(TlsFiles(cert=pair.certificate, key=pair.key, ca=ca)) as server:
        with pytest.raises(grpc.aio.AioRpcError):
            await ask(server.port, certificates.ca, other.issue("keda"))
        ca.write_bytes(other.ca.read_bytes())
        assert await ask(server.port, certificates.ca, other.issue("keda"))


async def test_swapped_symlink_is_a_rotation(certificates: Certificates, tmp_path: Path):
    other = other_authority(tmp_path)
    for name, pair in (("1", certificates.issue("localhost")), ("2", other.issue("localhost"))):
        (tmp_path / name).mkdir()
        pair.certificate.rename(tmp_path / name / "tls.crt")
        pair.key.rename(tmp_path / name / "tls.key")
    (tmp_path / "..data").symlink_to("1")
    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).symlink_to(f"..data/{name}")
    async with serving(TlsFiles(cert=tmp_path / "tls.crt", key=tmp_path / "tls.key")) as server:
        assert await ask(server.port, certificates.ca)
        (tmp_path / "..data_tmp").symlink_to("2")
        (tmp_path / "..data_tmp").rename(tmp_path / "..data")
        assert await ask(server.port, other.ca)


@pytest.mark.parametrize("broken", ["expired", "half-written", "not its key", "gone"])
async def test_old_certificate_stays_when_the_new_is_invalid(certificates: Certificates, broken: str):
    pair = certificates.issue("localhost")
    good = KeyPair(pair.certificate.with_suffix(".good"), pair.key.with_suffix(".goodkey"))
    rotate(good, pair)
    async with serving(TlsFiles(cert=pair.certificate, key=pair.key)) as server:
        if broken == "expired":
            certificates.issue("localhost", valid_for=timedelta(hours=-1))
        elif broken == "half-written":
            pair.certificate.write_bytes(good.certificate.read_bytes()[:300])
        elif broken == "not its key":
            pair.key.write_bytes(certificates.issue("another").key.read_bytes())
        else:
            pair.certificate.unlink()
        assert await ask(server.port, certificates.ca)
        assert str(pair.certificate) in server.problem
        rotate(pair, good)
        assert await ask(server.port, certificates.ca)
        assert server.problem == ""


def rotate(pair: KeyPair, new: KeyPair) -> None:
    """Put the contents of one pair of files into another."""
    pair.certificate.write_bytes(new.certificate.read_bytes())
    pair.key.write_bytes(new.key.read_bytes())


class TestAtStart:
    async def refusal(self, files: TlsFiles) -> str:
        with pytest.raises(CannotServe) as caught:
            async with serving(files):
                pass
        return str(caught.value)

    async def test_missing_certificate_is_named(self, certificates: Certificates):
        pair = certificates.issue("localhost")
        pair.certificate.unlink()
        text = await self.refusal(TlsFiles(cert=pair.certificate, key=pair.key))
        assert text == f"gRPC certificate: {pair.certificate}: No such file or directory"

    async def test_expired_certificate_is_named(self, certificates: Certificates):
        pair = certificates.issue("localhost", valid_for=timedelta(hours=-1))
        text = await self.refusal(TlsFiles(cert=pair.certificate, key=pair.key))
        assert text == f"gRPC certificate: {pair.certificate}: certificate has expired"

    async def test_key_of_another_certificate_is_named(self, certificates: Certificates):
        pair, other = certificates.issue("localhost"), certificates.issue("other")
        text = await self.refusal(TlsFiles(cert=pair.certificate, key=other.key))
        assert str(other.key) in text and "key values mismatch" in text

    async def test_key_with_a_password_is_refused_without_a_prompt(self, certificates: Certificates, tmp_path: Path):
        pair = certificates.issue("localhost")
        locked = tmp_path / "locked.key"
        locked.write_bytes(_encrypted(pair.key.read_bytes()))
        text = await self.refusal(TlsFiles(cert=pair.certificate, key=locked))
        assert str(locked) in text and "encrypted; allowed: a key without a password" in text

    async def test_invalid_file_is_named(self, certificates: Certificates, tmp_path: Path):
        pair = certificates.issue("localhost")
        rubbish = tmp_path / "rubbish.pem"
        for content in (b"", b"\x00\xff" * 100, b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"):
            rubbish.write_bytes(content)
            assert str(rubbish) in await self.refusal(TlsFiles(cert=rubbish, key=pair.key))
            assert str(rubbish) in await self.refusal(TlsFiles(cert=pair.certificate, key=rubbish))
            assert str(rubbish) in await self.refusal(TlsFiles(cert=pair.certificate, key=pair.key, ca=rubbish))

    async def test_endless_file_is_not_read(self, certificates: Certificates, tmp_path: Path):
        pair, large = certificates.issue("localhost"), tmp_path / "large.pem"
        large.write_bytes(b"#" * (MAX_FILE_BYTES + 1))
        assert "larger than" in await self.refusal(TlsFiles(cert=large, key=pair.key))

    async def test_ca_without_certificate_is_refused(self, certificates: Certificates):
        assert "needs a certificate and its key" in await self.refusal(TlsFiles(ca=certificates.ca))


def test_valid_certificate_with_its_chain_passes(certificates: Certificates):
    pair = certificates.issue("localhost", valid_for=timedelta(hours=1))
    pair.certificate.write_bytes(pair.certificate.read_bytes() + certificates.ca.read_bytes())
    assert 3600 - 2 * PATIENCE_S < check(pair.certificate, pair.key) - time.time() < 3601


def test_expiry_of_the_present_certificate_is_reported(certificates: Certificates):
    pair = certificates.issue("localhost", valid_for=timedelta(hours=1))
    now_s = time.time()
    rotating = RotatingCertificates(TlsFiles(cert=pair.certificate, key=pair.key), lambda: now_s)
    assert rotating.problem == ""
    now_s += 3601
    assert rotating.changed() is None
    assert rotating.problem == f"{pair.certificate}: certificate has expired"


class TestWithoutConnections:
    """A follower has no client, and only its `problem` is read."""

    def test_renewed_certificate_is_found_without_a_client(self, certificates: Certificates):
        pair = certificates.issue("localhost", valid_for=timedelta(hours=1))
        now_s = time.time()
        rotating = RotatingCertificates(TlsFiles(cert=pair.certificate, key=pair.key), lambda: now_s)
        rotating.credentials()
        now_s += 3601
        assert "expired" in rotating.problem
        certificates.issue("localhost", valid_for=timedelta(hours=3))
        assert rotating.problem == ""
        assert rotating.changed() is not None, "the server that is open has the old one still"
        assert rotating.changed() is None
        certificates.issue("localhost", valid_for=timedelta(hours=4))
        assert rotating.problem == ""
        rotating.credentials()
        assert rotating.changed() is None, "the server that was opened since has the new one"

    def test_invalid_files_are_reported_until_they_are_valid(self, certificates: Certificates):
        pair = certificates.issue("localhost")
        rotating = RotatingCertificates(TlsFiles(cert=pair.certificate, key=pair.key))
        certificates.issue("localhost", valid_for=timedelta(seconds=-1))
        assert rotating.problem == f"{pair.certificate}: certificate has expired"
        pair.certificate.unlink()
        assert "No such file" in rotating.problem
        assert rotating.changed() is None
        certificates.issue("localhost")
        assert rotating.problem == ""
        assert rotating.changed() is not None


def test_expired_certificate_does_not_replace_a_valid_one(certificates: Certificates):
    pair = certificates.issue("localhost")
    rotating = RotatingCertificates(TlsFiles(cert=pair.certificate, key=pair.key))
    assert rotating.changed() is None and rotating.problem == ""
    certificates.issue("localhost", valid_for=timedelta(seconds=-1))
    assert rotating.changed() is None
    assert rotating.problem == f"{pair.certificate}: certificate has expired"


def test_files_are_read_only_when_they_change(certificates: Certificates):
    pair = certificates.issue("localhost")
    rotating = RotatingCertificates(TlsFiles(cert=pair.certificate, key=pair.key))
    assert rotating.changed() is None
    certificates.issue("localhost")
    assert rotating.changed() is not None
    assert rotating.changed() is None


def test_certificate_error_for_any_invalid_path(tmp_path: Path):
    with pytest.raises(CertificateError, match="Is a directory"):
        RotatingCertificates(TlsFiles(cert=tmp_path, key=tmp_path))
    with pytest.raises(CertificateError, match=r"gone\.pem with key .*: No such file"):
        check(tmp_path / "gone.pem", tmp_path / "gone.key")  # as where they go between two looks


def _encrypted(key: bytes) -> bytes:
    return serialization.load_pem_private_key(key, None).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
