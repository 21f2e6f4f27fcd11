"""The effect of each stage on the count in words: the limit that it applied, and for how long."""

from __future__ import annotations

import math

import numpy as np

from autoscaler.core.allocate.answers import count_taking
from autoscaler.core.explain import guarantees, pairs, pods, quotas, starts
from autoscaler.core.explain.format import number, seconds
from autoscaler.core.explain.row import TickRow
from autoscaler.core.model.fleet import Pool
from autoscaler.core.model.types import Recommender, Signal, Stage
from autoscaler.core.observe import load
from autoscaler.core.observe.freshness import oldest_view_s
from autoscaler.core.observe.pending import count_pending_replicas, fits_nowhere, has_gpus
from autoscaler.core.readings.progress import UNTRUSTED_S
from autoscaler.core.stabilize import carry
from autoscaler.core.supply.nodes import list_places
from autoscaler.core.supply.running import list_running, sum_gpus
from autoscaler.core.table.columns import or_zero

MOST_POOLS_NAMED = 4
"""The sentence names at most this many of the pools that share nodes."""


def reason(stage: Stage, row: TickRow) -> str:
    """Word what a stage did that changed the count."""
    after = row.after(stage)
    match stage:
        case Stage.DEMAND:
            return "the strongest signal"
        case Stage.UNKNOWN:
            return _unknown(row, after)
        case Stage.BURST:
            return _burst(row, after)
        case Stage.TOLERANCE:
            if after == row.recommended(Signal.SCHEDULE):
                return _pre_warm(after)
            band = f"the tolerance of {row.spec('tolerance'):.0%} around {number(after)}"
            return f"{number(row.before(stage))} is within {band}"
        case Stage.STABILIZATION:
            return _stabilization(row, row.before(stage), after)
        case Stage.IDLE:
            return _idle(row, after)
        case Stage.RATE_LIMIT:
            if after == row.recommended(Signal.SCHEDULE) and after < row.before(stage):
                return _pre_warm(after)
            return _step(row, "down" if after > row.before(stage) else "up", after)
        case Stage.BOUNDS:
            if row.spec("max_replicas") < after < row.before(stage):
                step = _step(row, "down", after)
                return f"the maximum is {number(row.spec('max_replicas'))}, but while the load is unknown {step}"
            return f"the {'minimum' if after > row.before(stage) else 'maximum'} is {number(after)}"
        case Stage.PAIR | Stage.PARTNER:
            return pairs.reason(stage, row)
        case Stage.VARIANT:
            return _variant(row, row.before(stage), after)
        case Stage.EXCHANGE | Stage.SLEEP:
            return _exchange(row, after) if stage is Stage.EXCHANGE else _asleep(row, after)
        case Stage.ALLOCATION:
            return _allocation(row, row.before(stage), after)
        case Stage.OWNER:
            return _owner(row, after)


def _burst(row: TickRow, after: float) -> str:
    if after > row.before(Stage.BURST):
        late = f"requests wait up to {seconds(row.observed('queue_wait_s'))}"
        outlasts = f"their queue outlasts the start of a new replica, which {starts.takes(row)}"
        return f"{late}, and {outlasts}, so it needs {number(after)}"
    burst = f"a new replica {starts.takes(row)} to start, and requests may queue for {seconds(row.spec('max_wait_s'))}"
    return f"{burst}, so the queue needs no more than {number(after)}"


def _pre_warm(after: float) -> str:
    return f"the pre-warm schedule needs {number(after)} at once"


def _step(row: TickRow, direction: str, after: float) -> str:
    period = seconds(row.spec(f"{direction}_period_s"))
    return f"the scale-{direction} rate limit (one step per {period}) allows {number(after)}"


def _unknown(row: TickRow, after: float) -> str:
    if row.recommender is Recommender.WARMING_UP and after < row.before(Stage.UNKNOWN):
        wait = seconds(row.spec("max_wait_s"))
        why = f"the planner is not ready yet and no request is known to wait longer than {wait}"
    else:
        why = _missing_input(row)
    keeps = "the count stays at" if after == row.observed("replicas") else "the count goes no further than"
    return f"{why}, so {keeps} {number(after)}"


def _missing_input(row: TickRow) -> str:
    """Word why inputs are not trusted, or that no signal knows the load."""
    ready, reporting = row.observed("ready"), row.observed("reporting")
    if not row.view_age_s <= float(oldest_view_s(row.inp)[row.row]):
        return f"the view of the cluster is {seconds(row.view_age_s)} old"
    if row.observed("stuck_s") < UNTRUSTED_S:
        left = seconds(UNTRUSTED_S - row.observed("stuck_s"))
        return f"a replica without progress may compute a long prompt (for {left} more)"
    if reporting < ready:
        return f"only {number(reporting)} of {number(ready)} ready replicas report"
    if ready == 0 and row.observed("gateway_silent_s") > row.spec("max_input_age_s"):
        return _silent_gateway(row)
    if row.observed("replicas") == 0:
        return "no request is known to wait"
    if ready == 0:
        return "no replica is ready to report the load"
    return "no signal knows the load"


