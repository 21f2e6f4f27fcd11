"""Checks of the queries by which KEDA scales: what they select, what they return, what their number means."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from difflib import get_close_matches

from autoscaler.config.findings import shown
from autoscaler.config.preflight import promql
from autoscaler.config.preflight.facts import HISTORY, NO_SERVER, PENDING, Answer, Labels, QueryFacts, Sample
from autoscaler.config.preflight.objects import Manifest, PreflightFinding, Result, found, not_checked
from autoscaler.config.preflight.patterns import fits
from autoscaler.config.preflight.promql import MetricSelector, ParsedQuery, Unparsed
from autoscaler.config.preflight.workloads import Autoscaler, ModelWorkload, Scene, Trigger
from autoscaler.config.yaml import Loc

_POD_LABELS = ("pod", "exported_pod", "pod_name")
_OF_TARGET = frozenset({"job", "instance", "endpoint", "container", "service", "prometheus", "node"})
_CLUSTERS = ("cluster", "k8s_cluster", "k8s_cluster_name", "cluster_id")
MAX_COMPARED = 2000  # series whose labels are compared with those of a query that finds none
_MANY = 5  # names listed in a sentence
RATES = ("rate", "irate", "increase", "delta", "idelta")
_WITH_SECRETS = ("basic", "bearer", "tls", "custom")  # modes whose values come from a TriggerAuthentication alone
_REPLICA_LABELS = ("prometheus_replica", "replica", "__replica__", "receive_replica", "thanos_replica")


def check_queries(fleet: Scene, facts: QueryFacts) -> Iterator[Result]:
    """Check the Prometheus triggers of all autoscalers, and the expressions of alerting rules."""
    for autoscaler in fleet.autoscalers:
        for trigger in autoscaler.triggers:
            if not autoscaler.keda and not trigger.query:
                continue
            if trigger.type == "prometheus":
                yield from _check_trigger(fleet, autoscaler, trigger, facts)
            elif trigger.type not in ("cpu", "memory", "external", "external-push", "cron"):
                reason = f"triggers of the type {shown(trigger.type)} are not read"
                yield not_checked(autoscaler.thing, trigger.loc, "trigger", reason)
    for rule in fleet.objects.of_kind("PrometheusRule"):
        for g, group in enumerate(rule.list("spec", "groups")[:64]):
            rules = group.get("rules") if isinstance(group, dict) else None
            for r, each in enumerate(rules[:256] if isinstance(rules, list) else []):
                text = each.get("expr") if isinstance(each, dict) else None
                if isinstance(text, str):
                    yield from _check_rule(rule, ("spec", "groups", g, "rules", r, "expr"), text, facts)


def _check_rule(rule: Manifest, loc: Loc, text: str, facts: QueryFacts) -> Iterator[Result]:
    try:
        expression = promql.parse(text)
    except Unparsed as error:
        yield not_checked(rule, loc, "query", str(error))
        return
    for selector in expression.selectors:
        if not re.search(r"vllm|sglang|tgi_|trtllm", selector.name):
            continue
        names = facts.names()
        if names is PENDING:
            continue
        if names.error:
            yield not_checked(rule, loc, "names of metrics", names.error)
            return
        if selector.name not in names.names and (nearest := nearest_name(selector.name, names.names)):
            message = f"no series is called {selector.name}; the nearest is {nearest}"
            yield found("VA1201", rule, loc, message, "The rule never fires.", nearest, "warning")


def _check_trigger(fleet: Scene, autoscaler: Autoscaler, trigger: Trigger, facts: QueryFacts) -> Iterator[Result]:
    thing, loc = autoscaler.thing, trigger.query_loc
    for key in ("serverAddress", "query", "threshold"):
        value = trigger.metadata.get(key)
        if value is None or (key != "threshold" and not isinstance(value, str)):
            message = f"the trigger has no {key}" if value is None else f"{key} is not text"
            yield found(
                "VA1230",
                thing,
                (*trigger.loc, "metadata", key),
                message,
                "KEDA refuses the trigger.",
                f'{key}: "..."',
            )
    if "metricName" in trigger.metadata:
        why = "KEDA removed it in 2.12; it is read by nobody."
        yield found(
            "VA1219",
            thing,
            (*trigger.loc, "metadata", "metricName"),
            "metricName has no effect",
            why,
            "remove the line",
        )
    modes = [each.strip() for each in str(trigger.metadata.get("authModes", ""))[:200].split(",")]
    if any(mode in _WITH_SECRETS for mode in modes) and not thing.map(*trigger.loc, "authenticationRef"):
        why = "Passwords, tokens and certificates come from a TriggerAuthentication alone; KEDA refuses the trigger."
        fix = "authenticationRef: {name: ...}"
        place = (*trigger.loc, "metadata", "authModes")
        yield found("VA1230", thing, place, "authModes without authenticationRef", why, fix)
    if not trigger.query:
        return
    try:
        expression = promql.parse(trigger.query)
    except Unparsed as error:
        answer = facts.query(trigger.query)
        if answer.refused:
            why = "KEDA counts a failure at each poll, and the HPA gets no value."
            yield found(
                "VA1228", thing, loc, f"the server refuses the query: {answer.error}", why, "a valid expression"
            )
        else:
            yield not_checked(thing, loc, "query", f"not understood: {error}")
        return
    workload = fleet.workload(autoscaler)
    checked = _Query(fleet, autoscaler, trigger, expression, workload, facts)
    yield from checked.static()
    yield from checked.answers()


class _Query:
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
    def _empty(self) -> str:
        if str(self.trigger.metadata.get("ignoreNullValues")).lower() in ("false", "0", "f"):
            return "with ignoreNullValues false KEDA counts a failure at each poll"
        return "KEDA takes the empty answer for 0 without an error"

    # What the text alone tells.

    def static(self) -> Iterator[Result]:
        yield from self._devices()
        if any(promql.is_gpu_memory(name) or promql.is_gpu_use(name) for name in self.expression.names):
            return
        yield from self._series()
        yield from self._selectors()
        yield from self._model()
        if self.thing.at(*self.autoscaler.base, "advanced", "scalingModifiers", "formula"):
            yield not_checked(self.thing, self.loc, "metricType and threshold", "a formula replaces them")
            return
        yield from self._meaning()
        yield from self._threshold()

    def _devices(self) -> Iterator[Result]:
        for name in sorted(self.expression.names):
            if promql.is_gpu_memory(name):
                why = "vLLM takes its share of the memory at its start, idle or busy, and gives nothing back."
                yield self.found(
                    "VA1212", f"scales on GPU memory ({name})", why, self._sum_of("vllm:num_requests_running")
                )
            elif promql.is_gpu_use(name):
                why = "It says that some kernel ran: one request looks like a full replica, and a queue does not show."
                yield self.found(
                    "VA1213", f"scales on GPU utilisation ({name})", why, self._sum_of("vllm:num_requests_running")
                )

    def _series(self) -> Iterator[Result]:
        many = self.autoscaler.most is None or self.autoscaler.most > 1
        if self.expression.shape.series == "many" and many:
            why = "With a second pod KEDA answers `returned multiple elements`, and the HPA gets no value."
            yield self.found(
                "VA1204", "the query returns a series per pod, and KEDA takes one", why, self._fixed(summed=True)
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
            yield self.found("VA1205", f"{selector.about} has no model or workload selector", why, self._fixed())
            return

    def _models_now(self, selector: MetricSelector) -> set[str]:
        answer = self.facts.query(str(selector._replace(range_s=0.0)))
        return {each.labels.get("model_name", "") for each in answer.samples if each.labels.get("model_name")}

    def _too_wide(self, selector: MetricSelector) -> Iterator[Result]:
        """Find a pattern on the pods that fits those of another workload too."""
        if self.workload is None:
            return
        namespace = selector.value("namespace", "exported_namespace")
        for matcher in selector.narrowing:
            if matcher.name == "model_name" and matcher.op == "=~" and len(selector.narrowing) == 1:
                yield from self._other_model(matcher, namespace)
            if matcher.name not in _POD_LABELS or matcher.op != "=~" or len(selector.narrowing) > 1:
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
                    f" given. {self._empty}."
                )
                yield self.found("VA1203", f"model_name={stated!r} is not what the engine reports", why, self._fixed())
                return

    def _meaning(self) -> Iterator[Result]:
        shape, kind = self.expression.shape, self.trigger.metric_type
        if shape.grows is True and kind == "Value" and not _is_ratio(self.expression):
            why = "With Value the HPA multiplies the ratio by the ready pods, and a sum grows with them already."
            loc = (*self.trigger.loc, "metricType")
            yield self.found("VA1208", "metricType Value on a sum", why, "metricType: AverageValue", loc=loc)
        if shape.grows is False and kind == "AverageValue" and any(each.is_load for each in self.expression.selectors):
            ratio = any(promql.is_ratio(each.name) or "seconds" in each.name for each in self.expression.selectors)
            ratio = ratio or re.search(r"\s/\s", self.expression.text) is not None
            why = (
                "With AverageValue the HPA divides the value by the target to get the count, and this value does not"
                " grow with the pods."
            )
            fix = "metricType: Value" if ratio else self._fixed(summed=True)
            yield self.found("VA1207", "a mean or maximum over the pods where the sum is meant", why, fix)

    def _threshold(self) -> Iterator[Result]:
        threshold = self.trigger.number("threshold")
        loc = (*self.trigger.loc, "metadata", "threshold")
        if math.isnan(threshold):
            return
        names, kind = self.expression.names, self.trigger.metric_type
        if (
            names
            and all(_is_cache_use(name) for name in names)
            and threshold * (1 + promql.TOLERANCE) >= 1
            and threshold <= 1
        ):
            why = (
                f"The usage is at most 1, and 1 / {threshold:g} is within the HPA's tolerance of {promql.TOLERANCE:g}."
            )
            yield self.found("VA1209", f"threshold {threshold:g} is never exceeded", why, 'threshold: "0.7"', loc=loc)
        if not names or not all(promql.is_running(name) for name in names):
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

    # What the server answers.

    def answers(self) -> Iterator[Result]:
        if not self.facts.server:
            yield not_checked(self.thing, self.loc, "names, labels and answer of the query", NO_SERVER)
            return
        answer = self.facts.query(self.expression.text)
        if answer is PENDING:
            return
        if answer.error:
            if answer.refused:
                why = "KEDA counts a failure at each poll, and the HPA gets no value."
                yield self.found("VA1228", f"the server refuses the query: {answer.error}", why, "a valid expression")
            else:
                yield not_checked(self.thing, self.loc, "answer of the query", answer.error)
            return
        if len(answer.samples) > 1 and self.expression.shape.series != "many":
            why = "KEDA answers `returned multiple elements`, and the HPA gets no value."
            message = f"the query returns {len(answer.samples)} series, and KEDA takes one"
            yield self.found("VA1204", message, why, self._fixed(summed=True))
        for selector in dict.fromkeys(self.expression.selectors):
            yield from self._selector(selector)
        if not answer.samples:
            yield from self._short_windows()

    def _short_windows(self) -> Iterator[Result]:
        """Find a rate without an answer although its series are there: its window holds one sample."""
        windows = [each for each in self.expression.selectors if each.range_s and each.function in RATES]
        if not windows or self.expression.compares or len(windows) < len(self.expression.selectors):
            return
        for selector in windows:
            now = self.facts.query(selector.name)
            if not any(_fits(selector, each.labels) for each in self._likely(selector, now)):
                return
        first = windows[0]
        why = f"Its series are there, but a rate needs two samples, and its window holds at most one. {self._empty}."
        message = f"{first.function} over {first.range_s:g} s returns nothing"
        yield self.found("VA1218", message, why, "a window of at least four scrape intervals, or a shorter interval")

    def _selector(self, selector: MetricSelector) -> Iterator[Result]:
        if not selector.name:
            yield not_checked(self.thing, self.loc, f"selector {selector}", "it names no metric")
            return
        now = self.facts.query(selector.name)
        if now is PENDING:
            return
        if now.error:
            yield not_checked(self.thing, self.loc, f"series of {selector.name}", now.error)
            return
        fitting = [each.labels for each in self._likely(selector, now) if _fits(selector, each.labels)]
        if fitting:
            yield from self._copies(selector, fitting)
            return
        before = self.facts.series(selector.name)
        if before is PENDING:
            return
        if before.error:
            yield not_checked(self.thing, self.loc, f"past series of {selector.name}", before.error)
            return
        if any(_fits(selector, each.labels) for each in self._likely(selector, before)):
            return  # it was there and comes back, as at zero replicas
        if not before.samples and not now.samples:
            yield from self._missing_name(selector)
        else:
            yield from self._missing_label(selector, before if before.samples else now)

    def _likely(self, selector: MetricSelector, answer: Answer) -> Sequence[Sample]:
        """Return the series that may fit a selector: those with its model or namespace, if it states one."""
        for name in ("model_name", "namespace"):
            if value := selector.value(name):
                return self.facts.index(answer).of_label(name, value)
        return answer.samples

    def _missing_name(self, selector: MetricSelector) -> Iterator[Result]:
        names = self.facts.names()
        if names is PENDING:
            return
        if names.error:
            yield not_checked(self.thing, self.loc, f"the name {selector.name}", names.error)
            return
        nearest = nearest_name(selector.name, names.names)
        if not nearest and (selector.is_engine or _is_known(selector.name)):
            reason = f"no series in {HISTORY}, and none with a similar name: no engine has run here yet"
            yield not_checked(self.thing, self.loc, f"the name {selector.name}", reason)
            return
        meant = f"; the nearest is {nearest}" if nearest else ""
        why = f"No series had this name in {HISTORY}. The query returns nothing; {self._empty}."
        named = selector._replace(name=nearest or selector.name)
        yield self.found("VA1201", f"no series is called {selector.name}{meant}", why, self._fixed(named))
        if nearest:
            answer = self.facts.query(nearest)
            if answer is not PENDING and not answer.error and answer.samples:
                yield from self._missing_label(named, answer)

    def _missing_label(self, selector: MetricSelector, answer: Answer) -> Iterator[Result]:
        own = samples_of(self.workload, self.facts, answer) if self.workload is not None else []
        some = own or answer.samples[:MAX_COMPARED]
        labels = sorted({key for each in some for key, value in each.labels.items() if value} - {"__name__"})
        kept = [each for each in answer.samples[:MAX_COMPARED] if _has_all(selector, each.labels)] or some
        for matcher in selector.matchers:
            if not matcher.selects:
                continue
            if matcher.name not in labels:
                near = get_close_matches(matcher.name, labels, n=1, cutoff=0.5)
                meant = f"; the nearest is {near[0]}" if near else ""
                why = f"The series have {', '.join(labels[:12])}. The query returns nothing; {self._empty}."
                yield self.found(
                    "VA1202",
                    f"no series of {selector.name} has the label {matcher.name}{meant}",
                    why,
                    self._fixed(selector),
                )
            elif not any(_matches(matcher.op, matcher.value, each.labels.get(matcher.name, "")) for each in kept):
                values = sorted({each.labels.get(matcher.name, "") for each in kept} - {""})
                near = get_close_matches(matcher.value, values, n=1, cutoff=0.3)
                yield from self._missing_value(selector, matcher, values, near[0] if near else "")

    def _missing_value(
        self, selector: MetricSelector, matcher: promql.Matcher, values: list[str], near: str
    ) -> Iterator[Result]:
        ours = self.workload.model_label if self.workload is not None else ""
        if matcher.name == "model_name" and ours == matcher.value:
            reason = f"the engine serves {shown(ours)}, and no series in {HISTORY} has it: it has not run here yet"
            yield not_checked(self.thing, self.loc, f"the value of {matcher.name}", reason)
            return
        own = self.workload is not None and bool(samples_of(self.workload, self.facts, self.facts.query(selector.name)))
        if matcher.name in ("namespace", *_POD_LABELS) and not own and (not near or matcher.op != "="):
            reason = f"no series of {selector.name} with {matcher} in {HISTORY}: the workload has not run here yet"
            yield not_checked(self.thing, self.loc, f"the value of {matcher.name}", reason)
            return
        listed = ", ".join(map(shown, values[:_MANY])) + (
            f" and {len(values) - _MANY} more" if len(values) > _MANY else ""
        )
        why = f"The series have {listed}. The query returns nothing; {self._empty}."
        yield self.found("VA1203", f"no series of {selector.name} has {matcher}", why, self._fixed(selector))

    def _copies(self, selector: MetricSelector, fitting: list[Labels]) -> Iterator[Result]:
        """Find series that the query counts twice: a router's copies, a second scrape, another cluster."""
        if not selector.is_load:
            return
        if any(labels.get("server") for labels in fitting) and any(not labels.get("server") for labels in fitting):
            why = "The router exports the engines' metrics under the same names, with the label server."
            yield self.found("VA1217", "the router's copies of the series count too", why, self._fixed(), "warning")
        for label in _CLUSTERS:
            clusters = {labels[label] for labels in fitting if labels.get(label)}
            if len(clusters) > 1 and not any(m.name == label for m in selector.matchers):
                names = ", ".join(sorted(clusters)[:_MANY])
                why = f"The series come from {names}; what waits in one makes the workload grow in another."
                yield self.found(
                    "VA1612", f"the query adds up {len(clusters)} clusters", why, f'{label}="..." in each selector'
                )
        twice: defaultdict[tuple[tuple[str, str], ...], int] = defaultdict(int)
        for labels in fitting:
            if not labels.get("server") and any(labels.get(pod) for pod in _POD_LABELS):
                twice[
                    tuple(sorted((k, v) for k, v in labels.items() if k not in _OF_TARGET and k not in _REPLICA_LABELS))
                ] += 1
        if any(count > 1 for count in twice.values()):
            by = next((name for name in _REPLICA_LABELS if len({each.get(name) for each in fitting}) > 1), "")
            why = (
                f"They differ by {by}: replicas of Prometheus, which this server does not deduplicate."
                if by
                else "Two scrape jobs, or two ports of a pod, give the same series with other labels of the target."
            )
            fix = f"deduplicate by {by} at the querier" if by else "one scrape job and one port per pod"
            message = "a pod's series are there twice, so the sum counts its requests twice"
            yield self.found("VA1608", message, why, fix)

    # How it should be.

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

    def _fixed(self, selector: MetricSelector | None = None, *, summed: bool = False) -> str:
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


