"""Who else owns a replica count: HorizontalPodAutoscalers, ScaledObjects, and hands that undo what we wrote."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from autoscaler.adapters.kubernetes.api.client import FIELD_MANAGER
from autoscaler.adapters.kubernetes.api.objects import AutoscalerStatus, Behavior, HorizontalPodAutoscaler, ScalingRules
from autoscaler.adapters.kubernetes.own_writes import OwnWrites
from autoscaler.adapters.kubernetes.pods.store import quoted
from autoscaler.config.check.scaledobject import DISABLED, TOLERANCE
from autoscaler.core.model.fleet import WorkloadRef
from autoscaler.core.snapshot import Hold
from autoscaler.ports import Clock, Leadership

CONFLICT = "the object has been modified"  # of the API server, in the controller's message
MAX_METRICS, MAX_NAME = 100, 253  # of an HPA: metrics that are looked at, and characters of a name

HAND_HOLD_S = 300.0  # after a manual change the workload is left alone this long; each further one doubles it
HAND_HOLD_LIMIT_S = 3600.0
UNDONE = 1  # a change counts as a further one for so many lengths of the last hold after its end
TAKES_TURNS = 4  # ... of another installation, which holds back itself after each of our writes


class TargetKey(NamedTuple):
    """A scale target as an autoscaler names it: the version does not matter."""

    namespace: str
    group: str
    kind: str
    name: str


def target_key(ref: WorkloadRef) -> TargetKey:
    return TargetKey(ref.namespace, api_group(ref.api_version), ref.kind, ref.name)


def api_group(api_version: str) -> str:
    """Return "apps" for "apps/v1", and "" for "v1"."""
    return api_version.partition("/")[0] if "/" in api_version else ""


class Claim(Protocol):
    """What a table keeps of an autoscaler."""

    @property
    def target(self) -> TargetKey: ...


Claimed = TypeVar("Claimed", bound=Claim)


class ClaimTable(Generic[Claimed]):
    """Autoscalers of one kind, by name and by target. `version` grows when what is kept of one changes."""

    def __init__(self) -> None:
        self.version = 0
        self._kept: dict[tuple[str, str], Claimed] = {}
        self._by_target: dict[TargetKey, dict[str, Claimed]] = {}

    def keep(self, namespace: str, name: str, claim: Claimed) -> None:
        if self._kept.get((namespace, name)) != claim:
            self.remove(namespace, name)
            self._kept[namespace, name] = claim
            self._by_target.setdefault(claim.target, {})[name] = claim
            self.version += 1

    def remove(self, namespace: str, name: str, /) -> None:
        claim = self._kept.pop((namespace, name), None)
        if claim is not None:
            del self._by_target[claim.target][name]
            if not self._by_target[claim.target]:
                del self._by_target[claim.target]
            self.version += 1

    def of(self, target: TargetKey) -> list[Claimed]:
        """Return every one with this target, by name."""
        claims = self._by_target.get(target)
        return [claims[name] for name in sorted(claims)] if claims else []


class Hpa(NamedTuple):
    name: str
    target: TargetKey
    scaled_object: str  # name of the ScaledObject that made it; "": none
    tolerance_up: float | None  # None: the controller's default
    tolerance_down: float | None
    holds_up: bool  # it adds no replica, whatever its metrics say
    holds_down: bool  # it takes none away
    metrics: tuple[str, ...]  # names of its external metrics
    unable: str  # why it cannot change the count, in the controller's words; "": it can


class HpaTable(ClaimTable[Hpa]):
    """Receives HorizontalPodAutoscalers. One that is being deleted owns nothing any more."""

    def put(self, seen: HorizontalPodAutoscaler, /) -> None:
        metadata, reference = seen.metadata, seen.spec.scale_target_ref
        if metadata.deletion_timestamp is not None:
            self.remove(metadata.namespace, metadata.name)
            return
        owner = metadata.controller()
        behavior = seen.spec.behavior or Behavior()
        metrics = (seen.spec.metrics or ())[:MAX_METRICS]
        hpa = Hpa(
            metadata.name,
            TargetKey(metadata.namespace, api_group(reference.api_version), reference.kind, reference.name),
            owner.name if owner is not None and owner.kind == "ScaledObject" else "",
            _tolerance(behavior.scale_up),
            _tolerance(behavior.scale_down),
            behavior.scale_up is not None and behavior.scale_up.select_policy == DISABLED,
            behavior.scale_down is not None and behavior.scale_down.select_policy == DISABLED,
            tuple(metric.external.metric.name[:MAX_NAME] for metric in metrics if metric.external is not None),
            _unable(seen.status),
        )
        self.keep(metadata.namespace, metadata.name, hpa)

    def made_by(self, scaled_object: str, target: TargetKey) -> Hpa | None:
        """Return the HPA that a ScaledObject made for its target; None: none is known."""
        return next((hpa for hpa in self.of(target) if hpa.scaled_object == scaled_object), None)

    def owner(self, target: TargetKey, ours: str = "") -> str:
        """Name the HPA of a target, leaving out the one that the ScaledObject `ours` made; "": there is none."""
        for hpa in self.of(target):
            if not hpa.scaled_object:
                return f"HorizontalPodAutoscaler/{hpa.name}"
            if hpa.scaled_object != ours:
                return f"ScaledObject/{hpa.scaled_object}"
        return ""


def _tolerance(rules: ScalingRules | None) -> float | None:
    try:
        return TOLERANCE.read(rules.tolerance) if rules is not None and rules.tolerance is not None else None
    except ValueError:
        return None  # no ScaledObject that is answered makes such an HPA


def _unable(status: AutoscalerStatus) -> str:
    """Say why the HPA cannot change the count. Somebody else's write at the same moment is over at its next sync."""
    for condition in (status.conditions or ())[:MAX_METRICS]:
        if (condition.type, condition.status) == ("AbleToScale", "False") and CONFLICT not in (condition.message or ""):
            return quoted("", condition.message or condition.reason)
    return ""


