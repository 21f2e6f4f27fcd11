"""Checks of autoscalers beside their queries: targets, bounds, cooldown, fallback, and who else writes the count."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from autoscaler.catalog.scale_targets import BY_KIND
from autoscaler.config.check.manifests import at, text_at
from autoscaler.config.findings import shown
from autoscaler.config.preflight import promql
from autoscaler.config.preflight.facts import NO_SERVER, PENDING, QueryFacts
from autoscaler.config.preflight.history import REPLICAS, PastReadings
from autoscaler.config.preflight.objects import Manifest, Result, found, not_checked
from autoscaler.config.preflight.promql import ParsedQuery, Unparsed
from autoscaler.config.preflight.workloads import Autoscaler, ModelWorkload, Scene, Target, Trigger, quantity
from autoscaler.config.yaml import read_documents

FORMULA = ("advanced", "scalingModifiers", "formula")
KEDA_COOLDOWN_S = 300
_BY_REQUESTS = "a ScaledObject on the sum of vllm:num_requests_running and vllm:num_requests_waiting of this model"
_NO_WAKE = ("cpu", "memory")  # types of triggers that count nothing while there is no pod
_PAUSED = "autoscaling.keda.sh/paused"
_ADOPTS = "scaledobject.keda.sh/transfer-hpa-ownership"


def check_autoscalers(fleet: Scene, facts: QueryFacts) -> Iterator[Result]:
    history = PastReadings(facts)
    yield from _rivals(fleet)
    for each in fleet.autoscalers:
        workload = fleet.workload(each)
        yield from _target(fleet, each)
        yield from _bounds(each)
        yield from _metrics(fleet, each, workload)
        yield from _zero(each, history, workload)
        yield from _fallback(each, history, workload, facts)
        yield from _behavior(each)
    yield from _held_requests(fleet, history)
    for thing in fleet.objects.of_kind("VerticalPodAutoscaler"):
        yield from _vertical(fleet, thing)


def _rivals(fleet: Scene) -> Iterator[Result]:
    for target in dict.fromkeys(each.target for each in fleet.autoscalers):
        rivals = fleet.of_target(target)
        adopted = {
            each.thing.text("spec", "advanced", "horizontalPodAutoscalerConfig", "name")
            for each in rivals
            if each.thing.annotations.get(_ADOPTS) == "true"
        }
        rivals = [each for each in rivals if each.thing.name not in adopted or each.thing.kind == "ScaledObject"]
        if len(rivals) < 2:
            continue
        # It stands at an object that somebody wrote for this target, rather than at one that scales itself.
        ordered = sorted(rivals, key=lambda each: (not each.thing.given, each.target_loc != ("spec", "scaleTargetRef")))
        first, others = ordered[0], ordered[1:]
        names = " and ".join(each.thing.key for each in others[:3])
        bounds = ", ".join(f"{each.thing.name} up to {each.most}" for each in ordered[:4] if each.most is not None)
        why = f"Each writes its own count at each sync ({bounds}): the count swings."
        if any(each.thing.kind == "ScaledObject" for each in rivals):
            why += " KEDA makes an HPA of its own for a ScaledObject."
        message = f"{target[0]} {target[2]} has a second autoscaler: {names}"
        yield found("VA1214", first.thing, first.target_loc, message, why, "keep one of them")


def _target(fleet: Scene, each: Autoscaler) -> Iterator[Result]:
    if each.target_loc != ("spec", "scaleTargetRef"):
        return
    kind, namespace, name = each.target
    row = BY_KIND.get(kind)
    version = each.thing.text("spec", "scaleTargetRef", "apiVersion")
    if row is not None and row.refusal and (not version or version.startswith(row.group)):
        why, allowed = row.why_refused
        whole_why = f"{why[:1].upper()}{why[1:]}. The count is read and written through /scale, so nothing happens."
        yield found(
            "VA1215",
            each.thing,
            each.target_loc,
            f"{kind} cannot be scaled",
            whole_why,
            f"remove it, or scale {allowed}",
        )
    elif not name:
        yield found("VA1216", each.thing, each.target_loc, "the target has no name", "It is required.", "name: ...")
    elif fleet.objects.get(kind, namespace, name) is None and not each.owned and fleet.workload(each) is None:
        if fleet.objects.complete and row is not None:
            why = "No object in the cluster has this kind, namespace and name."
            yield found(
                "VA1216", each.thing, each.target_loc, f"{kind} {namespace}/{name} does not exist", why, "name: ..."
            )
        else:
            reason = f"{kind} {namespace}/{name} is in no file" + (
                "" if fleet.objects.complete else ", and no --cluster"
            )
            yield not_checked(each.thing, each.target_loc, "target and its engine", reason)


def _is_true(text: str) -> bool:
    """Return whether KEDA takes the value of an annotation for yes; what it does not understand means yes."""
    return text not in ("0", "f", "F", "false", "False", "FALSE")


def _bounds(each: Autoscaler) -> Iterator[Result]:
    for key, is_on in ((_PAUSED, _is_true), (f"{_PAUSED}-replicas", bool)):
        if each.thing.kind == "ScaledObject" and is_on(each.thing.annotations.get(key, "0" if key == _PAUSED else "")):
            why = (
                "While the annotation is there KEDA deletes its HPA, and neither load nor a failure changes the count."
            )
            loc = ("metadata", "annotations", key)
            yield found("VA1224", each.thing, loc, "the autoscaler is paused", why, "remove the line", "warning")
            break
    if each.least is None or each.most is None:
        for value, loc in ((each.least, each.least_loc), (each.most, each.most_loc)):
            if value is None and each.thing.at(*loc) is not None:
                yield not_checked(each.thing, loc, "bounds", f"not a count: {shown(each.thing.at(*loc))}")
        return
    if each.least > each.most:
        why = "The API server or KEDA refuses it."
        yield found(
            "VA1224",
            each.thing,
            each.least_loc,
            f"the minimum {each.least} is above the maximum {each.most}",
            why,
            f"at most {each.most}",
        )
    elif each.least == 0 and each.thing.kind == "HorizontalPodAutoscaler" and _needs_pods(each):
        why = "Without a pod there is no metric of pods, so the API server wants an Object or External metric for zero."
        fix = "minReplicas: 1, or a metric of what is in front of the pods"
        yield found("VA1224", each.thing, each.least_loc, "the HPA cannot scale from zero", why, fix)
    elif each.least == each.most and each.idle is None:
        why = "Minimum and maximum are equal, so the count never changes."
        yield found(
            "VA1224",
            each.thing,
            each.most_loc,
            "the autoscaler cannot scale",
            why,
            f"a maximum above {each.least}",
            "warning",
        )
    if each.idle is not None and each.idle >= each.least:
        why = "KEDA refuses an idle count that is not below the minimum; 0 is the one value that works."
        yield found(
            "VA1222",
            each.thing,
            ("spec", "idleReplicaCount"),
            "idleReplicaCount is not below minReplicaCount",
            why,
            "idleReplicaCount: 0",
        )


def _needs_pods(each: Autoscaler) -> bool:
    return not each.owned and not any(trigger.type in ("Object", "External") for trigger in each.triggers)


def _metrics(fleet: Scene, each: Autoscaler, workload: ModelWorkload | None) -> Iterator[Result]:
    """Check the metrics of an HPA, and KEDA's triggers on CPU and memory."""
    if workload is None or each.owned:
        return
    if each.thing.kind == "HorizontalPodAutoscaler" and not each.triggers:
        why = "Without metrics an HPA scales on 80 % of the requested CPU."
        yield found("VA1226", each.thing, ("spec", "metrics"), "the HPA scales an engine on CPU", why, _BY_REQUESTS)
    for trigger in each.triggers:
        name = trigger.name
        if (not each.keda and trigger.type in ("Resource", "ContainerResource")) or trigger.type in _NO_WAKE:
            resource = name if not each.keda else trigger.type
            why = (
                "An engine's CPU is busy at any load, and its host memory stays, so the count does not follow the load."
            )
            yield found(
                "VA1226",
                each.thing,
                trigger.loc,
                f"scales an engine on {resource or 'a resource'} of the host",
                why,
                _BY_REQUESTS,
            )
            if not workload.pod.need(resource or "cpu") and not workload.pod.operator:
                why = f"The HPA divides by the request of {resource}, and the engine's container states none."
                yield found(
                    "VA1224",
                    each.thing,
                    trigger.loc,
                    "the HPA cannot compute its metric",
                    why,
                    f"requests: {{{resource}: ...}}",
                )
            continue
        if each.keda or trigger.type not in ("Pods", "External", "Object"):
            continue
        yield from _beyond_slots(each, trigger, workload)
        names = [name, *_adapter_names(fleet, name)]
        if memory := next((made for made in names if promql.is_gpu_memory(made)), ""):
            why = f"{memory} is the memory that the engine takes at its start, idle or busy. It gives nothing back."
            yield found("VA1212", each.thing, trigger.loc, f"scales on GPU memory ({name})", why, _BY_REQUESTS)
        elif use := next((made for made in names if promql.is_gpu_use(made)), ""):
            why = f"{use} says that some kernel ran: one request looks like a full replica, and a queue does not show."
            yield found("VA1213", each.thing, trigger.loc, f"scales on GPU utilisation ({name})", why, _BY_REQUESTS)
        else:
            yield not_checked(
                each.thing, trigger.loc, f"metric {shown(name)}", "its query belongs to the metrics adapter"
            )


