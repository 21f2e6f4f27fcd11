"""The node of an agent as others describe it, and the place of the agent's report."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Protocol

from autoscaler.config.weights.report import Report
from autoscaler.config.weights.source import ModelSource
from autoscaler.config.weights.wishes import Wishes


class AgentNode(Protocol):
    """The node of an agent as others describe it, and the place of the agent's report."""

    changed: asyncio.Event  # set when one of the answers changes

    def wishes(self) -> Wishes | None:
        """Return the wishes for this node; None: they are not known."""
        ...

    def used(self) -> Sequence[ModelSource] | None:
        """Return the models that pods of this node load, those of all namespaces in turn.

        None: it is not known, so nothing may be removed.
        """
        ...

    def namespaces_of(self, source: ModelSource) -> Collection[str]:
        """Return the namespaces whose pods load a model."""
        ...

    def used_caches(self) -> Collection[str]:
        """Return the compile caches that pods of this node mount, such as compile/my-team/llama."""
        ...

    def problem(self) -> str:
        """Return why the wishes cannot be used; "": they can."""
        ...

    async def publish(self, report: Report) -> None:
        """Replace the report of this node. Raises Unavailable."""
        ...