def _is_daemon(writer: str) -> bool:
    return writer.startswith(f"{FIELD_MANAGER}/")


class _Hold(NamedTuple):
    owner: str
    until_s: float
    length_s: float


class Hands:
    """Notices that somebody changed a count that is ours to set, and steps back for a while instead of fighting.

    A single change holds for five minutes; whoever keeps undoing us (a manifest applied again and again) is given up
    to an hour. The count that is found at first is nobody's change: the first write is ours to make, unless another
    process noticed one, since the API server tells neither when a count was scaled nor by whom it was scaled to zero.
    Another installation of the daemon is known by its field manager, and its count is respected from the start. Older
    versions named no installation: their writes count as ours, as in an upgrade. One of another installation takes our
    writes for a person's, and so holds back itself.
    Implements Holds.
    """

    def __init__(self, clock: Clock, writes: OwnWrites, leadership: Leadership | None = None) -> None:
        """leadership: whether no other replica of the daemon writes; None: there is no other."""
        self._clock = clock
        self._writes = writes
        self._leadership = leadership
        self._ours: set[str] = set()  # uids whose count the daemon wrote, this process or another
        self._holds: dict[str, _Hold] = {}

    def first_seen(self, uid: str, writer: str) -> None:
        if writer in (self._writes.manager, FIELD_MANAGER):
            self._ours.add(uid)
        elif _is_daemon(writer):
            self._hold(uid, writer, HAND_HOLD_S)

    def changed(self, uid: str, after: int, writer: str) -> None:
        """The count of what we govern is another one now. `writer`: its field manager, as the API server remembers it.

        It forgets when a count passes through zero. Such a change is a stranger's if this process leads: else it may be
        the work of the replica of the daemon that does. A writer who is named is believed: who undoes what we did
        lately writes a count that we wrote before.
        """
        ours = writer in (self._writes.manager, FIELD_MANAGER)
        if ours or (not writer and self._writes.explain(uid, after)):
            self._ours.add(uid)
            return
        now_s = self._clock.now_s()
        hold = self._holds.get(uid)
        strange = bool(writer) or self._leadership is None or self._leadership.leading
        daemon = _is_daemon(writer)
        held = hold is not None and now_s < hold.until_s
        if hold is not None and held and (daemon or uid not in self._ours or not strange):
            length_s = hold.length_s
        elif strange and (daemon or uid in self._ours):
            patience = TAKES_TURNS if daemon else UNDONE
            again = hold is not None and now_s < hold.until_s + patience * hold.length_s
            length_s = min(2 * hold.length_s, HAND_HOLD_LIMIT_S) if hold is not None and again else HAND_HOLD_S
        elif strange:
            length_s = HAND_HOLD_S  # of a count that was right as it was, and so was never written
        else:
            return
        self._ours.discard(uid)
        self._hold(uid, writer, length_s)

    def _hold(self, uid: str, writer: str, length_s: float) -> None:
        owner = (
            f"another installation, {writer}" if _is_daemon(writer) else f"a manual change by {writer or 'somebody'}"
        )
        self._holds[uid] = _Hold(owner, self._clock.now_s() + length_s, length_s)

    def owner(self, uid: str) -> str:
        """Say whose change is being respected; "": nobody's."""
        hold = self._holds.get(uid)
        return hold.owner if hold is not None and self._clock.now_s() < hold.until_s else ""

    def holding(self) -> frozenset[str]:
        """Return the workloads that are held now; what a view that is kept must be compared with."""
        now_s = self._clock.now_s()
        return frozenset(uid for uid, hold in self._holds.items() if now_s < hold.until_s)

    def kept(self) -> tuple[Hold, ...]:
        now_s, wall_s = self._clock.now_s(), self._clock.wall_s()
        return tuple(
            Hold(uid, hold.owner, wall_s + hold.until_s - now_s, hold.length_s)
            for uid, hold in self._holds.items()
            if now_s < hold.until_s + hold.length_s
        )

    def recall(self, holds: Sequence[Hold]) -> None:
        """Leave alone what another process did; what this one noticed itself stands.

        However the wall clock was set, none lasts for longer than the longest.
        """
        now_s, wall_s = self._clock.now_s(), self._clock.wall_s()
        for hold in holds:
            left_s = min(hold.until_s - wall_s, HAND_HOLD_LIMIT_S)
            length_s = min(hold.length_s, HAND_HOLD_LIMIT_S)
            self._holds.setdefault(hold.uid, _Hold(hold.owner, now_s + left_s, length_s))

    def forget(self, uid: str) -> None:
        self._ours.discard(uid)
        self._holds.pop(uid, None)
