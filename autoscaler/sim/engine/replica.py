"""One vLLM engine: continuous batching in steps, with chunked prefill, a KV cache and preemption.

Time moves from event to event: a request ends, a prompt is to be computed, or the KV cache is full. In between, all
decoding requests gain one token per step, and each step is longer by the same amount. So any number of steps is summed
in closed form, and a request costs a few events, however many tokens it has.

Simplifications: the KV blocks of a prompt are allocated when the request is scheduled, not chunk by chunk. A sequence
occupies half a block more than its tokens on average. There is no prefix cache. The attention part of prefill is
linear. Clients leave while their request waits, not once it runs.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection
from heapq import heappop, heappush

from autoscaler.sim.engine.metrics import EngineMetrics
from autoscaler.sim.engine.profiles import Profile
from autoscaler.sim.engine.request import Ending, Request
from autoscaler.sim.engine.sleep_state import SimulatedSleep


class Replica:
    """An engine that serves from `now_s` on.

    Times passed to `advance` must not decrease, and `advance` must precede `submit` with the same time. `take_ended`
    collects ended requests.
    """

    def __init__(self, profile: Profile, now_s: float) -> None:
        self.profile = profile
        self.metrics = EngineMetrics(profile.max_model_len)
        self.clock_s = now_s  # end of the last step, at most one step behind the caller
        self.sleep_state = SimulatedSleep()
        self.decode_s = 0.0  # seconds of steps so far, without prefill
        self.prefill_s = 0.0  # seconds of prefill
        self._waiting: deque[Request] = deque()
        self._preempted: deque[Request] = deque()  # scheduled before the waiting ones
        self._prefilling: deque[Request] = deque()
        self._decoding: dict[int, Request] = {}  # by identity, in scheduling order
        # heap of (last_step, identity, request); may hold requests that have left
        self._ends: list[tuple[int, int, Request]] = []
        self._steps = 0
        self._decode_tokens = 0  # KV tokens of the decoding requests
        self._prefill_tokens = 0  # KV tokens of requests in prefill
        self._no_event_before_s = -math.inf  # no request ends or is scheduled before this time
        self._step_end_s: float | None = None  # end of the step in progress, if its batch is fixed
        self._ended: list[Request] = []

    # Values of /metrics and /load.

    @property
    def running(self) -> int:
        """Requests in the running batch."""
        return len(self._decoding) + len(self._prefilling)

    @property
    def waiting(self) -> int:
        """Requests that the scheduler queues, as of the last step. A sleeping engine takes none, so it shows none."""
        return 0 if self.sleep_state.paused and not self.running else len(self._waiting) + len(self._preempted)

    @property
    def held(self) -> int:
        """Requests inside the server, including those hidden by a sleeping engine."""
        return self.running + len(self._waiting) + len(self._preempted)

    @property
    def kv_usage(self) -> float:
        return min(self._kv_tokens(self.running) / self.profile.kv_capacity_tokens, 1.0)

    # Actions of clients and operators.

    def submit(self, request: Request, now_s: float) -> None:
        """Accept a request. Raises ValueError if it is too long."""
        if request.prompt_tokens + request.output_tokens > self.profile.max_model_len:
            raise ValueError(
                f"request has {request.prompt_tokens} + {request.output_tokens} tokens, "
                f"max_model_len is {self.profile.max_model_len}"
            )
        request.submitted_s = now_s
        self._waiting.append(request)
        self._no_event_before_s = -math.inf

    def unanswered(self) -> list[Request]:
        """Return the requests without a first token."""
        return [r for r in (*self._preempted, *self._waiting, *self._prefilling) if math.isnan(r.first_token_s)]

    def take_ended(self) -> list[Request]:
        """Return the requests that ended since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def pause(self, mode: str, now_s: float) -> None:
        """Stop scheduling; later requests are held.

        Running and waiting requests are aborted (`abort`) or kept (`keep`). With `wait` the running ones end, and the
        waiting ones are kept.
        """
        self.sleep_state.paused = True
        if mode == "abort":
            for request in self._decoding.values():
                self._interrupt(request)
            for request in (*self._decoding.values(), *self._prefilling, *self._preempted, *self._waiting):
                self._observe_abort(request, now_s)
            self.abort(now_s)
        elif mode == "keep":
            self._preempt_all()

    def release(self, level: int, took_s: float) -> None:
        """Reach a level of sleep after a pause. Requests that still run lose their KV blocks."""
        if level:
            self._preempt_all()
        self.sleep_state.release(level)
        self.metrics.sleep.observe(took_s)

    def wake_up(self, tags: Collection[str], now_s: float, took_s: float) -> None:
        """Wake the parts of these tags, or all without a tag. Once all are awake, held requests are served first."""
        if self.sleep_state.paused:
            self.metrics.wake_up.observe(took_s)
        self.sleep_state.wake(tags)
        if not self.sleep_state.paused:
            self.clock_s = max(self.clock_s, now_s)
            self._no_event_before_s = -math.inf

    def abort(self, now_s: float) -> None:
        """Drop every request, as after a crash or at the end of a grace period."""
        for request in (*self._decoding.values(), *self._prefilling, *self._preempted, *self._waiting):
            self._end(request, Ending.FAILED, now_s)
        for requests in (self._decoding, self._prefilling, self._preempted, self._waiting, self._ends):
            requests.clear()
        self._decode_tokens = self._prefill_tokens = 0
        self._step_end_s = None

    def advance_if_needed(self, to_s: float) -> None:
        """Advance if that could change `held`; otherwise a later call runs the steps."""
        if to_s >= self._no_event_before_s:
            self.advance(to_s)

    def advance(self, to_s: float) -> None:
        """Run every step that ends by `to_s`."""
        self._no_event_before_s = -math.inf
        while self._next_step(to_s):
            pass
        waiting = len(self._waiting)
        self._drop_disconnected(to_s)
        if self._waiting:
            if len(self._waiting) < waiting and self._decoding and self._step_end_s is None:
                self._begin_step()  # a step is in progress; requests behind the dropped ones join at its end
            first = self._waiting[0]
            self._no_event_before_s = min(self._no_event_before_s, first.arrived_s + first.patience_s)

    # Steps.

    def _next_step(self, to_s: float) -> bool:
        """Run the next step or steps; return False if none ends by `to_s`."""
        if self._step_end_s is None:
            self._schedule()
            if self._prefilling:
                self._begin_step()
        if self._step_end_s is not None:
            return self._finish_step(to_s)
        if self._decoding:
            return self._decode(to_s)
        self._no_event_before_s = math.inf
        # it arrived after the last step, so the next one begins with it
        if self._waiting and self._waiting[0].submitted_s <= to_s and not self.sleep_state.paused:
            self.clock_s = self._waiting[0].submitted_s
            return True
        self.clock_s = max(self.clock_s, to_s)
        return False

    def _schedule(self) -> None:
        """Reserve room for the next token of running requests, then move waiting requests into the batch.

        Requests are admitted only while the step has tokens left: a request that would compute nothing in it waits.
        """
        profile = self.profile
        while self.running > 1 and self._kv_tokens(self.running) + len(self._decoding) > profile.kv_capacity_tokens:
            self._preempt()
        self._drop_disconnected(self.clock_s)
        budget = profile.max_batched_tokens - len(self._decoding) - sum(r.prefill_left for r in self._prefilling)
        while self.running < profile.max_num_seqs and budget > 0:
            queue = self._preempted or self._waiting
            # A request that arrives during a step joins at its end.
            if self.sleep_state.paused or not queue or queue[0].submitted_s > self.clock_s:
                return
            request = queue[0]
            wanted = self._kv_tokens(self.running + 1) + request.context_tokens + len(self._decoding) + 1
            if wanted > profile.kv_capacity_tokens and self.running:
                return
            queue.popleft()
            if math.isnan(request.scheduled_s):
                request.scheduled_s = self.clock_s
                self.metrics.prefix_cache_queries += request.prompt_tokens
            request.prefill_left = request.context_tokens
            budget -= request.context_tokens
            self._prefill_tokens += request.context_tokens
            self._prefilling.append(request)

    def _preempt(self) -> None:
        """Move the most recently scheduled request back to the head of the queue; its KV blocks are lost."""
        if self._prefilling:
            request = self._prefilling.pop()
            self._prefill_tokens -= request.context_tokens
        else:
            _, request = self._decoding.popitem()
            self._interrupt(request)
            self._decode_tokens -= request.context_tokens
        request.preemptions += 1
        self.metrics.preemptions += 1
        self._preempted.appendleft(request)

    def _preempt_all(self) -> None:
        """Preempt every running request, in the middle of a step too."""
        self._step_end_s = None
        while self.running:
            self._preempt()

    def _interrupt(self, request: Request) -> None:
        """Record the progress of a decoding request."""
        request.generated = request.output_tokens - (request.last_step - self._steps)
        request.last_token_s = self.clock_s

    def _begin_step(self) -> None:
        """Fix the batch of a step. The token budget left by decoding requests goes to prompts."""
        budget = chunk = self.profile.max_batched_tokens - len(self._decoding)
        for request in self._prefilling:
            part = min(request.prefill_left, budget)
            request.prefill_left -= part
            budget -= part
        chunk -= budget
        decode_s, prefill_s = self._step_s(), self.profile.prompt_token_s * chunk
        self.decode_s += decode_s
        self.prefill_s += prefill_s
        self._step_end_s = self.clock_s + decode_s + prefill_s
        self.metrics.step_tokens.observe(chunk + len(self._decoding))

    def _finish_step(self, to_s: float) -> bool:
        assert self._step_end_s is not None
        if self._step_end_s > to_s:
            self._no_event_before_s = self._step_end_s
            return False
        step_s = self._step_end_s - self.clock_s
        self._step_end_s = None
        self._gain_tokens(1, step_s)
        while self._prefilling and not self._prefilling[0].prefill_left:
            request = self._prefilling.popleft()
            self._prefill_tokens -= request.context_tokens
            self._start_decoding(request)
        return True

    def _start_decoding(self, request: Request) -> None:
        """Produce the next token of a request whose prompt is computed, usually its first."""
        metrics = self.metrics
        if request.generated:  # after a preemption
            metrics.token_gap.observe(self.clock_s - request.last_token_s)
        else:
            request.first_token_s = self.clock_s
            metrics.ttft.observe(self.clock_s - request.submitted_s)
            metrics.prompt_tokens += request.prompt_tokens
        request.generated += 1
        metrics.generation_tokens += 1
        if request.generated == request.output_tokens:
            self._finish(request)
            return
        request.last_step = self._steps + request.output_tokens - request.generated
        self._decode_tokens += request.context_tokens
        self._decoding[id(request)] = request
        heappush(self._ends, (request.last_step, id(request), request))

    def _decode(self, to_s: float) -> bool:
        """Decode until the next event or until `to_s`; return whether the event was reached."""
        batch = len(self._decoding)
        steps = self._next_end() - self._steps
        free_tokens = self.profile.kv_capacity_tokens - self._kv_tokens(batch)
        steps = min(steps, max(int(free_tokens // batch), 1))
        first_s, growth_s = self._step_s(), self.profile.kv_token_s * batch
        if self._waiting and self.running < self.profile.max_num_seqs:
            first = self._waiting[0]
            if first.submitted_s > self.clock_s:  # the request joins at the end of the step in which it arrives
                steps = min(steps, _steps_within(first.submitted_s - self.clock_s, first_s, growth_s, steps) + 1)
            if math.isfinite(first.patience_s):  # when it leaves, the next request may find room
                left_s = first.arrived_s + first.patience_s - self.clock_s
                steps = min(steps, _steps_within(left_s, first_s, growth_s, steps) + 1)
        duration_s = _sum_steps(steps, first_s, growth_s)
        complete = self.clock_s + duration_s <= to_s
        if not complete:
            self._no_event_before_s = self.clock_s + duration_s
            steps = _steps_within(to_s - self.clock_s, first_s, growth_s, steps)
            if steps == 0:
                return False
            duration_s = _sum_steps(steps, first_s, growth_s)
        self.decode_s += duration_s
        self.metrics.step_tokens.observe(batch, steps)
        self._gain_tokens(steps, duration_s)
        return complete

    def _gain_tokens(self, steps: int, duration_s: float) -> None:
        """Add `steps` tokens to every decoding request over `duration_s`, and finish complete requests."""
        self.clock_s += duration_s
        self._steps += steps
        tokens = steps * len(self._decoding)
        if not tokens:
            return
        self._decode_tokens += tokens
        self.metrics.generation_tokens += tokens
        self.metrics.token_gap.observe(duration_s / steps, tokens)
        while self._decoding and self._next_end() <= self._steps:
            _, key, request = heappop(self._ends)
            del self._decoding[key]
            self._decode_tokens -= request.prompt_tokens + request.output_tokens
            self._finish(request)

    def _next_end(self) -> int:
        """Return the number of the step in which the next decoding request ends. There must be one."""
        while True:
            last_step, key, request = self._ends[0]
            if self._decoding.get(key) is request and request.last_step == last_step:
                return last_step
            heappop(self._ends)  # preempted since

    def _step_s(self) -> float:
        profile = self.profile
        return profile.step_s + profile.sequence_s * len(self._decoding) + profile.kv_token_s * self._decode_tokens

    def _kv_tokens(self, sequences: int) -> float:
        """Return the capacity in tokens of the KV blocks of `sequences`; half of the last block is empty on average."""
        return self._decode_tokens + self._prefill_tokens + sequences * (self.profile.block_size - 1) / 2

    # Ends.

    def _finish(self, request: Request) -> None:
        request.generated = request.output_tokens
        self.metrics.finished_length += 1
        self._observe_end(request, request.scheduled_s, request.first_token_s, self.clock_s)
        # The engine counts an answer of lost weights as any other; its client cannot use it.
        self._end(request, Ending.FAILED if self.sleep_state.weights_lost else Ending.FINISHED, self.clock_s)

    def _observe_abort(self, request: Request, now_s: float) -> None:
        """Count a request that the engine aborts. Unlike a disconnected client, it appears in every metric.

        The abort is a last output: a first token if there was none. A request that was never scheduled counts as
        scheduled at time 0 of the engine's clock, so its whole age is prefill time. Recorded in `sleeping.prom`.
        """
        begun = not math.isnan(request.first_token_s)
        if begun:
            self.metrics.token_gap.observe(now_s - request.last_token_s)
        else:
            self.metrics.ttft.observe(now_s - request.submitted_s)
        self.metrics.finished_abort += 1
        scheduled_s = 0.0 if math.isnan(request.scheduled_s) else request.scheduled_s
        self._observe_end(request, scheduled_s, request.first_token_s if begun else now_s, now_s)

    def _observe_end(self, request: Request, scheduled_s: float, first_token_s: float, now_s: float) -> None:
        """Count a request in the metrics that the server observes at its end."""
        metrics = self.metrics
        e2e_s, decode_s = now_s - request.submitted_s, now_s - first_token_s
        metrics.http_ok += 1
        metrics.e2e.observe(e2e_s)
        metrics.http_fine.observe(e2e_s)
        metrics.http.observe(e2e_s)
        metrics.queue.observe(max(scheduled_s - request.submitted_s, 0.0))
        metrics.inference.observe(now_s - scheduled_s)
        metrics.prefill.observe(first_token_s - scheduled_s)
        metrics.decode.observe(decode_s)
        metrics.request_token_gap.observe(decode_s / max(request.generated - 1, 1))
        metrics.request_prompt.observe(request.prompt_tokens)
        metrics.request_output.observe(request.generated)
        metrics.request_preemptions.observe(request.preemptions)
        metrics.samples.observe(1)

    def _drop_disconnected(self, now_s: float) -> None:
        """Drop the waiting requests whose clients have left. Only the server's HTTP layer counts them, as a 200.

        All requests of a workload have the same patience, so the requests to drop are at the head of the queue.
        """
        while self._waiting and self._waiting[0].arrived_s + self._waiting[0].patience_s <= now_s:
            request = self._waiting.popleft()
            gone_s = request.arrived_s + request.patience_s
            self.metrics.http_ok += 1
            self.metrics.http_fine.observe(gone_s - request.submitted_s)
            self.metrics.http.observe(gone_s - request.submitted_s)
            self._end(request, Ending.GIVEN_UP, gone_s)

    def _end(self, request: Request, ending: Ending, now_s: float) -> None:
        request.ending = ending
        request.ended_s = now_s
        self._ended.append(request)


def _sum_steps(steps: int, first_s: float, growth_s: float) -> float:
    """Return the duration in seconds of `steps` steps, each `growth_s` longer than the one before."""
    return steps * first_s + growth_s * steps * (steps - 1) / 2


def _steps_within(duration_s: float, first_s: float, growth_s: float, most: int) -> int:
    """Return the number of such steps that end within `duration_s`: the root of `_sum_steps`, rounded down."""
    linear_s = first_s - growth_s / 2
    # This form avoids the cancellation of the usual one when the growth is small.
    root = 2 * duration_s / (linear_s + math.sqrt(linear_s**2 + 2 * growth_s * duration_s))
    steps = min(math.floor(root), most)
    while steps > 0 and _sum_steps(steps, first_s, growth_s) > duration_s:
        steps -= 1  # correct the rounding of the root
    return steps
