"""Nodes with GPUs and the pods on them: scheduling, cold starts, probes, crashes, termination. Traffic is elsewhere.

Simpler than Kubernetes: pods are bound in the order of their creation. A sleeping node wakes for a pod, and leaves
after some time without pods. A terminating pod receives no further requests, and ends when it is empty or its grace
period is over.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from autoscaler.core.model.fleet import PendingCause, Pod, Pool
from autoscaler.sim.engine.cold_start import ColdStart
from autoscaler.sim.engine.profiles import Profile, ProfileDevice
from autoscaler.sim.engine.replica import Replica
from autoscaler.sim.engine.request import Request

HOST = "127.0.0.1"
MOST_REPLICAS = 1000  # of one workload; far more than any scenario can hold
NODE_IDLE_S = 600.0  # idle time after which an elastic node leaves, and loses image and weights
PROBE_PERIOD_S = 2.0  # of a pod whose engine sleeps
RESTART_DELAY_S = 10.0  # the kubelet's first back-off
SHORTEST_TERMINATION_S = 1.0  # even an empty server takes a moment to end
TERMINATION_POLL_S = 1.0  # poll interval of terminating pods

_SUFFIX = tuple("bcdfghjklmnpqrstvwxz2456789")  # letters of random names in Kubernetes


@dataclass(frozen=True)
class PoolSetup:
    """GPUs of one kind: permanent nodes, and elastic ones."""

    pool: Pool
    device: ProfileDevice
    devices_per_node: int
    nodes: int
    elastic_nodes: int = 0


@dataclass(frozen=True)
class Deployment:
    """A workload as the cluster sees it."""

    namespace: str
    name: str
    profile: Profile
    pool: int  # index into the pools
    devices: int = 1  # devices of one replica
    replicas: int = 1  # initial replicas, ready at once
    cold_start: ColdStart = field(default_factory=ColdStart)
    grace_s: float = 120.0  # terminationGracePeriodSeconds
    crash_every_s: float = math.inf  # mean, per serving pod


@dataclass(eq=False)
class DemoMachine:
    """A machine. `holders` are the pods that hold its devices. Times of pending events lie in the future."""

    name: str
    pool: int
    holders: list[SimPod | None]
    elastic: bool
    up_s: float = -math.inf  # infinity: asleep
    image_s: float = -math.inf  # time at which it has the image; infinity: not being fetched
    # time at which the first pod with these weights serves, by workload
    weights_s: dict[str, float] = field(default_factory=dict)
    empty_since_s: float = 0.0

    @property
    def asleep(self) -> bool:
        return self.up_s == math.inf

    @property
    def free(self) -> int:
        return self.holders.count(None)


@dataclass(eq=False)
class SimPod:
    """A pod. The times of its start are known when it is bound, and may lie in the future."""

    number: int
    workload: int
    name: str
    created_s: float
    deployment: Deployment
    port: int = 0  # port of its metrics; 0: none
    node: DemoMachine | None = None
    devices: tuple[int, ...] = ()
    scheduled_s: float = math.nan
    started_s: float = math.nan  # of the present container
    serving_s: float = math.nan
    ready_s: float = math.nan
    crash_s: float = math.inf
    terminating_since_s: float = math.nan
    replica: Replica | None = None  # while the port is open

    @property
    def terminating(self) -> bool:
        return not math.isnan(self.terminating_since_s)

    def ready(self, now_s: float) -> bool:
        return self.replica is not None and self.ready_s <= now_s

    def identity(self) -> Pod:
        node = self.node.name if self.node else ""
        return Pod(self.deployment.namespace, self.name, HOST if self.node else "", self.port, node)


class DemoCluster:
    """All pods of all workloads. `scale` sets their number, `change` advances time."""

    def __init__(
        self,
        pools: Sequence[PoolSetup],
        deployments: Sequence[Deployment],
        seed: int,
        now_s: float,
        new_port: Callable[[], int] = lambda: 0,
    ) -> None:
        """Start with the initial pods of every workload serving. `new_port` returns a port for each new pod."""
        self.pools = tuple(pools)
        self.deployments = tuple(deployments)
        self.nodes = [node for index, pool in enumerate(pools) for node in _nodes(index, pool)]
        self.pods: list[SimPod] = []  # ascending by number
        self.desired = [deployment.replicas for deployment in deployments]
        self.crashes = 0
        self.held_devices = np.zeros(len(deployments))  # float64[W]
        self._rng = np.random.default_rng((seed, 1_000_003))  # independent of the traffic
        self._new_port = new_port
        self._numbers = 0
        for workload, deployment in enumerate(deployments):
            self._create(workload, deployment.replicas, now_s)
        self._schedule(now_s)
        for pod in self.pods:
            if pod.node:  # the initial pods started in the past
                node = pod.node
                node.up_s, node.image_s = min(node.up_s, now_s), min(node.image_s, now_s)
                node.weights_s = dict.fromkeys(node.weights_s, now_s)
                took_s = pod.ready_s - now_s
                pod.created_s, pod.scheduled_s = pod.created_s - took_s, pod.scheduled_s - took_s
                pod.started_s, pod.serving_s, pod.ready_s = pod.started_s - took_s, pod.serving_s - took_s, now_s
        self.change(now_s)

    def live(self, workload: int) -> list[SimPod]:
        """Return the pods of a workload that are not terminating."""
        return [pod for pod in self.pods if pod.workload == workload and not pod.terminating]

    def scale(self, workload: int, replicas: int, now_s: float) -> None:
        """Set the desired replicas of a workload."""
        if not 0 <= replicas <= MOST_REPLICAS:
            raise ValueError(
                f"replicas of {self.deployments[workload].name} is {replicas}; allowed: 0 to {MOST_REPLICAS}"
            )
        self.desired[workload] = replicas
        live = self.live(workload)
        self._create(workload, replicas - len(live), now_s)
        # In the order of a ReplicaSet: pods without a node, then those not ready, then the youngest.
        live.sort(key=lambda pod: (pod.node is not None, pod.ready(now_s), -pod.number))
        for pod in live[: max(len(live) - replicas, 0)]:
            pod.terminating_since_s = now_s
        self._schedule(now_s)

    def next_change_s(self, now_s: float) -> float:
        """Return the time of the next change of a pod, unless the workload is scaled before."""
        moments = [math.inf]
        for pod in self.pods:
            if pod.terminating:
                moments.append(now_s + TERMINATION_POLL_S)
            elif pod.node:
                probed_s = now_s + PROBE_PERIOD_S if pod.ready_s == math.inf else math.inf
                due = (pod.serving_s, pod.ready_s, pod.crash_s, probed_s)
                moments += [moment for moment in due if moment > now_s]
        return min(moments)

    def change(self, now_s: float) -> list[tuple[int, list[Request]]]:
        """Update every pod to its state at `now_s`; return the requests lost with a server, with their workload."""
        lost: list[tuple[int, list[Request]]] = []
        for pod in self.pods:
            if pod.terminating and self._is_finished(pod, now_s):
                lost.append((pod.workload, self._end(pod, now_s)))
            elif pod.crash_s <= now_s:
                lost.append((pod.workload, self._crash(pod, now_s)))
            elif pod.replica is None and pod.serving_s <= now_s and not pod.terminating:
                pod.replica = Replica(pod.deployment.profile, now_s)
                mean_s = pod.deployment.crash_every_s
                pod.crash_s = now_s + self._rng.exponential(mean_s) if math.isfinite(mean_s) else math.inf
            elif pod.replica is not None:
                self._probe(pod, pod.replica, now_s)
        self.pods = [pod for pod in self.pods if not (pod.terminating and pod.node is None)]
        for node in self.nodes:
            if node.elastic and not any(node.holders) and now_s - node.empty_since_s >= NODE_IDLE_S:
                node.up_s, node.image_s, node.weights_s = math.inf, math.inf, {}
        self._schedule(now_s)
        return lost

    def blocked(self, pod: SimPod) -> PendingCause:
        return PendingCause.NONE if pod.node else PendingCause.UNSCHEDULABLE

    def device_counts(self) -> list[int]:
        """Return the devices of each pool. Devices of sleeping nodes count, since a pod can get them."""
        return [sum(len(node.holders) for node in self.nodes if node.pool == index) for index in range(len(self.pools))]

    def _create(self, workload: int, count: int, now_s: float) -> None:
        deployment = self.deployments[workload]
        for _ in range(count):
            template = "".join(np.random.default_rng(workload).choice(_SUFFIX, 10))
            suffix = "".join(self._rng.choice(_SUFFIX, 5))
            name = f"{deployment.name}-{template}-{suffix}"
            self.pods.append(SimPod(self._numbers, workload, name, now_s, deployment, self._new_port()))
            self._numbers += 1

    def _schedule(self, now_s: float) -> None:
        for pod in self.pods:
            if pod.node is None and not pod.terminating:
                room = [
                    node
                    for node in self.nodes
                    if node.pool == pod.deployment.pool and node.free >= pod.deployment.devices
                ]
                if room:
                    self._bind(pod, min(room, key=lambda node: self._cost(pod, node)), now_s)

    def _cost(self, pod: SimPod, node: DemoMachine) -> tuple[bool, bool, int]:
        """Sort key of nodes: awake, with the weights, and the fullest, so that large pods find room."""
        return node.asleep, pod.deployment.name not in node.weights_s, node.free

    def _bind(self, pod: SimPod, node: DemoMachine, now_s: float) -> None:
        deployment = pod.deployment
        start = deployment.cold_start.draw(
            self._rng,
            deployment.profile.weight_bytes,
            deployment.devices,
            node_asleep=node.asleep,
            image_cached=node.image_s < math.inf,
            weights_cached=deployment.name in node.weights_s,
        ).shifted(now_s)
        if node.asleep:
            node.up_s, node.image_s = start.scheduled_s, start.started_s
        start = start.delayed_by_node(node.up_s, node.image_s, node.weights_s.get(deployment.name, -math.inf))
        node.weights_s.setdefault(deployment.name, start.serving_s)
        free = [index for index, holder in enumerate(node.holders) if holder is None]
        pod.node, pod.devices = node, tuple(free[: deployment.devices])
        for index in pod.devices:
            node.holders[index] = pod
        pod.scheduled_s, pod.started_s = start.scheduled_s, start.started_s
        pod.serving_s, pod.ready_s = start.serving_s, start.ready_s
        self.held_devices[pod.workload] += deployment.devices

    def _probe(self, pod: SimPod, replica: Replica, now_s: float) -> None:
        """Make a pod unready while its engine sleeps: its probe asks `/is_sleeping`."""
        if replica.sleep_state.paused:
            pod.ready_s = math.inf
        elif pod.ready_s == math.inf:
            pod.ready_s = now_s + pod.deployment.cold_start.probe.draw(self._rng)

    def _is_finished(self, pod: SimPod, now_s: float) -> bool:
        """Return whether a terminating pod is empty or its grace period is over."""
        ending_s = now_s - pod.terminating_since_s
        busy = pod.replica is not None and pod.replica.held > 0
        return ending_s >= (pod.deployment.grace_s if busy else SHORTEST_TERMINATION_S)

    def _end(self, pod: SimPod, now_s: float) -> list[Request]:
        lost = _lose(pod, now_s)
        if pod.node:
            for index in pod.devices:
                pod.node.holders[index] = None
            pod.node.empty_since_s = now_s
            pod.node = None
            self.held_devices[pod.workload] -= pod.deployment.devices
        return lost

    def _crash(self, pod: SimPod, now_s: float) -> list[Request]:
        """Crash the engine; its container restarts on the same node with new counters."""
        self.crashes += 1
        deployment = pod.deployment
        pod.started_s = now_s + RESTART_DELAY_S
        pod.serving_s = pod.started_s + deployment.cold_start.restart_s(
            self._rng, deployment.profile.weight_bytes, deployment.devices
        )
        pod.ready_s = pod.serving_s + deployment.cold_start.probe.draw(self._rng)
        pod.crash_s = math.inf
        return _lose(pod, now_s)


def _lose(pod: SimPod, now_s: float) -> list[Request]:
    if pod.replica is None:
        return []
    replica, pod.replica = pod.replica, None
    replica.abort(now_s)
    return replica.take_ended()


def _nodes(index: int, deployment: PoolSetup) -> Iterable[DemoMachine]:
    kind = deployment.device.mig_profile.replace(".", "-") or "gpu"
    for number in range(deployment.nodes + deployment.elastic_nodes):
        elastic = number >= deployment.nodes
        holders: list[SimPod | None] = [None] * deployment.devices_per_node
        since_s = math.inf if elastic else -math.inf
        yield DemoMachine(f"{kind}-node-{number + 1}", index, holders, elastic, since_s, since_s)
