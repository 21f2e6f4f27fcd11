"""What a real vLLM server said, played on as text: some light traffic for as long as one likes, then a queue.

The recorded run has two clients until its 28th second, and from then on more requests than its four slots hold. Parts
of it are played again and again; counters and histograms go on counting from where the part before ended.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from autoscaler.adapters.scrape import reading
from autoscaler.adapters.scrape.exposition import parse
from autoscaler.config.engines import VLLM
from autoscaler.core.histogram import Window
from tests.core.recordings import DATA, QUANTILE_WINDOW_S

LIGHT = (10, 26)  # seconds of the recording in which two requests run and none waits
QUEUE_FROM, QUEUE_AGAIN, QUEUE_UNTIL = 28, 40, 66  # four run and up to 32 wait; after the end it begins again inside

_COUNTER = re.compile(r"^(\S+(?:_total|_count|_sum|_bucket)(?:\{.*\})?) (\S+)$")


class Played(NamedTuple):
    """One moment of the tape."""

    text: str  # as the server would have said it
    waiting: float  # requests


@cache
def _texts() -> tuple[str, ...]:
    with gzip.open(DATA / "load-timeseries.jsonl.gz", "rt") as lines:
        return tuple(json.loads(line)["text"] for line in lines)


def _counters(text: str) -> dict[str, float]:
    found = (_COUNTER.match(line) for line in text.splitlines())
    return {match[1]: float(match[2]) for match in found if match}


def play(light_s: int, queue_s: int) -> Iterator[Played]:
    """Yield the body of each second: light traffic, then a queue, for so long."""
    order = [LIGHT[0] + second % (LIGHT[1] - LIGHT[0]) for second in range(light_s)]
    queue = list(range(QUEUE_FROM, QUEUE_UNTIL))
    while len(queue) < queue_s:
        queue += range(QUEUE_AGAIN, QUEUE_UNTIL)
    counted: dict[str, float] = {}
    before: dict[str, float] | None = None
    last = None
    for second in order + queue[:queue_s]:
        now = _counters(_texts()[second])
        if before is None or last is None or second < last:  # one second of the part that begins again
            before = _counters(_texts()[second - 1])
        for name, value in now.items():
            counted[name] = counted.get(name, 0.0) + value - before.get(name, 0.0)
        before, last = now, second
        yield Played(_rewritten(_texts()[second], counted), _waiting(_texts()[second]))


def _rewritten(text: str, counted: dict[str, float]) -> str:
    lines = []
    for line in text.splitlines():
        match = _COUNTER.match(line)
        lines.append(f"{match[1]} {counted[match[1]]!r}" if match else line)
    return "\n".join(lines) + "\n"


def _waiting(text: str) -> float:
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith("vllm:num_requests_waiting{"))


class Reader:
    """Turns bodies into columns of PodSamples, as the scraper does."""

    def __init__(self, ttft_s: float, itl_s: float) -> None:
        self._objectives = {"ttft_s": ttft_s, "itl_s": itl_s}
        self._windows = {"ttft_s": Window(), "itl_s": Window()}

    def read(self, time_s: float, text: str) -> dict[str, float]:
        exposition = parse(text.encode(), reading.wanted(VLLM))
        found = reading.histograms(VLLM, exposition)
        columns = reading.gauges_and_counters(VLLM, exposition) | reading.within(found, self._objectives)
        for column, window in self._windows.items():
            self._windows[column] = window.push(time_s, found[column], QUANTILE_WINDOW_S)
            columns[column] = self._windows[column].quantile(0.95)
        return columns
