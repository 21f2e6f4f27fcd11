"""The only writer of replica counts: patches the scale subresource, and only where the old count still stands.

Which counts are right is decided elsewhere. There are no retries here: the next tick is the retry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import structlog

from autoscaler.adapters.kubernetes.api.client import ApiError, Kube, object_path
from autoscaler.adapters.kubernetes.own_writes import OwnWrites
from autoscaler.adapters.kubernetes.pods.store import quoted
from autoscaler.adapters.kubernetes.workloads.targets import KINDS
from autoscaler.ports import Change, ChangeStatus, Leadership, Outcome

log = structlog.get_logger(__name__)

CONCURRENCY = 16
# A patch that was sent while leading must be over before another can lead: below the 5 s between the renew deadline
# and the end of the lease in client-go's defaults, which are ours too.
WRITE_TIMEOUT_S = 4.0
READ_TIMEOUT_S = 1.0
"""For a look at the scale before it is made smaller. A server that does not answer within it may be hung: it would
apply a patch when it thaws, and the load may be back by then."""
JSON_PATCH = "application/json-patch+json"  # the one that built-in kinds and custom resources both take
CONFLICT, INVALID, NOT_FOUND, FORBIDDEN, BUSY = 409, 422, 404, 403, 429
REFUSING = (400, 403, 405, 422)  # of the object or the right to it, so that the next tick would hear the same
BROKEN, WEBHOOK = 500, "webhook"  # ... and so is an admission webhook that cannot be asked


class _ScaleMetadata(msgspec.Struct):
    uid: str = ""
    resource_version: str = msgspec.field(default="", name="resourceVersion")


class _ScaleSpec(msgspec.Struct):
    replicas: int = 0  # the API leaves 0 out


class _Scale(msgspec.Struct):
    metadata: _ScaleMetadata
    spec: _ScaleSpec = msgspec.field(default_factory=_ScaleSpec)


class ScaleActuator:
    """Sets replica counts through a `Kube`. `leadership` is asked again right before each patch."""

    def __init__(self, kube: Kube, writes: OwnWrites, leadership: Leadership | None = None) -> None:
        self._kube = kube
        self._writes = writes
        self._leadership = leadership
        self._slots = asyncio.Semaphore(CONCURRENCY)

    async def apply(self, changes: Sequence[Change], deadline_s: float) -> list[Outcome]:
        """Patch each change, some at a time; what is not done by the deadline has failed and is told so."""
        late = f"not sent within {deadline_s:g} s, {len(changes)} changes were due"
        outcomes = [Outcome(change, ChangeStatus.FAILED, late) for change in changes]

        async def one(index: int) -> None:
            async with self._slots:
                sent = "sent, but not answered in time; it may have been applied"
                outcomes[index] = Outcome(changes[index], ChangeStatus.FAILED, sent)
                outcomes[index] = await self._patch(changes[index])

        try:
            async with asyncio.timeout(deadline_s), asyncio.TaskGroup() as tasks:
                for index in range(len(changes)):
                    tasks.create_task(one(index), name=f"scale {changes[index].ref}")
        except TimeoutError:
            log.warning("scaling took too long", changes=len(changes), deadline_s=deadline_s)
        return outcomes

    async def _patch(self, change: Change) -> Outcome:
        kind = KINDS.get(change.ref.kind)
        if kind is None:
            allowed = ", ".join(KINDS)
            return Outcome(change, ChangeStatus.FAILED, f"{change.ref.kind} cannot be scaled; allowed: {allowed}")
        if self._leadership is not None and not self._leadership.leading:
            return Outcome(change, ChangeStatus.FAILED, "this replica is no longer the leader")
        path = object_path(kind.root, change.ref.namespace, kind.plural, change.ref.name, "scale")
        version = ""
        if change.after < change.before:
            scale = await self._read(change, path, READ_TIMEOUT_S)
            if isinstance(scale, Outcome):
                return scale
            if problem := _differs(change, scale):
                return Outcome(change, ChangeStatus.CONFLICT, problem)
            version = scale.metadata.resource_version
            if not self._writes.clock.now_s() < change.until_s:
                return Outcome(change, ChangeStatus.FAILED, "not sent: its inputs are too old by now to scale down")
        self._writes.note(change.uid, change.after)
        try:
            await self._kube.request(
                "PATCH",
                path,
                _compare_and_set(change, version),
                query=[("fieldManager", self._writes.manager)],
                content_type=JSON_PATCH,
                timeout_s=WRITE_TIMEOUT_S,
            )
        except ApiError as error:
            outcome = Outcome(change, *_verdict(error))
            if error.status == INVALID:
                outcome = await self._explain(change, path, version, error)
            if outcome.status is ChangeStatus.FAILED and _refuses(error) and error.message in outcome.detail:
                self._writes.refused(change.uid, change.after, quoted("", error.message))
            return outcome
        self._writes.accepted(change.uid)
        return Outcome(change, ChangeStatus.APPLIED)

    async def _read(self, change: Change, path: str, timeout_s: float) -> _Scale | Outcome:
        """Return the scale as it stands, or why it cannot be read."""
        try:
            return msgspec.json.decode(await self._kube.request("GET", path, timeout_s=timeout_s), type=_Scale)
        except ApiError as error:
            return Outcome(change, *_verdict(error))
        except msgspec.MsgspecError as error:
            return Outcome(change, ChangeStatus.FAILED, f"its scale cannot be read: {error}")

    async def _explain(self, change: Change, path: str, version: str, refusal: ApiError) -> Outcome:
        """Find out which of the tests failed: the API server does not say."""
        scale = await self._read(change, path, WRITE_TIMEOUT_S)
        if isinstance(scale, Outcome):
            return scale
        problem = _differs(change, scale)
        if not problem and version not in ("", scale.metadata.resource_version):
            problem = "it changed just before it was scaled down"
        return (
            Outcome(change, ChangeStatus.CONFLICT, problem)
            if problem
            else Outcome(change, ChangeStatus.FAILED, refusal.message)
        )


def _differs(change: Change, scale: _Scale) -> str:
    """Say why the scale is not what the change was decided for; "": it is."""
    if scale.metadata.uid != change.uid:
        return "it was deleted and created again"
    if scale.spec.replicas != change.before:
        return f"it has {scale.spec.replicas} replicas now, not {change.before}"
    return ""


def _compare_and_set(change: Change, version: str) -> list[dict[str, object]]:
    """Write a JSON patch that holds only for the same object with the old count, and in one version if one is given.

    A count of 0 is absent from a Scale, and a test for null is the test for absence.
    """
    unchanged: dict[str, object] = {"op": "test", "path": "/metadata/resourceVersion", "value": version}
    return [
        *([unchanged] if version else []),
        {"op": "test", "path": "/metadata/uid", "value": change.uid},
        {"op": "test", "path": "/spec/replicas", "value": change.before or None},
        {"op": "add", "path": "/spec/replicas", "value": change.after},
    ]


def _refuses(error: ApiError) -> bool:
    """Say whether the next tick would be refused alike."""
    return error.status in REFUSING or (error.status == BROKEN and WEBHOOK in error.message)


def _verdict(error: ApiError) -> tuple[ChangeStatus, str]:
    if error.status == CONFLICT:
        return ChangeStatus.CONFLICT, f"somebody else wrote at the same time: {error.message}"
    if error.status == NOT_FOUND:
        return ChangeStatus.FAILED, "it is gone"
    if error.status == FORBIDDEN:
        return ChangeStatus.FAILED, f"not allowed: {error.message}"
    if error.status == BUSY:
        wait = f", it asks to wait {error.retry_after_s:g} s" if error.retry_after_s else ""
        return ChangeStatus.FAILED, f"the API server is busy{wait}: {error.message}"
    return ChangeStatus.FAILED, str(error)
