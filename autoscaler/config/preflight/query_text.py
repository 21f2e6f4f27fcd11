"""Facts in the text of a query: what it selects, and what its number means to KEDA."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from autoscaler.config.findings import shown
from autoscaler.config.preflight import metric_names, promql
from autoscaler.config.preflight.facts import NO_SERVER, PENDING, QueryFacts
from autoscaler.config.preflight.objects import PreflightFinding, Result, found, not_checked
from autoscaler.config.preflight.patterns import fits
from autoscaler.config.preflight.promql import MetricSelector, ParsedQuery
from autoscaler.config.preflight.query_cost import reads_too_much
from autoscaler.config.preflight.scalers import Autoscaler, Trigger
from autoscaler.config.preflight.scene import Scene
from autoscaler.config.preflight.series import samples_of
from autoscaler.config.preflight.workloads import ModelWorkload
from autoscaler.config.yaml import Loc

_OLD_S = 300.0
POD_LABELS = ("pod", "exported_pod", "pod_name")
_COUNTS_PODS = re.compile(
    r"up|kube_pod_(info|owner|status_(ready|phase))|kube_(deployment|statefulset)_(status|spec|)_?replicas.*"
)
HELD = (
    "max by (namespace, pod, model_name) (max_over_time((vllm:num_requests_running and vllm:num_requests_waiting >"
    " 0)[2d:10m]))"
)
"""The most requests that each replica ran while others waited."""

_HARDWARE = (
    (
        metric_names.is_gpu_memory,
        "VA1212",
        "GPU memory",
        "vLLM takes its share of the memory at its start, idle or busy, and gives nothing back.",
    ),
    (
        metric_names.is_gpu_use,
        "VA1213",
        "GPU utilisation",
        "It says that some kernel ran: one request looks like a full replica, and a queue does not show.",
    ),
    (
        metric_names.is_host_use,
        "VA1226",
        "CPU or memory of the host",
        "An engine's CPU is busy at any load, and its host memory stays, so neither shows the load.",
    ),
)
"""Measures that say little about requests: names, identifier, words, reason."""


class QueryText:
    """One query of one trigger."""

    def __init__(
        self,
        fleet: Scene,
        autoscaler: Autoscaler,
        trigger: Trigger,
        expression: ParsedQuery,
        workload: ModelWorkload | None,
        facts: QueryFacts,
    ) -> None:
        self.fleet, self.autoscaler, self.trigger, self.expression = fleet, autoscaler, trigger, expression
        self.workload, self.facts = workload, facts
        self.thing, self.loc = autoscaler.thing, trigger.query_loc

    def found(self, id: str, message: str, why: str, fix: str, severity: str = "", loc: Loc = ()) -> PreflightFinding:
        return found(id, self.thing, loc or self.loc, message, why, fix, severity)

    @property
    def empty(self) -> str:
        if str(self.trigger.metadata.get("ignoreNullValues")).lower() in ("false", "0", "f"):
            return "with ignoreNullValues false KEDA counts a failure at each poll"
        return "KEDA takes the empty answer for 0 without an error"

    def static(self) -> Iterator[Result]:
        yield from self._devices()
        if any(is_kind(name) for name in self.expression.names for is_kind, *_ in _HARDWARE):
            return
        yield from self._series()
        yield from self._counters()
        yield from self._selectors()
        yield from self._model()
        yield from self._rank()
        yield from self._pattern_of_names()
        if self.thing.at(*self.autoscaler.base, "advanced", "scalingModifiers", "formula"):
            yield not_checked(self.thing, self.loc, "metricType and threshold", "a formula replaces them")
            return
        yield from self._meaning()
        yield from self._threshold()

    def _devices(self) -> Iterator[Result]:
        fix, said = self._sum_of("vllm:num_requests_running"), set()
        for name in sorted(self.expression.names):
            for is_kind, id, what, why in _HARDWARE:
                if is_kind(name) and id not in said:
                    said.add(id)
                    yield self.found(id, f"scales on {what} ({name})", why, fix)

    def _series(self) -> Iterator[Result]:
        many = self.autoscaler.most is None or self.autoscaler.most > 1
        if self.expression.shape.series == "many" and many:
            why = "With a second pod KEDA answers `returned multiple elements`, and the HPA gets no value."
            yield self.found(
                "VA1204", "the query returns a series per pod, and KEDA takes one", why, self.fixed(summed=True)
            )

    def _counters(self) -> Iterator[Result]:
        """Find counters that are taken as they stand, gauges whose rate is taken, and quantiles without bounds."""
        if self.expression.lacks_le:
            why = f"The sum has no label le, so there are no buckets to take a quantile of: no result. {self.empty}."
            yield self.found("VA1235", "a quantile without the label le", why, "sum by (le) (rate(..._bucket[5m]))")
        of_load = self.expression.counts and any(selector.is_load for selector in self.expression.selectors)
        if of_load or self._counts_own_pods():
            why = "There is one series for each replica, whatever its load, so the count follows itself."
            yield self.found("VA1238", "the query counts the replicas", why, self._sum_of("vllm:num_requests_running"))
        ages = [selector.offset_s for selector in self.expression.selectors]
        if ages and min(ages) >= _OLD_S:
            why = f"It asks for what was {min(ages) / 60:g} minutes ago, so the count follows a load that is over."
            yield self.found("VA1237", "the query asks for the past", why, "no offset")
        for selector in dict.fromkeys(self.expression.selectors):
            if not selector.is_load:
                continue
            if selector.is_counter and not selector.differs:
                why = "It counts from the start of the engine and never falls, so the count follows the age of pods."
                fix = self.fixed(selector._replace(range_s=120.0, function="rate"))
                yield self.found("VA1234", f"{selector.name} is a counter, and no rate of it is taken", why, fix)
                return
            if selector.is_gauge and selector.range_s and selector.function in promql.RATES:
                why = f"{selector.function} takes each fall for a restart and counts it as growth: the number is none."
                message = f"{selector.function} of {selector.name}, which falls, too"
                yield self.found("VA1234", message, why, self.fixed(selector._replace(range_s=0.0)))
                return

    def _counts_own_pods(self) -> bool:
        """Return whether all that it reads is how many pods of its own target there are."""
        name = self.autoscaler.target[2]
        return bool(self.expression.selectors) and all(
            _COUNTS_PODS.fullmatch(selector.name)
            and any(
                matcher.name in (*POD_LABELS, "deployment", "statefulset")
                and matcher.op in ("=", "=~")
                and (matcher.value == name or fits(matcher.value, f"{name}-5d5f9c7d66-8wq2z"))
                for matcher in selector.matchers
            )
            for selector in self.expression.selectors
        )

    def _selectors(self) -> Iterator[Result]:
        stated = self.trigger.metadata.get("namespace")
        for selector in dict.fromkeys(self.expression.selectors):
            if not selector.is_load:
                continue
            if selector.narrowing:
                yield from self._too_wide(selector)
                continue
            namespace = selector.value("namespace", "exported_namespace") or (stated if isinstance(stated, str) else "")
            others = (
                [each for each in self.fleet.in_namespace(namespace) if each is not self.workload] if namespace else []
            )
            if namespace and not others:
                if not self.facts.server:
                    reason = f"whether other models serve in the namespace {shown(namespace)}: {NO_SERVER}"
                    yield not_checked(self.thing, self.loc, "selector of the model", reason)
                    continue
                if len(self._models_now(selector)) < 2:
                    continue
            whose = f"all engines of the namespace {namespace}" if namespace else "all engines that this server sees"
            why = f"The query adds up {whose}, so the count follows the queues of others."
            yield self.found("VA1205", f"{selector.about} has no model or workload selector", why, self.fixed())
            return

    def _models_now(self, selector: MetricSelector) -> set[str]:
        plain = str(selector._replace(range_s=0.0))
        if not selector.name and reads_too_much(plain):
            return set()
        answer = self.facts.query(plain)
        return {each.labels.get("model_name", "") for each in answer.samples if each.labels.get("model_name")}

    def _too_wide(self, selector: MetricSelector) -> Iterator[Result]:
        """Find a pattern on the pods that fits those of another workload too."""
        if self.workload is None:
            return
        namespace = selector.value("namespace", "exported_namespace")
        for matcher in selector.narrowing:
            if matcher.name == "model_name" and matcher.op == "=~" and len(selector.narrowing) == 1:
                yield from self._other_model(matcher, namespace)
            if matcher.name not in POD_LABELS or matcher.op != "=~" or len(selector.narrowing) > 1:
                continue
            spaces = [namespace] if namespace else [self.workload.thing.namespace]
            for other in (each for space in spaces for each in self.fleet.in_namespace(space)):
                if other is self.workload or other.thing.kind != "Deployment":
                    continue
                if fits(matcher.value, f"{other.thing.name}-5d5f9c7d66-8wq2z"):
                    why = f"The pattern also fits the pods of {other.thing.key}, whose requests count too."
                    fix = f'pod=~"{self.workload.thing.name}-[a-z0-9]+-[a-z0-9]{{5}}"'
                    yield self.found("VA1205", f"the pattern {matcher} fits pods of another workload", why, fix)
                    return

    def _other_model(self, matcher: promql.Matcher, namespace: str) -> Iterator[Result]:
        """Find another model that a pattern on the models fits too."""
        own = self.workload.model_label if self.workload is not None else ""
        for other in self.fleet.in_namespace(namespace) if namespace else self.fleet.workloads:
            label = other.model_label
            if own and label and label != own and fits(matcher.value, own) and fits(matcher.value, label):
                why = f"The pattern also fits {label} of {other.thing.key}, whose requests count too."
                yield self.found("VA1205", f"the pattern {matcher} fits another model", why, f'model_name="{own}"')
                return

    def _model(self) -> Iterator[Result]:
        """Compare the model that is selected with the one that the command line serves."""
        label = self.workload.model_label if self.workload is not None else ""
        if not label or self.facts.server:
            return
        for selector in self.expression.selectors:
            stated = selector.value("model_name")
            if selector.is_load and stated and stated != label:
                why = (
                    f"The engine reports model_name={label!r}: the first --served-model-name, else the model as"
                    f" given. {self.empty}."
                )
                yield self.found("VA1203", f"model_name={stated!r} is not what the engine reports", why, self.fixed())
                return

    def _rank(self) -> Iterator[Result]:
        """Find a selector that takes one of several ranks of data parallel."""
        command = self.workload.command if self.workload is not None else None
        ranks = command.whole("data-parallel-size") if command is not None else 1
        for selector in self.expression.selectors:
            rank = selector.value("engine")
            if ranks > 1 and selector.is_load and rank:
                why = f"The engine has {ranks} ranks with a series each, and requests of the others do not count."
                yield self.found("VA1233", f"the query counts rank {rank} of {ranks}", why, self.fixed())
                return

    def _pattern_of_names(self) -> Iterator[Result]:
        """Find a pattern on names of metrics where Google's Prometheus is asked, which refuses it."""
        server = self.trigger.metadata.get("serverAddress")
        if not isinstance(server, str) or "googleapis.com" not in server[:2000]:
            return
        if any(not each.name and each.about for each in self.expression.selectors):
            why = (
                "Managed Service for Prometheus takes exact names of metrics alone; KEDA counts a failure at each poll."
            )
            yield self.found("VA1228", "the server refuses a pattern on __name__", why, "one selector for each name")

    def _meaning(self) -> Iterator[Result]:
        shape, kind = self.expression.shape, self.trigger.metric_type
        if shape.grows is True and kind == "Value" and not _is_ratio(self.expression):
            why = "With Value the HPA multiplies the ratio by the ready pods, and a sum grows with them already."
            loc = (*self.trigger.loc, "metricType")
            yield self.found("VA1208", "metricType Value on a sum", why, "metricType: AverageValue", loc=loc)
        if shape.series == "many":
            return  # the sum over the pods mends both
        if shape.grows is False and kind == "AverageValue" and any(each.is_load for each in self.expression.selectors):
            ratio = any(
                metric_names.is_ratio(each.name) or "seconds" in each.name for each in self.expression.selectors
            )
            ratio = ratio or re.search(r"\s/\s", self.expression.text) is not None
            why = (
                "With AverageValue the HPA divides the value by the target to get the count, and this value does not"
                " grow with the pods."
            )
            fix = "metricType: Value" if ratio else self.fixed(summed=True)
            yield self.found("VA1207", "a mean or maximum over the pods where the sum is meant", why, fix)

    def _threshold(self) -> Iterator[Result]:
        threshold = self.trigger.number("threshold")
        loc = (*self.trigger.loc, *self.trigger.metadata_loc, "threshold")
        if math.isnan(threshold):
            return
        names, kind = self.expression.names, self.trigger.metric_type
        if (
            names
            and all(_is_cache_use(name) for name in names)
            and threshold * (1 + promql.TOLERANCE) >= 1
            and (threshold <= 1 or not re.search(r"[*/]", self.expression.text))
        ):
            why = (
                f"The usage is at most 1, and 1 / {threshold:g} is within the HPA's tolerance of {promql.TOLERANCE:g}."
            )
            yield self.found("VA1209", f"threshold {threshold:g} is never exceeded", why, 'threshold: "0.7"', loc=loc)
        if not names or not all(metric_names.is_running(name) for name in names):
            return
        if kind == "AverageValue" and self.expression.shape.grows is not True:
            return
        slots = self.workload.slots if self.workload is not None else None
        if slots is not None and threshold * (1 + promql.TOLERANCE) >= slots:
            why = (
                f"A replica runs at most {slots:g} requests, and {slots:g} / {threshold:g} is not above 1 by more than"
                f" the HPA's tolerance of {promql.TOLERANCE:g}: the trigger never adds a replica."
            )
            message = f"threshold {threshold:g} is more than a replica can hold (--max-num-seqs {slots:g})"
            yield self.found("VA1209", message, why, f'threshold: "{math.floor(slots * 0.75)}"', loc=loc)
            return
        yield from self._held(threshold, loc)

    def _held(self, threshold: float, loc: Loc) -> Iterator[Result]:
        """Compare the threshold with what a replica held while requests waited."""
        if self.workload is None:
            return
        answer = self.facts.query(HELD)
        if answer is PENDING:
            return
        if answer.error:
            yield not_checked(self.thing, loc, "threshold against what a replica holds", answer.error)
            return
        held = [each.value for each in samples_of(self.workload, self.facts, answer)]
        most = max(held, default=math.nan)
        if threshold * (1 + promql.TOLERANCE) >= most > 0:
            why = f"While requests waited, a replica ran at most {most:g} in the last days: its KV cache was the limit."
            message = f"threshold {threshold:g} is more than a replica held"
            yield self.found("VA1209", message, why, f'threshold: "{max(1, math.floor(most * 0.75))}"', "warning", loc)

    def _sum_of(self, name: str, extra: str = "") -> str:
        return f"query: sum({name}{{{self._own_matchers()}}}){extra}"

    def _own_matchers(self) -> str:
        matchers = [f'namespace="{self.autoscaler.thing.namespace}"']
        label = self.workload.model_label if self.workload is not None else ""
        if label:
            matchers.append(f'model_name="{label}"')
        elif self.workload is not None:
            matchers.append(f'pod=~"{self.workload.thing.name}-.*"')
        return ",".join(matchers)

    def fixed(self, selector: MetricSelector | None = None, *, summed: bool = False) -> str:
        """Return the query as it should be, if it has one selector; else its selector."""
        own = [
            each for each in self.expression.selectors if each.is_load or each.name == getattr(selector, "name", None)
        ]
        first = selector or next(iter(own or self.expression.selectors), None)
        if first is None:
            return "a query on the requests of this workload"
        matchers = ",".join(map(str, first.matchers)) if summed and first.narrowing else self._own_matchers()
        if first.range_s:
            return f"query: sum({first.function or 'rate'}({first.name}{{{matchers}}}[{first.range_s:.0f}s]))"
        return f"query: sum({first.name}{{{matchers}}})"


def _is_ratio(expression: ParsedQuery) -> bool:
    return bool(expression.names) and all(metric_names.is_ratio(name) for name in expression.names)


def _is_cache_use(name: str) -> bool:
    return name.endswith(("cache_usage_perc", "token_usage", "kv_cache_utilization"))
