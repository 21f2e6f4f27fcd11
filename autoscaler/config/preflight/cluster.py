"""Checks against the cluster: shared devices, spot, consolidation, quotas, priorities, places."""

from __future__ import annotations

import math
from collections.abc import Iterator

from autoscaler.catalog.node_labels import INSTANCE_LABELS, NODE_POOL_LABELS
from autoscaler.config.annotations import PREFIX
from autoscaler.config.check.manifests import at
from autoscaler.config.preflight import nodes
from autoscaler.config.preflight.objects import Manifest, Result, found, not_checked, selects
from autoscaler.config.preflight.quotas import amount_text, check_queues, check_quotas
from autoscaler.config.preflight.scene import Scene
from autoscaler.config.preflight.workloads import EnginePod, ModelWorkload, quantity
from autoscaler.config.yaml import Loc, read_documents

REALTIME = "realtime"
DEFAULT_UTILIZATION = 0.92
NO_DISRUPTION = "karpenter.sh/do-not-disrupt"
_SPOT_NOTICE_S = 120.0
_ALIKE = (*NODE_POOL_LABELS, *INSTANCE_LABELS)
_BROKERS = frozenset(
    {"rabbitmq", "kafka", "apache-kafka", "aws-sqs-queue", "azure-servicebus", "azure-queue", "gcp-pubsub", "redis"}
    | {"redis-streams", "nats-jetstream", "activemq", "pulsar", "postgresql", "mysql"}
)
_NO_CLUSTER = "no node is known: no --cluster"


def check_cluster(fleet: Scene) -> Iterator[Result]:
    for workload in fleet.workloads:
        if not workload.needs_devices:
            continue
        yield from _shared(fleet, workload)
        yield from _spot(fleet, workload)
        yield from _consolidation(fleet, workload)
        yield from check_quotas(fleet, workload)
        yield from check_queues(fleet, workload)
        yield from _place(fleet, workload)
    yield from _priorities(fleet)
    for thing in fleet.objects.of_kind("RayService"):
        yield from _ray(thing)


def _selector_loc(pod: EnginePod) -> Loc:
    if pod.at("nodeSelector"):
        return (*pod.spec, "nodeSelector")
    if pod.at("affinity", "nodeAffinity"):
        return (*pod.spec, "affinity", "nodeAffinity")
    return (*pod.spec, "nodeSelector")


def _shared(fleet: Scene, workload: ModelWorkload) -> Iterator[Result]:
    pod = workload.pod
    ways = nodes.sharers(fleet, pod)
    realtime = workload.policy == REALTIME
    if not ways:
        if realtime:
            yield not_checked(workload.thing, _selector_loc(pod), "sharing of the device", _NO_CLUSTER)
        return
    shared = [(way, count) for way, count in ways if way]
    if not shared:
        return
    way, count = max(shared, key=lambda each: each[1])
    all_shared = len(shared) == len(ways)
    if realtime:
        loc = _selector_loc(pod) if pod.at("nodeSelector") else (*pod.container, "resources", "limits")
        why = (
            f"The device is handed out {count or 'several'} times ({way}). Whatever else runs there takes time away,"
            " which no number of replicas on such nodes mends, and there is no isolation of faults."
        )
        severity = "" if all_shared else "warning"
        fix = "nodes without sharing, or MIG slices, for this workload"
        yield found(
            "VA1501", workload.thing, loc, f"a realtime workload on a device shared by {way}", why, fix, severity
        )
    command = pod.command
    if way != "time-slicing" or count < 2 or command is None or not all_shared:
        return
    stated = command.options.get("gpu-memory-utilization")
    share = command.number("gpu-memory-utilization") if stated is not None else DEFAULT_UTILIZATION
    if share is not None and command.understood and share * count > 1.02:
        loc = stated.loc if stated is not None else command.args_loc
        why = (
            f"It is a share of the physical card: {share:g} leaves no room for the {count - 1} others, and whoever"
            " starts second ends."
        )
        fix = f"--gpu-memory-utilization={math.floor(90 / count) / 100:g}, if the model fits there"
        yield found("VA1502", workload.thing, loc, f"claims {share:.0%} of a card that {count} pods share", why, fix)


