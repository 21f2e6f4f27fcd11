"""The kinds of scale targets that are wanted, and how the API server serves them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from autoscaler.adapters.kubernetes.api.discovery import ServedKind
from autoscaler.adapters.kubernetes.autoscalers.by_target import TargetKey, api_group
from autoscaler.catalog.scale_targets import BY_KIND, BY_RESOURCE, NO_KINDS, SCALED, TARGETS, ScaleTarget, other_kind
from autoscaler.config.check.scaledobject_fields import is_other_kind, is_target
from autoscaler.core.model.fleet import WorkloadRef

BUILT_IN = "apps"  # its kinds are in every cluster, so they are not looked up


class TargetKinds:
    """Custom kinds by resource, such as "rollouts.argoproj.io". Those that are served have an API path."""

    def __init__(self, wanted: Iterable[str] = ()) -> None:
        """wanted: resources; (): all that are known."""
        known = [row.resource for row in TARGETS if row.group != BUILT_IN]
        named = list(dict.fromkeys(wanted)) or known
        self.preferred: Mapping[str, str] = {
            resource: BY_RESOURCE[resource].version if resource in BY_RESOURCE else ""
            for resource in named
            if resource != NO_KINDS
        }
        self._served: dict[tuple[str, str], tuple[ScaleTarget, str]] = {}  # by group and kind: with its version

    def serve(self, served: ServedKind) -> tuple[ScaleTarget, str]:
        """Note how a kind is served; return its row, and why it cannot be scaled ("": it can)."""
        row = BY_RESOURCE.get(served.resource) or other_kind(served.resource, served.kind, served.version)
        self._served[row.group, row.kind] = row, served.version
        if row.refusal or served.scalable:
            return row, row.refusal
        return row, f"version {served.version} of {row.resource} has no scale subresource; allowed: one that has it"

    def locate(self, ref: WorkloadRef) -> tuple[str, str] | None:
        """Return the root of the API path and the plural of a target's kind; None: the kind cannot be scaled."""
        group = api_group(ref.api_version)
        row, version = self._served.get((group, ref.kind)) or (BY_KIND.get(ref.kind), "")
        if row is None or row.group != group or row.refusal:
            return None
        return f"/apis/{row.group}/{version or row.version}", row.plural

    def describe_absence(self, ref: WorkloadRef, key: TargetKey, unlisted: Mapping[str, str]) -> str:
        """Return why a target is not known; "": its kind is refused for another reason."""
        row, _ = self._served.get((key.group, key.kind)) or (None, "")
        if row is not None and row.resource in unlisted:
            return f"{row.resource} cannot be listed: {unlisted[row.resource]}"
        if row is not None or key.group == BUILT_IN:
            return "the target does not exist" if is_target(ref.kind, ref.api_version) or row is not None else ""
        if is_other_kind(ref.kind, ref.api_version):
            return f"{ref.kind} of {key.group} is not watched; allowed: --target-kind=<plural>.{key.group}"
        if not is_target(ref.kind, ref.api_version):
            return ""
        resource = SCALED[ref.kind].resource
        if resource not in self.preferred:
            return f"{ref.kind} is not watched; allowed: --target-kind={resource}"
        return f"the API server does not serve {resource}"
