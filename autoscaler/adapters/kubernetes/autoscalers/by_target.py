"""Autoscalers of one kind, found by their name or by the workload that they scale."""

from __future__ import annotations

from typing import Generic, NamedTuple, Protocol, TypeVar

from autoscaler.core.model.fleet import WorkloadRef


class TargetKey(NamedTuple):
    """A scale target as an autoscaler names it, without the API version."""

    namespace: str
    group: str
    kind: str
    name: str


def target_key(ref: WorkloadRef) -> TargetKey:
    return TargetKey(ref.namespace, api_group(ref.api_version), ref.kind, ref.name)


def api_group(api_version: str) -> str:
    """Return "apps" for "apps/v1", and "" for "v1"."""
    return api_version.partition("/")[0] if "/" in api_version else ""


class HasTarget(Protocol):
    @property
    def target(self) -> TargetKey: ...


Autoscaler = TypeVar("Autoscaler", bound=HasTarget)


class AutoscalerStore(Generic[Autoscaler]):
    """The autoscalers of one kind. `version` grows when one of them changes."""

    def __init__(self) -> None:
        self.version = 0
        self._by_name: dict[tuple[str, str], Autoscaler] = {}
        self._by_target: dict[TargetKey, dict[str, Autoscaler]] = {}

    def set(self, namespace: str, name: str, autoscaler: Autoscaler) -> None:
        if self._by_name.get((namespace, name)) != autoscaler:
            self.remove(namespace, name)
            self._by_name[namespace, name] = autoscaler
            self._by_target.setdefault(autoscaler.target, {})[name] = autoscaler
            self.version += 1

    def remove(self, namespace: str, name: str, /) -> None:
        autoscaler = self._by_name.pop((namespace, name), None)
        if autoscaler is not None:
            del self._by_target[autoscaler.target][name]
            if not self._by_target[autoscaler.target]:
                del self._by_target[autoscaler.target]
            self.version += 1

    def for_target(self, target: TargetKey) -> list[Autoscaler]:
        """Return all autoscalers of a target, sorted by name."""
        by_name = self._by_target.get(target)
        return [by_name[name] for name in sorted(by_name)] if by_name else []
