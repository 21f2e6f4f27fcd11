"""Where the compile caches of engines are on a node: one folder for each engine of a namespace.

Compiled code runs in the process that loads it, so no two namespaces share a folder.
"""

from __future__ import annotations

import re

CACHES = "compile"  # below the root

_CACHE = re.compile(rf"{CACHES}/[a-z0-9]([-a-z0-9]{{0,61}}[a-z0-9])?/[A-Za-z0-9][-._A-Za-z0-9]{{0,127}}")
_HOST_PATH = re.compile(rf"/({_CACHE.pattern})/?")


def is_cache(name: str) -> bool:
    """Tell whether a path below the root may be a cache."""
    return _CACHE.fullmatch(name) is not None


def cache_of(host_path: str) -> str:
    """Return the cache that a folder of a node is, such as compile/my-team/llama; "": none."""
    at = host_path.rfind(f"/{CACHES}/")
    match = _HOST_PATH.fullmatch(host_path[at:]) if at > 0 and len(host_path) < 1024 else None
    return match[1] if match else ""
