"""Leadership and actuator of a process that changes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from autoscaler.ports import Change, ChangeStatus, Outcome


class AlwaysLeading:
    """Leadership of a single process."""

    @property
    def leading(self) -> bool:
        return True

    @property
    def has_other_leader(self) -> bool:
        return False


class RecordingActuator:
    """The actuator of dry-run: it records changes and applies none."""

    async def apply(self, changes: Sequence[Change], deadline_s: float) -> list[Outcome]:
        return [Outcome(change, ChangeStatus.RECORDED) for change in changes]
