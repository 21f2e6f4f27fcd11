"""Pod templates: the container that runs the engine, the devices that a pod needs, and what the template insists on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

import msgspec

from autoscaler.adapters.kubernetes.api.objects import Container, PodSpec, Probe
from autoscaler.adapters.kubernetes.pods.command_line import Served, all_of, as_port, reported, served, states_model
from autoscaler.adapters.kubernetes.scheduling import Needs, Toleration, read_needs
from autoscaler.catalog.accelerators import BY_CLASS, ResourceKind, resource_kind
from autoscaler.catalog.engines import DEFAULT_ENGINE, DEFAULT_PORT, ENGINES
from autoscaler.config.findings import shown
from autoscaler.core.model.fleet import ServedNames

MOST_DEVICES = 1024  # of one container; no node has more
MOST_TOLD = 3  # resources that are named where they are not known
ALWAYS = "Always"  # restartPolicy of an init container that runs beside the others: a native sidecar
# Labels that say what accelerator a node has: the vendors' own first, then the clouds and provisioners.
PRODUCT_LABELS = (
    "nvidia.com/gpu.product",
    "amd.com/gpu.product-name",
    "beta.amd.com/gpu.product-name",
    "cloud.google.com/gke-accelerator",
    "cloud.google.com/gke-tpu-accelerator",
    "karpenter.k8s.aws/instance-gpu-name",
    "karpenter.k8s.aws/instance-accelerator-name",
    "eks.amazonaws.com/instance-gpu-name",
    "karpenter.azure.com/sku-gpu-name",
)

COMMAND_LIMIT = 16_384  # characters of a command line with its environment, beyond which it is not read for names
CommandLine = tuple[tuple[str, ...], bytes]  # words, and the environment as JSON
Resources = dict[str, float]  # devices by resource; NaN: not a number that can be read


class Facts(NamedTuple):
    """The facts that a pod template states."""

    gpus: float  # of one replica; NaN: unknown
    resource: str  # "" when there is no GPU, or more than one sort
    product: tuple[str, str] | None  # node label and value that the template insists on
    model: str
    port: int
    needs: Needs = Needs()  # of nodes
    unclear: str = ""  # why the number of GPUs is not known, in words; "": it is, or there is no template
    engine: str = ""  # by its program; "": not told
    states_port: bool = False  # else `port` is the usual one


NO_FACTS = Facts(math.nan, "", None, "", DEFAULT_PORT)


def read_template(spec: PodSpec) -> Facts:
    needs = _needs(spec)
    counts = {name: count for name, count in needs.items() if resource_kind(name) is ResourceKind.ACCELERATOR}
    unclear = _unclear(spec, counts, sorted(needs.keys() - counts.keys()))
    engine = engine_container(spec)
    stated = served(engine) if engine is not None else Served()
    port = stated.port or _open_port(engine)
    gpus = math.nan if unclear else float(sum(counts.values()))
    return Facts(
        gpus=gpus,
        needs=read_needs(spec, gpus),
        resource=next(iter(counts)) if len(counts) == 1 else "",
        product=_product(spec),
        model=stated.model,
        port=port or ENGINES[stated.engine or DEFAULT_ENGINE].port,
        unclear=unclear,
        engine=stated.engine,
        states_port=port > 0,
    )


def tolerating(facts: Facts, seen: frozenset[Toleration]) -> Facts:
    """Return the facts with the tolerations that pods of this template were seen to have."""
    more = seen.difference(facts.needs.tolerations)
    if not more:
        return facts
    return facts._replace(needs=facts.needs._replace(tolerations=(*facts.needs.tolerations, *sorted(more))))


def engine_container(spec: PodSpec) -> Container | None:
    """Return the container that runs the engine: the one with devices, else with a probe or a port of that name.

    Between equals the command line decides, and then the order. None: there is no container.
    """
    running = _running(spec)
    if len(running) < 2:
        return running[0] if running else None
    devices = [_device_rank(container) for container in running]
    most = max(devices)
    likely: list[Container] = [each for each, rank in zip(running, devices, strict=True) if rank == most]
    if len(likely) > 1:
        likely = [container for container in likely if _open_port(container)] or likely
    if len(likely) > 1:
        likely = [container for container in likely if states_model(container)] or likely
    return likely[0]


def _running(spec: PodSpec) -> list[Container]:
    """Return the containers that run side by side."""
    sidecars = [each for each in spec.init_containers or () if each.restart_policy == ALWAYS]
    return [*(spec.containers or ()), *sidecars]


def served_names(spec: PodSpec) -> ServedNames:
    """Return the names under which engines in a pod report their models, of all containers that state one."""
    engine = engine_container(spec)
    if engine is None:
        return ServedNames()
    others = (each for each in _running(spec) if each is not engine and states_model(each))
    commands = tuple(_command_line(each) for each in (engine, *others))
    return _served_names(commands) if all(map(bool, commands)) else ServedNames()


@lru_cache(maxsize=2048)  # the pods of a workload have one command line; 32 MB at most
def _served_names(commands: tuple[CommandLine, ...]) -> ServedNames:
    found = (reported(Container(command=list(words), env=msgspec.Raw(env))) for words, env in commands)
    return all_of([each or ServedNames() for each in found]) or ServedNames()


def _command_line(container: Container) -> CommandLine | None:
    """Return words and environment of a container; None: they are too long to be remembered."""
    words, env = (*(container.command or ()), *(container.args or ())), bytes(container.env)
    return (words, env) if sum(map(len, words)) + len(env) <= COMMAND_LIMIT else None


def _device_rank(container: Container) -> tuple[float, bool]:
    """Return how many devices a container requests that are known, and whether it may have others."""
    resources = container.resources
    if resources is None:
        return 0.0, False
    known, others = 0.0, bool(resources.claims)
    for name, count in {**(resources.limits or {}), **(resources.requests or {})}.items():
        sort = resource_kind(name)
        if sort is not ResourceKind.OTHER and count != "0":
            others = True
            known += _count(count) if sort is ResourceKind.ACCELERATOR and _count(count) > 0 else 0.0
    return known, others


def _open_port(container: Container | None) -> int:
    """Return the port that a container calls that of its metrics, that is probed, or that it calls http; 0: none."""
    if container is None:
        return 0
    named = {port.name: as_port(port.container_port) for port in container.ports or ()}
    probes = (container.readiness_probe, container.startup_probe, container.liveness_probe)
    candidates = (
        *(port for name, port in named.items() if "metrics" in name),
        *(_probed(probe, named) for probe in probes if probe is not None),
        *(port for name, port in named.items() if name.startswith("http") and not name.startswith("https")),
    )
    return next((port for port in candidates if port), 0)


def _probed(probe: Probe, named: Mapping[str, int]) -> int:
    action = probe.http_get or probe.tcp_socket
    return (as_port(action.port) or named.get(str(action.port), 0)) if action is not None else 0


def _requests(container: Container) -> Resources:
    """Return what a container requests of anything that may be an accelerator; what is only limited is requested."""
    resources = container.resources
    if resources is None:
        return {}
    return _devices({**(resources.limits or {}), **(resources.requests or {})})


def _devices(stated: Mapping[str, str | int | float]) -> Resources:
    found = {name: _count(count) for name, count in stated.items() if resource_kind(name) is not ResourceKind.OTHER}
    return {name: count for name, count in found.items() if count != 0}


def _count(stated: str | int | float) -> float:
    """Read a number of devices. Extended resources are whole numbers; NaN: anything else."""
    text = str(int(stated)) if isinstance(stated, float) and stated.is_integer() else str(stated)
    whole = text.isascii() and text.isdigit() and len(text) < 6
    return float(text) if whole and int(text) <= MOST_DEVICES else math.nan


def _needs(spec: PodSpec) -> Resources:
    """Return the devices that the scheduler sets aside for a pod: Kubernetes' effective request.

    Containers and native sidecars run together; before them each init container runs beside the sidecars above it.
    Source: Kubernetes' `PodRequests` (component-helpers).
    """
    sidecars: Resources = {}
    start: Resources = {}
    for container in spec.init_containers or ():
        need = _requests(container)
        if container.restart_policy == ALWAYS:
            sidecars = need = _sum((sidecars, need))
        else:
            need = _sum((sidecars, need))
        start = {name: _larger(start.get(name, 0.0), need.get(name, 0.0)) for name in start | need}
    together = _sum((sidecars, *(_requests(container) for container in spec.containers or ())))
    needs = {name: _larger(together.get(name, 0.0), start.get(name, 0.0)) for name in together | start}
    return _sum((needs, _devices(spec.overhead or {})))


def _sum(parts: Iterable[Resources]) -> Resources:
    total: Resources = {}
    for part in parts:
        for name, count in part.items():
            total[name] = total.get(name, 0.0) + count
    return total


def _larger(one: float, other: float) -> float:
    return math.nan if math.isnan(one) or math.isnan(other) else max(one, other)


def _unclear(spec: PodSpec, counts: Resources, strange: list[str]) -> str:
    """Say why the number of devices is not known; "": it is.

    What stands beside a known accelerator and is none itself is a network card, or a share of the same device.
    """
    if spec.resource_claims:
        return "the GPUs of a replica are not known: resourceClaims do not say how many"
    by_class = [name for name in strange if name.startswith(f"{BY_CLASS}/")]
    if doubtful := by_class or (strange if not counts else []):
        names = ", ".join(shown(name) for name in doubtful[:MOST_TOLD])
        return f"the GPUs of a replica are not known: {names} may be an accelerator, or not"
    unread = ", ".join(name for name, count in counts.items() if math.isnan(count))
    return f"the GPUs of a replica are not known: {unread} is no whole number up to {MOST_DEVICES}" if unread else ""


def _product(spec: PodSpec) -> tuple[str, str] | None:
    """Return the product label that every node for this template must have, if it says one."""
    demanded = dict(spec.node_selector or {})
    affinity = spec.affinity.node_affinity if spec.affinity else None
    terms = (affinity.required.node_selector_terms if affinity and affinity.required else None) or ()
    if len(terms) == 1:  # several terms are alternatives: then none of them must hold
        for expression in terms[0].match_expressions or ():
            if expression.operator == "In" and len(expression.values or ()) == 1:
                demanded.setdefault(expression.key, (expression.values or [""])[0])
    return next(((label, demanded[label]) for label in PRODUCT_LABELS if demanded.get(label)), None)
