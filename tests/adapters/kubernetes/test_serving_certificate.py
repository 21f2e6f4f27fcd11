"""The webhook's own certificate on a real API server: made, trusted, renewed in time, by several replicas at once."""

import asyncio
import base64
import copy
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pytest
import pytest_asyncio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtensionOID, NameOID

from autoscaler.adapters.kubernetes.api.client import ApiError, Kube
from autoscaler.adapters.kubernetes.serving_certificate import Authority, ServingCertificate, make_certificate
from tests.adapters.kubernetes.conftest import Connect, in_namespace
from tests.adapters.webhook.test_server import MANIFEST, configuration_of
from tests.harness.kube_api import KubeApi, User, granted, load_manifests

pytestmark = pytest.mark.integration

DAY_S = 86_400.0
SECRET = "vllm-autoscaler-webhook"
TRUST = MANIFEST.with_name("trust.yaml")


def webhook_roles() -> list[dict[str, Any]]:
    """Return the shipped roles of the webhook."""
    return [each for each in load_manifests(MANIFEST) if each["kind"] == "Role"]


def trust_roles(configuration: str) -> list[dict[str, Any]]:
    """Return the shipped roles of the Job, for a configuration of another name."""
    (role,) = [copy.deepcopy(each) for each in load_manifests(TRUST) if each["kind"] == "ClusterRole"]
    role["metadata"]["name"] = configuration
    role["rules"][0]["resourceNames"] = [configuration]
    return [*webhook_roles(), role]


class Site(NamedTuple):
    api: KubeApi
    kube: Kube  # of the webhook
    trusting: Kube  # of the Job
    namespace: str
    user: User
    job: User

    async def ensure(self, wall_s: Callable[[], float] = time.time) -> bool:
        """Do what the Job does, and then what the webhook does; return whether the webhook renewed."""
        await self.authority(wall_s).ensure()
        return await self.certificate(wall_s).ensure()

    def authority(self, wall_s: Callable[[], float] = time.time) -> Authority:
        return Authority(self.trusting, (self.namespace, SECRET), self.namespace, wall_s)

    def certificate(self, wall_s: Callable[[], float] = time.time) -> ServingCertificate:
        names = [f"{SECRET}.{self.namespace}.svc"]
        return ServingCertificate(self.kube, (self.namespace, SECRET), names, wall_s)

    async def data(self) -> dict[str, bytes]:
        secret = await self.api.get("v1", "Secret", self.namespace, SECRET)
        return {name: base64.b64decode(value) for name, value in secret.get("data", {}).items()}

    async def trusted(self) -> bytes:
        kind = "admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration"
        found = await self.api.get(*kind, None, self.namespace)
        return base64.b64decode(found["webhooks"][0]["clientConfig"].get("caBundle", ""))


@pytest_asyncio.fixture
async def site(kube_api: KubeApi, namespace: str, connect: Connect) -> Site:
    user = await kube_api.service_account(namespace, "webhook", *in_namespace(webhook_roles(), namespace))
    job = await kube_api.service_account(namespace, "trust", *in_namespace(trust_roles(namespace), namespace))
    configuration, _ = configuration_of(namespace, namespace, 443)
    (secret,) = [each for each in load_manifests(MANIFEST) if each["kind"] == "Secret"]
    del secret["metadata"]["namespace"]
    await kube_api.apply(configuration)
    await kube_api.apply(secret, namespace=namespace)
    return Site(kube_api, await connect(user), await connect(job), namespace, user, job)


def ends(data: dict[str, bytes]) -> datetime:
    return x509.load_pem_x509_certificate(data["tls.crt"]).not_valid_after_utc


def is_valid(data: dict[str, bytes]) -> None:
    """Check that the certificate is signed by the first one that is trusted."""
    authority = x509.load_pem_x509_certificates(data["ca.crt"])[0]
    x509.load_pem_x509_certificate(data["tls.crt"]).verify_directly_issued_by(authority)


async def test_certificate_is_made_once_and_its_ca_trusted(site: Site) -> None:
    with pytest.raises(ApiError, match="no valid CA"):
        await site.certificate().ensure()
    assert await site.ensure()
    made = await site.data()
    assert await site.trusted() == made["ca.crt"]
    is_valid(made)
    assert not await site.ensure()
    assert await site.data() == made
    assert site.api.used(site.user) == granted(*webhook_roles())
    assert site.api.used(site.job) == granted(*trust_roles(site.namespace))


async def test_webhook_cannot_change_its_configuration(site: Site) -> None:
    """Else who takes it over reads each Secret that is written in the cluster."""
    await site.ensure()
    path = f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{site.namespace}"
    rules = [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["secrets"], "operations": ["*"]}]
    patch = [{"op": "replace", "path": "/webhooks/0/rules", "value": rules}]
    for verb, body in (("GET", None), ("PATCH", patch)):
        with pytest.raises(ApiError, match="403"):
            await site.kube.request(verb, path, body, content_type="application/json-patch+json")


