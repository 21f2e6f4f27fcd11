"""Checks of the queries by which KEDA scales: what they select, what they return, what their number means."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from difflib import get_close_matches

from autoscaler.config.findings import shown
from autoscaler.config.preflight import promql
from autoscaler.config.preflight.facts import HISTORY, NO_SERVER, PENDING, Answer, Labels, QueryFacts, Sample
from autoscaler.config.preflight.objects import CLUSTER_SCOPED, Manifest, Result, found, not_checked
from autoscaler.config.preflight.promql import MetricSelector, Unparsed
from autoscaler.config.preflight.query_cost import reads_too_much
from autoscaler.config.preflight.query_text import POD_LABELS, QueryText
from autoscaler.config.preflight.scalers import Autoscaler, Trigger
from autoscaler.config.preflight.scene import Scene
from autoscaler.config.preflight.series import nearest_name, samples_of, takes, takes_namespace, takes_series
from autoscaler.config.yaml import Loc

_OF_TARGET = frozenset({"job", "instance", "endpoint", "container", "service", "prometheus", "node"})
_CLUSTERS = ("cluster", "k8s_cluster", "k8s_cluster_name", "cluster_id")
MAX_COMPARED = 2000  # series whose labels are compared with those of a query that finds none
_MANY = 5  # names listed in a sentence
RATES = promql.RATES | {"delta", "idelta"}
_WITH_SECRETS = ("basic", "bearer", "tls", "custom")  # modes whose values come from a TriggerAuthentication alone
_REPLICA_LABELS = ("prometheus_replica", "replica", "__replica__", "receive_replica", "thanos_replica")


def check_queries(fleet: Scene, facts: QueryFacts) -> Iterator[Result]:
    """Check the Prometheus triggers of all autoscalers, and the expressions of alerting rules."""
    for autoscaler in fleet.autoscalers:
        facts.asker = autoscaler.thing.namespace
        for trigger in autoscaler.triggers:
            if not autoscaler.keda and not trigger.query:
                continue
            yield from _not_text(autoscaler, trigger)
            if trigger.type == "prometheus":
                yield from _check_trigger(fleet, autoscaler, trigger, facts)
            elif trigger.type not in ("cpu", "memory", "external", "external-push", "cron"):
                reason = f"triggers of the type {shown(trigger.type)} are not read"
                yield not_checked(autoscaler.thing, trigger.loc, "trigger", reason)
    facts.asker = ""
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
        if trigger.metadata.get(key) is None:
            place = (*trigger.loc, *trigger.metadata_loc, key)
            message, why = f"the trigger has no {key}", "KEDA refuses the trigger."
            yield found("VA1230", thing, place, message, why, f'{key}: "..."')
    if trigger.number("threshold") <= 0:
        place = (*trigger.loc, *trigger.metadata_loc, "threshold")
        why = "The HPA refuses a target that is not positive, so KEDA cannot make one."
        yield found("VA1230", thing, place, "the threshold is not above 0", why, 'threshold: "..."')
    if "metricName" in trigger.metadata:
        why = "KEDA removed it in 2.12; it is read by nobody."
        yield found(
            "VA1219",
            thing,
            (*trigger.loc, *trigger.metadata_loc, "metricName"),
            "metricName has no effect",
            why,
            "remove the line",
        )
    modes = [each.strip() for each in str(trigger.metadata.get("authModes", ""))[:200].split(",")]
    if any(mode in _WITH_SECRETS for mode in modes) and not thing.map(*trigger.loc, "authenticationRef"):
        why = "Passwords, tokens and certificates come from a TriggerAuthentication alone; KEDA refuses the trigger."
        fix = "authenticationRef: {name: ...}"
        place = (*trigger.loc, *trigger.metadata_loc, "authModes")
        yield found("VA1230", thing, place, "authModes without authenticationRef", why, fix)
    yield from _authentication(fleet, autoscaler, trigger)
    if not trigger.query:
        return
    try:
        expression = promql.parse(trigger.query)
    except Unparsed as error:
        reason = reads_too_much(trigger.query)
        answer = Answer(error=reason) if reason else facts.query(trigger.query)
        if answer.refused:
            why = "KEDA counts a failure at each poll, and the HPA gets no value."
            yield found(
                "VA1228", thing, loc, f"the server refuses the query: {answer.error}", why, "a valid expression"
            )
        else:
            yield not_checked(
                thing, loc, "query", f"not understood: {error}" + (f"; not run: {reason}" if reason else "")
            )
        return
    workload = fleet.workload(autoscaler)
    meant = promql.parse(trigger.expanded) if trigger.expanded else expression
    yield from QueryText(fleet, autoscaler, trigger, meant, workload, facts).static()
    yield from _Query(fleet, autoscaler, trigger, expression, workload, facts).answers()


def _not_text(autoscaler: Autoscaler, trigger: Trigger) -> Iterator[Result]:
    """Find metadata of KEDA that are no text; those of a platform have types of their own."""
    for key, value in trigger.metadata.items() if autoscaler.keda else ():
        if not isinstance(value, str) and value is not None:
            place = (*trigger.loc, *trigger.metadata_loc, key)
            why = "The API server takes texts alone here, and refuses the object."
            fix = f'{key[:100]}: "{str(value).lower()[:100]}"'
            yield found("VA1230", autoscaler.thing, place, f"{key[:100]} is not text", why, fix)


def _authentication(fleet: Scene, autoscaler: Autoscaler, trigger: Trigger) -> Iterator[Result]:
    """Check that the TriggerAuthentication of a trigger exists."""
    thing, loc = autoscaler.thing, (*trigger.loc, "authenticationRef")
    name, kind = thing.text(*loc, "name"), thing.text(*loc, "kind") or "TriggerAuthentication"
    namespace = "" if kind in CLUSTER_SCOPED else thing.namespace
    if not name or fleet.objects.get(kind, namespace, name) is not None:
        return
    if kind in fleet.objects.listed:
        why = "KEDA cannot build the trigger, so the ScaledObject is never ready."
        yield found("VA1230", thing, loc, f"{kind} {shown(name)} does not exist", why, "name: ...")
    else:
        yield not_checked(thing, loc, "authentication of the trigger", f"{kind} {shown(name)} is in no file")


class _Query(QueryText):
    """One query, and what the server answers to it."""

    def answers(self) -> Iterator[Result]:
        if not self.facts.server:
            yield not_checked(self.thing, self.loc, "names, labels and answer of the query", NO_SERVER)
            return
        reason = reads_too_much(self.expression.text)
        answer = Answer(error=f"not run: {reason}") if reason else self.facts.query(self.expression.text)
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
            yield self.found("VA1204", message, why, self.fixed(summed=True))
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
            if not any(takes_series(selector, each.labels) for each in self._likely(selector, now)):
                return
        first = windows[0]
        why = f"Its series are there, but a rate needs two samples, and its window holds at most one. {self.empty}."
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
        fitting = [each.labels for each in self._likely(selector, now) if takes_series(selector, each.labels)]
        if fitting:
            yield from self._copies(selector, fitting)
            return
        before = self.facts.series(selector.name)
        if before is PENDING:
            return
        if before.error:
            yield not_checked(self.thing, self.loc, f"past series of {selector.name}", before.error)
            return
        if any(takes_series(selector, each.labels) for each in self._likely(selector, before)):
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
        why = f"No series had this name in {HISTORY}. The query returns nothing; {self.empty}."
        named = selector._replace(name=nearest or selector.name)
        yield self.found("VA1201", f"no series is called {selector.name}{meant}", why, self.fixed(named))
        if nearest:
            answer = self.facts.query(nearest)
            if answer is not PENDING and not answer.error and answer.samples:
                yield from self._missing_label(named, answer)

    def _missing_label(self, selector: MetricSelector, answer: Answer) -> Iterator[Result]:
        own = samples_of(self.workload, self.facts, answer) if self.workload is not None else []
        some = own or answer.samples[:MAX_COMPARED]
        labels = sorted({key for each in some for key, value in each.labels.items() if value} - {"__name__"})
        kept = [each for each in answer.samples[:MAX_COMPARED] if takes_namespace(selector, each.labels)] or some
        for matcher in selector.matchers:
            if not matcher.selects:
                continue
            if matcher.name not in labels:
                near = get_close_matches(matcher.name, labels, n=1, cutoff=0.5)
                meant = f"; the nearest is {near[0]}" if near else ""
                why = f"The series have {', '.join(labels[:12])}. The query returns nothing; {self.empty}."
                yield self.found(
                    "VA1202",
                    f"no series of {selector.name} has the label {matcher.name}{meant}",
                    why,
                    self.fixed(selector),
                )
            elif not any(takes(matcher.op, matcher.value, each.labels.get(matcher.name, "")) for each in kept):
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
        if matcher.name in ("namespace", *POD_LABELS) and not own and (not near or matcher.op != "="):
            reason = f"no series of {selector.name} with {matcher} in {HISTORY}: the workload has not run here yet"
            yield not_checked(self.thing, self.loc, f"the value of {matcher.name}", reason)
            return
        listed = ", ".join(map(shown, values[:_MANY])) + (
            f" and {len(values) - _MANY} more" if len(values) > _MANY else ""
        )
        why = f"The series have {listed}. The query returns nothing; {self.empty}."
        yield self.found("VA1203", f"no series of {selector.name} has {matcher}", why, self.fixed(selector))

    def _copies(self, selector: MetricSelector, fitting: list[Labels]) -> Iterator[Result]:
        """Find series that the query counts twice: a router's copies, a second scrape, another cluster."""
        if not selector.is_load:
            return
        if any(labels.get("server") for labels in fitting) and any(not labels.get("server") for labels in fitting):
            why = "The router exports the engines' metrics under the same names, with the label server."
            yield self.found("VA1217", "the router's copies of the series count too", why, self.fixed(), "warning")
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
            if not labels.get("server") and any(labels.get(pod) for pod in POD_LABELS):
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


def _is_known(name: str) -> bool:
    return (
        re.match(r"llm_d_|inference_|gateway_|istio_|envoy_|nginx_|http_|kn_|interceptor_|vllm:num_incoming", name)
        is not None
    )
