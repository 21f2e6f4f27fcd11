"""Reads the annotations of Knative's pod autoscaler, on a Service, a Deployment or an InferenceService.

Source: Knative serving v1.18 `pkg/apis/autoscaling/register.go`, `pkg/autoscaler/config`, and
`pkg/reconciler/autoscaling/resources/target.go`; KServe 0.15 `ComponentExtensionSpec`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches

from autoscaler.config.check.manifests import at, mapping, text_at
from autoscaler.config.findings import Finding
from autoscaler.config.rules.names import NAME, NAMESPACE, read_kind, read_name
from autoscaler.config.rules.rule import Knative, LeftOut, Rule
from autoscaler.config.values import Duration
from autoscaler.config.yaml import Document, Loc

PREFIX = "autoscaling.knative.dev/"
KPA = "kpa.autoscaling.knative.dev"
_PLACES: tuple[Loc, ...] = (("spec", "template", "metadata", "annotations"), ("metadata", "annotations"))
_SERVES = "serving."  # begins the API groups of Knative and KServe, whose default class is KPA
_RPS_TARGET = 200.0
_DELAY, _WINDOW = Duration(0.0, 3600.0), Duration(6.0, 3600.0)
_NUMBER = re.compile(r"\d{1,9}(\.\d{1,9})?", re.ASCII)
# The annotations that are read, by the field of `Knative`; each has an older spelling, such as minScale.
_NUMBERS: Mapping[str, tuple[str, float, float, float]] = {  # field, factor to its unit, least, most
    "target": ("target", 1.0, 0.01, 1e6),
    "target-utilization-percentage": ("utilization", 0.01, 1.0, 100.0),
    "panic-window-percentage": ("panic_share", 0.01, 1.0, 100.0),
    "panic-threshold-percentage": ("panic_threshold", 0.01, 110.0, 1000.0),
    "min-scale": ("least", 1.0, 0.0, 100_000.0),
    "max-scale": ("most", 1.0, 0.0, 100_000.0),
    "initial-scale": ("initial", 1.0, 0.0, 100_000.0),
    "activation-scale": ("activation", 1.0, 2.0, 100_000.0),
}
_DURATIONS: Mapping[str, tuple[str, Duration]] = {
    "window": ("window_s", _WINDOW),
    "scale-down-delay": ("down_delay_s", _DELAY),
    "scale-to-zero-pod-retention-period": ("retention_s", _DELAY),
}
_WHOLE = frozenset({"least", "initial", "activation"})
_COUNTS = _WHOLE | {"most"}
# Further annotations of Knative, which change no count here.
_OTHERS = frozenset({"class", "metric", "metric-aggregation-algorithm", "target-burst-capacity"})
_KNOWN = tuple(sorted({*_NUMBERS, *_DURATIONS, *_OTHERS}))


def has_annotations(value: object) -> bool:
    """Return whether an object is scaled by Knative: by its annotations, or as a service of Knative."""
    stated = any(key.startswith(PREFIX) for place in _PLACES for key in mapping(at(value, *place)))
    return stated or (
        at(value, "kind") == "Service" and str(at(value, "apiVersion")).startswith("serving.knative.dev/")
    )


def read_annotations(document: Document, findings: list[Finding]) -> Rule | None:
    """Return the rule of an object; None if a problem was added to `findings`."""
    value, before = document.value, len(findings)
    stated: dict[str, tuple[Loc, object]] = {}
    for place in reversed(_PLACES):
        for key, text in mapping(at(value, *place)).items():
            if key.startswith(PREFIX):
                stated[_newer(key.removeprefix(PREFIX))] = ((*place, key), text)
    settings = _settings(document, stated, findings)
    name, namespace = read_name(document, NAME, findings), read_name(document, NAMESPACE, findings, "")
    kind = read_kind(document, findings)
    if len(findings) > before:
        return None
    metric = _text(stated, "metric") or text_at(value, "spec", "predictor", "scaleMetric") or "concurrency"
    in_charge = _text(stated, "class") or KPA
    left_out: tuple[LeftOut, ...] = ()
    if metric in ("cpu", "memory"):
        left_out = (LeftOut(f"{PREFIX}metric", metric, "use of CPU and memory is not simulated"),)
    elif in_charge != KPA:
        left_out = (LeftOut(f"{PREFIX}class", in_charge[:60], f"only {KPA} is evaluated"),)
    elif metric not in ("concurrency", "rps"):
        left_out = (LeftOut(f"{PREFIX}metric", metric[:40], f"{KPA} has concurrency and rps"),)
    evaluated = None if left_out else settings
    left_out += tuple(_unread(stated))
    return Rule(
        kind=f"{kind} with Knative annotations",
        name=name,
        namespace=namespace,
        target=name,
        place=f"{document.file}:{document.line}",
        knative=evaluated,
        left_out=left_out,
    )


def _newer(name: str) -> str:
    """Return the present spelling of an annotation: minScale is min-scale."""
    spelled = re.sub(r"[A-Z]", lambda capital: f"-{capital[0].lower()}", name[:100])
    return spelled if spelled in _KNOWN else name


def _unread(stated: Mapping[str, tuple[Loc, object]]) -> Iterator[LeftOut]:
    """Yield the annotations that are not evaluated, though they may matter."""
    for name in list(stated)[:100]:
        if name not in _KNOWN:
            yield LeftOut(f"{PREFIX}{name[:60]}", "unknown", "Knative has no such annotation")
    if (algorithm := _text(stated, "metric-aggregation-algorithm")) not in ("", "linear"):
        yield LeftOut(f"{PREFIX}metric-aggregation-algorithm", algorithm[:40], "a linear mean is taken")


def _text(stated: Mapping[str, tuple[Loc, object]], name: str) -> str:
    found = stated[name][1] if name in stated else ""
    return found if isinstance(found, str) else ""


def _settings(document: Document, stated: Mapping[str, tuple[Loc, object]], findings: list[Finding]) -> Knative:
    value = document.value
    found: dict[str, float] = {}
    for name, (place, text) in stated.items():
        if name in _NUMBERS:
            field, factor, least, most = _NUMBERS[name]
            number = float(text) if isinstance(text, str) and _NUMBER.fullmatch(text) else math.nan
            if not least <= number <= most or (field in _COUNTS and not number.is_integer()):
                allowed = f"a {'whole ' if field in _COUNTS else ''}number in quotes from {least:g} to {most:,.0f}"
                findings.append(document.finding(place, "not such a number", allowed))
            found[field] = number * factor
        elif name in _DURATIONS:
            field, kind = _DURATIONS[name]
            try:
                found[field] = kind.read(text) or 0.0
            except ValueError as error:
                findings.append(document.finding(place, str(error), kind.allowed))
        elif name not in _OTHERS and (close := get_close_matches(name[:100], _KNOWN, n=1)):
            findings.append(document.finding(place, f"did you mean {close[0]}? unknown annotation", ", ".join(_KNOWN)))
    predictor: Loc = ("spec", "predictor")  # of an InferenceService, which passes these on
    for key, field in (("minReplicas", "least"), ("maxReplicas", "most"), ("scaleTarget", "target")):
        stated_count = at(value, *predictor, key)
        if isinstance(stated_count, int) and not isinstance(stated_count, bool) and 0 <= stated_count <= 100_000:
            found.setdefault(field, float(stated_count))
    counts_rate = "rps" in (_text(stated, "metric"), text_at(value, *predictor, "scaleMetric"))
    limits = (
        at(value, "spec", "template", "spec", "containerConcurrency"),
        at(value, *predictor, "containerConcurrency"),
    )
    limit = next((float(each) for each in limits if isinstance(each, int) and each > 0), math.inf)
    if counts_rate:
        found.setdefault("target", _RPS_TARGET)
    elif limit < math.inf:
        found["target"] = min(found.get("target", limit), limit)
    found["most"] = found.get("most", 0.0) or math.inf
    if found.get("least", 0.0) > found["most"]:
        where = stated["min-scale"][0] if "min-scale" in stated else (*predictor, "minReplicas")
        findings.append(document.finding(where, "above the largest scale", f"at most {found['most']:g}"))
    whole = {field: int(found.pop(field)) for field in _WHOLE & found.keys() if math.isfinite(found[field])}
    return Knative(counts_rate=counts_rate, **found, **whole)  # type: ignore[arg-type]  # by name, of the right types
