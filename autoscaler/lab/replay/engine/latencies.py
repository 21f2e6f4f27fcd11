"""The latencies of one case as a scrape sees them, counted when somebody asks: most scalers never do."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping

import numpy as np

from autoscaler.core.table.columns import FloatColumn, IntColumn
from autoscaler.lab.replay.case import ObservedLatency
from autoscaler.lab.replay.engine.state import GAP_BOUNDS, HISTOGRAM_SLICES, REQUEST_BOUNDS, EngineState, Records

TOKEN_TIMES = ("ttft", "itl")  # of which replicas have histograms of their own
BOUNDS: Mapping[str, FloatColumn] = {
    **dict.fromkeys(("e2e", "queue", "inference", "prefill", "decode"), REQUEST_BOUNDS),
    "tpot": GAP_BOUNDS,
}
"""Times of a finished request at its engine, as vLLM divides them: from submission to the last token; to the first
scheduling; from there to the last token; to the first token; from there to the last token; that in the mean per token.
"""


class RequestTimes:
    """The times of the finished requests of one case."""

    def __init__(self, state: EngineState, number: int, kept: int) -> None:
        """number: of the engine that belongs to the case. kept: scrapes of which somebody may ask."""
        self._state, self._number = state, number
        self._open = np.empty(0, np.int64)  # requests that arrived and had not ended when it was counted last
        self._arrived = 0
        self._seen = {name: ObservedLatency(np.zeros(len(bounds)), 0.0) for name, bounds in BOUNDS.items()}
        self._scrapes: deque[ScrapedLatencies] = deque(maxlen=kept)

    def scrape(self, time_s: float, counts: FloatColumn, ttft_sum_s: float, itl_sum_s: float) -> ScrapedLatencies:
        """Return the latencies at a time. counts: float64[85], cumulative, those of `state.HISTOGRAM_SLICES`."""
        scraped = ScrapedLatencies(self, time_s, counts, (ttft_sum_s, itl_sum_s))
        self._scrapes.append(scraped)
        return scraped

    def count(self, wanted: ScrapedLatencies) -> None:
        """Count the requests until a scrape, and until those before it, which windows begin with."""
        while self._scrapes and self._scrapes[0].time_s <= wanted.time_s:
            scrape = self._scrapes.popleft()
            scrape.times = self._seen = self.until(scrape.time_s)
        if wanted.times is None:  # it was kept for longer than anybody should
            wanted.times = RequestTimes(self._state, self._number, 0).until(wanted.time_s)

    def until(self, time_s: float) -> dict[str, ObservedLatency]:
        """Return the times of all requests that ended by `time_s`, which must not decrease."""
        state = self._state
        arrived = int(np.searchsorted(state.arrival_s, time_s, side="right"))
        candidates = np.concatenate([self._open, np.arange(self._arrived, arrived)])
        is_over = state.requests["end_s"][candidates] <= time_s
        self._open, self._arrived = candidates[~is_over], arrived
        ended = candidates[is_over]
        ended = ended[state.requests["next"][ended] == self._number]
        if not len(ended):
            return self._seen
        times = _times(state.requests[ended], state.output_tokens[ended])
        return {name: _add(self._seen[name], BOUNDS[name], times_s) for name, times_s in times.items()}


class ScrapedLatencies(Mapping[str, ObservedLatency]):
    """All latencies at one scrape."""

    def __init__(self, source: RequestTimes, time_s: float, counts: FloatColumn, sums_s: tuple[float, float]) -> None:
        self.time_s = time_s
        self.times: dict[str, ObservedLatency] | None = None
        self._source, self._counts, self._sums_s = source, counts, sums_s

    def __getitem__(self, name: str) -> ObservedLatency:
        if name in TOKEN_TIMES:
            place = TOKEN_TIMES.index(name)
            return ObservedLatency(self._counts[HISTOGRAM_SLICES[place]], self._sums_s[place])
        if self.times is None:
            self._source.count(self)
        assert self.times is not None
        return self.times[name]

    def __iter__(self) -> Iterator[str]:
        return iter((*TOKEN_TIMES, *BOUNDS))

    def __len__(self) -> int:
        return len(TOKEN_TIMES) + len(BOUNDS)


def _times(requests: Records, tokens: IntColumn) -> dict[str, FloatColumn]:
    """Return the times of finished requests, as `BOUNDS` names them, float64[n] each."""
    submitted_s, scheduled_s, first_s, end_s = (
        requests[f"{at}_s"] for at in ("submitted", "scheduled", "first", "end")
    )
    return {
        "e2e": end_s - submitted_s,
        "queue": scheduled_s - submitted_s,
        "inference": end_s - scheduled_s,
        "prefill": first_s - scheduled_s,
        "decode": end_s - first_s,
        "tpot": (end_s - first_s) / np.maximum(tokens - 1, 1),
    }


def _add(before: ObservedLatency, bounds: FloatColumn, times_s: FloatColumn) -> ObservedLatency:
    """Return what was observed with further times. A time on a bound belongs to the bucket below it."""
    places = np.searchsorted(bounds, times_s, side="left")
    counts = np.bincount(places, minlength=len(bounds)).cumsum()
    return ObservedLatency(before.counts + counts, before.sum_s + float(times_s.sum()))
