"""Checks of the pod: its end, its start, its probes, its image, its volumes, its rollout and its budget."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from autoscaler.config.check.manifests import at, mapping, text_at
from autoscaler.config.drain import GRACE_S, pre_stop_s
from autoscaler.config.preflight import nodes
from autoscaler.config.preflight.facts import QueryFacts
from autoscaler.config.preflight.objects import Manifest, Result, found, not_checked, selects
from autoscaler.config.preflight.past_readings import AnswerTimes, PastReadings
from autoscaler.config.preflight.probes import check_probes
from autoscaler.config.preflight.scene import Scene
from autoscaler.config.preflight.workloads import KSERVE, EnginePod, ModelWorkload, quantity
from autoscaler.config.yaml import Loc

MARGIN_S = 10.0  # between the end of the drain and the kill
_MOVES = re.compile(
    r"(^|[-_.])(latest|nightly)$|^(latest|nightly)[-_.]([a-z]+|aarch64|arm64|x86_64|amd64|cu\d{2,4})$|^(main|master|dev|develop|edge|stable|rolling|head|release)$"
)
"""Tags that a registry moves to the next build."""
_SHM_BYTES = 256.0 * 2**20
_RARE = 0.001  # share of answers that may be cut off without a finding
_MANY = 0.01
_PROBES_BY = ("KubeRay", KSERVE)  # operators that write probes and volumes of their own


def check_pods(fleet: Scene, facts: QueryFacts) -> Iterator[Result]:
    history = PastReadings(facts)
    for workload in fleet.workloads:
        for pod in workload.pods:
            for index in range(min(len(pod.containers), 32)):
                place = (*pod.spec, "containers", index) if pod.at("containers") else pod.container
                yield from _image(pod, place)
            yield from _host_port(fleet, workload, pod)
            if pod.operator != "KubeRay":
                yield from _shared_memory(pod)
                yield from _weights_in_layer(pod)
        pod = workload.pod
        if pod.operator not in _PROBES_BY and not workload.is_job:
            yield from _end(workload, pod, history)
            yield from check_probes(workload, pod, history)
        yield from _rollout(fleet, workload)
    for budget in fleet.objects.of_kind("PodDisruptionBudget"):
        yield from _budget(fleet, budget)


def _image(pod: EnginePod, place: Loc) -> Iterator[Result]:
    image = pod.thing.at(*place, "image")
    if not isinstance(image, str) or not image or "@sha256:" in image or "$" in image or "{{" in image:
        return
    tag = image.rpartition("/")[2].partition(":")[2]
    if not tag or _MOVES.search(tag):
        why = "Replicas of one workload can run different versions, whose metrics, defaults and starts differ."
        if tag in ("", "latest"):
            why += " imagePullPolicy is Always for it, so each start asks the registry."
        base = image if not tag else image.rpartition(":")[0]
        yield found(
            "VA1408",
            pod.thing,
            (*place, "image"),
            f"the image {image[:200]} has no fixed version",
            why,
            f"image: {base}:<version>",
            "" if place == pod.container else "note",
        )


def _host_port(fleet: Scene, workload: ModelWorkload, pod: EnginePod) -> Iterator[Result]:
    severity = "" if fleet.most(workload)[0] > 1 else "note"  # a rollout alone starts a second one
    why = "A port of a node can be bound once, so a second replica finds no place on the same node."
    if pod.at("hostNetwork") is True:
        yield found(
            "VA1412",
            pod.thing,
            (*pod.spec, "hostNetwork"),
            "the pods use the ports of their node",
            why,
            "hostNetwork: false",
            severity,
        )
        return
    for number, container in enumerate(pod.containers[:32]):
        ports = at(container, "ports")
        for index, each in enumerate(ports if isinstance(ports, list) else []):
            if at(each, "hostPort"):
                place = (*pod.spec, "containers", number) if pod.at("containers") else pod.container
                loc = (*place, "ports", index, "hostPort")
                message = f"the host port {str(at(each, 'hostPort'))[:20]} allows one replica per node"
                yield found("VA1412", pod.thing, loc, message, why, "remove the line", severity)


def _shared_memory(pod: EnginePod) -> Iterator[Result]:
    command = pod.command
    if command is None or pod.operator == KSERVE or pod.at("hostIPC") is True:
        return
    if command.whole("tensor-parallel-size") * command.whole("pipeline-parallel-size") < 2:
        return
    mounts = pod.of_container("volumeMounts")
    paths = [text_at(each, "mountPath").rstrip("/") for each in (mounts if isinstance(mounts, list) else [])]
    if "/dev/shm" in paths:
        yield from _small_memory(pod, mounts, paths.index("/dev/shm"))
        return
    why = (
        "The ranks pass data through /dev/shm, which a container gets with 64 MiB unless memory is mounted there: too"
        " little for NCCL."
    )
    fix = "volumes: [{name: shm, emptyDir: {medium: Memory, sizeLimit: 10Gi}}], mounted at /dev/shm"
    yield found("VA1409", pod.thing, (*pod.spec, "volumes"), "no shared memory for tensor parallel", why, fix)


def _small_memory(pod: EnginePod, mounts: object, index: int) -> Iterator[Result]:
    """Find a volume at /dev/shm that is on the node's disk, or hardly larger than what a container gets without."""
    name = text_at(mounts[index], "name") if isinstance(mounts, list) else ""
    volumes = pod.at("volumes")
    for number, each in enumerate(volumes if isinstance(volumes, list) else []):
        empty = at(each, "emptyDir")
        if text_at(each, "name") != name or empty is None:
            continue
        limit = quantity(at(empty, "sizeLimit"))
        if text_at(empty, "medium") == "Memory" and not limit < _SHM_BYTES:
            continue
        on_disk = text_at(empty, "medium") != "Memory"
        why = "The ranks pass data through it, " + (
            "and it is on the node's disk." if on_disk else "and NCCL needs more."
        )
        loc: Loc = (*pod.spec, "volumes", number, "emptyDir")
        fix = "emptyDir: {medium: Memory, sizeLimit: 10Gi}"
        message = "/dev/shm is no memory" if on_disk else f"/dev/shm has {at(empty, 'sizeLimit')}"
        yield found("VA1409", pod.thing, loc, message, why, fix)


