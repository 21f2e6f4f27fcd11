"""Reads `behavior` of an HPA, with the defaults of its API server and controller."""

from __future__ import annotations

from autoscaler.config.check.manifests import at, mapping
from autoscaler.config.check.scaledobject_fields import MAX_STEPS, TOLERANCE, WINDOW, integer
from autoscaler.config.rules.rule import DOWN, UP, BehaviorPolicy, Direction, HpaRule, Select
from autoscaler.config.yaml import Loc


def read_hpa(value: object, place: Loc, least: int, most: int) -> HpaRule:
    """Return bounds and behavior. place: of `behavior`, whose faults were found before."""
    if not isinstance(at(value, *place), dict):
        return HpaRule(least, most, stated=False)
    up, down = (_direction(value, (*place, name), default) for name, default in (("scaleUp", UP), ("scaleDown", DOWN)))
    return HpaRule(least, most, up, down)


def _direction(value: object, place: Loc, default: Direction) -> Direction:
    rules = mapping(at(value, *place))
    window_s = integer(value, (*place, "stabilizationWindowSeconds"), WINDOW)
    steps = rules.get("policies")
    select: Select = "Max"
    if (stated := rules.get("selectPolicy")) == "Min" or stated == "Disabled":
        select = stated
    return Direction(
        default.stabilization_s if window_s is None else float(window_s),
        tuple(_policy(step) for step in steps[:MAX_STEPS]) if isinstance(steps, list) and steps else default.policies,
        select,
        TOLERANCE.read(rules["tolerance"]) if rules.get("tolerance") is not None else default.tolerance,
    )


def _policy(step: object) -> BehaviorPolicy:
    kind = at(step, "type")
    return BehaviorPolicy(
        "Pods" if kind == "Pods" else "Percent", float(str(at(step, "value"))), float(str(at(step, "periodSeconds")))
    )
