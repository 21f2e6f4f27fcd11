"""Quantities as Kubernetes writes them.

Source: "Resource units in Kubernetes", and `k8s.io/apimachinery/pkg/api/resource`.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache

Quantity = str | int | float

_QUANTITY = re.compile(
    r"([+-]?(?:\d{1,30}(?:\.\d{0,30})?|\.\d{1,30}))(?:[eE]([+-]?\d{1,2})|([numkMGTPE]|[KMGTPE]i)?)", re.ASCII
)
_SUFFIXES = {"n": 1e-9, "u": 1e-6, "m": 1e-3, None: 1.0}
_SUFFIXES |= {letter: 1000.0**power for power, letter in enumerate("kMGTPE", 1)}
_SUFFIXES |= {f"{letter}i": 1024.0**power for power, letter in enumerate("KMGTPE", 1)}


@lru_cache(maxsize=4096)
def read_quantity(stated: Quantity) -> float:
    """Parse a quantity: 2, 500m, 64Gi, 1e3; NaN: it is none."""
    match = _QUANTITY.fullmatch(str(stated))
    if match is None:
        return math.nan
    number, exponent, suffix = match.groups()
    return float(number) * (10.0 ** int(exponent) if exponent else _SUFFIXES[suffix])