def _beyond_slots(each: Autoscaler, trigger: Trigger, workload: ModelWorkload) -> Iterator[Result]:
    """Compare a target of an HPA on running requests with what a replica can run."""
    target, slots = trigger.number("averageValue"), workload.slots
    if slots is None or not promql.is_running(trigger.name) or target * (1 + promql.TOLERANCE) < slots:
        return
    if not math.isnan(target):
        loc = (*trigger.loc, trigger.type[:1].lower() + trigger.type[1:], "target", "averageValue")
        why = (
            f"A replica runs at most {slots:g} requests, and {slots:g} / {target:g} is not above 1 by more than the"
            f" HPA's tolerance of {promql.TOLERANCE:g}: the metric never adds a replica."
        )
        message = f"target {target:g} is more than a replica can hold (--max-num-seqs {slots:g})"
        yield found("VA1209", each.thing, loc, message, why, f'averageValue: "{math.floor(slots * 0.75)}"')


def _adapter_names(fleet: Scene, name: str) -> list[str]:
    """Return the metrics from which a rule of prometheus-adapter makes a metric of an HPA."""
    found_names: list[str] = []
    for thing in fleet.objects.of_kind("ConfigMap"):
        for text in thing.texts("data").values():
            if name not in text or "seriesQuery" not in text or len(text) > 1 << 18:
                continue
            for document in read_documents("", text)[0]:
                listed = [at(document.value, key) for key in ("rules", "externalRules")]
                for rule in [each for rules in listed if isinstance(rules, list) for each in rules]:
                    if text_at(rule, "name", "as") == name:
                        words = f"{text_at(rule, 'seriesQuery')} {text_at(rule, 'metricsQuery')}"
                        found_names += re.findall(r"[a-zA-Z_:][\w:]{4,100}", words[:10_000])
    return [each for each in found_names if each not in ("GroupBy", "LabelMatchers", "Series")]


