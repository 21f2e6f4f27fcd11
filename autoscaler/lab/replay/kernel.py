"""The engine model compiled: the steps of `engine.replica` and the router in front, fast enough for whole weeks.

The rules are those of `replica.py`, which says what is kept simple; a test holds the two beside each other. Here live
only the compiled loops over the columns of `state`. Time moves from event to event, so a request costs a few events,
however many tokens it has. Unlike there, the token gaps of a run of steps fall into their buckets step by step.

Compiled code checks no index: what comes in must have been checked (`run`). It is one long file because code kept on
disk is renewed only when the file it stands in changes, not when a function does that it calls; so touch this file when
you change the bounds in `engine.metrics`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from autoscaler.core.table.columns import FloatColumn, IntColumn
from autoscaler.lab.replay.compiled import compiled
from autoscaler.lab.replay.state import GAP_BOUNDS, PREFILL_BOUNDS, TTFT_BOUNDS, Engine, Records, State

Record = Any  # one replica or the gateway; numba knows its fields

NEVER = 1 << 62  # a step that does not come


# Requests come.


@compiled
def arrive(state: State, engine: Engine, gateway: Records, serving: IntColumn, to_s: float, least: bool) -> float:
    """Let every request that comes before `to_s` arrive; return when the next one comes, infinity if none does.

    serving: int64[n], rows of the replicas that take requests, in the order of their age. `least`: each request goes to
    the first of those that hold the fewest; else to each in turn. While nobody serves, the gateway holds them.
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
            _dispatch(state, engine, front, serving, request, now_s, least)
    return state.arrival_s[front.arrived] if front.arrived < count else math.inf


@compiled
def release(state: State, engine: Engine, gateway: Records, serving: IntColumn, now_s: float, least: bool) -> None:
    """Pass on what the gateway holds, if somebody serves; forget those who left."""
    front = gateway[0]
    while front.held > 0:
        request = front.head
        impatient = state.arrival_s[request] + engine.patience_s <= now_s
        if not impatient and len(serving) == 0:
            return
        front.head = state.requests[request].next
        front.held -= 1
        state.requests[request].next = -1
        if not impatient:
            _dispatch(state, engine, front, serving, request, now_s, least)


@compiled
def _hold(state: State, front: Record, request: int) -> None:
    if front.held == 0:
        front.head = request
    else:
        state.requests[front.tail].next = request
    front.tail = request
    front.held += 1


@compiled
def _dispatch(
    state: State, engine: Engine, front: Record, serving: IntColumn, request: int, now_s: float, least: bool
) -> None:
    choice = serving[front.turn % len(serving)]
    if least:
        fewest = NEVER
        for row in serving:
            if state.replicas[row].quiet_until_s <= now_s:
                advance(state, engine, row, now_s)
            if state.replicas[row].held < fewest:
                fewest, choice = state.replicas[row].held, row
    else:
        front.turn += 1
    submit(state, engine, choice, request, now_s)


@compiled
def submit(state: State, engine: Engine, row: int, request: int, now_s: float) -> None:
    """Put a request into the queue of a replica. The steps until then may still be to be done.

    It joins at the end of the step under way, so nobody ends sooner for it, and itself it takes a step for each token.
    """
    replica = state.replicas[row]
    state.requests[request].since_s = now_s
    if replica.waiting == 0:
        replica.waiting_head = request
    else:
        state.requests[replica.waiting_tail].next = request
    replica.waiting_tail = request
    replica.waiting += 1
    replica.held += 1
    soonest_s = now_s + engine.step_s * state.output_tokens[request]
    if math.isfinite(engine.patience_s):  # somebody who leaves may let the next one in
        soonest_s = -math.inf
    replica.quiet_until_s = min(replica.quiet_until_s, soonest_s)


# Time passes.


@compiled
def held(state: State, engine: Engine, rows: IntColumn, to_s: float) -> int:
    """Return how many requests are inside these replicas at `to_s`."""
    count = 0
    for row in rows:
        if state.replicas[row].quiet_until_s <= to_s:
            advance(state, engine, row, to_s)
        count += state.replicas[row].held
    return count


