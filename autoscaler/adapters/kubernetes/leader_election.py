"""Leader election on a Lease: at most one replica of the daemon acts.

The rules are those of client-go (`tools/leaderelection`): whether a foreign lease has run out is judged by how long
this process has not seen it change, never by the times written in it, so clocks may differ. Unlike the library's
elector this one stops leading by the monotonic clock even while nothing can be asked.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import socket
from datetime import UTC, datetime
from typing import Any

import msgspec
import structlog

from autoscaler.adapters.kubernetes.api.client import ApiError, Kube, object_path
from autoscaler.config.settings import LeaseSettings
from autoscaler.ports import Clock, Wakeup

log = structlog.get_logger(__name__)

API_VERSION = "coordination.k8s.io/v1"
JITTER = 1.2  # as client-go: pauses are stretched by up to this factor
CONFLICT, NOT_FOUND = 409, 404
LONGEST_LEASE_S = 3600.0  # what a foreign record may claim
RELEASED_S = 1  # leaseDurationSeconds of a lease given back; 0 is not valid
IDENTITY_LIMIT = 63  # characters of the given part
WATCHES = "vllm-autoscaler.io/watches"  # annotation: what the holder watches
WATCHES_LIMIT = 200  # characters of it that are repeated


class _Spec(msgspec.Struct, rename="camel"):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class _Metadata(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    uid: str = ""
    annotations: dict[str, str] | None = None


class _Lease(msgspec.Struct):
    metadata: _Metadata
    spec: _Spec = msgspec.field(default_factory=_Spec)


class Elector:
    """Leads or follows: implements Leadership. `run` it in a task; ending the task gives the lease back.

    End whatever acts on being leader before `run`, so that nothing is on its way when another begins. `wakeup` is set
    when this process comes to lead.
    """

    def __init__(
        self, kube: Kube, settings: LeaseSettings, clock: Clock, wakeup: Wakeup | None = None, watches: str = ""
    ) -> None:
        """watches: in words, which replicas of one installation have in common."""
        # The random part keeps two processes with one configured name apart: a lease in our name is surely ours.
        name = (settings.identity or socket.gethostname())[:IDENTITY_LIMIT]
        self.identity = f"{name}_{secrets.token_hex(4)}"
        self.transitions = 0  # of the lease while leading: grows with each change of leader, a fencing number
        self._kube = kube
        self._settings = settings
        self._clock = clock
        self._wakeup = wakeup
        self._collection = object_path(f"/apis/{API_VERSION}", settings.namespace, "leases")
        self._path = object_path(f"/apis/{API_VERSION}", settings.namespace, "leases", settings.name)
        # Two tries must fit between a renewal and the deadline.
        self._request_s = (settings.renew_deadline_s - settings.retry_s) / 2
        self._lease: _Lease | None = None  # as last seen or written
        self._seen_s = 0.0  # when it was last seen to change
        self._renewed_s: float | None = None  # when the last renewal that held was sent; None: not leading
        self._failing = False
        self._watches = watches
        self._told = ""  # the problem that was logged last

    @property
    def leading(self) -> bool:
        """Whether this process may act at this moment; True ends by itself when renewals stop."""
        renewed_s = self._renewed_s
        return renewed_s is not None and self._clock.now_s() < renewed_s + self._settings.renew_deadline_s

    @property
    def led_elsewhere(self) -> bool:
        """Whether another process leads: it holds the lease and was seen to renew it within our own duration."""
        renewed = self._clock.now_s() < self._seen_s + self._settings.duration_s
        return self.holder not in ("", self.identity) and renewed

    @property
    def holder(self) -> str:
        """Return the identity of who leads, as last seen; "": nobody."""
        return (self._lease.spec.holder_identity or "") if self._lease else ""

    @property
    def problem(self) -> str:
        """Say that the leader watches something else, so that nobody scales what only this replica watches; "": no."""
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
        """Take the lease whenever it is free and renew it while held."""
        led = False
        try:
            while True:
                await self._attempt()
                if self.leading != led:
                    led = self.leading
                    self._announce(led)
                if self.problem != self._told:
                    self._told = self.problem
                    if self._told:
                        log.warning("the leader watches something else", problem=self._told)
                jitter = 1.0 if led else random.uniform(1.0, JITTER)
                await self._clock.sleep(self._settings.retry_s * jitter)
        finally:
            await self._release()

    async def _attempt(self) -> None:
        """Try once to take or renew. Whatever goes wrong leaves the lease to run out by itself."""
        try:
            async with asyncio.timeout(2 * self._request_s):  # a read and a write
                if self.leading and self._lease is not None:
                    await self._renew(self._lease)
                else:
                    self._renewed_s = None
                    await self._acquire()
        except (ApiError, TimeoutError, msgspec.MsgspecError) as error:
            if not self._failing:
                reason = (
                    str(error) or f"no answer within {2 * self._request_s:g} s"
                )  # of a TimeoutError there are no words
                log.warning("lease cannot be held or read", lease=self._path, error=reason)
            self._failing = True
        else:
            if self._failing:
                log.info("lease is held or read again", lease=self._path)
            self._failing = False

    async def _renew(self, lease: _Lease) -> None:
        try:
            await self._write("PUT", self._path, lease, self._spec(lease.spec))
        except ApiError as error:
            if error.status == NOT_FOUND:  # somebody deleted it: whoever makes it anew leads
                self._renewed_s = None
                await self._acquire()
                return
            if error.status != CONFLICT:
                raise
            # Either an earlier renewal was applied although its answer was lost, or somebody took over.
            current = await self._read()
            if current is None or current.spec.holder_identity != self.identity:
                self._renewed_s = None
                return
            await self._write("PUT", self._path, current, self._spec(current.spec))

    async def _acquire(self) -> None:
        lease = await self._read()
        try:
            if lease is None:
                # One that was held when it was deleted is waited out, for its holder may not know yet. Its holder finds
                # out with the next renewal, so nothing is waited for beyond our own duration, whatever it claimed.
                if self._lease is None or self._is_free(self._lease.spec, deleted=True):
                    await self._write("POST", self._collection, None, self._spec(None))
            elif self._is_free(lease.spec):
                await self._write("PUT", self._path, lease, self._spec(lease.spec))
        except ApiError as error:
            if error.status != CONFLICT:  # another was faster
                raise

    async def _read(self) -> _Lease | None:
        """Read the lease, and note when it was last seen to change."""
        try:
            body = await self._kube.request("GET", self._path, timeout_s=self._request_s)
        except ApiError as error:
            if error.status == NOT_FOUND:
                return None
            raise
        lease = msgspec.json.decode(body, type=_Lease)
        if self._lease is None or self._lease.metadata != lease.metadata:
            self._seen_s = self._clock.now_s()
        self._lease = lease
        return lease

    def _is_free(self, spec: _Spec, deleted: bool = False) -> bool:
        """Say whether it may be taken: given back, ours from a write whose answer was lost, or not renewed for long."""
        if not spec.holder_identity or spec.holder_identity == self.identity:
            return True
        claimed_s = 0.0 if deleted else float(spec.lease_duration_seconds or 0)
        # A holder with longer settings than ours is believed, within reason; one with shorter ones is given ours.
        lasts_s = max(self._settings.duration_s, min(claimed_s, LONGEST_LEASE_S))
        return self._clock.now_s() >= self._seen_s + lasts_s

    async def _write(self, method: str, path: str, before: _Lease | None, spec: dict[str, Any]) -> None:
        """Write the lease under the version it was read with. Raises ApiError, with 409 if that is not current."""
        metadata: dict[str, Any] = {"name": self._settings.name, "namespace": self._settings.namespace}
        if self._watches:
            metadata["annotations"] = {WATCHES: self._watches}
        if before is not None:
            metadata["resourceVersion"] = before.metadata.resource_version
        body = {"apiVersion": API_VERSION, "kind": "Lease", "metadata": metadata, "spec": spec}
        sent_s = self._clock.now_s()  # others count from when they see it, which is later
        answer = await self._kube.request(method, path, body, timeout_s=self._request_s)
        lease = msgspec.json.decode(answer, type=_Lease)
        self._lease, self._seen_s = lease, self._clock.now_s()
        self.transitions = lease.spec.lease_transitions or 0
        self._renewed_s = sent_s

    def _spec(self, before: _Spec | None) -> dict[str, Any]:
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

    def _announce(self, led: bool) -> None:
        if led:
            log.info("leading", lease=self._settings.name, identity=self.identity, transitions=self.transitions)
            if self._wakeup is not None:
                self._wakeup.set()
        else:
            log.warning("no longer the leader", lease=self._settings.name, identity=self.identity)

    async def _release(self) -> None:
        """Give the lease back, so that nobody waits for it to run out. Stops leading first."""
        lease, led = self._lease, self.leading
        self._renewed_s = None
        if lease is None or not led:
            return
        try:
            await self._give_back(lease)
        except (ApiError, msgspec.MsgspecError) as error:
            log.warning("lease could not be released", lease=self._settings.name, error=str(error))
        finally:
            self._renewed_s = None

    async def _give_back(self, lease: _Lease) -> None:
        spec = self._spec(lease.spec) | {"holderIdentity": "", "leaseDurationSeconds": RELEASED_S}
        try:
            await self._write("PUT", self._path, lease, spec)
        except ApiError as error:
            # A renewal that was cut short may have been applied: then the version is not the one that was last seen.
            current = await self._read() if error.status == CONFLICT else None
            if current is None or current.spec.holder_identity != self.identity:
                raise
            await self._write("PUT", self._path, current, spec)


def micro_time(wall_s: float) -> str:
    """Write a Unix time as Kubernetes' MicroTime: UTC with six digits, always."""
    return datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
