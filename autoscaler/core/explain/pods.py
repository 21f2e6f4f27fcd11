"""The replicas that do not serve, in words: missing, pending or stuck pods, and queues that no replica can take."""

from __future__ import annotations

import math

import numpy as np

from autoscaler.core.explain import quotas
from autoscaler.core.explain.format import count, number, seconds
from autoscaler.core.explain.row import TickRow
from autoscaler.core.explain.starts import late_words
from autoscaler.core.model.fleet import WITHOUT_ROOM, PendingCause, PendingClass
from autoscaler.core.model.types import Decision, Stage, TickInput
from autoscaler.core.observe.pending import fits_nowhere

_IMPOSSIBLE = "impossible to schedule (more than the nodes can hold)"
_PENDING: dict[PendingCause, str] = {
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
    PendingCause.NONE: "stuck starting (for longer than any cold start)",
}


def reasons(row: TickRow) -> list[str]:
    """Word each group of replicas that does not serve, with its number; "" for a group that is empty."""
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
    return _not_running(TickRow(inp, decision, row))


def refusal(row: TickRow) -> str:
    """Word which count the API server refused, and when the daemon asks again."""
    obstacles = row.inp.fleet.obstacles
    if math.isinf(obstacles.refused_replicas[row.row]):
        return f"its HPA cannot change the count{_quoted(row)}"
    refused, left_s = (
        count(float(obstacles.refused_replicas[row.row])),
        float(obstacles.retry_at_s[row.row]) - row.inp.now_s,
    )
    again = f"refuses {refused}, next try in {seconds(left_s)}" if left_s > 0 else f"last refused {refused}"
    return f"the API server {again}{_quoted(row)}"


def _refused(row: TickRow) -> str:
    """Word a refusal, unless the owner stage did."""
    refused = not math.isnan(row.inp.fleet.obstacles.refused_replicas[row.row])
    return refusal(row) if refused and not row.changed(Stage.OWNER) else ""


def _not_running(row: TickRow) -> str:
    parts, missing = [], row.observed("missing_pods")
    if missing > 0:
        parts.append(f"{count(missing)} {'has' if missing == 1 else 'have'} no pod")
    parts += [f"{count(pods, 'pod')} {'is' if pods == 1 else 'are'} {words}" for words, pods in _pending(row)]
    return " and ".join(parts) + _quoted(row) if parts else ""


def _pending(row: TickRow) -> list[tuple[str, float]]:
    """Return the pods that waiting alone does not make ready, by cause; those without a cause start for too long."""
    fleet = row.inp.fleet
    causes = fleet.pod_pending[(fleet.pod_workload == row.row) & ~fleet.pod_ready & ~fleet.pod_terminating]
    pods = {_PENDING[why]: float(np.sum(causes == why)) for why in _PENDING if why is not PendingCause.NONE}
    late = late_words(row)
    endless = f"stuck starting ({late})" if late else _PENDING[PendingCause.NONE]
    pods[endless] = row.observed("pending") - sum(pods.values())
    all_pods = float(row.decision.observation.pods[row.row])
    impossible = all_pods - (0.0 if fits_nowhere(fleet)[row.row] else float(fleet.obstacles.fits[row.row]))
    pods[_IMPOSSIBLE] = 0.0
    for words in (_PENDING[why] for why in WITHOUT_ROOM):
        moved = min(pods[words], max(impossible - pods[_IMPOSSIBLE], 0.0))
        pods[words] -= moved
        pods[_IMPOSSIBLE] += moved
    return [(words, many) for words, many in pods.items() if many > 0]


def _node_coming(row: TickRow) -> str:
    """Word how many pods wait for a node that a cluster autoscaler creates."""
    coming = float(row.decision.pending_by_class[PendingClass.NODE_COMING, row.row])
    waits = "waits" if coming == 1 else "wait"
    return f"{count(coming, 'pod')} {waits} for a node that is being created" if coming > 0 else ""


def _asleep(row: TickRow) -> str:
    """Word how many replicas sleep, and which of them are to wake: they have their GPUs and serve nothing."""
    asleep = row.observed("asleep")
    if not asleep > 0:
        return ""
    own, orders = row.inp.fleet.pod_workload == row.row, row.decision.sleep_orders
    waking, lost = (
        int(np.sum(own & orders.wake)),
        asleep - row.observed("wakeable") if row.spec("sleep_replicas") > 0 else 0.0,
    )
    wakes = f", {number(waking)} to wake, which takes {seconds(row.observed('wake_s'))}" if waking else ""
    wakes += f", {number(lost)} did not wake in time" if lost > 0 else ""
    return f"{count(asleep, 'replica')} {'is' if asleep == 1 else 'are'} asleep{wakes}"


def _falling_asleep(row: TickRow) -> str:
    orders = row.decision.sleep_orders
    falling = int(np.sum((row.inp.fleet.pod_workload == row.row) & orders.sleep & ~orders.asleep))
    return f"{count(falling, 'idle replica')} {'is' if falling == 1 else 'are'} to sleep" if falling else ""


def _quoted(row: TickRow) -> str:
    """Quote the API server, the scheduler or the kubelet."""
    words = row.inp.fleet.obstacles.messages[row.row]
    return f": {words}" if words else ""


def _stuck(row: TickRow) -> str:
    """Word how many replicas make no progress, and what serves in their place."""
    stuck = row.observed("stuck")
    if not stuck > 0:
        return ""
    has, its = ("has", "its") if stuck == 1 else ("have", "their")
    requests, since = count(row.observed("stuck_requests"), "request"), seconds(row.observed("stuck_s"))
    if row.observed("stuck_replaced") > 0:
        instead = "another replica serves for each"
    elif row.observed("stuck_min_replicas") > 0:
        instead = "one more replica stands in for a while"
    else:
        instead = "nothing replaces " + ("it" if stuck == 1 else "them")
    return (
        f"{number(stuck)} of {count(row.observed('reporting'), 'reporting replica')} {has} made no progress on "
        f"{requests} for {since} (stuck, or stale metrics), so {its} load is not counted and {instead}"
    )


def _queue_apart(row: TickRow) -> str:
    """Word which queues do not shrink while most other replicas have none."""
    apart = row.observed("queue_outliers")
    if not apart > 0:
        return ""
    has = "has" if apart == 1 else "have"
    return (
        f"{number(apart)} of {count(row.observed('reporting'), 'reporting replica')} {has} a queue that has not shrunk "
        f"for {seconds(row.observed('queue_outlier_s'))} while most others have none "
        "(a stuck rank, or uneven routing), so "
        f"{count(row.observed('queue_outlier_requests'), 'waiting request')} are not counted"
    )


def _queue_at_gateway(row: TickRow) -> str:
    """Word a queue at the gateway beside engines that do nothing."""
    if not row.observed("gateway_stuck") > 0:
        return ""
    waiting = count(row.observed("gateway_waiting"), "request")
    return f"{waiting} at the gateway are not counted, because no engine works: a stuck queue, or stale metrics"
