"""How names of the code leave the process: in the HTTP API, in JSON lines, as labels of metrics.

They are those of the code, so a rename in the code renames them outside too. `tests/data/published-names.txt` holds all
of them, and a test compares.
"""

from __future__ import annotations

from enum import IntEnum

VERSION = 1
"""Version of these names, in lines of `dry-run --json`. It changes when a released name is renamed or removed."""


class PublishedEnum(IntEnum):
    """An enumeration whose members have a published name."""

    @property
    def published(self) -> str:
        return self.name.lower()
