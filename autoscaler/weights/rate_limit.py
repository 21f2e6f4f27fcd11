"""Limits that all transfers of a process share: bytes per second, and requests to one host."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.message import Message
from email.utils import parsedate_to_datetime

MAX_HEADER_CHARS = 1000
MAX_PAUSE_S = 900.0  # hubs count requests by windows of 300 s
UNTOLD_PAUSE_S = 10.0  # after "too many requests" without a time
LAST_REQUESTS = 100  # of a window: they are spread over what is left of it, since others use the same limit
BUDGET, WINDOW_S = 600, 300.0
"""Most redirects that one host may answer to this process in a window. The strictest hub allows an address 3,000."""

Headers = Message | Mapping[str, str]
_REMAINING = re.compile(r"(?:\br|remaining)=([0-9]{1,9})")
_RESET = re.compile(r"(?:\bt|reset)=([0-9]{1,9})")


class RateLimit:
    """At most this many bytes per second on average. A range may start as soon as those before it are paid for."""

    def __init__(self, bytes_per_s: float) -> None:
        if not bytes_per_s > 0:
            raise ValueError(f"bytes_per_s is {bytes_per_s}; allowed: above 0")
        self._bytes_per_s = bytes_per_s
        self._free_at_s = 0.0

    async def take(self, length: int) -> None:
        """Wait until a range of this many bytes may start."""
        now_s = asyncio.get_running_loop().time()
        start_s = max(now_s, self._free_at_s)
        self._free_at_s = start_s + length / self._bytes_per_s
        await asyncio.sleep(start_s - now_s)


class RequestLimit:
    """Requests to one host: they wait as long as its answers say, and its redirects keep within a budget."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._paused_until_s = 0.0
        self._gap_s = 0.0  # between two requests
        self._next_s = 0.0
        self._spent_until_s = clock_s() - WINDOW_S  # each redirect moves it; none may follow while it is ahead

    def wait_s(self) -> float:
        """Return how long the next request has to wait."""
        return max(self._paused_until_s, self._next_s, self._spent_until_s) - self._clock_s()

    async def take(self) -> None:
        """Wait until a request may start."""
        while True:
            wait_s = self.wait_s()
            if wait_s <= 0:
                break
            await asyncio.sleep(wait_s)  # an answer that comes meanwhile may ask for more
        self._next_s = self._clock_s() + self._gap_s

    def note(self, status: int, headers: Headers) -> None:
        """Learn from an answer."""
        now_s = self._clock_s()
        if 300 <= status < 400:
            self._spent_until_s = max(self._spent_until_s, now_s - WINDOW_S) + WINDOW_S / BUDGET
        pause_s = told_pause_s(status, headers)
        if pause_s:
            pause_s *= random.uniform(1.0, 1.1)  # or else all agents come back at once
            self._paused_until_s = max(self._paused_until_s, now_s + pause_s)
        remaining, reset_s = _left(headers)
        self._gap_s = reset_s / remaining if 0 < remaining <= LAST_REQUESTS else 0.0


def told_pause_s(status: int, headers: Headers) -> float:
    """Return for how many seconds an answer asks for no further request; 0: it does not.

    Source: RFC 9110 (Retry-After) and draft-ietf-httpapi-ratelimit-headers, from "limit=, remaining=, reset=" of its
    early versions to `"name";r=;t=` of version 9, which Hugging Face sends.
    """
    pause_s = _retry_after_s(headers) if status in (429, 503) else 0.0
    remaining, reset_s = _left(headers)
    if remaining == 0:
        pause_s = max(pause_s, reset_s)
    if status == 429:
        pause_s = pause_s or UNTOLD_PAUSE_S
    return min(pause_s, MAX_PAUSE_S)


def _left(headers: Headers) -> tuple[float, float]:
    """Return the requests that are left in a window, and its seconds; infinity and 0: it is not told."""
    stated = headers.get("RateLimit", "")[:MAX_HEADER_CHARS].lower().replace(" ", "")
    if not stated and "RateLimit-Remaining" in headers:
        stated = f"remaining={headers['RateLimit-Remaining']};reset={headers.get('RateLimit-Reset', '')}"
    fewest = float("inf"), 0.0
    # Items of a list have commas between them, and so have the three values of the early versions.
    for item in stated.split(",") if '"' in stated or ";" in stated else [stated]:
        remaining, reset = _REMAINING.search(item), _RESET.search(item)
        if remaining and reset:
            fewest = min(fewest, (float(remaining[1]), float(reset[1])), key=lambda each: (each[0], -each[1]))
    return fewest


def _retry_after_s(headers: Headers) -> float:
    stated = headers.get("Retry-After", "").strip()[:MAX_HEADER_CHARS]
    if stated.isascii() and stated.isdigit():
        return float(stated[:9])
    try:
        moment = parsedate_to_datetime(stated)
    except (ValueError, TypeError, OverflowError):
        return 0.0
    now = datetime.now(UTC)
    return max((moment.replace(tzinfo=moment.tzinfo or UTC) - now).total_seconds(), 0.0)
