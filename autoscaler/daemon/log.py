"""What the log says of ticks: each change of state once, and one summary line a tick at debug level."""

from __future__ import annotations

import structlog

from autoscaler.core.model.fleet import WorkloadRef
from autoscaler.ports import ChangeStatus, TickRecord

log = structlog.get_logger(__name__)

EVENT = {
    ChangeStatus.APPLIED: "scaled",
    ChangeStatus.PUBLISHED: "published",
    ChangeStatus.RECORDED: "would scale",
    ChangeStatus.CONFLICT: "not scaled",
    ChangeStatus.FAILED: "not scaled",
}


class LogRecorder:
    """Writes changes, and the coming and going of trouble at the sources."""

    def __init__(self) -> None:
        self._troubled: dict[str, tuple[str, ...]] = {}
        self._untrusted: frozenset[str] = frozenset()
        self._leading: bool | None = None
        self._other_owners: dict[WorkloadRef, str] = {}
        self._problems: dict[WorkloadRef, str] = {}
        self._told: dict[WorkloadRef, tuple[int, ChangeStatus]] = {}

    def record(self, tick: TickRecord) -> None:
        self._changes(tick)
        self._sources(tick)
        self._trust(tick)
        self._ownership(tick)
        self._policies(tick)
        log.debug(
            "tick",
            number=tick.number,
            workloads=len(tick.policies),
            changes=len(tick.outcomes),
            duration_ms=round(tick.duration_s * 1000, 1),
        )

    def failed(self, wall_s: float, error: BaseException) -> None:
        """The loop itself logs failed ticks, once."""

    def _changes(self, tick: TickRecord) -> None:
        # Where others do it, or nobody, the same wish comes back every tick until the count has changed: told once.
        wishes = {outcome.change.ref: (outcome.change.after, outcome.status) for outcome in tick.outcomes}
        told, self._told = self._told, wishes
        for outcome in tick.outcomes:
            change = outcome.change
            if told.get(change.ref) == wishes[change.ref] and outcome.status is not ChangeStatus.APPLIED:
                continue
            write = log.info if outcome.status not in (ChangeStatus.FAILED, ChangeStatus.CONFLICT) else log.warning
            write(
                EVENT[outcome.status],
                workload=str(change.ref),
                before=change.before,
                after=change.after,
                outcome=outcome.status.value,
                reason=change.reason,
                **({"detail": outcome.detail} if outcome.detail else {}),
            )

    def _sources(self, tick: TickRecord) -> None:
        for report in tick.input.samples.reports:
            before = self._troubled.get(report.source, ())
            if report.problems and not before:
                log.warning("source has problems", source=report.source, problems=report.problems[:3])
            elif before and not report.problems:
                log.info("source recovered", source=report.source)
            self._troubled[report.source] = report.problems

    def _trust(self, tick: TickRecord) -> None:
        rows = (~tick.decision.trusted).nonzero()[0]
        untrusted = frozenset(str(tick.input.fleet.workloads[row].ref) for row in rows)
        if len(untrusted) > len(self._untrusted) and not self._untrusted:
            log.warning("inputs are missing or stale", workloads=len(untrusted), first=min(untrusted))
        elif self._untrusted and not untrusted:
            log.info("all inputs are fresh again")
        self._untrusted = untrusted

    def _ownership(self, tick: TickRecord) -> None:
        if tick.leading != self._leading and self._leading is not None:
            log.info("leading" if tick.leading else "following")
        self._leading = tick.leading
        owners = {
            workload.ref: owner
            for workload, owner in zip(tick.input.fleet.workloads, tick.input.fleet.other_owner, strict=True)
            if owner
        }
        for ref, owner in owners.items() - self._other_owners.items():
            log.warning("another owner sets the replica count; not scaling", workload=str(ref), other_owner=owner)
        for ref in self._other_owners.keys() - owners.keys():
            log.info("the replica count is ours again", workload=str(ref))
        self._other_owners = owners

    def _policies(self, tick: TickRecord) -> None:
        members = tick.input.fleet.workloads
        problems = {members[row].ref: problem for row, problem in tick.policy_problems.items()}
        for ref, problem in problems.items() - self._problems.items():
            log.warning("policy of a workload has a problem", workload=str(ref), problem=problem)
        for ref in self._problems.keys() - problems.keys():
            log.info("policy of a workload has no problem any more", workload=str(ref))
        self._problems = problems
