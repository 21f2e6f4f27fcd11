"""The devices of all drivers: what each workload requests, what the nodes offer, and what claims hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from autoscaler.adapters.kubernetes.api import device_objects, objects
from autoscaler.adapters.kubernetes.inventory.devices.device_claims import Claim, ClaimStore, ClassStore, TemplateStore
from autoscaler.adapters.kubernetes.inventory.devices.kinds import DeviceKind
from autoscaler.adapters.kubernetes.inventory.devices.partitions import Offer, count_devices, join
from autoscaler.adapters.kubernetes.inventory.devices.selections import Selected, Selections
from autoscaler.adapters.kubernetes.inventory.devices.slices import PoolKey, SliceStore
from autoscaler.adapters.kubernetes.inventory.nodes import Node
from autoscaler.adapters.kubernetes.pods.holdings import (
    MOST_IMPORTANT,
    NO_HOLDER,
    SHARED,
    ClaimedDevices,
    HeldRows,
    Holder,
)
from autoscaler.adapters.kubernetes.pods.needs import DEVICES_FIELD, NodeExpression
from autoscaler.adapters.kubernetes.pods.requests import Requests
from autoscaler.adapters.kubernetes.pods.status import Key
from autoscaler.adapters.kubernetes.pods.template import Facts, group_facts, with_devices
from autoscaler.catalog.accelerators import ResourceKind, resource_kind
from autoscaler.catalog.dra import GROUP
from autoscaler.config.findings import shown
from autoscaler.ports import Clock

VERSION = "v1"
KINDS: Mapping[str, type[objects.Object]] = {
    f"deviceclasses.{GROUP}": device_objects.DeviceClass,
    f"resourceslices.{GROUP}": device_objects.ResourceSlice,
    f"resourceclaimtemplates.{GROUP}": device_objects.ResourceClaimTemplate,
    f"resourceclaims.{GROUP}": device_objects.ResourceClaim,
}
CLUSTER_SCOPED = frozenset({f"deviceclasses.{GROUP}", f"resourceslices.{GROUP}"})  # the others have a namespace
MIB = 1 << 20

Workloads = Sequence[tuple[str, Facts]]  # with their namespaces


Either = tuple[frozenset[DeviceKind], ...]  # alternatives


class _Need(NamedTuple):
    """The devices that one pod requests."""

    counts: Requests  # by name in the inventory
    kinds: Mapping[str, list[Either]]  # by name: those that its claims select, one for each request
    doubtful: tuple[str, ...]
    problem: str


class DeviceStore:
    """Receives the objects of DRA, and answers for the workloads that were settled last."""

    def __init__(self, clock: Clock) -> None:
        self.classes = ClassStore()
        self.templates = TemplateStore()
        self.slices = SliceStore(clock)
        self.claims = ClaimStore(self._note_held)
        self._held_version = 0  # grows when a claim changes how many devices there are
        self._selections = Selections(self.classes, (), ())
        self._selections_version: object = None
        self._placed: dict[Key, tuple[Claim, list[tuple[str, str, float]]]] = {}  # of claims, with where they hold
        self._requested: frozenset[DeviceKind] = frozenset()
        self._offers: dict[str, Offer] = {}  # by node
        self._offers_version: object = None
        self._present: dict[str, set[frozenset[DeviceKind]]] = {}  # by name: sets of kinds that nodes offer
        self._doubtful: dict[str, str] = {}  # by name: why the number of devices is not known

    def store_of(self, resource: str) -> Any:
        """Return the store of a kind of objects, "deviceclasses.resource.k8s.io"."""
        return dict(zip(KINDS, (self.classes, self.slices, self.templates, self.claims), strict=True))[resource]

    def update(self) -> object:
        """Return a version that changes with what workloads request and what nodes offer."""
        return self.slices.update(), self.classes.version, self.templates.version, self._held_version

    def has_devices(self, node: str) -> bool:
        """Return whether drivers publish devices of a node."""
        return node in self.slices.nodes

    def problems(self) -> list[str]:
        """Return why pools of devices are not counted, one line each."""
        return [
            f"devices of {shown(driver)}, pool {shown(pool)}, are not counted: {problem}"
            for (driver, pool), problem in sorted(self.slices.problems.items())
        ]

    def settle(self, workloads: Workloads) -> list[Facts]:
        """Return the facts of workloads with the devices that their claims and extended resources request."""
        self._select()
        self._requested = frozenset(self._requested_kinds(workloads))
        self._offer()
        return [self._settle(namespace, facts) for namespace, facts in workloads]

    def add_to(self, nodes: Mapping[str, Node]) -> Mapping[str, Node]:
        """Return the nodes with the devices that drivers publish, after `settle`."""
        if not self._offers:
            return nodes
        added = {name: self._add(nodes[name], offer) for name, offer in self._offers.items() if name in nodes}
        return {**nodes, **added}

    def add_held(self, held: HeldRows, holder_of: Callable[[Key], Holder], priority: Callable[[Key], int]) -> HeldRows:
        """Return what pods hold with the devices of claims, and with the names that devices have.

        A claim that several pods use counts once.
        """
        self._select()
        if len(self._placed) > 2 * len(self.claims.claims):
            self._placed = {}
        names = [self._name_of(resource) for resource in held.resources]
        claimed = []
        numbers: dict[Key, int] = {}
        for key, claim in self.claims.claims.items():
            if not claim.is_extended:
                holder = max(map(holder_of, claim.pods), default=NO_HOLDER)
                highest = max(map(priority, claim.pods), default=MOST_IMPORTANT)
                claimant = numbers.setdefault(claim.pods[0], len(numbers)) if len(claim.pods) == 1 else SHARED
                claimed += [ClaimedDevices(*each, holder, highest, claimant) for each in self._places(key, claim)]
        return held._replace(resources=names).plus(claimed)

    def _note_held(self, pool: PoolKey) -> None:
        known = self.slices.pools.get(pool)
        self._held_version += known is not None and known.devices.depends_on_claims

    def _select(self) -> None:
        version = self.slices.update(), self.classes.version
        if version != self._selections_version:
            self._selections = Selections(self.classes, self.slices.kinds(), self.slices.unplaced())
            self._selections_version = version
            self._placed = {}

    def _settle(self, namespace: str, facts: Facts) -> Facts:
        if facts.members:
            (leader, _), *workers = [(self._settle(namespace, each), count) for each, count in facts.members]
            return group_facts(leader, workers)
        if not facts.has_open_requests:
            problem = self._doubtful.get(facts.resource, "")
            return with_devices(facts, {}, problem=problem) if problem else facts
        need = self._need(namespace, facts)
        devices, problem = self._expressions(need)
        reasons = (self._doubtful[name] for name in need.counts if name in self._doubtful)
        problem = next(filter(None, (need.problem, *reasons, problem)), "")
        return with_devices(facts, need.counts, need.doubtful, problem, devices)

    def _need(self, namespace: str, facts: Facts) -> _Need:
        """Return the devices that one pod requests."""
        counts: Requests = {}
        kinds: dict[str, list[Either]] = {}
        doubtful: list[str] = []
        problem = ""
        for name, count in facts.requests:
            found = None if resource_kind(name) is ResourceKind.ACCELERATOR else self._selections.of_extended(name)
            if found is None or found.doubtful:
                if resource_kind(name) is ResourceKind.ACCELERATOR:
                    counts[name] = counts.get(name, 0.0) + count
                else:
                    doubtful.append(name)
            elif found.problem:
                problem = problem or f"{name}: {found.problem}"
            elif found.resource:
                counts[found.resource] = counts.get(found.resource, 0.0) + count
        for claim in facts.claims:
            requests = self.templates.requests.get((namespace, claim.template))
            if claim.shared:
                problem = problem or f"all replicas share the devices of ResourceClaim {shown(claim.shared)}"
            elif requests is None:
                template = shown(claim.template)
                problem = problem or f"ResourceClaimTemplate {template} does not exist, or may not be listed"
            for request, selected in zip(requests or (), self._selections.of_claim(requests or ()), strict=True):
                if selected.problem:
                    problem = problem or f"ResourceClaimTemplate {shown(claim.template)}: {selected.problem}"
                elif selected.doubtful:
                    doubtful.append(selected.doubtful)
                elif name := selected.resource:
                    counts[name] = counts.get(name, 0.0) + request.devices
                    kinds.setdefault(name, []).append(selected.either)
        return _Need(counts, kinds, tuple(doubtful), problem)

    def _requested_kinds(self, workloads: Workloads) -> Iterator[DeviceKind]:
        """Yield the kinds of devices that workloads request, by claims or by the name of an extended resource."""
        names: set[str] = set()
        for namespace, facts in workloads:
            for each, _ in facts.members or ((facts, 1),):
                if each.has_open_requests:
                    need = self._need(namespace, each)
                    names.update(need.counts.keys() - need.kinds.keys())
                    for either in chain.from_iterable(need.kinds.values()):
                        yield from chain.from_iterable(either)
                else:
                    names.add(each.resource)
        for kind, name in self._selections.names.items():
            if name in names:
                yield kind

    def _expressions(self, need: _Need) -> tuple[tuple[NodeExpression, ...], str]:
        """Return the requirements on the devices of nodes, and why they cannot be stated."""
        found = []
        for name, requests in sorted(need.kinds.items()):
            admitted = []
            for present in self._present.get(name, ()):
                if all(any(present <= kinds for kinds in either) for either in requests):
                    admitted.append(_mark(present))
                elif any(present & kinds and not present <= kinds for either in requests for kinds in either):
                    return (), f"of the devices of {name} on one node it may get some, and not others"
            found.append(NodeExpression(DEVICES_FIELD + name, "In", tuple(sorted(admitted))))
        return tuple(found), ""

    def _by_name(self, offer: Offer) -> dict[str, list[DeviceKind]]:
        found: dict[str, list[DeviceKind]] = {}
        for kind in offer.counts | offer.when_free:
            if not kind.shared:
                found.setdefault(self._selections.names[kind], []).append(kind)
        return found

    def _offer(self) -> None:
        """Count the devices of each node."""
        version = self._selections_version, self._held_version, self._requested
        if version == self._offers_version:
            return
        offers: dict[str, list[Offer]] = {}
        for key, pool in self.slices.pools.items():
            held = self.claims.held(key) if pool.devices.depends_on_claims else frozenset[str]()
            wanted = self._requested & pool.devices.kinds
            if pool.node:
                offers.setdefault(pool.node, []).append(count_devices(pool.devices, held, wanted))
                continue
            for node, devices in pool.devices.by_node.items():
                offers.setdefault(node, []).append(count_devices(devices, held, wanted))
        self._offers = {node: found[0] if len(found) == 1 else join(found) for node, found in offers.items()}
        self._offers_version = version
        self._present = {}
        reasons: dict[str, str] = {}
        for offer in self._offers.values():
            reasons.update(offer.doubtful)
            for name, kinds in self._by_name(offer).items():
                self._present.setdefault(name, set()).add(frozenset(kinds))
        names = self._selections.names
        self._doubtful = {names[kind]: reasons[kind.name] for kind in self._requested if kind.name in reasons}

    def _add(self, node: Node, offer: Offer) -> Node:
        by_name = self._by_name(offer)
        counts, when_free = (
            {name: sum(column.get(kind, 0) for kind in kinds) for name, kinds in by_name.items()}
            for column in (offer.counts, offer.when_free)
        )
        products = {kind.product for kinds in by_name.values() for kind in kinds if kind.product}
        memory = {int(kind.memory / MIB) for kinds in by_name.values() for kind in kinds}
        return node._replace(
            # A device that a plugin offers as well is the same one.
            gpus={name: max(node.gpus.get(name, 0), counts.get(name, 0)) for name in node.gpus | counts},
            device_sets=tuple(sorted((DEVICES_FIELD + name, _mark(kinds)) for name, kinds in by_name.items())),
            when_free=tuple(sorted(when_free.items())),
            product=products.pop() if len(products) == 1 else "",
            device_memory=str(memory.pop() or "") if len(memory) == 1 else "",
        )

    def _name_of(self, resource: str) -> str:
        """Return the name that devices of an extended resource have in the inventory."""
        if not resource or resource_kind(resource) is ResourceKind.ACCELERATOR:
            return resource
        found: Selected | None = self._selections.of_extended(resource)
        return found.resource if found is not None and found.resource else resource

    def _places(self, key: Key, claim: Claim) -> list[tuple[str, str, float]]:
        """Return nodes, names and numbers of the devices that a claim holds."""
        known = self._placed.get(key)
        if known is not None and known[0] is claim:
            return known[1]
        counts: dict[tuple[str, str], float] = {}
        for held in claim.devices:
            pool = self.slices.pools.get(held.pool)
            device = pool.devices.by_name.get(held.device) if pool is not None else None
            if pool is not None and device is not None and (node := device.node or pool.node):
                place = node, self._selections.names[device.kind]
                counts[place] = counts.get(place, 0.0) + 1.0
        found = [(*place, count) for place, count in counts.items()]
        self._placed[key] = claim, found
        return found


def _mark(kinds: Iterable[DeviceKind]) -> str:
    """Return a text for a set of kinds."""
    return "+".join(str(number) for number in sorted(kind.number for kind in kinds))
