"""Manual overrides: counts that were changed by someone else, and how long such a change is respected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from autoscaler.adapters.kubernetes.api.client import FIELD_MANAGER
from autoscaler.adapters.kubernetes.own_writes import OwnWrites
from autoscaler.core.snapshot import ManualOverride
from autoscaler.ports import Clock, Leadership

FIRST_OVERRIDE_S = 300.0  # a workload is not scaled for this long after a manual change
LONGEST_OVERRIDE_S = 3600.0
MANUAL_REPEAT_FACTOR = 1
"""A change within this many durations after an override ends is a repeated change, and doubles the duration."""

INSTALLATION_REPEAT_FACTOR = 4
"""The same for another installation. It pauses after each of our writes, so its next change comes later."""


class _Override(NamedTuple):
    owner: str
    until_s: float
    duration_s: float


class OverrideTracker:
    """Detects changes of a count that are not ours, and stops scaling the workload for a while.

    The first change is respected for five minutes. Each repeated change (a manifest that is applied again and again)
    doubles this time, up to an hour. The count that is found at the start is no override. The API server does not tell
    when a count was set, and at zero it does not tell which client set it.

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
        self._overrides: dict[str, _Override] = {}

    def observe_new(self, uid: str, writer: str) -> None:
        """Note an object that is seen for the first time. writer: the field manager of its count."""
        if self._is_ours(writer):
            self._ours.add(uid)
        elif _is_installation(writer):
            self._set(uid, writer, FIRST_OVERRIDE_S)

    def observe_change(self, uid: str, replicas: int, writer: str) -> None:
        """Note that the count of a managed workload is `replicas` now.

        writer: its field manager; "" if the API server does not know, as after a count of zero. A change without a
        writer is an override only if this process leads. Otherwise the leader may have written it.
        """
        is_ours = self._is_ours(writer) or (not writer and self._writes.has_written(uid, replicas))
        if is_ours:
            self._ours.add(uid)
            return
        now_s = self._clock.now_s()
        override = self._overrides.get(uid)
        is_foreign = bool(writer) or self._leadership is None or self._leadership.leading
        is_installation = _is_installation(writer)
        is_active = override is not None and now_s < override.until_s
        if override is not None and is_active and (is_installation or uid not in self._ours or not is_foreign):
            duration_s = override.duration_s
        elif is_foreign and (is_installation or uid in self._ours):
            factor = INSTALLATION_REPEAT_FACTOR if is_installation else MANUAL_REPEAT_FACTOR
            if override is not None and now_s < override.until_s + factor * override.duration_s:
                duration_s = min(2 * override.duration_s, LONGEST_OVERRIDE_S)
            else:
                duration_s = FIRST_OVERRIDE_S
        elif is_foreign:
            duration_s = FIRST_OVERRIDE_S  # the old count was right, so the daemon never wrote it
        else:
            return
        self._ours.discard(uid)
        self._set(uid, writer, duration_s)

    def owner(self, uid: str) -> str:
        """Return the source of the override in words; "": there is no override."""
        override = self._overrides.get(uid)
        return override.owner if override is not None and self._clock.now_s() < override.until_s else ""

    def active(self) -> frozenset[str]:
        """Return the uids of workloads with an override."""
        now_s = self._clock.now_s()
        return frozenset(uid for uid, override in self._overrides.items() if now_s < override.until_s)

    def snapshot(self) -> tuple[ManualOverride, ...]:
        now_s, wall_s = self._clock.now_s(), self._clock.wall_s()
        return tuple(
            ManualOverride(uid, override.owner, wall_s + override.until_s - now_s, override.duration_s)
            for uid, override in self._overrides.items()
            if now_s < override.until_s + override.duration_s
        )

    def restore(self, overrides: Sequence[ManualOverride]) -> None:
        """Respect the overrides of an earlier process. Overrides that this process noticed itself take precedence.

        None lasts longer than the longest override, even if the wall clock was changed.
        """
        now_s, wall_s = self._clock.now_s(), self._clock.wall_s()
        for override in overrides:
            left_s = min(override.until_s - wall_s, LONGEST_OVERRIDE_S)
            duration_s = min(override.duration_s, LONGEST_OVERRIDE_S)
            self._overrides.setdefault(override.uid, _Override(override.owner, now_s + left_s, duration_s))

    def forget(self, uid: str) -> None:
        """Forget an object that was deleted."""
        self._ours.discard(uid)
        self._overrides.pop(uid, None)

    def _is_ours(self, writer: str) -> bool:
        return writer in (self._writes.manager, FIELD_MANAGER)

    def _set(self, uid: str, writer: str, duration_s: float) -> None:
        if _is_installation(writer):
            owner = f"another installation, {writer}"
        else:
            owner = f"a manual change by {writer or 'an unknown client'}"
        self._overrides[uid] = _Override(owner, self._clock.now_s() + duration_s, duration_s)


def _is_installation(writer: str) -> bool:
    """Return whether a field manager is that of an installation of the daemon."""
    return writer.startswith(f"{FIELD_MANAGER}/")
