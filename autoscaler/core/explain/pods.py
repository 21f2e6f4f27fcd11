"""The replicas that do not serve, in words: missing, pending or stuck pods, and queues that no replica can take."""

from __future__ import annotations

import math

import numpy as np

from autoscaler.core.explain import quotas
from autoscaler.core.explain.claims import NOTHING, Words, join, plural, tell
from autoscaler.core.explain.format import Told, count, number, seconds
from autoscaler.core.explain.row import TickRow
from autoscaler.core.explain.starts import late_words
from autoscaler.core.model.fleet import WITHOUT_ROOM, PendingCause, PendingClass
from autoscaler.core.model.types import Decision, Stage, TickInput
from autoscaler.core.observe.pending import fits_nowhere

_PENDING: dict[PendingCause | None, str] = {
    PendingCause.UNSCHEDULABLE: "pending (unschedulable)",
    PendingCause.NO_NODE: "pending (unschedulable, and the cluster autoscaler creates no node)",
    PendingCause.QUEUED: "queued (waiting for admission)",
    PendingCause.SCHEDULING_GATED: "queued (scheduling gate)",
    PendingCause.NOT_SCHEDULED: "pending (no scheduler has placed them)",
    PendingCause.IMAGE_PULL: "crashing (image cannot be pulled)",
    PendingCause.CONFIG_ERROR: "crashing (container configuration is invalid)",
    PendingCause.CRASH_LOOP: "crashing (crash loop)",
    PendingCause.OUT_OF_MEMORY: "crashing (out of memory)",
    PendingCause.LOST_STARTS: "crashing (pods before them ended before they were ready)",
    PendingCause.NONE: "stuck starting",
    None: "impossible to schedule (more than the nodes can hold)",
}
"""Words by cause; None: all nodes together hold fewer."""


def reasons(row: TickRow) -> list[Words]:
    """Word each group of replicas that does not serve, with its number; nothing for a group that is empty."""
    not_serving = [
        _not_running(row) or _refused(row),
        _node_coming(row),
        _asleep(row),
        _falling_asleep(row),
        _stuck(row),
    ]
    return [*not_serving, quotas.comes_back(row), _queue_apart(row), _queue_at_gateway(row)]


def not_running(inp: TickInput, decision: Decision, row: int) -> str:
    """Word how many replicas of one workload have no pod, or a pod that cannot start, and why; "": all run or start."""
    return str(_not_running(TickRow(inp, decision, row)))


def refusal(row: TickRow) -> Words:
    """Word which count the API server refused, and when the daemon asks again."""
    obstacles = row.inp.fleet.obstacles
    if math.isinf(obstacles.refused_replicas[row.row]):
        return tell("{hpa_refuses:its HPA cannot change the count}{quoted}", quoted=_quoted(row))
    refused, left_s = float(obstacles.refused_replicas[row.row]), float(obstacles.retry_at_s[row.row]) - row.inp.now_s
    return tell(
        "the API server {refuses} {refused_replicas}{again}{quoted}",
        refuses="refuses" if left_s > 0 else "last refused",
        refused_replicas=count(refused),
        again=tell(", next try in {retry_in_s}", retry_in_s=seconds(left_s)) if left_s > 0 else NOTHING,
        quoted=_quoted(row),
    )


def _refused(row: TickRow) -> Words:
    """Word a refusal, unless the owner stage did."""
    refused = not math.isnan(row.inp.fleet.obstacles.refused_replicas[row.row])
    return refusal(row) if refused and not row.changed(Stage.OWNER) else NOTHING


def _not_running(row: TickRow) -> Words:
    missing = row.observed("missing_pods")
    parts = []
    if missing > 0:
        parts = [tell("{missing_pods} {has} no pod", missing_pods=count(missing), has=plural(missing, "has", "have"))]
    for cause, pods in _pending(row):
        told = Told(_PENDING[cause], cause.name if cause is not None else "IMPOSSIBLE")
        is_ = plural(pods, "is", "are")
        group = tell("{absent_pods} {is_} {cause}", absent_pods=count(pods, "pod"), is_=is_, cause=told)
        parts.append(group + tell(" ({late})", late=_late(row)) if cause is PendingCause.NONE else group)
    return join(" and ", parts) + _quoted(row) if parts else NOTHING


def _late(row: TickRow) -> Words:
    return late_words(row) or tell("{endless:for longer than any cold start}")