def parsed(trigger: Trigger) -> ParsedQuery | None:
    try:
        return promql.parse(trigger.query) if trigger.query else None
    except Unparsed:
        return None


def _wakes(trigger: Trigger) -> bool | None:
    """Return whether a trigger may be active while no replica runs; None: its query is not understood."""
    if trigger.type in _NO_WAKE:
        return False
    if trigger.type != "prometheus":
        return True
    expression = parsed(trigger)
    return None if expression is None else not expression.dies


def _zero(each: Autoscaler, history: PastReadings, workload: ModelWorkload | None) -> Iterator[Result]:
    if not each.keda or not each.triggers:
        return
    if not each.goes_to_zero:
        if each.thing.at(*each.base, "cooldownPeriod") is not None and each.least is not None:
            why = "It counts only for the step to zero, or to idleReplicaCount, and this object goes to neither."
            loc = (*each.base, "cooldownPeriod")
            yield found("VA1220", each.thing, loc, "cooldownPeriod has no effect", why, "remove the line")
        return
    if each.thing.at(*each.base, *FORMULA):
        yield not_checked(each.thing, (*each.base, *FORMULA), "waking from zero", "a formula decides")
        return
    wakes = [_wakes(trigger) for trigger in each.triggers]
    if all(each_wakes is False for each_wakes in wakes):
        for trigger in each.triggers:
            why = (
                "Only the engine's own pods write it. Without a pod the answer is empty or 0, and 0 is not above the "
                "activation threshold. What is missing now is missing because of zero."
            )
            loc = trigger.query_loc if trigger.query else trigger.loc
            fix = "a trigger on something that counts before the pods (the gateway's queue), or minReplicaCount: 1"
            yield found("VA1206", each.thing, loc, "the query dies at zero, so the workload never wakes", why, fix)
    yield from _polling(each)
    yield from _cooldown(each, wakes, history, workload)


