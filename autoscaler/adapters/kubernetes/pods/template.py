"""Pod templates: the engine's container, the devices that a pod requests, and the nodes that it requires."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from autoscaler.adapters.kubernetes.api.pod_objects import Container, PodSpec, Probe, Variable
from autoscaler.adapters.kubernetes.pods.command_line import (
    CommandFacts,
    as_port,
    merge_names,
    read_command_line,
    read_served_names,
    states_model,
)
from autoscaler.adapters.kubernetes.pods.model_source import annotated_source, is_steered, stated_source
from autoscaler.adapters.kubernetes.pods.needs import (
    Needs,
    NodeExpression,
    PodToleration,
    conditions_on_nodes,
    group_needs,
    read_needs,
)
from autoscaler.adapters.kubernetes.pods.requests import (
    ALWAYS,
    MAX_DEVICES,
    ClaimRef,
    Requests,
    read_devices,
    referenced_claims,
    requested_devices,
)
from autoscaler.catalog.accelerators import (
    BY_CLASS,
    NO_DEVICES,
    SHARE_ANNOTATIONS,
    VISIBLE_DEVICES,
    ResourceKind,
    is_share,
    resource_kind,
)
from autoscaler.catalog.engines import DEFAULT_ENGINE, DEFAULT_PORT, ENGINES
from autoscaler.catalog.node_labels import PRODUCT_LABELS
from autoscaler.config.drain import GRACE_S, is_vllm_image, join_words, pre_stop_s, shutdown_timeout_s
from autoscaler.config.findings import UNREADABLE, shown
from autoscaler.config.weights.source import ModelSource
from autoscaler.core.model.fleet import ServedNames

CLAIMED = "resourceClaims do not say how many"
MESH_PORTS = (15020, 15021)
"""Ports of Istio's agent. It redirects probes of pods, and their annotations for Prometheus, to itself."""

MAX_CONDITIONS = 1000  # of a template on nodes: each is evaluated for each group of nodes
MAX_NAMED = 3  # unknown resources that a message names
COMMAND_LIMIT = 16_384  # characters; names and slots are not read from a longer command line with its environment
CommandLine = tuple[tuple[str, ...], bytes]  # words and the environment as JSON


class Facts(NamedTuple):
    """The facts that a pod template states about its pods."""

    gpus: float  # of one replica; NaN: unknown
    resource: str  # "": no GPU, or several resources
    product: tuple[str, str] | None  # node label and value that the template requires
    model: str
    port: int
    needs: Needs = Needs()  # of nodes
    unclear: str = ""  # why the number of GPUs is not known; "": it is known, or there is no template
    shared: str = ""  # why it may be a part of a GPU; "": nothing says so
    engine: str = ""  # found from its program; "": unknown
    states_port: bool = False  # False: `port` is the engine's default
    drain_s: float = math.nan  # for which the requests of a deleted pod may go on; NaN: unknown
    loads: str = ""  # model that the engine loads
    memory: tuple[tuple[str, str], ...] = ()  # its options that decide how much memory it needs
    priority_class: str = ""  # of Kubernetes; "": the template names none
    requests: tuple[tuple[str, float], ...] = ()  # of one pod, by resource: devices that may be accelerators
    claims: tuple[ClaimRef, ...] = ()  # of one pod
    loader: str = ""  # load format by which it loads them; "": its own
    source: str = ""  # of the weights that the engine loads, "hf://org/name@rev"; "": unknown
    steered: bool = False  # to nodes that hold them
    image: str = ""  # of the engine
    members: tuple[tuple[Facts, int], ...] = ()  # leader and workers, with the pods of each, if one has open requests

    @property
    def has_open_requests(self) -> bool:
        """Return whether other objects of the cluster tell which devices it requests."""
        kinds = (resource_kind(name) for name, _ in self.requests)
        return bool(self.claims or self.members) or any(kind is not ResourceKind.ACCELERATOR for kind in kinds)


NO_FACTS = Facts(math.nan, "", None, "", DEFAULT_PORT)


def read_template(spec: PodSpec, annotations: Mapping[str, str] | None = None) -> Facts:
    """Return the facts of a pod or its template. annotations: its own."""
    requests, claims = requested_devices(spec), referenced_claims(spec)
    counts = {name: count for name, count in requests.items() if resource_kind(name) is ResourceKind.ACCELERATOR}
    engine, stated = engine_container(spec), engine_facts(spec)
    port = stated.port or _open_port(engine)
    facts = Facts(
        gpus=math.nan,
        needs=read_needs(spec, math.nan),
        resource="",
        product=_product(spec),
        model=stated.model,
        port=port or ENGINES[stated.engine or DEFAULT_ENGINE].port,
        engine=stated.engine,
        states_port=port > 0,
        shared=_share(spec, requests, annotations or {}),
        drain_s=_drain_s(spec, engine, stated.engine),
        loads=stated.loads,
        memory=stated.memory,
        loader=stated.loader,
        priority_class=spec.priority_class_name or "",
        requests=tuple(sorted(requests.items())),
        claims=claims,
        source=str(stated_source(spec, stated) or ""),
        steered=is_steered(spec),
        image=engine.image if engine is not None else "",
    )
    if (conditions := conditions_on_nodes(spec)) > MAX_CONDITIONS:
        problem = f"its template has {conditions} conditions on nodes; allowed: {MAX_CONDITIONS}"
        return with_devices(facts._replace(needs=Needs(), product=None, requests=(), claims=()), {}, (), problem)
    return with_devices(facts, counts, sorted(requests.keys() - counts.keys()), CLAIMED if claims else "")


