"""How platforms spell the names of engines' metrics, and names that look like an engine's and are read nowhere.

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

# Of each engine, the metric that shows that it answered; bare names, which many products have, are not among them.
_MARKS = {row.name: engine.name for engine in ENGINES.values() for row in engine.readings["running"] if not row.beside}
LOOKS_LIKE = "|".join(name.replace(":", "[:_]") for name in _MARKS)
_MARK = re.compile(rf"(?P<prefix>[a-zA-Z0-9_:]{{0,64}}?)(?P<mark>{LOOKS_LIKE})")


class Spelling(NamedTuple):
    """How one pipeline writes names."""

    prefix: str = ""
    colon: str = ":"

    def __str__(self) -> str:
        return self.prefix + self.colon

    def name(self, name: str) -> str:
        """Return the name as it is spelled here; "" stays."""
        return self.prefix + name.replace(":", self.colon) if name else ""


PLAIN = Spelling()


def all_spellings(stated: Iterable[str] = ()) -> tuple[Spelling, ...]:
    """Return every spelling that is looked for; `stated` are prefixes beside those of platforms."""
    return tuple(Spelling(prefix, colon) for prefix in dict.fromkeys(("", *PLATFORMS, *stated)) for colon in ":_")


@lru_cache(maxsize=64)
def engines_spelled(spellings: tuple[Spelling, ...]) -> Mapping[str, Engine]:
    """Return the table of engines with their names in each of these spellings, those of the first one first."""
    return MappingProxyType({name: spelled(engine, spellings) for name, engine in ENGINES.items()})


def spelled(engine: Engine, spellings: Iterable[Spelling]) -> Engine:
    """Return an engine with its names in each of these spellings, those of the first one first."""
    return engine.renamed(*(spelling.name for spelling in spellings))


def near_miss(name: str, spellings: Sequence[Spelling], engine: str = "") -> str:
    """Return what to say of a metric whose name looks like an engine's; "": nothing.

    spellings: in which names are read. engine: the one that is read here; "": all are.
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