def _polling(each: Autoscaler) -> Iterator[Result]:
    polling = each.whole("pollingInterval", default=30)
    if polling is not None and polling > 60 and any(trigger.type != "external-push" for trigger in each.triggers):
        why = f"At zero only KEDA looks at the trigger, so the first request waits up to {polling} s for that alone."
        yield found(
            "VA1221",
            each.thing,
            (*each.base, "pollingInterval"),
            "polled too rarely to wake in time",
            why,
            "pollingInterval: 15",
        )
    for trigger in each.triggers:
        activation, threshold = trigger.number("activationThreshold"), trigger.number("threshold")
        if activation > threshold or (activation == threshold and activation >= 1):
            loc = (*trigger.loc, "metadata", "activationThreshold")
            why = f"Up to {activation:g} counts as inactive, though {threshold:g} is the load of a whole replica."
            yield found(
                "VA1223",
                each.thing,
                loc,
                "the activation threshold is above the load of one replica",
                why,
                'activationThreshold: "0"',
            )


def _cooldown(
    each: Autoscaler, wakes: list[bool | None], history: PastReadings, workload: ModelWorkload | None
) -> Iterator[Result]:
    stated = each.whole("cooldownPeriod", default=KEDA_COOLDOWN_S)
    loc = (*each.base, "cooldownPeriod")
    if stated is None or any(_holds(trigger, alive) for trigger, alive in zip(each.triggers, wakes, strict=True)):
        return
    if workload is None or not history.facts.server:
        reason = NO_SERVER if workload is not None else "the workload is not known"
        yield not_checked(each.thing, loc, "cooldown against the cold start", reason)
        return
    starts = history.starts(workload)
    if starts is None:
        return
    if not starts.whole_s:
        yield not_checked(each.thing, loc, "cooldown against the cold start", starts.error or "no past start is known")
        return
    longest = max(starts.whole_s)
    if stated < longest:
        why = (
            f"A start took {longest:.0f} s. Until the first request has ended the trigger may be inactive, and KEDA"
            f" goes to zero {stated} s after it was last active: a replica is removed before it is ready."
        )
        yield found(
            "VA1211",
            each.thing,
            loc,
            "cooldown is shorter than the cold start",
            why,
            f"cooldownPeriod: {_round(longest * 2)}",
        )


def _holds(trigger: Trigger, alive: bool | None) -> bool:
    """Return whether a trigger stays active while a request waits for the first replica, as a queue does."""
    if trigger.type != "prometheus":
        return trigger.type != "cron" and alive is True
    expression = parsed(trigger)
    return bool(alive) and expression is not None and not any(s.range_s for s in expression.selectors)


def _round(seconds: float) -> int:
    return math.ceil(seconds / 60) * 60


def _fallback(
    each: Autoscaler, history: PastReadings, workload: ModelWorkload | None, facts: QueryFacts
) -> Iterator[Result]:
    replicas = each.whole("fallback", "replicas")
    behavior = each.thing.text(*each.base, "fallback", "behavior") or "static"
    loc = (*each.base, "fallback", "replicas")
    if replicas is None or behavior not in ("static", "currentReplicasIfLower"):
        return
    fix = "behavior: currentReplicasIfHigher"
    if replicas == 0:
        why = (
            "After failureThreshold failures of the server KEDA takes the workload for idle: an outage of metrics"
            " ends it."
        )
        yield found("VA1210", each.thing, loc, "the fallback scales to zero", why, fix)
        return
    if each.most is not None and replicas >= each.most:
        return
    now = history.replicas(workload) if workload is not None else math.nan
    if not facts.server or workload is None:
        yield not_checked(
            each.thing,
            loc,
            "fallback against the load",
            NO_SERVER if not facts.server else "the workload is not known",
        )
    elif facts.query(REPLICAS) is PENDING:
        return
    elif math.isnan(now):
        yield not_checked(
            each.thing, loc, "fallback against the load", "the server does not know the count of replicas"
        )
    elif max(replicas, each.least or 0) < now:
        why = (
            f"behavior is static unless stated: after failed queries KEDA reports the target times {replicas}, and"
            f" the HPA goes there, while {now:.0f} replicas run. An outage of the metrics would become one of the"
            " service."
        )
        yield found(
            "VA1210",
            each.thing,
            loc,
            f"the fallback of {replicas} is below the load, {now:.0f} replicas now",
            why,
            fix,
        )


