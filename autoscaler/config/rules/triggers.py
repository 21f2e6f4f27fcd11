"""Reads the triggers of a ScaledObject: what each is computed from, or why it is left out."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

from autoscaler.config.check.manifests import at, mapping
from autoscaler.config.check.scaledobject_fields import TRIGGERS
from autoscaler.config.check.trigger import SECRETS
from autoscaler.config.findings import Finding
from autoscaler.config.rules.cron import ALLOWED, CronWindow, read_schedule
from autoscaler.config.rules.query import NotRecognized, recognize
from autoscaler.config.rules.rule import Closed, LeftOut, Metric, Open
from autoscaler.config.values import TimeZone
from autoscaler.config.yaml import Document, Loc, dotted

MAX_TRIGGERS = 64
_NUMBER = re.compile(r"[+-]?(\d{1,20}(\.\d{0,20})?|\.\d{1,20})([eE][+-]?\d{1,2})?", re.ASCII)
_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})
_REASONS = {
    "cpu": "CPU use is not simulated",
    "memory": "memory use is not simulated",
    "external": "its scaler is a program of its own",
    "external-push": "its scaler is a program of its own",
}
_UNCACHED = ("cpu", "memory", "cron")  # their values cannot be cached
_ZONE = TimeZone()


def read_triggers(
    document: Document, namespace: str, recorded: Mapping[str, str], findings: list[Finding]
) -> tuple[list[Metric], list[LeftOut]]:
    """Return the triggers that are evaluated, and those that are left out. Problems are added to `findings`."""
    stated = at(document.value, *TRIGGERS)
    if not isinstance(stated, list) or not stated:
        findings.append(document.finding(TRIGGERS, "missing" if stated is None else "no list of triggers", "triggers"))
        return [], []
    if len(stated) > MAX_TRIGGERS:
        findings.append(document.finding(TRIGGERS, f"{len(stated)} triggers", f"at most {MAX_TRIGGERS}"))
        return [], []
    metrics: list[Metric] = []
    left_out: list[LeftOut] = []
    seen: set[str] = set()
    for index, trigger in enumerate(stated):
        place: Loc = (*TRIGGERS, index)
        kind, name = at(trigger, "type"), at(trigger, "name")
        if isinstance(name, str) and name in seen:
            findings.append(document.finding((*place, "name"), "the name of another trigger", "each name once"))
        seen.update([name] if isinstance(name, str) and name else [])
        if kind in _UNCACHED and at(trigger, "useCachedMetrics") is True:
            findings.append(document.finding((*place, "useCachedMetrics"), f"not for {kind} triggers", "false"))
        if not isinstance(kind, str) or not kind:
            findings.append(document.finding((*place, "type"), "missing", "a type of trigger, such as prometheus"))
        elif kind in ("prometheus", "cron"):
            faults = list(_text_faults(document, place))
            findings += faults
            if not faults:
                metrics += _read(document, place, kind, namespace, recorded, findings)
        else:
            reason = _REASONS.get(kind, "only prometheus and cron triggers are evaluated")
            left_out.append(LeftOut(dotted(place), kind[:40], reason))
    return metrics, left_out


def _text_faults(document: Document, place: Loc) -> Iterator[Finding]:
    metadata = at(document.value, *place, "metadata")
    if not isinstance(metadata, dict):
        yield document.finding((*place, "metadata"), "missing" if metadata is None else "not a mapping", "a mapping")
        return
    for key, text in metadata.items():
        if not isinstance(text, str) and key not in SECRETS:
            yield document.finding((*place, "metadata", key), "not text, which KEDA requires", "the value in quotes")
    metric_type = at(document.value, *place, "metricType")
    if metric_type not in (None, "", "AverageValue", "Value"):
        yield document.finding((*place, "metricType"), "not one of this trigger", "AverageValue, Value")


def _read(
    document: Document, place: Loc, kind: str, namespace: str, recorded: Mapping[str, str], findings: list[Finding]
) -> Iterator[Metric]:
    trigger = mapping(at(document.value, *place))
    metadata = {key: str(text) for key, text in mapping(trigger.get("metadata")).items()}
    reader = _TriggerMetadata(document, (*place, "metadata"), metadata, findings)
    before = len(findings)
    is_average = trigger.get("metricType") != "Value"
    name, cached = trigger.get("name"), trigger.get("useCachedMetrics") is True
    common = (dotted(place), is_average, cached, name if isinstance(name, str) else "")
    if kind == "cron":
        window = _cron(reader)
        if window is not None and len(findings) == before:
            yield Metric(common[0], window, 1.0, is_average=common[1], cached=common[2], name=common[3])
        return
    query = reader.text("query")
    target, activation = reader.number("threshold"), reader.number("activationThreshold", 0.0)
    if not math.isnan(target) and target < 0.001:
        reader.add("threshold", "too small", "a number from 0.001, because targets have three decimals")
    ignores_null = reader.switch("ignoreNullValues", True)
    if len(findings) > before:
        return
    source = meaning(query, namespace, recorded)
    yield Metric(
        common[0], source, target, query, common[1], False, activation, ignores_null, cached=common[2], name=common[3]
    )


def meaning(query: str, namespace: str, recorded: Mapping[str, str]) -> Closed | Open:
    """Return what a query is computed from."""
    try:
        return Closed(recognize(query, namespace, recorded))
    except NotRecognized as error:
        return Open(str(error))


def _cron(reader: _TriggerMetadata) -> CronWindow | None:
    schedules = []
    for key in ("start", "end"):
        if text := reader.text(key):
            try:
                schedules.append(read_schedule(text))
            except ValueError as error:
                reader.add(key, str(error), ALLOWED)
    zone, replicas = reader.text("timezone"), reader.number("desiredReplicas")
    if zone:
        try:
            _ZONE.read(zone)
        except ValueError as error:
            reader.add("timezone", str(error), _ZONE.allowed)
    if reader.given("start") and reader.given("start") == reader.given("end"):
        reader.add("end", "the same as start", "another time")
    if not math.isnan(replicas) and not (replicas.is_integer() and 1 <= replicas <= 100_000):
        reader.add("desiredReplicas", "not a count", "a whole number from 1 to 100,000")
    if len(schedules) < 2 or math.isnan(replicas) or not zone:
        return None
    return CronWindow(schedules[0], schedules[1], zone, int(replicas))


class _TriggerMetadata:
    """The metadata of one trigger, all of it text."""

    def __init__(self, document: Document, place: Loc, metadata: Mapping[str, str], findings: list[Finding]) -> None:
        self._document, self._place, self._metadata, self._findings = document, place, metadata, findings

    def add(self, key: str, problem: str, allowed: str) -> None:
        self._findings.append(self._document.finding((*self._place, key), problem, allowed))

    def given(self, key: str) -> str:
        return self._metadata.get(key, "").strip()

    def text(self, key: str) -> str:
        found = self.given(key)
        if not found:
            self.add(key, "missing", "text that is not empty")
        return found

    def number(self, key: str, absent: float = math.nan) -> float:
        """Return a number; NaN: a problem was added."""
        found = self.given(key)
        if not found and not math.isnan(absent):
            return absent
        if not found:
            self.add(key, "missing", "a number in quotes")
        elif not _NUMBER.fullmatch(found):
            self.add(key, "not a number", 'a number in quotes, such as "5"')
        else:
            return float(found)
        return math.nan

    def switch(self, key: str, absent: bool) -> bool:
        found = self.given(key)
        if found and found not in _TRUE | _FALSE:
            self.add(key, "neither true nor false", '"true" or "false"')
        return found in _TRUE if found else absent
