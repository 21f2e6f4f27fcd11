"""Checks of what scrapes the engines, and of what the server has of them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence

from autoscaler.config.check.manifests import at, text_at
from autoscaler.config.policy.parse import PolicyBook
from autoscaler.config.preflight.facts import PENDING, QueryFacts
from autoscaler.config.preflight.history import CREATED, PastReadings
from autoscaler.config.preflight.objects import Manifest, Result, found, not_checked, selects
from autoscaler.config.preflight.patterns import compiled, fits
from autoscaler.config.preflight.scene import Scene
from autoscaler.config.preflight.series import samples_of
from autoscaler.config.preflight.waking import parsed, seconds
from autoscaler.config.preflight.workloads import ModelWorkload
from autoscaler.config.yaml import Loc

DEFAULT_INTERVAL_S = 30.0  # of the operator's Prometheus, unless its configuration says otherwise
_ENDPOINTS: Mapping[str, str] = {
    "PodMonitor": "podMetricsEndpoints",
    "ServiceMonitor": "endpoints",
    "PodMonitoring": "endpoints",  # of Google Managed Prometheus
    "VMPodScrape": "podMetricsEndpoints",
    "VMServiceScrape": "endpoints",
}
_BY_SERVICE = ("ServiceMonitor", "VMServiceScrape")
_RELABELINGS = ("relabelings", "relabelConfigs", "metricRelabelings", "metricRelabelConfigs", "metricRelabeling")
_LOAD = ("vllm:num_requests_running", "vllm:num_requests_waiting")
_BUCKETS = ("vllm:time_to_first_token_seconds_bucket", "vllm:inter_token_latency_seconds_bucket")
_STATE = ("kube_pod_owner", "kube_replicaset_owner", "kube_pod_status_ready")


def check_monitoring(fleet: Scene, facts: QueryFacts, book: PolicyBook) -> Iterator[Result]:
    for kind in _ENDPOINTS:
        for monitor in fleet.objects.of_kind(kind):
            chosen = _selected(fleet, monitor)
            if chosen:
                yield from _monitor(fleet, monitor, chosen, book)
    yield from _exporters(fleet)
    yield from _server(fleet, facts)


def _exporters(fleet: Scene) -> Iterator[Result]:
    """Check kube-state-metrics and the DCGM exporter, as far as they are among the objects."""
    for thing in fleet.objects.of_kind("Deployment", "StatefulSet", "DaemonSet"):
        for index, container in enumerate(thing.list("spec", "template", "spec", "containers")[:16]):
            if "kube-state-metrics" in text_at(container, "image"):
                yield from _allow_list(thing, ("spec", "template", "spec", "containers", index, "args"))
    for monitor in fleet.objects.of_kind("ServiceMonitor", "VMServiceScrape"):
        if "kube-state-metrics" not in f"{monitor.name} {monitor.map('spec', 'selector')}"[:5000]:
            continue
        for index, endpoint in enumerate(monitor.list("spec", "endpoints")[:32]):
            if at(endpoint, "honorLabels") is not True and text_at(endpoint, "port") != "telemetry":
                why = "Prometheus renames pod and namespace to exported_*, and pod names kube-state-metrics itself."
                loc: Loc = ("spec", "endpoints", index, "honorLabels")
                message = "kube-state-metrics is scraped without honorLabels"
                yield found("VA1609", monitor, loc, message, why, "honorLabels: true", "warning")
    for thing in fleet.objects.of_kind("ConfigMap"):
        for key, text in thing.texts("data").items():
            lines = [line.strip() for line in text[: 1 << 16].splitlines()] if "DCGM_FI_DEV_FB_USED" in text else []
            counters = [line for line in lines if line.startswith("DCGM_FI_")]
            if counters and not any(line.startswith("DCGM_FI_PROF_") for line in counters):
                why = "The activity of GPUs is known by DCGM_FI_PROF_* alone under MIG."
                fix = "DCGM_FI_PROF_GR_ENGINE_ACTIVE, gauge, ..."
                yield found("VA1607", thing, ("data", key), "DCGM exports no profiling fields", why, fix)


def _allow_list(thing: Manifest, loc: Loc) -> Iterator[Result]:
    for index, word in enumerate(thing.list(*loc)[:64]):
        name, _, value = str(word)[:5000].partition("=")
        listed = [each.strip() for each in value.split(",") if each.strip()]
        if name == "--metric-allowlist":
            missing = [each for each in _STATE if not any(fits(pattern, each) is not False for pattern in listed)]
        elif name == "--metric-denylist":
            missing = [each for each in _STATE if any(fits(pattern, each) for pattern in listed)]
        elif name == "--resources":
            missing = [
                each for each, kind in zip(_STATE, ("pods", "replicasets", "pods"), strict=True) if kind not in listed
            ]
        else:
            continue
        if missing:
            why = (
                f"Without {', '.join(missing)} the owners and the readiness of pods are known only with access to the"
                " cluster."
            )
            message = f"{name} leaves out what is needed"
            yield found("VA1606", thing, (*loc, index), message, why, f"add {', '.join(missing)}", "warning")


def _selected(fleet: Scene, monitor: Manifest) -> list[ModelWorkload]:
    """Return the workloads whose pods a monitor selects, by their own labels or by those of a Service."""
    selector = monitor.map("spec", "selector")
    names = monitor.list("spec", "namespaceSelector", "matchNames")
    spaces = [str(each) for each in names] or [monitor.namespace]
    if monitor.at("spec", "namespaceSelector", "any") is True:
        spaces = list(dict.fromkeys(each.thing.namespace for each in fleet.workloads))
    candidates = [each for space in spaces for each in fleet.in_namespace(space)]
    if monitor.kind not in _BY_SERVICE:
        return [each for each in candidates if selects(selector, each.pod.labels)]
    services = [
        each for each in fleet.objects.of_kind("Service") if each.namespace in spaces and selects(selector, each.labels)
    ]
    selectors = [(each.namespace, each.texts("spec", "selector")) for each in services]
    return [
        each
        for each in candidates
        if any(
            space == each.thing.namespace and chosen and chosen.items() <= each.pod.labels.items()
            for space, chosen in selectors
        )
    ]


def _monitor(fleet: Scene, monitor: Manifest, chosen: Sequence[ModelWorkload], book: PolicyBook) -> Iterator[Result]:
    converts = ("spec", "convertClassicHistogramsToNHCB")
    if monitor.at(*converts) is True and monitor.at("spec", "scrapeClassicHistograms") is not True:
        why = (
            "Histograms become native ones with custom buckets: no series ends in _bucket, and rules on them are empty."
        )
        fix = "scrapeClassicHistograms: true"
        yield found("VA1603", monitor, converts, "the engine's histograms lose their bucket series", why, fix)
    for index, endpoint in enumerate(monitor.list("spec", _ENDPOINTS[monitor.kind])[:32]):
        loc: Loc = ("spec", _ENDPOINTS[monitor.kind], index)
        yield from _interval(fleet, monitor, loc, endpoint, chosen, book)
        yield from _port(fleet, monitor, loc, endpoint, chosen)
        yield from _scheme(monitor, loc, endpoint, chosen)
        for part in _RELABELINGS:
            yield from _relabelings(monitor, (*loc, part), endpoint, part)


def _interval(
    fleet: Scene, monitor: Manifest, loc: Loc, endpoint: object, chosen: Sequence[ModelWorkload], book: PolicyBook
) -> Iterator[Result]:
    interval_s = seconds(at(endpoint, "interval"))
    timeout_s = seconds(at(endpoint, "scrapeTimeout"))
    if timeout_s > interval_s:
        why = "The operator refuses the monitor, so nothing is scraped."
        yield found(
            "VA1611",
            monitor,
            (*loc, "scrapeTimeout"),
            "scrapeTimeout is longer than the interval",
            why,
            f"scrapeTimeout: {interval_s:g}s",
        )
    if math.isnan(interval_s):
        if at(endpoint, "interval") is None:
            yield not_checked(
                monitor,
                (*loc, "interval"),
                "scrape interval",
                "it is that of the Prometheus, which is not known here",
            )
        return
    for workload in chosen:
        policy = book.policies.get(workload.policy or book.default)
        if policy is not None and interval_s > policy.spec.inputs.max_age / 2:
            age_s = policy.spec.inputs.max_age
            stated = bool(workload.policy)
            why = (
                f"The policy {policy.name} takes readings up to {age_s:g} s old, and scrapes may be at most half of"
                f" that apart. At {interval_s:g} s readings of {workload.thing.name} are too old, so signals are"
                " unknown and it never shrinks."
            )
            severity = "" if stated and interval_s > age_s else "warning"
            yield found(
                "VA1601",
                monitor,
                (*loc, "interval"),
                f"an interval of {interval_s:g} s is too long",
                why,
                "interval: 15s",
                severity,
            )
            break
    for workload in chosen:
        for each in fleet.of_workload(workload):
            for trigger in each.triggers:
                expression = parsed(trigger)
                for selector in expression.selectors if expression is not None else ():
                    if selector.is_load and 0 < selector.range_s < 2 * interval_s:
                        why = (
                            f"{monitor.key} scrapes every {interval_s:g} s, so a window of {selector.range_s:g} s"
                            f" holds at most {math.ceil(selector.range_s / interval_s)} sample, and a rate needs two."
                            " KEDA takes the empty answer for 0."
                        )
                        message = (
                            f"{selector.function or 'rate'} over {selector.range_s:g} s, with a scrape every"
                            f" {interval_s:g} s"
                        )
                        fix = (
                            f"interval: 15s at the monitor (or a window of at least {math.ceil(4 * interval_s / 60)}m)"
                        )
                        yield found("VA1218", each.thing, trigger.query_loc, message, why, fix)
                        break


def _port(
    fleet: Scene, monitor: Manifest, loc: Loc, endpoint: object, chosen: Sequence[ModelWorkload]
) -> Iterator[Result]:
    name = text_at(endpoint, "port")
    if not name:
        return
    for workload in chosen:
        if workload.pod.operator:
            continue
        if monitor.kind not in _BY_SERVICE:
            ports = [each for pod in workload.pods for each in _ports(pod.at("containers"))]
            where = f"the pods of {workload.thing.key}"
        else:
            services = [
                each
                for each in fleet.objects.of_kind("Service")
                if each.namespace == workload.thing.namespace and selects(monitor.at("spec", "selector"), each.labels)
            ]
            ports = [text_at(port, "name") for each in services for port in each.list("spec", "ports")]
            where = "the Service"
        if name not in ports:
            has = ", ".join(dict.fromkeys(each for each in ports if each)) or "no named port"
            why = f"A port is found by its name, and {where} has {has}: nothing is scraped."
            yield found(
                "VA1610",
                monitor,
                (*loc, "port"),
                f"{where} has no port {name[:100]}",
                why,
                f"port: {next(filter(None, ports), 'metrics')}",
            )
            return


def _scheme(monitor: Manifest, loc: Loc, endpoint: object, chosen: Sequence[ModelWorkload]) -> Iterator[Result]:
    """Find engines that serve TLS alone, and are scraped without."""
    if text_at(endpoint, "scheme").lower() == "https":
        return
    for workload in chosen:
        command, containers = workload.command, workload.pod.at("containers")
        beside = len(containers) if isinstance(containers, list) else 0
        if command is not None and "ssl-certfile" in command.options and beside == 1:
            why = f"{workload.thing.key} serves TLS (--ssl-certfile), and the scrape is plain HTTP: it fails each time."
            message = "an engine with TLS is scraped without"
            yield found("VA1604", monitor, (*loc, "scheme"), message, why, "scheme: https, with a tlsConfig")
            return


def _ports(containers: object) -> Iterator[str]:
    for container in containers if isinstance(containers, list) else []:
        ports = at(container, "ports")
        for each in ports if isinstance(ports, list) else []:
            yield text_at(each, "name")


def _relabelings(monitor: Manifest, loc: Loc, endpoint: object, part: str) -> Iterator[Result]:
    rules = at(endpoint, part)
    for index, rule in enumerate(rules[:64] if isinstance(rules, list) else []):
        action = (text_at(rule, "action") or "replace").lower()
        pattern = compiled(text_at(rule, "regex") or "(.*)")
        if pattern is None:
            yield not_checked(monitor, (*loc, index), "relabelling", "its pattern is not understood")
            continue
        place: Loc = (*loc, index)
        if action in ("labeldrop", "labelkeep"):
            lost = [name for name in ("pod", "namespace") if bool(pattern.fullmatch(name)) == (action == "labeldrop")]
            if lost:
                names = " and ".join(lost)
                why = f"Without {names} a series belongs to no workload, and cannot be joined with kube-state-metrics."
                yield found(
                    "VA1602",
                    monitor,
                    place,
                    f"the relabelling removes the label {names}",
                    why,
                    "a pattern without them",
                )
        target, replacement = text_at(rule, "targetLabel"), at(rule, "replacement")
        fixed = isinstance(replacement, str) and "$" not in replacement and at(rule, "regex") is None
        if action == "replace" and target in ("pod", "namespace") and fixed:
            why = f"Each series gets the same {target}, so none belongs to its workload."
            message = f"the relabelling overwrites the label {target}"
            yield found("VA1602", monitor, place, message, why, "remove the rule, or write another label")
        sources = at(rule, "sourceLabels")
        if part == "metricRelabelings" and sources == ["__name__"] and action in ("drop", "keep"):
            yield from _dropped(monitor, place, pattern, action)


def _dropped(monitor: Manifest, place: Loc, pattern: re.Pattern[str], action: str) -> Iterator[Result]:
    def is_lost(name: str) -> bool:
        return bool(pattern.fullmatch(name)) == (action == "drop")

    load = [name for name in _LOAD if is_lost(name)]
    if load:
        why = f"{' and '.join(load)} are not there, so the load of the engines is unknown."
        yield found("VA1605", monitor, place, "the relabelling drops the engine's load", why, "keep them")
    buckets = [name for name in _BUCKETS if is_lost(name)]
    if buckets and not load:
        why = (
            "Time to first token and gaps between tokens are computed from the buckets; without them these signals"
            " have no opinion."
        )
        fix = "remove the rule, or keep the buckets of time_to_first_token, inter_token_latency, request_prefill_time"
        yield found("VA1603", monitor, place, "the relabelling drops the histogram buckets of the engine", why, fix)


def _server(fleet: Scene, facts: QueryFacts) -> Iterator[Result]:
    """Check what the server has of the engines, of kube-state-metrics and of DCGM."""
    engines = [each for each in fleet.workloads if each.command is not None and not each.pod.operator]
    if not facts.server or not engines:
        return
    names = facts.names()
    if names is PENDING:
        return
    first = engines[0]
    if names.error:
        yield not_checked(first.thing, (), "metrics of the server", names.error)
        return
    missing = [name for name in _STATE if name not in names.names]
    if missing and any(name.startswith("kube_") for name in names.names):
        why = (
            f"Without {', '.join(missing)} the owners and the readiness of pods are known only with access to the"
            " cluster."
        )
        yield found("VA1606", first.thing, (), "kube-state-metrics lacks series", why, f"allow {', '.join(missing)}")
    dcgm = [name for name in names.names if name.startswith("DCGM_FI_")]
    if dcgm and not any(name.startswith("DCGM_FI_PROF_") for name in dcgm):
        why = "The activity of GPUs is known by DCGM_FI_PROF_* alone under MIG."
        yield found(
            "VA1607",
            first.thing,
            (),
            "DCGM exports no profiling fields",
            why,
            "enable DCGM_FI_PROF_GR_ENGINE_ACTIVE and PIPE_TENSOR_ACTIVE",
        )
    yield from _moved_labels(first.thing, facts)
    yield from _silent(engines, facts)


def _moved_labels(thing: Manifest, facts: QueryFacts) -> Iterator[Result]:
    """Find series of kube-state-metrics and DCGM whose labels Prometheus has renamed."""
    for name in (CREATED, "DCGM_FI_DEV_FB_USED"):
        answer = facts.query(name)
        if any(sample.labels.get("exported_pod") for sample in answer.samples):
            exporter = "DCGM" if name != CREATED else "kube-state-metrics"
            why = (
                f"The pod of the workload is in exported_pod, and pod names the pod of {exporter}: joins on pod find"
                " nothing."
            )
            yield found("VA1609", thing, (), f"{exporter} is scraped without honorLabels", why, "honorLabels: true")


def _silent(engines: Sequence[ModelWorkload], facts: QueryFacts) -> Iterator[Result]:
    """Find engines that run, and have no series."""
    history = PastReadings(facts)
    running = facts.query(_LOAD[0])
    if running is PENDING or running.error:
        return
    waiting = facts.query(_LOAD[1])
    if waiting is PENDING:
        return
    for workload in engines:
        now = history.replicas(workload)
        if not now > 0 or any(samples_of(workload, facts, answer) for answer in (running, waiting)):
            continue
        why = (
            f"{now:.0f} replicas are wanted now, and no series of vllm:num_requests_running names one of its pods or"
            " its model."
        )
        fix = "a PodMonitor that selects the pods and names their port"
        yield found("VA1604", workload.thing, (), "the server has no metrics of this engine", why, fix)
