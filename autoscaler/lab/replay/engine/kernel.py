"""The compiled engine model: the steps of `sim.engine.replica` and the router, fast enough for weeks of traffic.

The rules and simplifications are those of `replica.py`; a test compares both. This file holds only the compiled loops
over the columns of `state`. Time moves from event to event, so a request costs a few events, however many tokens it
has. Unlike in `replica.py`, the token gaps of a run of steps are counted step by step.

All times are seconds since the start of the trace. R is the number of replica rows, N the number of requests.

Compiled code checks no index, so `run` validates its input. The loops share one file, because the compiler's disk cache
tracks changes of a file and not of the functions it calls. For the same reason, touch this file when the bounds in
`sim.engine.metrics` change.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from autoscaler.core.table.columns import FloatColumn, IntColumn
from autoscaler.lab.replay.engine.compiled import compiled
from autoscaler.lab.replay.engine.state import (
    GAP_BOUNDS,
    REQUEST_BOUNDS,
    TTFT_BOUNDS,
    EngineParams,
    EngineState,
    Records,
)

Record = Any  # a record of one replica or of the gateway; numba knows its fields
Engines = tuple[EngineParams, ...]  # by the field `engine` of a replica

NEVER = 1 << 62  # a step that never comes


# Arrival and routing.


@compiled
def arrive(
    state: EngineState, engines: Engines, gateway: Records, serving: IntColumn, to_s: float, least: bool
) -> float:
    """Route every request that arrives before `to_s`. Return the time of the next arrival, infinity if there is none.

    serving: int64[n], rows of the replicas that accept requests, oldest first. least: route to the first replica with
    the fewest requests for its weight, else round robin. Without a serving replica, the gateway holds requests.
    """
    front = gateway[0]
    count = len(state.arrival_s)
    while front.arrived < count and state.arrival_s[front.arrived] < to_s:
        request = front.arrived
        front.arrived += 1
        now_s = state.arrival_s[request]
        if len(serving) == 0:
            _hold(state, front, request)
        else:
            _dispatch(state, engines, front, serving, request, now_s, least)
    return state.arrival_s[front.arrived] if front.arrived < count else math.inf


@compiled
def release(
    state: EngineState, engines: Engines, gateway: Records, serving: IntColumn, now_s: float, least: bool
) -> None:
    """Route the requests held by the gateway to `serving`, int64[n], if any; drop requests whose client has left."""
    front = gateway[0]
    while front.held > 0:
        request = front.head
        impatient = state.arrival_s[request] + engines[0].patience_s <= now_s
        if not impatient and len(serving) == 0:
            return
        front.head = state.requests[request].next
        front.held -= 1
        state.requests[request].next = -1
        if not impatient:
            _dispatch(state, engines, front, serving, request, now_s, least)


@compiled
def _hold(state: EngineState, front: Record, request: int) -> None:
    if front.held == 0:
        front.head = request
    else:
        state.requests[front.tail].next = request
    front.tail = request
    front.held += 1


@compiled
def _dispatch(
    state: EngineState, engines: Engines, front: Record, serving: IntColumn, request: int, now_s: float, least: bool
) -> None:
    choice = serving[front.turn % len(serving)]
    if least:
        least_load = math.inf
        for row in serving:
            replica = state.replicas[row]
            engine = engines[replica.engine]
            if replica.no_event_before_s <= now_s:
                advance(state, engine, row, now_s)
            load = (replica.held + 1) / engine.router_weight
            if load < least_load:
                least_load, choice = load, row
    else:
        front.turn += 1
    submit(state, engines[state.replicas[choice].engine], choice, request, now_s)


@compiled
def submit(state: EngineState, engine: EngineParams, row: int, request: int, now_s: float) -> None:
    """Append a request to the queue of a replica. Steps before `now_s` may still be outstanding.

    The request joins at the end of the present step, so no other request ends sooner because of it. Its own decoding
    takes one step per token.
    """
    replica = state.replicas[row]
    state.requests[request].since_s = state.requests[request].submitted_s = now_s
    if replica.waiting == 0:
        replica.waiting_head = request
    else:
        state.requests[replica.waiting_tail].next = request
    replica.waiting_tail = request
    replica.waiting += 1
    replica.held += 1
    soonest_s = now_s + engine.step_s * state.output_tokens[request]
    if math.isfinite(engine.patience_s):  # a client that leaves may let the next request in
        soonest_s = -math.inf
    replica.no_event_before_s = min(replica.no_event_before_s, soonest_s)


# Steps of an engine.


@compiled
def count_held(state: EngineState, engines: Engines, rows: IntColumn, to_s: float) -> int:
    """Return the number of requests inside the replicas of `rows`, int64[n], at `to_s`."""
    count = 0
    for row in rows:
        if state.replicas[row].no_event_before_s <= to_s:
            advance(state, engines[state.replicas[row].engine], row, to_s)
        count += state.replicas[row].held
    return count


@compiled
def advance(state: EngineState, engine: EngineParams, row: int, to_s: float) -> None:
    """Run every step of one replica that ends by `to_s`. Times must not decrease between calls."""
    replica = state.replicas[row]
    replica.no_event_before_s = -math.inf
    while _next_step(state, engine, row, to_s):
        pass
    waiting = replica.waiting
    _drop_disconnected(state, engine, replica, to_s)
    if replica.waiting > 0:
        if replica.waiting < waiting and replica.decoding > 0 and math.isnan(replica.step_end_s):
            _begin_step(state, engine, row)  # a step is in progress; requests behind the dropped ones join at its end
        gone_s = state.arrival_s[replica.waiting_head] + engine.patience_s
        replica.no_event_before_s = min(replica.no_event_before_s, gone_s)


@compiled
def abort(state: EngineState, row: int) -> None:
    """Drop every request of a replica, as after a crash or at the end of a grace period."""
    replica = state.replicas[row]
    replica.decoding = replica.prefilling = replica.waiting = replica.preempted = replica.held = 0
    replica.waiting_head = replica.waiting_tail = replica.preempted_head = -1
    replica.decode_tokens = replica.prefill_tokens = 0
    replica.step_end_s = math.nan
    replica.no_event_before_s = math.inf


@compiled
def _next_step(state: EngineState, engine: EngineParams, row: int, to_s: float) -> bool:
    """Run the next step or steps; return False if none ends by `to_s`."""
    replica = state.replicas[row]
    if math.isnan(replica.step_end_s):
        _schedule(state, engine, row)
        if replica.prefilling > 0:
            _begin_step(state, engine, row)
    if not math.isnan(replica.step_end_s):
        return _finish_step(state, engine, row, to_s)
    if replica.decoding > 0:
        return _decode(state, engine, row, to_s)
    replica.no_event_before_s = math.inf
    # the next step starts with this request
    if replica.waiting > 0 and state.requests[replica.waiting_head].since_s <= to_s:
        replica.clock_s = state.requests[replica.waiting_head].since_s
        return True
    replica.clock_s = max(replica.clock_s, to_s)
    return False


@compiled
def kv_tokens(engine: EngineParams, replica: Record, sequences: int) -> float:
    """Return the capacity in tokens of the KV blocks of `sequences`; on average, half of the last block is empty."""
    return float(replica.decode_tokens + replica.prefill_tokens + sequences * engine.spare_tokens)


@compiled
def _schedule(state: EngineState, engine: EngineParams, row: int) -> None:
    """Reserve room for the next token of running requests, then move waiting requests into the batch.

    Requests are admitted only while the step has tokens left: a request that would compute nothing in it waits.
    """
    replica = state.replicas[row]
    while True:
        running = replica.decoding + replica.prefilling
        if running <= 1 or kv_tokens(engine, replica, running) + replica.decoding <= engine.kv_capacity_tokens:
            break
        _preempt(state, row)
    _drop_disconnected(state, engine, replica, replica.clock_s)
    budget = engine.max_batched_tokens - replica.decoding
    for place in range(replica.prefilling):
        budget -= state.prefill_left[row, place]
    while replica.decoding + replica.prefilling < engine.max_num_seqs and budget > 0:
        was_preempted = replica.preempted > 0
        request = replica.preempted_head if was_preempted else replica.waiting_head
        # A request that arrives during a step joins at its end.
        if request < 0 or state.requests[request].since_s > replica.clock_s:
            return
        running = replica.decoding + replica.prefilling
        context = state.prompt_tokens[request] + state.requests[request].generated
        desired = kv_tokens(engine, replica, running + 1) + context + replica.decoding + 1
        if desired > engine.kv_capacity_tokens and running > 0:
            return
        if was_preempted:
            replica.preempted_head = state.requests[request].next
            replica.preempted -= 1
            state.requests[request].next = -1
        else:
            _leave_queue(state, replica)
            state.requests[request].scheduled_s = replica.clock_s
        budget -= context
        state.prefilling[row, replica.prefilling] = request
        state.prefill_left[row, replica.prefilling] = context
        replica.prefilling += 1
        replica.prefill_tokens += context


@compiled
def _leave_queue(state: EngineState, replica: Record) -> None:
    """Remove the first waiting request from the queue."""
    request = replica.waiting_head
    replica.waiting_head = state.requests[request].next
    replica.waiting -= 1
    state.requests[request].next = -1


@compiled
def _preempt(state: EngineState, row: int) -> None:
    """Move the most recently scheduled request back to the head of the queue; its KV blocks are lost."""
    replica = state.replicas[row]
    if replica.prefilling > 0:
        replica.prefilling -= 1
        request = state.prefilling[row, replica.prefilling]
        replica.prefill_tokens -= state.prompt_tokens[request] + state.requests[request].generated
    else:
        replica.decoding -= 1
        request = state.decoding[row, replica.decoding]
        generated = state.output_tokens[request] - (state.last_step[row, replica.decoding] - replica.steps)
        state.requests[request].generated = generated
        state.requests[request].since_s = replica.clock_s
        replica.decode_tokens -= state.prompt_tokens[request] + generated
        _find_next_end(state, row)
    state.requests[request].next = replica.preempted_head
    replica.preempted_head = request
    replica.preempted += 1
    replica.preemptions += 1


@compiled
def _begin_step(state: EngineState, engine: EngineParams, row: int) -> None:
    """Fix the batch of a step. The token budget left by decoding requests goes to prompts."""
    replica = state.replicas[row]
    budget = engine.max_batched_tokens - replica.decoding
    chunk = budget
    for place in range(replica.prefilling):
        part = min(state.prefill_left[row, place], budget)
        state.prefill_left[row, place] -= part
        budget -= part
        if budget == 0:
            break
    chunk -= budget
    replica.step_end_s = replica.clock_s + _step_s(engine, replica) + engine.prompt_token_s * chunk


@compiled
def _finish_step(state: EngineState, engine: EngineParams, row: int, to_s: float) -> bool:
    replica = state.replicas[row]
    if replica.step_end_s > to_s:
        replica.no_event_before_s = replica.step_end_s
        return False
    step_s = replica.step_end_s - replica.clock_s
    replica.step_end_s = math.nan
    _gain_tokens(state, row, 1, step_s, step_s, 0.0)
    done = 0
    while done < replica.prefilling and state.prefill_left[row, done] == 0:
        _start_decoding(state, row, state.prefilling[row, done])
        done += 1
    replica.prefilling -= done
    for place in range(replica.prefilling):
        state.prefilling[row, place] = state.prefilling[row, place + done]
        state.prefill_left[row, place] = state.prefill_left[row, place + done]
    return True


@compiled
def _start_decoding(state: EngineState, row: int, request: int) -> None:
    """Produce the next token of a request whose prompt is computed, usually its first."""
    replica, record = state.replicas[row], state.requests[request]
    replica.prefill_tokens -= state.prompt_tokens[request] + record.generated
    passed_s = replica.clock_s - record.since_s
    if record.generated > 0:  # after a preemption
        _observe_gaps(state.gap_counts[row], passed_s, 0.0, 1, 1)
        replica.itl_sum_s += passed_s
    else:
        record.first_s = replica.clock_s
        state.ttft_counts[row, _bucket(TTFT_BOUNDS, passed_s)] += 1
        replica.ttft_sum_s += passed_s
        replica.first_tokens += 1
        replica.prompt_tokens += state.prompt_tokens[request]
    record.generated += 1
    replica.generation_tokens += 1
    left = state.output_tokens[request] - record.generated
    if left == 0:
        _finish(state, row, request)
        return
    state.decoding[row, replica.decoding] = request
    state.last_step[row, replica.decoding] = replica.steps + left
    replica.next_end = replica.steps + left if replica.decoding == 0 else min(replica.next_end, replica.steps + left)
    replica.decoding += 1
    replica.decode_tokens += state.prompt_tokens[request] + record.generated


@compiled
def _decode(state: EngineState, engine: EngineParams, row: int, to_s: float) -> bool:
    """Decode until the next event or until `to_s`; return whether the event was reached."""
    replica = state.replicas[row]
    batch = replica.decoding
    free_tokens = engine.kv_capacity_tokens - kv_tokens(engine, replica, batch)
    steps = min(replica.next_end - replica.steps, max(int(free_tokens // batch), 1))
    first_s, growth_s = _step_s(engine, replica), engine.kv_token_s * batch
    if replica.waiting > 0 and batch + replica.prefilling < engine.max_num_seqs:
        until_s = state.requests[replica.waiting_head].since_s - replica.clock_s
        if until_s > 0:  # the request joins at the end of the step in which it arrives
            steps = min(steps, _steps_within(until_s, first_s, growth_s, steps) + 1)
        if math.isfinite(engine.patience_s):  # when it leaves, the next request may find room
            left_s = state.arrival_s[replica.waiting_head] + engine.patience_s - replica.clock_s
            steps = min(steps, _steps_within(left_s, first_s, growth_s, steps) + 1)
    duration_s = _sum_steps(steps, first_s, growth_s)
    complete = bool(replica.clock_s + duration_s <= to_s)
    if not complete:
        replica.no_event_before_s = replica.clock_s + duration_s
        steps = _steps_within(to_s - replica.clock_s, first_s, growth_s, steps)
        if steps == 0:
            return False
        duration_s = _sum_steps(steps, first_s, growth_s)
    _gain_tokens(state, row, steps, duration_s, first_s, growth_s)
    return complete


@compiled
def _gain_tokens(state: EngineState, row: int, steps: int, duration_s: float, first_s: float, growth_s: float) -> None:
    """Add `steps` tokens to every decoding request over `duration_s`, and finish complete requests."""
    replica = state.replicas[row]
    replica.clock_s += duration_s
    replica.steps += steps
    batch = replica.decoding
    if batch == 0:
        return
    replica.decode_tokens += steps * batch
    replica.generation_tokens += steps * batch
    replica.itl_sum_s += duration_s * batch
    _observe_gaps(state.gap_counts[row], first_s, growth_s, steps, batch)
    if replica.next_end > replica.steps:
        return
    kept = 0
    for place in range(batch):
        request = state.decoding[row, place]
        if state.last_step[row, place] <= replica.steps:
            replica.decode_tokens -= state.prompt_tokens[request] + state.output_tokens[request]
            _finish(state, row, request)
        else:
            state.decoding[row, kept] = request
            state.last_step[row, kept] = state.last_step[row, place]
            kept += 1
    replica.decoding = kept
    _find_next_end(state, row)


@compiled
def _find_next_end(state: EngineState, row: int) -> None:
    replica = state.replicas[row]
    first = NEVER
    for place in range(replica.decoding):
        first = min(first, state.last_step[row, place])
    replica.next_end = first


@compiled
def _finish(state: EngineState, row: int, request: int) -> None:
    replica, record = state.replicas[row], state.requests[request]
    record.end_s = replica.clock_s
    record.next = replica.engine
    state.prefill_counts[row, _bucket(REQUEST_BOUNDS, record.first_s - record.scheduled_s)] += 1
    gaps = max(state.output_tokens[request] - 1, 1)  # vLLM counts a mean gap of 0 for a single token
    state.mean_gap_counts[row, _bucket(GAP_BOUNDS, (record.end_s - record.first_s) / gaps)] += 1
    replica.finished += 1
    replica.held -= 1
    if replica.held == 0:
        replica.emptied_s = replica.clock_s


@compiled
def _drop_disconnected(state: EngineState, engine: EngineParams, replica: Record, now_s: float) -> None:
    """Drop the waiting requests whose clients have left.

    All clients have the same patience, so the requests to drop are at the head of the queue.
    """
    while replica.waiting > 0:
        gone_s = state.arrival_s[replica.waiting_head] + engine.patience_s
        if gone_s > now_s:
            return
        _leave_queue(state, replica)
        replica.held -= 1
        if replica.held == 0:
            replica.emptied_s = gone_s


# Scrapes.


@compiled
def read_metrics(
    state: EngineState, engines: Engines, rows: IntColumn, to_s: float, ended: FloatColumn, ended_counts: IntColumn
) -> tuple[FloatColumn, FloatColumn, IntColumn, FloatColumn, FloatColumn]:
    """Advance the replicas of `rows`, int64[n], to `to_s`; read their metrics, and the sums including ended replicas.

    ended, ended_counts: float64[7] and int64[85], sums over ended replicas.
    Returns five arrays: gauges float64[3, n] (running, waiting, KV usage 0..1); counters float64[7, n]
    (`state.COUNTERS`); histogram counts int64[n, 85], side by side, not cumulative; and the sums of the last two over
    all replicas, float64[7] and float64[85], the latter cumulative.
    """
    gauges = np.empty((3, len(rows)))
    counters = np.empty((7, len(rows)))
    counts = np.empty((len(rows), len(ended_counts)), np.int64)
    first = state.ttft_counts.shape[1]
    second = first + state.gap_counts.shape[1]
    third = second + state.mean_gap_counts.shape[1]
    for place, row in enumerate(rows):
        replica = state.replicas[row]
        engine = engines[replica.engine]
        advance(state, engine, row, to_s)
        running = replica.decoding + replica.prefilling
        gauges[0, place] = running
        gauges[1, place] = replica.waiting + replica.preempted
        gauges[2, place] = min(kv_tokens(engine, replica, running) / engine.kv_capacity_tokens, 1.0)
        counters[0, place] = replica.prompt_tokens
        counters[1, place] = replica.generation_tokens
        counters[2, place] = replica.finished
        counters[3, place] = replica.first_tokens
        counters[4, place] = replica.preemptions
        counters[5, place] = replica.itl_sum_s
        counters[6, place] = replica.ttft_sum_s
        counts[place, :first] = state.ttft_counts[row]
        counts[place, first:second] = state.gap_counts[row]
        counts[place, second:third] = state.mean_gap_counts[row]
        counts[place, third:] = state.prefill_counts[row]
    sums, sum_counts = ended + counters.sum(axis=1), (ended_counts + counts.sum(axis=0)).astype(np.float64)
    sum_counts[:first] = np.cumsum(sum_counts[:first])
    sum_counts[first:second] = np.cumsum(sum_counts[first:second])
    sum_counts[second:third] = np.cumsum(sum_counts[second:third])
    sum_counts[third:] = np.cumsum(sum_counts[third:])
    return gauges, counters, counts, sums, sum_counts


# Sums over steps, and histogram buckets.


@compiled
def _step_s(engine: EngineParams, replica: Record) -> float:
    return float(engine.step_s + engine.sequence_s * replica.decoding + engine.kv_token_s * replica.decode_tokens)


@compiled
def _sum_steps(steps: int, first_s: float, growth_s: float) -> float:
    """Return the duration in seconds of `steps` steps, each `growth_s` longer than the one before."""
    return steps * first_s + growth_s * steps * (steps - 1) / 2


@compiled
def _steps_within(duration_s: float, first_s: float, growth_s: float, most: int) -> int:
    """Return the number of such steps that end within `duration_s`: the root of `_sum_steps`, rounded down."""
    linear_s = first_s - growth_s / 2
    # This form avoids the cancellation of the usual one when the growth is small.
    root = 2 * duration_s / (linear_s + math.sqrt(linear_s**2 + 2 * growth_s * duration_s))
    steps = most if root >= most else math.floor(root)
    while steps > 0 and _sum_steps(steps, first_s, growth_s) > duration_s:
        steps -= 1  # correct the rounding of the root
    return steps


@compiled
def _bucket(bounds: FloatColumn, value: float) -> int:
    """Return the index of the bucket of `value`. A value on a bound belongs to the bucket below, as in Prometheus."""
    place = 0
    while value > bounds[place]:
        place += 1
    return place


@compiled
def _observe_gaps(counts: IntColumn, first_s: float, growth_s: float, steps: int, times: int) -> None:
    """Count the gaps of `steps` steps in `counts`, int64[20]. Each gap is `growth_s` longer than the one before and
    counts `times` times.
    """
    done, bucket = 0, _bucket(GAP_BOUNDS, first_s)
    last_s = first_s + growth_s * (steps - 1)
    while done < steps:
        upto = steps
        if last_s > GAP_BOUNDS[bucket]:
            upto = max(min(int((GAP_BOUNDS[bucket] - first_s) / growth_s) + 1, steps), done)
        counts[bucket] += (upto - done) * times
        done = upto
        bucket += 1