def with_devices(
    facts: Facts,
    counts: Requests,
    doubtful: Sequence[str] = (),
    problem: str = "",
    devices: tuple[NodeExpression, ...] = (),
) -> Facts:
    """Return the facts of a pod with the number of its devices.

    doubtful: names that may be accelerators, or not. problem: why the number is not known. devices: about those of the
    node.
    """
    problem = problem or facts.shared or _unclear(counts, doubtful)
    gpus = math.nan if problem else float(sum(counts.values()))
    return facts._replace(
        gpus=gpus,
        resource=next(iter(counts)) if len(counts) == 1 else "",
        needs=facts.needs._replace(largest=gpus, smallest=gpus, total=gpus, devices=devices),
        unclear=f"the GPUs of a replica are not known: {problem}" if problem else "",
    )


def group_facts(leader: Facts, workers: Sequence[tuple[Facts, int]]) -> Facts:
    """Return the facts of a replica that consists of a leader and workers. workers: with the number of pods of each."""
    present = [(worker, count) for worker, count in workers if count > 0]
    if not present:
        return leader
    members = (leader, 1), *present
    resources = {each.resource for each, _ in members if each.resource}
    needs = group_needs(leader.needs, [(worker.needs, count) for worker, count in present])
    gpus = leader.gpus + sum(count * worker.gpus for worker, count in present)
    return leader._replace(
        needs=needs if len(resources) <= 1 else Needs(),
        gpus=math.nan if math.isnan(gpus) else gpus,  # the same object, so that equal facts compare as equal
        resource=next(iter(resources)) if len(resources) == 1 else "",
        product=leader.product or next((worker.product for worker, _ in present if worker.product), None),
        unclear=next((each.unclear for each, _ in members if each.unclear), ""),
        members=members if any(each.has_open_requests for each, _ in members) else (),
    )


def add_tolerations(facts: Facts, of_pods: frozenset[PodToleration]) -> Facts:
    """Return the facts with the tolerations of existing pods added."""
    more = of_pods.difference(facts.needs.tolerations)
    if not more:
        return facts
    return facts._replace(needs=facts.needs._replace(tolerations=(*facts.needs.tolerations, *sorted(more))))


def read_model_source(spec: PodSpec, annotations: Mapping[str, str]) -> ModelSource | None:
    """Return the source of the weights that a pod loads; None: it is not known.

    annotations: of the pod, or of the template that makes it.
    """
    return annotated_source(annotations) or stated_source(spec, engine_facts(spec))


def engine_facts(spec: PodSpec) -> CommandFacts:
    """Return what the command line of the engine states."""
    engine = engine_container(spec)
    return read_command_line(engine) if engine is not None else CommandFacts()