def _weights_in_layer(pod: EnginePod) -> Iterator[Result]:
    command = pod.command
    if command is None or pod.operator:
        return
    folder = command.options.get("download-dir")
    path = command.model if command.model.startswith("/") or folder is None else folder.value
    if not path.startswith("/"):
        return
    mounts = pod.of_container("volumeMounts")
    mounted = [text_at(each, "mountPath").rstrip("/") for each in (mounts if isinstance(mounts, list) else [])]
    if any(mount in ("", path) or path.startswith(f"{mount}/") for mount in mounted):
        return
    message, loc = "the weights lie in the container's layer", command.model_loc
    why = "No volume covers the path, so the weights are part of the image: each new node pulls them before it starts."
    if path != command.model and folder is not None:
        message, loc = "the weights are loaded into the container's layer", folder.loc
        why = "No volume covers --download-dir: each container loads the weights again, and loses them with its end."
    yield found("VA1413", pod.thing, loc, message, why, f"a volume mounted above {path[:100]}")


def _end(workload: ModelWorkload, pod: EnginePod, history: PastReadings) -> Iterator[Result]:
    thing, command = workload.thing, pod.command
    place: Loc = (*pod.spec, "terminationGracePeriodSeconds")
    stated = pod.at("terminationGracePeriodSeconds")
    grace_s = GRACE_S if stated is None else quantity(stated)
    hook_s = pre_stop_s(pod.of_container("lifecycle", "preStop"))
    if math.isnan(grace_s):
        yield not_checked(thing, place, "grace period", "not a number")
        return
    shutdown_s = math.nan
    if command is not None and command.understood and command.other is None:
        option = command.options.get("shutdown-timeout")
        shutdown_s = 0.0 if option is None else command.number("shutdown-timeout") or 0.0
        pooling = {"runner", "task"} & command.options.keys()
        if shutdown_s + hook_s == 0:
            why = (
                "vLLM aborts running requests at SIGTERM unless --shutdown-timeout is above 0; a longer grace alone"
                " does not help."
            )
            fix = f"add --shutdown-timeout {max(5, int(grace_s) - 15)}, and a preStop sleep of some seconds"
            severity = "note" if pooling else ""
            yield found("VA1402", thing, command.args_loc, "requests are aborted when the pod ends", why, fix, severity)
        elif grace_s < shutdown_s + hook_s:
            why = (
                f"preStop and --shutdown-timeout take {shutdown_s + hook_s:g} s, and the kubelet kills the pod after"
                f" {grace_s:g} s."
            )
            fix = f"terminationGracePeriodSeconds: {math.ceil(shutdown_s + hook_s + MARGIN_S)}"
            yield found("VA1403", thing, place, "the grace ends before the drain does", why, fix)
    if command is None:
        return
    lengths = history.lengths(workload)
    if lengths is None:
        return
    if not lengths.total:
        reason = lengths.error or "the server has no answers of this workload"
        yield not_checked(thing, place, "grace against the longest answers", reason)
        return
    yield from _cut_off(workload, lengths, grace_s, hook_s, shutdown_s)


