"""The policy of each service: stated for its name, else by the annotation of its workload, else the default one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from autoscaler.adapters.prometheus.owners import name_in_pods
from autoscaler.adapters.prometheus.range.service_queries import COUNTED_WITHIN, Objective, ServiceName, column_of
from autoscaler.config.findings import shown
from autoscaler.config.policy.compile import spec_row
from autoscaler.config.policy.parse import PolicyBook
from autoscaler.config.values import namespace_pattern
from autoscaler.core.model.spec import Spec
from autoscaler.report.history import FleetHistory

MOST_OBJECTIVES = 8
"""Different objectives by which requests are judged: each is read for all services."""


@dataclass(frozen=True)
class Tiers:
    """The policies of services by what names them."""

    book: PolicyBook
    stated: Sequence[tuple[str, str]]  # pattern of namespace/name, and policy; the first that matches counts
    annotated: Mapping[ServiceName, str]  # names that workloads state; "": the default policy

    def __post_init__(self) -> None:
        for pattern, name in self.stated:
            if name not in self.book.policies:
                known = ", ".join(sorted(self.book.policies)[:20])
                raise ValueError(f"--policy-for {pattern[:100]}: no such policy: {shown(name)}; allowed: {known}")

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """Return the objectives of all policies that a service may have, that of the default policy first, and few."""
        names = (self.book.default, *(name for _, name in self.stated), *self.annotated.values())
        found = [self._objective(name) for name in names if name in self.book.policies]
        return tuple({repr(each): each for each in found}.values())[:MOST_OBJECTIVES]  # NaN equals nothing

    def choose(self, services: Sequence[ServiceName]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the name of each service's policy, [W], and notes."""
        patterns = [(namespace_pattern(f"{text}/*" if "/" not in text else text), name) for text, name in self.stated]
        used, unknown, chosen = set[str](), dict[str, int](), list[str]()
        owners = {
            (each.cluster, each.namespace, name_in_pods(each.name)): name for each, name in self.annotated.items()
        }
        for service in services:
            found = next((hit for hit in patterns if hit[0].fullmatch("/".join(service[1:]))), None)
            annotated = owners.get(service, "")
            if found is not None:
                used.add(found[0].pattern)
                chosen.append(found[1])
            elif annotated and annotated not in self.book.policies:
                unknown[annotated] = unknown.get(annotated, 0) + 1
                chosen.append(self.book.default)
            else:
                chosen.append(annotated or self.book.default)
        judged = set(map(repr, self.objectives))
        beyond = {name for name in chosen if repr(self._objective(name)) not in judged}
        chosen = [self.book.default if name in beyond else name for name in chosen]
        notes = [
            f"services of the policy {name} are judged by {self.book.default}: "
            f"at most {MOST_OBJECTIVES} different objectives are read"
            for name in sorted(beyond)[:5]
        ]
        notes += [
            f"--policy-for {text}: no service in the history has such a name"
            for (pattern, _), (text, _) in zip(patterns, self.stated, strict=True)
            if pattern.pattern not in used
        ]
        notes += [
            f"{number} of the services name the policy {shown(name)}, which --policies does not have: "
            f"{self.book.default} stands in"
            for name, number in list(unknown.items())[:5]
        ]
        return tuple(chosen), tuple(notes)

    def spec_of(self, chosen: Sequence[str]) -> Spec:
        """Return the columns of the chosen policies, [W]."""
        rows = [spec_row(self.book.policies[name].spec) for name in chosen]
        return Spec(*(np.array(column) for column in zip(*rows, strict=True)))

    def judge(self, history: FleetHistory, chosen: Sequence[str]) -> FleetHistory:
        """Return the history in which requests are judged by each service's own objective."""
        numbers = {repr(each): number for number, each in enumerate(self.objectives)}
        own = np.array([numbers[repr(self._objective(name))] for name in chosen], np.int64)
        columns = {name: values for name, values in history.columns.items() if "#" not in name}
        for name in COUNTED_WITHIN:
            if any(column_of(name, number) in history.columns for number in numbers.values()):
                by_objective = [history.column(column_of(name, number)) for number in numbers.values()]
                columns[name] = np.choose(own, by_objective) if len(by_objective) > 1 else by_objective[0]
        return replace(history, columns=columns)

    def _objective(self, name: str) -> Objective:
        spec = Spec(*(np.array([value]) for value in spec_row(self.book.policies[name].spec)))
        return Objective(float(spec.first_token_limit_s[0]), float(spec.itl_objective_s[0]))