@compiled
def advance(state: State, engine: Engine, row: int, to_s: float) -> None:
    """Do every step of one replica that ends by `to_s`. Calls must not go back in time."""
    replica = state.replicas[row]
    replica.quiet_until_s = -math.inf
    while _next_step(state, engine, row, to_s):
        pass
    waiting = replica.waiting
    _drop_disconnected(state, engine, replica, to_s)
    if replica.waiting > 0:
        if replica.waiting < waiting and replica.decoding > 0 and math.isnan(replica.step_end_s):
            _begin_step(state, engine, row)  # it is under way: who stood behind those who left joins at its end
        gone_s = state.arrival_s[replica.waiting_head] + engine.patience_s
        replica.quiet_until_s = min(replica.quiet_until_s, gone_s)


@compiled
def abort(state: State, row: int) -> None:
    """Lose every request of a replica, as a crash or the end of a grace period does."""
    replica = state.replicas[row]
    replica.decoding = replica.prefilling = replica.waiting = replica.preempted = replica.held = 0
    replica.waiting_head = replica.waiting_tail = replica.preempted_head = -1
    replica.decode_tokens = replica.prefill_tokens = 0
    replica.step_end_s = math.nan
    replica.quiet_until_s = math.inf


@compiled
def _next_step(state: State, engine: Engine, row: int, to_s: float) -> bool:
    """Do the next step or steps; False if none ends by `to_s`."""
    replica = state.replicas[row]
    if math.isnan(replica.step_end_s):
        _schedule(state, engine, row)
        if replica.prefilling > 0:
            _begin_step(state, engine, row)
    if not math.isnan(replica.step_end_s):
        return _finish_step(state, engine, row, to_s)
    if replica.decoding > 0:
        return _decode(state, engine, row, to_s)
    replica.quiet_until_s = math.inf
    if replica.waiting > 0 and state.requests[replica.waiting_head].since_s <= to_s:  # the next step begins with it
        replica.clock_s = state.requests[replica.waiting_head].since_s
        return True
    replica.clock_s = max(replica.clock_s, to_s)
    return False


@compiled
def kv_tokens(engine: Engine, replica: Record, sequences: int) -> float:
    """Return the tokens that the KV blocks of `sequences` could hold: on average half of the last one is empty."""
    return float(replica.decode_tokens + replica.prefill_tokens + sequences * engine.spare_tokens)


