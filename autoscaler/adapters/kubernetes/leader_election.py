"""Leader election on a Lease: at most one replica of the daemon acts.

The rules are those of client-go (`tools/leaderelection`). A lease expires when this process has not seen it change for
its duration. The times written in it are ignored, so clocks may differ. Unlike client-go, this elector stops leading by
the monotonic clock, even while the API server does not answer.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import socket
from typing import Any, Protocol

import msgspec
import structlog

from autoscaler.adapters.kubernetes.api.client import ApiError, Kube, object_path
from autoscaler.adapters.kubernetes.api.text import micro_time
from autoscaler.config.findings import UNREADABLE
from autoscaler.config.settings import LeaseSettings
from autoscaler.outage import Outage
from autoscaler.ports import Clock, Wakeup

log = structlog.get_logger(__name__)

API_VERSION = "coordination.k8s.io/v1"
JITTER = 1.2  # pauses are multiplied by up to this factor, as in client-go
CONFLICT, NOT_FOUND = 409, 404
LONGEST_LEASE_S = 3600.0  # limit of the duration that another holder writes
RELEASED_S = 1  # leaseDurationSeconds of a released lease; 0 is not valid
IDENTITY_LIMIT = 63  # characters, without the random part
WATCHES = "vllm-autoscaler.io/watches"  # annotation: the namespaces and mode of the holder
COUNTS = "vllm-autoscaler.io/foreign-counts"  # annotation: what the holder knows of counts that others have set
WATCHES_LIMIT = 200  # characters of it in a message


class _LeaseSpec(msgspec.Struct, rename="camel"):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class _LeaseMetadata(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    uid: str = ""
    annotations: dict[str, str] | None = None


class _Lease(msgspec.Struct):
    metadata: _LeaseMetadata
    spec: _LeaseSpec = msgspec.field(default_factory=_LeaseSpec)


class Note(Protocol):
    """Knowledge that the leader leaves on the lease for the next one."""

    def note(self) -> str:
        """Return it as text; "": nothing."""
        ...

    def read_note(self, text: str) -> None:
        """Take over what another process left."""
        ...


class Elector:
    """Leads or follows: implements Leadership. `run` it in a task; when the task ends, the lease is released.

    Tasks that act as leader must end before `run`, so that no write is in flight when another process begins to lead.
    `wakeup` is set when this process begins to lead.
    """

    def __init__(
        self, kube: Kube, settings: LeaseSettings, clock: Clock, wakeup: Wakeup | None = None, watches: str = ""
    ) -> None:
        """watches: what this process watches, in words. It is the same for all replicas of one installation."""
        # The random part distinguishes two processes with the same configured name.
        name = (settings.identity or socket.gethostname())[:IDENTITY_LIMIT]
        self.identity = f"{name}_{secrets.token_hex(4)}"
        self.transitions = 0  # of the lease while leading; grows with each change of leader, like a fencing token
        self._kube = kube
        self._settings = settings
        self._clock = clock
        self._wakeup = wakeup
        self._collection = object_path(f"/apis/{API_VERSION}", settings.namespace, "leases")
        self._path = object_path(f"/apis/{API_VERSION}", settings.namespace, "leases", settings.name)
        # Two attempts must fit between a renewal and the deadline.
        self._request_s = (settings.renew_deadline_s - settings.retry_s) / 2
        self._lease: _Lease | None = None  # as last read or written
        self._changed_s = 0.0  # when it was last seen to change
        self._renewed_s: float | None = None  # when the last successful renewal was sent; None: not leading
        failing, works = "lease cannot be renewed or read", "lease is renewed or read again"
        self._outage = Outage(log, failing, works, lease=self._path)
        self._watches = watches
        self.counts: Note | None = None  # None: nothing is left on the lease
        self._logged_problem = ""

    @property
    def leading(self) -> bool:
        """Whether this process may act now. It becomes false by itself when renewals stop."""
        renewed_s = self._renewed_s
        return renewed_s is not None and self._clock.now_s() < renewed_s + self._settings.renew_deadline_s

    @property
    def has_other_leader(self) -> bool:
        """Whether another process holds the lease and has renewed it within our own lease duration."""
        is_renewed = self._clock.now_s() < self._changed_s + self._settings.duration_s
        return self.holder not in ("", self.identity) and is_renewed

    @property
    def holder(self) -> str:
        """The identity of the leader, as last read; "": none."""
        return (self._lease.spec.holder_identity or "") if self._lease else ""

    @property
    def problem(self) -> str:
        """A message if the leader watches something else, so that no process scales what this one watches; "": none."""
        lease = self._lease
        if lease is None or self.leading or not self.holder:
            return ""
        theirs = (lease.metadata.annotations or {}).get(WATCHES, self._watches)
        if theirs == self._watches:
            return ""
        return (
            f"{self.holder} holds the lease {self._settings.installation} and watches {theirs[:WATCHES_LIMIT]}; this "
            f"replica watches {self._watches[:WATCHES_LIMIT]}, and scales nothing while it does not lead. Each "
            "installation needs a lease of its own: --lease-name, --lease-namespace"
        )

    async def run(self) -> None:
        """Acquire the lease when it is free, and renew it while it is held."""
        was_leading = False
        try:
            while True:
                await self._attempt()
                if self.leading != was_leading:
                    was_leading = self.leading
                    self._log_change(was_leading)
                if self.problem != self._logged_problem:
                    self._logged_problem = self.problem
                    if self._logged_problem:
                        log.warning("the leader watches something else", problem=self._logged_problem)
                jitter = 1.0 if was_leading else random.uniform(1.0, JITTER)
                await self._clock.sleep(self._settings.retry_s * jitter)
        finally:
            await self._release()

    async def _attempt(self) -> None:
        """Try once to acquire or renew the lease. After an error the lease expires by itself."""
        try:
            async with asyncio.timeout(2 * self._request_s):  # a read and a write
                if self.leading and self._lease is not None:
                    await self._renew(self._lease)
                else:
                    self._renewed_s = None
                    await self._acquire()
        except (ApiError, TimeoutError, *UNREADABLE) as error:
            self._outage.fail(str(error) or f"no answer within {2 * self._request_s:g} s")  # a TimeoutError has no text
        else:
            self._outage.end()

    async def _renew(self, lease: _Lease) -> None:
        try:
            await self._write("PUT", self._path, lease, self._spec(lease.spec))
        except ApiError as error:
            if error.status == NOT_FOUND:  # it was deleted; the process that creates it leads
                self._renewed_s = None
                await self._acquire()
                return
            if error.status != CONFLICT:
                raise
            # Either an earlier renewal was applied and its answer was lost, or another process took over.
            current = await self._read()
            if current is None or current.spec.holder_identity != self.identity:
                self._renewed_s = None
                return
            await self._write("PUT", self._path, current, self._spec(current.spec))

    async def _acquire(self) -> None:
        lease = await self._read()
        try:
            if lease is None:
                # If the deleted lease was held, its holder may not know yet and still act. It notices at its next
                # renewal, so waiting for our own duration is enough.
                if self._lease is None or self._is_free(self._lease.spec, deleted=True):
                    await self._write("POST", self._collection, None, self._spec(None))
            elif self._is_free(lease.spec):
                await self._write("PUT", self._path, lease, self._spec(lease.spec))
        except ApiError as error:
            if error.status != CONFLICT:  # another process was faster
                raise

    async def _read(self) -> _Lease | None:
        """Read the lease, and note when it changed."""
        try:
            body = await self._kube.request("GET", self._path, timeout_s=self._request_s)
        except ApiError as error:
            if error.status == NOT_FOUND:
                return None
            raise
        lease = msgspec.json.decode(body, type=_Lease)
        text = (lease.metadata.annotations or {}).get(COUNTS, "")
        if self._lease is None or self._lease.metadata != lease.metadata:
            self._changed_s = self._clock.now_s()
            if self.counts is not None and text:
                self.counts.read_note(text)
        self._lease = lease
        return lease

    def _is_free(self, spec: _LeaseSpec, deleted: bool = False) -> bool:
        """Return whether the lease may be acquired: released, expired, or ours after a write whose answer was lost."""
        if not spec.holder_identity or spec.holder_identity == self.identity:
            return True
        stated_s = 0.0 if deleted else float(spec.lease_duration_seconds or 0)
        # A longer duration of the holder is respected up to a limit; a shorter one is replaced by our own.
        duration_s = max(self._settings.duration_s, min(stated_s, LONGEST_LEASE_S))
        return self._clock.now_s() >= self._changed_s + duration_s

    async def _write(self, method: str, path: str, before: _Lease | None, spec: dict[str, Any]) -> None:
        """Write the lease with the version that was read. Raises ApiError, with status 409 if it has changed since."""
        metadata: dict[str, Any] = {"name": self._settings.name, "namespace": self._settings.namespace}
        annotations = {WATCHES: self._watches, COUNTS: self.counts.note() if self.counts is not None else ""}
        metadata["annotations"] = {name: text for name, text in annotations.items() if text}
        if before is not None:
            metadata["resourceVersion"] = before.metadata.resource_version
        body = {"apiVersion": API_VERSION, "kind": "Lease", "metadata": metadata, "spec": spec}
        sent_s = self._clock.now_s()  # other processes count from the moment they see it, which is later
        answer = await self._kube.request(method, path, body, timeout_s=self._request_s)
        lease = msgspec.json.decode(answer, type=_Lease)
        self._lease, self._changed_s = lease, self._clock.now_s()
        self.transitions = lease.spec.lease_transitions or 0
        self._renewed_s = sent_s

    def _spec(self, before: _LeaseSpec | None) -> dict[str, Any]:
        now = micro_time(self._clock.wall_s())
        ours = before is not None and before.holder_identity == self.identity
        transitions = (before.lease_transitions or 0) if before is not None else 0
        return {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": max(1, round(self._settings.duration_s)),
            "acquireTime": before.acquire_time if before is not None and ours else now,
            "renewTime": now,
            "leaseTransitions": transitions if ours or before is None else transitions + 1,
        }

    def _log_change(self, leading: bool) -> None:
        if leading:
            log.info("leading", lease=self._settings.name, identity=self.identity, transitions=self.transitions)
            if self._wakeup is not None:
                self._wakeup.set()
        else:
            log.warning("no longer the leader", lease=self._settings.name, identity=self.identity)

    async def _release(self) -> None:
        """Stop leading, then release the lease, so that the next process need not wait until it expires."""
        lease, was_leading = self._lease, self.leading
        self._renewed_s = None
        if lease is None or not was_leading:
            return
        try:
            await self._write_release(lease)
        except (ApiError, *UNREADABLE) as error:
            log.warning("lease could not be released", lease=self._settings.name, error=str(error))
        finally:
            self._renewed_s = None

    async def _write_release(self, lease: _Lease) -> None:
        spec = self._spec(lease.spec) | {"holderIdentity": "", "leaseDurationSeconds": RELEASED_S}
        try:
            await self._write("PUT", self._path, lease, spec)
        except ApiError as error:
            # A cancelled renewal may have been applied, and then the version has changed.
            current = await self._read() if error.status == CONFLICT else None
            if current is None or current.spec.holder_identity != self.identity:
                raise
            await self._write("PUT", self._path, current, spec)
