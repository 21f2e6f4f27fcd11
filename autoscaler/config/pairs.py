"""Finds the prefill and decode pairs among workloads: those of one service and namespace, one of each role."""

from __future__ import annotations

import numpy as np

from autoscaler.config.annotations import PREFIX
from autoscaler.core.model.fleet import ServedNames, Workload
from autoscaler.core.model.pairs import DECODE, PREFILL, ROLES, Pairs
from autoscaler.core.model.spec import Spec

OTHER = {PREFILL: DECODE, DECODE: PREFILL}
MOST_NAMED = 4
"""A problem names at most this many workloads."""


def find_pairs(workloads: tuple[Workload, ...], spec: Spec) -> Pairs:
    """Find the pairs. A workload with a role but without a partner is sized alone, and a problem says why."""
    found = Pairs.none(len(workloads))
    rows = [row for row, workload in enumerate(workloads) if workload.role in ROLES]
    if not rows:
        return found
    roles = np.array([workload.role for workload in workloads])
    partner, problems = found.partner.copy(), {}
    services: dict[tuple[str, str], dict[str, list[int]]] = {}
    for row in rows:
        workload = workloads[row]
        if workload.service:
            sides = services.setdefault((workload.ref.namespace, workload.service), {role: [] for role in ROLES})
            sides[workload.role].append(row)
        else:
            problems[row] = f"{PREFIX}role needs {PREFIX}service, which names the pair, so it is sized alone"
    for (_, service), sides in services.items():
        problem = _problem(workloads, service, sides)
        both = [row for role in ROLES for row in sides[role]]
        if problem:
            problems |= dict.fromkeys(both, f"{problem}, so it is sized alone")
            continue
        prefill, decode = both
        partner[prefill], partner[decode] = decode, prefill
        if problem := _ratio_problem(spec, both):
            problems |= dict.fromkeys(both, problem)
    return Pairs(roles == PREFILL, roles == DECODE, partner, problems)


def _problem(workloads: tuple[Workload, ...], service: str, sides: dict[str, list[int]]) -> str:
    """Return why these workloads of a service are no pair; "": they are one."""
    for role, rows in sides.items():
        if not rows:
            return f"service {service} has no {role} workload beside its {OTHER[role]} workload"
        if len(rows) > 1:
            named = ", ".join(workloads[row].ref.name for row in rows[:MOST_NAMED])
            more = f" and {len(rows) - MOST_NAMED} more" if len(rows) > MOST_NAMED else ""
            return f"service {service} has {len(rows)} {role} workloads ({named}{more}) where a pair has one"
    prefill, decode = (workloads[rows[0]] for rows in sides.values())
    if prefill.model and not ServedNames((prefill.model,)).include(decode.model):
        return f"the workloads of service {service} serve different models ({prefill.model}, {decode.model})"
    return ""


def _ratio_problem(spec: Spec, both: list[int]) -> str:
    """Return that the policies of both sides contradict each other; "": they do not."""
    least = float(np.fmax.reduce(spec.min_decode_per_prefill[both]))
    most = float(np.fmin.reduce(spec.max_decode_per_prefill[both]))
    if not least > most:
        return ""
    ratio = f"at least {least:g} and at most {most:g} decode replicas per prefill replica"
    return f"its pair has {ratio}; at least {least:g} are kept"
