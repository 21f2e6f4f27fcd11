"""Manual overrides: counts that were changed by someone else, and how long such a change is respected."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from autoscaler.adapters.kubernetes.api.client import FIELD_MANAGER
from autoscaler.adapters.kubernetes.count_writers import NOBODY, PEOPLE, UNNAMED, Meaning, Writer, read_meaning
from autoscaler.adapters.kubernetes.own_writes import OwnWrites
from autoscaler.config.findings import UNREADABLE
from autoscaler.core.snapshot import ManualOverride
from autoscaler.ports import Clock, Leadership

FIRST_OVERRIDE_S = 300.0  # a workload is not scaled for this long after a manual change
LONGEST_OVERRIDE_S = 3600.0
MANUAL_REPEAT_FACTOR = 1
"""A change within this many durations after an override ends is a repeated change, and doubles the duration."""

INSTALLATION_REPEAT_FACTOR = 4
"""The same for another installation. It pauses after each of our writes, so its next change comes later."""

REMEMBERED_S = 86_400.0
"""A change that the same writer makes again within this time is a repetition, whatever its period: tools that apply
manifests come back every ten minutes or every few hours."""

REDEPLOYED_S = 600.0
"""After this time without one, a reset that comes with another pod template is a new deployment, not a repetition."""

RESTORED_S = 60.0  # for this long after a reset the daemon tries to restore the former count
NOTE_LIMIT = 32_000  # characters of a note about overrides


class _Override(NamedTuple):
    """The last foreign change of one count."""

    owner: str  # in words
    until_s: float  # infinite for a zero: it ends when somebody raises the count, or at a stated time
    duration_s: float  # 0: it is not respected, because a deployment carried the count along
    writer: str = ""
    replicas: int = -1
    at_s: float = -math.inf
    times: int = 1  # in a row by this writer
    former: int = -1  # the count that is to be restored; -1: none


class _StatedEnd(NamedTuple):
    """The time at which a zero ends, as an annotation of the workload states it."""

    wall_s: float
    was_ahead: bool  # at some moment of this zero; an older time ends no zero


class OverrideTracker:
    """Detects changes of a count that are not ours, and stops scaling the workload for a while.

    The first change is respected for five minutes. Each repeated change doubles this time, up to an hour. A zero is
    respected until somebody raises it, or until the time that the workload states. A count that a deployment carried
    along is not respected: the former one is restored once, and only a repeated reset is respected. The count that is
    found at the start is no override. The API server does not tell when a count was set, and at zero it does not tell
    which client set it.

    Another installation of the daemon is known by its field manager, and respected from the start. Version 0.1 wrote
    without an installation name: its writes count as ours, so that an upgrade sees no override.
    Implements ManualOverrides.
    """

    def __init__(self, clock: Clock, writes: OwnWrites, leadership: Leadership | None = None) -> None:
        """leadership: whether other replicas of the daemon may write; None: there are none."""
        self._clock = clock
        self._writes = writes
        self._leadership = leadership
        self._ours: set[str] = set()  # uids whose count was written by this or another process of the daemon
        self._declared: dict[str, int] = {}  # counts of manifests, by uid
        self._overrides: dict[str, _Override] = {}
        self._ends: dict[str, _StatedEnd] = {}  # of present zeros, by uid

    def observe_new(self, uid: str, replicas: int, writer: Writer = NOBODY) -> None:
        """Note an object that is seen for the first time."""
        if self._is_ours(writer):
            self._ours.add(uid)
        elif writer.is_installation:
            self._set(uid, replicas, writer, FIRST_OVERRIDE_S, f"another installation, {writer.manager}")
        elif writer.manager in PEOPLE and replicas == 0:
            owner = Meaning.PERSON.value.format(writer.manager)
            self._set(uid, replicas, writer, FIRST_OVERRIDE_S, owner, until_s=math.inf)
        elif writer.manager and not writer.wrote_scale:
            self._declared[uid] = replicas

    def observe_change(
        self,
        uid: str,
        replicas: int,
        writer: Writer = NOBODY,
        *,
        former: int = -1,
        redeployed: bool = False,
        default: int | None = None,
    ) -> None:
        """Note that the count of a managed workload is `replicas` now.

        writer: unknown after a count of zero. A change without a writer is an override only if this process leads.
        Otherwise the leader may have written it. former: the count before. redeployed: the pod template has changed
        too. default: the count that came back if a manifest has none any more; None: no manifest had one.
        """
        override = self._overrides.get(uid)
        if self._is_ours(writer) or (not writer.manager and self._writes.has_written(uid, replicas)):
            self._ours.add(uid)
            if override is not None:
                until_s = self._clock.now_s() if override.until_s == math.inf else override.until_s
                self._overrides[uid] = override._replace(until_s=until_s, former=-1)
            return
        if not writer.manager and self._leadership is not None and not self._leadership.leading:
            if replicas == 0:
                self._ours.discard(uid)
            return
        if writer.is_installation:
            duration_s = self._duration_s(uid, override, INSTALLATION_REPEAT_FACTOR, is_installation=True)
            self._set(uid, replicas, writer, duration_s, f"another installation, {writer.manager}")
            return
        declared = self._declared.get(uid)
        meaning = read_meaning(writer, replicas, redeployed=redeployed, declared=declared, default=default)
        if meaning in (Meaning.MANIFEST, Meaning.CARRIED):
            self._declared[uid] = replicas
        self._respect(uid, replicas, writer, meaning, former, redeployed)

    def state_end(self, uid: str, replicas: int, wall_s: float | None) -> None:
        """Note the count of a workload, and the time at which its zero ends by an annotation; None: it has none."""
        now_s, override = self._clock.now_s(), self._overrides.get(uid)
        if override is not None and (until_s := self._until_s(uid, override)) <= now_s:
            self._overrides[uid] = override._replace(until_s=until_s)  # it does not come back with another time
        before = self._ends.pop(uid, None)
        if replicas == 0 and wall_s is not None:
            was_ahead = wall_s > self._clock.wall_s() or (before is not None and before.was_ahead)
            self._ends[uid] = _StatedEnd(wall_s, was_ahead)

    def _respect(
        self, uid: str, replicas: int, writer: Writer, meaning: Meaning, former: int, redeployed: bool
    ) -> None:
        """Decide for how long a foreign change is respected, and whether the former count is restored."""
        before, now_s = self._overrides.get(uid), self._clock.now_s()
        owner = meaning.value.format(writer.manager or "an unknown client")
        again, times = False, 1
        if before is not None and before.writer == writer.manager and now_s < before.at_s + REMEMBERED_S:
            is_same = before.replicas == replicas or meaning in (Meaning.CONTROLLER, Meaning.CARRIED)
            times = before.times + 1 if is_same else 1
            again = times > (2 if meaning is Meaning.PERSON else 1)
        if meaning is Meaning.CARRIED:
            pause_s = now_s - before.at_s if before is not None else math.inf
            if not again or (redeployed and pause_s >= REDEPLOYED_S):
                if before is not None and before.former > former:  # it was not yet restored
                    former = before.former
                self._set(uid, replicas, writer, 0.0, owner, former=former if former > replicas else -1)
                return
        elif replicas == 0:
            self._set(uid, replicas, writer, FIRST_OVERRIDE_S, owner, until_s=math.inf, times=times)
            return
        self._set(uid, replicas, writer, self._duration_s(uid, before, MANUAL_REPEAT_FACTOR, again), owner, times=times)

    def _duration_s(
        self, uid: str, before: _Override | None, factor: float, again: bool = False, is_installation: bool = False
    ) -> float:
        """Return for how long a change is respected. factor: durations after the end within which it is repeated."""
        now_s = self._clock.now_s()
        if before is None or not (again or now_s < before.until_s + factor * before.duration_s < math.inf):
            return FIRST_OVERRIDE_S
        is_ours = uid in self._ours
        if now_s < before.until_s and (is_installation or not is_ours):
            return max(before.duration_s, FIRST_OVERRIDE_S)
        if not (is_ours or again or is_installation):
            return FIRST_OVERRIDE_S  # the old count was right, so the daemon never wrote it
        return min(max(2 * before.duration_s, FIRST_OVERRIDE_S), LONGEST_OVERRIDE_S)

    def owner(self, uid: str, replicas: int) -> str:
        """Return the source of the override in words; "": there is no override. replicas: the present count."""
        override = self._overrides.get(uid)
        if override is None or (replicas > 0 and override.until_s == math.inf):  # a zero that lasts ends with the zero
            return ""
        return override.owner if self._clock.now_s() < self._until_s(uid, override) else ""

    def until_s(self, uid: str) -> float:
        """Return when the override ends; infinite: when somebody raises the count.

        Without an override it is the stated end of a zero. NaN: there is none.
        """
        override, end = self._overrides.get(uid), self._ends.get(uid)
        until_s = self._until_s(uid, override) if override is not None else math.nan
        if end is None or not end.was_ahead or until_s > self._clock.now_s():
            return until_s
        return self._stated_s(end)

    def former(self, uid: str, replicas: int) -> int:
        """Return the count that a deployment has reset to `replicas`, and that is to be restored; -1: none."""
        override = self._overrides.get(uid)
        is_due = override is not None and self._is_restored(uid, override) and override.replicas == replicas
        return override.former if override is not None and is_due else -1

    def active(self) -> frozenset[tuple[str, bool]]:
        """Return the uids of workloads with an override or a count to restore, and whether it is an override."""
        now_s = self._clock.now_s()
        held = {uid: now_s < self._until_s(uid, override) for uid, override in self._overrides.items()}
        held |= {uid: True for uid in self._ends if now_s < self.until_s(uid)}
        return frozenset(
            (uid, is_held)
            for uid, is_held in held.items()
            if is_held or (uid in self._overrides and self._is_restored(uid, self._overrides[uid]))
        )

    def is_nameless_zero(self, uid: str, replicas: int, writer: Writer) -> bool:
        """Whether somebody set a count of zero, and it is not known who. Our own zeros are named, or known."""
        return replicas == 0 and writer == UNNAMED and uid not in self._ours and not self._has_ended(uid)

    def snapshot(self) -> tuple[ManualOverride, ...]:
        now_s, offset_s = self._clock.now_s(), self._clock.wall_s() - self._clock.now_s()
        kept = []
        for uid, override in self._overrides.items():
            lasts = override.until_s == math.inf
            until_s = override.at_s if lasts else override.until_s
            if lasts or now_s < max(until_s + override.duration_s, override.at_s + REMEMBERED_S):
                kept.append(
                    ManualOverride(
                        uid=uid,
                        owner=override.owner,
                        until_s=until_s + offset_s,
                        duration_s=override.duration_s,
                        writer=override.writer,
                        replicas=override.replicas,
                        at_s=override.at_s + offset_s,
                        times=override.times,
                        lasts=lasts,
                    )
                )
        return tuple(kept)

    def restore(self, overrides: Sequence[ManualOverride]) -> None:
        """Respect the overrides of another process. Later changes that this process noticed itself take precedence.

        None lasts longer than the longest override, even if the wall clock was changed, except for a zero.
        """
        now_s, offset_s = self._clock.now_s(), self._clock.wall_s() - self._clock.now_s()
        for each in overrides:
            at_s = min(each.at_s - offset_s, now_s)
            known = self._overrides.get(each.uid)
            if known is not None and known.at_s >= at_s:
                continue
            until_s = math.inf if each.lasts else min(each.until_s - offset_s, now_s + LONGEST_OVERRIDE_S)
            duration_s = min(each.duration_s, LONGEST_OVERRIDE_S)
            restored = _Override(each.owner, until_s, duration_s, each.writer, each.replicas, at_s, each.times)
            self._overrides[each.uid] = restored

    def note(self) -> str:
        """Return the overrides as text for other replicas of the daemon: the latest ones, as far as there is room."""
        rows = sorted(self.snapshot(), key=lambda each: (each.lasts, each.at_s), reverse=True)
        texts, left = [], NOTE_LIMIT
        for row in rows:
            text = msgspec.json.encode(row).decode()
            left -= len(text) + 1
            if left < 0:
                break
            texts.append(text)
        return f"[{','.join(texts)}]" if texts else ""

    def read_note(self, text: str) -> None:
        """Respect the overrides in the note of another replica. A note that is not valid is ignored."""
        try:
            self.restore(msgspec.json.decode(text[: NOTE_LIMIT + 2], type=list[ManualOverride]))
        except UNREADABLE:
            return

    def forget(self, uid: str) -> None:
        """Forget an object that was deleted."""
        self._ours.discard(uid)
        self._declared.pop(uid, None)
        self._overrides.pop(uid, None)
        self._ends.pop(uid, None)

    def _until_s(self, uid: str, override: _Override) -> float:
        """Return when an override ends. A stated time ends a zero that is older than the time."""
        end = self._ends.get(uid)
        if end is None or override.until_s < math.inf:
            return override.until_s
        stated_s = self._stated_s(end)
        return stated_s if end.was_ahead or override.at_s < stated_s else math.inf

    def _has_ended(self, uid: str) -> bool:
        """Whether the stated end of a zero is over."""
        now_s, override = self._clock.now_s(), self._overrides.get(uid)
        is_over = override is not None and override.replicas == 0 and self._until_s(uid, override) <= now_s
        return is_over or self.until_s(uid) <= now_s

    def _stated_s(self, end: _StatedEnd) -> float:
        return end.wall_s - self._clock.wall_s() + self._clock.now_s()

    def _is_ours(self, writer: Writer) -> bool:
        return writer.manager in (self._writes.manager, FIELD_MANAGER)

    def _is_restored(self, uid: str, override: _Override) -> bool:
        is_due = override.former >= 0 and self._clock.now_s() < override.at_s + RESTORED_S
        return is_due and uid not in self._writes.refusals()

    def _set(
        self,
        uid: str,
        replicas: int,
        writer: Writer,
        duration_s: float,
        owner: str,
        *,
        until_s: float = math.nan,
        times: int = 1,
        former: int = -1,
    ) -> None:
        """Remember a foreign change. until_s: NaN: after its duration."""
        now_s = self._clock.now_s()
        end_s = now_s + duration_s if math.isnan(until_s) else until_s
        self._ours.discard(uid)
        self._overrides[uid] = _Override(owner, end_s, duration_s, writer.manager, replicas, now_s, times, former)
