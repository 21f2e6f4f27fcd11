"""Accepted URLs, and their form in logs. The tests of the scrapers read them."""

import pytest

from autoscaler.adapters.scrape.report import ReportBuilder
from autoscaler.adapters.scrape.urls import UrlReader
from autoscaler.config.settings import ScrapeSettings
from tests.harness.exposition import ExpositionServer


@pytest.mark.parametrize("url", ["file:///etc/passwd", "dcgm:9400/m", "http://", "", "http://[::1", "ftp://u:pw@h/"])
def test_an_invalid_url_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ValueError, match="allowed: http://host:port/path") as refused:
        UrlReader([url], ScrapeSettings())
    assert "pw" not in str(refused.value)


async def test_a_url_given_twice_is_read_once(exposition_server: ExpositionServer) -> None:
    url = exposition_server.serve("/metrics", "a 1\n")
    builder = ReportBuilder()
    async with UrlReader([url, url], ScrapeSettings()) as reader:
        (answer,) = (await reader.read(frozenset([b"a"]), 20.0, builder)).values()
    assert answer.series == {"a": [({}, 1.0)]}
    assert exposition_server.asked("/metrics") == 1


async def test_broken_lines_are_named_without_the_password_of_the_url(exposition_server: ExpositionServer) -> None:
    exposition_server.serve("/metrics", "a\nb 1\n")
    builder = ReportBuilder()
    async with UrlReader([f"http://user:secret@{exposition_server.address}/metrics"], ScrapeSettings()) as reader:
        await reader.read(frozenset([b"a", b"b"]), 20.0, builder)
    report = builder.build("x", 0.0)
    assert report.failed == 0
    assert report.problems == (f"{exposition_server.address}/metrics: lines that cannot be read: a",)