def _spot(fleet: Scene, workload: ModelWorkload) -> Iterator[Result]:
    thing, pod = workload.thing, workload.pod
    kinds = nodes.capacity_types(fleet, pod)
    if kinds != {"spot"}:
        return
    grace = pod.at("terminationGracePeriodSeconds")
    grace_s = quantity(grace) if grace is not None else 30.0
    if grace_s > _SPOT_NOTICE_S:
        why = (
            f"A spot node is taken two minutes after its notice (30 s on some clouds), and the grace is {grace_s:g} s."
        )
        loc: Loc = (*pod.spec, "terminationGracePeriodSeconds")
        yield found(
            "VA1514",
            thing,
            loc,
            "the grace is longer than the notice of spot nodes",
            why,
            "terminationGracePeriodSeconds: 110",
        )
    if workload.is_batch or _retried(fleet, workload) or _has_floor(fleet, workload):
        return
    least = fleet.least(workload)
    why = (
        f"Every replica is on spot, and the minimum is {least}. One reclaim leaves none for a whole cold start, or"
        " for as long as spot is sold out."
    )
    fix = "on-demand nodes for the minimum: a second pool or workload with capacity type on-demand, and a minimum of 2"
    yield found("VA1503", thing, _selector_loc(pod), "spot without a floor on other nodes", why, fix)


def _retried(fleet: Scene, workload: ModelWorkload) -> bool:
    """Return whether the work waits in a queue that delivers it again: all triggers are those of brokers."""
    triggers = [trigger for each in fleet.of_workload(workload) for trigger in each.triggers]
    return bool(triggers) and all(trigger.type in _BROKERS for trigger in triggers)


def _has_floor(fleet: Scene, workload: ModelWorkload) -> bool:
    """Return whether another workload of the same service or model runs on other nodes."""
    service = workload.thing.annotations.get(f"{PREFIX}service", "")
    for other in fleet.in_namespace(workload.thing.namespace):
        same = service and other.thing.annotations.get(f"{PREFIX}service") == service
        same = same or (workload.model_label and other.model_label == workload.model_label)
        if (
            other is not workload
            and same
            and nodes.capacity_types(fleet, other.pod) != {"spot"}
            and fleet.least(other) > 0
        ):
            return True
    return False


def _consolidation(fleet: Scene, workload: ModelWorkload) -> Iterator[Result]:
    pod = workload.pod
    if workload.is_batch or pod.annotations.get(NO_DISRUPTION) == "true" or pod.operator:
        return
    pools = nodes.pools_for(fleet, pod)
    moving = [pool for pool in pools if _consolidates(pool)]
    if not moving or len(moving) < len(pools):
        return
    guarded = _guarding(fleet, workload)
    if guarded == "blocks":
        return
    least = fleet.least(workload)
    severity = "" if least <= 1 else "note" if guarded else "warning"
    after = moving[0].text("spec", "disruption", "consolidateAfter") or "0s"
    why = (
        f"With WhenEmptyOrUnderutilized Karpenter drains a node of {moving[0].name} after {after} of calm if its pods"
        " fit elsewhere. "
        + ("A disruption budget lets one pod go at a time. " if guarded else "No disruption budget stands in the way. ")
        + "The replica that goes needs a cold start."
    )
    loc: Loc = (*pod.template, "metadata", "annotations")
    fix = f'annotations: {{{NO_DISRUPTION}: "true"}} on the pod template, or consolidationPolicy: WhenEmpty'
    yield found("VA1504", workload.thing, loc, "consolidation may take a serving node", why, fix, severity)


def _consolidates(pool: Manifest) -> bool:
    disruption = pool.map("spec", "disruption")
    policy = disruption.get("consolidationPolicy") or "WhenEmptyOrUnderutilized"
    if policy not in ("WhenEmptyOrUnderutilized", "WhenUnderutilized") or disruption.get("consolidateAfter") == "Never":
        return False
    budgets = disruption.get("budgets")
    for each in budgets if isinstance(budgets, list) else []:
        reasons = at(each, "reasons")
        if str(at(each, "nodes")) in ("0", "0%") and not at(each, "schedule"):
            return isinstance(reasons, list) and bool(reasons) and "Underutilized" not in reasons
    return True


def _guarding(fleet: Scene, workload: ModelWorkload) -> str:
    """Return how a disruption budget guards a workload: it "blocks" evictions, or "limits" them; "": there is none."""
    for budget in fleet.objects.of_kind("PodDisruptionBudget"):
        selector = budget.at("spec", "selector")
        if budget.namespace != workload.thing.namespace or selector is None:
            continue
        if not selects(selector, workload.pod.labels):
            continue
        unavailable, available = budget.at("spec", "maxUnavailable"), budget.at("spec", "minAvailable")
        least = fleet.least(workload)
        if unavailable in (0, "0", "0%") or available == "100%":
            return "blocks"
        return "blocks" if isinstance(available, int) and available >= least else "limits"
    return ""


