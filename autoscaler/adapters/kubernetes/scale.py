"""The only writer of replica counts: it patches the scale subresource if the old count is still there.

A failed patch is not retried. The next tick decides again. The answer of the API server is read: an admission policy or
webhook may have stored another count than the one that was sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import structlog

from autoscaler.adapters.kubernetes.api.client import ApiError, Kube, object_path
from autoscaler.adapters.kubernetes.api.text import one_line
from autoscaler.adapters.kubernetes.deletion_costs import DeletionCosts
from autoscaler.adapters.kubernetes.own_writes import OwnWrites
from autoscaler.adapters.kubernetes.workloads.kinds import TargetKinds
from autoscaler.adapters.turns import in_turns
from autoscaler.catalog.scale_targets import SCALED
from autoscaler.config.findings import UNREADABLE
from autoscaler.ports import Change, ChangeStatus, Leadership, Outcome

log = structlog.get_logger(__name__)

CONCURRENCY = 16
WRITE_TIMEOUT_S = 4.0
"""A patch must end before another process can lead. With client-go's defaults, which are ours too, 5 s lie between the
renew deadline and the end of the lease."""

READ_TIMEOUT_S = 1.0
"""For reading the scale before scaling down. A server that does not answer in time may hang, and would apply a patch
when it recovers. The load may have returned by then."""
JSON_PATCH = "application/json-patch+json"  # the type that both built-in kinds and custom resources accept
APPLY = "application/apply-patch+yaml"
NAMED_ZEROS = "/apis/apps/"
"""Kinds of this group take an apply of their scale. Only after an apply does the API server name who wrote a zero: a
Scale omits it. To the scale of a custom resource it answers 500."""

CONFLICT, INVALID, NOT_FOUND, FORBIDDEN, BUSY = 409, 422, 404, 403, 429
REFUSING = (400, 403, 405, 422)  # the object or the permission is wrong, so the next tick would be refused as well
NO_COUNT = "replicas field"  # "the spec replicas field ".spec.replicas" does not exist", if a custom resource has none
UNSET_COUNT = -(2**31)
"""The count of a custom resource without one, while the API server applies a patch to its scale.
Source: k8s.io/apiextensions-apiserver pkg/registry/customresource (`scaleUpdatedObjectInfo`)."""

INTERNAL_ERROR, WEBHOOK = 500, "webhook"  # likewise an admission webhook that cannot be called


class _ScaleMetadata(msgspec.Struct):
    uid: str = ""
    resource_version: str = msgspec.field(default="", name="resourceVersion")


class _ScaleSpec(msgspec.Struct):
    replicas: int = 0  # the API omits 0


class _Scale(msgspec.Struct):
    metadata: _ScaleMetadata
    spec: _ScaleSpec = msgspec.field(default_factory=_ScaleSpec)

    @property
    def is_unset(self) -> bool:
        """Whether the object states no count: its controller waits for the first, or has a default."""
        return self.spec.replicas == UNSET_COUNT


class ScaleActuator:
    """Sets replica counts. `leadership` is checked again right before each patch."""

    def __init__(
        self,
        kube: Kube,
        writes: OwnWrites,
        leadership: Leadership | None = None,
        kinds: TargetKinds | None = None,
        deletion_costs: DeletionCosts | None = None,
        *,
        read_timeout_s: float = READ_TIMEOUT_S,
        write_timeout_s: float = WRITE_TIMEOUT_S,
    ) -> None:
        """kinds: how custom kinds are served; None: as the table of known kinds says.

        deletion_costs: writes which pods should leave before each scale-down; None: they are not written.
        """
        self._read_timeout_s, self._write_timeout_s = read_timeout_s, write_timeout_s
        self._kube = kube
        self._kinds = kinds or TargetKinds()
        self._writes = writes
        self._deletion_costs = deletion_costs
        self._leadership = leadership
        self._slots = asyncio.Semaphore(CONCURRENCY)

    async def apply(self, changes: Sequence[Change], deadline_s: float) -> list[Outcome]:
        """Patch each change, 16 at a time; namespaces take turns. What is not done by the deadline has failed."""
        not_sent = f"not sent within {deadline_s:g} s, {len(changes)} changes were due"
        outcomes = [Outcome(change, ChangeStatus.FAILED, not_sent) for change in changes]

        async def patch(index: int) -> None:
            async with self._slots:
                no_answer = "sent, but not answered in time; it may have been applied"
                outcomes[index] = Outcome(changes[index], ChangeStatus.FAILED, no_answer)
                outcomes[index] = await self._patch(changes[index])

        try:
            async with asyncio.timeout(deadline_s), asyncio.TaskGroup() as tasks:
                for index in in_turns(range(len(changes)), lambda each: changes[each].ref.namespace):
                    tasks.create_task(patch(index), name=f"scale {changes[index].ref}")
        except TimeoutError:
            log.warning("scaling took too long", changes=len(changes), deadline_s=deadline_s)
        return outcomes

    async def _patch(self, change: Change) -> Outcome:
        located = self._kinds.locate(change.ref)
        if located is None:
            allowed = ", ".join(SCALED)
            return Outcome(change, ChangeStatus.FAILED, f"{change.ref.kind} cannot be scaled; allowed: {allowed}")
        if self._leadership is not None and not self._leadership.leading:
            return Outcome(change, ChangeStatus.FAILED, "this replica is no longer the leader")
        root, plural = located
        path = object_path(root, change.ref.namespace, plural, change.ref.name, "scale")
        version, is_unset = "", False
        if change.after < change.before:
            scale = await self._read(change, path, self._read_timeout_s)
            if isinstance(scale, Outcome):
                return scale
            if problem := _difference(change, scale):
                return Outcome(change, ChangeStatus.CONFLICT, problem)
            version, is_unset = scale.metadata.resource_version, scale.is_unset
            if self._deletion_costs is not None:
                await self._deletion_costs.write(change)
            if not self._writes.clock.now_s() < change.scale_down_until_s:
                return Outcome(change, ChangeStatus.FAILED, "not sent: its inputs are too old by now to scale down")
        return await self._write(change, path, version, is_unset)

    async def _write(self, change: Change, path: str, version: str, is_unset: bool) -> Outcome:
        """Send the patch. If it is refused because the object states no count yet, send it once more."""
        self._writes.add(change.uid, change.after)
        query, is_named = [("fieldManager", self._writes.manager)], not change.after and path.startswith(NAMED_ZEROS)
        try:
            answer = await self._kube.request(
                "PATCH",
                path,
                _apply_zero(change, version) if is_named else _compare_and_set(change, version, is_unset),
                query=[*query, ("force", "true")] if is_named else query,
                content_type=APPLY if is_named else JSON_PATCH,
                timeout_s=self._write_timeout_s,
            )
        except ApiError as error:
            outcome = Outcome(change, *_status_of(error))
            if error.status == INVALID:
                scale = await self._read(change, path, self._write_timeout_s)
                if not is_unset and isinstance(scale, _Scale) and scale.is_unset:
                    return await self._write(change, path, version, is_unset=True)
                outcome = _find_conflict(change, scale, version, error)
            if outcome.status is ChangeStatus.FAILED and _is_refusal(error) and error.message in outcome.detail:
                self._writes.add_refusal(change.uid, change.after, change.before, one_line("", error.message))
            return outcome
        return self._read_answer(change, answer)

    def _read_answer(self, change: Change, answer: bytes) -> Outcome:
        """Return the outcome of an accepted patch, by the count that was stored."""
        try:
            stored = msgspec.json.decode(answer, type=_Scale).spec.replicas
        except UNREADABLE:  # the watch will show it
            stored = change.after
        if stored == change.after:
            self._writes.clear_refusal(change.uid)
            return Outcome(change, ChangeStatus.APPLIED)
        problem = f"the API server stored {stored} instead of {change.after}: an admission policy or webhook changes it"
        self._writes.add(change.uid, stored)
        self._writes.add_refusal(change.uid, change.after, stored, problem)
        return Outcome(change, ChangeStatus.FAILED, problem)

    async def _read(self, change: Change, path: str, timeout_s: float) -> _Scale | Outcome:
        """Return the present scale, or a failed outcome if it cannot be read."""
        try:
            return msgspec.json.decode(await self._kube.request("GET", path, timeout_s=timeout_s), type=_Scale)
        except ApiError as error:
            if error.status == INTERNAL_ERROR and NO_COUNT in error.message:
                return _Scale(_ScaleMetadata(uid=change.uid), _ScaleSpec(UNSET_COUNT))
            return Outcome(change, *_status_of(error))
        except UNREADABLE as error:
            return Outcome(change, ChangeStatus.FAILED, f"its scale cannot be read: {error}")


def _find_conflict(change: Change, scale: _Scale | Outcome, version: str, refusal: ApiError) -> Outcome:
    """Return which test of the patch failed, by the present scale. The API server does not tell."""
    if isinstance(scale, Outcome):
        return scale
    problem = _difference(change, scale)
    if not problem and version not in ("", scale.metadata.resource_version):
        problem = "it changed just before it was scaled down"
    status = ChangeStatus.CONFLICT if problem else ChangeStatus.FAILED
    return Outcome(change, status, problem or refusal.message)


def _difference(change: Change, scale: _Scale) -> str:
    """Return how the scale differs from the one that the change was decided for; "": it does not."""
    if scale.metadata.uid != change.uid:
        return "it was deleted and created again"
    if scale.spec.replicas != change.before and not scale.is_unset:
        return f"it has {scale.spec.replicas} replicas now, not {change.before}"
    return ""


def _compare_and_set(change: Change, version: str, is_unset: bool) -> list[dict[str, object]]:
    """Return a JSON patch that applies only to the same object with the old count.

    version: the only resourceVersion it applies to; "": any. is_unset: the object states no count yet. A Scale omits a
    count of 0, which a test for null matches.
    """
    before = UNSET_COUNT if is_unset else change.before or None
    unchanged: dict[str, object] = {"op": "test", "path": "/metadata/resourceVersion", "value": version}
    return [
        *([unchanged] if version else []),
        {"op": "test", "path": "/metadata/uid", "value": change.uid},
        {"op": "test", "path": "/spec/replicas", "value": before},
        {"op": "add", "path": "/spec/replicas", "value": change.after},
    ]


def _apply_zero(change: Change, version: str) -> dict[str, object]:
    """Return a Scale of zero to apply, only to this version of the same object."""
    named = {"name": change.ref.name, "namespace": change.ref.namespace}
    metadata = {**named, "uid": change.uid, "resourceVersion": version}
    return {"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": metadata, "spec": {"replicas": 0}}


def _is_refusal(error: ApiError) -> bool:
    """Return whether the next tick would be refused as well."""
    return error.status in REFUSING or (error.status == INTERNAL_ERROR and WEBHOOK in error.message)


def _status_of(error: ApiError) -> tuple[ChangeStatus, str]:
    if error.status == CONFLICT:
        return ChangeStatus.CONFLICT, f"another client wrote at the same time: {error.message}"
    if error.status == NOT_FOUND:
        return ChangeStatus.FAILED, "it is gone"
    if error.status == FORBIDDEN:
        return ChangeStatus.FAILED, f"not allowed: {error.message}"
    if error.status == BUSY:
        wait = f", retry after {error.retry_after_s:g} s" if error.retry_after_s else ""
        return ChangeStatus.FAILED, f"the API server is busy{wait}: {error.message}"
    return ChangeStatus.FAILED, str(error)
