"""Weights on a hub with the API of Hugging Face: listed by huggingface-hub, read in ranges.

The hub's own library fetches whole files again after a crash, so only listing and authentication are left to it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import httpx2
from huggingface_hub import HfApi, set_client_factory
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from yarl import URL

from autoscaler.config.findings import shown
from autoscaler.config.weights.source import ModelSource
from autoscaler.weights.listing import Listing, RemoteFile, check
from autoscaler.weights.origins.http import HttpReader, limit_of
from autoscaler.weights.problems import WeightsCause, WeightsError

ENDPOINT = "https://huggingface.co"
SILENCE_S = 30.0
LIST_S = 120.0  # for a listing as a whole
MAX_LIST_BYTES = 16 << 20  # twice what 20,000 files with long names take
_threads = ThreadPoolExecutor(4, "hub")  # a hub that never ends its headers holds no other threads

READ_ERRORS = (httpx2.HTTPError, OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""What the library raises for a hub that refuses, does not answer, or answers with something else than a listing."""


class _TooLongError(httpx2.HTTPError):
    """The answer of a hub is longer than any listing."""


class _Bounded(httpx2.SyncByteStream):
    """A body of bounded length and time. The library itself reads bodies of any length."""

    def __init__(self, inner: httpx2.SyncByteStream, until_s: float) -> None:
        self._inner, self._until_s = inner, until_s

    def __iter__(self) -> Iterator[bytes]:
        received = 0
        for piece in self._inner:
            received += len(piece)
            if received > MAX_LIST_BYTES:
                raise _TooLongError(f"more than {MAX_LIST_BYTES} bytes")
            if time.monotonic() > self._until_s:
                raise httpx2.ReadTimeout("the answer does not end")
            yield piece

    def close(self) -> None:
        self._inner.close()


def _bound(response: httpx2.Response) -> None:
    """Bound the body of an answer before it is read. A packed one, which no request asks for, could have any length."""
    if response.url.scheme == "https" and response.headers.get("location", "").lower().startswith("http:"):
        raise httpx2.UnsupportedProtocol("the answer redirects to plain HTTP")
    if response.headers.get("content-encoding", "identity") != "identity":
        raise httpx2.DecodingError("the answer is packed")
    assert isinstance(response.stream, httpx2.SyncByteStream)
    response.stream = _Bounded(response.stream, time.monotonic() + LIST_S)


set_client_factory(
    lambda: httpx2.Client(
        headers={"accept-encoding": "identity"}, event_hooks={"response": [_bound]}, follow_redirects=True
    )
)


class Hub(HttpReader):
    """One revision of a model on a hub."""

    def __init__(
        self,
        source: ModelSource,
        endpoint: str = ENDPOINT,
        token: str = "",
        pickled: bool = False,
        list_s: float = LIST_S,
    ) -> None:
        """endpoint: URL of the hub or a mirror of it. token: for private and gated models. list_s: for a listing."""
        url = urlsplit(endpoint)
        if url.scheme not in ("http", "https") or not url.hostname or url.username or url.query:
            raise WeightsError(WeightsCause.INVALID, f"{shown(endpoint)} is no URL of a hub; allowed: https://HOST")
        self._api = HfApi(endpoint=endpoint.rstrip("/"), token=token or False)
        self._pickled = pickled
        self._list_s = list_s
        base = URL(endpoint)
        self._limit = limit_of(base, "api")
        super().__init__(source, base, token)

    async def describe(self) -> Listing:
        """Return the files of the commit that the revision names now. Raises WeightsError."""
        if (wait_s := self._limit.wait_s()) > 0:
            text = f"{self._source}: the hub asks for no request before {wait_s:.0f} s have passed"
            raise WeightsError(WeightsCause.UNREACHABLE, text)
        try:
            request = partial(
                self._api.model_info,
                self._source.location,
                revision=self._source.revision,
                files_metadata=True,
                timeout=SILENCE_S,
            )
            async with asyncio.timeout(self._list_s):
                info = await asyncio.get_running_loop().run_in_executor(_threads, request)
        except READ_ERRORS as error:  # and TimeoutError, which is an OSError
            raise self._explain(error) from error
        try:
            files = list(self._files(info))
        except (AttributeError, OverflowError, TypeError, ValueError) as error:
            raise WeightsError(WeightsCause.INVALID, f"{self._source}: the hub's list of files is not valid") from error
        return check(self._source, files, str(info.sha or ""), self._pickled)

    def _files(self, info: Any) -> Iterator[RemoteFile]:
        for sibling in info.siblings or ():
            lfs = sibling.lfs
            yield RemoteFile(
                path=str(sibling.rfilename),
                size=-1 if sibling.size is None else int(sibling.size),
                sha256=str(lfs.sha256) if lfs else "",
                git_sha1="" if lfs else str(sibling.blob_id or ""),
                address=f"{self._source.location}/resolve/{info.sha}/{sibling.rfilename}",
            )

    def _explain(self, error: Exception) -> WeightsError:
        """Return what an error of the library means, without its text: it may hold a token."""
        status = 0
        if isinstance(error, HfHubHTTPError) and error.response is not None:
            status = error.response.status_code
            self._limit.note(status, error.response.headers)
        if isinstance(error, GatedRepoError) or status in (401, 403):
            text = "the hub refuses access: the model is gated or private, or the token is missing or not valid"
            return WeightsError(WeightsCause.DENIED, f"{self._source}: {text}")
        if isinstance(error, RepositoryNotFoundError | RevisionNotFoundError) or status == 404:
            return WeightsError(WeightsCause.NOT_FOUND, f"{self._source}: the hub has no such model or revision")
        if isinstance(error, _TooLongError):
            text = f"the list of files has more than {MAX_LIST_BYTES} bytes"
            return WeightsError(WeightsCause.NOT_ALLOWED, f"{self._source}: {text}")
        if isinstance(error, HFValidationError):
            return WeightsError(WeightsCause.INVALID, f"{self._source}: the hub allows no such name")
        reason = f"HTTP {status}" if status else type(error).__name__
        return WeightsError(WeightsCause.UNREACHABLE, f"{self._source}: the hub cannot be read ({reason})")
