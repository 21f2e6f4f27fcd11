"""Checks of autoscalers except their queries: targets, bounds, cooldown, fallback, and who else writes the count."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from autoscaler.catalog.scale_targets import BY_KIND, SCALED
from autoscaler.config.check.manifests import text_at
from autoscaler.config.findings import shown
from autoscaler.config.preflight import metric_names, promql
from autoscaler.config.preflight.facts import NO_SERVER, PENDING, QueryFacts
from autoscaler.config.preflight.metrics_adapter import AdapterRule, adapter_rules, check_rule
from autoscaler.config.preflight.objects import Manifest, Result, found, not_checked
from autoscaler.config.preflight.past_readings import REPLICAS, PastReadings
from autoscaler.config.preflight.scalers import Autoscaler, Trigger
from autoscaler.config.preflight.scene import Scene
from autoscaler.config.preflight.waking import FORMULA, NO_WAKE, check_held_requests, check_zero
from autoscaler.config.preflight.workloads import LLM_SERVICE, ModelWorkload, Target, quantity

_BY_REQUESTS = "a ScaledObject on the sum of vllm:num_requests_running and vllm:num_requests_waiting of this model"
_PAUSED = "autoscaling.keda.sh/paused"
_FORMULA_CHARS = 2000
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_NAME_IN_FORMULA = re.compile(r"(?<![\w.])[A-Za-z_]\w*(?![\w(])(?!\s*\()")
_WORDS_OF_FORMULA = frozenset({"true", "false", "nil", "and", "or", "not", "in", "e", "E"})
_UNSCALED = {
    "DaemonSet": "It runs a pod on each node that fits",
    "Job": "Its pods end by themselves",
    "CronJob": "It makes Jobs at their time",
    "Pod": "It is one pod",
}
_ADOPTS = "scaledobject.keda.sh/transfer-hpa-ownership"


def check_autoscalers(fleet: Scene, facts: QueryFacts) -> Iterator[Result]:
    history = PastReadings(facts)
    rules = list(adapter_rules(fleet))
    yield from _rivals(fleet)
    for each in fleet.autoscalers:
        workload = fleet.workload(each)
        yield from _target(fleet, each)
        yield from _bounds(each)
        yield from _metrics(each, workload, facts, rules)
        yield from check_zero(each, history, workload)
        yield from _fallback(each, history, workload, facts)
        yield from _behavior(each)
        yield from _formula(each)
    yield from check_held_requests(fleet, history)
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
        ordered = sorted(rivals, key=lambda each: (not each.thing.given, not each.names_target))
        first, others = ordered[0], ordered[1:]
        names = " and ".join(each.thing.key for each in others[:3])
        bounds = ", ".join(f"{each.thing.name} up to {each.most}" for each in ordered[:4] if each.most is not None)
        why = f"Each writes its own count at each sync ({bounds}): the count swings."
        if any(each.thing.kind == "ScaledObject" for each in rivals):
            why += " KEDA makes an HPA of its own for a ScaledObject."
        message = f"{target[0]} {target[2]} has a second autoscaler: {names}"
        yield found("VA1214", first.thing, first.target_loc, message, why, "keep one of them")


def _target(fleet: Scene, each: Autoscaler) -> Iterator[Result]:
    if not each.names_target:
        return
    kind, namespace, name = each.target
    row = BY_KIND.get(kind)
    version = each.thing.text(*each.target_loc, "apiVersion")
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
    elif kind in _UNSCALED:
        why = f"{_UNSCALED[kind]}. It has no scale subresource, so the count is never read or written."
        fix = "a Deployment or StatefulSet"
        yield found("VA1215", each.thing, each.target_loc, f"{kind} cannot be scaled", why, fix)
    elif not name:
        yield found("VA1216", each.thing, each.target_loc, "the target has no name", "It is required.", "name: ...")
    elif fleet.objects.get(kind, namespace, name) is None and not each.owned and fleet.workload(each) is None:
        if kind in fleet.objects.listed:
            why = "No object in the cluster has this kind, namespace and name."
            yield found(
                "VA1216", each.thing, each.target_loc, f"{kind} {namespace}/{name} does not exist", why, "name: ..."
            )
        elif meant := _meant(fleet, each):
            why = f"{meant.thing.key} is there, and nothing scales it. A target without a kind is a Deployment."
            message = f"{kind} {namespace}/{name} is not there"
            fix = f"{{apiVersion: {meant.thing.text('apiVersion')}, kind: {meant.target[0]}, name: {meant.target[2]}}}"
            yield found("VA1216", each.thing, each.target_loc, message, why, f"scaleTargetRef: {fix}")
        else:
            where = "objects of this kind are not listed" if fleet.objects.listed else "no --cluster"
            reason = f"{kind} {namespace}/{name} is in no file, and {where}"
            yield not_checked(each.thing, each.target_loc, "target and its engine", reason)


def _meant(fleet: Scene, each: Autoscaler) -> ModelWorkload | None:
    """Return the workload that an autoscaler means: of another kind, or of its own name. Nothing else scales it."""
    kind, namespace, name = each.target
    for other in fleet.in_namespace(namespace):
        made = kind == "StatefulSet" and other.thing.kind == "LeaderWorkerSet"  # of the same name
        if not made and other.thing.name in (name, each.thing.name) and not fleet.is_autoscaled(other):
            return other if other.thing.kind in SCALED else None
    return None


def _is_true(text: str) -> bool:
    """Return whether KEDA takes the value of an annotation for yes; what it does not understand means yes."""
    return text not in ("0", "f", "F", "false", "False", "FALSE")


def _bounds(each: Autoscaler) -> Iterator[Result]:
    for key, is_on in ((_PAUSED, _is_true), (f"{_PAUSED}-replicas", bool)):
        if each.thing.kind == "ScaledObject" and is_on(each.thing.annotations.get(key, "0" if key == _PAUSED else "")):
            why = (
                "While the annotation is there KEDA deletes its HPA, and neither load nor a failure changes the count."
            )
            yield found(
                "VA1224",
                each.thing,
                ("metadata", "annotations", key),
                "the autoscaler is paused",
                why,
                "remove the line",
                "warning",
            )
            break
    if each.thing.kind == "ScaledObject" and each.thing.at("spec", "triggers") in (None, []):
        why = "KEDA refuses the object, so nothing changes the count."
        yield found("VA1224", each.thing, ("spec", "triggers"), "the ScaledObject has no trigger", why, _BY_REQUESTS)
    if each.thing.kind == LLM_SERVICE and each.thing.at("spec", "replicas") is not None:
        why = "The API server refuses an object with both: either the count is fixed, or it is scaled."
        message = "replicas and scaling are stated together"
        yield found("VA1231", each.thing, ("spec", "replicas"), message, why, "remove replicas", "error")
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
            "remove the line, or idleReplicaCount: 0 where something counts in front of the pods",
        )


def _needs_pods(each: Autoscaler) -> bool:
    return not each.owned and not any(trigger.type in ("Object", "External") for trigger in each.triggers)


def _metrics(
    each: Autoscaler, workload: ModelWorkload | None, facts: QueryFacts, rules: Sequence[AdapterRule]
) -> Iterator[Result]:
    """Check the metrics of an HPA, and KEDA's triggers on CPU and memory."""
    if workload is None or each.owned:
        return
    if each.thing.kind == "HorizontalPodAutoscaler" and not each.triggers:
        why = "Without metrics an HPA scales on 80 % of the requested CPU."
        yield found("VA1226", each.thing, ("spec", "metrics"), "the HPA scales an engine on CPU", why, _BY_REQUESTS)
    for trigger in each.triggers:
        name = trigger.name
        if (not each.keda and trigger.type in ("Resource", "ContainerResource")) or trigger.type in NO_WAKE:
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
            container = trigger.metadata.get("containerName")
            names = [text_at(own, "name") for own in workload.pod.containers]
            if container and container not in names and not workload.pod.operator:
                why = f"The pods of {workload.thing.key} have {', '.join(names[:4])[:200]}, so the HPA gets no value."
                message, fix = f"no container is called {shown(container)}", f"container: {names[0][:100]}"
                yield found("VA1224", each.thing, trigger.loc, message, why, fix)
            elif not workload.pod.need(resource or "cpu") and not workload.pod.operator:
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
        making = [rule for rule in rules if name and rule.makes(name)]
        for rule in making:
            yield from check_rule(rule, name, facts)
        names = [name, *(made for rule in making for made in rule.names)]
        if memory := next((made for made in names if metric_names.is_gpu_memory(made)), ""):
            why = f"{memory} is the memory that the engine takes at its start, idle or busy. It gives nothing back."
            yield found("VA1212", each.thing, trigger.loc, f"scales on GPU memory ({name})", why, _BY_REQUESTS)
        elif use := next((made for made in names if metric_names.is_gpu_use(made)), ""):
            why = f"{use} says that some kernel ran: one request looks like a full replica, and a queue does not show."
            yield found("VA1213", each.thing, trigger.loc, f"scales on GPU utilisation ({name})", why, _BY_REQUESTS)
        elif not making:
            yield not_checked(
                each.thing, trigger.loc, f"metric {shown(name)}", "its query belongs to the metrics adapter"
            )


