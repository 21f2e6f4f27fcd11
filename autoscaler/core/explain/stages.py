"""The effect of each stage on the count in words: the limit that it applied, and for how long."""

from __future__ import annotations

import math

import numpy as np

from autoscaler.core.allocate.answers import count_taking
from autoscaler.core.explain import guarantees, pairs, pods, quotas, starts
from autoscaler.core.explain.claims import NOTHING, Words, plural, tell
from autoscaler.core.explain.format import listed, number, seconds, whole_percent
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


def reason(stage: Stage, row: TickRow) -> Words:
    """Word what a stage did that changed the count."""
    before, after = row.before(stage), row.after(stage)
    match stage:
        case Stage.DEMAND:
            return Words("the strongest signal")
        case Stage.UNKNOWN:
            return _unknown(row, after)
        case Stage.BURST:
            return _burst(row, after)
        case Stage.TOLERANCE:
            if after == row.recommended(Signal.SCHEDULE):
                return _pre_warm(after)
            return tell(
                "{before} is within the tolerance of {tolerance} around {after}",
                before=number(before),
                tolerance=whole_percent(row.spec("tolerance")),
                after=number(after),
            )
        case Stage.STABILIZATION:
            return _stabilization(row, before, after)
        case Stage.IDLE:
            return _idle(row, after)
        case Stage.RATE_LIMIT:
            if after == row.recommended(Signal.SCHEDULE) and after < before:
                return _pre_warm(after)
            return _step(row, "down" if after > before else "up", after)
        case Stage.BOUNDS:
            if row.spec("max_replicas") < after < before:
                most, step = number(row.spec("max_replicas")), _step(row, "down", after)
                return tell("the maximum is {max_replicas}, but while the load is unknown ", max_replicas=most) + step
            return tell("the {bound} is {after}", bound="minimum" if after > before else "maximum", after=number(after))
        case Stage.PAIR | Stage.PARTNER:
            return pairs.reason(stage, row)
        case Stage.VARIANT:
            return _variant(row, before, after)
        case Stage.EXCHANGE | Stage.SLEEP:
            return _exchange(row, after) if stage is Stage.EXCHANGE else _asleep(row, after)
        case Stage.ALLOCATION:
            return _allocation(row, before, after)
        case Stage.OWNER:
            return _owner(row, after)


def _burst(row: TickRow, after: float) -> Words:
    if after > row.before(Stage.BURST):
        return tell(
            "requests wait up to {queue_wait_s}, and their queue outlasts the start of a new replica, which {takes}, "
            "so it needs {after}",
            queue_wait_s=seconds(row.observed("queue_wait_s")),
            takes=starts.takes(row),
            after=number(after),
        )
    return tell(
        "a new replica {takes} to start, and requests may queue for {max_wait_s}, "
        "so the queue needs no more than {after}",
        takes=starts.takes(row),
        max_wait_s=seconds(row.spec("max_wait_s")),
        after=number(after),
    )


def _pre_warm(after: float) -> Words:
    return tell("the pre-warm schedule needs {scheduled} at once", scheduled=number(after))


def _step(row: TickRow, direction: str, after: float) -> Words:
    return tell(
        "the scale-{way} rate limit (one step per {period_s}) allows {after}",
        way=direction,
        period_s=seconds(row.spec(f"{direction}_period_s")),
        after=number(after),
    )


def _unknown(row: TickRow, after: float) -> Words:
    if row.recommender is Recommender.WARMING_UP and after < row.before(Stage.UNKNOWN):
        why = tell(
            "the planner is not ready yet and no request is known to wait longer than {max_wait_s}",
            max_wait_s=seconds(row.spec("max_wait_s")),
        )
    else:
        why = _missing_input(row)
    keeps = "stays at" if after == row.observed("replicas") else "goes no further than"
    return tell("{unknown}, so the count {keeps} {after}", unknown=why, keeps=keeps, after=number(after))


def _missing_input(row: TickRow) -> Words:
    """Word why inputs are not trusted, or that no signal knows the load."""
    ready, reporting = row.observed("ready"), row.observed("reporting")
    if not row.view_age_s <= float(oldest_view_s(row.inp)[row.row]):
        return tell("the view of the cluster is {fleet_age_s} old", fleet_age_s=seconds(row.view_age_s))
    if row.observed("stuck_s") < UNTRUSTED_S:
        left = seconds(UNTRUSTED_S - row.observed("stuck_s"))
        return tell(
            "a replica without progress may compute a long prompt (for {prompt_left_s} more)", prompt_left_s=left
        )
    if reporting < ready:
        told = {"reporting": number(reporting), "ready": number(ready)}
        return tell("only {reporting} of {ready} ready replicas report", **told)
    if ready == 0 and row.observed("gateway_silent_s") > row.spec("max_input_age_s"):
        return _silent_gateway(row)
    if row.observed("replicas") == 0:
        return tell("{none_known:no request is known to wait}")
    if ready == 0:
        return tell("{none_ready:no replica is ready to report the load}")
    return tell("{no_signal:no signal knows the load}")