def _place(fleet: Scene, workload: ModelWorkload) -> Iterator[Result]:
    pod = workload.pod
    if not fleet.objects.of_kind("Node") and not nodes.pools_for(fleet, pod):
        yield not_checked(workload.thing, _selector_loc(pod), "nodes that can hold a replica", _NO_CLUSTER)
        return
    places = nodes.nodes_for(fleet, pod)
    if nodes.can_grow(fleet):
        yield from _pool_limit(fleet, workload)
        if not places or not any(key in pod.node_selector for key in _ALIKE):
            return  # the nodes of one pool or type are alike, those of others are not known
    loc: Loc = (*pod.container, "resources", "limits")
    if not places:
        resource = nodes.resource_of(pod)
        wanted = " and ".join(f"{key}={value}" for key, value in list(pod.node_selector.items())[:4])
        why = f"No node has {resource}" + (f" and the labels {wanted}" if wanted else "") + ", and nothing can add one."
        if tainted := nodes.labelled(fleet, pod):
            why = (
                f"The pod does not tolerate the taint {nodes.untolerated(tainted[0], pod)[:100]} of {tainted[0].name}."
            )
        where = _selector_loc(pod) if pod.at("nodeSelector") else loc
        yield found(
            "VA1507",
            workload.thing,
            where,
            "no node can hold one replica",
            why,
            "a node selector that nodes have, or such nodes",
        )
        return
    needs = {**pod.devices, "cpu": pod.need("cpu"), "memory": pod.need("memory")}
    for resource, need in needs.items():
        largest = max((quantity(node.at("status", "allocatable", resource)) for node in places), default=math.nan)
        if need > largest:
            why = (
                f"A replica needs {amount_text(need, resource)} of {resource}, and the largest node has"
                f" {amount_text(largest, resource)}; nothing can add a larger one."
            )
            yield found(
                "VA1507",
                workload.thing,
                loc,
                "no node can hold one replica",
                why,
                f"at most {amount_text(largest, resource)} of {resource}",
            )
            return


def _pool_limit(fleet: Scene, workload: ModelWorkload) -> Iterator[Result]:
    pools = nodes.pools_for(fleet, workload.pod)
    if pools and not nodes.nodes_for(fleet, workload.pod):
        taints = [nodes.untolerated(pool, workload.pod) for pool in pools]
        if all(taints):
            why = f"The pod does not tolerate the taint {taints[0][:100]} of the nodes of {pools[0].name}."
            message, fix = (
                "no node of the pool takes the pod",
                f"tolerations: [{{key: {taints[0][:100]}, operator: Exists}}]",
            )
            yield found("VA1507", workload.thing, _selector_loc(workload.pod), message, why, fix)
            return
    most, owner, loc = fleet.most(workload)
    counts = [nodes.most_devices(pool) for pool in pools]
    needed = sum(workload.pod.devices.values())
    if counts and needed > max(counts):
        names = ", ".join(pool.name for pool in pools[:3])
        why = (
            f"A replica needs {needed:g} devices of one node, and the instances of {names} have at most"
            f" {max(counts):g}."
        )
        place = (*workload.pod.container, "resources", "limits")
        fix = "a pool with larger instances, or fewer devices"
        yield found("VA1507", workload.thing, place, "no node of the pool can hold one replica", why, fix)
        return
    for resource, need in workload.pod.devices.items():
        limits = [quantity(pool.at("spec", "limits", resource)) for pool in pools]
        if limits and not any(math.isnan(each) for each in limits) and most * need > sum(limits):
            fits = math.floor(sum(limits) / need)
            names = ", ".join(pool.name for pool in pools[:3])
            why = (
                f"{most} replicas need {most * need:g} of {resource}, and {names} may have {sum(limits):g}: the"
                " replicas above stay Pending."
            )
            yield found(
                "VA1515",
                owner,
                loc,
                f"the pool's limit holds {fits} of {most} replicas",
                why,
                f"{loc[-1]}: {fits}, or a larger limit",
            )