def _cut_off(
    workload: ModelWorkload, lengths: AnswerTimes, grace_s: float, hook_s: float, shutdown_s: float
) -> Iterator[Result]:
    thing, pod = workload.thing, workload.pod
    longest = lengths.longest_s
    wanted = f"{longest + 30:.0f}" if math.isfinite(longest) else "..."
    cut = lengths.longer(grace_s)
    if cut > _RARE:
        why = (
            f"{cut:.1%} of {lengths.total:,.0f} answers took longer than {grace_s:g} s. Each scale-in, rollout and"
            " drain cuts such answers off."
        )
        loc = (*pod.spec, "terminationGracePeriodSeconds")
        severity = "error" if cut > _MANY else "warning"
        message = f"the grace of {grace_s:g} s is shorter than the longest answers"
        yield found("VA1401", thing, loc, message, why, f"terminationGracePeriodSeconds: {wanted}", severity)
        return
    drain_s = hook_s + shutdown_s
    cut = lengths.longer(drain_s) if drain_s > 0 else 0.0
    if cut > _RARE and pod.command is not None and "shutdown-timeout" in pod.command.options:
        loc = pod.command.options["shutdown-timeout"].loc
        why = (
            f"{cut:.1%} of {lengths.total:,.0f} answers took longer than preStop and --shutdown-timeout, {drain_s:g}"
            " s; the engine aborts them."
        )
        fix = f"--shutdown-timeout {longest:.0f}" if math.isfinite(longest) else "a longer --shutdown-timeout"
        yield found(
            "VA1414",
            thing,
            loc,
            "the engine ends before the longest answers do",
            why,
            fix,
            "error" if cut > _MANY else "warning",
        )


def _share(value: object, count: int, default: str, *, up: bool) -> int:
    """Return a number of pods of a share: 25%, 1."""
    stated = default if value is None else value
    if isinstance(stated, str) and stated.endswith("%"):
        amount = quantity(stated[:-1]) / 100 * count
        return 0 if math.isnan(amount) else math.ceil(amount - 1e-9) if up else math.floor(amount + 1e-9)
    number = quantity(stated)
    return 0 if math.isnan(number) else int(number)


