"""Metrics text of a real vLLM server, played for any time: light traffic, then a queue.

The recorded run has two clients until its 28th second, and from then on more requests than its four slots hold. Parts
of it are played again and again; counters and histograms go on counting from where the part before ended.
"""

from __future__ import annotations

import gzip
import json
import math
import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from autoscaler.adapters.scrape import pod_columns
from autoscaler.adapters.scrape.exposition import parse
from autoscaler.catalog.engines import VLLM
from autoscaler.core.explain.sentence import explain
from autoscaler.core.model.spec import Spec
from autoscaler.core.table.histogram import HistogramWindow, pooled_quantile
from tests.core.recordings import DATA, QUANTILE_WINDOW_S
from tests.core.world import Story, fleet, world

LIGHT, IDLE = (
    (10, 26),
    (2, 7),
)  # seconds of the recording with two running requests, and without any; none waits
QUEUE_FROM, QUEUE_AGAIN, QUEUE_UNTIL = 28, 40, 66  # four run and up to 32 wait; it repeats from QUEUE_AGAIN

_COUNTER = re.compile(r"^(\S+(?:_total|_count|_sum|_bucket)(?:\{.*\})?) (\S+)$")


@cache
def _texts() -> tuple[str, ...]:
    with gzip.open(DATA / "load-timeseries.jsonl.gz", "rt") as lines:
        return tuple(json.loads(line)["text"] for line in lines)


@cache
def _counters(second: int) -> dict[str, float]:
    found = (_COUNTER.match(line) for line in _texts()[second].splitlines())
    return {match[1]: float(match[2]) for match in found if match}


def loop_recording(before: tuple[int, int], before_s: int, queue_s: int, every_s: int, phase_s: int) -> Iterator[str]:
    """Yield the metrics text at this interval: LIGHT or IDLE for `before_s`, then a queue for `queue_s`."""
    order = [before[0] + second % (before[1] - before[0]) for second in range(before_s)]
    queue = list(range(QUEUE_FROM, QUEUE_UNTIL))
    while len(queue) < queue_s:
        queue += range(QUEUE_AGAIN, QUEUE_UNTIL)
    counted: dict[str, float] = {}
    shown: dict[str, float] = {}
    last = math.inf
    for number, second in enumerate(order + queue[:queue_s]):
        now = _counters(second)
        if second != last + 1:  # a part begins, or begins again
            shown = _counters(second - 1)
        for name, value in now.items():
            counted[name] = counted.get(name, 0.0) + value - shown.get(name, 0.0)
        shown, last = now, second
        if number % every_s == phase_s:
            yield _rewritten(_texts()[second], counted)


def _rewritten(text: str, counted: dict[str, float]) -> str:
    lines = []
    for line in text.splitlines():
        match = _COUNTER.match(line)
        lines.append(f"{match[1]} {counted[match[1]]!r}" if match else line)
    return "\n".join(lines) + "\n"


class Reader:
    """Convert metrics text to columns of PodSamples, as the scraper does."""

    def __init__(self, rules: Spec) -> None:
        self._objectives = {"ttft_s": float(rules.ttft_objective_s[0]), "itl_s": float(rules.itl_objective_s[0])}
        self._windows = {"ttft_s": HistogramWindow(), "itl_s": HistogramWindow()}

    def read(self, time_s: float, text: str) -> dict[str, float]:
        exposition = parse(text.encode(), pod_columns.sample_names(VLLM))
        found = pod_columns.histograms(VLLM, exposition)
        columns = pod_columns.gauges_and_counters(VLLM, exposition) | pod_columns.count_within_objectives(
            found, self._objectives
        )
        for column, window in self._windows.items():
            self._windows[column] = window.push(time_s, found[column], QUANTILE_WINDOW_S)
            columns[column] = pooled_quantile(0.95, [self._windows[column]])
        return columns


class Reaction(NamedTuple):
    """The decision after the first reading that showed a queue."""

    seconds: float  # until more replicas were decided; infinite: they never were
    waiting: float  # requests in that reading
    sentence: str  # of the decision


def measure_reaction(rules: Spec, before: tuple[int, int], before_s: int, every_s: int, phase_s: int = 0) -> Reaction:
    """Read the tape at this interval, and tick with each reading, until more than one replica is decided.

    phase_s: 0..every_s-1, moment of the first reading.
    """
    story, reader, cluster = Story(rules), Reader(rules), fleet([1])
    first: Reaction | None = None
    for number, text in enumerate(loop_recording(before, before_s, 60, every_s, phase_s)):
        second = number * every_s + phase_s
        columns = reader.read(float(second), text)
        decision = story.tick(cluster, float(every_s), **columns)
        if first is None and columns["waiting"] > 0:
            first, since = Reaction(math.inf, columns["waiting"], ""), second
        if first is not None and decision.replicas[0] > 1:
            inp = world(story.now_s, cluster, rules, **columns)
            return first._replace(seconds=float(second - since), sentence=explain(inp, decision, ("",), {}, 0).sentence)
    assert first is not None
    return first
