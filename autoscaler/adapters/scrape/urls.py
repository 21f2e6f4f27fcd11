"""Reading metrics text from a fixed list of URLs, as DCGM exporters and gateways are configured."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from yarl import URL

from autoscaler.adapters.credentials import CredentialError
from autoscaler.adapters.scrape.access import Access
from autoscaler.adapters.scrape.exposition import Exposition, Unreadable, parse
from autoscaler.adapters.scrape.fetch import Fetcher
from autoscaler.adapters.scrape.tally import Tally
from autoscaler.config.settings import ScrapeSettings


class UrlReader:
    """Reads all its URLs at once. An async context manager."""

    def __init__(self, urls: Iterable[str], settings: ScrapeSettings, *, gateways: bool = False) -> None:
        """gateways: they are shown the token for gateways. Raise ValueError for a URL that is none."""
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

    async def read(self, wanted: frozenset[bytes], deadline_s: float, tally: Tally) -> dict[URL, Exposition]:
        """Return what was answered within `deadline_s` seconds; the rest is counted and named in `tally`."""
        answers: dict[URL, Exposition] = {}

        async def visit(url: URL) -> None:
            tally.requests += 1
            try:
                body, problem = await self._fetcher.get(url, self._token())
            except CredentialError as error:
                body, problem = None, str(error)
            if body is not None:
                try:
                    answers[url] = parse(body, wanted)
                except Unreadable as error:
                    problem = str(error)
            if problem:
                tally.fail(public(url), problem)
            elif answers[url].broken:
                tally.note(public(url), f"lines that cannot be read: {', '.join(sorted(answers[url].broken))}")

        for url in await self._fetcher.each(self.urls, visit, deadline_s):
            tally.fail(public(url), f"not reached within the {deadline_s:g} s of this reading")
        return answers


def _url(text: str) -> URL:
    """Read an http or https URL. Raises ValueError, which does not quote it: it may hold a password."""
    try:
        url = URL(text)
    except ValueError:
        raise ValueError("a URL to scrape is not valid; allowed: http://host:port/path") from None
    if url.scheme not in {"http", "https"} or not url.host:
        raise ValueError(
            f"a URL to scrape has scheme {url.scheme!r} and host {url.host!r}; allowed: http://host:port/path"
        )
    return url


def public(url: URL) -> str:
    """Return what may be said of a URL in a log: not its user, password or query."""
    return f"{url.host}:{url.port}{url.path}"
