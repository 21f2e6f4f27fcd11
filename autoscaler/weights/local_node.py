"""Wishes from a file on the machine, for an agent without the daemon's planner or without an API server."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec

from autoscaler.config.findings import Finding, PolicyError, shown
from autoscaler.config.policy.reload import Monotonic, Reload, ReloadedFiles
from autoscaler.config.weights.report import Report
from autoscaler.config.weights.source import ModelSource
from autoscaler.config.weights.wishes import FORMAT, MAX_BYTES, InvalidWishesError, Wishes, decode
from autoscaler.config.yaml import read_documents, read_text

ALLOWED = "a list of sources, the most urgent first; each is a text, or a mapping with source and pinned"


class WishFile(ReloadedFiles[Wishes]):
    """Keeps the last valid wishes of a file."""

    def __init__(self, path: Path, clock: Monotonic) -> None:
        """Load the wishes. Raises PolicyError, which stops the start."""
        super().__init__((path,), clock, lambda: load_wishes(path))

    def current(self, changed: asyncio.Event) -> Wishes:
        """Return the present wishes, read again if the file has changed."""
        if self.poll() is not Reload.UNCHANGED:
            changed.set()
        return self.content


def load_wishes(path: Path) -> Wishes:
    """Read wishes from a list in YAML. Raises PolicyError. A source that is not valid is refused alone."""
    text = read_text(path, MAX_BYTES)
    if isinstance(text, Finding):
        raise PolicyError([text])
    documents, findings = read_documents(str(path), text)
    if findings:
        raise PolicyError(findings)
    value = documents[0].value if len(documents) == 1 else [] if not documents else None
    if not isinstance(value, list):
        raise PolicyError([Finding(str(path), 0, "", "not wishes", allowed=ALLOWED)])
    models = [{"source": item} if isinstance(item, str) else item for item in value]
    try:
        return decode(msgspec.json.encode({"format": FORMAT, "models": models}).decode())
    except (InvalidWishesError, TypeError, ValueError) as error:
        raise PolicyError([Finding(str(path), 0, "", shown(str(error)), allowed=ALLOWED)]) from error


class LocalNode:
    """A node without an API server: its report stays in the folder, and models that are not wished are not in use."""

    def __init__(self, wishes: WishFile) -> None:
        self.changed = asyncio.Event()
        self._wishes = wishes

    def wishes(self) -> Wishes:
        """Return the wishes of the file."""
        return self._wishes.current(self.changed)

    def used(self) -> Sequence[ModelSource]:
        """Return nothing: pods are not known."""
        return ()

    def namespaces_of(self, source: ModelSource) -> Collection[str]:
        """Return nothing: pods are not known."""
        return ()

    def used_caches(self) -> Collection[str]:
        """Return nothing: pods are not known."""
        return ()

    def problem(self) -> str:
        """Return what is wrong with the file; "": nothing is."""
        return self._wishes.problem

    async def publish(self, report: Report) -> None:
        """Do nothing."""
