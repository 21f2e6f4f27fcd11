"""Namespaces of the cluster itself and of the daemon, whose workloads are not scaled unless the operator says so."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

RESERVED = "kube-"
"""Prefix of the names that are reserved for Kubernetes' own namespaces. Source: Kubernetes, "Namespaces", 1.36."""


@dataclass(frozen=True)
class SystemNamespaces:
    """Which namespaces are refused."""

    allowed: Collection[str] = ()  # that the operator has named
    own: str = ""  # of the daemon's pod; "": it runs outside the cluster

    def problem(self, namespace: str) -> str:
        """Return why workloads of a namespace are not scaled; "": they are."""
        if namespace in self.allowed or not (namespace.startswith(RESERVED) or (self.own and namespace == self.own)):
            return ""
        whose = "the daemon itself" if namespace == self.own else "Kubernetes itself"
        return f"workloads of {whose} in {namespace} are not scaled; to scale them: --system-namespace {namespace}"


NONE_ALLOWED = SystemNamespaces()