async def test_renewal_in_time_keeps_the_ca(site: Site) -> None:
    await site.ensure()
    first = await site.data()
    assert not await site.certificate(lambda: time.time() + 59 * DAY_S).ensure()
    assert await site.certificate(lambda: time.time() + 61 * DAY_S).ensure()
    second = await site.data()
    assert ends(second) > ends(first) and second["ca.crt"] == first["ca.crt"] == await site.trusted()
    is_valid(second)


async def test_new_ca_keeps_former_ones_trusted_until_they_end(site: Site) -> None:
    await site.ensure()
    first = await site.data()
    assert await site.authority(lambda: time.time() + 2500 * DAY_S).ensure()
    second = await site.data()
    assert second["ca.crt"].endswith(first["ca.crt"]) and await site.trusted() == second["ca.crt"]
    assert await site.certificate(lambda: time.time() + 2500 * DAY_S).ensure()
    is_valid(await site.data())


async def test_self_signed_certificate_stays_trusted_when_a_ca_comes(site: Site) -> None:
    """As webhooks of version 0.2 made them."""
    made, key = make_certificate(("old",), datetime.now(UTC), None)
    files = {"tls.crt": made, "tls.key": key, "ca.crt": made}
    secret = await site.api.get("v1", "Secret", site.namespace, SECRET)
    secret["data"] = {name: base64.b64encode(content).decode() for name, content in files.items()}
    path = await site.api.path("v1", "Secret", site.namespace, SECRET)
    await site.api.request("PUT", path, secret)
    await site.authority().ensure()
    assert made in await site.trusted()
    assert await site.certificate().ensure()
    is_valid(await site.data())


async def test_expired_certificate_is_replaced(site: Site) -> None:
    await site.ensure(lambda: time.time() - 100 * DAY_S)
    assert ends(await site.data()) < datetime.now(UTC)
    assert await site.ensure()
    assert ends(await site.data()) > datetime.now(UTC)


async def test_replicas_that_renew_at_once_agree(site: Site) -> None:
    await asyncio.gather(*(site.authority().ensure() for _ in range(3)))
    renewed = await asyncio.gather(*(site.certificate().ensure() for _ in range(3)))
    assert any(renewed)
    assert await site.trusted() == (await site.data())["ca.crt"]
    assert not await site.ensure()


async def test_certificate_of_a_clock_that_was_ahead_is_replaced(site: Site) -> None:
    """It is not valid yet, so that the API server would refuse it for years."""
    await site.ensure(lambda: time.time() + 4000 * DAY_S)
    assert await site.ensure()
    is_valid(await site.data())
    begins = x509.load_pem_x509_certificate((await site.data())["tls.crt"]).not_valid_before_utc
    assert begins < datetime.now(UTC)
    assert not await site.ensure()


def odd_certificate() -> bytes:
    """Return a certificate with a name of a kind that X.509 defines and hardly a library reads."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "odd")])
    now = datetime.now(UTC)
    x400_address = bytes.fromhex("3002a300")  # a SubjectAlternativeName of one x400Address
    extension = x509.UnrecognizedExtension(ExtensionOID.SUBJECT_ALTERNATIVE_NAME, x400_address)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(now).not_valid_after(now + timedelta(days=80))
    certificate = builder.add_extension(extension, critical=False).sign(key, hashes.SHA256())
    return certificate.public_bytes(serialization.Encoding.PEM)


def odd_key() -> bytes:
    """Return a private key of an algorithm that no library knows."""
    content = bytes.fromhex("300e0201003006060453c7f2770401 00".replace(" ", ""))
    return b"-----BEGIN PRIVATE KEY-----\n" + base64.b64encode(content) + b"\n-----END PRIVATE KEY-----\n"


@pytest.mark.parametrize(
    "content", [b"-----BEGIN CERTIFICATE-----\nx", b"\xff\x00", None, odd_certificate(), odd_key()]
)
@pytest.mark.parametrize("name", ["tls.crt", "tls.key", "ca.crt", "ca.key"])
async def test_damaged_secret_is_written_again(site: Site, name: str, content: bytes | None) -> None:
    await site.ensure()
    secret = await site.api.get("v1", "Secret", site.namespace, SECRET)
    secret["data"][name] = None if content is None else base64.b64encode(content).decode()
    path = await site.api.path("v1", "Secret", site.namespace, SECRET)
    await site.api.request("PUT", path, secret)
    assert await site.ensure()
    assert not await site.ensure()


async def test_replaced_configuration_is_trusted_after_the_next_job(site: Site) -> None:
    await site.ensure()
    configuration, _ = configuration_of(site.namespace, site.namespace, 443)
    path = await site.api.path(configuration["apiVersion"], configuration["kind"], None, site.namespace)
    metadata = (await site.api.request("GET", path))["metadata"]
    configuration["metadata"]["resourceVersion"] = metadata["resourceVersion"]
    await site.api.request("PUT", path, configuration)
    assert await site.trusted() == b""
    assert not await site.ensure()
    assert await site.trusted() == (await site.data())["ca.crt"]


async def test_missing_secret_is_reported(site: Site) -> None:
    await site.api.delete("v1", "Secret", site.namespace, SECRET)
    with pytest.raises(ApiError, match="404"):
        await site.ensure()
