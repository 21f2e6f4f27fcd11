"""The draft of a service as a policy file: the policy of today with the lines of the draft, each with its reason."""

from __future__ import annotations

import re
from typing import Any

import yaml

from autoscaler.config.policy.schema import Policy, to_document
from autoscaler.config.values import show_duration
from autoscaler.demand.draft import Draft, window_replicas
from autoscaler.demand.model import DemandModel

MAX_NAME = 63
_UNUSABLE = re.compile(r"[^a-z0-9-]+")


def policy_document(demand: DemandModel, w: int) -> dict[str, Any]:
    """Return the policy that a draft stands for; it can be read back."""
    policy: Policy = demand.policy
    document = to_document(policy)
    document["metadata"]["name"] = policy_name(demand, w)
    spec, draft = document["spec"], demand.drafts[w]
    fields = {line.field: line.value for line in draft.lines}
    for field in ("replicas.min", "replicas.max"):
        if field in fields:
            spec["replicas"][field.split(".")[1]] = int(fields[field])
    if "scaleToZero" in fields and draft.rest is not None:
        spec["scaleToZero"] |= {"enabled": True, "idleAfter": show_duration(draft.rest.idle_s)}
    if "scaleDown.maxStep" in fields:
        spec["scaleDown"]["maxStep"] = fields["scaleDown.maxStep"]
    if "queue.maxWait" in fields:
        spec["queue"]["maxWait"] = fields["queue.maxWait"]
    if draft.window is not None:
        begin, end = draft.window.cron
        window = {"from": begin, "until": end, "timezone": demand.zone.key, "replicas": window_replicas(draft.window)}
        spec["prewarm"] = [*spec.get("prewarm", []), window]
    Policy.model_validate(document)
    return document


def policy_name(demand: DemandModel, w: int) -> str:
    """Return a valid name of the policy of a service."""
    name = demand.services[w]
    text = _UNUSABLE.sub("-", f"{name.namespace}-{name.name}".lower()).strip("-")
    return text[:MAX_NAME].strip("-") or f"service-{w}"


def policy_text(demand: DemandModel, w: int) -> str:
    """Return the file: each line of the draft is a comment with its reason, and then the policy."""
    draft = demand.drafts[w]
    head = [f"# {line}" for line in _reasons(draft)]
    body = yaml.safe_dump(policy_document(demand, w), sort_keys=False, allow_unicode=True, width=120)
    return "\n".join([*head, body])


def _reasons(draft: Draft) -> list[str]:
    saved = draft.gpu_hours_today - draft.gpu_hours
    lines = [
        f"Replayed on the second half of the history: {draft.gpu_hours:.1f} GPU-hours at {draft.attainment:.3%}; "
        f"under the policy of today {draft.gpu_hours_today:.1f} at {draft.attainment_today:.3%} ({saved:+.1f} saved).",
    ]
    for line in draft.lines:
        effect = "" if line.saved_gpu_hours != line.saved_gpu_hours else f" Saves {line.saved_gpu_hours:.1f} GPU-hours."
        lines.append(f"{line.field}: {line.value} (today {line.today}): {line.reason}.{effect}")
    return [*lines, *(f"{kept}." for kept in draft.kept)]