def _silent_gateway(row: TickRow) -> Words:
    silent = seconds(row.observed("gateway_silent_s"))
    return tell("its gateway has not reported for {gateway_silent_s}", gateway_silent_s=silent)


def _stabilization(row: TickRow, before: float, after: float) -> Words:
    if after > before and not row.kept_for_s > 0 and after == _replicas_in_use(row):
        return tell("{in_use:the running requests and their KV cache} need {after}", after=number(after))
    if after > before:
        end = tell(" for {kept_for_s} more", kept_for_s=seconds(row.kept_for_s)) if row.kept_for_s > 0 else NOTHING
        is_of_start = row.recommender.plans and row.kept_window_s != row.spec("down_stabilization_s")
        window_s = seconds(row.kept_window_s)
        if is_of_start:
            keeper = tell(
                "what was recommended within the last cold start ({cold_start_window_s})", cold_start_window_s=window_s
            )
        else:
            keeper = tell("scale-down stabilization (window {kept_window_s})", kept_window_s=window_s)
        return keeper + tell(" keeps {after}", after=number(after)) + end
    if after == row.recommended(Signal.SCHEDULE):
        return _pre_warm(after)
    return tell(
        "scale-up stabilization (window {up_stabilization_s}) allows {after}",
        up_stabilization_s=seconds(row.spec("up_stabilization_s")),
        after=number(after),
    )


def _replicas_in_use(row: TickRow) -> float:
    slots = load.slots(row.inp.fleet, load.with_stated_slots(row.inp.fleet, row.inp.samples.pods))
    return float(carry.replicas_in_use(row.decision.observation, slots)[row.row])


def _idle(row: TickRow, after: float) -> Words:
    if after == 0:
        return tell(
            "no replica is ready and there was no work for {idle_after_s}, {timeout:the idle timeout}",
            idle_after_s=seconds(row.idle_after_s),
        )
    return tell("{one:one replica} stays") + _awake_until(row)


def _awake_until(row: TickRow) -> Words:
    """Word why a workload does not go to zero, or when it will."""
    if math.isnan(row.spec("idle_after_s")):
        return tell(", because {never_idle:the policy does not scale to zero}")
    if row.observed("gateway_silent_s") > row.spec("max_input_age_s"):
        return Words(", because ") + _silent_gateway(row)
    if not math.isnan(row.idle_after_s):
        idle_s = float(row.decision.idle_s[row.row])
        left_s = row.idle_after_s - idle_s if idle_s > 0 else 0.0  # nobody knows when present work ends
        end = tell(", {idle_left_s} from now", idle_left_s=seconds(left_s)) if left_s > 0 else NOTHING
        quiet = tell(" until there has been no work for {idle_after_s}", idle_after_s=seconds(row.idle_after_s))
        return quiet + end
    if math.isnan(row.observed("gateway_waiting")):
        return tell(", because {no_gateway:no gateway is known to hold requests at zero}")
    no_timeout = ", because {no_timeout:no idle timeout is known to pay for the start after it within the error budget}"
    return tell(no_timeout)


def _variant(row: TickRow, before: float, after: float) -> Words:
    if after > before:
        takes_over = "{takes_over:it takes over} load from other variants of {service} and needs {after}"
        return _of_variants(row, after, takes_over)
    return _of_variants(row, after, "other variants of {service} {gives_up:take over} load, so {after} remain")


def _of_variants(row: TickRow, after: float, words: str) -> Words:
    service = row.inp.fleet.workloads[row.row].service
    return tell(words, service=service, after=number(after)) + _spot_first(row)


def _spot_first(row: TickRow) -> Words:
    """Word the preference of a service for spot nodes; nothing: it has none."""
    variants = row.inp.variants
    if variants is None or variants.may_be_spot is None:
        return NOTHING
    floors = row.inp.spec.on_demand_floor[variants.service == variants.service[row.row]]
    if np.isnan(floors).all():
        return NOTHING
    most = number(float(np.nanmax(floors)))
    return tell(", with spot nodes first beyond {on_demand_replicas} on others", on_demand_replicas=most)


def _exchange(row: TickRow, after: float) -> Words:
    return _of_variants(row, after, "it will {exchange:replace dearer} variants of {service} and needs {after}")


def _asleep(row: TickRow, after: float) -> Words:
    kept = after - row.before(Stage.SLEEP)
    return tell(
        "{kept_asleep} of {after} {is_} kept asleep beside those that serve",
        kept_asleep=number(kept),
        after=number(after),
        is_=plural(kept, "is", "are"),
    )


