"""A slow, literal transcription of the HPA controller, to compare with `lab.baselines.hpa`.

Source: Kubernetes 1.36 pkg/controller/podautoscaler/horizontal.go and replica_calculator.go. Functions have the names
of the original in small letters; lists are scanned as it scans them. Time is an argument.
"""

import math
from dataclasses import dataclass, field

from autoscaler.config.rules.rule import Direction, HpaRule, Metric

MAX, MIN = 2**31 - 1, -(2**31)


@dataclass
class Controller:
    """One HPA in the controller's memory."""

    hpa: HpaRule
    recommendations: list[tuple[float, int]] = field(default_factory=list)
    scale_up_events: list[tuple[float, int]] = field(default_factory=list)
    scale_down_events: list[tuple[float, int]] = field(default_factory=list)

    def reconcile(self, now: float, current: int, ready: int, metrics: list[tuple[Metric, list[float] | None]]) -> int:
        if not self.recommendations:
            self.recommendations = [(now, current)]
        desired = 0
        if current == 0:
            return 0
        if current > self.hpa.most:
            desired = self.hpa.most
        elif current < self.hpa.least:
            desired = self.hpa.least
        else:
            found = self.compute_replicas_for_metrics(current, ready, metrics)
            if found == -1:
                return current
            desired = found
            if self.hpa.stated:
                desired = self.convert_with_behavior_rate(
                    now, current, self.stabilize_with_behaviors(now, current, desired)
                )
            else:
                desired = self.convert_with_rules(current, self.stabilize(now, desired))
        if desired != current and self.hpa.stated:
            events = self.scale_up_events if desired > current else self.scale_down_events
            events.append((now, abs(desired - current)))
        return desired

    def compute_replicas_for_metrics(
        self, current: int, ready: int, metrics: list[tuple[Metric, list[float] | None]]
    ) -> int:
        replicas, invalid = 0, 0
        for metric, values in metrics:
            if values is None:
                invalid += 1
                continue
            proposal = self.get_replicas(metric, values, current, ready)
            if replicas == 0 or proposal > replicas:
                replicas = proposal
        if invalid >= len(metrics) or (invalid > 0 and replicas < current):
            return -1
        return replicas

    def get_replicas(self, metric: Metric, values: list[float], current: int, ready: int) -> int:
        milli = [round(value * 1000) for value in values]
        target = round(metric.target * 1000)
        if metric.per_pod:
            return self.calc_plain_metric_replicas(milli, target, current)
        usage = sum(milli)
        if metric.is_average:
            ratio = float(usage) / (float(target) * float(current))
            return current if self.is_within(ratio) else math.ceil(float(usage) / float(target))
        ratio = float(usage) / float(target)
        return current if self.is_within(ratio) else math.ceil(ratio * float(ready))

    def calc_plain_metric_replicas(self, usages: list[int], target: int, current: int) -> int:
        metrics, missing = list(usages), current - len(usages)
        ratio = float(sum(metrics) // len(metrics)) / float(target)
        if missing <= 0:
            return current if self.is_within(ratio) else math.ceil(ratio * len(metrics))
        if ratio < 1.0:
            metrics += [target] * missing
        elif ratio > 1.0:
            metrics += [0] * missing
        again = float(sum(metrics) // len(metrics)) / float(target)
        if self.is_within(again) or (ratio < 1.0 and again > 1.0) or (ratio > 1.0 and again < 1.0):
            return current
        replicas = math.ceil(again * len(metrics))
        if (again < 1.0 and replicas > current) or (again > 1.0 and replicas < current):
            return current
        return replicas

    def is_within(self, ratio: float) -> bool:
        return (1.0 - self.hpa.down.tolerance) <= ratio <= (1.0 + self.hpa.up.tolerance)

    def stabilize(self, now: float, desired: int) -> int:
        most = desired
        for at, count in self.recommendations:
            if now - at < self.hpa.down.stabilization_s and count > most:
                most = count
        self.recommendations.append((now, desired))
        return most

    def convert_with_rules(self, current: int, desired: int) -> int:
        limit = max(int(2.0 * current), 4)
        most = limit if self.hpa.most > limit else self.hpa.most
        if desired < self.hpa.least:
            return self.hpa.least
        return most if desired > most else desired

    def stabilize_with_behaviors(self, now: float, current: int, desired: int) -> int:
        up = down = desired
        for at, count in self.recommendations:
            if now - at < self.hpa.up.stabilization_s:
                up = min(count, up)
            if now - at < self.hpa.down.stabilization_s:
                down = max(count, down)
        recommendation = current
        recommendation = max(recommendation, up)
        recommendation = min(recommendation, down)
        self.recommendations.append((now, desired))
        return recommendation

    def convert_with_behavior_rate(self, now: float, current: int, desired: int) -> int:
        if desired > current:
            limit = max(self.scale_up_limit(now, current, self.hpa.up), current)
            most = min(self.hpa.most, limit)
            return min(desired, most)
        if desired < current:
            limit = min(self.scale_down_limit(now, current, self.hpa.down), current)
            least = max(self.hpa.least, limit)
            return max(desired, least)
        return desired

    def period_start(self, now: float, current: int, period_s: float) -> int:
        added = sum(change for at, change in self.scale_up_events if now - at < period_s)
        deleted = sum(change for at, change in self.scale_down_events if now - at < period_s)
        return current - added + deleted

    def scale_up_limit(self, now: float, current: int, rules: Direction) -> int:
        if rules.select == "Disabled":
            return current
        result = MAX if rules.select == "Min" else MIN
        for policy in rules.policies:
            start = self.period_start(now, current, policy.period_s)
            if policy.kind == "Pods":
                proposed = start + int(policy.value)
            else:
                proposed = math.ceil(float(start) * (1 + float(policy.value) / 100))
            result = min(result, proposed) if rules.select == "Min" else max(result, proposed)
        return result

    def scale_down_limit(self, now: float, current: int, rules: Direction) -> int:
        if rules.select == "Disabled":
            return current
        result = MIN if rules.select == "Min" else MAX
        for policy in rules.policies:
            start = self.period_start(now, current, policy.period_s)
            if policy.kind == "Pods":
                proposed = start - int(policy.value)
            else:
                proposed = int(float(start) * (1 - float(policy.value) / 100))
            result = max(result, proposed) if rules.select == "Min" else min(result, proposed)
        return result