@compiled
def _schedule(state: State, engine: Engine, row: int) -> None:
    """Make room for the next token of those who run, then move waiting requests into the batch.

    Only while the step has tokens left: who would compute nothing in it waits.
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
        again = replica.preempted > 0
        request = replica.preempted_head if again else replica.waiting_head
        # A request that came during a step joins at the end of that step, not in the middle of it.
        if request < 0 or state.requests[request].since_s > replica.clock_s:
            return
        running = replica.decoding + replica.prefilling
        context = state.prompt_tokens[request] + state.requests[request].generated
        wanted = kv_tokens(engine, replica, running + 1) + context + replica.decoding + 1
        if wanted > engine.kv_capacity_tokens and running > 0:
            return
        if again:
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
def _leave_queue(state: State, replica: Record) -> None:
    """Take the first of the waiting requests out of its queue."""
    request = replica.waiting_head
    replica.waiting_head = state.requests[request].next
    replica.waiting -= 1
    state.requests[request].next = -1


@compiled
def _preempt(state: State, row: int) -> None:
    """Put the request that was scheduled last back to the head of the queue; its KV blocks are lost."""
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
def _begin_step(state: State, engine: Engine, row: int) -> None:
    """Settle the batch of a step, which spends what the decoding requests leave of the token budget on prompts."""
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
def _finish_step(state: State, engine: Engine, row: int, to_s: float) -> bool:
    replica = state.replicas[row]
    if replica.step_end_s > to_s:
        replica.quiet_until_s = replica.step_end_s
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
def _start_decoding(state: State, row: int, request: int) -> None:
    """The prompt is computed: the next token, mostly the first, appears."""
    replica, its = state.replicas[row], state.requests[request]
    replica.prefill_tokens -= state.prompt_tokens[request] + its.generated
    passed_s = replica.clock_s - its.since_s
    if its.generated > 0:  # it was preempted
        _observe_gaps(state.gap_counts[row], passed_s, 0.0, 1, 1)
        replica.itl_sum_s += passed_s
    else:
        its.first_s = replica.clock_s
        state.ttft_counts[row, _bucket(TTFT_BOUNDS, passed_s)] += 1
        replica.first_tokens += 1
        replica.prompt_tokens += state.prompt_tokens[request]
    its.generated += 1
    replica.generation_tokens += 1
    left = state.output_tokens[request] - its.generated
    if left == 0:
        _finish(state, row, request)
        return
    state.decoding[row, replica.decoding] = request
    state.last_step[row, replica.decoding] = replica.steps + left
    replica.next_end = replica.steps + left if replica.decoding == 0 else min(replica.next_end, replica.steps + left)
    replica.decoding += 1
    replica.decode_tokens += state.prompt_tokens[request] + its.generated


@compiled
def _decode(state: State, engine: Engine, row: int, to_s: float) -> bool:
    """Decode until the next event, or until `to_s`."""
    replica = state.replicas[row]
    batch = replica.decoding
    free_tokens = engine.kv_capacity_tokens - kv_tokens(engine, replica, batch)
    steps = min(replica.next_end - replica.steps, max(int(free_tokens // batch), 1))
    first_s, growth_s = _step_s(engine, replica), engine.kv_token_s * batch
    if replica.waiting > 0 and batch + replica.prefilling < engine.max_num_seqs:
        until_s = state.requests[replica.waiting_head].since_s - replica.clock_s
        if until_s > 0:  # it joins at the end of the step during which it came
            steps = min(steps, _steps_within(until_s, first_s, growth_s, steps) + 1)
        if math.isfinite(engine.patience_s):  # when it leaves, the next one may find room
            left_s = state.arrival_s[replica.waiting_head] + engine.patience_s - replica.clock_s
            steps = min(steps, _steps_within(left_s, first_s, growth_s, steps) + 1)
    duration_s = _sum_steps(steps, first_s, growth_s)
    complete = bool(replica.clock_s + duration_s <= to_s)
    if not complete:
        replica.quiet_until_s = replica.clock_s + duration_s
        steps = _steps_within(to_s - replica.clock_s, first_s, growth_s, steps)
        if steps == 0:
            return False
        duration_s = _sum_steps(steps, first_s, growth_s)
    _gain_tokens(state, row, steps, duration_s, first_s, growth_s)
    return complete


@compiled
def _gain_tokens(state: State, row: int, steps: int, duration_s: float, first_s: float, growth_s: float) -> None:
    """Every decoding request gains `steps` tokens in `duration_s`; end those that are complete."""
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
def _find_next_end(state: State, row: int) -> None:
    replica = state.replicas[row]
    first = NEVER
    for place in range(replica.decoding):
        first = min(first, state.last_step[row, place])
    replica.next_end = first


@compiled
def _finish(state: State, row: int, request: int) -> None:
    replica, its = state.replicas[row], state.requests[request]
    its.end_s = replica.clock_s
    state.prefill_counts[row, _bucket(PREFILL_BOUNDS, its.first_s - its.scheduled_s)] += 1
    gaps = max(state.output_tokens[request] - 1, 1)  # of a single token the engine counts a mean gap of 0
    state.mean_gap_counts[row, _bucket(GAP_BOUNDS, (its.end_s - its.first_s) / gaps)] += 1
    replica.finished += 1
    replica.held -= 1
    if replica.held == 0:
        replica.emptied_s = replica.clock_s


@compiled
def _drop_disconnected(state: State, engine: Engine, replica: Record, now_s: float) -> None:
    """Forget the waiting requests whose clients are gone.

    Patience is the same for all, so those who lose it stand at the head of the queue.
    """
    while replica.waiting > 0:
        gone_s = state.arrival_s[replica.waiting_head] + engine.patience_s
        if gone_s > now_s:
            return
        _leave_queue(state, replica)
        replica.held -= 1
        if replica.held == 0:
            replica.emptied_s = gone_s


# What a scrape reads.


@compiled
def read(
    state: State, engine: Engine, rows: IntColumn, to_s: float, gone: FloatColumn, gone_counts: IntColumn
) -> tuple[FloatColumn, FloatColumn, IntColumn, FloatColumn, FloatColumn]:
    """Advance these replicas to `to_s` and read what each shows, and the sums over all there ever were.

    gone, gone_counts: float64[6] and int64[85], sums of those that are gone.
    Returns float64[3, n], running, waiting and KV usage; float64[6, n], `state.COUNTERS`; int64[n, 85], the counts of
    the histograms side by side, not cumulative; and the sums, float64[6] and float64[85], these cumulative.
    """
    gauges = np.empty((3, len(rows)))
    counters = np.empty((6, len(rows)))
    counts = np.empty((len(rows), len(gone_counts)), np.int64)
    first = state.ttft_counts.shape[1]
    second = first + state.gap_counts.shape[1]
    third = second + state.mean_gap_counts.shape[1]
    for place, row in enumerate(rows):
        advance(state, engine, row, to_s)
        replica = state.replicas[row]
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
        counts[place, :first] = state.ttft_counts[row]
        counts[place, first:second] = state.gap_counts[row]
        counts[place, second:third] = state.mean_gap_counts[row]
        counts[place, third:] = state.prefill_counts[row]
    sums, sum_counts = gone + counters.sum(axis=1), (gone_counts + counts.sum(axis=0)).astype(np.float64)
    sum_counts[:first] = np.cumsum(sum_counts[:first])
    sum_counts[first:second] = np.cumsum(sum_counts[first:second])
    sum_counts[second:third] = np.cumsum(sum_counts[second:third])
    sum_counts[third:] = np.cumsum(sum_counts[third:])
    return gauges, counters, counts, sums, sum_counts


# Sums over steps, and buckets.


@compiled
def _step_s(engine: Engine, replica: Record) -> float:
    return float(engine.step_s + engine.sequence_s * replica.decoding + engine.kv_token_s * replica.decode_tokens)


@compiled
def _sum_steps(steps: int, first_s: float, growth_s: float) -> float:
    """Return how long `steps` steps take when each takes `growth_s` longer than the one before."""
    return steps * first_s + growth_s * steps * (steps - 1) / 2


@compiled
def _steps_within(duration_s: float, first_s: float, growth_s: float, most: int) -> int:
    """Return how many such steps end within `duration_s`: the root of `_sum_steps` for `steps`, rounded down."""
    linear_s = first_s - growth_s / 2
    # 2c / (b + sqrt(b^2 + 4ac)) rather than the usual form, which cancels when the growth is small.
    root = 2 * duration_s / (linear_s + math.sqrt(linear_s**2 + 2 * growth_s * duration_s))
    steps = most if root >= most else math.floor(root)
    while steps > 0 and _sum_steps(steps, first_s, growth_s) > duration_s:
        steps -= 1  # the root is rounded
    return steps


@compiled
def _bucket(bounds: FloatColumn, value: float) -> int:
    """Return the bucket of `value`; one on a bound belongs to the bucket below it, as in Prometheus."""
    place = 0
    while value > bounds[place]:
        place += 1
    return place


@compiled
def _observe_gaps(counts: IntColumn, first_s: float, growth_s: float, steps: int, times: int) -> None:
    """Count the gaps of `steps` steps, each `growth_s` longer than the one before, `times` times each."""
    done, bucket = 0, _bucket(GAP_BOUNDS, first_s)
    last_s = first_s + growth_s * (steps - 1)
    while done < steps:
        upto = steps
        if last_s > GAP_BOUNDS[bucket]:
            upto = max(min(int((GAP_BOUNDS[bucket] - first_s) / growth_s) + 1, steps), done)
        counts[bucket] += (upto - done) * times
        done = upto
        bucket += 1
