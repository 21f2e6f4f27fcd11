"""Scrape jobs that are no monitors: a ScrapeConfig, a prometheus.yml, annotations of pods; and who reads monitors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from autoscaler.config.check.manifests import at, mapping, text_at
from autoscaler.config.policy.parse import PolicyBook
from autoscaler.config.preflight.objects import Manifest, Result, found, not_checked, selects
from autoscaler.config.preflight.patterns import fits
from autoscaler.config.preflight.scene import Scene
from autoscaler.config.preflight.scraping import Timing, check_interval, check_relabelings
from autoscaler.config.preflight.workloads import EnginePod, ModelWorkload
from autoscaler.config.yaml import Loc, read_documents

_SELECTORS = {"PodMonitor": "podMonitor", "ServiceMonitor": "serviceMonitor", "ScrapeConfig": "scrapeConfig"}
_POD_LABEL = "__meta_kubernetes_pod_label_"
_PORT = 8000  # of vLLM, unless stated
_MAX_JOBS = 64


class ScrapeJob(NamedTuple):
    """A job of a ScrapeConfig or a prometheus.yml. Rules of relabelling have the keys of a monitor."""

    thing: Manifest
    timing: Timing
    roles: tuple[str, ...]  # of its discovery
    namespaces: tuple[str, ...]  # (): all
    rules: object
    rules_loc: Loc
    metric_rules: object
    metric_rules_loc: Loc


def check_scrape_jobs(fleet: Scene, book: PolicyBook) -> Iterator[Result]:
    for job in _jobs(fleet):
        chosen = [each for each in fleet.workloads if _scrapes(job, each)]
        if not chosen:
            continue
        yield from check_interval(fleet, job.thing, job.timing, chosen, book)
        yield from check_relabelings(job.thing, job.rules_loc, job.rules, of_metrics=False)
        yield from check_relabelings(job.thing, job.metric_rules_loc, job.metric_rules, of_metrics=True)
        yield from _unnamed(job)
    for workload in fleet.workloads:
        for pod in workload.pods:
            yield from _annotated(pod)


def _jobs(fleet: Scene) -> Iterator[ScrapeJob]:
    for thing in fleet.objects.of_kind("ScrapeConfig"):
        found_by = thing.list("spec", "kubernetesSDConfigs")[:_MAX_JOBS]
        timing = Timing(
            thing.at("spec", "scrapeInterval"),
            thing.at("spec", "scrapeTimeout"),
            ("spec", "scrapeInterval"),
            ("spec", "scrapeTimeout"),
        )
        yield ScrapeJob(
            thing,
            timing,
            tuple(text_at(each, "role").lower() for each in found_by),
            _namespaces(found_by),
            thing.at("spec", "relabelings"),
            ("spec", "relabelings"),
            thing.at("spec", "metricRelabelings"),
            ("spec", "metricRelabelings"),
        )
    for thing in fleet.objects.of_kind("ConfigMap"):
        for key, text in thing.texts("data").items():
            if "scrape_configs" in text and len(text) <= 1 << 18:
                for document in read_documents("", text)[0]:
                    yield from _jobs_of_file(thing, ("data", key), document.value)


def _jobs_of_file(thing: Manifest, loc: Loc, config: object) -> Iterator[ScrapeJob]:
    jobs = at(config, "scrape_configs")
    for job in jobs[:_MAX_JOBS] if isinstance(jobs, list) else []:
        discovered = at(job, "kubernetes_sd_configs")
        found_by = discovered[:_MAX_JOBS] if isinstance(discovered, list) else []
        interval = at(job, "scrape_interval") or at(config, "global", "scrape_interval") or "1m"
        timing = Timing(interval, at(job, "scrape_timeout"), loc, loc)
        roles = tuple(text_at(each, "role").lower() for each in found_by)
        rules, metric_rules = (_camel(at(job, name)) for name in ("relabel_configs", "metric_relabel_configs"))
        yield ScrapeJob(thing, timing, roles, _namespaces(found_by), rules, loc, metric_rules, loc)


def _namespaces(discovery: Sequence[object]) -> tuple[str, ...]:
    listed = [at(each, "namespaces", "names") for each in discovery]
    return tuple(str(name) for names in listed if isinstance(names, list) for name in names)


def _camel(rules: object) -> list[dict[str, object]]:
    """Return rules of a prometheus.yml with the keys of a monitor."""
    keys = {"source_labels": "sourceLabels", "target_label": "targetLabel"}
    listed = rules if isinstance(rules, list) else []
    return [{keys.get(key, key): value for key, value in mapping(rule).items()} for rule in listed[:_MAX_JOBS]]


def _scrapes(job: ScrapeJob, workload: ModelWorkload) -> bool:
    """Return whether a job takes the pods of a workload, as far as its rules on labels of pods and namespaces tell."""
    if not any(role in ("pod", "endpoints", "endpointslice") for role in job.roles):
        return False
    if job.namespaces and workload.thing.namespace not in job.namespaces:
        return False
    pod = workload.pod
    own = {f"{_POD_LABEL}{_plain(name)}": value for name, value in pod.labels.items()}
    own |= {f"__meta_kubernetes_pod_annotation_{_plain(name)}": value for name, value in pod.annotations.items()}
    own["__meta_kubernetes_namespace"] = workload.thing.namespace
    for rule in job.rules[:_MAX_JOBS] if isinstance(job.rules, list) else []:
        action, sources = text_at(rule, "action").lower(), at(rule, "sourceLabels")
        if action not in ("keep", "drop") or not isinstance(sources, list) or len(sources) != 1:
            continue
        name = str(sources[0])
        if not name.startswith((_POD_LABEL, "__meta_kubernetes_pod_annotation_")) and name not in own:
            continue
        if fits(text_at(rule, "regex") or "(.*)", own.get(name, "")) is (action == "drop"):
            return False
    return True


def _plain(name: str) -> str:
    return "".join(each if each.isalnum() else "_" for each in name)


def _unnamed(job: ScrapeJob) -> Iterator[Result]:
    """Find a job of pods that gives its series no label for the pod or the namespace."""
    rules = job.rules[:_MAX_JOBS] if isinstance(job.rules, list) else []
    if "pod" not in job.roles:
        return
    written = {text_at(rule, "targetLabel") for rule in rules}
    maps = any(text_at(rule, "action").lower() == "labelmap" for rule in rules)
    lost = [name for name in ("namespace", "pod") if name not in written]
    if lost and not maps:
        names = " and ".join(lost)
        why = f"Discovery gives only __meta_* labels, which are dropped: no series says its {names}."
        fix = f"{{sourceLabels: [__meta_kubernetes_{'pod_name' if lost[-1] == 'pod' else 'namespace'}], targetLabel:"
        message = f"the job writes no label {names}"
        yield found("VA1602", job.thing, job.rules_loc, message, why, f"{fix} {lost[-1]}}}")


def _annotated(pod: EnginePod) -> Iterator[Result]:
    """Find annotations for a scrape that name a port where nothing listens."""
    command, stated = pod.command, pod.annotations.get("prometheus.io/port", "")
    if pod.annotations.get("prometheus.io/scrape") != "true" or not re.fullmatch(r"[0-9]{1,5}", stated):
        return
    containers = pod.at("containers")
    ports = [
        at(port, "containerPort")
        for each in (containers if isinstance(containers, list) else [])
        for port in _list(at(each, "ports"))
    ]
    if command is None or not command.understood or int(stated) == command.whole("port", _PORT):
        return
    if int(stated) not in ports or len(_list(containers)) == 1:
        why = f"The engine listens on {command.whole('port', _PORT)}, and no other container on {stated}."
        loc = (*pod.template, "metadata", "annotations", "prometheus.io/port")
        fix = f'prometheus.io/port: "{command.whole("port", _PORT)}"'
        yield found("VA1610", pod.thing, loc, f"the scrape asks port {stated}, where nothing listens", why, fix)


def check_found_by_prometheus(fleet: Scene, monitor: Manifest, chosen: Sequence[ModelWorkload]) -> Iterator[Result]:
    """Find a monitor that no Prometheus of the operator selects."""
    key = _SELECTORS.get(monitor.kind, "")
    servers = fleet.objects.of_kind("Prometheus", "PrometheusAgent") if key else []
    if not servers or not chosen:
        return
    taken = [_takes(fleet, server, key, monitor) for server in servers]
    if any(each is None for each in taken):
        yield not_checked(monitor, (), "whether a Prometheus selects it", "the labels of its namespace are not known")
    elif not any(taken):
        wanted = " or ".join(_selector_text(server.at("spec", f"{key}Selector")) for server in servers[:3])
        why = f"The operator takes monitors by label, and {servers[0].name} wants {wanted}: nothing is scraped."
        message = f"no Prometheus selects this monitor, so {chosen[0].thing.key} has no metrics"
        labels = mapping(servers[0].at("spec", f"{key}Selector", "matchLabels"))
        fix = f"labels: {{{', '.join(f'{name}: {value}' for name, value in list(labels.items())[:4])}}}"
        yield found("VA1604", monitor, ("metadata", "labels"), message, why, fix)


def _takes(fleet: Scene, server: Manifest, key: str, monitor: Manifest) -> bool | None:
    """Return whether a Prometheus takes a monitor; None: the labels of the namespace are not known."""
    selector, spaces = server.at("spec", f"{key}Selector"), server.at("spec", f"{key}NamespaceSelector")
    if selector is None or not selects(selector, monitor.labels):
        return False
    if spaces is None:
        return server.namespace == monitor.namespace
    if not mapping(spaces):
        return True
    labels: Mapping[str, str] = {"kubernetes.io/metadata.name": monitor.namespace}
    space = fleet.objects.get("Namespace", "", monitor.namespace)
    if space is None and set(mapping(at(spaces, "matchLabels"))) - labels.keys():
        return None
    return selects(spaces, {**labels, **(space.labels if space is not None else {})})


def _selector_text(selector: object) -> str:
    labels = mapping(at(selector, "matchLabels"))
    return ", ".join(f"{name}={value}" for name, value in list(labels.items())[:4]) or "other labels"


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