def _priorities(fleet: Scene) -> Iterator[Result]:
    """Compare the priority classes of realtime and batch workloads."""
    classes = {each.name: each for each in fleet.objects.of_kind("PriorityClass")}
    if not classes:
        for workload in fleet.workloads:
            if workload.policy == REALTIME and workload.pod.at("priorityClassName"):
                yield not_checked(
                    workload.thing,
                    (*workload.pod.spec, "priorityClassName"),
                    "priority",
                    "the PriorityClass is not known: no --cluster",
                )
        return
    default = next((each for each in classes.values() if each.at("globalDefault") is True), None)

    def of(workload: ModelWorkload) -> tuple[float, bool, Manifest | None]:
        """Return value, whether it may preempt, and the class; NaN: the class is not known."""
        name = workload.pod.at("priorityClassName")
        chosen = classes.get(name) if isinstance(name, str) else default
        if chosen is None:
            return (math.nan if isinstance(name, str) else 0.0), True, None
        return quantity(chosen.at("value")), chosen.text("preemptionPolicy") != "Never", chosen

    urgent = [(each, *of(each)) for each in fleet.workloads if each.policy == REALTIME]
    patient = [(each, *of(each)) for each in fleet.workloads if each.is_batch]
    for workload, value, preempts, chosen in urgent:
        higher = [each for each in patient if each[1] >= value]
        if patient and not preempts:
            why = (
                f"{workload.thing.key} waits behind {patient[0][0].thing.key}, which can wait: Never removes no pod"
                " for it."
            )
            fix = "preemptionPolicy: PreemptLowerPriority"
            thing, loc = _class_place(workload, chosen, "preemptionPolicy")
            yield found("VA1508", thing, loc, "the class of a realtime workload cannot preempt", why, fix)
        elif higher and not any(each[1] > value and each[2] for each in higher):
            why = (
                f"{higher[0][0].thing.key} has a priority of {higher[0][1]:g}, {workload.thing.key} {value:g}; only"
                " lower ones are preempted."
            )
            thing, loc = _class_place(workload, chosen, "value")
            yield found("VA1508", thing, loc, "a realtime workload cannot preempt batch work", why, "a higher value")
    for workload, value, preempts, chosen in patient:
        lower = [each for each in urgent if each[1] < value]
        if preempts and lower:
            why = (
                f"The priority of {workload.thing.key}, {value:g}, is above the {lower[0][1]:g} of "
                f"{lower[0][0].thing.key}, whose pods the scheduler removes for it."
            )
            thing, loc = _class_place(workload, chosen, "value")
            fix = "a lower value, or preemptionPolicy: Never"
            yield found("VA1509", thing, loc, "batch work may preempt a realtime workload", why, fix)


def _class_place(workload: ModelWorkload, chosen: Manifest | None, key: str) -> tuple[Manifest, Loc]:
    """Return where the priority of a workload is stated: its class if that was given, else its pods."""
    if chosen is not None and chosen.given:
        return chosen, (key,)
    return workload.thing, (*workload.pod.spec, "priorityClassName")


def _ray(thing: Manifest) -> Iterator[Result]:
    text = thing.text("spec", "serveConfigV2")
    documents, problems = read_documents("", text) if text else ([], [])
    if problems:
        yield not_checked(thing, ("spec", "serveConfigV2"), "applications of Ray Serve", problems[0].problem)
    wanted = sum(
        _ray_devices(application) for each in documents for application in _list(at(each.value, "applications"))
    )
    room = 0.0
    for group in thing.list("spec", "rayClusterConfig", "workerGroupSpecs"):
        workers = quantity(at(group, "maxReplicas"))
        containers = _list(at(group, "template", "spec", "containers"))
        devices = sum(_gpus(each) for each in containers)
        room += 0.0 if math.isnan(workers) else workers * devices
    if room and wanted > room:
        why = (
            f"The application may ask for {wanted:g} GPUs, and the worker groups may have {room:g}: the replicas"
            " above never start."
        )
        yield found(
            "VA1513",
            thing,
            ("spec", "serveConfigV2"),
            "more replicas than the worker groups can hold",
            why,
            "a larger maxReplicas of the worker group",
        )


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _gpus(container: object) -> float:
    amount = quantity(at(container, "resources", "limits", "nvidia.com/gpu"))
    return 0.0 if math.isnan(amount) else amount


def _ray_devices(application: object) -> float:
    """Return the GPUs that the largest count of an LLM application needs."""
    total = 0.0
    for config in _list(at(application, "args", "llm_configs")):
        sizes = [quantity(at(config, "engine_kwargs", f"{name}_parallel_size")) for name in ("tensor", "pipeline")]
        devices = math.prod(1.0 if math.isnan(size) else size for size in sizes)
        most = quantity(at(config, "deployment_config", "autoscaling_config", "max_replicas"))
        fixed = quantity(at(config, "deployment_config", "num_replicas"))
        count = most if not math.isnan(most) else 1.0 if math.isnan(fixed) else fixed
        total += count * devices
    return total
