"""Everything that was given, and which autoscaler belongs to which workload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autoscaler.config.annotations import PREFIX
from autoscaler.config.preflight.objects import Manifest, Manifests
from autoscaler.config.preflight.scalers import Autoscaler, read_autoscalers
from autoscaler.config.preflight.workloads import ModelWorkload, Target, read_workloads
from autoscaler.config.yaml import Loc


@dataclass(frozen=True)
class Scene:
    """Workloads, their autoscalers, and everything else."""

    objects: Manifests
    workloads: tuple[ModelWorkload, ...]
    autoscalers: tuple[Autoscaler, ...]
    _by_target: Mapping[Target, list[Autoscaler]] = field(default_factory=dict)
    _workload_by_target: Mapping[Target, ModelWorkload] = field(default_factory=dict)
    _in_namespace: Mapping[str, list[ModelWorkload]] = field(default_factory=dict)

    @classmethod
    def of(cls, objects: Manifests) -> Scene:
        workloads, autoscalers = read_workloads(objects), read_autoscalers(objects)
        by_target: dict[Target, list[Autoscaler]] = {}
        for each in autoscalers:
            by_target.setdefault(each.target, []).append(each)
        by_workload: dict[Target, ModelWorkload] = {}
        in_namespace: dict[str, list[ModelWorkload]] = {}
        for workload in workloads:
            by_workload[workload.target] = workload
            in_namespace.setdefault(workload.thing.namespace, []).append(workload)
        return cls(objects, tuple(workloads), tuple(autoscalers), by_target, by_workload, in_namespace)

    def workload(self, autoscaler: Autoscaler) -> ModelWorkload | None:
        return self._workload_by_target.get(autoscaler.target)

    def in_namespace(self, namespace: str) -> list[ModelWorkload]:
        return self._in_namespace.get(namespace, [])

    def of_target(self, target: Target) -> list[Autoscaler]:
        """Return the autoscalers of a target; those that another one makes are left out."""
        return [each for each in self._by_target.get(target, ()) if not each.owned]

    def of_workload(self, workload: ModelWorkload) -> list[Autoscaler]:
        return self.of_target(workload.target)

    def most(self, workload: ModelWorkload) -> tuple[int, Manifest, Loc]:
        """Return the largest count of a workload, and where it is stated."""
        stated = [
            (each.most, each.thing, each.most_loc) for each in self.of_workload(workload) if each.most is not None
        ]
        if stated:
            return max(stated, key=lambda each: each[0])
        written = workload.thing.annotations.get(f"{PREFIX}max-replicas", "")
        if written.isascii() and written.isdigit() and len(written) < 6:
            return int(written), workload.thing, ("metadata", "annotations", f"{PREFIX}max-replicas")
        return 1 if workload.replicas is None else workload.replicas, workload.thing, workload.replicas_loc

    def least(self, workload: ModelWorkload) -> int:
        """Return the smallest count of a workload."""
        stated = [each.least for each in self.of_workload(workload) if each.least is not None]
        if stated:
            return min(stated)
        return 1 if workload.replicas is None else workload.replicas

    def is_autoscaled(self, workload: ModelWorkload) -> bool:
        return bool(self.of_workload(workload))
