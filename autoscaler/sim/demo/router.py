"""The router in front of the replicas of one workload. It holds requests while no replica is ready."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from autoscaler.sim.engine.replica import Replica
from autoscaler.sim.engine.request import Ending, Request

MOST_HELD = 5000  # requests of one workload, the default of llm-d's flow control
HOLD_S = 600.0  # longest hold; the gateway's default of 60 s is shorter than most cold starts


class Router:
    """Routes each request to the ready replica with the fewest requests, and holds it while there is none."""

    def __init__(self) -> None:
        self.arrived = 0  # requests so far
        self.dispatched = 0
        self.rejected = 0  # for lack of room
        self.expired = 0  # held too long
        self.given_up = 0  # the client left
        self._held: deque[Request] = deque()
        self._ended: list[Request] = []

    @property
    def held(self) -> int:
        return len(self._held)

    def unanswered(self) -> Sequence[Request]:
        return tuple(self._held)

    def arrive(self, request: Request, replicas: Sequence[Replica], now_s: float) -> None:
        """Accept a request from a client. The replicas must be advanced to `now_s`."""
        self.arrived += 1
        if replicas:
            self._dispatch(request, replicas, now_s)
        elif len(self._held) < MOST_HELD:
            self._held.append(request)
        else:
            self.rejected += 1
            self._end(request, Ending.REJECTED, now_s)

    def release(self, replicas: Sequence[Replica], now_s: float) -> None:
        """Route held requests once a replica is ready; drop those that waited too long."""
        while self._held:
            request = self._held[0]
            if request.arrived_s + request.patience_s <= now_s:
                self.given_up += 1
                self._end(self._held.popleft(), Ending.GIVEN_UP, now_s)
            elif request.arrived_s + HOLD_S <= now_s:
                self.expired += 1
                self._end(self._held.popleft(), Ending.REJECTED, now_s)
            elif replicas:
                self._dispatch(self._held.popleft(), replicas, now_s)
            else:
                return

    def take_ended(self) -> list[Request]:
        """Return the requests that ended here since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def _dispatch(self, request: Request, replicas: Sequence[Replica], now_s: float) -> None:
        self.dispatched += 1
        fewest, choice = math.inf, replicas[0]
        for replica in replicas:
            if replica.held < fewest:
                fewest, choice = replica.held, replica
        choice.submit(request, now_s)

    def _end(self, request: Request, ending: Ending, now_s: float) -> None:
        request.ending, request.ended_s = ending, now_s
        self._ended.append(request)
