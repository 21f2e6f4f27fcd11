"""Makes the objects that request nodes agree with the last tick: applies those that are due, deletes all others.

Objects are found again by their label, and their names follow from the workload. So a process that ends in the middle
of a chain leaves nothing that the next leader does not know, and orders nothing twice. The Role that allows all this
owns the objects: without it nobody could delete them any more, and the cluster does.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from operator import itemgetter

import msgspec
import numpy as np
import structlog

from autoscaler.adapters.kubernetes.api.client import ApiError, Kube, object_path
from autoscaler.adapters.kubernetes.api.discovery import discover
from autoscaler.adapters.kubernetes.node_requests.images import Warmed, images_to_pull
from autoscaler.adapters.kubernetes.node_requests.objects import (
    BUFFER_GROUP,
    BUFFERS,
    DEPLOYMENTS,
    INSTALLATION,
    PRIORITY_CLASS,
    ROLE,
    TEMPLATES,
    Objects,
    PlaceRequest,
    RequestKind,
    installation_label,
    is_supported,
    make_image_objects,
    make_objects,
)
from autoscaler.adapters.kubernetes.pods.needs import Needs
from autoscaler.config.findings import UNREADABLE
from autoscaler.config.settings import LeaseSettings, NodeRequestKind, NodeRequests
from autoscaler.core.model.fleet import Fleet, Workload, WorkloadRef
from autoscaler.core.table.columns import BoolColumn
from autoscaler.outage import Outage
from autoscaler.ports import Clock, Leadership, TickRecord

log = structlog.get_logger(__name__)

APPLY = "application/apply-patch+yaml"
MOST_REQUESTS = 64
"""Most workloads for which nodes are requested at once. Namespaces take turns: their next windows come first."""

CHECK_S = 60.0  # between two looks at the objects that exist
RETRY_S = 15.0  # after a request failed
ANSWER_S = 45.0  # until the controller of a CapacityBuffer has written a condition
DISCOVERY_S = 600.0  # between two looks at whether the cluster has CapacityBuffers
CONCURRENCY = 8
FORBIDDEN, NOT_FOUND = 403, 404
REFUSALS = (FORBIDDEN, NOT_FOUND)
REFUSED_S = 600.0  # without requests after the cluster refused one: a right or a kind is missing
LEADS_S = 15.0  # between two looks whether this process leads, to remove what an earlier one has left
PREFERRED_VERSION = "v1"
ROLES, RBAC_VERSION = "/apis/rbac.authorization.k8s.io/v1", "rbac.authorization.k8s.io/v1"
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


class _RequestMetadata(msgspec.Struct):
    name: str = ""
    uid: str = ""


class _RequestStatus(msgspec.Struct):
    conditions: list[msgspec.Raw] | None = None


class _Item(msgspec.Struct):
    metadata: _RequestMetadata
    status: _RequestStatus = msgspec.field(default_factory=_RequestStatus)


class _List(msgspec.Struct):
    items: list[_Item]


class _Allowed(msgspec.Struct):
    allowed: bool


class _RequestReview(msgspec.Struct):
    status: _Allowed


class NodeRequester:
    """Requests nodes for the places of each tick: implements Recorder. `run` it in a task; only a leader acts."""

    def __init__(
        self,
        kube: Kube,
        clock: Clock,
        settings: NodeRequests,
        lease: LeaseSettings,
        manager: str,
        needs_of: Callable[[WorkloadRef], Needs | None],
        leadership: Leadership,
        image_of: Callable[[WorkloadRef], str] = lambda _: "",
        warmed: Callable[[], Warmed] = dict,
    ) -> None:
        """lease: the objects are in its namespace. manager: field manager of the daemon's writes.

        needs_of: returns the needs of a replica of a workload; None: they are not known.
        leadership: checked before each write. image_of: returns the image of the engine of a workload; "": unknown.
        warmed: returns the nodes to which the weights of workloads are fetched.
        """
        failing = "nodes are not requested before windows; their replicas will wait for nodes"
        self._outage = Outage(log, failing, "nodes are requested again")
        self._kube = kube
        self._clock = clock
        self._settings = settings
        self._namespace = lease.namespace
        self._priority_class = PRIORITY_CLASS.format(lease=lease.name)
        self._role = ROLE.format(lease=lease.name)
        self._owner: Mapping[str, str] | None = None
        self._manager = manager
        self._needs_of = needs_of
        self._image_of = image_of if settings.pull_images else lambda _: ""
        self._warmed = warmed
        self._leadership = leadership
        self.due: tuple[PlaceRequest, ...] | None = None  # places to request; None: this process does not lead
        self._changed = asyncio.Event()
        self._applied: Objects = {}  # as of the last check
        self._checked_s = self._discovered_s = self._refused_until_s = -np.inf
        self._served: RequestKind | None = None  # CapacityBuffers, if the cluster has them
        self._ignored = False  # the cluster has them, and no controller answers
        self._buffered_s: dict[str, float] = {}  # by name of a CapacityBuffer, when it was first applied
        self._supported: tuple[tuple[Workload, ...], BoolColumn] = (), np.zeros(0, dtype=bool)

    def can_request(self, fleet: Fleet) -> BoolColumn:
        """Return the workloads for which nodes can be requested; bool[W]. Of none while the cluster does not allow it.

        Without it replicas would be ordered as late as if their nodes came before.
        """
        if self._supported[0] is not fleet.workloads:
            supported = [self._needs(workload.ref) is not None for workload in fleet.workloads]
            self._supported = fleet.workloads, np.array(supported, dtype=bool)
        return self._supported[1] & (self._clock.now_s() >= self._refused_until_s)

    def record(self, tick: TickRecord) -> None:
        """Note the places that are due. A follower changes nothing."""
        due = tuple(self._list_due(tick)) if tick.leading else None
        if due is None:
            self._checked_s = -np.inf  # another process acts now
        if due != self.due:
            self.due = due
            self._changed.set()

    def failed(self, wall_s: float, error: BaseException) -> None:
        """Keep what is requested: a failed tick changes nothing."""

    @property
    def problem(self) -> str:
        """Why nodes are not requested; "": they are."""
        return self._outage.problem

    async def run(self) -> None:
        """Reconcile until cancelled."""
        while True:
            self._changed.clear()
            pause_s = CHECK_S
            if self.due is not None:
                try:
                    await self.reconcile(self.due)
                    self._outage.end()
                except ApiError as error:
                    self._checked_s = -np.inf
                    self._outage.fail(str(error))
                    if error.status in REFUSALS:
                        self._refused_until_s = self._clock.now_s() + REFUSED_S
                    pause_s = RETRY_S
            waiting = asyncio.ensure_future(self._changed.wait())
            sleeping = asyncio.ensure_future(self._clock.sleep(pause_s))
            try:
                await asyncio.wait((waiting, sleeping), return_when=asyncio.FIRST_COMPLETED)
            finally:
                waiting.cancel()
                sleeping.cancel()
                await asyncio.gather(waiting, sleeping, return_exceptions=True)

    async def remove_leftovers(self) -> None:
        """Delete, once this process leads, what an earlier one with this setting has requested, if this one may."""
        told = ""
        while True:
            if self._leadership.leading:
                try:
                    if await self._may_delete():
                        await self.reconcile(())
                    return
                except ApiError as error:
                    if str(error) != told:
                        log.warning(
                            "could not delete the node requests of an earlier process; will try again", error=str(error)
                        )
                    told = str(error)
            await self._clock.sleep(LEADS_S)

    async def reconcile(self, due: tuple[PlaceRequest, ...]) -> None:
        """Apply and delete objects until they are those of the requests. Raises ApiError."""
        now_s = self._clock.now_s()
        if now_s - self._checked_s >= CHECK_S and (due or self._applied or self._checked_s < 0):
            await self._check(now_s)
        settings = self._settings
        by_pods = settings.by is NodeRequestKind.AUTO and (self._ignored or settings.pull_images)
        buffers = None if settings.by is NodeRequestKind.PLACEHOLDER or by_pods else self._served
        if due and buffers is None and self._settings.by is NodeRequestKind.CAPACITY_BUFFER:
            raise ApiError("discovery", NOT_FOUND, f"the cluster has no {BUFFERS}.{BUFFER_GROUP}")
        wanted: Objects = {}
        for request in due:
            image, priority_class = self._settings.image, self._priority_class
            wanted |= make_objects(request, self._manager, image, priority_class, buffers, self._owner)
        for pulled in images_to_pull(self._warmed(), self._image_of, self._needs_of):
            wanted |= make_image_objects(pulled, self._manager, settings.image, self._priority_class, self._owner)
        surplus = [key for key in self._applied if key not in wanted]
        missing = [key for key, body in wanted.items() if self._applied.get(key) != body]
        slots = asyncio.Semaphore(CONCURRENCY)

        async def delete(key: tuple[RequestKind, str]) -> None:
            async with slots:
                await self._delete(*key)
            self._applied.pop(key, None)

        async def apply(key: tuple[RequestKind, str]) -> None:
            async with slots:
                await self._apply(*key, wanted[key])
            self._applied[key] = wanted[key]
            if key[0] == buffers:
                self._buffered_s.setdefault(key[1], now_s)

        # First what is not needed any more: replicas that are ordered now must not compete with it.
        await _all(delete(key) for key in surplus)
        await _all(apply(key) for key in missing)
        if surplus or missing:
            places = sum(request.places for request in due)
            log.info("nodes are requested", workloads=len(due), places=places, deleted=len(surplus))

    def _list_due(self, tick: TickRecord) -> list[PlaceRequest]:
        """Return the places that are due: of the next window of each namespace, then of its second one, and so on."""
        chain, fleet = tick.decision.chain, tick.input.fleet
        rows = np.flatnonzero(chain.places > 0)
        found: list[tuple[int, PlaceRequest]] = []
        turns: Counter[str] = Counter()
        for row in rows[np.argsort(chain.due_s[rows], kind="stable")].tolist():
            ref = fleet.workloads[row].ref
            if (needs := self._needs(ref)) is not None:
                places = int(np.ceil(chain.places[row]))
                found.append((turns[ref.namespace], PlaceRequest(ref, places, needs, self._image_of(ref))))
                turns[ref.namespace] += 1
        return [request for _, request in sorted(found, key=itemgetter(0))[:MOST_REQUESTS]]

    def _needs(self, ref: WorkloadRef) -> Needs | None:
        """Return the needs of a replica for which a pod of plain requests can stand in; None: it cannot."""
        needs = self._needs_of(ref)
        return needs if needs is not None and is_supported(needs) else None

    async def _check(self, now_s: float) -> None:
        """Find out which objects exist, and whether the cluster has CapacityBuffers. Raises ApiError."""
        if now_s - self._discovered_s >= DISCOVERY_S:
            await self._discover()
            self._discovered_s = now_s
        self._owner = await self._find_owner()
        # Also those of kinds that are not used any more.
        kinds = [DEPLOYMENTS, TEMPLATES] + ([self._served] if self._served is not None else [])
        # Each is applied again, in case someone has changed it, or deleted.
        listed = {kind: await self._list(kind) for kind in kinds}
        self._applied = {(kind, item.metadata.name): {} for kind, items in listed.items() for item in items}
        if self._served is not None:
            self._judge_answers(listed[self._served], now_s)
        self._checked_s = now_s

    def _judge_answers(self, buffers: list[_Item], now_s: float) -> None:
        """Find out whether a controller answers CapacityBuffers: some clouds install the kind alone."""
        names = {item.metadata.name for item in buffers}
        self._buffered_s = {name: since_s for name, since_s in self._buffered_s.items() if name in names}
        if any(item.status.conditions for item in buffers):
            self._ignored = False
            return
        if not self._ignored and any(now_s - since_s >= ANSWER_S for since_s in self._buffered_s.values()):
            self._ignored = True
            log.warning("no controller answers CapacityBuffers", by=self._settings.by.value)

    async def _discover(self) -> None:
        resource = f"{BUFFERS}.{BUFFER_GROUP}"
        served = (await discover(self._kube, {resource: PREFERRED_VERSION})).get(resource)
        self._served = RequestKind(f"/apis/{BUFFER_GROUP}/{served.version}", BUFFERS) if served is not None else None

    async def _find_owner(self) -> Mapping[str, str] | None:
        """Return the reference to the Role of this setting; None: it has another name, or may not be read."""
        try:
            body = await self._kube.request("GET", object_path(ROLES, self._namespace, "roles", self._role))
            uid = msgspec.json.decode(body, type=_Item).metadata.uid
        except (ApiError, *UNREADABLE) as error:
            if isinstance(error, ApiError) and error.status not in REFUSALS:
                raise
            return None
        return {"apiVersion": RBAC_VERSION, "kind": "Role", "name": self._role, "uid": uid}

    async def _may_delete(self) -> bool:
        """Ask the API server whether this process may delete placeholders. Everyone may ask. Raises ApiError."""
        attributes = {"namespace": self._namespace, "verb": "delete", "group": "apps", "resource": DEPLOYMENTS.plural}
        kind = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
        body = await self._kube.request("POST", REVIEWS, {**kind, "spec": {"resourceAttributes": attributes}})
        try:
            return msgspec.json.decode(body, type=_RequestReview).status.allowed
        except UNREADABLE as error:
            raise ApiError(f"POST {REVIEWS}", 0, f"not a review: {error}") from error

    async def _list(self, kind: RequestKind) -> list[_Item]:
        selector = f"{INSTALLATION}={installation_label(self._manager)}"
        path = object_path(kind.root, self._namespace, kind.plural)
        body = await self._kube.request("GET", path, query=[("labelSelector", selector)])
        try:
            return msgspec.json.decode(body, type=_List).items
        except UNREADABLE as error:
            raise ApiError(f"GET {path}", 0, f"not a list of objects: {error}") from error

    async def _apply(self, kind: RequestKind, name: str, body: Mapping[str, object]) -> None:
        if not self._leadership.leading:
            return
        await self._kube.request(
            "PATCH",
            object_path(kind.root, self._namespace, kind.plural, name),
            body,
            query=[("fieldManager", self._manager), ("force", "true")],
            content_type=APPLY,
        )

    async def _delete(self, kind: RequestKind, name: str) -> None:
        if not self._leadership.leading:
            return
        try:
            await self._kube.request(
                "DELETE",
                object_path(kind.root, self._namespace, kind.plural, name),
                {"propagationPolicy": "Background"},
            )
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise


async def _all(works: Iterable[Awaitable[None]]) -> None:
    """Run all, and raise the first error afterwards."""
    for result in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
