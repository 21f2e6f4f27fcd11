"""Checks ScaledObjects: which fields the daemon reads, and which values prevent scaling.

The command `check` uses it for manifests and the daemon for objects in the cluster, so both refuse the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import islice
from types import MappingProxyType
from typing import Any, NamedTuple

from autoscaler.catalog.scale_targets import BY_KIND, SCALED
from autoscaler.config.check import trigger
from autoscaler.config.check.manifests import api_group, at, is_other_group, mapping
from autoscaler.config.findings import shown, unknown
from autoscaler.config.policy.parse import PolicyBook
from autoscaler.config.values import Integer, Quantity
from autoscaler.config.yaml import Loc, dotted

PUSH, POLL = "external-push", "external"  # types of our trigger
DEFAULT_MIN, DEFAULT_MAX, DEFAULT_COOLDOWN_S, DEFAULT_POLLING_S = 0, 100, 300, 30  # defaults of KEDA
DEFAULT_UP_WINDOW_S, DEFAULT_DOWN_WINDOW_S, DEFAULT_PERIOD_S = 0, 300, 15  # defaults of the HPA
LEAST, MOST = Integer(0, 100_000), Integer(1, 100_000)  # the maximum of an HPA is at least 1
TOLERANCE = Quantity(10)
TARGETS: Mapping[str, str] = MappingProxyType({kind: row.api_version for kind, row in SCALED.items()})
"""Kinds that can be scaled, each with its apiVersion. Other versions of the group are allowed."""

MIN, MAX, IDLE = ("spec", "minReplicaCount"), ("spec", "maxReplicaCount"), ("spec", "idleReplicaCount")
COOLDOWN: Loc = ("spec", "cooldownPeriod")
INITIAL_COOLDOWN: Loc = ("spec", "initialCooldownPeriod")
POLLING: Loc = ("spec", "pollingInterval")
FALLBACK: Loc = ("spec", "fallback")
TRIGGERS: Loc = ("spec", "triggers")
MODIFIERS: Loc = ("spec", "advanced", "scalingModifiers")
BEHAVIOR: Loc = ("spec", "advanced", "horizontalPodAutoscalerConfig", "behavior")
UP, DOWN = (*BEHAVIOR, "scaleUp"), (*BEHAVIOR, "scaleDown")
DISABLED = "Disabled"  # selectPolicy of a direction that the HPA does not scale in
EXACT_UP = "policies: [{type: Pods, value: <maxReplicaCount>, periodSeconds: 15}]"

# Fields that KEDA and the HPA read. Source: scaledobject_types.go of KEDA 2.21, HPAScalingRules of autoscaling/v2.
RULES = ("policies", "selectPolicy", "stabilizationWindowSeconds", "tolerance")
KEYS: Mapping[Loc, tuple[str, ...]] = MappingProxyType(
    {
        ("spec",): (
            "advanced",
            "cooldownPeriod",
            "fallback",
            "idleReplicaCount",
            "initialCooldownPeriod",
            "maxReplicaCount",
            "minReplicaCount",
            "pollingInterval",
            "scaleTargetRef",
            "triggers",
        ),
        FALLBACK: ("behavior", "failureThreshold", "replicas"),
        ("spec", "advanced"): ("horizontalPodAutoscalerConfig", "restoreToOriginalReplicaCount", "scalingModifiers"),
        MODIFIERS: ("activationTarget", "formula", "metricType", "target"),
        BEHAVIOR[:-1]: ("behavior", "name"),
        BEHAVIOR: ("scaleDown", "scaleUp"),
        UP: RULES,
        DOWN: RULES,
    }
)
_INT32 = 2**31 - 1
SECONDS, _FAILURES, POLL_SECONDS = Integer(0, _INT32), Integer(0, _INT32), Integer(1, _INT32)
WINDOW, _STEP, _PERIOD = Integer(0, 3600), Integer(1, _INT32), Integer(1, 1800)
MAX_STEPS = 64  # policies checked per direction
_STEP_TYPES, _SELECTS = ("Pods", "Percent"), ("Max", "Min", DISABLED)

# Annotations that make KEDA keep a count.
PAUSED, PAUSED_AT = "autoscaling.keda.sh/paused", "autoscaling.keda.sh/paused-replicas"
PAUSED_IN, PAUSED_OUT = "autoscaling.keda.sh/paused-scale-in", "autoscaling.keda.sh/paused-scale-out"
FORCED = "autoscaling.keda.sh/force-activation"
_FALSE = frozenset(
    {"0", "f", "F", "FALSE", "false", "False"}
)  # of Go's strconv.ParseBool; KEDA treats other values as true


class TriggerFault(NamedTuple):
    """A problem that prevents scaling by a ScaledObject."""

    place: Loc
    problem: str
    allowed: str
    shows: bool = True  # whether the value may be shown; a secret may not

    def describe(self, value: object) -> str:
        """Describe the problem in one line. value: the ScaledObject."""
        found = at(value, *self.place)
        words = f", found {shown(found)}" if self.shows and isinstance(found, str | int | float) else ""
        return f"{dotted(self.place)}: {self.problem}{words}; allowed: {self.allowed}"


def with_defaults(kind: Any, api_version: Any) -> tuple[Any, Any]:
    """Return kind and apiVersion of a target with the defaults of KEDA, which are those of a Deployment."""
    return "Deployment" if kind in (None, "") else kind, "apps/v1" if api_version in (None, "") else api_version


def is_target(kind: Any, api_version: Any) -> bool:
    """Return whether a target of this kind and apiVersion is a known kind that can be scaled."""
    return isinstance(kind, str) and kind in SCALED and api_group(api_version) == SCALED[kind].group


def is_other_kind(kind: Any, api_version: Any) -> bool:
    """Return whether a target is of a custom kind that is not known. Only the API server can tell whether it scales."""
    return isinstance(kind, str) and bool(kind) and is_other_group(api_version)


def is_set(annotations: Mapping[str, Any], name: str) -> bool:
    """Return whether an annotation is true for KEDA."""
    return annotations.get(name, "false") not in _FALSE


def integer(value: object, place: Loc, kind: Integer, absent: int | None = None) -> int | None:
    """Return a whole number; `absent` if it is missing, None if it is invalid."""
    found = at(value, *place)
    try:
        return absent if found is None else kind.read(found)
    except ValueError:
        return None


def tolerance(value: object, direction: Loc) -> float | None:
    """Return the tolerance of one direction; None if absent, NaN if invalid."""
    stated = at(value, *direction, "tolerance")
    try:
        return None if stated is None else TOLERANCE.read(stated)
    except ValueError:
        return math.nan


def delay_s(value: object, direction: Loc) -> float:
    """Return how long the HPA may wait before it moves in one direction; the defaults where a field is invalid."""
    default_s = DEFAULT_UP_WINDOW_S if direction == UP else DEFAULT_DOWN_WINDOW_S
    window_s = integer(value, (*direction, "stabilizationWindowSeconds"), WINDOW, default_s)
    steps = at(value, *direction, "policies")
    places = [
        (*direction, "policies", index, "periodSeconds")
        for index in range(len(steps) if isinstance(steps, list) else 0)
    ]
    periods_s = [integer(value, place, _PERIOD, DEFAULT_PERIOD_S) or DEFAULT_PERIOD_S for place in places[:MAX_STEPS]]
    return (default_s if window_s is None else window_s) + max(periods_s, default=DEFAULT_PERIOD_S)


def policies(value: object, direction: Loc) -> list[tuple[str, int]]:
    """Return the HPA policies of one direction as (type, value); [] if one is invalid."""
    place = (*direction, "policies")
    if any(fault.place[: len(place)] == place for fault in direction_faults(value, direction)):
        return []
    stated = at(value, *direction, "policies")
    return [(str(at(step, "type")), int(str(at(step, "value")))) for step in stated] if isinstance(stated, list) else []


def faults(value: object, ours: Sequence[int], book: PolicyBook | None = None) -> Iterator[TriggerFault]:
    """Yield the problems that prevent scaling by a ScaledObject, or its use by this scaler.

    ours: places of our triggers, at least one. book: the policies; None if they are checked elsewhere.
    Never raises for the content of the object.
    """
    if len(ours) > 1:
        yield TriggerFault(
            (*TRIGGERS, ours[1]), "a second trigger of this scaler", "one, because the HPA takes the larger"
        )
    yield from misspelled(value, KEYS)
    yield from _target(value)
    yield from _trigger(value, ours[0], book)
    yield from field_faults(value)


def misspelled(value: object, keys: Mapping[Loc, tuple[str, ...]]) -> Iterator[TriggerFault]:
    """Yield the keys that are nearly one of those that are read. keys: those that are read, by place."""
    for place, known in keys.items():
        for key in mapping(at(value, *place)):
            if key not in known and get_close_matches(key[:100], known, n=1):
                yield TriggerFault((*place, key), *unknown("unknown key", known, key), shows=False)


def unread(value: object, keys: Mapping[Loc, tuple[str, ...]]) -> Iterator[Loc]:
    """Yield the places of all keys that are not read, 20 at most."""
    found = ((*place, key) for place, known in keys.items() for key in mapping(at(value, *place)) if key not in known)
    yield from islice(found, 20)


def field_faults(value: object) -> Iterator[TriggerFault]:
    """Yield the problems of counts, intervals, fallback and behavior, which do not depend on the triggers."""
    yield from _counts(value)
    for direction in (UP, DOWN):
        yield from direction_faults(value, direction)
    yield from check_integer(value, POLLING, POLL_SECONDS)
    yield from check_integer(value, COOLDOWN, SECONDS)
    yield from check_integer(value, INITIAL_COOLDOWN, SECONDS)
    if at(value, *FALLBACK) is not None:
        yield from check_integer(value, (*FALLBACK, "failureThreshold"), _FAILURES, required=True)
        yield from check_integer(value, (*FALLBACK, "replicas"), LEAST, required=True)


def check_integer(value: object, place: Loc, kind: Integer, required: bool = False) -> Iterator[TriggerFault]:
    """Yield the problem of a whole number, if there is one."""
    found = at(value, *place)
    if found is None:
        if required:
            yield TriggerFault(place, "missing", kind.allowed)
        return
    try:
        kind.read(found)
    except ValueError as error:
        yield TriggerFault(place, str(error), kind.allowed)


def _target(value: object) -> Iterator[TriggerFault]:
    place: Loc = ("spec", "scaleTargetRef")
    stated = at(value, *place, "apiVersion")
    kind, api_version = with_defaults(at(value, *place, "kind"), stated)
    if is_other_kind(kind, api_version):
        pass
    elif isinstance(kind, str) and kind in BY_KIND and BY_KIND[kind].refusal:
        why, allowed = BY_KIND[kind].why_refused
        yield TriggerFault((*place, "kind"), f"cannot be scaled: {why}", allowed)
    elif kind not in tuple(TARGETS):
        yield TriggerFault((*place, "kind"), *unknown("cannot be scaled", TARGETS, str(kind)))
    elif not is_target(kind, api_version):
        problem = f"has no {kind}" if api_version == stated else f"absent, which means {api_version}"
        yield TriggerFault((*place, "apiVersion"), problem, TARGETS[kind])
    name = at(value, *place, "name")
    if not name or not isinstance(name, str):
        yield TriggerFault((*place, "name"), "not text" if name else "missing", "the target's name")


def _trigger(value: object, index: int, book: PolicyBook | None) -> Iterator[TriggerFault]:
    place: Loc = (*TRIGGERS, index)
    kind = at(value, *place, "type")
    if kind not in (PUSH, POLL):
        yield TriggerFault((*place, "type"), *unknown("unknown type", (PUSH, POLL), str(kind)))
    for owner in (place, MODIFIERS):
        if at(value, *owner, "metricType") not in (None, "", "AverageValue"):
            problem = "multiplies our count by the pods that are ready, at each sync of the HPA up to its maximum"
            yield TriggerFault((*owner, "metricType"), problem, "AverageValue")
    stated = mapping(at(value, *place, "metadata"))
    texts = {key: text for key, text in stated.items() if isinstance(text, str)}
    for key in list(stated.keys() - texts.keys())[: trigger.MAX_KEYS]:
        yield TriggerFault(
            (*place, "metadata", key), "not text, which KEDA requires", "the value in quotes", shows=False
        )
    wrong = trigger.problems(texts, book) if book else trigger.key_problems(texts)
    for key, problem in wrong.items():
        if key in texts or key not in stated:
            words, _, allowed = problem.partition("; allowed: ")
            yield TriggerFault((*place, "metadata", key), words, allowed, shows=False)
    address = stated.get("scalerAddress")
    if isinstance(address, str) and address.startswith(("http://", "https://")):
        yield TriggerFault((*place, "metadata", "scalerAddress"), "a URL", "host:port")


def _counts(value: object) -> Iterator[TriggerFault]:
    yield from check_integer(value, MIN, LEAST)
    yield from check_integer(value, MAX, MOST)
    yield from check_integer(value, IDLE, LEAST)
    least, most = integer(value, MIN, LEAST, DEFAULT_MIN), integer(value, MAX, MOST, DEFAULT_MAX)
    idle = integer(value, IDLE, LEAST)
    if least is not None and most is not None and least > most:
        yield TriggerFault(MIN, "above maxReplicaCount", f"at most {most}")
    if least is not None and idle is not None:
        # KEDA compares them in this way: a stated minimum of 0 counts as 1.
        floor = 0 if at(value, *MIN) is None else max(1, least)
        if idle >= floor:
            allowed = f"at most {floor - 1}" if floor else "a minReplicaCount above it"
            yield TriggerFault(IDLE, "not below minReplicaCount", allowed)


def direction_faults(value: object, place: Loc) -> Iterator[TriggerFault]:
    """Yield the problems of `behavior.scaleUp` or `behavior.scaleDown`."""
    rules = mapping(at(value, *place))
    select = rules.get("selectPolicy")
    if select is not None and select not in _SELECTS:
        yield TriggerFault((*place, "selectPolicy"), *unknown("unknown", _SELECTS, str(select)))
    yield from check_integer(value, (*place, "stabilizationWindowSeconds"), WINDOW)
    if (stated := rules.get("tolerance")) is not None:
        try:
            TOLERANCE.read(stated)
        except ValueError as error:
            yield TriggerFault((*place, "tolerance"), str(error), TOLERANCE.allowed)
    steps = rules.get("policies")
    if not steps:
        return
    if not isinstance(steps, list):
        yield TriggerFault((*place, "policies"), "not a list", EXACT_UP)
        return
    for index in range(min(len(steps), MAX_STEPS)):
        item = (*place, "policies", index)
        kind = at(value, *item, "type")
        if kind not in _STEP_TYPES:
            problem = "missing" if kind is None else "unknown"
            yield TriggerFault((*item, "type"), *unknown(problem, _STEP_TYPES, str(kind)))
        yield from check_integer(value, (*item, "value"), _STEP, required=True)
        yield from check_integer(value, (*item, "periodSeconds"), _PERIOD, required=True)
