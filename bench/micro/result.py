"""How a benchmark tells its result."""

import json
import os
import platform
from collections.abc import Mapping


def machine() -> str:
    return f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"


def show(result: Mapping[str, object], as_json: bool) -> None:
    """Print a result as one JSON object, or as one line per value."""
    if as_json:
        print(json.dumps(result))
        return
    width = max(map(len, result))
    for name, value in result.items():
        print(f"{name:{width}} {value}")
