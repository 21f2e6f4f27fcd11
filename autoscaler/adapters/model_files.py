"""Reads the index and configuration of a model, from a directory or from a hub with the API of Hugging Face.

What is read is untrusted: sizes are bounded, and nothing outside the directory is read.
"""

from __future__ import annotations

import asyncio
import math
import re
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import msgspec

from autoscaler.config.check.engine_memory import ModelFiles, possible_size, read_total_size, weights_of_files
from autoscaler.config.findings import UNREADABLE, shown
from autoscaler.config.model_memory import Range
from autoscaler.config.weights.source import ModelSource
from autoscaler.ports import Clock

HUB = "https://huggingface.co"
DEADLINE_S = 20.0
CONFIG, INDEX = "config.json", "model.safetensors.index.json"
MAX_BYTES = {CONFIG: 1 << 20, INDEX: 32 << 20}
MAX_LISTING_BYTES = 8 << 20
MAX_FILES = 10_000
MAX_SIZES = 2_000  # models whose size is remembered
ASK_S = 2.0  # between two questions
ASK_AGAIN_S = 6 * 3600.0  # after a question without a size as answer
_NAME = re.compile(r"[A-Za-z0-9][-\w.]{0,95}(/[A-Za-z0-9][-\w.]{0,95})?", re.ASCII)


def in_directory(models: Path, model: str) -> ModelFiles | None:
    """Read a model below a directory; None: it is not there.

    Its folder has the whole name, the last part of it, or the name that the hub's cache gives it.
    """
    parts = [part for part in model.split("/") if part]
    if not parts or any(part in (".", "..") for part in parts):
        return None
    root = models.resolve()
    cached = root / f"models--{'--'.join(parts)}" / "snapshots"
    try:
        snapshots = sorted(cached.iterdir())[:MAX_FILES] if cached.is_dir() else []
        for folder in (root.joinpath(*parts), root / parts[-1], *snapshots):
            if (folder / CONFIG).exists() or (folder / INDEX).exists():
                return _read_folder(root, folder)
    except OSError as error:
        return ModelFiles(problem=f"{shown(str(models))} cannot be read: {error.strerror}")
    return None


def _read_folder(root: Path, folder: Path) -> ModelFiles:
    try:
        index, config = (_read(root, folder / name) for name in (INDEX, CONFIG))
        size = read_total_size(index)
        if not math.isnan(size):
            return ModelFiles(Range(size, size), _mapping(config), str(folder))
        sizes = {}
        for number, file in enumerate(folder.iterdir()):
            if number >= MAX_FILES:
                return ModelFiles(problem=f"{shown(str(folder))} has more than {MAX_FILES} files")
            if file.resolve().is_relative_to(root) and file.is_file():
                sizes[file.name] = possible_size(file.stat().st_size)
        return ModelFiles(weights_of_files(sizes), _mapping(config), str(folder))
    except ValueError as error:
        return ModelFiles(problem=f"{shown(str(folder))}: {error}")


def _read(root: Path, file: Path) -> object:
    """Return a JSON file; None: it does not exist. Raises ValueError and OSError."""
    if not file.exists():
        return None
    real = file.resolve()
    if not real.is_relative_to(root):
        raise ValueError(f"{file.name} leads out of the directory")
    if not stat.S_ISREG(real.stat().st_mode):
        raise ValueError(f"{file.name} is not a file")
    with real.open("rb") as opened:
        return _decode(opened.read(MAX_BYTES[file.name] + 1), file.name, MAX_BYTES[file.name])