def _silent_gateway(row: TickRow) -> str:
    return f"its gateway has not reported for {seconds(row.observed('gateway_silent_s'))}"


def _stabilization(row: TickRow, before: float, after: float) -> str:
    if after > before and not row.kept_for_s > 0 and after == _replicas_in_use(row):
        return f"the running requests and their KV cache need {number(after)}"
    if after > before:
        end = f" for {seconds(row.kept_for_s)} more" if row.kept_for_s > 0 else ""
        window = seconds(row.kept_window_s)
        if row.recommender.plans and row.kept_window_s != row.spec("down_stabilization_s"):
            return f"what was recommended within the last cold start ({window}) keeps {number(after)}{end}"
        return f"scale-down stabilization (window {window}) keeps {number(after)}{end}"
    if after == row.recommended(Signal.SCHEDULE):
        return _pre_warm(after)
    window = seconds(row.spec("up_stabilization_s"))
    return f"scale-up stabilization (window {window}) allows {number(after)}"


def _replicas_in_use(row: TickRow) -> float:
    slots = load.slots(row.inp.fleet, load.with_stated_slots(row.inp.fleet, row.inp.samples.pods))
    return float(carry.replicas_in_use(row.decision.observation, slots)[row.row])


def _idle(row: TickRow, after: float) -> str:
    if after == 0:
        return f"no replica is ready and there was no work for {seconds(row.idle_after_s)}, the idle timeout"
    return f"one replica stays{_awake_until(row)}"


def _awake_until(row: TickRow) -> str:
    """Word why a workload does not go to zero, or when it will."""
    if math.isnan(row.spec("idle_after_s")):
        return ", because the policy does not scale to zero"
    if row.observed("gateway_silent_s") > row.spec("max_input_age_s"):
        return f", because {_silent_gateway(row)}"
    if not math.isnan(row.idle_after_s):
        left_s = row.idle_after_s - float(row.decision.idle_s[row.row])
        end = f", {seconds(left_s)} from now" if left_s > 0 else ""
        return f" until there has been no work for {seconds(row.idle_after_s)}{end}"
    if math.isnan(row.observed("gateway_waiting")):
        return ", because no gateway is known to hold requests at zero"
    return ", because no idle timeout is known to pay for the start after it within the error budget"


def _variant(row: TickRow, before: float, after: float) -> str:
    service = row.inp.fleet.workloads[row.row].service
    if after > before:
        return f"it takes over load from other variants of {service} and needs {number(after)}{_spot_first(row)}"
    return f"other variants of {service} take over load, so {number(after)} remain{_spot_first(row)}"


def _spot_first(row: TickRow) -> str:
    """Word the preference of a service for spot nodes; "": it has none."""
    variants = row.inp.variants
    if variants is None or variants.may_be_spot is None:
        return ""
    floors = row.inp.spec.on_demand_floor[variants.service == variants.service[row.row]]
    if np.isnan(floors).all():
        return ""
    return f", with spot nodes first beyond {number(np.nanmax(floors))} on others"


def _exchange(row: TickRow, after: float) -> str:
    service = row.inp.fleet.workloads[row.row].service
    return f"it will replace dearer variants of {service} and needs {number(after)}{_spot_first(row)}"


def _asleep(row: TickRow, after: float) -> str:
    kept = after - row.before(Stage.SLEEP)
    return f"{number(kept)} of {number(after)} {'is' if kept == 1 else 'are'} kept asleep beside those that serve"


