"""The draft of a service as a policy file: the policy of today with the lines of the draft, each with its reason."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from hashlib import sha256
from itertools import count
from typing import Any

import yaml

from autoscaler.adapters.prometheus.range.service_queries import ServiceName
from autoscaler.config.policy.schema import Policy, to_document
from autoscaler.config.values import show_duration
from autoscaler.demand.draft import Draft
from autoscaler.demand.model import DemandModel
from autoscaler.demand.windows import window_replicas
from autoscaler.demand.words import say_without

MAX_NAME = 63
_UNUSABLE = re.compile(r"[^a-z0-9-]+")


def policy_document(demand: DemandModel, w: int, name: str) -> dict[str, Any]:
    """Return the policy that a draft stands for; it can be read back. name: of it, one of `policy_names`."""
    document = to_document(demand.policies[w])
    document["metadata"]["name"] = name
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


def policy_names(services: Sequence[ServiceName]) -> list[str]:
    """Return a valid name of the policy of each service. No two are equal, whatever tenants call their services.

    Where `a-b/c` and `a/b-c` would share one, each gets a digest of its own name at the end.
    """
    plain = [_plain(name, row) for row, name in enumerate(services)]
    often = Counter(plain)
    taken = {name for name, times in often.items() if times == 1}
    names = []
    for service, name in zip(services, plain, strict=True):
        if often[name] > 1:
            names.append(next(each for each in _with_digests(service, name) if each not in taken))
            taken.add(names[-1])
        else:
            names.append(name)
    return names


def _plain(name: ServiceName, row: int) -> str:
    text = _UNUSABLE.sub("-", f"{name.namespace}-{name.name}".lower()).strip("-")
    return text[:MAX_NAME].strip("-") or f"service-{row}"


def _with_digests(service: ServiceName, name: str) -> Iterator[str]:
    for number in count():
        digest = sha256(repr((number, *service)).encode("utf-8", "replace")).hexdigest()[:8]
        yield f"{name[: MAX_NAME - 9].rstrip('-')}-{digest}"


def policy_text(demand: DemandModel, w: int, name: str) -> str:
    """Return the file: each line of the draft is a comment with its reason, and then the policy."""
    head = [f"# {line}" for line in _reasons(demand.drafts[w], demand.policies[w].name)]
    body = yaml.safe_dump(policy_document(demand, w, name), sort_keys=False, allow_unicode=True, width=120)
    return "\n".join([*head, body])


def _reasons(draft: Draft, today: str) -> list[str]:
    lines = [
        f"Replayed on the second half of the history: {draft.gpu_hours:.1f} GPU-hours at {draft.attainment:.3%}; "
        f"under the policy of today, {today}, {draft.gpu_hours_today:.1f} at {draft.attainment_today:.3%}.",
    ]
    for line in draft.lines:
        effect = say_without(draft, line)
        lines.append(f"{line.field}: {line.value} (today {line.today}): {line.reason}; {effect}.")
    return [*lines, *(f"{kept}." for kept in draft.kept)]
