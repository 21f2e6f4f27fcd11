"""The team of a workload: that of its own label, else of its pods' label, else of its namespace's."""

from __future__ import annotations

import re
from collections.abc import Mapping

import structlog

from autoscaler.adapters.kubernetes.api.objects import Object
from autoscaler.adapters.kubernetes.workloads.targets import Target

log = structlog.get_logger(__name__)

_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")


class Teams:
    """Names the teams of workloads, and keeps those that labels of namespaces name: a store of namespaces."""

    def __init__(self, label: str) -> None:
        self.version = 0  # changes with the team of a namespace
        self._label = label
        self._of_namespace: dict[str, str] = {}

    def team_of(self, target: Target) -> str:
        """Return the team of a workload; "": none. An empty label, or one that cannot be, names none."""
        return self._read(target.labels) or self._of_namespace.get(target.ref.namespace, "")

    def conflict(self, target: Target) -> str:
        """Say that a workload names another team than its namespace, which is labelled by others; "": it does not."""
        own, team = self._read(target.labels), self._of_namespace.get(target.ref.namespace, "")
        if not own or team in ("", own):
            return ""
        return f"label {self._label}={own} is not that of its namespace, {team}: its GPUs are charged to {own}"

    def put(self, seen: Object) -> None:
        self._set(seen.metadata.name, self._read(seen.metadata.labels or {}))

    def remove(self, _namespace: str, name: str) -> None:
        self._set(name, "")

    def _set(self, namespace: str, team: str) -> None:
        before = self._of_namespace.pop(namespace, "")
        if team:
            self._of_namespace[namespace] = team
        if team == before:
            return
        self.version += 1
        if before:  # its sums are charged to another team from now on
            log.warning("team of a namespace has changed", namespace=namespace, before=before, now=team)

    def _read(self, labels: Mapping[str, str]) -> str:
        """Return the value of the label. One that no label of Kubernetes can have, as in a custom template, is none."""
        team = labels.get(self._label, "")
        return team if _LABEL_VALUE.fullmatch(team) else ""
