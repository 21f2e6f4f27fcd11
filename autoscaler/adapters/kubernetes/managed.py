"""Which scale targets are managed, and what is wrong with their declarations."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from autoscaler.adapters.kubernetes.api.text import join_problems
from autoscaler.adapters.kubernetes.autoscalers.by_target import TargetKey
from autoscaler.adapters.kubernetes.autoscalers.hpa_limits import (
    NO_LIMIT,
    HpaLimit,
    hpa_error,
    limit_of,
    missing_metric,
)
from autoscaler.adapters.kubernetes.autoscalers.hpas import HpaStore
from autoscaler.adapters.kubernetes.autoscalers.scaledobjects import ScaledObjectSpec, ScaledObjectStore
from autoscaler.adapters.kubernetes.manual_overrides import OverrideTracker
from autoscaler.adapters.kubernetes.workloads.store import TargetStore
from autoscaler.adapters.kubernetes.workloads.targets import Target
from autoscaler.adapters.kubernetes.workloads.teams import Teams
from autoscaler.catalog.scale_targets import BY_KIND, SCALED
from autoscaler.config.annotations import PREFIX, ZERO_UNTIL
from autoscaler.config.findings import name_some, shown
from autoscaler.config.policy.compile import NO_POLICY
from autoscaler.config.policy.namespace_limits import PREWARM
from autoscaler.config.settings import Mode
from autoscaler.config.system_namespaces import NONE_ALLOWED, SystemNamespaces
from autoscaler.core.model.fleet import Workload, WorkloadRef
from autoscaler.core.model.variants import models_of_services

_ANNOTATED = f"the annotation {PREFIX}policy on a Deployment, StatefulSet or another scale target"
NEEDED = {
    Mode.DIRECT: _ANNOTATED,
    Mode.DRY_RUN: _ANNOTATED,
    Mode.KEDA: "a ScaledObject with an external trigger that names a policy",
}
"""The declaration that makes a workload managed, by mode."""


class Managed(NamedTuple):
    """A managed workload."""

    target_id: int
    target: Target
    workload: Workload
    paused: bool
    other_owner: str
    limit: HpaLimit = NO_LIMIT
    owned_until_s: float = math.nan  # until when another owner is respected; infinite: until it raises the count
    former: int = -1  # the count that a deployment has reset, and that is to be restored; -1: none
    is_nameless_zero: bool = False  # somebody set the count to zero, and it is not known who


class ManagedWorkloads:
    """Finds the managed workloads among the scale targets, and keeps the problems of their declarations.

    In direct and dry-run mode they have the annotation `vllm-autoscaler.io/policy`. In KEDA mode they are the targets
    of ScaledObjects with an external trigger that names a policy.
    """

    def __init__(
        self,
        mode: Mode,
        targets: TargetStore,
        scaled_objects: ScaledObjectStore,
        hpas: HpaStore,
        manual_overrides: OverrideTracker,
        describe_absence: Callable[[WorkloadRef, TargetKey], str],
        refused: Callable[[], Mapping[str, str]],
        teams: Teams,
        system: SystemNamespaces = NONE_ALLOWED,
    ) -> None:
        """describe_absence: says why the target of a ScaledObject is not known.

        refused: says why namespaces may not be read. What was known of their workloads grows old, so none is managed.
        system: namespaces that are refused.
        """
        self._mode, self._teams = mode, teams
        self._targets = targets
        self._scaled_objects = scaled_objects
        self._hpas = hpas
        self._manual_overrides = manual_overrides
        self._describe_absence = describe_absence
        self._refused = refused
        self._system = system
        self.problems: dict[WorkloadRef, str] = {}

    def refused_namespaces(self) -> list[str]:
        """Return the namespaces that may not be read."""
        return sorted(self._refused())

    def note(self, ref: WorkloadRef, *problems: str) -> None:
        """Add problems of a workload to those that are known; "" is none."""
        if found := join_problems((self.problems.get(ref, ""), *problems)):
            self.problems[ref] = found

    def find(self) -> list[Managed]:
        """Return the managed workloads in the order of their ids, and note their problems."""
        self.problems = {}
        read = self._read_triggered if self._mode is Mode.KEDA else self._read_annotated
        refused = self._refused()
        targets = [each for each in sorted(self._targets.targets.items()) if each[1].ref.namespace not in refused]
        found = [read(target_id, target) for target_id, target in targets]
        if self._mode is Mode.KEDA:
            self._note_missing_targets()
        managed = [self._with_team(each) for each in found if each is not None]
        self._note_unmanaged_owners(managed)
        return managed

    def _read_annotated(self, target_id: int, target: Target) -> Managed | None:
        """Return a managed workload if the annotation of the target names a policy."""
        declared = target.declared
        if declared.policy is None:
            self.note(target.ref, declared.problem)  # a misspelt key may be the one that names the policy
            return None
        if refusal := self._refusal(target):
            self.problems[target.ref] = refusal
            return None
        if problem := join_problems((declared.problem, _unselected(target), _follows_pods(target))):
            self.problems[target.ref] = problem
        managed = Managed(target_id, target, target.workload, declared.paused, "")
        return managed if self._mode is Mode.DRY_RUN else self._with_owner(managed)

    def _with_team(self, managed: Managed) -> Managed:
        team = self._teams.team_of(managed.target)
        self.note(managed.target.ref, self._teams.conflict(managed.target))
        return managed._replace(workload=managed.workload._replace(team=team)) if team else managed

    def _refusal(self, target: Target) -> str:
        """Return why a declared target is not managed; "": it is."""
        kind = f"{target.ref.kind} cannot be scaled: {target.refusal}" if target.refusal else ""
        return kind or self._system.problem(target.ref.namespace)

    def find_ref(self, key: TargetKey) -> WorkloadRef | None:
        """Return a target as the fleet names it: a ScaledObject may state another version of its kind."""
        target = self._targets.find(key)
        return target.ref if target is not None else None

    def _with_owner(self, managed: Managed) -> Managed:
        """Add who else sets the count, or which count is to be restored."""
        target, overrides = managed.target, self._manual_overrides
        if owner := self._scaled_objects.owner(target.key) or self._targets.find_replacement(target):
            return managed._replace(other_owner=owner)
        if owner := overrides.owner(target.uid, target.replicas):
            return managed._replace(other_owner=owner, owned_until_s=overrides.until_s(target.uid))
        if overrides.is_nameless_zero(target.uid, target.replicas, target.writer):
            has_default = target.ref.kind in BY_KIND and BY_KIND[target.ref.kind].unset == 0
            return managed._replace(is_nameless_zero=not has_default, owned_until_s=overrides.until_s(target.uid))
        return managed._replace(former=-1 if managed.paused else overrides.former(target.uid, target.replicas))

    def _read_triggered(self, target_id: int, target: Target) -> Managed | None:
        """Return a managed workload if one of our ScaledObjects names the target."""
        specs = self._scaled_objects.for_target(target.key)
        ours = next((spec for spec in specs if spec.is_ours), None)
        if ours is None:
            self.note(target.ref, target.declared.problem)
            return None
        if refusal := self._refusal(target):
            self.problems[target.ref] = refusal
            return None
        name, declared = ours.scaled_object.name, target.declared
        hpa = self._hpas.of_scaled_object(name, target.key)
        problem = join_problems(
            (
                _scaled_object_problem(ours),
                missing_metric(ours, hpa),
                hpa_error(hpa),
                declared.problem,
                _ignored_overrides(target, ours),
                _ignored_end(target),
                _unselected(target),
                _follows_pods(target),
            )
        )
        if problem:
            self.problems[target.ref] = problem
        others = [spec.scaled_object.name for spec in specs if spec is not ours]
        owner = f"ScaledObject/{others[0]}" if others else self._hpas.owner(target.key, except_scaled_object=name)
        policy = NO_POLICY if ours.scaled_object.problem else ours.policy
        overrides = tuple(sorted((*ours.overrides, *_windows(target))))
        workload = target.workload._replace(policy=policy, overrides=overrides, bounds=ours.bounds)
        return Managed(
            target_id,
            target,
            workload,
            declared.paused or ours.paused,
            owner or self._targets.find_replacement(target),
            limit_of(ours, hpa, target.replicas),
        )

    def note_overlaps(self, managed: Sequence[Managed]) -> None:
        """Note the problem of targets whose selectors match the same pods."""
        overlaps = self._targets.describe_overlaps()
        for each in managed if overlaps else ():
            self.note(each.target.ref, overlaps.get(each.target_id, ""))

    def note_models(self, managed: Sequence[Managed]) -> None:
        """Note the problem of variants of one service that serve different models."""
        models = models_of_services(each.workload for each in managed)
        for each in managed:
            ref, service = each.target.ref, each.workload.service if not each.workload.role else ""
            known = models[ref.namespace, service] if service else {}
            if len(known) > 1:
                named = name_some(sorted(known.values()))
                problem = (
                    f"variants of service {shown(service)} serve different models ({named}), so load moves only "
                    "among those of one model; allowed: one model, or a service for each"
                )
                self.note(ref, problem)

    def _note_unmanaged_owners(self, managed: Sequence[Managed]) -> None:
        """Note the problem of targets that another scale target decides about, which is not managed itself."""
        names = {(each.target.ref.namespace, f"{each.target.ref.kind}/{each.target.ref.name}") for each in managed}
        for each in managed:
            ref, owner = each.target.ref, each.other_owner
            if owner.partition("/")[0] in SCALED and (ref.namespace, owner) not in names:
                problem = f"{owner} sets its count; allowed: the policy on {owner}"
                self.note(ref, problem)

    def _note_missing_targets(self) -> None:
        """Note the problem of ScaledObjects whose target does not exist."""
        present = {target.key for target in self._targets.targets.values()}
        for spec in self._scaled_objects.all():
            if spec.is_ours and spec.target not in present:
                ref = spec.scaled_object.target
                absent = self._describe_absence(ref, spec.target)
                self.note(ref, _scaled_object_problem(spec), absent)  # several ScaledObjects may name one target


def _follows_pods(target: Target) -> str:
    if not target.follows_pods:
        return ""
    counted = "its replicas are counted as its pods are, not as its template says"
    return f"the {target.ref.kind} {target.held_back}, so {counted}"


def _unselected(target: Target) -> str:
    """Say that the controller of a target has not stated which pods belong to it."""
    if target.pod_selector != () or not target.replicas:
        return ""
    return f"the status of the {target.ref.kind} has no label selector yet, so its pods are not known"


def _scaled_object_problem(spec: ScaledObjectSpec) -> str:
    """Return what is wrong with a ScaledObject."""
    problem = spec.scaled_object.problem or spec.other_deciders
    return f"ScaledObject/{spec.scaled_object.name}: {problem}" if problem else ""


def _windows(target: Target) -> tuple[tuple[str, str], ...]:
    """Return the override that states the windows of a target: metadata of a trigger has no room for a list."""
    return tuple(each for each in target.declared.overrides if each[0] == PREWARM)


def _ignored_overrides(target: Target, spec: ScaledObjectSpec) -> str:
    """Name the override annotations that KEDA mode ignores. Annotations that repeat the trigger's are no problem."""
    paths = ", ".join(path for path, _ in sorted(set(target.declared.overrides) - {*spec.overrides, *_windows(target)}))
    return f"{paths}: an annotation has no effect in KEDA mode; allowed: the metadata of the trigger" if paths else ""


def _ignored_end(target: Target) -> str:
    """Say that KEDA keeps a zero, and does not know when it ends."""
    if target.declared.zero_until_s is None:
        return ""
    return f"{ZERO_UNTIL}: an annotation has no effect in KEDA mode; allowed: to pause the ScaledObject"