def engine_container(spec: PodSpec) -> Container | None:
    """Return the container that runs the engine; None: the pod has no container.

    It is the container with the most devices. Among equals it is one with a probed port, or a port named for metrics or
    http. Then a command line that names a model decides, and then the order.
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


def _drain_s(spec: PodSpec, engine: Container | None, program: str) -> float:
    """Return for how long the requests of a deleted pod may go on; NaN: unknown.

    Only vLLM is known to end them before the grace period does. program: that the command line starts.
    """
    if engine is None:
        return math.nan
    stated = spec.termination_grace_period_seconds
    grace_s = GRACE_S if stated is None else float(max(stated, 0))
    is_vllm = program == "vllm" or (not program and not engine.command and is_vllm_image(engine.image))
    if not is_vllm:
        return grace_s if program else math.nan
    try:
        lifecycle = msgspec.json.decode(engine.lifecycle, type=dict[str, Any] | None) or {}
    except UNREADABLE:
        return math.nan
    command_line = join_words((*(engine.command or ()), *(engine.args or ())))
    drain_s = pre_stop_s(lifecycle.get("preStop")) + shutdown_timeout_s(command_line)
    return math.nan if math.isnan(drain_s) else min(grace_s, drain_s)


def _running(spec: PodSpec) -> list[Container]:
    """Return the containers and native sidecars."""
    sidecars = [each for each in spec.init_containers or () if each.restart_policy == ALWAYS]
    return [*(spec.containers or ()), *sidecars]


def served_names(spec: PodSpec) -> ServedNames:
    """Return the model names that the engines of a pod report, from the command lines of its containers."""
    engine = engine_container(spec)
    if engine is None:
        return ServedNames()
    others = (each for each in _running(spec) if each is not engine and states_model(each))
    commands = tuple(_command_line(each) for each in (engine, *others))
    return _served_names(commands) if all(map(bool, commands)) else ServedNames()


def stated_slots(spec: PodSpec) -> float:
    """Return the requests that a pod can run at once, as its command line states; NaN: it does not."""
    engine = engine_container(spec)
    command = _command_line(engine) if engine is not None else None
    return _stated_slots(command) if command is not None else math.nan


@lru_cache(maxsize=2048)
def _stated_slots(command: CommandLine) -> float:
    words, env = command
    return read_command_line(Container(command=list(words), env=msgspec.Raw(env))).slots or math.nan


@lru_cache(maxsize=2048)  # the pods of a workload have one command line; 32 MB at most
def _served_names(commands: tuple[CommandLine, ...]) -> ServedNames:
    found = (read_served_names(Container(command=list(words), env=msgspec.Raw(env))) for words, env in commands)
    return merge_names([each or ServedNames() for each in found]) or ServedNames()


def _command_line(container: Container) -> CommandLine | None:
    """Return the words and environment of a container; None: they are too long to be cached."""
    words, env = (*(container.command or ()), *(container.args or ())), bytes(container.env)
    return (words, env) if sum(map(len, words)) + len(env) <= COMMAND_LIMIT else None


def _device_rank(container: Container) -> tuple[float, bool]:
    """Return the number of known devices that a container requests, and whether it may have others."""
    resources = container.resources
    if resources is None:
        return 0.0, False
    known, others = 0.0, bool(resources.claims)
    for name, count in {**(resources.limits or {}), **(resources.requests or {})}.items():
        sort = resource_kind(name)
        if sort is not ResourceKind.OTHER and count != "0":
            others = True
            known += read_devices(count) if sort is ResourceKind.ACCELERATOR and read_devices(count) > 0 else 0.0
    return known, others


def _open_port(container: Container | None) -> int:
    """Return the port that is named for metrics, is probed, or is named http; 0: none."""
    if container is None:
        return 0
    named = {port.name: as_port(port.container_port) for port in container.ports or ()}
    probes = (container.readiness_probe, container.startup_probe, container.liveness_probe)
    candidates = (
        *(port for name, port in named.items() if "metrics" in name),
        *(_probed(probe, named) for probe in probes if probe is not None),
        *(port for name, port in named.items() if name.startswith("http") and not name.startswith("https")),
    )
    return next((port for port in candidates if port and port not in MESH_PORTS), 0)


def _probed(probe: Probe, named: Mapping[str, int]) -> int:
    action = probe.http_get or probe.tcp_socket
    return (as_port(action.port) or named.get(str(action.port), 0)) if action is not None else 0


def _share(spec: PodSpec, requests: Requests, annotations: Mapping[str, str]) -> str:
    """Return by what a pod shares GPUs, or has some that no resource counts; "": it does not."""
    if named := [name for name in SHARE_ANNOTATIONS if annotations.get(name)]:
        return f"the annotation {named[0]}: {shown(annotations[named[0]])} gives it a share of a GPU"
    if shares := sorted(filter(is_share, requests)):
        return f"{shown(shares[0])} gives it a share of a GPU"
    for container in _running(spec) if not requests and not spec.resource_claims else ():
        if VISIBLE_DEVICES.encode() in bytes(container.env):
            try:
                env = msgspec.json.decode(container.env, type=list[Variable] | None) or []
            except UNREADABLE:
                continue
            if any(each.name == VISIBLE_DEVICES and each.value not in NO_DEVICES for each in env):
                return f"{VISIBLE_DEVICES} gives it GPUs that it does not request"
    return ""


def _unclear(counts: Requests, unknown: Sequence[str]) -> str:
    """Return why the number of devices is not known; "": it is known.

    An unknown resource beside a known accelerator is a network card or a share of the same device, so it is ignored.
    """
    by_class = [name for name in unknown if name.startswith(f"{BY_CLASS}/")]
    if doubtful := by_class or (unknown if not counts else []):
        names = ", ".join(shown(name) for name in doubtful[:MAX_NAMED])
        return f"{names} may be an accelerator, or not"
    invalid = ", ".join(name for name, count in counts.items() if math.isnan(count))
    return f"{invalid} is no whole number up to {MAX_DEVICES}" if invalid else ""


def _product(spec: PodSpec) -> tuple[str, str] | None:
    """Return the product label that every node for this template must have; None: any product."""
    required = dict(spec.node_selector or {})
    affinity = spec.affinity.node_affinity if spec.affinity else None
    terms = (affinity.required.node_selector_terms if affinity and affinity.required else None) or ()
    if len(terms) == 1:  # several terms are alternatives, so none of them is required
        for expression in terms[0].match_expressions or ():
            if expression.operator == "In" and len(expression.values or ()) == 1:
                required.setdefault(expression.key, (expression.values or [""])[0])
    return next(((label, required[label]) for label in PRODUCT_LABELS if required.get(label)), None)
