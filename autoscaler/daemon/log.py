"""Log lines of ticks: one line per change of state, and one summary per tick at debug level."""

from __future__ import annotations

import numpy as np
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
    """Logs changes of replica counts, and problems of sources, inputs, owners and policies when they begin and end."""

    def __init__(self) -> None:
        self._source_problems: dict[str, tuple[str, ...]] = {}
        self._stale: frozenset[str] = frozenset()
        self._leading: bool | None = None
        self._other_owners: dict[WorkloadRef, str] = {}
        self._problems: dict[WorkloadRef, str] = {}
        self._last_changes: dict[WorkloadRef, tuple[int, ChangeStatus]] = {}

    def record(self, tick: TickRecord) -> None:
        self._log_changes(tick)
        self._log_sources(tick)
        self._log_freshness(tick)
        self._log_ownership(tick)
        self._log_policies(tick)
        log.debug(
            "tick",
            number=tick.number,
            workloads=len(tick.policies),
            changes=len(tick.outcomes),
            duration_ms=round(tick.duration_s * 1000, 1),
        )

    def failed(self, wall_s: float, error: BaseException) -> None:
        """The loop itself logs failed ticks, once."""

    def _log_changes(self, tick: TickRecord) -> None:
        # A change that another component applies is proposed on every tick until the count has changed: log it once.
        # One that the API server does not take is sent again after a while: log it once as well.
        proposed = {outcome.change.ref: (outcome.change.after, outcome.status) for outcome in tick.outcomes}
        refused = (~np.isnan(tick.input.fleet.obstacles.refused_replicas)).nonzero()[0].tolist()
        waiting = {tick.input.fleet.workloads[row].ref for row in refused}
        logged = self._last_changes
        self._last_changes = {ref: last for ref, last in logged.items() if ref in waiting} | proposed
        for outcome in tick.outcomes:
            change = outcome.change
            if logged.get(change.ref) == proposed[change.ref] and outcome.status is not ChangeStatus.APPLIED:
                continue
            write = log.info if outcome.status not in (ChangeStatus.FAILED, ChangeStatus.CONFLICT) else log.warning
            write(
                EVENT[outcome.status],
                workload=change.ref.label,
                before=change.before,
                after=change.after,
                outcome=outcome.status.value,
                reason=change.reason,
                **({"detail": outcome.detail} if outcome.detail else {}),
            )

    def _log_sources(self, tick: TickRecord) -> None:
        for report in tick.input.samples.reports:
            before = self._source_problems.get(report.source, ())
            if report.problems and not before:
                log.warning("source has problems", source=report.source, problems=report.problems[:3])
            elif before and not report.problems:
                log.info("source recovered", source=report.source)
            self._source_problems[report.source] = report.problems

    def _log_freshness(self, tick: TickRecord) -> None:
        rows = (~tick.decision.trusted).nonzero()[0]
        stale = frozenset(str(tick.input.fleet.workloads[row].ref) for row in rows)
        if len(stale) > len(self._stale) and not self._stale:
            log.warning("inputs are missing or stale", workloads=len(stale), first=min(stale))
        elif self._stale and not stale:
            log.info("all inputs are fresh again")
        self._stale = stale

    def _log_ownership(self, tick: TickRecord) -> None:
        if tick.leading != self._leading and self._leading is not None:
            log.info("leading" if tick.leading else "following")
        self._leading = tick.leading
        owners = {
            workload.ref: owner
            for workload, owner in zip(tick.input.fleet.workloads, tick.input.fleet.other_owner, strict=True)
            if owner
        }
        for ref, owner in owners.items() - self._other_owners.items():
            log.warning("another owner sets the replica count; not scaling", workload=ref.label, other_owner=owner)
        for ref in self._other_owners.keys() - owners.keys():
            log.info("the replica count is ours again", workload=ref.label)
        self._other_owners = owners

    def _log_policies(self, tick: TickRecord) -> None:
        members = tick.input.fleet.workloads
        problems = {members[row].ref: problem for row, problem in tick.policy_problems.items()}
        for ref, problem in problems.items() - self._problems.items():
            log.warning("policy of a workload has a problem", workload=ref.label, problem=problem)
        for ref in self._problems.keys() - problems.keys():
            log.info("policy of a workload has no problem any more", workload=ref.label)
        self._problems = problems