def _allocation(row: TickRow, before: float, after: float) -> str:
    """Word what the pool or a quota allocates: fewer than desired, or than its owner keeps in any case."""
    held = row.inp.fleet.hpa_limits
    limit = quotas.limit(row)
    if after > before and held is not None:
        name = limit.name if limit else _pool(row)[0]
        return f"{held.reason[row.row]}, of which {name} allocates {number(after)}"
    if fits_nowhere(row.inp.fleet)[row.row]:
        return f"no node can hold a replica, so no more than {number(after)} of {number(before)} are requested"
    headroom = ", the rest is headroom" if after >= row.decision.base_replicas[row.row] else ""
    if limit:
        return f"{limit.name} allocates {number(after)} of {number(before)}{limit.why}{headroom}"
    fits, is_current = float(row.inp.fleet.obstacles.fits[row.row]), after == row.observed("replicas")
    halted = f"no more than {number(after)} are requested while some of them do not run"
    is_pending = bool(count_pending_replicas(row.decision.observation)[row.row] > 0)
    is_unsized = row.inp.fleet.pool[row.row] < 0 and fits >= before
    if is_current and (row.observed("missing_pods") > 0 or (is_pending and is_unsized)):
        return halted
    pool, is_short, scattered = _pool(row)
    if fits < before and not (is_short and fits > after):
        keeps = "" if fits >= after else f", so it keeps {number(after)}"
        return f"the nodes that admit it hold {number(fits)} of {number(before)}{keeps}{_grows(row)}"
    if is_current and not is_short and is_pending:
        return halted
    if not is_short:
        return f"{pool} allocates {number(after)} of {number(before)}, because its last pods did not start"
    paid = guarantees.words(row, after) if is_short else ""
    return f"{pool} allocates {number(after)} of {number(before)}{headroom}{paid}{scattered}{_grows(row)}"


def _owner(row: TickRow, after: float) -> str:
    """Word why the count is not the one decided: it has another owner, is held, or was refused."""
    fleet = row.inp.fleet
    if fleet.other_owner[row.row]:
        return f"{fleet.other_owner[row.row]} owns the count{owned_for(row)}"
    if fleet.paused[row.row]:
        return "scaling is paused"
    if fleet.hpa_limits is not None and fleet.hpa_limits.reason[row.row]:
        return f"{fleet.hpa_limits.reason[row.row]}, so the count will be {number(after)}"
    return pods.refusal(row)


def owned_for(row: TickRow) -> str:
    """Word for how long another owner is respected; "": for as long as it is there."""
    foreign = row.inp.fleet.foreign
    left_s = math.nan if foreign is None else float(foreign.owned_until_s[row.row]) - row.inp.now_s
    if left_s == math.inf:
        return ", until somebody raises it from zero"
    return f" for {seconds(left_s)} more" if left_s > 0 else ""


def _pool(row: TickRow) -> tuple[str, bool, str]:
    """Name the GPUs that the workload competes for, and return whether they are too few for one more replica.

    They are those of its pool, or of several pools on the same node groups. The last value words that they are too few
    on each node, although they would suffice together; "": they would not.
    """
    fleet = row.inp.fleet
    own, sizes = int(fleet.pool[row.row]), fleet.pool_gpus
    replicas = or_zero(count_taking(quotas.count_allocated(row), row.decision.unfollowed_s, fleet))
    limited = (fleet.pool >= 0) & ~np.isnan(np.append(sizes, np.nan)[fleet.pool]) & np.isfinite(fleet.gpus_per_replica)
    running, one_replica = list_running(fleet, has_gpus(fleet)), float(or_zero(fleet.gpus_per_replica[row.row]))
    members, scattered = [], ""
    if own >= 0 and not np.isnan(sizes[own]):
        places = list_places(fleet)
        needed, pods = sum_gpus(fleet, running, replicas, limited, places)
        placement = places.placement
        placement.place(needed)
        whole, single = np.zeros((2, placement.pools))
        whole[places.rows.of_pool(places.smallest[row.row], np.array(own))] = one_replica
        single[own] = one_replica
        with_one_more = placement.copy()
        short = with_one_more.place(whole)
        one_more = places.count_pods(np.array([row.row]), np.flatnonzero(whole), np.ones(1))
        if short.any():
            members = places.find_pools(short)
        elif places.pack(with_one_more, pods + one_more).any():
            members = [own]
        if members and not placement.place(single).any():
            scattered = f", because no node has {number(one_replica)} GPUs left"
    if len(members) <= 1:
        return f"the pool of {number(float(sizes[own]))} {_name(fleet.pools[own])}", bool(members), scattered
    names = [_name(fleet.pools[index]) for index in members[:MOST_POOLS_NAMED]]
    names += [f"{len(members) - len(names)} others"] if len(members) > len(names) else []
    gpus = number(float(fleet.groups.gpus[fleet.groups.admitted[members].any(axis=0)].sum()))
    name = f"the pool of {gpus} GPUs on the node groups of {', '.join(names[:-1])} and {names[-1]}"
    return name, True, scattered


def _name(pool: Pool) -> str:
    return f"{pool.product or pool.resource}" + (f" ({pool.nodes})" if pool.nodes else "")


def _grows(row: TickRow) -> str:
    """Word that the nodes of today are the limit, though a cluster autoscaler may add more."""
    label = row.inp.fleet.pools[int(row.inp.fleet.pool[row.row])].grows
    return f", by today's nodes, although {label} may get more" if label else ""
