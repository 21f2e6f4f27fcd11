"""Pods and gateways that speak TLS and want tokens, as real servers on loopback."""

import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
from pydantic import ValidationError

from autoscaler.adapters.scrape.gateways import GatewayScraper
from autoscaler.adapters.scrape.pods import PodScraper
from autoscaler.config.settings import ScrapeSettings, TlsFiles, Verify
from autoscaler.core.model.fleet import Fleet
from autoscaler.core.model.samples import Samples
from autoscaler.core.table.columns import replace
from tests.adapters.scrape.support import SteppedClock, fleet_of, recorded
from tests.harness.certificates import Certificates
from tests.harness.exposition import Answer, ExpositionServer, exposition_server
from tests.harness.objectives import objectives

NAME_MISMATCH = "certificate is not valid for '127.0.0.1'"


def context_of(certificates: Certificates, name: str) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificates.issue(name))
    return context


@pytest_asyncio.fixture
async def pod(certificates: Certificates) -> AsyncIterator[ExpositionServer]:
    """A pod whose certificate names a service, as those of platforms do."""
    async with exposition_server(context_of(certificates, "qwen.llm.svc")) as served:
        served.serve("/v1/metrics", recorded("saturated"))
        yield served


def asked_at(pod: ExpositionServer, scheme: str = "https", path: str = "/v1/metrics") -> Fleet:
    fleet = fleet_of(pod.address)
    pods = tuple(each._replace(metrics_scheme=scheme, metrics_path=path) for each in fleet.pods)
    return replace(fleet, pods=pods)


async def sample(fleet: Fleet, settings: ScrapeSettings) -> Samples:
    async with PodScraper(settings, SteppedClock()) as scraper:
        return await scraper.sample(fleet, objectives(fleet), deadline_s=20.0)


def shown_to(pod: ExpositionServer) -> list[str | None]:
    return [request.headers.get("Authorization") for request in pod.requests if request.path == "/v1/metrics"]


def settings(certificates: Certificates, **more: object) -> ScrapeSettings:
    return ScrapeSettings(timeout_s=10.0, tls=TlsFiles(ca=certificates.ca), **{"verify": Verify.CA, **more})


async def test_a_pod_is_read_over_tls_when_its_scheme_is_https(
    pod: ExpositionServer, certificates: Certificates
) -> None:
    samples = await sample(asked_at(pod), settings(certificates))
    assert samples.pods.running[0] == 4
    assert samples.reports[0].problems == ()


async def test_full_verification_needs_the_address_in_the_certificate(
    pod: ExpositionServer, certificates: Certificates
) -> None:
    samples = await sample(asked_at(pod), settings(certificates, verify=Verify.FULL))
    assert np.isnan(samples.pods.running[0])
    assert NAME_MISMATCH in samples.reports[0].problems[0]
    async with exposition_server(context_of(certificates, "127.0.0.1")) as named:
        named.serve("/v1/metrics", recorded("saturated"))
        samples = await sample(asked_at(named), settings(certificates, verify=Verify.FULL))
    assert samples.pods.running[0] == 4


async def test_any_certificate_is_accepted_when_none_is_verified(pod: ExpositionServer) -> None:
    samples = await sample(asked_at(pod), ScrapeSettings(timeout_s=10.0, verify=Verify.NONE))
    assert samples.pods.running[0] == 4


async def test_the_annotation_is_named_when_a_pod_speaks_tls(pod: ExpositionServer) -> None:
    (problem,) = (await sample(asked_at(pod, "http"), ScrapeSettings(timeout_s=10.0))).reports[0].problems
    assert problem.startswith("llm/qwen-0: the server speaks TLS")
    assert "vllm-autoscaler.io/metrics-scheme: https" in problem


async def test_the_path_is_named_when_nothing_is_there(pod: ExpositionServer, certificates: Certificates) -> None:
    (problem,) = (await sample(asked_at(pod, path=""), settings(certificates))).reports[0].problems
    assert "HTTP 404" in problem
    assert "vllm-autoscaler.io/metrics-path" in problem
    assert "--enable-metrics" not in problem


async def test_the_switch_of_sglang_is_named_when_nothing_is_there(
    pod: ExpositionServer, certificates: Certificates
) -> None:
    fleet = asked_at(pod, path="")
    fleet = replace(fleet, workloads=tuple(each._replace(engine="sglang") for each in fleet.workloads))
    (problem,) = (await sample(fleet, settings(certificates))).reports[0].problems
    assert "--enable-metrics" in problem


async def test_a_token_is_shown_to_the_pods_of_its_namespace_alone(
    pod: ExpositionServer, certificates: Certificates, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n")
    await sample(asked_at(pod), settings(certificates, tokens=(("llm", token), ("other", token))))
    await sample(asked_at(pod), settings(certificates, tokens=(("other", token),)))
    assert shown_to(pod) == ["Bearer secret", None]


async def test_a_token_is_read_again_when_its_file_changes(
    pod: ExpositionServer, certificates: Certificates, tmp_path: Path
) -> None:
    token, fleet = tmp_path / "token", asked_at(pod)
    async with PodScraper(settings(certificates, tokens=(("llm", token),)), SteppedClock()) as scraper:
        (problem,) = (await scraper.sample(fleet, objectives(fleet), 20.0)).reports[0].problems
        assert f"{token}: No such file" in problem
        for secret in ("first", "second one"):
            token.write_text(secret)
            await scraper.sample(fleet, objectives(fleet), 20.0)
    assert shown_to(pod) == ["Bearer first", "Bearer second one"]


async def test_a_missing_token_is_named_when_a_pod_refuses(pod: ExpositionServer, certificates: Certificates) -> None:
    pod.serve("/v1/metrics", Answer("who?", 401))
    (problem,) = (await sample(asked_at(pod), settings(certificates))).reports[0].problems
    assert problem.endswith(
        "HTTP 401, not 200: it wants a token, which is sent over https alone, by --scrape-token llm=FILE"
    )


async def test_a_gateway_is_read_over_tls_with_its_token(certificates: Certificates, tmp_path: Path) -> None:
    token, fleet = tmp_path / "token", fleet_of("10.0.0.1:8000")
    token.write_text("secret")
    async with exposition_server(context_of(certificates, "127.0.0.1")) as gateway:
        url = gateway.serve("/metrics", 'llm_d_epp_flow_control_queue_size{inference_pool="qwen"} 3\n')
        asked = settings(certificates, gateways=(url,), gateway_token_file=token, verify=Verify.FULL)
        async with GatewayScraper(asked, SteppedClock()) as scraper:
            samples = await scraper.sample(fleet, objectives(fleet), deadline_s=20.0)
        assert gateway.requests[0].headers["Authorization"] == "Bearer secret"
    assert samples.gateways.waiting[0] == 3


def test_tokens_are_refused_when_no_certificate_is_verified(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="a token is sent only to servers whose certificate is verified"):
        ScrapeSettings(verify=Verify.NONE, tokens=(("llm", tmp_path),))
    with pytest.raises(ValidationError, match="a namespace has two tokens"):
        ScrapeSettings(tokens=(("llm", tmp_path), ("llm", tmp_path)))