def _beyond_slots(each: Autoscaler, trigger: Trigger, workload: ModelWorkload) -> Iterator[Result]:
    """Compare a target of an HPA on running requests with what a replica can run."""
    target, slots = trigger.number("averageValue"), workload.slots
    if slots is None or not metric_names.is_running(trigger.name) or target * (1 + promql.TOLERANCE) < slots:
        return
    if not math.isnan(target):
        loc = (*trigger.loc, trigger.type[:1].lower() + trigger.type[1:], "target", "averageValue")
        why = (
            f"A replica runs at most {slots:g} requests, and {slots:g} / {target:g} is not above 1 by more than the"
            f" HPA's tolerance of {promql.TOLERANCE:g}: the metric never adds a replica."
        )
        message = f"target {target:g} is more than a replica can hold (--max-num-seqs {slots:g})"
        yield found("VA1209", each.thing, loc, message, why, f'averageValue: "{math.floor(slots * 0.75)}"')


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


def _formula(each: Autoscaler) -> Iterator[Result]:
    """Check that a formula names triggers that there are, and has a target."""
    text = each.thing.text(*each.base, *FORMULA)[:_FORMULA_CHARS]
    if not each.keda or not text:
        return
    loc = (*each.base, *FORMULA)
    named = {trigger.name for trigger in each.triggers if trigger.name}
    used = _NAME_IN_FORMULA.findall(_QUOTED.sub(" ", text))
    missing = sorted(dict.fromkeys(name for name in used if name not in named and name not in _WORDS_OF_FORMULA))
    why = "KEDA refuses the ScaledObject, so nothing scales."
    if missing:
        message = f"the formula names {shown(missing[0])}, and no trigger has that name"
        yield found("VA1224", each.thing, loc, message, why, f"name: {missing[0]} at the trigger that is meant")
    elif not each.thing.text(*loc[:-1], "target"):
        yield found("VA1224", each.thing, loc, "the formula has no target", why, 'target: "..."')


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
