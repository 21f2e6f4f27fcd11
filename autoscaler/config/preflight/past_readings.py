"""What the history tells of a workload: starts, answers, replicas. One query of each kind serves all workloads."""

from __future__ import annotations

import math
from typing import NamedTuple

from autoscaler.config.preflight.facts import PENDING, Answer, QueryFacts
from autoscaler.config.preflight.series import samples_of
from autoscaler.config.preflight.workloads import ModelWorkload

# A subquery reads one sample per step, so that a week of 2,000 pods stays below the server's limit of samples.
CREATED = "max_over_time(kube_pod_created[7d:10m])"
STARTED = "max_over_time(kube_pod_container_state_started[7d:10m])"
READY = "max_over_time(kube_pod_status_ready_time[7d:10m])"
ANSWERS = (
    "max_over_time(sum by (namespace, pod, model_name, le) (vllm:e2e_request_latency_seconds_bucket)[2d:1h])"
    " or sum by (namespace, pod, model_name, le) (vllm:e2e_request_latency_seconds_bucket)"
)
REPLICAS = 'max by (namespace, deployment, statefulset) ({__name__=~"kube_(deployment|statefulset)_spec_replicas"})'


class PastStarts(NamedTuple):
    """Seconds that past starts of pods took, in no order."""

    whole_s: tuple[float, ...] = ()  # from the creation of the pod until it was ready
    container_s: tuple[float, ...] = ()  # from the start of the container
    error: str = ""  # why they are not known


class AnswerTimes(NamedTuple):
    """How long answers took, in buckets."""

    bounds_s: tuple[float, ...] = ()  # ascending, the last is infinity
    counts: tuple[float, ...] = ()  # answers up to each bound
    error: str = ""

    @property
    def total(self) -> float:
        return self.counts[-1] if self.counts else 0.0

    def longer(self, limit_s: float) -> float:
        """Return the share of answers that certainly took longer than a limit."""
        within = next((n for bound, n in zip(self.bounds_s, self.counts, strict=True) if bound >= limit_s), self.total)
        return max(0.0, 1.0 - within / self.total) if self.total > 0 else 0.0

    @property
    def longest_s(self) -> float:
        """Return the smallest bound that holds all answers but one of ten thousand; NaN: there were none."""
        for bound, n in zip(self.bounds_s, self.counts, strict=True):
            if self.total > 0 and n >= self.total * 0.9999:
                return bound
        return math.nan


class PastReadings:
    """Answers of the common queries, arranged by namespace."""

    def __init__(self, facts: QueryFacts) -> None:
        self.facts = facts

    def starts(self, workload: ModelWorkload) -> PastStarts | None:
        """Return the starts of a workload's pods in the last week; None: not asked yet."""
        answers = [self.facts.query(expression) for expression in (CREATED, STARTED, READY)]
        if any(answer is PENDING for answer in answers):
            return None
        if error := next((answer.error for answer in answers if answer.error), ""):
            return PastStarts(error=error)
        created, started, ready = (
            self._by_pod(text, answer, workload)
            for text, answer in zip((CREATED, STARTED, READY), answers, strict=True)
        )
        whole = tuple(ready[pod] - created[pod] for pod in ready if pod in created and ready[pod] > created[pod])
        inner = tuple(ready[pod] - started[pod] for pod in ready if pod in started and ready[pod] > started[pod])
        return PastStarts(whole, inner)

    def lengths(self, workload: ModelWorkload) -> AnswerTimes | None:
        answer = self.facts.query(ANSWERS)
        if answer is PENDING:
            return None
        if answer.error:
            return AnswerTimes(error=answer.error)
        counts: dict[float, float] = {}
        for each in samples_of(workload, self.facts, answer):
            try:
                bound = float(each.labels.get("le", ""))
            except ValueError:
                continue
            counts[bound] = counts.get(bound, 0.0) + each.value
        bounds = sorted(counts)
        return AnswerTimes(tuple(bounds), tuple(counts[bound] for bound in bounds))

    def replicas(self, workload: ModelWorkload) -> float:
        """Return the replicas that are wanted now; NaN: unknown."""
        answer = self.facts.query(REPLICAS)
        for each in self.facts.index(answer).of_label("namespace", workload.thing.namespace):
            kind, _, name = workload.target
            if name == each.labels.get(kind.lower()):
                return each.value
        return math.nan

    def _by_pod(self, text: str, answer: Answer, workload: ModelWorkload) -> dict[str, float]:
        pattern = workload.pod_pattern()
        found: dict[str, float] = {}
        for each in self.facts.index(answer).of_owner(workload.thing.namespace, workload.owner_name):
            pod = each.labels.get("exported_pod") or each.labels.get("pod", "")
            container = each.labels.get("exported_container") or each.labels.get("container", "")
            name = workload.pod.of_container("name")
            if pattern.fullmatch(pod) and (text != STARTED or container == name or not container):
                found[pod] = each.value
        return found