async def on_hub(model: str, url: str = HUB, revision: str = "main") -> ModelFiles:
    """Read a model of a hub. Never raises for what the hub answers."""
    if not _NAME.fullmatch(model) or ".." in model:
        return ModelFiles(problem=f"{shown(model)} is no name of a model on a hub")
    try:
        async with (
            asyncio.timeout(DEADLINE_S),
            aiohttp.ClientSession(trust_env=True, headers={"Accept-Encoding": "identity"}) as client,
        ):
            at = quote(revision, safe="")
            files = f"{url.rstrip('/')}/{model}/resolve/{at}"
            config = _decode(await _get(client, f"{files}/{CONFIG}", MAX_BYTES[CONFIG]), CONFIG, MAX_BYTES[CONFIG])
            index = _decode(await _get(client, f"{files}/{INDEX}", MAX_BYTES[INDEX]), INDEX, MAX_BYTES[INDEX])
            size = read_total_size(index)
            weights = Range(size, size)
            if math.isnan(size):
                tree = await _get(client, f"{url.rstrip('/')}/api/models/{model}/tree/{at}", MAX_LISTING_BYTES)
                weights = weights_of_files(_listed(_decode(tree, "the list of files", MAX_LISTING_BYTES)))
            return ModelFiles(weights, _mapping(config), f"{url.rstrip('/')}/{model}")
    except TimeoutError:
        problem = f"no answer within {DEADLINE_S:g} s"
    except aiohttp.ClientError as error:
        problem = type(error).__name__
    except ValueError as error:
        problem = str(error)
    return ModelFiles(problem=f"{shown(model)} cannot be read from {shown(url)}: {problem}")


async def _get(client: aiohttp.ClientSession, url: str, limit: int) -> bytes:
    """Return a file; b"": there is none. Raises ValueError for a refusal."""
    async with client.get(url) as response:
        if response.status == 404:
            return b""
        if response.status != 200:
            raise ValueError(f"HTTP {response.status}")
        body = bytearray()
        async for chunk in response.content.iter_chunked(1 << 16):
            body += chunk
            if len(body) > limit:
                break
        return bytes(body)


def _decode(data: bytes, name: str, limit: int) -> Any:
    if len(data) > limit:
        raise ValueError(f"{name} has more than {limit} bytes")
    if not data:
        return None
    try:
        return msgspec.json.decode(data)
    except UNREADABLE as error:
        raise ValueError(f"{name} is not valid JSON") from error


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _listed(tree: object) -> dict[str, float]:
    rows = tree[:MAX_FILES] if isinstance(tree, list) else []
    return {
        row["path"]: possible_size(row.get("size"))
        for row in rows
        if isinstance(row, dict) and isinstance(row.get("path"), str)
    }


class ModelSizes:
    """Bytes of models by the index of a hub. Each is asked for in the background, one after another: `run` it."""

    def __init__(
        self, clock: Clock, url: str = HUB, allows: Callable[[ModelSource], bool] = lambda source: True
    ) -> None:
        """allows: tells which sources may be asked for."""
        self.version = 0  # grows with each answer
        self._clock = clock
        self._url = url
        self._allows = allows
        self._sizes: dict[ModelSource, float] = {}  # NaN: the hub does not say
        self._due: dict[ModelSource, float] = {}  # when to ask for each

    def size_bytes(self, source: ModelSource) -> float:
        """Return the bytes of the weights of a source; NaN: unknown, then a hub's model is asked for soon."""
        if source.scheme == "hf" and source not in self._due and self._allows(source):
            self._due[source] = self._clock.now_s()
            if len(self._due) > MAX_SIZES:
                oldest = next(iter(self._due))
                del self._due[oldest]
                self._sizes.pop(oldest, None)
        return self._sizes.get(source, math.nan)

    async def run(self) -> None:
        """Ask until cancelled. A model that the hub does not know, or not to everybody, is asked for again later."""
        while True:
            now_s = self._clock.now_s()
            source = next((each for each, due_s in self._due.items() if due_s <= now_s), None)
            if source is not None:
                self._due[source] = now_s + ASK_AGAIN_S
                found = await on_hub(source.location, self._url, source.revision)
                if 0 < found.weights.most < math.inf:
                    self._due[source] = math.inf
                    self._sizes[source] = found.weights.most
                    self.version += 1
            await self._clock.sleep(ASK_S)
