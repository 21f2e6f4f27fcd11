"""How platforms spell the names of engine metrics, and hints for names that look like an engine's and are not read.

Sources: KServe's PodMonitor renames `vllm:x` to `kserve_vllm:x`; Ray Serve exports `ray_vllm:x` or `ray_vllm_x`;
pipelines that allow no colon in a name write `vllm_x`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from autoscaler.catalog.engines import ENGINES, Engine

PLATFORMS = ("kserve_", "ray_")
OPTION = "--metric-prefix"

# The metrics that show that an engine reports, without names that many products use.
_MARKS = {row.name: engine.name for engine in ENGINES.values() for row in engine.readings["running"] if not row.beside}
LOOKS_LIKE = "|".join(name.replace(":", "[:_]") for name in _MARKS)
_MARK = re.compile(rf"(?P<prefix>[a-zA-Z0-9_:]{{0,64}}?)(?P<mark>{LOOKS_LIKE})")


class Spelling(NamedTuple):
    """The spelling of metric names in one pipeline."""

    prefix: str = ""
    colon: str = ":"

    def __str__(self) -> str:
        return self.prefix + self.colon

    def name(self, name: str) -> str:
        """Return the name in this spelling; "" stays ""."""
        return self.prefix + name.replace(":", self.colon) if name else ""


PLAIN = Spelling()


def all_spellings(stated: Iterable[str] = ()) -> tuple[Spelling, ...]:
    """Return all spellings to look for. stated: prefixes in addition to those of platforms."""
    return tuple(Spelling(prefix, colon) for prefix in dict.fromkeys(("", *PLATFORMS, *stated)) for colon in ":_")


@lru_cache(maxsize=64)
def engines_spelled(spellings: tuple[Spelling, ...]) -> Mapping[str, Engine]:
    """Return the table of engines with their names in each of these spellings, in that order."""
    return MappingProxyType({name: spelled(engine, spellings) for name, engine in ENGINES.items()})


def spelled(engine: Engine, spellings: Iterable[Spelling]) -> Engine:
    """Return an engine with its names in each of these spellings, in that order."""
    return engine.renamed(*(spelling.name for spelling in spellings))


def unread_name_hint(name: str, spellings: Sequence[Spelling], engine: str = "") -> str:
    """Return a hint for a metric whose name looks like an engine's and is not read; "" if there is none.

    spellings: of the names that are read. engine: the engine that is read; "" for all.
    """
    match = _MARK.fullmatch(name)
    if match is None:
        return ""
    prefix, found = (
        match["prefix"],
        next(engine for mark, engine in _MARKS.items() if match["mark"] in (mark, mark.replace(":", "_"))),
    )
    if prefix not in {spelling.prefix for spelling in spellings}:
        return f"found {name}; state the prefix with {OPTION} {prefix}"
    if engine and found != engine:
        return f"found {name}, of engine {found}; state the engine with the annotation vllm-autoscaler.io/engine"
    return ""