def _rollout(fleet: Scene, workload: ModelWorkload) -> Iterator[Result]:
    thing, pod = workload.thing, workload.pod
    if thing.kind not in ("Deployment", "Rollout") or not pod.devices or pod.operator:
        return
    strategy = thing.map("spec", "strategy")
    if strategy.get("type") == "Recreate":
        return
    way = next((name for name in ("blueGreen", "canary", "rollingUpdate") if name in strategy), "")
    update = mapping(strategy.get(way))
    now = max(1, fleet.least(workload) if workload.replicas is None else workload.replicas)
    most = max(now, fleet.most(workload)[0])
    surge, gone = (
        _share(update.get("maxSurge"), most, "25%", up=True),
        _share(update.get("maxUnavailable"), now, "25%", up=False),
    )
    if way == "blueGreen":  # the new replicas stand beside all of the old ones
        surge, gone = _share(update.get("previewReplicaCount"), most, "100%", up=True), 0
    loc: Loc = ("spec", "strategy", way) if update else ("spec", "strategy")
    if gone > 0 or surge == 0:
        return
    resource, need = nodes.resource_of(pod), sum(pod.devices.values())
    places = nodes.nodes_for(fleet, pod)
    if not places:
        yield not_checked(thing, loc, "rollout against free GPUs", "no node of the pod is known: no --cluster")
        return
    if nodes.can_grow(fleet) or not any(
        quantity(node.at("status", "allocatable", resource)) >= need for node in places
    ):
        return  # what fits no node at all is told where nodes are checked
    total = sum(quantity(node.at("status", "allocatable", resource)) for node in places)
    names = {node.name for node in places}
    used = _used(fleet, resource, names)
    if math.isnan(used):
        used = min(total, sum(_stated_use(fleet, other, resource, names) for other in fleet.workloads))
    fix = f"{'rollingUpdate' if thing.kind == 'Deployment' else 'canary'}: {{maxSurge: 0, maxUnavailable: 1}}"
    if total - used < need:
        stays = (
            "The old pods stay until all new ones are ready"
            if way == "blueGreen"
            else "maxUnavailable 0 lets no old pod go"
        )
        why = (
            f"A new pod needs {need:g} of {resource}, and {used:g} of {total:g} are taken; nothing can add a node."
            f" {stays}, so the rollout stands until its progress deadline is over, and after it."
        )
        yield found("VA1410", thing, loc, "a rollout needs a free GPU, and there can be none", why, fix)
    elif (most + surge) * need > total:
        why = (
            f"At {most} replicas a rollout wants {(most + surge) * need:g} of {resource}, and the nodes have"
            f" {total:g}. New pods come as GPUs become free, and none at all once others take them."
        )
        yield found("VA1410", thing, loc, "a rollout needs more GPUs than there are", why, fix, "warning")


def _used(fleet: Scene, resource: str, nodes_named: set[str]) -> float:
    """Return what pods use of a resource on some nodes; NaN: no pod is known."""
    pods = fleet.objects.of_kind("Pod")
    if not pods:
        return math.nan
    used = 0.0
    for each in pods:
        if each.text("spec", "nodeName") in nodes_named and each.text("status", "phase") not in (
            "Succeeded",
            "Failed",
        ):
            for container in each.list("spec", "containers"):
                amount = quantity(at(container, "resources", "limits", resource))
                used += 0.0 if math.isnan(amount) else amount
    return used


def _stated_use(fleet: Scene, other: ModelWorkload, resource: str, names: set[str]) -> float:
    """Return what a workload takes by its manifest, if its nodes are among some."""
    amount = other.pod.devices.get(resource, 0.0)
    if not amount or not names & {node.name for node in nodes.nodes_for(fleet, other.pod)}:
        return 0.0
    return amount * (fleet.least(other) if other.replicas is None else other.replicas)


def _budget(fleet: Scene, budget: Manifest) -> Iterator[Result]:
    selector = budget.at("spec", "selector")
    if selector is None:
        return  # it selects no pod
    chosen = [each for each in fleet.in_namespace(budget.namespace) if selects(selector, each.pod.labels)]
    if not chosen:
        return
    least = sum(fleet.least(each) for each in chosen)
    most = sum(fleet.most(each)[0] for each in chosen)
    if any(each.replicas is not None and not fleet.is_autoscaled(each) for each in chosen):
        least = most = sum(1 if each.replicas is None else each.replicas for each in chosen)
    available, unavailable = budget.at("spec", "minAvailable"), budget.at("spec", "maxUnavailable")
    why = "so no drain of a node ever gets through; upgrades of the nodes wait, or end by force."
    fix = "maxUnavailable: 1"
    if unavailable is not None and _share(unavailable, max(most, 1), "1", up=True) == 0:
        yield found(
            "VA1411",
            budget,
            ("spec", "maxUnavailable"),
            "the budget blocks every eviction",
            f"No pod may be unavailable, {why}",
            fix,
        )
    elif available is not None and most > 0:
        if _share(available, most, "0", up=True) >= most:
            text = f"{available} of {most} pods must be available, {why}"
            yield found(
                "VA1411",
                budget,
                ("spec", "minAvailable"),
                "the budget blocks every eviction",
                text,
                f"{fix} (in place of minAvailable)",
            )
        elif 0 < least <= _share(available, least, "0", up=True):
            text = f"At its minimum of {least} all pods must be available, {why}"
            yield found(
                "VA1411",
                budget,
                ("spec", "minAvailable"),
                "the budget blocks evictions at the minimum",
                text,
                f"{fix} (in place of minAvailable)",
                "note",
            )
