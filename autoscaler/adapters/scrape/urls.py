"""Reads metrics text from a fixed list of URLs: DCGM exporters and gateways."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from yarl import URL

from autoscaler.adapters.scrape.exposition import Exposition, Unreadable, parse
from autoscaler.adapters.scrape.report import ReportBuilder
from autoscaler.config.settings import ScrapeSettings
from autoscaler.http.access import Access
from autoscaler.http.credentials import CredentialError
from autoscaler.http.fetch import Fetcher


class UrlReader:
    """Reads all URLs concurrently. An async context manager."""

    def __init__(self, urls: Iterable[str], settings: ScrapeSettings, *, gateways: bool = False) -> None:
        """gateways: send the token for gateways. Raises ValueError for an invalid URL."""
        self.urls = tuple(dict.fromkeys(_url(url) for url in urls))
        access = Access(settings)
        self._token = access.gateway_token if gateways else str
        self._fetcher = Fetcher(
            concurrency=settings.concurrency,
            timeout_s=settings.timeout_s,
            max_body_bytes=settings.max_body_bytes,
            context=access.context,
        )

    async def __aenter__(self) -> Self:
        await self._fetcher.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._fetcher.__aexit__()

    async def read(
        self, sample_names: frozenset[bytes], deadline_s: float, builder: ReportBuilder
    ) -> dict[URL, Exposition]:
        """Return the answers within `deadline_s` seconds. Failures are added to `builder`."""
        answers: dict[URL, Exposition] = {}

        async def visit(url: URL) -> None:
            builder.requests += 1
            try:
                body, problem = await self._fetcher.get(url, self._token())
            except CredentialError as error:
                body, problem = None, str(error)
            if body is not None:
                try:
                    answers[url] = parse(body, sample_names)
                except Unreadable as error:
                    problem = str(error)
            if problem:
                builder.fail(loggable(url), problem)
            elif answers[url].broken:
                builder.note(loggable(url), f"lines that cannot be read: {', '.join(sorted(answers[url].broken))}")

        for url in await self._fetcher.each(self.urls, visit, deadline_s):
            builder.fail(loggable(url), f"not reached within the {deadline_s:g} s of this reading")
        return answers


def _url(text: str) -> URL:
    """Parse an http or https URL. Raises ValueError without the URL, which may contain a password."""
    try:
        url = URL(text)
    except ValueError:
        raise ValueError("a URL to scrape is not valid; allowed: http://host:port/path") from None
    if url.scheme not in {"http", "https"} or not url.host:
        raise ValueError(
            f"a URL to scrape has scheme {url.scheme!r} and host {url.host!r}; allowed: http://host:port/path"
        )
    return url


def loggable(url: URL) -> str:
    """Return a URL for logs, without user, password and query."""
    return f"{url.host}:{url.port}{url.path}"