def _pending(row: TickRow) -> list[tuple[PendingCause | None, float]]:
    """Return the pods that waiting alone does not make ready, by cause; those without a cause start for too long."""
    fleet = row.inp.fleet
    causes = fleet.pod_pending[(fleet.pod_workload == row.row) & ~fleet.pod_ready & ~fleet.pod_terminating]
    pods: dict[PendingCause | None, float] = {why: float(np.sum(causes == why)) for why in _PENDING if why}
    pods[PendingCause.NONE] = row.observed("pending") - sum(pods.values())
    pods[None] = 0.0
    without_room = [why for why in WITHOUT_ROOM if pods[why] > 0]
    impossible = 0.0
    if without_room:  # `fits_nowhere` is computed for all workloads
        fits = 0.0 if fits_nowhere(fleet)[row.row] else float(fleet.obstacles.fits[row.row])
        impossible = float(row.decision.observation.pods[row.row]) - fits
    for why in without_room:
        moved = min(pods[why], max(impossible - pods[None], 0.0))
        pods[why] -= moved
        pods[None] += moved
    return [(why, number_of) for why, number_of in pods.items() if number_of > 0]


def _node_coming(row: TickRow) -> Words:
    """Word how many pods wait for a node that a cluster autoscaler creates."""
    coming = float(row.decision.pending_by_class[PendingClass.NODE_COMING, row.row])
    if not coming > 0:
        return NOTHING
    waits = plural(coming, "waits", "wait")
    return tell("{node_pods} {waits} for a node that is being created", node_pods=count(coming, "pod"), waits=waits)


def _asleep(row: TickRow) -> Words:
    """Word how many replicas sleep, and which of them are to wake: they have their GPUs and serve nothing."""
    asleep = row.observed("asleep")
    if not asleep > 0:
        return NOTHING
    own, orders = row.inp.fleet.pod_workload == row.row, row.decision.sleep_orders
    waking = int(np.sum(own & orders.wake))
    lost = asleep - row.observed("wakeable") if row.spec("sleep_replicas") > 0 else 0.0
    words = tell("{asleep} {is_} asleep", asleep=count(asleep), is_=plural(asleep, "is", "are"))
    if waking:
        wake_s = seconds(row.observed("wake_s"))
        words += tell(", {waking} to wake, which takes {wake_s}", waking=number(waking), wake_s=wake_s)
    return words + tell(", {not_woken} did not wake in time", not_woken=number(lost)) if lost > 0 else words


def _falling_asleep(row: TickRow) -> Words:
    orders = row.decision.sleep_orders
    falling = int(np.sum((row.inp.fleet.pod_workload == row.row) & orders.sleep & ~orders.asleep))
    if not falling:
        return NOTHING
    idle, is_ = count(falling, "idle replica"), plural(falling, "is", "are")
    return tell("{falling_asleep} {is_} to sleep", falling_asleep=idle, is_=is_)


def _quoted(row: TickRow) -> Words:
    """Quote the API server, the scheduler or the kubelet."""
    words = row.inp.fleet.obstacles.messages[row.row]
    return tell(": {message}", message=words) if words else NOTHING


def _stuck(row: TickRow) -> Words:
    """Word how many replicas make no progress, and what serves in their place."""
    stuck = row.observed("stuck")
    if not stuck > 0:
        return NOTHING
    if row.observed("stuck_replaced") > 0:
        instead = tell("{another:another replica serves for each}")
    elif row.observed("stuck_min_replicas") > 0:
        instead = tell("{stand_in:one more replica stands in for a while}")
    else:
        instead = tell("{no_other:nothing replaces} {them}", them=plural(stuck, "it", "them"))
    return tell(
        "{stuck} of {reporting} {has} made no progress on {stuck_requests} for {stuck_s} "
        "(stuck, or stale metrics), so {its} load is not counted and {instead}",
        stuck=number(stuck),
        reporting=count(row.observed("reporting"), "reporting replica"),
        has=plural(stuck, "has", "have"),
        stuck_requests=count(row.observed("stuck_requests"), "request"),
        stuck_s=seconds(row.observed("stuck_s")),
        its=plural(stuck, "its", "their"),
        instead=instead,
    )


def _queue_apart(row: TickRow) -> Words:
    """Word which queues do not shrink while most other replicas have none."""
    apart = row.observed("queue_outliers")
    if not apart > 0:
        return NOTHING
    return tell(
        "{queue_outliers} of {reporting} {has} a queue that has not shrunk for {queue_outlier_s} while most others "
        "have none (a stuck rank, or uneven routing), so {queue_outlier_requests} are not counted",
        queue_outliers=number(apart),
        reporting=count(row.observed("reporting"), "reporting replica"),
        has=plural(apart, "has", "have"),
        queue_outlier_s=seconds(row.observed("queue_outlier_s")),
        queue_outlier_requests=count(row.observed("queue_outlier_requests"), "waiting request"),
    )


def _queue_at_gateway(row: TickRow) -> Words:
    """Word a queue at the gateway beside engines that do nothing."""
    if not row.observed("gateway_stuck") > 0:
        return NOTHING
    return tell(
        "{uncounted_requests} at the gateway are not counted, because no engine works: a stuck queue, or stale metrics",
        uncounted_requests=count(row.observed("gateway_waiting"), "request"),
    )
