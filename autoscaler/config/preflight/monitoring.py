"""Checks of what scrapes the engines, and of what the server has of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from autoscaler.config.check.manifests import at, text_at
from autoscaler.config.policy.parse import PolicyBook
from autoscaler.config.preflight.facts import PENDING, QueryFacts
from autoscaler.config.preflight.objects import Manifest, Result, found, not_checked, selects
from autoscaler.config.preflight.past_readings import CREATED, PastReadings
from autoscaler.config.preflight.patterns import fits
from autoscaler.config.preflight.scene import Scene
from autoscaler.config.preflight.scrape_jobs import check_found_by_prometheus, check_scrape_jobs
from autoscaler.config.preflight.scraping import LOAD, Timing, check_interval, check_relabelings
from autoscaler.config.preflight.series import samples_of
from autoscaler.config.preflight.workloads import ModelWorkload
from autoscaler.config.yaml import Loc

_SERVERS = ("Prometheus", "PrometheusAgent", "VMAgent")
_ENDPOINTS: Mapping[str, str] = {
    "PodMonitor": "podMetricsEndpoints",
    "ServiceMonitor": "endpoints",
    "PodMonitoring": "endpoints",  # of Google Managed Prometheus
    "VMPodScrape": "podMetricsEndpoints",
    "VMServiceScrape": "endpoints",
}
_SAMPLES = 250  # fewer than any engine exports
_BY_SERVICE = ("ServiceMonitor", "VMServiceScrape")
_RELABELINGS = ("relabelings", "relabelConfigs", "metricRelabelings", "metricRelabelConfigs", "metricRelabeling")
_STATE = ("kube_pod_owner", "kube_replicaset_owner", "kube_pod_status_ready")


def check_monitoring(fleet: Scene, facts: QueryFacts, book: PolicyBook) -> Iterator[Result]:
    for kind in _ENDPOINTS:
        for monitor in fleet.objects.of_kind(kind):
            chosen = _selected(fleet, monitor)
            if not chosen and fleet.in_namespace(monitor.namespace):
                yield not_checked(monitor, (), "what it scrapes", "it selects no engine that is known here")
            if chosen:
                yield from _monitor(fleet, monitor, chosen, book)
                yield from check_found_by_prometheus(fleet, monitor, chosen)
    yield from check_scrape_jobs(fleet, book)
    yield from _twice(fleet)
    yield from _exporters(fleet)
    yield from _server(fleet, facts)


def _exporters(fleet: Scene) -> Iterator[Result]:
    """Check kube-state-metrics and the DCGM exporter, as far as they are among the objects."""
    for thing in fleet.objects.of_kind("Deployment", "StatefulSet", "DaemonSet"):
        for index, container in enumerate(thing.list("spec", "template", "spec", "containers")[:16]):
            if "kube-state-metrics" in text_at(container, "image"):
                yield from _allow_list(thing, ("spec", "template", "spec", "containers", index, "args"))
    for monitor in fleet.objects.of_kind("ServiceMonitor", "VMServiceScrape"):
        about = f"{monitor.name} {monitor.map('spec', 'selector')}"[:5000]
        if "dcgm" in about and any(at(each, "honorLabels") is not True for each in monitor.list("spec", "endpoints")):
            why = "Prometheus renames pod and namespace to exported_*, and pod names the exporter: joins find nothing."
            place = ("spec", "endpoints")
            yield found("VA1609", monitor, place, "DCGM is scraped without honorLabels", why, "honorLabels: true")
        if "kube-state-metrics" not in about:
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
    limit = monitor.at("spec", "sampleLimit")
    if isinstance(limit, int) and 0 < limit < _SAMPLES:
        why = f"A scrape of more samples fails as a whole, and an engine of vLLM exports several hundred, not {limit}."
        yield found("VA1604", monitor, ("spec", "sampleLimit"), "sampleLimit below an engine", why, "sampleLimit: 5000")
    intervals = {each.text("spec", "scrapeInterval") for each in fleet.objects.of_kind(*_SERVERS)}
    usual = (intervals.pop() or None) if len(intervals) == 1 else None
    for index, endpoint in enumerate(monitor.list("spec", _ENDPOINTS[monitor.kind])[:32]):
        loc: Loc = ("spec", _ENDPOINTS[monitor.kind], index)
        key = "scrape_interval" if at(endpoint, "scrape_interval") is not None else "interval"  # of VictoriaMetrics
        stated = at(endpoint, key) if at(endpoint, key) is not None else usual
        timing = Timing(stated, at(endpoint, "scrapeTimeout"), (*loc, key), (*loc, "scrapeTimeout"))
        yield from check_interval(fleet, monitor, timing, chosen, book)
        yield from _port(fleet, monitor, loc, endpoint, chosen)
        yield from _scheme(monitor, loc, endpoint, chosen)
        yield from _path(monitor, loc, endpoint, chosen)
        for part in _RELABELINGS:
            yield from check_relabelings(
                monitor, (*loc, part), at(endpoint, part), of_metrics=part.startswith("metric")
            )


def _port(
    fleet: Scene, monitor: Manifest, loc: Loc, endpoint: object, chosen: Sequence[ModelWorkload]
) -> Iterator[Result]:
    name = text_at(endpoint, "port")
    if not name:
        yield from _port_number(monitor, loc, endpoint, chosen)
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


def _port_number(monitor: Manifest, loc: Loc, endpoint: object, chosen: Sequence[ModelWorkload]) -> Iterator[Result]:
    """Find a number of a port that no container states, which the operator looks for."""
    key = "portNumber" if at(endpoint, "portNumber") is not None else "targetPort"
    wanted = at(endpoint, key)
    for workload in chosen:
        stated = {
            at(port, "containerPort")
            for pod in workload.pods
            for container in pod.containers[:32]
            for port in _list(at(container, "ports"))
        }
        if (
            monitor.kind == "PodMonitor"
            and isinstance(wanted, int)
            and wanted not in stated
            and not workload.pod.operator
        ):
            why = f"The operator looks for the number among the ports that containers of {workload.thing.key} state."
            message = f"no container of {workload.thing.key} states the port {wanted}"
            yield found("VA1610", monitor, (*loc, key), message, why, "the port of the engine")
            return


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _scheme(monitor: Manifest, loc: Loc, endpoint: object, chosen: Sequence[ModelWorkload]) -> Iterator[Result]:
    """Find engines that serve TLS alone, and are scraped without."""
    by_tls = text_at(endpoint, "scheme").lower() == "https"
    for workload in chosen:
        command, containers = workload.command, workload.pod.at("containers")
        beside = len(containers) if isinstance(containers, list) else 0
        if by_tls:
            if command is not None and command.understood and "ssl-certfile" not in command.options and beside == 1:
                why = (
                    f"{workload.thing.key} serves plain HTTP, and the scrape begins a TLS session: it fails each time."
                )
                yield found(
                    "VA1604", monitor, (*loc, "scheme"), "a plain engine is scraped by TLS", why, "scheme: http"
                )
                return
        elif command is not None and "ssl-certfile" in command.options and beside == 1:
            why = f"{workload.thing.key} serves TLS (--ssl-certfile), and the scrape is plain HTTP: it fails each time."
            message = "an engine with TLS is scraped without"
            yield found("VA1604", monitor, (*loc, "scheme"), message, why, "scheme: https, with a tlsConfig")
            return


def _path(monitor: Manifest, loc: Loc, endpoint: object, chosen: Sequence[ModelWorkload]) -> Iterator[Result]:
    """Find a scrape of an engine at a path where it has no metrics."""
    path, port = text_at(endpoint, "path"), text_at(endpoint, "port")
    engines = [each for each in chosen if each.command is not None and not each.pod.operator]
    if path in ("", "/metrics") or not engines:
        return
    own = engines[0].pod.of_container("ports")
    if monitor.kind in _BY_SERVICE or any(
        text_at(each, "name") == port for each in (own if isinstance(own, list) else [])
    ):
        why = f"The engine of {engines[0].thing.key} has its metrics at /metrics, whatever is in front of it."
        yield found("VA1604", monitor, (*loc, "path"), f"no metrics at {path[:100]}", why, "path: /metrics")


def _twice(fleet: Scene) -> Iterator[Result]:
    """Find a second monitor of the same pods."""
    if fleet.objects.of_kind("Prometheus"):
        return  # each may have monitors of its own
    first: dict[str, Manifest] = {}
    for kind in ("PodMonitor", "ServiceMonitor"):
        for monitor in fleet.objects.of_kind(kind):
            for workload in _selected(fleet, monitor):
                other = first.setdefault(workload.thing.key, monitor)
                if other is not monitor and _ends(other) & _ends(monitor):
                    why = f"{other.key} scrapes them already, and each series is there with two values of job."
                    message = f"the pods of {workload.thing.key} are scraped twice"
                    yield found("VA1608", monitor, ("spec", "selector"), message, why, "one monitor")
                    break


def _ends(monitor: Manifest) -> set[str]:
    """Return the paths and ports that a monitor asks."""
    endpoints = monitor.list("spec", _ENDPOINTS[monitor.kind])
    return {f"{text_at(each, 'path') or '/metrics'} {text_at(each, 'port')}" for each in endpoints}


def _ports(containers: object) -> Iterator[str]:
    for container in containers if isinstance(containers, list) else []:
        ports = at(container, "ports")
        for each in ports if isinstance(ports, list) else []:
            yield text_at(each, "name")


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
    running = facts.query(LOAD[0])
    if running is PENDING or running.error:
        return
    waiting = facts.query(LOAD[1])
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
