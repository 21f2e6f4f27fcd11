"""The weights that the daemon wishes on each node: a JSON document per node, in a few ConfigMaps.

A node without a document has no known wish, and keeps its models. An empty document wishes nothing.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from autoscaler.config.findings import UNREADABLE, shown
from autoscaler.config.weights.source import InvalidSourceError, ModelSource, parse

FORMAT = 1
MAX_MODELS = 64  # of one node
MAX_BYTES = 16 << 10  # of one document
CONFIG_MAPS = 64
CONFIG_MAP_PREFIX = "vllm-autoscaler-weights-"


class InvalidWishesError(ValueError):
    """A document of wishes cannot be used. The text says why."""


class Wish(NamedTuple):
    """A model that a node should hold."""

    source: ModelSource
    pinned: bool = False  # never evicted


class Wishes(NamedTuple):
    """The models that one node should hold."""

    wishes: tuple[Wish, ...] = ()  # in the order in which to fetch, without repetition
    refused: tuple[tuple[str, str], ...] = ()  # sources that are not valid, and why; untrusted text


class _WishModel(msgspec.Struct, frozen=True, omit_defaults=True):
    source: str
    pinned: bool = False


class _WishDocument(msgspec.Struct, frozen=True):
    format: int
    models: list[_WishModel]


class _WishFormat(msgspec.Struct, frozen=True):
    format: int


def config_map_of(node: str) -> str:
    """Return the name of the ConfigMap that holds the wishes for a node, under the node's name."""
    return f"{CONFIG_MAP_PREFIX}{zlib.crc32(node.encode()) % CONFIG_MAPS:02d}"


def encode(wishes: Iterable[Wish]) -> str:
    """Return the document of a node. The last wishes are left out if there are too many."""
    models: dict[ModelSource, _WishModel] = {}
    for wish in wishes:
        models.setdefault(wish.source, _WishModel(str(wish.source), wish.pinned))
    kept = list(models.values())[:MAX_MODELS]
    while len(text := msgspec.json.encode(_WishDocument(FORMAT, kept))) > MAX_BYTES:
        kept.pop()
    return text.decode()


def decode(text: str) -> Wishes:
    """Read the document of a node. Raises InvalidWishesError.

    A source that is not valid is refused alone, so that the other models go on.
    """
    if not text.strip():
        return Wishes()
    if len(text) > MAX_BYTES or len(text.encode(errors="replace")) > MAX_BYTES:
        raise InvalidWishesError(f"the wishes have more than {MAX_BYTES} bytes")
    try:
        found = msgspec.json.decode(text.encode(errors="replace"), type=_WishFormat).format
        if found != FORMAT:
            raise InvalidWishesError(f"the wishes have the format {found}; allowed: {FORMAT}")
        models = msgspec.json.decode(text.encode(), type=_WishDocument).models
    except UNREADABLE as error:
        raise InvalidWishesError(f"the wishes are not valid: {shown(str(error))}") from error
    if len(models) > MAX_MODELS:
        raise InvalidWishesError(f"the wishes name {len(models)} models; allowed: {MAX_MODELS}")
    wishes: dict[ModelSource, Wish] = {}
    refused = []
    for model in models:
        try:
            source = parse(model.source)
        except InvalidSourceError as error:
            refused.append((model.source, str(error)))
        else:
            wishes.setdefault(source, Wish(source, model.pinned))
    return Wishes(tuple(wishes.values()), tuple(refused))
