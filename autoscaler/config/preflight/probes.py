"""Checks of probes, against past starts and against a busy engine."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

from autoscaler.config.check.manifests import at, mapping, text_at
from autoscaler.config.preflight.facts import NO_SERVER
from autoscaler.config.preflight.objects import Manifest, Result, found, not_checked
from autoscaler.config.preflight.past_readings import PastReadings, PastStarts
from autoscaler.config.preflight.workloads import EnginePod, ModelWorkload, quantity
from autoscaler.config.yaml import Loc

_SHORT_S = 15.0  # a liveness probe that gives up within this time gives up on a busy process


_GENERATES = re.compile(r"/v1/(chat/)?(completions|responses|embeddings)|/generate|/invocations")


def _probe_s(probe: Mapping[str, object], name: str, default: float) -> float:
    value = quantity(probe.get(name)) if probe.get(name) is not None else default
    return default if math.isnan(value) else value


def check_probes(workload: ModelWorkload, pod: EnginePod, history: PastReadings) -> Iterator[Result]:
    startup, liveness, readiness = (
        mapping(pod.of_container(f"{name}Probe")) for name in ("startup", "liveness", "readiness")
    )
    yield from _busy(workload.thing, pod, liveness)
    delayed = [
        (name, probe)
        for name, probe in (("startupProbe", startup), ("readinessProbe", readiness))
        if _probe_s(probe, "initialDelaySeconds", 0) >= 5
    ]
    if not (startup or liveness or delayed):
        return
    what = "startup probe, liveness and delays against the starts"
    loc: Loc = (*pod.container, "startupProbe" if startup else "livenessProbe" if liveness else delayed[0][0])
    if not history.facts.server:
        yield not_checked(workload.thing, loc, what, NO_SERVER)
        return
    starts = history.starts(workload)
    if starts is None:
        return
    if not starts.container_s:
        yield not_checked(workload.thing, loc, what, starts.error or "no past start is known")
        return
    if startup:
        yield from _startup(workload.thing, pod, startup, starts)
    elif liveness:
        yield from _liveness(workload.thing, pod, liveness, starts)
    for name, probe in delayed:
        yield from _delay(workload.thing, pod, name, probe, starts)


def _busy(thing: Manifest, pod: EnginePod, liveness: Mapping[str, object]) -> Iterator[Result]:
    if not liveness:
        return
    loc: Loc = (*pod.container, "livenessProbe")
    asked = f"{text_at(liveness, 'httpGet', 'path')} {at(liveness, 'exec', 'command')}"[:2000]
    allowed_s = _probe_s(liveness, "failureThreshold", 3) * _probe_s(liveness, "periodSeconds", 10)
    if _GENERATES.search(asked):
        why = (
            "It waits for an answer of the model, which takes longer the more requests run: under load the kubelet"
            " restarts the engine."
        )
        yield found(
            "VA1407",
            thing,
            loc,
            "the liveness probe asks the model for an answer",
            why,
            "httpGet: {path: /health, port: ...}",
        )
    elif allowed_s < _SHORT_S:
        why = f"It gives up after {allowed_s:g} s, which a busy API server may need for one answer."
        yield found(
            "VA1407",
            thing,
            loc,
            "the liveness probe gives up within seconds",
            why,
            "periodSeconds: 10, failureThreshold: 3",
        )


def _startup(thing: Manifest, pod: EnginePod, probe: Mapping[str, object], starts: PastStarts) -> Iterator[Result]:
    period_s = _probe_s(probe, "periodSeconds", 10)
    allowed_s = _probe_s(probe, "initialDelaySeconds", 0) + _probe_s(probe, "failureThreshold", 3) * period_s
    longest = max(starts.container_s)
    if longest <= allowed_s:
        return
    always = min(starts.container_s) > allowed_s
    why = (
        f"The probe allows {allowed_s:g} s, and {len(starts.container_s)} starts took up to {longest:.0f} s: the"
        " kubelet kills the container before it is ready."
    )
    fix = f"failureThreshold: {math.ceil(longest * 1.6 / max(period_s, 1))}"
    yield found(
        "VA1404",
        thing,
        (*pod.container, "startupProbe"),
        "the startup probe is shorter than the starts",
        why,
        fix,
        "error" if always else "warning",
    )


def _liveness(thing: Manifest, pod: EnginePod, probe: Mapping[str, object], starts: PastStarts) -> Iterator[Result]:
    period_s = _probe_s(probe, "periodSeconds", 10)
    killed_s = _probe_s(probe, "initialDelaySeconds", 0) + _probe_s(probe, "failureThreshold", 3) * period_s
    longest = max(starts.container_s)
    if longest > killed_s:
        why = (
            f"There is no startup probe. The last allowed failure comes about {killed_s:g} s after the container"
            f" started, and the port opens after up to {longest:.0f} s: the container is restarted for ever."
        )
        fix = (
            "startupProbe: {httpGet: {path: /health, port: ...}, periodSeconds: 5, failureThreshold:"
            f" {math.ceil(longest * 2 / 5)}}}"
        )
        yield found(
            "VA1406",
            thing,
            (*pod.container, "livenessProbe"),
            "the liveness probe kills the engine while it starts",
            why,
            fix,
        )


def _delay(
    thing: Manifest, pod: EnginePod, name: str, probe: Mapping[str, object], starts: PastStarts
) -> Iterator[Result]:
    delay_s, period_s = _probe_s(probe, "initialDelaySeconds", 0), _probe_s(probe, "periodSeconds", 10)
    waited = [each for each in starts.container_s if each <= delay_s + period_s + 2]
    if len(waited) * 2 > len(starts.container_s):
        why = (
            f"{len(waited)} of {len(starts.container_s)} starts were ready right behind the delay of {delay_s:g} s:"
            " the engine waited for its probe. A startup probe asks from the first second."
        )
        fix = "startupProbe with periodSeconds: 2 and failureThreshold: 150, and no initialDelaySeconds"
        yield found(
            "VA1405",
            thing,
            (*pod.container, name, "initialDelaySeconds"),
            "initialDelaySeconds adds to each start",
            why,
            fix,
        )
