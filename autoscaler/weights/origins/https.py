"""Weights on an https server: one file, or a folder with the index that sharded safetensors have."""

from __future__ import annotations

import msgspec
from yarl import URL

from autoscaler.config.findings import UNREADABLE, shown
from autoscaler.config.weights.source import ModelSource
from autoscaler.weights.listing import MAX_FILES, Listing, RemoteFile, check, check_path
from autoscaler.weights.origins.http import HttpReader, version_of
from autoscaler.weights.problems import WeightsCause, WeightsError

INDEX = "model.safetensors.index.json"
MAX_INDEX_BYTES = 32 << 20
MAX_DIGITS = 15  # of a length
BESIDE_WEIGHTS = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "preprocessor_config.json",
)
"""Files that an https folder may have beside its weights: it cannot be listed."""


class Https(HttpReader):
    """A file or a folder of an https server."""

    def __init__(self, source: ModelSource, pickled: bool = False) -> None:
        """pickled: weights that may run code are allowed."""
        host, _, self._prefix = source.location.partition("/")
        self._pickled = pickled
        super().__init__(source, URL(f"https://{host}"))

    async def describe(self) -> Listing:
        """Return the files. Raises WeightsError."""
        try:
            return check(self._source, await self._list(), pickled=self._pickled)
        finally:
            await self.close()

    async def _list(self) -> list[RemoteFile]:
        if self._prefix.endswith((".safetensors", ".gguf")):
            return [await self._head(self._prefix.rpartition("/")[2], self._prefix)]
        index = await self._head(INDEX, f"{self._prefix}/{INDEX}")
        if index.size > MAX_INDEX_BYTES:
            raise WeightsError(WeightsCause.INVALID, f"{self._source}: {INDEX} has more than {MAX_INDEX_BYTES} bytes")
        try:
            decoded = msgspec.json.decode(await self.read(index, 0, index.size))
            shards = set(decoded["weight_map"].values())
        except (*UNREADABLE, KeyError, TypeError, AttributeError) as error:
            raise WeightsError(WeightsCause.INVALID, f"{self._source}: {INDEX} is no index of safetensors") from error
        if len(shards) > MAX_FILES or not all(isinstance(name, str) for name in shards):
            raise WeightsError(WeightsCause.INVALID, f"{self._source}: {INDEX} names no valid files")
        for name in shards:
            check_path(self._source, name)
        files = [index, *[await self._head(name, f"{self._prefix}/{name}") for name in sorted(shards)]]
        for name in BESIDE_WEIGHTS:
            try:
                files.append(await self._head(name, f"{self._prefix}/{name}"))
            except WeightsError as error:
                if error.cause is not WeightsCause.NOT_FOUND:
                    raise
        return files

    async def _head(self, name: str, address: str) -> RemoteFile:
        headers = await self.head(address)
        version, length = version_of(headers), headers.get("Content-Length", "")
        if not version:
            text = f"{self._source}: {shown(name)} states neither an ETag nor a date, so a change could go unnoticed"
            raise WeightsError(WeightsCause.NOT_ALLOWED, f"{text}; allowed: a server that states one of them")
        if not (length.isascii() and length.isdigit() and len(length) <= MAX_DIGITS):
            raise WeightsError(WeightsCause.INVALID, f"{self._source}: {shown(name)} has the length {shown(length)}")
        return RemoteFile(name, int(length), version=version, address=address)