def _behavior(each: Autoscaler) -> Iterator[Result]:
    base = (*each.base, "advanced", "horizontalPodAutoscalerConfig", "behavior") if each.keda else ("spec", "behavior")
    for direction in ("scaleUp", "scaleDown"):
        rules = each.thing.map(*base, direction)
        if rules.get("selectPolicy") == "Disabled" and direction == "scaleUp":
            why = "The HPA never adds a replica."
            loc = (*base, direction, "selectPolicy")
            yield found("VA1224", each.thing, loc, "scaling up is disabled", why, "selectPolicy: Max")
        tolerance = quantity(rules.get("tolerance"))
        if tolerance > 0.3:
            why = (
                f"Changes of up to {tolerance:.0%} are ignored: {math.ceil(1 / tolerance)} replicas are the fewest at"
                " which one more is ever added."
            )
            loc = (*base, direction, "tolerance")
            yield found(
                "VA1227", each.thing, loc, f"a tolerance of {tolerance:g} swallows steps", why, 'tolerance: "0.1"'
            )


def _vertical(fleet: Scene, thing: Manifest) -> Iterator[Result]:
    target: Target = (
        thing.text("spec", "targetRef", "kind"),
        thing.namespace,
        thing.text("spec", "targetRef", "name"),
    )
    mode = thing.text("spec", "updatePolicy", "updateMode") or "Auto"
    workload = next((each for each in fleet.in_namespace(thing.namespace) if each.target == target), None)
    if workload is None or mode in ("Off", "Initial"):
        return
    why = "Its updater evicts pods to change their requests; each eviction is a cold start."
    if fleet.of_workload(workload):
        why += " And an autoscaler writes the count of the same workload."
    loc = (
        ("spec", "updatePolicy", "updateMode")
        if thing.at("spec", "updatePolicy", "updateMode")
        else ("spec", "updatePolicy")
    )
    yield found(
        "VA1225", thing, loc, f"the mode {mode} evicts engines of {workload.thing.key}", why, 'updateMode: "Off"'
    )


def _held_requests(fleet: Scene, history: PastReadings) -> Iterator[Result]:
    """Compare how long an endpoint picker holds requests for an empty pool with the starts of what serves it."""
    for thing in fleet.objects.of_kind("ConfigMap"):
        for key, text in thing.texts("data").items():
            if "EndpointPickerConfig" not in text or len(text) > 1 << 18:
                continue
            documents, problems = read_documents("", text)
            if problems:
                yield not_checked(thing, ("data", key), "configuration of the endpoint picker", problems[0].problem)
            for document in documents:
                yield from _held_by(fleet, history, thing, key, document.value)


def _held_by(fleet: Scene, history: PastReadings, thing: Manifest, key: str, config: object) -> Iterator[Result]:
    for each in fleet.autoscalers:
        if each.thing.namespace != thing.namespace or not each.goes_to_zero:
            continue
        pools = [
            selector.value("inference_pool")
            for trigger in each.triggers
            if (expression := parsed(trigger)) is not None
            for selector in expression.selectors
            if "flow_control_queue" in selector.name
        ]
        if not pools or not any(pool and pool in thing.name for pool in pools):
            continue
        gates = at(config, "featureGates")
        loc = ("data", key)
        if "flowControl" not in str(gates):
            why = (
                "Without it the picker refuses requests to an empty pool at once, and its queue is always empty:"
                " nothing wakes."
            )
            yield found("VA1232", thing, loc, "the feature gate flowControl is off", why, "featureGates: [flowControl]")
            continue
        ttl_s = seconds(at(config, "flowControl", "noEndpointRequestTTL"), 60.0)
        workload = fleet.workload(each)
        if ttl_s == 0 or workload is None:
            continue
        if not history.facts.server:
            yield not_checked(thing, loc, "time to live of held requests against the cold start", NO_SERVER)
            continue
        starts = history.starts(workload)
        if starts is not None and starts.whole_s and max(starts.whole_s) > ttl_s:
            why = (
                f"A start took {max(starts.whole_s):.0f} s, and a held request for an empty pool ends after"
                f" {ttl_s:g} s."
            )
            fix = f"noEndpointRequestTTL: {_round(max(starts.whole_s) * 2)}s"
            yield found("VA1232", thing, loc, "held requests time out before the first replica is ready", why, fix)


_DURATION = re.compile(r"(?:\d{1,9}(?:\.\d{1,9})?(?:ms|[smhdw]))+")
_PART = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|[smhdw])")
_UNITS_S = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


def seconds(value: object, default: float = math.nan) -> float:
    """Return a duration of Go or Prometheus: 1m30s; a default if it is absent, NaN if it is invalid."""
    text = str(value)[:64]
    if value is None:
        return default
    if text == "0":
        return 0.0
    if not _DURATION.fullmatch(text):
        return math.nan
    return sum(float(number) * _UNITS_S[unit] for number, unit in _PART.findall(text))