HELD = (
    "max by (namespace, pod, model_name) (max_over_time((vllm:num_requests_running and vllm:num_requests_waiting >"
    " 0)[2d:10m]))"
)
"""The most requests that each replica ran while others waited."""


def samples_of(workload: ModelWorkload, facts: QueryFacts, answer: Answer) -> list[Sample]:
    """Return the series of an answer that are about a workload."""
    index, namespace = facts.index(answer), workload.thing.namespace
    found_samples = [each for each in index.of_owner(namespace, workload.owner_name) if is_of(workload, each.labels)]
    if found_samples or not workload.model_label:
        return found_samples
    return [each for each in index.of_label("model_name", workload.model_label) if is_of(workload, each.labels)]


def is_of(workload: ModelWorkload, labels: Labels) -> bool:
    """Return whether a series is of a pod of a workload: by pod, else by namespace and model."""
    for namespace, pod in (("exported_namespace", "exported_pod"), ("namespace", "pod")):
        if labels.get(pod):
            return labels.get(namespace) == workload.thing.namespace and bool(
                workload.pod_pattern().fullmatch(labels[pod])
            )
    model = workload.model_label
    return bool(model) and labels.get("model_name") == model and labels.get("namespace") == workload.thing.namespace


def _is_ratio(expression: ParsedQuery) -> bool:
    return bool(expression.names) and all(promql.is_ratio(name) for name in expression.names)


