"""Checks of the way to zero and back: what wakes a workload, how soon, and what holds requests meanwhile."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from autoscaler.config.check.manifests import at
from autoscaler.config.preflight import promql
from autoscaler.config.preflight.facts import NO_SERVER
from autoscaler.config.preflight.objects import Manifest, Result, found, not_checked
from autoscaler.config.preflight.past_readings import PastReadings
from autoscaler.config.preflight.promql import ParsedQuery, Unparsed
from autoscaler.config.preflight.scalers import Autoscaler, Trigger
from autoscaler.config.preflight.scene import Scene
from autoscaler.config.preflight.workloads import ModelWorkload
from autoscaler.config.yaml import read_documents

FORMULA = ("advanced", "scalingModifiers", "formula")


KEDA_COOLDOWN_S = 300


NO_WAKE = ("cpu", "memory")  # types of triggers that count nothing while there is no pod


def parsed(trigger: Trigger) -> ParsedQuery | None:
    try:
        return promql.parse(trigger.expanded or trigger.query) if trigger.query else None
    except Unparsed:
        return None


def _wakes(trigger: Trigger) -> bool | None:
    """Return whether a trigger may be active while no replica runs; None: its query is not understood."""
    if trigger.type in NO_WAKE:
        return False
    if trigger.type != "prometheus":
        return True
    expression = parsed(trigger)
    return None if expression is None else not expression.dies


def check_zero(each: Autoscaler, history: PastReadings, workload: ModelWorkload | None) -> Iterator[Result]:
    if not each.keda or not each.triggers or each.thing.kind == "ScaledJob":
        return  # a job ends by itself
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
    yield from _swings(each)
    yield from _polling(each)
    yield from _cooldown(each, wakes, history, workload)


def _swings(each: Autoscaler) -> Iterator[Result]:
    """Find a trigger that is active because no replica runs, and inactive because one does."""
    for trigger in each.triggers:
        expression = parsed(trigger)
        if expression is not None and expression.by_absence:
            why = "At zero its series are absent, so it wakes a replica without a request, and goes back to zero after."
            fix = "a trigger on something that counts before the pods, or minReplicaCount: 1"
            message = "the absence of the engine's series wakes it"
            yield found("VA1236", each.thing, trigger.query_loc, message, why, fix)


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
            loc = (*trigger.loc, *trigger.metadata_loc, "activationThreshold")
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


def check_held_requests(fleet: Scene, history: PastReadings) -> Iterator[Result]:
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
        # Without its own time it follows that of other requests, which is a minute.
        usual_s = seconds(at(config, "flowControl", "defaultRequestTTL"), 60.0)
        ttl_s = seconds(at(config, "flowControl", "noEndpointRequestTTL"), usual_s)
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