def _allocation(row: TickRow, before: float, after: float) -> Words:
    """Word what the pool or a quota allocates: fewer than desired, or than its owner keeps in any case."""
    held = row.inp.fleet.hpa_limits
    limit = quotas.limit(row)
    told = {"after": number(after), "before": number(before)}
    if after > before and held is not None:
        name = limit.name if limit else _pool(row)[0]
        return tell(
            "{held_because}, of which {name} allocates {after}", held_because=held.reason[row.row], name=name, **told
        )
    if fits_nowhere(row.inp.fleet)[row.row]:
        nowhere = "{nowhere:no node can hold a replica}, so no more than {after} of {before} are requested"
        return tell(nowhere, **told)
    headroom = tell("{headroom:, the rest is headroom}") if after >= row.decision.base_replicas[row.row] else NOTHING
    if limit:
        return limit.name + tell(" allocates {after} of {before}", **told) + limit.why + headroom
    fits, is_current = float(row.inp.fleet.obstacles.fits[row.row]), after == row.observed("replicas")
    halted = tell("no more than {after} are requested while {halted:some of them do not run}", **told)
    is_pending = bool(count_pending_replicas(row.decision.observation)[row.row] > 0)
    is_unsized = row.inp.fleet.pool[row.row] < 0 and fits >= before
    if is_current and (row.observed("missing_pods") > 0 or (is_pending and is_unsized)):
        return halted
    pool, is_short, scattered = _pool(row)
    if fits < before and not (is_short and fits > after):
        keeps = NOTHING if fits >= after else tell(", so it keeps {after}", after=number(after))
        return tell("the nodes that admit it hold {fits} of {before}", fits=number(fits), **told) + keeps + _grows(row)
    if is_current and not is_short and is_pending:
        return halted
    allocates = pool + tell(" allocates {after} of {before}", **told)
    if not is_short:
        return allocates + tell(", because {unstarted:its last pods did not start}")
    return allocates + headroom + guarantees.words(row, after) + scattered + _grows(row)


def _owner(row: TickRow, after: float) -> Words:
    """Word why the count is not the one decided: it has another owner, is held, or was refused."""
    fleet = row.inp.fleet
    if fleet.other_owner[row.row]:
        return tell("{owner} owns the count", owner=fleet.other_owner[row.row]) + owned_for(row)
    if fleet.paused[row.row]:
        return tell("{paused:scaling is paused}")
    if fleet.hpa_limits is not None and fleet.hpa_limits.reason[row.row]:
        because = fleet.hpa_limits.reason[row.row]
        return tell("{held_because}, so the count will be {after}", held_because=because, after=number(after))
    return pods.refusal(row)


def owned_for(row: TickRow) -> Words:
    """Word for how long another owner is respected; nothing: for as long as it is there."""
    foreign = row.inp.fleet.foreign
    left_s = math.nan if foreign is None else float(foreign.owned_until_s[row.row]) - row.inp.now_s
    if left_s == math.inf:
        return tell(", {for_ever:until somebody raises it from zero}")
    return tell(" for {owned_left_s} more", owned_left_s=seconds(left_s)) if left_s > 0 else NOTHING


def _pool(row: TickRow) -> tuple[Words, bool, Words]:
    """Name the GPUs that the workload competes for, and return whether they are too few for one more replica.

    They are those of its pool, or of several pools on the same node groups. The last value words that they are too few
    on each node, although they would suffice together; nothing: they would not.
    """
    fleet = row.inp.fleet
    own, sizes = int(fleet.pool[row.row]), fleet.pool_gpus
    replicas = or_zero(count_taking(quotas.count_allocated(row), row.decision.unfollowed_s, fleet))
    limited = (fleet.pool >= 0) & ~np.isnan(np.append(sizes, np.nan)[fleet.pool]) & np.isfinite(fleet.gpus_per_replica)
    running, one_replica = list_running(fleet, has_gpus(fleet)), float(or_zero(fleet.gpus_per_replica[row.row]))
    members, scattered = [], NOTHING
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
            scattered = tell(", because no node has {free_gpus} GPUs left", free_gpus=number(one_replica))
    if len(members) <= 1:
        told = {"pool_gpus": number(float(sizes[own])), "pool": _name(fleet.pools[own])}
        return tell("the pool of {pool_gpus} {pool}", **told), bool(members), scattered
    pools = listed([_name(fleet.pools[index]) for index in members[:MOST_POOLS_NAMED]], len(members))
    gpus = number(float(fleet.groups.gpus[fleet.groups.admitted[members].any(axis=0)].sum()))
    name = tell("the pool of {shared_gpus} GPUs on the node groups of {pools}", shared_gpus=gpus, pools=pools)
    return name, True, scattered


def _name(pool: Pool) -> str:
    return f"{pool.product or pool.resource}" + (f" ({pool.nodes})" if pool.nodes else "")


def _grows(row: TickRow) -> Words:
    """Word that the nodes of today are the limit, though a cluster autoscaler may add more."""
    label = row.inp.fleet.pools[int(row.inp.fleet.pool[row.row])].grows
    return tell(", by today's nodes, although {grows} may get more", grows=label) if label else NOTHING