def _is_cache_use(name: str) -> bool:
    return name.endswith(("cache_usage_perc", "token_usage", "kv_cache_utilization"))


def _is_known(name: str) -> bool:
    return (
        re.match(r"llm_d_|inference_|gateway_|istio_|envoy_|nginx_|http_|kn_|interceptor_|vllm:num_incoming", name)
        is not None
    )


def nearest_name(name: str, names: frozenset[str]) -> str:
    """Return the name that was probably meant; "": there is none like it."""
    plain = _plain_name(name)
    same = sorted(each for each in names if _plain_name(each) == plain and each != name)
    if same:
        return same[0]
    ends = sorted(
        (
            each
            for each in names
            if each != name and (_plain_name(each).endswith(plain) or plain.endswith(_plain_name(each)))
        ),
        key=len,
    )
    ends = [each for each in ends if len(_plain_name(each)) >= 8]
    if ends:
        return ends[-1]
    close = get_close_matches(name, [each for each in names if abs(len(each) - len(name)) < 12], n=1, cutoff=0.8)
    return close[0] if close else ""


def _plain_name(name: str) -> str:
    return re.sub(r"^(ray_|kserve_|otel_)", "", name.replace(":", "_").replace(".", "_").lower())


def _matches(op: str, wanted: str, value: str) -> bool:
    if op in ("=", "!="):
        return (value == wanted) == (op == "=")
    fit = fits(wanted, value)
    return fit is None or fit == (op == "=~")


def _fits(selector: MetricSelector, labels: Labels) -> bool:
    return all(_matches(m.op, m.value, labels.get(m.name, "")) for m in selector.matchers)


def _has_all(selector: MetricSelector, labels: Labels) -> bool:
    """Return whether series fit all matchers on namespaces, so that others are compared within it."""
    spaces = [m for m in selector.matchers if m.name in ("namespace", "exported_namespace")]
    return all(_matches(m.op, m.value, labels.get(m.name, "")) for m in spaces)
